//! Device memory that somebody else takes under the same cap.

use vmem::{DeviceMemory, MemoryError};

use crate::core::Core;
use crate::engine::Engine;
use crate::error::Error;

impl Engine {
    /// Counts device memory that somebody else holds towards the cap: `size_bytes` in all from now
    /// on. Blocks leave to make room for more, and what they had is the driver's when this
    /// returns. So tell of more before it is taken, and of less when it was given back.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if what cannot leave has no room beside it: what counted before
    /// still does. [`Error::Memory`] if the driver fails.
    pub fn set_outside(&self, size_bytes: u64) -> Result<(), Error> {
        self.shared().lock()?.set_outside(size_bytes)
    }
}

impl Core {
    fn set_outside(&mut self, size_bytes: u64) -> Result<(), Error> {
        let more_bytes = size_bytes.saturating_sub(self.memory.pool.stats().outside_bytes.current);
        // No op of the step asks for it.
        let mut counted = true;
        loop {
            let DeviceMemory { pool, streams, .. } = &mut self.memory;
            match pool.set_outside(streams, size_bytes) {
                Ok(()) => break,
                Err(MemoryError::DeviceFull { missing_bytes, .. }) => {
                    self.rescue(more_bytes, missing_bytes, &mut counted)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        self.note_segments();
        self.note_resident_peak();
        Ok(())
    }
}
