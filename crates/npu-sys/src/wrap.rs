//! Drivers that stand in front of another driver: to fail calls, to check order, to keep a log,
//! to measure what calls cost.
//!
//! Each holds an `Arc<dyn Driver>` and is a [`Driver`](crate::Driver) itself, so they stack in any
//! order. A call that one of them refuses does not reach the driver behind it.

mod check;
mod fault;
mod meter;
mod record;

pub use check::{AccessSite, CheckConfig, CheckDriver, Memory, Place, Violation};
pub use fault::{FaultDriver, FaultPlan, Lasting};
pub use meter::{CallCost, MeterDriver};
pub use record::{RecordDriver, RecordedCall};

/// Names of all calls of [`Driver`](crate::Driver) that can fail, as the trait spells them and in
/// its order.
pub const FALLIBLE_CALLS: [&str; 29] = [
    "memory_info",
    "reserve",
    "free_range",
    "create_chunk",
    "release_chunk",
    "map",
    "set_access",
    "unmap",
    "allocate_device",
    "free_device",
    "allocate_pinned",
    "free_pinned",
    "register_host",
    "unregister_host",
    "device_pointer",
    "create_stream",
    "destroy_stream",
    "synchronize_stream",
    "create_event",
    "destroy_event",
    "record_event",
    "wait_event",
    "query_event",
    "synchronize_event",
    "elapsed_us",
    "copy",
    "fill",
    "launch_host",
    "note_access",
];

/// Stops a misspelt name: it would never match, and a test would prove nothing.
fn assert_is_call(name: &str) {
    assert!(FALLIBLE_CALLS.contains(&name), "the driver has no fallible call '{name}'");
}
