//! The symbols that PyTorch's pluggable allocators look for, as far as they need no C++ types.
//!
//! For CUDA: `torch.cuda.memory.CUDAPluggableAllocator(library, "smartswap_malloc",
//! "smartswap_delete")`, and the setters of `a.allocator()` with the addresses of the others; for
//! Ascend: `torch_npu.npu.memory.NPUPluggableAllocator` with the same. The engine must be open
//! first.
//!
//! None of them throws. Where one cannot do as it is told it says so once on the standard error
//! output, and `smartswap_last_error` has the text; `smartswap_malloc` returns null. The
//! functions in `python/csrc/cuda_pluggable.cpp` and `npu_pluggable.cpp` throw instead, so that
//! Python sees an exception, and have those that take C++ types: memory pools, statistics, and
//! streams of torch_npu.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use super::memory::{address_of, smartswap_allocate, smartswap_free, smartswap_use_on};
use super::results::smartswap_reset_peaks;
use crate::context;
use crate::failure::{self, Failure, OK, code, last_string, note};

/// Says what a function that returns nothing could not do.
fn warn(once: &Once, text: &str) {
    note(&Failure::usage(text));
    once.call_once(|| failure::warn(text));
}

/// The memory of a tensor, for use on `stream`. Null where it does not fit, and for no bytes.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_malloc(
    size_bytes: usize,
    _device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    if size_bytes == 0 {
        return std::ptr::null_mut();
    }
    smartswap_allocate(size_bytes as u64, address_of(stream))
}

/// Frees what [`smartswap_malloc`] gave.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_delete(
    address: *mut c_void,
    _size_bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
    if !address.is_null() {
        smartswap_free(address);
    }
}

/// `set_init_fn`: called when the framework has counted its devices.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_init(_device_count: c_int) {
    static ONCE: Once = Once::new();
    if !context::is_open() {
        warn(&ONCE, "the engine is not open: call smartswap_open before the device is used");
    }
}

/// `set_reset_fn`: gives caches back, as `empty_cache` asks. torch_npu passes an argument, which
/// is of no interest.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_reset() {
    code(|| Ok(context::current()?.engine.trim()?));
}

/// `set_memory_fraction_fn`: the cap was set when the engine was opened, and stays.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_memory_fraction(_fraction: f64, _device: c_int) {
    static ONCE: Once = Once::new();
    let text = "the cap stays what the engine was opened with: a memory fraction is not taken";
    warn(&ONCE, text);
}

/// `set_base_alloc_fn`: the start and size of the allocation around an address. Null for memory
/// that is not the engine's.
///
/// # Safety
/// `size_bytes` is null or points to memory for a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_base_alloc(
    address: *mut c_void,
    size_bytes: *mut usize,
) -> *mut c_void {
    let mut start = std::ptr::null_mut();
    code(|| {
        let (first, bytes) = context::current()?.extent(address_of(address))?;
        start = std::ptr::with_exposed_provenance_mut(first as usize);
        if !size_bytes.is_null() {
            // SAFETY: not null, so the caller promises memory for a number.
            unsafe { size_bytes.write(bytes as usize) };
        }
        Ok(())
    });
    start
}

/// `set_record_stream_fn` of CUDA: work on `stream` uses the memory until it is freed.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_record_stream(address: *mut c_void, stream: *mut c_void) {
    static ONCE: Once = Once::new();
    if !address.is_null() && smartswap_use_on(address, address_of(stream)) != OK {
        warn(&ONCE, &format!("record_stream: {}", last_string()));
    }
}

/// `set_reset_peak_status_fn` of torch_npu.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_reset_peak_status(_device: c_int) {
    smartswap_reset_peaks();
}
