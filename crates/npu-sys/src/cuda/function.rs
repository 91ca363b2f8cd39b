//! Host functions on a stream: from a Rust closure to a C callback and back.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::Arc;

use crate::driver::{HostFunction, Operands};
use crate::host_function::{self, FirstFailure};

thread_local! {
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a host function.
pub(super) fn is_running() -> bool {
    IS_RUNNING.get()
}

/// Does what a host function may not do: here, or on a thread of its own if here is one.
pub(super) fn outside(work: impl FnOnce() + Send + 'static) {
    host_function::outside(&IS_RUNNING, "cuda drop", work);
}

/// A host function on its way through the driver.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) function: HostFunction,
    pub(super) failed: Arc<FirstFailure>,
}

impl Launch {
    /// The argument for [`run`], which frees it.
    pub(super) fn into_raw(self) -> *mut c_void {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Takes it back.
    ///
    /// # Safety
    /// `raw` came from `into_raw` and is given to nobody else, before or after.
    pub(super) unsafe fn from_raw(raw: *mut c_void) -> Launch {
        // SAFETY: the caller's promise: the box is ours again.
        *unsafe { Box::from_raw(raw.cast::<Launch>()) }
    }

    fn call(self) {
        let HostFunction { name, body, .. } = self.function;
        // SAFETY: there are no accesses to promise anything about: `launch_host` refuses them.
        let operands = unsafe { Operands::new(&[]) };
        self.failed.note(host_function::run(name, &IS_RUNNING, || body(&operands)));
    }
}

/// The callback that the driver runs on a thread of its own.
///
/// # Safety
/// `raw` came from [`Launch::into_raw`], and this is its only call.
pub(super) unsafe extern "C" fn run(raw: *mut c_void) {
    // SAFETY: the caller's promise.
    let launch = unsafe { Launch::from_raw(raw) };
    launch.call();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;

    fn failures() -> Arc<FirstFailure> {
        Arc::default()
    }

    fn launch(failed: &Arc<FirstFailure>, body: impl FnOnce() + Send + 'static) {
        let function = HostFunction {
            name: "probe",
            accesses: vec![],
            cost_us: 0.0,
            body: Box::new(move |operands| {
                assert_eq!(operands.count(), 0);
                body();
            }),
        };
        let raw = Launch { function, failed: Arc::clone(failed) }.into_raw();
        // SAFETY: fresh from `into_raw`, and called once.
        unsafe { run(raw) };
    }

    #[test]
    fn a_function_runs_once_and_knows_where_it_is() {
        let (failed, seen) = (failures(), Arc::new(OnceLock::new()));
        let told = Arc::clone(&seen);
        assert!(!is_running());
        launch(&failed, move || told.set(is_running()).unwrap());
        assert!(!is_running());
        assert_eq!(seen.get(), Some(&true));
        assert_eq!(Arc::strong_count(&seen), 1, "the closure is freed");
        assert_eq!(Arc::strong_count(&failed), 1, "so is the launch");
        assert_eq!(failed.check("test", 0), Ok(()));
    }

    #[test]
    fn what_the_driver_refused_is_taken_back_without_running() {
        let (failed, held) = (failures(), Arc::new(()));
        let inside = Arc::clone(&held);
        let body = Box::new(move |_: &Operands<'_>| panic!("{inside:?} ran"));
        let function = HostFunction { name: "probe", accesses: vec![], cost_us: 0.0, body };
        let raw = Launch { function, failed: Arc::clone(&failed) }.into_raw();
        // SAFETY: fresh from `into_raw`, and nobody else has it.
        drop(unsafe { Launch::from_raw(raw) });
        assert_eq!((Arc::strong_count(&held), failed.check("test", 0)), (1, Ok(())));
    }
}
