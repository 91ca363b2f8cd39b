//! Work that the host does in stream order: functions of callers, and what the library's copies
//! and fills may not do.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use crate::acl::current::Current;
use crate::acl::failure::invalid;
use crate::acl::reports::Reports;
use crate::acl::streams::Stream;
use crate::acl::{pointer, size};
use crate::driver::{HostFunction, Operands};
use crate::error::{DriverError, ErrorKind};
use crate::host_function::{self, FirstFailure};

thread_local! {
    /// Whether the thread is inside a host function.
    static IN_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Does what a host function may not do: here, or on a thread of its own if here is one.
pub(super) fn outside(work: impl FnOnce() + Send + 'static) {
    host_function::outside(&IN_FUNCTION, "acl drop", work);
}

/// A stream stands still while its host function runs: one that submits or waits could wait for
/// itself.
pub(super) fn refuse_host_function(call: &'static str) -> Result<(), DriverError> {
    if IN_FUNCTION.get() {
        return Err(invalid(call, "a host function cannot submit work or wait for it"));
    }
    Ok(())
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum HostWork {
    Function(HostFunction),
    Copy { source: u64, target: u64, size_bytes: u64 },
    Fill { target: u64, size_bytes: u64, value: u8 },
}

/// Work on its way through the library.
struct Launched {
    work: HostWork,
    failure: Arc<FirstFailure>,
}

/// Submits work of the host to a stream.
///
/// # Safety
/// Until the work has run: its addresses are the host's and valid, accesses of a function that
/// write overlap no other of its accesses, and nothing unordered uses the bytes in conflict.
pub(super) unsafe fn launch(
    now: &Current<'_>,
    stream: &Stream,
    reports: &Reports,
    failure: &Arc<FirstFailure>,
    work: HostWork,
) -> Result<(), DriverError> {
    let launched = Box::new(Launched { work, failure: Arc::clone(failure) });
    let argument = Box::into_raw(launched).cast::<c_void>();
    // SAFETY: just made for `run`; the caller promises the work.
    let outcome = unsafe { submit(now, stream, reports, argument) };
    if outcome.is_err() {
        // SAFETY: the library refused it, so it is still ours alone.
        drop(unsafe { Box::from_raw(argument.cast::<Launched>()) });
    }
    outcome
}

/// Hands `argument` to the library for `run`, by the newer function where it has one.
///
/// # Safety
/// It is a box of `Launched`, which is the library's from here on unless this fails.
unsafe fn submit(
    now: &Current<'_>,
    stream: &Stream,
    reports: &Reports,
    argument: *mut c_void,
) -> Result<(), DriverError> {
    if let Some(launch) = now.api.aclrtLaunchHostFunc {
        // SAFETY: the stream exists for as long as it is held here; `run` takes the argument.
        let code = unsafe { launch(stream.raw, Some(run), argument) };
        match now.check("aclrtLaunchHostFunc", code) {
            Err(error) if error.kind == ErrorKind::Unsupported => {}
            outcome => return outcome,
        }
    }
    // SAFETY: the caller's promise.
    unsafe { reports.launch(now, stream, run, argument) }
}

/// What the library calls.
///
/// # Safety
/// `argument` is a box of `Launched`, and this is its only call.
unsafe extern "C" fn run(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let Launched { work, failure } = *unsafe { Box::from_raw(argument.cast::<Launched>()) };
    match work {
        HostWork::Function(function) => {
            let HostFunction { name, accesses, body, .. } = function;
            // SAFETY: `launch` promises exactly this of the function's accesses.
            let operands = unsafe { Operands::new(&accesses) };
            failure.note(host_function::run(name, &IN_FUNCTION, || body(&operands)));
        }
        HostWork::Copy { source, target, size_bytes } => {
            let source = pointer(source).cast::<u8>();
            // SAFETY: `launch` promises both places.
            unsafe { source.copy_to(pointer(target).cast::<u8>(), size(size_bytes)) };
        }
        HostWork::Fill { target, size_bytes, value } => {
            // SAFETY: `launch` promises the place.
            unsafe { pointer(target).cast::<u8>().write_bytes(value, size(size_bytes)) };
        }
    }
}
