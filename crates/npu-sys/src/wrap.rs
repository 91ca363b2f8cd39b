//! Drivers that stand in front of another driver: to fail calls, to check order, to keep a log,
//! to measure what calls cost.
//!
//! Each holds an `Arc<dyn Driver>` and is a [`Driver`](crate::Driver) itself, so they stack in any
//! order. A call that one of them refuses does not reach the driver behind it. What they have in
//! common is in `intercept.rs`, with the list of calls.

mod check;
mod fault;
mod intercept;
mod meter;
mod record;

pub use check::{AccessSite, Address, CheckConfig, CheckDriver, ForeignCall, Memory, Violation};
pub use fault::{FaultDriver, FaultPlan, Lasting};
pub use intercept::FALLIBLE_CALLS;
pub use meter::{CallCost, MeterDriver};
pub use record::{RecordDriver, RecordedCall};
