//! What every driver promises, run on every driver that is present.
//!
//! [`contract`] uses nothing but [`Driver`](npu_sys::Driver), and provokes only what the trait
//! allows a caller to do, so it runs on real devices as well: see [`drivers`] for which. [`host`]
//! tests what only the host driver has: its ledger, its clock, faults, and refusals of misuse
//! that on a real device would be undefined.

// A test that meets an error it did not ask for should stop there.
#![allow(clippy::unwrap_used)]

mod contract;
mod drivers;
#[path = "../../forked.rs"]
mod forked;
mod host;
mod rig;
