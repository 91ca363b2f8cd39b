//! Host functions for libraries that have no call for them: callbacks, and a thread that the
//! library lets run them.

use std::ffi::c_void;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::acl::current::{Current, Device};
use crate::acl::failure::failed;
use crate::acl::streams::Stream;
use crate::acl::sys::{self, aclrtStream};
use crate::drop_failures;
use crate::error::DriverError;
use crate::sync::lock;

/// How long the thread waits for a callback before it looks whether it is to end.
const TURN_MS: i32 = 50;

/// The thread that runs callbacks, from the first stream that needs it.
#[derive(Debug)]
pub(super) struct Reports {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    device: Arc<Device>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Streams whose callbacks the thread runs.
    subscribed: usize,
    is_over: bool,
}

impl Reports {
    pub(super) fn new(device: Arc<Device>) -> Reports {
        let shared = Shared { device, state: Mutex::default(), changed: Condvar::new() };
        Reports { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    /// Has the library call `function` in stream order.
    ///
    /// # Safety
    /// `function` may be called once with `argument`, on another thread, if this is `Ok`.
    pub(super) unsafe fn launch(
        &self,
        now: &Current<'_>,
        stream: &Stream,
        function: unsafe extern "C" fn(*mut c_void),
        argument: *mut c_void,
    ) -> Result<(), DriverError> {
        self.subscribe(now, stream)?;
        let block = sys::ACL_CALLBACK_BLOCK;
        // SAFETY: the stream exists for as long as it is held here; the caller promises the rest.
        let code =
            unsafe { (now.api.aclrtLaunchCallback)(Some(function), argument, block, stream.raw) };
        now.check("aclrtLaunchCallback", code)
    }

    /// Makes the thread run a stream's callbacks, unless it does already.
    fn subscribe(&self, now: &Current<'_>, stream: &Stream) -> Result<(), DriverError> {
        // Held to the end: of two callers only one subscribes.
        let mut thread = lock(&self.thread);
        if stream.reports.get().is_some() {
            return Ok(());
        }
        if thread.is_none() {
            let shared = Arc::clone(&self.shared);
            let builder = thread::Builder::new().name("acl-reports".to_owned());
            let started = builder.spawn(move || shared.run());
            let why = |error| failed(now.call, format!("no thread for host functions: {error}"));
            *thread = Some(started.map_err(why)?);
        }
        let Some(id) = thread.as_ref().map(JoinHandleExt::as_pthread_t) else { return Ok(()) };
        // SAFETY: the thread runs until the driver ends, after all its streams.
        let code = unsafe { (now.api.aclrtSubscribeReport)(id, stream.raw) };
        now.check("aclrtSubscribeReport", code)?;
        stream.reports.get_or_init(|| ());
        lock(&self.shared.state).subscribed += 1;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Ends `subscribe`, for a stream that is idle and about to go.
    ///
    /// # Safety
    /// The stream exists.
    pub(super) unsafe fn unsubscribe(&self, now: &Current<'_>, stream: aclrtStream) {
        let thread = lock(&self.thread);
        let Some(id) = thread.as_ref().map(JoinHandleExt::as_pthread_t) else { return };
        // SAFETY: the thread runs until the driver ends, after all its streams.
        let code = unsafe { (now.api.aclrtUnSubscribeReport)(id, stream) };
        // It costs nothing else: the stream is destroyed next.
        drop_failures::note(now.check("aclrtUnSubscribeReport", code));
        lock(&self.shared.state).subscribed -= 1;
    }

    /// Ends the thread. No stream is subscribed any more.
    pub(super) fn end(&self) {
        lock(&self.shared.state).is_over = true;
        self.shared.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // Callbacks catch their own panics, so the thread has none to tell of.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        // Without a device no stream can be subscribed either: that call tells its caller.
        let Ok(now) = self.device.enter("launch_host") else { return };
        loop {
            let mut state = lock(&self.state);
            while state.subscribed == 0 && !state.is_over {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_over {
                return;
            }
            drop(state);
            // SAFETY: it takes a number, and runs callbacks that were launched as such.
            let code = unsafe { (now.api.aclrtProcessReport)(TURN_MS) };
            let is_usual = matches!(
                code,
                sys::ACL_SUCCESS
                    | sys::ACL_ERROR_WAIT_CALLBACK_TIMEOUT
                    | sys::ACL_ERROR_RT_WAIT_TIMEOUT
                    | sys::ACL_ERROR_RT_REPORT_TIMEOUT
            );
            if !is_usual {
                // It may answer at once, again and again: not faster than by turns.
                let turn = Duration::from_millis(TURN_MS.unsigned_abs().into());
                drop(self.changed.wait_timeout(lock(&self.state), turn));
            }
        }
    }
}
