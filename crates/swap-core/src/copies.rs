//! Submits the copies of swapping.

use vmem::{BlockId, Copy, HostPtr, Point, Site, Uses};

use crate::core::Core;
use crate::error::Error;
use crate::report::Direction;

impl Core {
    /// Copies a block to a slot, behind the uses of both. The copy is a use of both from then on,
    /// which the caller notes.
    pub(crate) fn copy_out(
        &mut self,
        id: BlockId,
        target: HostPtr,
        slot_uses: &Uses,
    ) -> Result<Point, Error> {
        let uses = self.memory.pool.uses(id).clone();
        for &point in uses.points() {
            self.wait(self.streams.copy_out, point, Site::CopyOutAfterUse)?;
        }
        for &point in slot_uses.points() {
            self.wait(self.streams.copy_out, point, Site::CopyOutAfterSlot)?;
        }
        let size_bytes = self.memory.pool.size_bytes(id);
        let source = self.memory.pool.home(id);
        // SAFETY: waited for above; the caller counts the copy among the uses of both.
        unsafe { self.submit_copy(id, Copy::DeviceToHost { source, target, size_bytes }) }
    }

    /// Copies a block's bytes back, behind the uses of both.
    pub(crate) fn copy_in_block(&mut self, id: BlockId, ready: &Uses) -> Result<Point, Error> {
        for &point in ready.points() {
            self.wait(self.streams.copy_in, point, Site::CopyInAfterRelease)?;
        }
        let entry = self.entry(id)?;
        let copy = entry.host_copy.as_ref().expect("away blocks have a host copy");
        let (source, copied) = (copy.slot.start(), copy.copied);
        self.wait(self.streams.copy_in, copied, Site::CopyInAfterCopyOut)?;
        let size_bytes = self.memory.pool.size_bytes(id);
        let target = self.memory.pool.home(id);
        let copy = Copy::HostToDevice { source, target, size_bytes };
        // SAFETY: waited for above; the caller counts the copy among the slot's uses.
        let arrived = unsafe { self.submit_copy(id, copy) }?;
        self.memory.pool.note_use(id, arrived);
        Ok(arrived)
    }

    /// Submits a copy between a chunk's home address and a slot. Returns its end.
    ///
    /// # Safety
    /// The stream has waited for the earlier users of both, and the copy is counted among them.
    unsafe fn submit_copy(&mut self, id: BlockId, copy: Copy) -> Result<Point, Error> {
        let (stream, direction) = match copy {
            Copy::DeviceToHost { .. } => (self.streams.copy_out, Direction::Out),
            _ => (self.streams.copy_in, Direction::In),
        };
        let timer = self.copy_timer(stream);
        let streams = &self.memory.streams;
        // SAFETY: a chunk is mapped at its home address for its whole life and released only
        // after its uses; the same holds for slots. The caller promises the rest.
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
