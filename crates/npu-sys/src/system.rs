//! What the operating system says about memory: free, locked, grouped, near which device.
