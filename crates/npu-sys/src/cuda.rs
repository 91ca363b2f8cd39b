//! The NVIDIA driver: `libcuda.so.1`, opened at run time.
