//! Chunks on their way out of the pool.

use std::collections::VecDeque;

use crate::block::Spare;

/// Chunks that go back to the driver as soon as the device is known to be done with them, oldest
/// first. They are no longer the cache's, and still count as held.
#[derive(Debug, Default)]
pub(super) struct Leaving {
    spares: VecDeque<Spare>,
    bytes: u64,
}

impl Leaving {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn push(&mut self, spare: Spare) {
        self.bytes += spare.chunk.home.size_bytes;
        self.spares.push_back(spare);
    }

    pub(super) fn oldest(&self) -> Option<&Spare> {
        self.spares.front()
    }

    pub(super) fn pop_oldest(&mut self) -> Option<Spare> {
        let spare = self.spares.pop_front()?;
        self.bytes -= spare.chunk.home.size_bytes;
        Some(spare)
    }
}
