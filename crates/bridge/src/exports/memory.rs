//! Allocations.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use crate::context;
use crate::failure::{Failure, code, guard};
use crate::local;

pub(super) fn address_of(pointer: *const c_void) -> u64 {
    pointer.expose_provenance() as u64
}

fn pointer_to(address: u64) -> *mut c_void {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_allocate(size_bytes: u64, stream: u64) -> *mut c_void {
    let start = guard(|| local::allocate(size_bytes, stream));
    start.map_or(ptr::null_mut(), pointer_to)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_free(address: *mut c_void) -> c_int {
    code(|| local::with_context(|context| context.free(address_of(address))))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_use_on(address: *const c_void, stream: u64) -> c_int {
    code(|| context::current()?.use_on(address_of(address), stream))
}

/// See `smartswap.h`.
///
/// # Safety
/// `by` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_hold(
    address: *const c_void,
    stream: u64,
    by: *const c_char,
) -> c_int {
    // SAFETY: the caller promises null or a zero at the end.
    code(|| unsafe { keep(by, |by| local::hold(address_of(address), stream, by)) })
}

/// See `smartswap.h`.
///
/// # Safety
/// `by` is null or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_lend(
    address: *const c_void,
    stream: u64,
    by: *const c_char,
) -> c_int {
    // SAFETY: the caller promises null or a zero at the end.
    code(|| unsafe {
        keep(by, |by| local::with_op(|local| local.lend(address_of(address), stream, by)))
    })
}

/// Runs `body` with the name of who wants memory kept.
///
/// # Safety
/// `by` is null or ends with a zero, and lives until this returns.
unsafe fn keep(
    by: *const c_char,
    body: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if by.is_null() {
        return Err(Failure::usage("the holder's name is NULL"));
    }
    // SAFETY: not null, so the caller promises a zero at the end.
    let by = unsafe { CStr::from_ptr(by) }.to_str();
    let by = by.map_err(|_| Failure::usage("the holder's name is not UTF-8"))?;
    body(by)
}

/// See `smartswap.h`.
///
/// # Safety
/// `start` and `size_bytes` are null or point to memory for one value each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_find(
    address: *const c_void,
    start: *mut *mut c_void,
    size_bytes: *mut u64,
) -> c_int {
    code(|| {
        let (first, bytes) = context::current()?.extent(address_of(address))?;
        if !start.is_null() {
            // SAFETY: not null, so the caller promises memory for a pointer.
            unsafe { start.write(pointer_to(first)) };
        }
        if !size_bytes.is_null() {
            // SAFETY: not null, so the caller promises memory for a number.
            unsafe { size_bytes.write(bytes) };
        }
        Ok(())
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_trim() -> c_int {
    code(|| Ok(context::current()?.engine.trim()?))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_suspend() -> c_int {
    code(|| Ok(context::current()?.engine.suspend().map(drop)?))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_resume() -> c_int {
    code(|| Ok(context::current()?.engine.resume()?))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_set_outside(size_bytes: u64) -> c_int {
    code(|| Ok(context::current()?.engine.set_outside(size_bytes)?))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_has_swapped() -> c_int {
    let has_swapped = guard(|| Ok(context::current()?.settings.device.has_swapped_memory()));
    c_int::from(has_swapped.unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_allocate_swapped(size_bytes: u64, stream: u64) -> *mut c_void {
    let start = guard(|| {
        let context = context::current()?;
        context.allocate_swapped(size_bytes, context.stream(stream)?)
    });
    start.map_or(ptr::null_mut(), pointer_to)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_free_swapped(address: *mut c_void, stream: u64) -> c_int {
    code(|| {
        let context = context::current()?;
        let unknown = || Failure::usage(format!("{address:p} is not live swapped memory"));
        let stream = context.stream(stream)?;
        let block = context.blocks.remove_swapped(address_of(address)).ok_or_else(unknown)?;
        Ok(context.engine.free_swapped(block, stream)?)
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_is_swapped(address: *const c_void) -> c_int {
    let swapped =
        guard(|| Ok(context::current()?.blocks.find_swapped(address_of(address)).is_some()));
    c_int::from(swapped.unwrap_or(false))
}
