//! What every driver promises, run on the host driver in all its modes.
//!
//! [`memory`] and [`order`] use nothing but [`Driver`](npu_sys::Driver) for what they test, so
//! that they can judge a real device as well. The other files test what only the host driver has.

// A test that meets an error it did not ask for should stop there.
#![allow(clippy::unwrap_used)]

mod death;
mod life;
mod memory;
mod model;
mod order;
mod rig;
mod time;
