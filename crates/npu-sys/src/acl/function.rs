//! Work that the host does in stream order: functions of callers, and what the library's copies
//! and fills may not do.

use std::any::Any;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, OnceLock};

use crate::acl::current::Current;
use crate::acl::failure::{failed, invalid};
use crate::acl::reports::Reports;
use crate::acl::streams::Stream;
use crate::acl::{pointer, size};
use crate::driver::{HostFunction, Operands};
use crate::error::{DriverError, ErrorKind};
use crate::types::Access;

thread_local! {
    static IN_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a host function.
pub(super) fn in_host_function() -> bool {
    IN_FUNCTION.get()
}

/// A stream stands still while its host function runs: one that submits or waits could wait for
/// itself.
pub(super) fn refuse_host_function(call: &'static str) -> Result<(), DriverError> {
    if in_host_function() {
        return Err(invalid(call, "a host function cannot submit work or wait for it"));
    }
    Ok(())
}

/// What went wrong on the host first: a panic cannot pass through the library.
#[derive(Debug, Default)]
pub(super) struct Failure(OnceLock<String>);

impl Failure {
    /// The failure of work that ran earlier, as an error of `call`.
    pub(super) fn check(&self, call: &'static str) -> Result<(), DriverError> {
        match self.0.get() {
            None => Ok(()),
            Some(text) => Err(failed(call, text.clone())),
        }
    }
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
    failure: Arc<Failure>,
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
    failure: &Arc<Failure>,
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
            if let Err(text) = call(function) {
                // The first failure stays: later ones are likely its consequence.
                failure.0.get_or_init(|| text);
            }
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

fn call(function: HostFunction) -> Result<(), String> {
    let HostFunction { name, accesses, body, .. } = function;
    // SAFETY: `launch` promises exactly this of the function's accesses.
    let operands = unsafe { Operands::new(&accesses) };
    let outside = IN_FUNCTION.replace(true);
    // Unwind safety: the body is gone afterwards, and its operands are plain bytes.
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| body(&operands)));
    IN_FUNCTION.set(outside);
    outcome.map_err(|payload| {
        let text = format!("host function '{name}' panicked: {}", text(&*payload));
        // A payload whose own drop panics would unwind into the library.
        std::mem::forget(payload);
        text
    })
}

fn text(payload: &(dyn Any + Send)) -> &str {
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no text")
}

/// Checks what can be seen of a function before it runs.
pub(super) fn check(call: &'static str, function: &HostFunction) -> Result<(), DriverError> {
    if !function.cost_us.is_finite() || function.cost_us < 0.0 {
        return Err(invalid(call, format!("a cost of {} microseconds", function.cost_us)));
    }
    let accesses = &function.accesses;
    for (index, a) in accesses.iter().enumerate() {
        let end = |access: &Access| access.start.0.checked_add(access.size_bytes);
        let Some(a_end) = end(a).filter(|_| a.size_bytes > 0) else {
            return Err(invalid(call, format!("{a:?} is no range of bytes")));
        };
        for b in &accesses[index + 1..] {
            let apart = a_end <= b.start.0 || end(b).is_some_and(|b_end| b_end <= a.start.0);
            if !apart && (a.mode.writes() || b.mode.writes()) {
                return Err(invalid(call, format!("{a:?} overlaps {b:?}")));
            }
        }
    }
    Ok(())
}
