//! The check of order: a framework tells how it orders its own streams.

use std::ffi::c_int;

use crate::context;
use crate::failure::{code, guard};

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_checks_order() -> c_int {
    c_int::from(guard(|| Ok(context::current()?.checks_order())).unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_note_order(call: c_int, event: u64, stream: u64) -> c_int {
    code(|| context::current()?.note_order(call, event, stream))
}
