//! Stages: slots of the arena by which a copy's tiles go up and down.

use crate::arena::Slot;
use crate::error::MemoryError;
use crate::memory::DeviceMemory;
use crate::point::{Point, Site, Uses};
use crate::tensor::error::TensorError;

/// A tile that fits in here always fits: no element is larger, and the arena has no smaller slots.
const STAGE_LEAST_BYTES: usize = 4096;

/// The stages of one copy, used in turn so that one can be filled while others are copied.
#[derive(Debug)]
pub(super) struct Stages {
    stages: Vec<(Slot, Uses)>,
    next: usize,
    size_bytes: usize,
}

impl Stages {
    /// Takes one stage, or if `many` several, of about `size_bytes`: of less where the arena has
    /// no room.
    pub(super) fn take(
        memory: &mut DeviceMemory,
        size_bytes: usize,
        many: bool,
    ) -> Result<Stages, TensorError> {
        let mut size_bytes = size_bytes.max(STAGE_LEAST_BYTES);
        let first = loop {
            match memory.arena.take(size_bytes as u64) {
                Err(MemoryError::HostFull { .. }) if size_bytes > STAGE_LEAST_BYTES => {
                    size_bytes = (size_bytes / 2).max(STAGE_LEAST_BYTES);
                }
                result => break result?,
            }
        };
        let mut stages = vec![first];
        // More of them only save waits.
        if many && let Ok(second) = memory.arena.take(size_bytes as u64) {
            stages.push(second);
        }
        Ok(Stages { stages, next: 0, size_bytes })
    }

    /// What fits into each.
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// The next stage, after waiting on the host for its last use.
    pub(super) fn next(
        &mut self,
        memory: &mut DeviceMemory,
        site: Site,
    ) -> Result<usize, TensorError> {
        let index = self.next;
        memory.streams.wait_host(&self.stages[index].1, site)?;
        self.next = (index + 1) % self.stages.len();
        Ok(index)
    }

    /// The slot of a stage.
    pub(super) fn slot(&self, index: usize) -> &Slot {
        &self.stages[index].0
    }

    /// Counts a copy as a use of a stage.
    pub(super) fn note(&mut self, index: usize, point: Point) {
        self.stages[index].1.add(point);
    }

    /// Gives the stages back; they are reused after their last copies.
    pub(super) fn give_back(self, memory: &mut DeviceMemory) {
        for (slot, uses) in self.stages {
            memory.arena.give_back(slot, uses);
        }
    }
}
