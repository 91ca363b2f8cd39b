//! Memory leaves a block, and comes back behind it: the two moves of which swapping is made.

use super::*;

impl Pool {
    /// Takes the chunk from behind a block and caches it; its next user waits for `ready`, which
    /// must come after all uses noted for the block.
    ///
    /// The block keeps its address. [`retake`](Pool::retake) asks for what this returns.
    ///
    /// # Panics
    /// If the block is not live, not swappable, or has no chunk.
    pub fn detach(&mut self, id: BlockId, ready: Uses) -> Departure {
        self.departures += 1;
        let departure = Departure(self.departures);
        let block = self.block_mut(id);
        let (fit, uses) = (block.fit(), block.uses.clone());
        let BlockMemory::Swappable { backing, mapping, .. } = &mut block.memory else {
            unreachable!("small blocks keep their memory")
        };
        let is_mapped = matches!(mapping, Mapping::Mapped | Mapping::Coming);
        match std::mem::replace(backing, Backing::Nothing) {
            Backing::Nothing => unreachable!("the caller knows that the block is resident"),
            Backing::Chunk(chunk) => {
                let handle = chunk.handle;
                if is_mapped {
                    *mapping = Mapping::Stale { chunk: handle, uses, is_whole: true };
                    self.stale.push_block(id);
                }
                let range = self.map_ahead(handle, fit.chunk_bytes);
                self.cache.put(fit, Spare { chunk, range, ready, departure: Some(departure) });
            }
            Backing::Lot { lot, .. } => {
                if is_mapped {
                    *mapping = Mapping::Kept { lot, uses };
                    self.layouts.note_kept(id);
                }
                self.vacate(lot, fit.wanted_bytes, &ready, Some(departure));
            }
        }
        self.stats.active_bytes.shrink(fit.wanted_bytes);
        departure
    }

    /// Takes back the chunk of a `detach`, if nobody had it since.
    ///
    /// # Panics
    /// If the block is not live, not swappable, or has a chunk.
    pub fn retake(&mut self, id: BlockId, departure: Departure) -> bool {
        let fit = self.block(id).fit();
        if let BlockMemory::Swappable { mapping: Mapping::Kept { lot, .. }, .. } =
            self.block(id).memory
            && let Some(ready) = self.retake_lot(lot, fit.wanted_bytes, departure)
        {
            let home = self.home_of_lot(lot);
            self.put_behind(id, Backing::Lot { lot, home }, &ready);
            return true;
        }
        let own = |spare: &Spare| spare.departure == Some(departure);
        let Some(spare) = self.cache.take_if(fit, own) else {
            return false;
        };
        self.set_aside(&spare);
        let BlockMemory::Swappable { range, .. } = self.block(id).memory else {
            unreachable!("small blocks keep their memory")
        };
        let handle = spare.chunk.handle;
        let stale = matches!(
            &self.block(id).memory,
            BlockMemory::Swappable { mapping: Mapping::Stale { chunk, is_whole: true, .. }, .. }
                if *chunk == handle
        );
        if stale {
            match self.mapper.take(range) {
                None | Some(RangeState::Mapped) => self.set_mapping(id, Mapping::Mapped),
                Some(RangeState::Failed(failure)) if failure.still_mapped => {}
                Some(RangeState::Unmapped | RangeState::Failed(_)) => {
                    self.set_mapping(id, Mapping::Unmapped);
                }
            }
        }
        self.put_behind(id, Backing::Chunk(spare.chunk), &spare.ready);
        true
    }

    /// Puts memory behind a block that has none. A lot that its address still shows is mapped,
    /// unless there are gaps in it.
    fn put_behind(&mut self, id: BlockId, new: Backing, ready: &Uses) {
        let is_there = match (&self.block(id).memory, &new) {
            (
                BlockMemory::Swappable { range, mapping: Mapping::Kept { lot: kept, .. }, .. },
                Backing::Lot { lot, .. },
            ) => lot == kept && !self.has_gaps(*range, *lot),
            _ => false,
        };
        let block = self.block_mut(id);
        block.uses.merge(ready);
        let size_bytes = block.size_bytes;
        let BlockMemory::Swappable { backing, mapping, .. } = &mut block.memory else {
            unreachable!("small blocks keep their memory")
        };
        assert!(matches!(backing, Backing::Nothing), "the block has memory already");
        if is_there {
            *mapping = Mapping::Mapped;
        }
        *backing = new;
        self.stats.active_bytes.grow(size_bytes);
    }

    /// Puts a chunk behind a block. Its bytes are undefined, and whoever writes it first waits
    /// for the returned uses. The block's address is mapped by [`map_block`](Pool::map_block).
    ///
    /// # Errors
    /// [`DeviceFull`](MemoryError::DeviceFull) if the cap leaves no room.
    ///
    /// # Panics
    /// If the block is not live, not swappable, or has a chunk.
    pub fn attach(&mut self, streams: &mut Streams, id: BlockId) -> Result<Uses, MemoryError> {
        let fit = self.block(id).fit();
        let spare = self.take_spare(streams, fit)?;
        self.allocations_follow = false;
        self.set_aside(&spare);
        self.put_behind(id, Backing::Chunk(spare.chunk), &spare.ready);
        Ok(spare.ready)
    }

    /// As [`attach`](Pool::attach), but puts a lot of the layout behind the block. `None` if that
    /// is taken.
    ///
    /// # Errors
    /// If the driver fails.
    ///
    /// # Panics
    /// If the block is not live, not swappable, or has memory.
    pub fn attach_lot(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
        lot: Lot,
    ) -> Result<Option<Uses>, MemoryError> {
        if !self.could_lie_in(id, lot) {
            return Ok(None);
        }
        let size_bytes = self.block(id).size_bytes;
        let taken = self.take_lot(streams, lot, size_bytes)?;
        let Some((backing, ready)) = taken else { return Ok(None) };
        self.put_behind(id, backing, &ready);
        Ok(Some(ready))
    }

    pub(super) fn has_backing(&self, id: BlockId) -> bool {
        match &self.block(id).memory {
            BlockMemory::Swappable { backing, .. } => !matches!(backing, Backing::Nothing),
            _ => false,
        }
    }
}
