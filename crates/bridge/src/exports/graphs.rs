//! Graphs: work that is captured and run later.

use std::ffi::{c_int, c_void};

use super::memory::address_of;
use super::ops::SmartswapTouched;
use crate::context;
use crate::failure::{code, guard};
use crate::local;

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_graph_make() -> u64 {
    guard(|| Ok(context::current()?.make_graph())).unwrap_or(0)
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_graph_forget(graph: u64) -> c_int {
    code(|| {
        context::current()?.forget_graph(graph);
        Ok(())
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_capture_begins() -> c_int {
    code(|| Ok(context::current()?.engine.capture_begins()?))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_capture_ended() -> c_int {
    code(|| Ok(context::current()?.engine.capture_ended()?))
}

/// See `smartswap.h`.
///
/// # Safety
/// As for `smartswap_touch_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn smartswap_graph_note(
    graph: u64,
    touched: *const SmartswapTouched,
    count: u32,
) -> c_int {
    code(|| {
        // SAFETY: the caller promises so many, or null and none.
        let touched = unsafe { SmartswapTouched::all(touched, count) }?;
        context::current()?.note_in_graph(graph, SmartswapTouched::uses(touched)?)
    })
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_graph_include(graph: u64, inner: u64) -> c_int {
    code(|| context::current()?.include_graph(graph, inner))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_graph_touch(graph: u64) -> c_int {
    code(|| local::with_op(|local| local.touch_graph(graph)))
}

/// See `smartswap.h`.
#[unsafe(no_mangle)]
pub extern "C" fn smartswap_stays(address: *const c_void) -> c_int {
    c_int::from(guard(|| context::current()?.stays(address_of(address))).unwrap_or(false))
}
