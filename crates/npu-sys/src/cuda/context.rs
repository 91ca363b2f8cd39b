//! The device's primary context, and being in it for the time of a call.

use std::marker::PhantomData;

use crate::cuda::sys::{Api, CUcontext, CUdevice, CUresult, CUstreamCaptureMode};
use crate::cuda::{failure, function};
use crate::drop_failures;
use crate::error::DriverError;

/// The primary context: the one that other libraries of the process (PyTorch's among them) use
/// for the device as well, so that all share addresses and streams.
#[derive(Debug)]
pub(super) struct Context {
    api: Api,
    device: CUdevice,
    /// The address of the library's object.
    object: usize,
}

impl Context {
    /// Retains the primary context of a device.
    pub(super) fn retain(api: Api, device: CUdevice) -> Result<Context, DriverError> {
        let mut context: CUcontext = std::ptr::null_mut();
        // SAFETY: it writes one pointer; `open` initialised the library and got the device from it.
        let code = unsafe { (api.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        check(&api, "open", code)?;
        Ok(Context { api, device, object: context.expose_provenance() })
    }

    fn object(&self) -> CUcontext {
        std::ptr::with_exposed_provenance_mut(self.object)
    }

    pub(super) fn device(&self) -> CUdevice {
        self.device
    }

    /// Makes the context current on this thread, until the result is dropped.
    ///
    /// The thread is asked which context it has, at some 20 ns a call: a note of our own would
    /// be wrong as soon as another library sets one. If the thread had a context of another
    /// device, it gets that back; if it had none, it keeps ours.
    ///
    /// A graph that somebody captures meanwhile is not disturbed: none of the calls is about the
    /// streams that are captured, which the library only believes if it is told.
    pub(super) fn enter(&self, call: &'static str) -> Result<Current<'_>, DriverError> {
        if function::is_running() {
            // The driver forbids it: the call could wait for the function that makes it.
            return Err(failure::invalid(call, "a host function cannot call the driver"));
        }
        let mut before: CUcontext = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let code = unsafe { (self.api.cuCtxGetCurrent)(&raw mut before) };
        check(&self.api, call, code)?;
        if before != self.object() {
            // SAFETY: the context was retained in `retain` and is released only in `drop`.
            let code = unsafe { (self.api.cuCtxSetCurrent)(self.object()) };
            check(&self.api, call, code)?;
        }
        let is_foreign = !before.is_null() && before != self.object();
        let restore = if is_foreign { before } else { std::ptr::null_mut() };
        let capture_mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        let mut current =
            Current { api: &self.api, call, restore, capture_mode, thread: PhantomData };
        current.exchange_capture_mode();
        Ok(current)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Without the function the context stays for the rest of the process.
        let Some(release) = self.api.cuDevicePrimaryCtxRelease_v2 else { return };
        let (api, device, object) = (self.api, self.device, self.object);
        let leave = move || {
            let mut current: CUcontext = std::ptr::null_mut();
            // SAFETY: it writes one pointer.
            let code = unsafe { (api.cuCtxGetCurrent)(&raw mut current) };
            if code == CUresult::CUDA_SUCCESS && current.addr() == object {
                // SAFETY: no context is a valid state of a thread.
                unsafe { (api.cuCtxSetCurrent)(std::ptr::null_mut()) };
            }
            // SAFETY: this undoes the one `retain`. Nothing that needs the context is left: all
            // of it holds an `Arc` of this.
            drop_failures::note(check(&api, "drop", unsafe { release(device) }));
        };
        function::outside(leave);
    }
}

/// The right to call functions that need the context, on this thread.
#[derive(Debug)]
pub(super) struct Current<'a> {
    api: &'a Api,
    call: &'static str,
    restore: CUcontext,
    /// Which calls the thread may make while a graph is captured: its own value, and before it is
    /// taken, and when it is back, ours.
    capture_mode: CUstreamCaptureMode,
    thread: PhantomData<*mut ()>,
}

impl Current<'_> {
    fn exchange_capture_mode(&mut self) {
        // A library without the function captures no graphs.
        let Some(exchange) = self.api.cuThreadExchangeStreamCaptureMode else { return };
        // SAFETY: it reads and writes one number, and changes how the library judges this thread's
        // calls, of which those made inside are about no stream that is captured.
        let code = unsafe { exchange(&raw mut self.capture_mode) };
        drop_failures::note(self.check(code));
    }

    pub(super) fn api(&self) -> &Api {
        self.api
    }

    /// The error of a code, if it is one.
    pub(super) fn check(&self, code: CUresult) -> Result<(), DriverError> {
        check(self.api, self.call, code)
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        self.exchange_capture_mode();
        if !self.restore.is_null() {
            // SAFETY: it was this thread's context before.
            let code = unsafe { (self.api.cuCtxSetCurrent)(self.restore) };
            // Then ours stays, which the other library has to expect anyway.
            drop_failures::note(self.check(code));
        }
    }
}

/// The error of a code, if it is one.
pub(super) fn check(api: &Api, call: &'static str, code: CUresult) -> Result<(), DriverError> {
    if code == CUresult::CUDA_SUCCESS { Ok(()) } else { Err(failure::error(api, call, code)) }
}
