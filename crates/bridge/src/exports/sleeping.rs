//! Sleeping: while a model fits, nobody needs to tell of ops.

use std::ffi::c_int;

use crate::context;
use crate::failure::{code, guard};
use crate::local::with_context;

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_may_sleep() -> c_int {
    c_int::from(guard(|| context::current()?.may_sleep()).unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_sleep() -> c_int {
    code(|| context::current()?.sleep())
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_should_wake(size_bytes: u64) -> c_int {
    let should = guard(|| with_context(|context| context.should_wake(size_bytes)));
    c_int::from(should.unwrap_or(false))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_wake() -> c_int {
    code(|| {
        context::current()?.wake();
        Ok(())
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_awake() -> c_int {
    code(|| context::current()?.awake())
}
