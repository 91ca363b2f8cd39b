//! What is mapped where, and when: at once, ahead of need on the [`Mapper`]'s thread, and no
//! longer than it is used.

use super::*;

/// Stale mappings looked at in one poll: posting costs little, and most are in order.
const POSTS_PER_POLL: usize = 8;

/// Stale addresses unmapped in one [`Pool::poll`], so that a poll stays short.
pub(super) const UNMAPS_PER_POLL: usize = 4;

impl Pool {
    /// Makes the block's address show its chunk. Waits on the host only where an earlier chunk
    /// is still mapped there and in use.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If the block is not live or has no chunk.
    pub fn map_block(&mut self, streams: &mut Streams, id: BlockId) -> Result<(), DriverError> {
        let BlockMemory::Swappable { mapping, .. } = &self.block(id).memory else { return Ok(()) };
        match mapping {
            Mapping::Mapped => return Ok(()),
            Mapping::Unmapped => {}
            Mapping::Coming => {
                if self.finish_mapping(id)? {
                    return Ok(());
                }
            }
            Mapping::Stale { uses, .. } => {
                let uses = uses.clone();
                streams.wait_host(&uses, Site::RemapAfterUse)?;
                // SAFETY: waited for just now.
                unsafe { self.unmap_stale(id) }?;
            }
            Mapping::Kept { .. } => {
                if let Some((range, lot)) = self.partly_shown(id) {
                    self.fill_gaps(range, lot)?;
                    self.set_mapping(id, Mapping::Mapped);
                    return Ok(());
                }
                self.unmap_kept(streams, id)?;
            }
        }
        if !self.unreleased.is_empty() {
            // Part of what was here may be. If it stays, the call below says so.
            let _ = self.release_leftovers();
        }
        let BlockMemory::Swappable { range, backing, .. } = &self.block(id).memory else {
            unreachable!("checked above")
        };
        let range = *range;
        match backing {
            Backing::Nothing => unreachable!("the caller attached something"),
            Backing::Chunk(chunk) => {
                let mapped = self.try_map(range, chunk.handle);
                mapped.map_err(|failure| self.note_failure(id, failure))?;
            }
            Backing::Lot { lot, .. } => {
                let lot = *lot;
                self.map_lot(range, lot)?;
            }
        }
        self.set_mapping(id, Mapping::Mapped);
        Ok(())
    }

    /// As [`map_block`](Pool::map_block), but leaves the mapping for later, or to another thread,
    /// where it would wait.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If the block is not live or has no chunk.
    pub fn poll_block(&mut self, streams: &mut Streams, id: BlockId) -> Result<(), DriverError> {
        let would_wait = match &self.block(id).memory {
            _ if self.partly_shown(id).is_some() => false,
            BlockMemory::Swappable { mapping: Mapping::Stale { uses, .. }, .. }
            | BlockMemory::Swappable { mapping: Mapping::Kept { uses, .. }, .. } => {
                !streams.are_complete(uses, Site::UnmapBlockAfterUse)?
            }
            _ => false,
        };
        if would_wait { Ok(()) } else { self.map_soon(streams, id) }
    }

    /// Unmaps stale addresses and releases leaving chunks whose last use is known to be complete.
    /// Cheap when there is nothing to do; never blocks.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn poll(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        self.release_leaving(streams, self.config.limit_bytes)?;
        self.poll_hiding(streams)?;
        if self.mapper.is_running() {
            return self.poll_posted(streams);
        }
        for _ in 0..UNMAPS_PER_POLL {
            let Some(id) = self.stale.oldest_block() else { break };
            match self.is_out_of_use(streams, id)? {
                None => {}
                Some(false) => break,
                Some(true) => {
                    // SAFETY: queried just now.
                    unsafe { self.unmap_stale(id) }?;
                    if self.has_backing(id) {
                        self.map_block(streams, id)?;
                    }
                }
            }
            self.stale.pop_block();
        }
        for _ in 0..UNMAPS_PER_POLL {
            let Some(stale) = self.stale.oldest_range() else { break };
            if !stale.is_out_of_use(streams)? {
                break;
            }
            // SAFETY: queried just now.
            unsafe { self.unmap(stale.range) }?;
            let stale = self.stale.pop_range().expect("seen above");
            self.keep_range(stale.range);
        }
        Ok(())
    }

    /// Addresses at which a chunk that was just given away will soon be mapped, if it is likely
    /// that an allocation takes it, and not a block on its way back.
    pub(super) fn map_ahead(&mut self, handle: ChunkHandle, size_bytes: u64) -> Option<VaRange> {
        if !self.mapper.is_running() || !self.allocations_follow {
            return None;
        }
        // Without addresses the allocation finds some itself, or says why not.
        let range = self.take_range(size_bytes).ok()?;
        self.mapper.post(range, Task::Map(handle), Need::Perhaps);
        Some(range)
    }

    /// Makes the address of a block on its way back show its chunk: now, or on the other thread.
    pub(super) fn map_soon(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<(), DriverError> {
        if !self.mapper.is_running() || self.partly_shown(id).is_some() {
            return self.map_block(streams, id);
        }
        let (range, handle, mapping) = match &self.block(id).memory {
            BlockMemory::Swappable { range, backing: Backing::Chunk(chunk), mapping } => {
                (*range, chunk.handle, mapping)
            }
            BlockMemory::Swappable {
                backing: Backing::Lot { .. },
                mapping: Mapping::Unmapped,
                ..
            } => {
                return self.map_block(streams, id);
            }
            _ => return Ok(()),
        };
        match mapping {
            Mapping::Unmapped => {
                self.mapper.post(range, Task::Map(handle), Need::Soon);
                self.set_mapping(id, Mapping::Coming);
            }
            // The caller saw that its uses are complete. When it is gone, `poll` goes on.
            Mapping::Stale { .. } if self.mapper.progress(range).is_none() => {
                self.mapper.post(range, Task::Unmap, Need::Soon);
            }
            Mapping::Stale { .. } | Mapping::Kept { .. } | Mapping::Mapped | Mapping::Coming => {}
        }
        Ok(())
    }

    /// Learns what is behind a block's address that was posted. Returns whether its chunk is.
    pub(super) fn finish_mapping(&mut self, id: BlockId) -> Result<bool, DriverError> {
        let BlockMemory::Swappable { range, .. } = self.block(id).memory else {
            unreachable!("only swappable blocks are mapped")
        };
        let mapped = match self.mapper.take(range) {
            None | Some(RangeState::Mapped) => true,
            Some(RangeState::Failed(failure)) if failure.still_mapped => {
                return Err(self.note_failure(id, failure));
            }
            // The caller maps it itself, and reports what stands in the way.
            Some(RangeState::Unmapped | RangeState::Failed(_)) => false,
        };
        self.set_mapping(id, if mapped { Mapping::Mapped } else { Mapping::Unmapped });
        Ok(mapped)
    }

    /// Notes that a block's address could not be mapped, and perhaps is so in part.
    pub(super) fn note_failure(&mut self, id: BlockId, failure: MapFailure) -> DriverError {
        let BlockMemory::Swappable { backing: Backing::Chunk(chunk), .. } = &self.block(id).memory
        else {
            unreachable!("the caller mapped the block's chunk")
        };
        let chunk = chunk.handle;
        if failure.still_mapped {
            let uses = Uses::default();
            self.set_mapping(id, Mapping::Stale { chunk, uses, is_whole: false });
            self.stale.push_block(id);
        } else {
            self.set_mapping(id, Mapping::Unmapped);
        }
        failure.error
    }

    /// Gives up the addresses of a cached chunk that is needed at others.
    pub(super) fn set_aside(&mut self, spare: &Spare) {
        let Some(range) = spare.range else { return };
        let (chunk, uses) = (spare.chunk.handle, spare.ready.clone());
        if self.mapper.progress(range) == Some(Progress::Waiting)
            && let Some(RangeState::Unmapped) = self.mapper.take(range)
        {
            return self.keep_range(range);
        }
        self.stale.push_range(range, chunk, uses);
    }

    /// Leaves stale mappings whose last use is complete to the other thread, and notes those that
    /// are gone.
    pub(super) fn poll_posted(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        for _ in 0..self.stale.block_count().min(POSTS_PER_POLL) {
            let id = self.stale.pop_block().expect("counted");
            let polled = self.poll_stale_block(streams, id);
            // One that failed is looked at again.
            if !matches!(polled, Ok(true)) {
                self.stale.push_block(id);
            }
            polled?;
        }
        for _ in 0..self.stale.range_count().min(POSTS_PER_POLL) {
            let stale = self.stale.pop_range().expect("counted");
            match self.poll_stale_range(streams, &stale) {
                Ok(true) => self.keep_range(stale.range),
                polled => {
                    self.stale.put_back_range(stale);
                    polled?;
                }
            }
        }
        Ok(())
    }

    /// Sees to one range. Returns whether nothing is mapped there any more.
    fn poll_stale_range(
        &self,
        streams: &mut Streams,
        stale: &StaleRange,
    ) -> Result<bool, DriverError> {
        match self.mapper.progress(stale.range) {
            // A failure may have left it mapped, which only another try can tell.
            Some(Progress::Done) => Ok(match self.mapper.take(stale.range) {
                Some(RangeState::Unmapped) => true,
                Some(RangeState::Failed(failure)) => !failure.still_mapped,
                Some(RangeState::Mapped) | None => false,
            }),
            None if stale.is_out_of_use(streams)? => {
                self.mapper.post(stale.range, Task::Unmap, Need::Perhaps);
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Sees to one block. Returns whether it is not stale any more.
    fn poll_stale_block(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<bool, DriverError> {
        if self.stale_uses(id).is_none() {
            return Ok(true);
        }
        let BlockMemory::Swappable { range, .. } = self.block(id).memory else { return Ok(true) };
        match self.mapper.progress(range) {
            None if self.is_out_of_use(streams, id)? == Some(false) => Ok(false),
            None => {
                let need = if self.has_backing(id) { Need::Soon } else { Need::Perhaps };
                self.mapper.post(range, Task::Unmap, need);
                Ok(false)
            }
            Some(Progress::Done) => match self.mapper.take(range) {
                Some(RangeState::Unmapped) => {
                    self.set_mapping(id, Mapping::Unmapped);
                    self.map_soon(streams, id).map(|()| true)
                }
                Some(RangeState::Failed(failure)) if !failure.still_mapped => {
                    self.set_mapping(id, Mapping::Unmapped);
                    Ok(true)
                }
                // It is mapped still, or was mapped after its block had left again.
                _ => Ok(false),
            },
            Some(Progress::Waiting | Progress::Running) => Ok(false),
        }
    }

    /// Whether the device is known to be done with a block's stale mapping; `None` without one.
    fn is_out_of_use(
        &self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<Option<bool>, DriverError> {
        let Some(uses) = self.stale_uses(id) else { return Ok(None) };
        streams.are_complete(uses, Site::UnmapBlockAfterUse).map(Some)
    }
}

impl StaleRange {
    /// Whether the device is known to be done with it.
    fn is_out_of_use(&self, streams: &mut Streams) -> Result<bool, DriverError> {
        streams.are_complete(&self.uses, Site::UnmapRangeAfterUse)
    }
}
