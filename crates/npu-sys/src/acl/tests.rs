//! The driver over the stand-in library: what opening refuses, what older libraries lack, and the
//! vendor's peculiarities that no caller is to notice.
//!
//! The contract that all drivers share is tested by `tests/conformance`.

mod fallbacks;
mod load;
mod peculiar;
mod rig;
mod standin;
