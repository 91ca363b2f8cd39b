//! Keeps a log of driver calls, to assert on in tests and to read when something went wrong.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use super::assert_is_call;
use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::types::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};

/// One call of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedCall {
    /// Its place among all calls, from 1, also when older ones are no longer kept.
    pub number: u64,
    /// Its name, as the trait spells it.
    pub name: &'static str,
    /// Its arguments, in short.
    pub arguments: String,
    /// What it returned, in short, or why it failed.
    pub outcome: Result<String, DriverError>,
    /// Who called.
    pub thread: ThreadId,
}

impl fmt::Display for RecordedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RecordedCall { number, name, arguments, outcome, thread } = self;
        write!(f, "{number} {thread:?} {name}({arguments}) ")?;
        match outcome {
            Ok(value) => write!(f, "-> {value}"),
            Err(error) => write!(f, "failed: {error}"),
        }
    }
}

/// A driver that logs the fallible calls which pass through it.
///
/// A call enters the log when it returns, so a `synchronize_*` stands behind what other threads
/// did meanwhile.
#[derive(Debug)]
pub struct RecordDriver {
    inner: Arc<dyn Driver>,
    kept_max: usize,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    calls: VecDeque<RecordedCall>,
    total: u64,
    counts: BTreeMap<&'static str, u64>,
}

impl RecordDriver {
    /// Stands in front of `inner` and keeps every call.
    pub fn new(inner: Arc<dyn Driver>) -> RecordDriver {
        RecordDriver::bounded(inner, usize::MAX)
    }

    /// Stands in front of `inner` and keeps the latest `kept_max` calls. Counts cover all.
    pub fn bounded(inner: Arc<dyn Driver>, kept_max: usize) -> RecordDriver {
        RecordDriver { inner, kept_max, log: Mutex::default() }
    }

    /// How often `name` was called, failed calls included.
    ///
    /// # Panics
    /// If the driver has no fallible call of that name.
    pub fn count(&self, name: &str) -> u64 {
        assert_is_call(name);
        self.lock().counts.get(name).copied().unwrap_or(0)
    }

    /// How often each name was called. Names that were not called are absent.
    pub fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.lock().counts.clone()
    }

    /// Calls of any name.
    pub fn total(&self) -> u64 {
        self.lock().total
    }

    /// The kept calls, oldest first.
    pub fn calls(&self) -> Vec<RecordedCall> {
        self.lock().calls.iter().cloned().collect()
    }

    /// The kept calls as text, a line each, oldest first.
    pub fn lines(&self) -> Vec<String> {
        self.lock().calls.iter().map(RecordedCall::to_string).collect()
    }

    /// Empties the log and the counts.
    pub fn clear(&self) {
        *self.lock() = Log::default();
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log<T: fmt::Debug>(
        &self,
        name: &'static str,
        arguments: String,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let result = call();
        let outcome = match &result {
            Ok(value) => Ok(format!("{value:?}")),
            Err(error) => Err(error.clone()),
        };
        let mut log = self.lock();
        log.total += 1;
        *log.counts.entry(name).or_default() += 1;
        let number = log.total;
        let thread = thread::current().id();
        log.calls.push_back(RecordedCall { number, name, arguments, outcome, thread });
        if log.calls.len() > self.kept_max {
            log.calls.pop_front();
        }
        result
    }
}

fn range_text(range: VaRange) -> String {
    format!("{:?} + {} bytes", range.start, range.size_bytes)
}

impl Driver for RecordDriver {
    fn properties(&self) -> DeviceProperties {
        self.inner.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.log("memory_info", String::new(), || self.inner.memory_info())
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.log("reserve", format!("{size_bytes} bytes"), || self.inner.reserve(size_bytes))
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        self.log("free_range", range_text(range), || self.inner.free_range(range))
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        let arguments = format!("{size_bytes} bytes");
        self.log("create_chunk", arguments, || self.inner.create_chunk(size_bytes))
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.log("release_chunk", format!("{chunk:?}"), || self.inner.release_chunk(chunk))
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        let arguments = format!("{}, {chunk:?}", range_text(range));
        self.log("map", arguments, || self.inner.map(range, chunk))
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        self.log("set_access", range_text(range), || self.inner.set_access(range))
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        self.log("unmap", range_text(range), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.unmap(range) }
        })
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        let arguments = format!("{size_bytes} bytes");
        self.log("allocate_device", arguments, || self.inner.allocate_device(size_bytes))
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        self.log("free_device", format!("{start:?}"), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.free_device(start) }
        })
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        let arguments = format!("{size_bytes} bytes");
        self.log("allocate_pinned", arguments, || self.inner.allocate_pinned(size_bytes))
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        self.log("free_pinned", format!("{start:?}"), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.free_pinned(start) }
        })
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        self.log("register_host", format!("{start:?} + {size_bytes} bytes"), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.register_host(start, size_bytes) }
        })
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        self.log("unregister_host", format!("{start:?}"), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.unregister_host(start) }
        })
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        self.log("device_pointer", format!("{start:?}"), || self.inner.device_pointer(start))
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.log("create_stream", String::new(), || self.inner.create_stream())
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.log("destroy_stream", format!("{stream:?}"), || self.inner.destroy_stream(stream))
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let arguments = format!("{stream:?}");
        self.log("synchronize_stream", arguments, || self.inner.synchronize_stream(stream))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        self.log("create_event", format!("{kind:?}"), || self.inner.create_event(kind))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.log("destroy_event", format!("{event:?}"), || self.inner.destroy_event(event))
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let arguments = format!("{event:?}, {stream:?}");
        self.log("record_event", arguments, || self.inner.record_event(event, stream))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let arguments = format!("{stream:?}, {event:?}");
        self.log("wait_event", arguments, || self.inner.wait_event(stream, event))
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        self.log("query_event", format!("{event:?}"), || self.inner.query_event(event))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.log("synchronize_event", format!("{event:?}"), || self.inner.synchronize_event(event))
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        let arguments = format!("{start:?}, {end:?}");
        self.log("elapsed_us", arguments, || self.inner.elapsed_us(start, end))
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        self.log("copy", format!("{copy:?}, {stream:?}"), || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.copy(copy, stream) }
        })
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let arguments = format!("{target:?} + {size_bytes} bytes, {value:#04x}, {stream:?}");
        self.log("fill", arguments, || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.fill(target, size_bytes, value, stream) }
        })
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let arguments = format!("{}, {:?}, {stream:?}", function.name, function.accesses);
        self.log("launch_host", arguments, || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.launch_host(function, stream) }
        })
    }

    fn note_access(&self, stream: StreamHandle, accesses: &[Access]) -> Result<(), DriverError> {
        let arguments = format!("{stream:?}, {accesses:?}");
        self.log("note_access", arguments, || self.inner.note_access(stream, accesses))
    }

    fn wants_accesses(&self) -> bool {
        self.inner.wants_accesses()
    }
}
