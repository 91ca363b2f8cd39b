//! A driver that does nothing but hand out handles and count calls: the wrappers' counterpart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use npu_sys::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, Driver, DriverError, EventHandle,
    EventKind, HostFunction, HostMapping, HostPtr, MemoryInfo, StreamHandle, VaRange,
};

/// Sizes of the fake's ranges and chunks are multiples of this, in bytes.
pub(crate) const GRANULARITY_BYTES: u64 = 64;

/// What other threads do while one waits.
type Meanwhile = Box<dyn FnOnce() + Send>;

/// It gives out the lowest free handle, so that handles come back as soon as they can.
#[derive(Default)]
pub(crate) struct FakeDriver {
    /// What `query_event` says.
    pub(crate) complete: AtomicBool,
    meanwhile: Mutex<Option<Meanwhile>>,
    state: Mutex<State>,
}

impl fmt::Debug for FakeDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeDriver").field("state", &self.state).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    calls: BTreeMap<&'static str, u64>,
    chunks: Handles,
    streams: Handles,
    events: Handles,
    reserved_bytes: u64,
    plain_bytes: u64,
    pinned_bytes: u64,
}

#[derive(Debug, Default)]
struct Handles {
    taken: BTreeMap<u64, ()>,
}

impl Handles {
    fn take(&mut self) -> u64 {
        let free = (1..).find(|handle| !self.taken.contains_key(handle)).expect("there are many");
        self.taken.insert(free, ());
        free
    }

    fn give_back(&mut self, handle: u64) {
        self.taken.remove(&handle);
    }
}

impl FakeDriver {
    /// How often `name` reached the fake.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.state.lock().unwrap().calls.get(name).copied().unwrap_or(0)
    }

    /// How many calls reached the fake.
    pub(crate) fn total(&self) -> u64 {
        self.state.lock().unwrap().calls.values().sum()
    }

    /// Runs `act` within the next `synchronize_*` call.
    pub(crate) fn do_meanwhile(&self, act: impl FnOnce() + Send + 'static) {
        *self.meanwhile.lock().unwrap() = Some(Box::new(act));
    }

    fn wait(&self) {
        let act = self.meanwhile.lock().unwrap().take();
        act.into_iter().for_each(|act| act());
    }

    fn call<T>(
        &self,
        name: &'static str,
        act: impl FnOnce(&mut State) -> T,
    ) -> Result<T, DriverError> {
        let mut state = self.state.lock().unwrap();
        *state.calls.entry(name).or_default() += 1;
        Ok(act(&mut state))
    }
}

impl Driver for FakeDriver {
    fn properties(&self) -> DeviceProperties {
        DeviceProperties {
            name: "fake".to_owned(),
            total_bytes: 1 << 30,
            granularity_bytes: GRANULARITY_BYTES,
            host_mapping: HostMapping::AllForAll,
            has_virtual_memory: true,
            map_waits_for_copies: false,
            is_host_addressable: false,
            driver_version: "1.0".to_owned(),
            numa_node: None,
        }
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.call("memory_info", |_| MemoryInfo { free_bytes: 1 << 30, total_bytes: 1 << 30 })
    }

    /// Ranges follow each other without a gap.
    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.call("reserve", |state| {
            let start = DevicePtr(0x10_0000 + state.reserved_bytes);
            state.reserved_bytes += size_bytes;
            VaRange { start, size_bytes }
        })
    }

    fn free_range(&self, _range: VaRange) -> Result<(), DriverError> {
        self.call("free_range", |_| ())
    }

    fn create_chunk(&self, _size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.call("create_chunk", |state| ChunkHandle(state.chunks.take()))
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.call("release_chunk", |state| state.chunks.give_back(chunk.0))
    }

    fn map(&self, _range: VaRange, _chunk: ChunkHandle) -> Result<(), DriverError> {
        self.call("map", |_| ())
    }

    fn set_access(&self, _range: VaRange) -> Result<(), DriverError> {
        self.call("set_access", |_| ())
    }

    unsafe fn unmap(&self, _range: VaRange) -> Result<(), DriverError> {
        self.call("unmap", |_| ())
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        self.call("allocate_device", |state| {
            let start = DevicePtr(0x4000_0000 + state.plain_bytes);
            state.plain_bytes += size_bytes;
            start
        })
    }

    unsafe fn free_device(&self, _start: DevicePtr) -> Result<(), DriverError> {
        self.call("free_device", |_| ())
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        self.call("allocate_pinned", |state| {
            let start = HostPtr(0x5000_0000 + state.pinned_bytes);
            state.pinned_bytes += size_bytes;
            start
        })
    }

    unsafe fn free_pinned(&self, _start: HostPtr) -> Result<(), DriverError> {
        self.call("free_pinned", |_| ())
    }

    unsafe fn register_host(&self, _start: HostPtr, _size_bytes: u64) -> Result<(), DriverError> {
        self.call("register_host", |_| ())
    }

    unsafe fn unregister_host(&self, _start: HostPtr) -> Result<(), DriverError> {
        self.call("unregister_host", |_| ())
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        self.call("device_pointer", |_| DevicePtr(start.0 + 0x1_0000_0000))
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.call("create_stream", |state| StreamHandle(state.streams.take()))
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.call("destroy_stream", |state| state.streams.give_back(stream.0))
    }

    fn synchronize_stream(&self, _stream: StreamHandle) -> Result<(), DriverError> {
        self.wait();
        self.call("synchronize_stream", |_| ())
    }

    fn is_captured(&self, _stream: StreamHandle) -> Result<bool, DriverError> {
        self.call("is_captured", |_| false)
    }

    fn create_event(&self, _kind: EventKind) -> Result<EventHandle, DriverError> {
        self.call("create_event", |state| EventHandle(state.events.take()))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.call("destroy_event", |state| state.events.give_back(event.0))
    }

    fn record_event(&self, _event: EventHandle, _stream: StreamHandle) -> Result<(), DriverError> {
        self.call("record_event", |_| ())
    }

    fn wait_event(&self, _stream: StreamHandle, _event: EventHandle) -> Result<(), DriverError> {
        self.call("wait_event", |_| ())
    }

    fn query_event(&self, _event: EventHandle) -> Result<bool, DriverError> {
        self.call("query_event", |_| self.complete.load(Ordering::SeqCst))
    }

    fn synchronize_event(&self, _event: EventHandle) -> Result<(), DriverError> {
        self.wait();
        self.call("synchronize_event", |_| ())
    }

    fn elapsed_us(&self, _start: EventHandle, _end: EventHandle) -> Result<f64, DriverError> {
        self.call("elapsed_us", |_| 1.5)
    }

    unsafe fn copy(&self, _copy: Copy, _stream: StreamHandle) -> Result<(), DriverError> {
        self.call("copy", |_| ())
    }

    unsafe fn fill(
        &self,
        _target: DevicePtr,
        _size_bytes: u64,
        _value: u8,
        _stream: StreamHandle,
    ) -> Result<(), DriverError> {
        self.call("fill", |_| ())
    }

    unsafe fn launch_host(
        &self,
        _function: HostFunction,
        _stream: StreamHandle,
    ) -> Result<(), DriverError> {
        self.call("launch_host", |_| ())
    }

    fn note_access(&self, _stream: StreamHandle, _accesses: &[Access]) -> Result<(), DriverError> {
        self.call("note_access", |_| ())
    }

    fn wants_accesses(&self) -> bool {
        false
    }
}
