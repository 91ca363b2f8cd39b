//! The contract of [`Driver`](npu_sys::Driver), for all of them.
//!
//! Contents of the device are written and read by copies and fills, for the host cannot address
//! most devices. While a stream is held back by a host function, no other host function is
//! waited for, and no memory is taken or given back: real drivers may run all host functions on
//! one thread, and may wait for the device in memory calls.

mod forks;
mod memory;
mod misuse;
mod order;
pub(crate) mod programs;
mod threads;
