//! Mapping ahead of need: what is given to the [`Mapper`], and what came of it.

use super::*;

impl Pool {
    /// Addresses at which a chunk that was just given away will soon be mapped, for the next
    /// allocation of its size.
    pub(super) fn map_ahead(&mut self, handle: ChunkHandle, size_bytes: u64) -> Option<VaRange> {
        if !self.mapper.is_running() {
            return None;
        }
        // Without addresses the allocation finds some itself, or says why not.
        let range = self.take_range(size_bytes).ok()?;
        self.mapper.post(range, handle, Need::Perhaps);
        Some(range)
    }

    /// Makes the address of a block on its way back show its chunk: now, or on the other thread.
    pub(super) fn map_soon(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<(), DriverError> {
        if !self.mapper.is_running() {
            return self.map_block(streams, id);
        }
        let Place::Swappable { range, chunk: Some(chunk), mapping: Mapping::Unmapped } =
            &self.block(id).place
        else {
            return Ok(());
        };
        self.mapper.post(*range, chunk.handle, Need::Soon);
        self.set_mapping(id, Mapping::Coming);
        Ok(())
    }

    /// Whether the other thread is mapping the block's address right now.
    pub(super) fn is_being_mapped(&self, id: BlockId) -> bool {
        match &self.block(id).place {
            Place::Swappable { range, .. } => self.mapper.is_busy(*range),
            Place::Segment { .. } | Place::Nowhere => false,
        }
    }

    /// Learns what became of a block's address that was to be mapped. Returns whether it is.
    pub(super) fn settle_block(&mut self, id: BlockId) -> Result<bool, DriverError> {
        let Place::Swappable { range, .. } = self.block(id).place else {
            unreachable!("only swappable blocks are mapped")
        };
        let mapped = match self.mapper.settle(range) {
            None | Some(Settled::Mapped) => true,
            Some(Settled::Failed(failure)) if failure.still_mapped => {
                return Err(self.note_failure(id, failure));
            }
            // The caller maps it itself, and reports what stands in the way.
            Some(Settled::Untouched | Settled::Failed(_)) => false,
        };
        self.set_mapping(id, if mapped { Mapping::Mapped } else { Mapping::Unmapped });
        Ok(mapped)
    }

    /// Notes that a block's address could not be mapped, and perhaps is so in part.
    pub(super) fn note_failure(&mut self, id: BlockId, failure: MapFailure) -> DriverError {
        let Place::Swappable { chunk: Some(chunk), .. } = &self.block(id).place else {
            unreachable!("the caller mapped the block's chunk")
        };
        let chunk = chunk.handle;
        if failure.still_mapped {
            self.set_mapping(id, Mapping::Stale { chunk, uses: Uses::default() });
            self.stale_blocks.push_back(id);
        } else {
            self.set_mapping(id, Mapping::Unmapped);
        }
        failure.error
    }

    /// Gives up the addresses of a cached chunk that is needed at others.
    pub(super) fn set_aside(&mut self, spare: &Spare) {
        let Some(range) = spare.range else { return };
        let (chunk, uses) = (spare.chunk.handle, spare.ready.clone());
        if !self.mapper.is_busy(range) {
            match self.mapper.settle(range) {
                None | Some(Settled::Mapped) => {}
                Some(Settled::Failed(failure)) if failure.still_mapped => {}
                Some(Settled::Untouched | Settled::Failed(_)) => return self.keep_range(range),
            }
        }
        self.stale_ranges.push_back(StaleRange { range, chunk, uses });
    }
}
