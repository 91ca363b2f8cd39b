//! Submits the copies of swapping.

use vmem::{Copy, StreamId};

use crate::core::Core;
use crate::error::Error;

impl Core {
    /// Submits a copy between a chunk's home address and a slot.
    ///
    /// The caller has made `stream` wait for the earlier users of both.
    pub(crate) fn submit_copy(&mut self, copy: Copy, stream: StreamId) -> Result<(), Error> {
        let streams = &self.memory.streams;
        // SAFETY: a chunk is mapped at its home address for its whole life and released only
        // after its uses, among which the callers in residency.rs count this copy; the same holds
        // for slots. Those callers wait for the uses of both places first.
        unsafe { streams.driver().copy(copy, streams.handle(stream)) }?;
        Ok(())
    }
}
