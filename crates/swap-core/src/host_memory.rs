//! Pinned host memory, made ready before it is needed or not any more.

use vmem::DeviceMemory;

use crate::engine::Engine;
use crate::error::Error;

impl Engine {
    /// Makes pinned host memory for `size_bytes` more of moved blocks ready now, instead of when
    /// they move.
    ///
    /// # Errors
    /// [`Error::Memory`] if the cap or the host has no room for it.
    pub fn reserve_host(&self, size_bytes: u64) -> Result<(), Error> {
        Ok(self.shared().lock()?.memory.arena.reserve(size_bytes)?)
    }

    /// Steps move what they will go on moving: host memory that was made ready for more goes back,
    /// and none is made ready until some is missing.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn stop_growing_host(&self) -> Result<(), Error> {
        Ok(self.shared().lock()?.memory.arena.stop_growing()?)
    }

    /// Nothing leaves for now: the host's memory is for others.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn trim_host(&self) -> Result<(), Error> {
        let mut core = self.shared().lock()?;
        let DeviceMemory { arena, streams, .. } = &mut core.memory;
        Ok(arena.trim(streams)?)
    }
}
