//! Host memory that the device can copy to and from.

use crate::cuda::CudaDriver;
use crate::cuda::context::Current;
use crate::cuda::device::{host_pointer, length};
use crate::cuda::failure::invalid;
use crate::cuda::sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTREGISTER_DEVICEMAP,
    CU_MEMHOSTREGISTER_PORTABLE, CUresult,
};
use crate::drop_failures;
use crate::error::{DriverError, ErrorKind};
use crate::extents::{Extent, Extents};
use crate::pages::{self, fork};
use crate::sync::{read, write};
use crate::types::{DevicePtr, HostPtr};

/// Host memory that the device can copy to and from, by its first address.
pub(super) type PinnedMemory = Extents<Origin>;

/// Where a piece of pinned host memory is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The library gave it, at this address or a little behind.
    Allocated { base: u64 },
    /// The caller's, registered.
    Registered,
}

/// Notes a piece, and keeps the library's memory from forked children.
fn insert(driver: &CudaDriver, start: HostPtr, piece: Extent<Origin>) {
    if let Origin::Allocated { .. } = piece.held {
        // Where the system refuses, children share it.
        let _ = fork::keep_from_children(start.0, piece.size_bytes);
    }
    write(&driver.pinned_memory).insert(start.0, piece.size_bytes, piece.held);
}

/// Checks that the bytes are pinned: a copy of others would block the host, or reach what is
/// not there.
pub(super) fn check(
    driver: &CudaDriver,
    call: &'static str,
    start: HostPtr,
    size_bytes: u64,
) -> Result<(), DriverError> {
    // The library refuses copies that span two pieces.
    if read(&driver.pinned_memory).holder(start.0, size_bytes).is_some() {
        return Ok(());
    }
    let text = format!("{start:?} + {size_bytes} bytes is not in one piece of pinned memory");
    Err(invalid(call, text))
}

/// Takes a piece out of the table and gives it back; puts it back in if that fails.
///
/// # Safety
/// No work uses the piece.
unsafe fn end_piece(
    driver: &CudaDriver,
    call: &'static str,
    start: HostPtr,
    is_right: impl Fn(Origin) -> bool,
) -> Result<(), DriverError> {
    let cuda = driver.context.enter(call)?;
    let piece = {
        let mut memory = write(&driver.pinned_memory);
        if memory.get(start.0).is_none_or(|piece| !is_right(piece.held)) {
            return Err(invalid(call, format!("{start:?} is not the start of such memory")));
        }
        memory.remove(start.0).expect("just seen")
    };
    // SAFETY: just taken from the table; the caller promises that no work uses it.
    let code = unsafe { give_back(&cuda, start.0, piece) };
    cuda.check(code).inspect_err(|_| insert(driver, start, piece))
}

/// Frees or unregisters a piece.
///
/// # Safety
/// The piece starts there, is in no table any more, and no work uses it.
pub(super) unsafe fn give_back(cuda: &Current<'_>, start: u64, piece: Extent<Origin>) -> CUresult {
    match piece.held {
        Origin::Allocated { base } => {
            // The library may give these pages to others, whose children may read them.
            let _ = fork::give_to_children(start, piece.size_bytes);
            // SAFETY: the library's allocation; the caller promises the rest.
            unsafe { (cuda.api().cuMemFreeHost)(host_pointer(base)) }
        }
        // SAFETY: a registration of ours; the caller promises the rest.
        Origin::Registered => unsafe { (cuda.api().cuMemHostUnregister)(host_pointer(start)) },
    }
}

pub(super) fn allocate_pinned(
    driver: &CudaDriver,
    size_bytes: u64,
) -> Result<HostPtr, DriverError> {
    let call = "allocate_pinned";
    let page_bytes = pages::page_bytes();
    let whole_bytes =
        pages::rounded_up(size_bytes, page_bytes).map_err(|text| invalid(call, text))?;
    // The library aligns small pieces to less than a page, so those get a page more.
    let spare_bytes =
        if whole_bytes < driver.properties.granularity_bytes { page_bytes } else { 0 };
    let asked_bytes = whole_bytes + spare_bytes;
    let cuda = driver.context.enter(call)?;
    let mut base = std::ptr::null_mut();
    let flags = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
    let asked = length(call, asked_bytes)?;
    // SAFETY: it writes one pointer.
    let code = unsafe { (cuda.api().cuMemHostAlloc)(&raw mut base, asked, flags) };
    cuda.check(code)?;
    let base = base.expose_provenance() as u64;
    let start = base.next_multiple_of(page_bytes);
    let end = base + asked_bytes;
    let piece = Extent { size_bytes: whole_bytes, held: Origin::Allocated { base } };
    if start + whole_bytes > end {
        // SAFETY: it is fresh, so nobody knows it.
        drop_failures::note(cuda.check(unsafe { give_back(&cuda, base, piece) }));
        let text = format!("the driver gave host:{base:#x}, which is not at a page's start");
        let kind = ErrorKind::Failed;
        return Err(DriverError { call, code: -1, text: text.into(), kind });
    }
    insert(driver, HostPtr(start), piece);
    Ok(HostPtr(start))
}

/// # Safety
/// As [`Driver::free_pinned`](crate::Driver::free_pinned).
pub(super) unsafe fn free_pinned(driver: &CudaDriver, start: HostPtr) -> Result<(), DriverError> {
    let is_allocated = |origin| matches!(origin, Origin::Allocated { .. });
    // SAFETY: the caller's promise.
    unsafe { end_piece(driver, "free_pinned", start, is_allocated) }
}

/// # Safety
/// As [`Driver::register_host`](crate::Driver::register_host).
pub(super) unsafe fn register_host(
    driver: &CudaDriver,
    start: HostPtr,
    size_bytes: u64,
) -> Result<(), DriverError> {
    let call = "register_host";
    pages::check_whole(start, size_bytes, pages::page_bytes())
        .map_err(|text| invalid(call, text))?;
    if read(&driver.pinned_memory).overlap(start.0, size_bytes).is_some() {
        return Err(invalid(call, format!("{start:?} + {size_bytes} bytes is pinned already")));
    }
    let cuda = driver.context.enter(call)?;
    let size = length(call, size_bytes)?;
    let flags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
    let register = cuda.api().cuMemHostRegister_v2;
    // SAFETY: the caller promises that the memory stays. The library refuses what is not
    // there, or what another thread has registered meanwhile.
    let code = unsafe { register(host_pointer(start.0), size, flags) };
    cuda.check(code)?;
    write(&driver.pinned_memory).insert(start.0, size_bytes, Origin::Registered);
    Ok(())
}

/// # Safety
/// As [`Driver::unregister_host`](crate::Driver::unregister_host).
pub(super) unsafe fn unregister_host(
    driver: &CudaDriver,
    start: HostPtr,
) -> Result<(), DriverError> {
    let is_registered = |origin| origin == Origin::Registered;
    // SAFETY: the caller's promise.
    unsafe { end_piece(driver, "unregister_host", start, is_registered) }
}

pub(super) fn device_pointer(
    driver: &CudaDriver,
    start: HostPtr,
) -> Result<DevicePtr, DriverError> {
    let call = "device_pointer";
    let found = read(&driver.pinned_memory).holder(start.0, 1).map(|(first, _)| first);
    let first = found.ok_or_else(|| invalid(call, format!("{start:?} is not pinned")))?;
    let cuda = driver.context.enter(call)?;
    let mut address = 0;
    let ask = cuda.api().cuMemHostGetDevicePointer_v2;
    // SAFETY: it writes one number; there are no flags. The piece is pinned, and if another
    // thread has just ended that, the library refuses it.
    let code = unsafe { ask(&raw mut address, host_pointer(first), 0) };
    cuda.check(code)?;
    Ok(DevicePtr(address).offset(start.0 - first))
}
