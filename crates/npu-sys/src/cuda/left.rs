//! Giving back what a dropped driver still holds.

use std::sync::Arc;

use crate::cuda::context::Context;
use crate::cuda::handles::Handle;
use crate::cuda::memory::{DeviceMemory, PinnedMemory};
use crate::cuda::pinned;
use crate::cuda::sys::CUresult;

/// What a dropped driver still held.
pub(super) struct Left {
    pub(super) handles: Vec<Arc<Handle>>,
    pub(super) context: Arc<Context>,
    pub(super) device_memory: DeviceMemory,
    pub(super) pinned_memory: PinnedMemory,
}

impl Left {
    /// Gives all of it back. Failures have nobody to be told.
    pub(super) fn give_back(self) {
        let Ok(cuda) = self.context.enter("drop") else { return };
        // SAFETY: no argument. From here on no work uses what is freed below.
        if unsafe { (cuda.api().cuCtxSynchronize)() } != CUresult::CUDA_SUCCESS {
            // Then what is left may be in use, or the device is lost: the end of the process
            // frees it.
            return;
        }
        drop(self.handles);
        let DeviceMemory { ranges, chunks, mappings, allocations } = self.device_memory;
        for (start, mapping) in mappings {
            let unmap = cuda.api().cuMemUnmap;
            // SAFETY: one whole mapping of ours, which nobody uses any more.
            unmap.map(|unmap| unsafe { unmap(start, mapping.size_bytes as usize) });
        }
        for (start, size_bytes) in ranges {
            let free = cuda.api().cuMemAddressFree;
            // SAFETY: a range of ours, with nothing mapped any more.
            free.map(|free| unsafe { free(start, size_bytes as usize) });
        }
        for chunk in chunks.into_keys() {
            let release = cuda.api().cuMemRelease;
            // SAFETY: a handle of ours, not yet released.
            release.map(|release| unsafe { release(chunk) });
        }
        for start in allocations {
            // SAFETY: an allocation of ours, not yet freed.
            unsafe { (cuda.api().cuMemFree_v2)(start) };
        }
        for (start, piece) in self.pinned_memory.pieces {
            // SAFETY: the table is ours alone. The caller of `register_host` promised that the
            // memory is still there.
            unsafe { pinned::give_back(&cuda, start, piece) };
        }
    }
}
