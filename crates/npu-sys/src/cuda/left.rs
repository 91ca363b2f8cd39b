//! Giving back what a dropped driver still holds.

use std::sync::{Arc, PoisonError};

use crate::cuda::context::{Context, Current};
use crate::cuda::handles::Handle;
use crate::cuda::pinned::{self, PinnedMemory};
use crate::cuda::virtual_memory::DeviceMemory;
use crate::cuda::{CudaDriver, function};
use crate::drop_failures;
use crate::error::DriverError;

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let mut handles = self.streams.take_all();
        handles.extend(self.events.take_all());
        let pinned_memory = self.pinned_memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device_memory = self.device_memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = Left {
            handles,
            context: Arc::clone(&self.context),
            device_memory: std::mem::replace(device_memory, DeviceMemory::new(self.rules)),
            pinned_memory: std::mem::take(pinned_memory),
        };
        // A host function may have held the last handle.
        // SAFETY: this is the end of the driver, and all came from its tables.
        function::outside(|| unsafe { left.give_back() });
    }
}

/// What a dropped driver still held.
pub(super) struct Left {
    pub(super) handles: Vec<Arc<Handle>>,
    pub(super) context: Arc<Context>,
    pub(super) device_memory: DeviceMemory,
    pub(super) pinned_memory: PinnedMemory,
}

impl Left {
    /// Gives all of it back.
    ///
    /// # Safety
    /// All of it is the library's to take back, and nobody submits work that uses it any more.
    pub(super) unsafe fn give_back(self) {
        let context = Arc::clone(&self.context);
        let cuda = context.enter("drop");
        // SAFETY: the caller's promise.
        drop_failures::note(cuda.and_then(|cuda| unsafe { self.give_back_in(&cuda) }));
    }

    /// # Safety
    /// As for `give_back`.
    unsafe fn give_back_in(self, cuda: &Current<'_>) -> Result<(), DriverError> {
        let api = cuda.api();
        // If it fails, what is left may be in use, or the device is lost: the end of the process
        // frees it.
        // SAFETY: no argument. From here on no work uses what is freed below.
        cuda.check(unsafe { (api.cuCtxSynchronize)() })?;
        drop(self.handles);
        let note = |code| drop_failures::note(cuda.check(code));
        let memory = &self.device_memory;
        for (start, mapping) in memory.mappings.iter() {
            let size = mapping.size_bytes as usize;
            // SAFETY: one whole mapping of ours, which nobody uses any more.
            api.cuMemUnmap.map(|unmap| unsafe { unmap(start, size) }).map(note);
        }
        for (start, range) in memory.ranges.iter() {
            let size = range.size_bytes as usize;
            // SAFETY: a range of ours, with nothing mapped any more.
            api.cuMemAddressFree.map(|free| unsafe { free(start, size) }).map(note);
        }
        for (_, chunk) in memory.chunks() {
            // SAFETY: a handle of ours, not yet released.
            api.cuMemRelease.map(|release| unsafe { release(chunk.held) }).map(note);
        }
        for (start, _) in memory.allocations.iter() {
            // SAFETY: an allocation of ours, not yet freed.
            note(unsafe { (api.cuMemFree_v2)(start) });
        }
        for (start, &piece) in self.pinned_memory.iter() {
            // SAFETY: the table is ours alone. The caller of `register_host` promised that the
            // memory is still there.
            note(unsafe { pinned::give_back(cuda, start, piece) });
        }
        Ok(())
    }
}
