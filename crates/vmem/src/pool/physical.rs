//! The pool's dealings with the driver: chunks and mappings come and go here.

use super::*;

/// A new chunk waits on the host while more than this part of what is held is on its way out.
const LEAVING_DIVISOR: u64 = 40;

/// Mapping failed, and so perhaps did taking the half-made mapping back.
#[derive(Clone, Debug)]
pub(super) struct MapFailure {
    pub(super) error: DriverError,
    pub(super) still_mapped: bool,
}

/// Puts a chunk behind a range of which nobody else knows yet, for the device to use.
pub(super) fn map_with_access(
    driver: &Caller,
    range: VaRange,
    handle: ChunkHandle,
) -> Result<(), MapFailure> {
    let failed = |still_mapped| move |error| MapFailure { error, still_mapped };
    driver.map(range, handle).map_err(failed(false))?;
    driver.set_access(range).map_err(|error| {
        driver.note_unmap();
        // SAFETY: nothing has used the mapping yet.
        let unmapped = unsafe { driver.unmap(range) };
        failed(unmapped.is_err())(error)
    })
}

/// Takes away a mapping that nobody uses any more.
///
/// # Safety
/// The uses noted for the mapping are complete, and the host knows it: it waited for or queried
/// them. [`Pool::note_use`] is called for all work (its contract), so there are no others.
pub(super) unsafe fn unmap_unused(driver: &Caller, range: VaRange) -> Result<(), DriverError> {
    driver.note_unmap();
    // SAFETY: the caller promises just that.
    unsafe { driver.unmap(range) }
}

impl Pool {
    /// A chunk of the size: cached, or new if the cap has room.
    pub(super) fn take_spare(
        &mut self,
        streams: &mut Streams,
        fit: Fit,
    ) -> Result<Spare, MemoryError> {
        // The simulator of the planner takes in the same order.
        if let Some(spare) = self.cache.serve(fit, |spare| spare.departure.is_none()) {
            return Ok(spare);
        }
        let chunk = self.create(streams, fit)?;
        Ok(Spare { chunk, range: None, ready: Uses::default(), departure: None })
    }

    /// A new chunk, after giving back as many cached ones as the cap asks for.
    pub(super) fn create(&mut self, streams: &mut Streams, fit: Fit) -> Result<Chunk, MemoryError> {
        let size_bytes = fit.chunk_bytes;
        self.make_room(streams, size_bytes)?;
        match self.create_at_home(fit) {
            // The device has other users: the cap promised more than there is.
            Err(error) if error.kind == ErrorKind::OutOfMemory => {
                let cached = self.cache.drain();
                self.leave(cached);
                self.release_leaving(streams, 0)?;
                while self.release_empty_segment(streams)? {}
                while self.release_idle_tile(streams)? {}
                // What the first try took may not have gone back.
                self.make_room(streams, size_bytes)?;
                self.create_at_home(fit).map_err(|error| self.not_created(error, size_bytes))
            }
            result => result.map_err(MemoryError::from),
        }
    }

    /// Why a chunk could not be created, where the cap had room for it.
    pub(super) fn not_created(&self, error: DriverError, size_bytes: u64) -> MemoryError {
        let limit_bytes = self.config.limit_bytes;
        match error.kind {
            ErrorKind::OutOfMemory => {
                MemoryError::DeviceFull { missing_bytes: size_bytes, limit_bytes }
            }
            _ => error.into(),
        }
    }

    /// Makes room under the cap; cached chunks are given back for it.
    pub(super) fn make_room(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
    ) -> Result<(), MemoryError> {
        if !self.unreleased.is_empty() {
            // What still fails stays counted, and may leave room enough.
            let _ = self.release_leftovers();
        }
        let limit_bytes = self.config.limit_bytes;
        let given_back = loop {
            match self.cache.make_room(size_bytes) {
                Room::After(given_back) => break given_back,
                Room::Short(missing_bytes) => {
                    let gave_back =
                        self.release_empty_segment(streams)? || self.release_idle_tile(streams)?;
                    if !gave_back {
                        return Err(MemoryError::DeviceFull { missing_bytes, limit_bytes });
                    }
                }
            }
        };
        self.leave(given_back);
        let held_bytes = self.cache.held_bytes();
        let most_bytes = held_bytes + held_bytes / LEAVING_DIVISOR;
        Ok(self.release_leaving(streams, most_bytes.min(limit_bytes - size_bytes))?)
    }

    fn leave(&mut self, given_back: Vec<(u64, Spare)>) {
        given_back.into_iter().for_each(|(_, spare)| self.leaving.push(spare));
    }

    /// Releases the chunks that leave and that the device is done with. Waits on the host only
    /// while more than `most_bytes` are held.
    pub(super) fn release_leaving(
        &mut self,
        streams: &mut Streams,
        most_bytes: u64,
    ) -> Result<(), DriverError> {
        let mut first_error = Ok(());
        while let Some(oldest) = self.leaving.oldest() {
            let must = self.held_bytes() > most_bytes;
            if !must && !streams.are_complete(&oldest.ready, Site::ReleaseAfterUse)? {
                break;
            }
            let spare = self.leaving.pop_oldest().expect("seen above");
            let result = self.release(streams, spare);
            first_error = first_error.and(result);
        }
        first_error
    }

    /// Creates a chunk and maps it at a home address.
    fn create_at_home(&mut self, fit: Fit) -> Result<Chunk, DriverError> {
        let size_bytes = fit.chunk_bytes;
        let home = self.take_range(size_bytes)?;
        let handle = match self.driver.create_chunk(size_bytes) {
            Ok(handle) => handle,
            Err(error) => {
                self.keep_range(home);
                return Err(error);
            }
        };
        if let Err(failure) = self.try_map(home, handle) {
            self.cache.hold(size_bytes);
            self.note_held();
            let mapped = if failure.still_mapped { vec![home] } else { Vec::new() };
            let chunk = Some((handle, size_bytes));
            self.unreleased.push(Leftover { mapped, chunk, range: Some(home) });
            self.release_leftovers();
            return Err(failure.error);
        }
        self.cache.charge(fit);
        self.note_held();
        Ok(Chunk { handle, home })
    }

    /// Gives a chunk that is no longer counted back to the driver. On failure it is counted
    /// again and kept.
    pub(super) fn release(
        &mut self,
        streams: &mut Streams,
        mut spare: Spare,
    ) -> Result<(), DriverError> {
        self.cache.hold(spare.chunk.home.size_bytes);
        if let Err(error) = self.unmap_everywhere(streams, &mut spare) {
            self.cache.put(Fit::exact(spare.chunk.home.size_bytes), spare);
            return Err(error);
        }
        let Chunk { handle, home } = spare.chunk;
        self.unreleased.push(Leftover {
            mapped: vec![home],
            chunk: Some((handle, home.size_bytes)),
            range: Some(home),
        });
        match self.release_leftovers() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Removes every mapping of the chunk but its home, waiting on the host for its last users.
    /// They came after those of all stale mappings.
    fn unmap_everywhere(
        &mut self,
        streams: &mut Streams,
        spare: &mut Spare,
    ) -> Result<(), DriverError> {
        streams.wait_host(&spare.ready, Site::ReleaseAfterUse)?;
        if let Some(range) = spare.range {
            // SAFETY: waited for above.
            unsafe { self.unmap(range) }?;
            self.keep_range(range);
            spare.range = None;
        }
        let handle = spare.chunk.handle;
        while let Some(range) = self.stale.range_of(handle) {
            // SAFETY: as above: what used the chunk there came before what used it last.
            unsafe { self.unmap(range) }?;
            self.stale.remove_range(range);
            self.keep_range(range);
        }
        for id in self.stale.blocks() {
            // A block may be listed twice.
            if self.shows_stale(id, handle) {
                // SAFETY: as above.
                unsafe { self.unmap_stale(id) }?;
            }
        }
        Ok(())
    }

    /// Releases what of `unreleased` the driver will take; returns the first error.
    pub(super) fn release_leftovers(&mut self) -> Option<DriverError> {
        let mut first_error = None;
        let mut ranges = Vec::new();
        for mut leftover in std::mem::take(&mut self.unreleased) {
            let mut result = Ok(());
            leftover.mapped.retain(|&range| {
                // SAFETY: only what nobody uses any more is left over.
                let unmapped = unsafe { self.unmap(range) };
                let is_mapped = unmapped.is_err();
                result = unmapped.and(result.clone());
                is_mapped
            });
            if result.is_ok()
                && let Some((handle, size_bytes)) = leftover.chunk
            {
                result = self.driver.release_chunk(handle);
                if result.is_ok() {
                    self.cache.refund(size_bytes);
                }
            }
            match result {
                Ok(()) => ranges.extend(leftover.range),
                Err(error) => {
                    first_error.get_or_insert(error);
                    self.unreleased.push(leftover);
                }
            }
        }
        ranges.into_iter().for_each(|range| self.keep_range(range));
        first_error
    }

    pub(super) fn take_range(&mut self, size_bytes: u64) -> Result<VaRange, DriverError> {
        match self.spare_ranges.take(size_bytes) {
            Some(range) => Ok(range),
            None => self.driver.reserve(size_bytes),
        }
    }

    /// Keeps addresses of nobody for later, once nothing that is left over is mapped there.
    pub(super) fn keep_range(&mut self, range: VaRange) {
        let is_inside = |piece: &VaRange| {
            let offset_bytes = piece.start.0.checked_sub(range.start.0);
            offset_bytes.is_some_and(|offset_bytes| offset_bytes < range.size_bytes)
        };
        let mut leftovers = self.unreleased.iter_mut();
        match leftovers.find(|leftover| leftover.mapped.iter().any(is_inside)) {
            Some(leftover) => leftover.range = Some(range),
            None => self.spare_ranges.put(range),
        }
    }

    /// Maps a chunk at a range of no block. On failure the range is kept for later.
    pub(super) fn map(&mut self, range: VaRange, handle: ChunkHandle) -> Result<(), DriverError> {
        self.try_map(range, handle).map_err(|failure| {
            if failure.still_mapped {
                self.stale.push_range(range, handle, Uses::default());
            } else {
                self.keep_range(range);
            }
            failure.error
        })
    }

    pub(super) fn try_map(&self, range: VaRange, handle: ChunkHandle) -> Result<(), MapFailure> {
        map_with_access(&self.driver, range, handle)
    }

    /// Unmaps a range, if anything is mapped there: it may have been posted.
    ///
    /// # Safety
    /// As for [`unmap_unused`].
    pub(super) unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        match self.mapper.take(range) {
            None | Some(RangeState::Mapped) => {}
            Some(RangeState::Failed(failure)) if failure.still_mapped => {}
            Some(RangeState::Unmapped | RangeState::Failed(_)) => return Ok(()),
        }
        // SAFETY: the caller promises it.
        unsafe { unmap_unused(&self.driver, range) }
    }

    /// Frees a segment of a device without virtual memory.
    ///
    /// # Safety
    /// The uses of all its pieces are complete, and the host knows it.
    pub(super) unsafe fn free_plain(&self, start: DevicePtr) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { self.driver.free_device(start) }
    }

    /// The uses that hold a live block's stale mapping.
    pub(super) fn stale_uses(&self, id: BlockId) -> Option<&Uses> {
        match &self.blocks.find(id)?.memory {
            BlockMemory::Swappable { mapping: Mapping::Stale { uses, .. }, .. } => Some(uses),
            _ => None,
        }
    }

    /// Whether the chunk is a live block's stale mapping.
    fn shows_stale(&self, id: BlockId, handle: ChunkHandle) -> bool {
        let stale = |memory: &BlockMemory| match memory {
            BlockMemory::Swappable { mapping: Mapping::Stale { chunk, .. }, .. } => {
                *chunk == handle
            }
            _ => false,
        };
        self.blocks.find(id).is_some_and(|block| stale(&block.memory))
    }

    /// Unmaps what a block gave away.
    ///
    /// # Safety
    /// Its [`stale_uses`](Pool::stale_uses) are complete, and the host knows it.
    pub(super) unsafe fn unmap_stale(&mut self, id: BlockId) -> Result<(), DriverError> {
        let BlockMemory::Swappable { range, .. } = self.block(id).memory else {
            unreachable!("only swappable blocks go stale")
        };
        // SAFETY: the caller promises it.
        unsafe { self.unmap(range) }?;
        self.set_mapping(id, Mapping::Unmapped);
        Ok(())
    }

    pub(super) fn set_mapping(&mut self, id: BlockId, new: Mapping) {
        if let BlockMemory::Swappable { mapping, .. } = &mut self.block_mut(id).memory {
            *mapping = new;
        }
    }
}

impl Pool {
    /// Tells that work like the last may come again: the step of a training has ended. What is
    /// held from here on depends on what the last steps needed, and chunks that none of them
    /// wanted go back to the driver.
    ///
    /// # Errors
    /// If the driver fails; what could not be given back stays counted.
    pub fn end_step(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        let unwanted = self.cache.end_step();
        self.leave(unwanted);
        self.release_leaving(streams, self.config.limit_bytes)?;
        self.release_earlier_layouts(streams, false)
    }

    /// Gives all cached chunks and empty segments back to the driver. What is idle of the present
    /// layout stays: the next step wants it, and scripts trim in each.
    ///
    /// # Errors
    /// If the driver fails; what could not be given back stays counted.
    pub fn trim(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        // First, as what is in use when the cache is drained counts as needed.
        let mut first_error = self.release_earlier_layouts(streams, true);
        let cached = self.cache.drain();
        self.leave(cached);
        first_error = first_error.and(self.release_leaving(streams, 0));
        first_error.and(self.release_empty_segments(streams))
    }

    /// As [`trim`](Pool::trim), and what is idle of the present layout too, for somebody else to
    /// use it meanwhile.
    ///
    /// # Errors
    /// As there.
    pub fn give_back_idle(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        self.trim(streams)?;
        while self.release_idle_tile(streams)? {}
        Ok(())
    }

    /// Gives everything back, live blocks included. All work on the device is complete.
    /// What the driver does not take is lost to it; the first error is returned.
    pub(crate) fn dismantle(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        let live: Vec<BlockId> = self.blocks.ids(|_| true).collect();
        live.into_iter().for_each(|id| self.free(id));
        self.layouts.end_present();
        // What others hold is not ours to give back.
        self.cache.refund(std::mem::take(&mut self.stats.outside_bytes).current);
        let mut result = self.trim(streams);
        while let Some(stale) = self.stale.pop_range() {
            // SAFETY: all work on the device is complete.
            match unsafe { self.unmap(stale.range) } {
                Ok(()) => self.keep_range(stale.range),
                Err(error) => result = result.and(Err(error)),
            }
        }
        // A call that failed once may work now.
        let again = self.trim(streams);
        if let Some(error) = self.release_leftovers() {
            result = result.and(Err(error));
        }
        let again = again.and(self.release_earlier_layouts(streams, true));
        for range in self.spare_ranges.take_all() {
            let freed = self.driver.free_range(range).or_else(|_| self.driver.free_range(range));
            result = result.and(freed);
        }
        if self.cache.held_bytes() == 0 { result } else { result.and(again) }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("config", &self.config)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
