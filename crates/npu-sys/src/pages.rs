//! Host memory in large pages, touched by several threads near the device.
