//! The driver as the pool calls it: it counts the calls that change memory.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use npu_sys::{ChunkHandle, Driver, DriverError, VaRange};

use crate::stats::MemoryCalls;

/// A driver and how often it was asked for memory. Its own thread, which maps, counts too.
pub(super) struct Caller {
    driver: Arc<dyn Driver>,
    created: AtomicU64,
    released: AtomicU64,
    mapped: AtomicU64,
    unmapped: AtomicU64,
}

impl Caller {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Caller {
        let [created, released, mapped, unmapped] = Default::default();
        Caller { driver, created, released, mapped, unmapped }
    }

    pub(super) fn calls(&self) -> MemoryCalls {
        MemoryCalls {
            created: self.created.load(Ordering::Relaxed),
            released: self.released.load(Ordering::Relaxed),
            mapped: self.mapped.load(Ordering::Relaxed),
            unmapped: self.unmapped.load(Ordering::Relaxed),
        }
    }

    pub(super) fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.created.fetch_add(1, Ordering::Relaxed);
        self.driver.create_chunk(size_bytes)
    }

    pub(super) fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.released.fetch_add(1, Ordering::Relaxed);
        self.driver.release_chunk(chunk)
    }

    pub(super) fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.mapped.fetch_add(1, Ordering::Relaxed);
        self.driver.map(range, chunk)
    }

    /// Notes an unmapping, which is unsafe and so not done here.
    pub(super) fn note_unmap(&self) {
        self.unmapped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Deref for Caller {
    type Target = dyn Driver;

    fn deref(&self) -> &(dyn Driver + 'static) {
        &*self.driver
    }
}
