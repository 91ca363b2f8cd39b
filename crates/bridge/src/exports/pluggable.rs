//! The symbols that PyTorch's pluggable allocators look for.
//!
//! For CUDA: `torch.cuda.memory.CUDAPluggableAllocator(library, "smartswap_malloc",
//! "smartswap_delete")`; for Ascend: `torch_npu.npu.memory.NPUPluggableAllocator` with the same.
//! The engine must be open first. They return null where memory is out; a front end that wants an
//! exception wraps them.

use std::ffi::{c_int, c_void};

use super::memory::{address_of, smartswap_allocate, smartswap_free};
use crate::context;
use crate::failure::code;

/// The memory of a tensor, for use on `stream`. Null where it does not fit.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_malloc(
    size_bytes: usize,
    _device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
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
    smartswap_free(address);
}

/// Called when the framework has counted its devices. There is nothing left to do then.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_init(_device_count: c_int) {}

/// Gives caches back: `empty_cache`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_reset(_check_error: bool) {
    code(|| Ok(context::current()?.engine.trim()?));
}

/// The cap was set when the engine was opened and stays: this only notes the wish as refused in
/// `smartswap_last_error`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_memory_fraction(_fraction: f64, _device: c_int) {
    code(|| {
        let text = "the cap is set when the engine is opened: a fraction is not taken";
        Err(crate::failure::Failure::usage(text))
    });
}

/// The start and size of the allocation around an address.
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
        let live = context::current()?.find(address_of(address))?;
        start = std::ptr::with_exposed_provenance_mut(live.start as usize);
        if !size_bytes.is_null() {
            // SAFETY: not null, so the caller promises memory for a number.
            unsafe { size_bytes.write(live.size_bytes as usize) };
        }
        Ok(())
    });
    start
}
