//! The completion of one recorded point of a stream.

use std::sync::atomic::{AtomicU64, Ordering};

/// Completed or not, and when. Each record of an event makes a new one; waits hold on to theirs.
#[derive(Debug)]
pub(super) struct Signal {
    at_us_bits: AtomicU64,
}

/// The bits of a NaN that no clock shows.
const PENDING: u64 = u64::MAX;

impl Signal {
    pub(super) fn new() -> Signal {
        Signal { at_us_bits: AtomicU64::new(PENDING) }
    }

    /// When it completed, if it did. What came before it is visible then.
    pub(super) fn at_us(&self) -> Option<f64> {
        match self.at_us_bits.load(Ordering::Acquire) {
            PENDING => None,
            bits => Some(f64::from_bits(bits)),
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.at_us().is_some()
    }

    pub(super) fn complete(&self, at_us: f64) {
        self.at_us_bits.store(at_us.to_bits(), Ordering::Release);
    }
}
