//! The check of order: a framework tells how it orders its own streams.

use std::ffi::c_int;

use crate::context;
use crate::failure::{Failure, code, guard};
use crate::order::Told;

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_checks_order() -> c_int {
    c_int::from(guard(|| Ok(context::current()?.checks_order())).unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_note_order(call: c_int, event: u64, stream: u64) -> c_int {
    code(|| {
        let told = usize::try_from(call).ok().and_then(|call| Told::ALL.get(call).copied());
        let told = told.ok_or_else(|| {
            Failure::usage(format!("{call} is no smartswap_order_call: they are 0 to 5"))
        })?;
        context::current()?.note_order(told, event, stream)
    })
}
