//! Addresses that no block has: reserved ones that show nothing, and stale ones.

use std::collections::{BTreeMap, VecDeque};

use npu_sys::{ChunkHandle, VaRange};

use crate::block::BlockId;
use crate::point::Uses;

/// Reserved addresses at which nothing is mapped, by size.
#[derive(Debug, Default)]
pub(super) struct SpareRanges(BTreeMap<u64, Vec<VaRange>>);

impl SpareRanges {
    pub(super) fn take(&mut self, size_bytes: u64) -> Option<VaRange> {
        self.0.get_mut(&size_bytes)?.pop()
    }

    pub(super) fn put(&mut self, range: VaRange) {
        self.0.entry(range.size_bytes).or_default().push(range);
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = VaRange> + use<> {
        std::mem::take(&mut self.0).into_values().flatten()
    }
}

/// Addresses of no block that still show a chunk which others have now.
#[derive(Debug)]
pub(super) struct StaleRange {
    pub(super) range: VaRange,
    pub(super) chunk: ChunkHandle,
    /// It is unmapped once they are complete.
    pub(super) uses: Uses,
}

/// What shows a chunk that it gave away, each kind oldest first.
#[derive(Debug, Default)]
pub(super) struct Stale {
    /// Live blocks, or blocks that were live: one may be there twice, or not be stale any more.
    blocks: VecDeque<BlockId>,
    ranges: VecDeque<StaleRange>,
}

impl Stale {
    pub(super) fn push_block(&mut self, id: BlockId) {
        self.blocks.push_back(id);
    }

    pub(super) fn push_range(&mut self, range: VaRange, chunk: ChunkHandle, uses: Uses) {
        self.ranges.push_back(StaleRange { range, chunk, uses });
    }

    pub(super) fn oldest_block(&self) -> Option<BlockId> {
        self.blocks.front().copied()
    }

    pub(super) fn pop_block(&mut self) -> Option<BlockId> {
        self.blocks.pop_front()
    }

    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.blocks.iter().copied().collect()
    }

    pub(super) fn block_count(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn oldest_range(&self) -> Option<&StaleRange> {
        self.ranges.front()
    }

    pub(super) fn pop_range(&mut self) -> Option<StaleRange> {
        self.ranges.pop_front()
    }

    /// Puts one that was popped behind all others.
    pub(super) fn put_back_range(&mut self, stale: StaleRange) {
        self.ranges.push_back(stale);
    }

    pub(super) fn range_count(&self) -> usize {
        self.ranges.len()
    }

    /// The oldest range that shows the chunk.
    pub(super) fn range_of(&self, chunk: ChunkHandle) -> Option<VaRange> {
        self.ranges.iter().find(|stale| stale.chunk == chunk).map(|stale| stale.range)
    }

    /// Takes out a range that shows nothing any more.
    pub(super) fn remove_range(&mut self, range: VaRange) {
        self.ranges.retain(|stale| stale.range != range);
    }
}
