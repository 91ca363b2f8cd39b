//! What the pool tells about its blocks and itself.

use super::*;

impl Pool {
    /// The block's address, valid from allocate to free.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn address(&self, id: BlockId) -> DevicePtr {
        match &self.block(id).memory {
            BlockMemory::Swappable { range, .. } => range.start,
            BlockMemory::Piece { start, .. } => *start,
            BlockMemory::Freed => unreachable!("`block` returns live blocks only"),
        }
    }

    /// The home address of what is behind the block, where copies run.
    ///
    /// # Panics
    /// If the block is not live or has no chunk of its own.
    pub fn home(&self, id: BlockId) -> DevicePtr {
        match &self.block(id).memory {
            BlockMemory::Swappable { backing: Backing::Chunk(chunk), .. } => chunk.home.start,
            BlockMemory::Swappable { backing: Backing::Lot { home, .. }, .. } => home.start,
            _ => unreachable!("the caller knows that the block has a chunk"),
        }
    }

    /// Physical bytes of a block.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn size_bytes(&self, id: BlockId) -> u64 {
        self.block(id).size_bytes
    }

    /// Bytes that were asked for.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn requested_bytes(&self, id: BlockId) -> u64 {
        self.block(id).requested_bytes
    }

    /// Whether the block has addresses and a chunk of its own.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn is_swappable(&self, id: BlockId) -> bool {
        matches!(self.block(id).memory, BlockMemory::Swappable { .. })
    }

    /// The block's address if it shows the block's chunk. `None` if it was freed, too.
    pub fn mapped_address(&self, id: BlockId) -> Option<DevicePtr> {
        match &self.blocks.find(id)?.memory {
            BlockMemory::Swappable { range, mapping: Mapping::Mapped, .. } => Some(range.start),
            BlockMemory::Piece { start, .. } => Some(*start),
            BlockMemory::Swappable { .. } | BlockMemory::Freed => None,
        }
    }

    /// Whether the name is of a block that was not freed.
    pub fn is_live(&self, id: BlockId) -> bool {
        self.blocks.find(id).is_some()
    }

    /// Notes a use: the memory is not reused, copied or unmapped before it.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn note_use(&mut self, id: BlockId, point: Point) {
        self.block_mut(id).uses.add(point);
    }

    /// The block's uses so far.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn uses(&self, id: BlockId) -> &Uses {
        &self.block(id).uses
    }

    /// Physical bytes taken from the driver; never above the cap.
    pub fn held_bytes(&self) -> u64 {
        self.cache.held_bytes() + self.leaving.bytes()
    }

    /// Physical bytes that no block can have which moves: segments that hold blocks, and
    /// what somebody else holds ([`set_outside`](Pool::set_outside)).
    pub fn fixed_bytes(&self) -> u64 {
        self.segment_bytes() + self.stats.outside_bytes.current
    }

    /// Counters in PyTorch's words.
    pub fn stats(&self) -> MemoryStats {
        let reserved_bytes =
            Peak { current: self.held_bytes(), peak: self.stats.reserved_bytes.peak };
        let (cached_bytes, slack_bytes) = (self.cache.cached_bytes(), self.cache.slack_bytes());
        MemoryStats {
            reserved_bytes,
            in_use_bytes: self.cache.live_bytes() - self.empty_segment_bytes(),
            cached_bytes,
            slack_bytes,
            calls: self.driver.calls(),
            ..self.stats
        }
    }

    /// Starts a new measurement of all peaks.
    pub fn reset_peaks(&mut self) {
        self.stats.reserved_bytes.current = self.held_bytes();
        self.stats.reset_peaks();
    }

    /// Notes that more is held than before.
    pub(super) fn note_held(&mut self) {
        let held_bytes = self.held_bytes();
        assert!(held_bytes <= self.config.limit_bytes, "held more than the cap");
        let peak_bytes = &mut self.stats.reserved_bytes.peak;
        *peak_bytes = held_bytes.max(*peak_bytes);
    }
}
