//! How many of the process's mappings show device memory, and how many may.
//!
//! A process that has all the mappings that the system allows it cannot even allocate for the
//! text of an error. So devices leave a part of them to the rest of the process.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::DriverError;
use crate::host::failure::too_many_mappings;

/// The part that is left to others.
const OTHERS_SHARE: u64 = 8;

/// Mappings of all devices of the process.
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// The mappings of one device.
#[derive(Debug)]
pub(super) struct Mappings {
    total: &'static AtomicU64,
    taken: u64,
    most: u64,
}

impl Mappings {
    pub(super) fn new() -> Mappings {
        let limit = fs::read_to_string("/proc/sys/vm/max_map_count");
        let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
        // A system that tells no limit may have one: then it says so itself.
        let most = limit.map_or(u64::MAX, |limit| limit - limit / OTHERS_SHARE);
        Mappings { total: &TAKEN, taken: 0, most }
    }

    /// Counts `count` more, if all devices together may have them.
    pub(super) fn take(&mut self, call: &'static str, count: u64) -> Result<(), DriverError> {
        let before = self.total.fetch_add(count, Ordering::Relaxed);
        if before + count > self.most {
            self.total.fetch_sub(count, Ordering::Relaxed);
            return Err(too_many_mappings(call, before, self.most));
        }
        self.taken += count;
        Ok(())
    }

    pub(super) fn give_back(&mut self, count: u64) {
        self.taken -= count;
        self.total.fetch_sub(count, Ordering::Relaxed);
    }
}

impl Drop for Mappings {
    fn drop(&mut self) {
        self.total.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn devices_share_one_limit_and_give_back_what_they_took() {
        static TOTAL: AtomicU64 = AtomicU64::new(0);
        let device = || Mappings { total: &TOTAL, taken: 0, most: 5 };
        let (mut first, mut second) = (device(), device());
        first.take("map", 3).expect("there are 5");
        second.take("map", 2).expect("there are 2");
        let error = second.take("map", 1).expect_err("there is none");
        assert_eq!(error.kind, ErrorKind::OutOfMemory);
        assert!(error.text.contains("5 of 5") && error.text.contains("vm.max_map_count"));
        first.give_back(1);
        second.take("map", 1).expect("one was given back");
        drop(second);
        assert_eq!(TOTAL.load(Ordering::Relaxed), 2);
    }
}
