//! The bytes of tensors as the host touches them, and the copies and fills that the driver makes.
//!
//! Everything unsafe about tensors is here. What makes it sound is kept by `transfer.rs` and
//! `storage.rs`, which hold the lock of the device's memory all the time: memory belongs to a live
//! storage or a stage, all work on it is in its uses, and whoever touches it waits for these
//! first: streams by events, the host by `Streams::wait_host`.

use std::marker::PhantomData;

use npu_sys::{Copy, DevicePtr, DriverError, HostPtr};

use crate::arena::Slot;
use crate::point::StreamId;
use crate::streams::Streams;
use crate::swapped::SwappedBlock;

/// Bytes that the host can reach.
pub(super) trait HostBytes {
    /// Copies out what begins at `offset`.
    ///
    /// # Panics
    /// If that is out of bounds.
    fn read(&self, offset: usize, target: &mut [u8]);

    /// Overwrites what begins at `offset`.
    ///
    /// # Panics
    /// If that is out of bounds.
    fn write(&mut self, offset: usize, source: &[u8]);
}

impl HostBytes for [u8] {
    fn read(&self, offset: usize, target: &mut [u8]) {
        target.copy_from_slice(&self[offset..offset + target.len()]);
    }

    fn write(&mut self, offset: usize, source: &[u8]) {
        self[offset..offset + source.len()].copy_from_slice(source);
    }
}

/// Pinned memory for the time in which the host touches it. Its uses have been waited for.
///
/// No reference to the bytes is ever made: a device may write them again later.
#[derive(Debug)]
pub(super) struct Pinned<'a> {
    start: HostPtr,
    size_bytes: usize,
    owner: PhantomData<&'a mut [u8]>,
}

impl<'a> Pinned<'a> {
    /// A slot, which nobody gives back meanwhile.
    pub(super) fn slot(slot: &'a Slot) -> Pinned<'a> {
        Pinned { start: slot.start(), size_bytes: size(slot.size_bytes()), owner: PhantomData }
    }

    /// A block of swapped memory, which nobody gives back meanwhile.
    pub(super) fn swapped(block: &'a SwappedBlock) -> Pinned<'a> {
        Pinned { start: block.host(), size_bytes: size(block.size_bytes()), owner: PhantomData }
    }

    fn pointer(&self, offset: usize, len: usize) -> *mut u8 {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.size_bytes), "pinned bytes out of bounds");
        std::ptr::with_exposed_provenance_mut(size(self.start.0) + offset)
    }
}

impl HostBytes for Pinned<'_> {
    fn read(&self, offset: usize, target: &mut [u8]) {
        let source = self.pointer(offset, target.len());
        // SAFETY: `pointer` checked the bounds; the slot or block is pinned as long as it is
        // borrowed; `gather` and `scatter` in transfer.rs waited for all uses. A reference to
        // these bytes exists nowhere, so `target` cannot overlap them.
        unsafe {
            std::ptr::copy_nonoverlapping(source.cast_const(), target.as_mut_ptr(), target.len())
        };
    }

    fn write(&mut self, offset: usize, source: &[u8]) {
        let target = self.pointer(offset, source.len());
        // SAFETY: as for `read`.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), target, source.len()) };
    }
}

fn size(value: u64) -> usize {
    usize::try_from(value).expect("pinned memory is the process's own")
}

/// Submits a copy.
///
/// # Safety
/// Both places are inside blocks, slots or swapped blocks of live storages or stages and do not
/// overlap. The caller has made `stream` wait for their uses, and counts the copy among them
/// afterwards, so that neither is unmapped, unpinned or reused before it is complete.
pub(super) unsafe fn submit_copy(
    streams: &Streams,
    copy: Copy,
    stream: StreamId,
) -> Result<(), DriverError> {
    // SAFETY: the caller promises it.
    unsafe { streams.driver().copy(copy, streams.handle(stream)) }
}

/// Submits a fill.
///
/// # Safety
/// As for [`submit_copy`].
pub(super) unsafe fn submit_fill(
    streams: &Streams,
    target: DevicePtr,
    size_bytes: u64,
    value: u8,
    stream: StreamId,
) -> Result<(), DriverError> {
    // SAFETY: the caller promises it.
    unsafe { streams.driver().fill(target, size_bytes, value, streams.handle(stream)) }
}
