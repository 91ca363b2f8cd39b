//! The Ascend driver: `libascendcl.so`, opened at run time.
