//! [`Driver`] for an Ascend device: checks, then hands over.

use crate::acl::current::Current;
use crate::acl::failure::invalid;
use crate::acl::function::{self, HostWork};
use crate::acl::host::Resolved;
use crate::acl::sys::{self, aclrtStream};
use crate::acl::{AclDriver, open, pointer, size, within};
use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::host_function;
use crate::types::{
    ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr, MemoryInfo,
    StreamHandle, VaRange,
};

impl AclDriver {
    /// Takes in a stream of another library, so that it can be used like one of the driver's.
    ///
    /// `stream` is its `aclrtStream` as a number; 0 is the context's default stream.
    /// `destroy_stream` ends the adoption and leaves the stream alive. A stream that is known
    /// already keeps its handle.
    ///
    /// # Errors
    /// None today; as the other drivers'.
    ///
    /// # Safety
    /// It is a stream of the device's default context and lives until `destroy_stream`, or until
    /// the driver is dropped.
    pub unsafe fn adopt_stream(&self, stream: u64) -> Result<StreamHandle, DriverError> {
        // SAFETY: the caller's promise.
        Ok(unsafe { self.state.streams.adopt(aclrtStream(pointer(stream))) })
    }

    /// The start of each call.
    fn enter(&self, call: &'static str) -> Result<Current<'_>, DriverError> {
        self.state.device.enter(call)
    }

    /// The start of each call on streams.
    fn enter_stream(&self, call: &'static str) -> Result<Current<'_>, DriverError> {
        function::refuse_host_function(call)?;
        self.enter(call)
    }

    /// The failure of a host function that ran earlier, as an error of `call`.
    fn check_functions(&self, call: &'static str) -> Result<(), DriverError> {
        self.state.failure.check(call, i64::from(sys::ACL_ERROR_FAILURE))
    }

    /// The start of each call that takes addresses and memory apart.
    fn enter_virtual(&self, call: &'static str) -> Result<Current<'_>, DriverError> {
        match &self.state.no_virtual_memory {
            None => self.enter(call),
            Some(error) => {
                let text = format!("no virtual memory, use allocate_device: {}", error.text);
                Err(DriverError { call, text: text.into(), ..error.clone() })
            }
        }
    }

    /// Hands work of the host to a stream.
    ///
    /// # Safety
    /// As for [`function::launch`].
    unsafe fn launch(
        &self,
        now: &Current<'_>,
        stream: StreamHandle,
        work: HostWork,
    ) -> Result<(), DriverError> {
        let stream = self.state.streams.get(now, stream)?;
        let (reports, failure) = (&self.state.reports, &self.state.failure);
        // SAFETY: the caller's promise.
        unsafe { function::launch(now, &stream, reports, failure, work) }
    }

    /// What is behind a device address that a copy or fill uses.
    fn resolve(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
        size_bytes: u64,
    ) -> Result<Resolved, DriverError> {
        let resolved = self.state.host.resolve(now, start, size_bytes)?;
        if let Resolved::Device(_) = resolved {
            self.state.memory.check(now, start, size_bytes)?;
        }
        Ok(resolved)
    }

    /// Where a copy goes from and to, each as the library must see it.
    fn ends(&self, now: &Current<'_>, copy: Copy) -> Result<(Resolved, Resolved), DriverError> {
        copy.check().map_err(|text| invalid(now.call, text))?;
        let size_bytes = copy.size_bytes();
        match copy {
            Copy::DeviceToHost { source, target, .. } => {
                let source = self.resolve(now, source, size_bytes)?;
                self.state.host.check(now, target, size_bytes)?;
                Ok((source, Resolved::Host(target.0)))
            }
            Copy::HostToDevice { source, target, .. } => {
                let target = self.resolve(now, target, size_bytes)?;
                self.state.host.check(now, source, size_bytes)?;
                Ok((Resolved::Host(source.0), target))
            }
            Copy::DeviceToDevice { source, target, .. } => {
                let source = self.resolve(now, source, size_bytes)?;
                Ok((source, self.resolve(now, target, size_bytes)?))
            }
        }
    }

    /// Rewrites the accesses of a function to addresses that the host can use.
    fn bring_to_host(
        &self,
        now: &Current<'_>,
        function: &mut HostFunction,
    ) -> Result<(), DriverError> {
        for access in &mut function.accesses {
            match self.state.host.resolve(now, access.start, access.size_bytes)? {
                Resolved::Host(address) => access.start = DevicePtr(address),
                Resolved::Device(address) => {
                    if !self.state.properties.is_host_addressable {
                        let text = "the host cannot address this device's memory, so host \
                                    functions may not declare accesses";
                        return Err(DriverError::unsupported(now.call, text));
                    }
                    let start = DevicePtr(address);
                    let is_host =
                        self.state.host.check(now, HostPtr(address), access.size_bytes).is_ok();
                    if !is_host && !self.state.memory.is_valid(start, access.size_bytes) {
                        let text = format!("{start:?} + {} bytes is not mapped", access.size_bytes);
                        return Err(invalid(now.call, text));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Driver for AclDriver {
    fn properties(&self) -> DeviceProperties {
        self.state.properties.clone()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        open::memory_info(&self.enter("memory_info")?)
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.state.memory.reserve(&self.enter_virtual("reserve")?, size_bytes)
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        self.state.memory.free_range(&self.enter_virtual("free_range")?, range)
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.state.memory.create_chunk(&self.enter_virtual("create_chunk")?, size_bytes)
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.state.memory.release_chunk(&self.enter_virtual("release_chunk")?, chunk)
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.state.memory.map(&self.enter_virtual("map")?, range, chunk)
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        self.enter_virtual("set_access")?;
        self.state.memory.check_access(range)
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        let now = self.enter_virtual("unmap")?;
        // SAFETY: the caller's promise.
        unsafe { self.state.memory.unmap(&now, range) }
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        self.state.memory.allocate(&self.enter("allocate_device")?, size_bytes)
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        let now = self.enter("free_device")?;
        // SAFETY: the caller's promise.
        unsafe { self.state.memory.free(&now, start) }
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        self.state.host.allocate(&self.enter("allocate_pinned")?, size_bytes)
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        let now = self.enter("free_pinned")?;
        // SAFETY: the caller's promise.
        unsafe { self.state.host.free(&now, start) }
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        let now = self.enter("register_host")?;
        // SAFETY: the caller's promise.
        unsafe { self.state.host.register(&now, start, size_bytes) }
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        let now = self.enter("unregister_host")?;
        // SAFETY: the caller's promise.
        unsafe { self.state.host.unregister(&now, start) }
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        self.state.host.device_pointer(&self.enter("device_pointer")?, start)
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let now = self.enter_stream("create_stream")?;
        self.state.streams.create(&now, &self.state.reports)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("destroy_stream")?;
        self.state.streams.destroy(&now, stream, &self.state.reports)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("synchronize_stream")?;
        self.state.streams.synchronize(&now, stream)?;
        self.check_functions(now.call)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        self.state.events.create(&self.enter("create_event")?, kind)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.state.events.destroy(&self.enter("destroy_event")?, event)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("record_event")?;
        let stream = self.state.streams.get(&now, stream)?;
        self.state.events.record(&now, event, &stream)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("wait_event")?;
        let stream = self.state.streams.get(&now, stream)?;
        self.state.events.wait(&now, &stream, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        let now = self.enter_stream("query_event")?;
        self.check_functions(now.call)?;
        self.state.events.query(&now, event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("synchronize_event")?;
        self.state.events.synchronize(&now, event)?;
        self.check_functions(now.call)
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        let now = self.enter_stream("elapsed_us")?;
        self.check_functions(now.call)?;
        self.state.events.elapsed_us(&now, start, end)
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        let now = self.enter_stream("copy")?;
        let size_bytes = copy.size_bytes();
        let (source, target, kind) = match self.ends(&now, copy)? {
            (Resolved::Device(source), Resolved::Device(target)) => {
                let stream = self.state.streams.get(&now, stream)?;
                // SAFETY: the caller's promise; that the places do not overlap was checked.
                return unsafe { within::copy(&now, &stream, source, target, size_bytes) };
            }
            (Resolved::Host(source), Resolved::Host(target)) => {
                let work = HostWork::Copy { source, target, size_bytes };
                // SAFETY: the caller promises both places, which are the host's.
                return unsafe { self.launch(&now, stream, work) };
            }
            (Resolved::Device(source), Resolved::Host(target)) => {
                (source, target, sys::ACL_MEMCPY_DEVICE_TO_HOST)
            }
            (Resolved::Host(source), Resolved::Device(target)) => {
                (source, target, sys::ACL_MEMCPY_HOST_TO_DEVICE)
            }
        };
        let stream = self.state.streams.get(&now, stream)?;
        // SAFETY: the caller's promise; each address is on the side that `kind` says.
        unsafe { within::submit(&now, &stream, source, target, size_bytes, kind) }
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let now = self.enter_stream("fill")?;
        if size_bytes == 0 {
            return Err(invalid(now.call, "0 bytes"));
        }
        let address = match self.resolve(&now, target, size_bytes)? {
            Resolved::Device(address) => address,
            Resolved::Host(target) => {
                let work = HostWork::Fill { target, size_bytes, value };
                // SAFETY: the caller promises the place, which is the host's.
                return unsafe { self.launch(&now, stream, work) };
            }
        };
        let stream = self.state.streams.get(&now, stream)?;
        let (target, size) = (pointer(address), size(size_bytes));
        // SAFETY: the caller promises the place; the stream exists for as long as it is held.
        let code =
            unsafe { (now.api.aclrtMemsetAsync)(target, size, i32::from(value), size, stream.raw) };
        now.check("aclrtMemsetAsync", code)
    }

    unsafe fn launch_host(
        &self,
        mut function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let now = self.enter_stream("launch_host")?;
        host_function::check(&function).map_err(|text| invalid(now.call, text))?;
        self.bring_to_host(&now, &mut function)?;
        // SAFETY: the caller promises the accesses, which are at addresses of the host by now.
        unsafe { self.launch(&now, stream, HostWork::Function(function)) }
    }
}
