//! Copies inside the device, at any address.
//!
//! The library copies inside the device only between addresses that are multiples of 64. What is
//! at other addresses goes through pinned host memory: out and in again on the same stream, so
//! that one buffer a stream is enough and nothing waits.

use crate::acl::current::Current;
use crate::acl::host::{allocate_plain, free_host};
use crate::acl::streams::Stream;
use crate::acl::sys::{self, aclrtMemcpyKind};
use crate::acl::{pointer, size};
use crate::drop_failures;
use crate::error::DriverError;
use crate::sync::lock;

/// What addresses must be multiples of.
const ALIGN_BYTES: u64 = 64;
/// Size of a stream's buffer: large enough that the link is busy with bytes, not with starts.
const BUFFER_BYTES: u64 = 4 << 20;

/// Copies in stream order.
///
/// # Safety
/// Both places are valid until the copy is complete, they do not overlap, and nothing unordered
/// uses them in conflict.
pub(super) unsafe fn copy(
    now: &Current<'_>,
    stream: &Stream,
    source: u64,
    target: u64,
    size_bytes: u64,
) -> Result<(), DriverError> {
    let apart_bytes = source % ALIGN_BYTES;
    // What cannot be copied directly: all, or what lies before the first aligned address.
    let detour_bytes = match (apart_bytes == target % ALIGN_BYTES, apart_bytes) {
        (true, 0) => 0,
        (true, _) => size_bytes.min(ALIGN_BYTES - apart_bytes),
        (false, _) => size_bytes,
    };
    if detour_bytes > 0 {
        // SAFETY: the caller's promise.
        unsafe { through_host(now, stream, source, target, detour_bytes) }?;
    }
    if detour_bytes == size_bytes {
        return Ok(());
    }
    let [source, target] = [source, target].map(|address| address + detour_bytes);
    let kind = sys::ACL_MEMCPY_DEVICE_TO_DEVICE;
    // SAFETY: the caller's promise.
    unsafe { submit(now, stream, source, target, size_bytes - detour_bytes, kind) }
}

/// # Safety
/// As for [`copy`].
unsafe fn through_host(
    now: &Current<'_>,
    stream: &Stream,
    source: u64,
    target: u64,
    size_bytes: u64,
) -> Result<(), DriverError> {
    // Held to the end: pieces of two copies in the one buffer must not mix.
    let mut held = lock(&stream.buffer);
    let buffer = match *held {
        Some(buffer) => buffer,
        None => *held.insert(allocate_plain(now, BUFFER_BYTES)?),
    };
    let mut done_bytes = 0;
    while done_bytes < size_bytes {
        let piece_bytes = BUFFER_BYTES.min(size_bytes - done_bytes);
        let (from, to) = (source + done_bytes, target + done_bytes);
        let out = sys::ACL_MEMCPY_DEVICE_TO_HOST;
        // SAFETY: the caller promises the source; the buffer stays until the stream goes, and
        // what used it before is earlier in the stream.
        unsafe { submit(now, stream, from, buffer, piece_bytes, out) }?;
        let inward = sys::ACL_MEMCPY_HOST_TO_DEVICE;
        // SAFETY: the caller promises the target; the buffer as above.
        unsafe { submit(now, stream, buffer, to, piece_bytes, inward) }?;
        done_bytes += piece_bytes;
    }
    Ok(())
}

/// Hands one copy to the library.
///
/// # Safety
/// As for [`copy`], and the addresses are such as the library takes for `kind`.
pub(super) unsafe fn submit(
    now: &Current<'_>,
    stream: &Stream,
    source: u64,
    target: u64,
    size_bytes: u64,
    kind: aclrtMemcpyKind,
) -> Result<(), DriverError> {
    let (source, target, size) = (pointer(source), pointer(target), size(size_bytes));
    // SAFETY: the caller's promise; the stream exists for as long as it is held.
    let code = unsafe { (now.api.aclrtMemcpyAsync)(target, size, source, size, kind, stream.raw) };
    now.check("aclrtMemcpyAsync", code)
}

/// Frees the buffer of a stream.
///
/// # Safety
/// The stream is idle and gets no work any more.
pub(super) unsafe fn free_buffer(now: &Current<'_>, stream: &Stream) {
    if let Some(buffer) = lock(&stream.buffer).take() {
        // SAFETY: from `allocate_plain`, and copies of the stream alone use it.
        drop_failures::note(unsafe { free_host(now, buffer) });
    }
}
