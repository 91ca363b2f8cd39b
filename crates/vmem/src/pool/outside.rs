//! Memory of the device that somebody else takes under the same cap.

use super::*;

impl Pool {
    /// Counts physical memory that somebody else holds on the device as held: `size_bytes` in all
    /// from now on. For more than before, cached memory makes room, and what it takes is the
    /// driver's when this returns. So tell of more before it is taken, and of less afterwards.
    ///
    /// # Errors
    /// [`DeviceFull`](MemoryError::DeviceFull) if the cap leaves no room even without the cache:
    /// what counted before still does.
    pub fn set_outside(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
    ) -> Result<(), MemoryError> {
        let counted_bytes = self.stats.outside_bytes.current;
        if size_bytes <= counted_bytes {
            self.cache.refund(counted_bytes - size_bytes);
            self.stats.outside_bytes.shrink(counted_bytes - size_bytes);
            return Ok(());
        }
        let more_bytes = size_bytes - counted_bytes;
        if !self.has_virtual_memory {
            self.free_empty_segments(streams)?;
        }
        self.make_room(streams, more_bytes)?;
        self.cache.charge(Fit::exact(more_bytes));
        self.stats.outside_bytes.grow(more_bytes);
        self.note_held();
        Ok(())
    }
}
