//! What taking memory can fail with.

use std::fmt;

use npu_sys::devices::HostMemory;
use npu_sys::{Bytes, DriverError};

/// A failed call of the pool or the arena. The state is as it was before the call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device pool is full: free or swap out at least `missing_bytes`, then try again.
    #[error(
        "{} more than the device cap of {} is needed",
        Bytes(*missing_bytes), Bytes(*limit_bytes)
    )]
    DeviceFull {
        /// Bytes that are missing even with an empty cache.
        missing_bytes: u64,
        /// The cap.
        limit_bytes: u64,
    },
    /// The host arena is full.
    #[error(
        "{} do not fit into the host arena: {} of its cap of {} are in use; {}",
        Bytes(*requested_bytes), Bytes(*used_bytes), Bytes(*limit_bytes),
        Remedy(shortage.as_deref())
    )]
    HostFull {
        /// What was asked for.
        requested_bytes: u64,
        /// What slots hold.
        used_bytes: u64,
        /// The cap.
        limit_bytes: u64,
        /// Why the host gave no more, if it was not the cap.
        shortage: Option<Box<HostShortage>>,
    },
    /// The budget of swapped memory is used up.
    #[error(
        "{} do not fit into the budget of swapped memory: {} of {} are in use; \
         raise the budget, or keep it on the device",
        Bytes(*requested_bytes), Bytes(*used_bytes), Bytes(*limit_bytes)
    )]
    SwappedFull {
        /// What was asked for.
        requested_bytes: u64,
        /// What live blocks hold.
        used_bytes: u64,
        /// The budget.
        limit_bytes: u64,
    },
    /// The device cannot address host memory, so it has no swapped memory.
    #[error(
        "{device} cannot address host memory, so it has no swapped memory: \
         keep this on the device, where it can be swapped out"
    )]
    HostNotMappable {
        /// The device's name.
        device: String,
    },
    /// A size that no device can hold.
    #[error("{requested_bytes} bytes is not a size that can be allocated")]
    BadSize {
        /// What was asked for.
        requested_bytes: u64,
    },
    /// Settings that contradict each other or the device.
    #[error("bad memory settings: {what}")]
    BadConfig {
        /// What is wrong and how to fix it.
        what: String,
    },
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// A host that has less memory than the arena's cap promised.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostShortage {
    /// The least that was tried.
    pub tried_bytes: u64,
    /// What was refused, by whom.
    pub reason: String,
    /// The host's limits at that moment.
    pub host: HostMemory,
}

/// What the user can do about a full arena.
struct Remedy<'a>(Option<&'a HostShortage>);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(HostShortage { tried_bytes, reason, host }) = self.0 else {
            return f.write_str("raise the cap on host memory");
        };
        let tried = Bytes(*tried_bytes);
        write!(f, "the host has no more: {tried} were not pinned: {reason}; {host}; ")?;
        f.write_str("ask for less host memory, end other programs, ")?;
        f.write_str("or give this one more (a larger container, `ulimit -l unlimited`)")
    }
}
