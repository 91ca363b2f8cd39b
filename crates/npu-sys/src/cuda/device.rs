//! [`Driver`] for NVIDIA GPUs: checks, enters the context, calls the library.

use std::ffi::c_void;
use std::sync::Arc;

use crate::cuda::failure::{invalid, need};
use crate::cuda::function::{self, Launch};
use crate::cuda::handles::Kind;
use crate::cuda::sys::{CUevent_flags, CUresult, CUstream_flags, CUstreamCaptureStatus};
use crate::cuda::{CudaDriver, copy, pinned, virtual_memory};
use crate::driver::{Driver, HostFunction};
use crate::error::{DriverError, ErrorKind};
use crate::host_function;
use crate::types::{
    ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr, MemoryInfo,
    StreamHandle, VaRange,
};

impl CudaDriver {
    /// Takes in a stream of another library, so that it can be used like one of the driver's.
    ///
    /// `stream` is its `CUstream` (equally, `cudaStream_t`) as a number; 0 is the legacy default
    /// stream. `destroy_stream` ends the adoption and leaves the stream alive. A stream that is
    /// known already stays what it is.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) inside a host function.
    ///
    /// # Safety
    /// It is a stream of the device's primary context and lives until `destroy_stream`, or until
    /// the driver is dropped.
    pub unsafe fn adopt_stream(&self, stream: u64) -> Result<StreamHandle, DriverError> {
        let call = "adopt_stream";
        drop(self.context.enter(call)?);
        if self.streams.get(call, stream).is_err() {
            // SAFETY: the caller's promise.
            unsafe { self.streams.insert(stream, Kind::BorrowedStream, &self.context) };
        }
        Ok(StreamHandle(stream))
    }

    /// The failure of a host function that ran earlier, as an error of `call`.
    fn check_functions(&self, call: &'static str) -> Result<(), DriverError> {
        self.failed.check(call, -1)
    }
}

/// A size in the library's type.
pub(super) fn length(call: &'static str, size_bytes: u64) -> Result<usize, DriverError> {
    usize::try_from(size_bytes).map_err(|_| invalid(call, format!("{size_bytes} bytes")))
}

/// An address of host memory as the library takes it.
pub(super) fn host_pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Driver for CudaDriver {
    fn properties(&self) -> DeviceProperties {
        self.properties.clone()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        let cuda = self.context.enter("memory_info")?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        let code = unsafe { (cuda.api().cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        cuda.check(code)?;
        Ok(MemoryInfo { free_bytes: free as u64, total_bytes: total as u64 })
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        virtual_memory::reserve(self, size_bytes)
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        virtual_memory::free_range(self, range)
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        virtual_memory::create_chunk(self, size_bytes)
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        virtual_memory::release_chunk(self, chunk)
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        virtual_memory::map(self, range, chunk)
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        virtual_memory::set_access(self, range)
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { virtual_memory::unmap(self, range) }
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        virtual_memory::allocate_device(self, size_bytes)
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { virtual_memory::free_device(self, start) }
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        pinned::allocate_pinned(self, size_bytes)
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { pinned::free_pinned(self, start) }
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { pinned::register_host(self, start, size_bytes) }
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { pinned::unregister_host(self, start) }
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        pinned::device_pointer(self, start)
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let cuda = self.context.enter("create_stream")?;
        let mut stream = std::ptr::null_mut();
        // Otherwise each piece of work on the legacy default stream would wait for all of ours.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: it writes one pointer.
        let code = unsafe { (cuda.api().cuStreamCreate)(&raw mut stream, flags) };
        cuda.check(code)?;
        let address = stream.expose_provenance() as u64;
        // SAFETY: just made.
        unsafe { self.streams.insert(address, Kind::Stream, &self.context) };
        Ok(StreamHandle(address))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "destroy_stream";
        // It may be left to another thread, so what forbids the call is found out here.
        let _cuda = self.context.enter(call)?;
        // First, since its number may be another's as soon as it is destroyed.
        self.turns.forget(self, stream)?;
        self.streams.destroy(call, stream.0)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "synchronize_stream";
        let stream = self.streams.get(call, stream.0)?;
        let cuda = self.context.enter(call)?;
        // SAFETY: `stream` is alive, here and below, as long as its `Handle` is held.
        let code = unsafe { (cuda.api().cuStreamSynchronize)(stream.stream()) };
        cuda.check(code)?;
        self.check_functions(call)
    }

    fn is_captured(&self, stream: StreamHandle) -> Result<bool, DriverError> {
        let call = "is_captured";
        let stream = self.streams.get(call, stream.0)?;
        let cuda = self.context.enter(call)?;
        // A library without the function captures nothing.
        let Some(ask) = cuda.api().cuStreamIsCapturing else { return Ok(false) };
        let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let mut status = none;
        // SAFETY: it is alive; it writes one number.
        let code = unsafe { ask(stream.stream(), &raw mut status) };
        cuda.check(code)?;
        Ok(status != none)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        let cuda = self.context.enter("create_event")?;
        let flags = match kind {
            EventKind::Order => CUevent_flags::CU_EVENT_DISABLE_TIMING,
            EventKind::Timing => CUevent_flags::CU_EVENT_DEFAULT,
        };
        let mut event = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        let code = unsafe { (cuda.api().cuEventCreate)(&raw mut event, flags.0) };
        cuda.check(code)?;
        let address = event.expose_provenance() as u64;
        // SAFETY: just made.
        unsafe { self.events.insert(address, Kind::Event, &self.context) };
        Ok(EventHandle(address))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let call = "destroy_event";
        // It may be left to another thread, so what forbids the call is found out here.
        let _cuda = self.context.enter(call)?;
        self.events.destroy(call, event.0)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let call = "record_event";
        let (event, stream) = (self.events.get(call, event.0)?, self.streams.get(call, stream.0)?);
        let cuda = self.context.enter(call)?;
        // SAFETY: both are alive, here and below, as long as their `Handle`s are held.
        let code = unsafe { (cuda.api().cuEventRecord)(event.event(), stream.stream()) };
        cuda.check(code)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let call = "wait_event";
        let (event, stream) = (self.events.get(call, event.0)?, self.streams.get(call, stream.0)?);
        let cuda = self.context.enter(call)?;
        // SAFETY: both are alive; 0 are the default flags.
        let code = unsafe { (cuda.api().cuStreamWaitEvent)(stream.stream(), event.event(), 0) };
        cuda.check(code)
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        let call = "query_event";
        self.check_functions(call)?;
        let event = self.events.get(call, event.0)?;
        let cuda = self.context.enter(call)?;
        // SAFETY: it is alive.
        let code = unsafe { (cuda.api().cuEventQuery)(event.event()) };
        if code == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        cuda.check(code)?;
        Ok(true)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let call = "synchronize_event";
        let event = self.events.get(call, event.0)?;
        let cuda = self.context.enter(call)?;
        // SAFETY: it is alive.
        let code = unsafe { (cuda.api().cuEventSynchronize)(event.event()) };
        cuda.check(code)?;
        self.check_functions(call)
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        let call = "elapsed_us";
        self.check_functions(call)?;
        let (start, end) = (self.events.get(call, start.0)?, self.events.get(call, end.0)?);
        let cuda = self.context.enter(call)?;
        let mut elapsed_ms = 0.0;
        let ask = cuda.api().cuEventElapsedTime;
        // SAFETY: both are alive; it writes one number.
        let code = unsafe { ask(&raw mut elapsed_ms, start.event(), end.event()) };
        cuda.check(code)?;
        Ok(f64::from(elapsed_ms) * 1e3)
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the caller promises it.
        unsafe { copy::copy(self, copy, stream) }
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "fill";
        if size_bytes == 0 {
            return Err(invalid(call, "0 bytes"));
        }
        let size = length(call, size_bytes)?;
        let stream = self.streams.get(call, stream.0)?;
        let cuda = self.context.enter(call)?;
        // SAFETY: the caller promises the place until the fill is complete; the stream is alive.
        let code = unsafe { (cuda.api().cuMemsetD8Async)(target.0, value, size, stream.stream()) };
        cuda.check(code)
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "launch_host";
        host_function::check(&function).map_err(|text| invalid(call, text))?;
        if !function.accesses.is_empty() {
            let (name, count) = (function.name, function.accesses.len());
            let text =
                format!("'{name}' declares {count} accesses: the host cannot address the device");
            return Err(DriverError::unsupported(call, text));
        }
        let stream = self.streams.get(call, stream.0)?;
        let cuda = self.context.enter(call)?;
        let since = "it needs CUDA 10.0 / driver 410 or newer";
        let launch = need(call, cuda.api().cuLaunchHostFunc, "cuLaunchHostFunc", since)?;
        let raw = Launch { function, failed: Arc::clone(&self.failed) }.into_raw();
        // SAFETY: the library calls `run` once, with `raw`, which came from `into_raw`.
        let code = unsafe { launch(stream.stream(), Some(function::run), raw) };
        cuda.check(code).inspect_err(|error| {
            // A device that is lost may have taken the launch: then it is left alone.
            if error.kind != ErrorKind::DeviceLost {
                // SAFETY: it was refused, so the library will not call `run`.
                drop(unsafe { Launch::from_raw(raw) });
            }
        })
    }
}
