//! Submits the copies of swapping.

use vmem::{BlockId, Copy, Point};

use crate::core::Core;
use crate::error::Error;
use crate::report::Direction;

impl Core {
    /// Submits a copy between a chunk's home address and a slot. Returns its end.
    ///
    /// The caller has made the stream wait for the earlier users of both.
    pub(crate) fn submit_copy(&mut self, id: BlockId, copy: Copy) -> Result<Point, Error> {
        let (stream, direction) = match copy {
            Copy::DeviceToHost { .. } => (self.copy_out, Direction::Out),
            _ => (self.copy_in, Direction::In),
        };
        let timer = self.copy_timer(stream);
        let streams = &self.memory.streams;
        // SAFETY: a chunk is mapped at its home address for its whole life and released only
        // after its uses, among which the callers in residency.rs count this copy; the same holds
        // for slots. Those callers wait for the uses of both places first.
        let submitted = unsafe { streams.driver().copy(copy, streams.handle(stream)) };
        if let Err(error) = submitted {
            timer.into_iter().for_each(|timer| self.memory.streams.recycle_timer(timer));
            return Err(error.into());
        }
        self.note_move(id, direction)?;
        let end = self.memory.streams.advance(stream);
        self.copy_timed(id, timer, direction, end);
        Ok(end)
    }
}
