//! Measures what each driver call costs the host.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Instant;

use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::types::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};
use crate::wrap::FALLIBLE_CALLS;

/// What the calls of one name cost.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct CallCost {
    /// How many there were.
    pub count: u64,
    /// Host time of all of them, in microseconds.
    pub total_us: f64,
}

/// A driver that adds up the host time of its calls, by name, apart for the thread that made it
/// and for all others. It takes no lock, and costs two readings of the clock a call.
#[derive(Debug)]
pub struct MeterDriver {
    inner: Arc<dyn Driver>,
    owner: ThreadId,
    own: Sums,
    others: Sums,
}

#[derive(Debug)]
struct Sums {
    counts: [AtomicU64; FALLIBLE_CALLS.len()],
    nanoseconds: [AtomicU64; FALLIBLE_CALLS.len()],
}

impl Sums {
    fn new() -> Sums {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Sums { counts: zeros(), nanoseconds: zeros() }
    }

    fn costs(&self) -> BTreeMap<&'static str, CallCost> {
        let mut costs = BTreeMap::new();
        for (index, name) in FALLIBLE_CALLS.into_iter().enumerate() {
            let count = self.counts[index].load(Ordering::Relaxed);
            let total_us = self.nanoseconds[index].load(Ordering::Relaxed) as f64 / 1e3;
            if count > 0 {
                costs.insert(name, CallCost { count, total_us });
            }
        }
        costs
    }

    fn clear(&self) {
        for sum in self.counts.iter().chain(&self.nanoseconds) {
            sum.store(0, Ordering::Relaxed);
        }
    }
}

impl MeterDriver {
    /// Measures the calls of `inner`.
    pub fn new(inner: Arc<dyn Driver>) -> MeterDriver {
        let owner = thread::current().id();
        MeterDriver { inner, owner, own: Sums::new(), others: Sums::new() }
    }

    /// What the thread that made this spent since the last [`clear`](MeterDriver::clear), by
    /// name. Names that were not called are left out.
    pub fn costs(&self) -> BTreeMap<&'static str, CallCost> {
        self.own.costs()
    }

    /// What all other threads spent.
    pub fn costs_of_others(&self) -> BTreeMap<&'static str, CallCost> {
        self.others.costs()
    }

    /// Starts anew.
    pub fn clear(&self) {
        self.own.clear();
        self.others.clear();
    }

    #[allow(clippy::disallowed_methods)] // The host's time is what it is about.
    fn time<T>(
        &self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let start = Instant::now();
        let result = call();
        let spent = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let index = FALLIBLE_CALLS.iter().position(|&other| other == name);
        let index = index.expect("all calls are in the list");
        let sums = if thread::current().id() == self.owner { &self.own } else { &self.others };
        sums.counts[index].fetch_add(1, Ordering::Relaxed);
        sums.nanoseconds[index].fetch_add(spent, Ordering::Relaxed);
        result
    }
}

impl Driver for MeterDriver {
    fn properties(&self) -> DeviceProperties {
        self.inner.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.time("memory_info", || self.inner.memory_info())
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.time("reserve", || self.inner.reserve(size_bytes))
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        self.time("free_range", || self.inner.free_range(range))
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.time("create_chunk", || self.inner.create_chunk(size_bytes))
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.time("release_chunk", || self.inner.release_chunk(chunk))
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.time("map", || self.inner.map(range, chunk))
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        self.time("set_access", || self.inner.set_access(range))
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        self.time("unmap", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.unmap(range) }
        })
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        self.time("allocate_device", || self.inner.allocate_device(size_bytes))
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        self.time("free_device", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.free_device(start) }
        })
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        self.time("allocate_pinned", || self.inner.allocate_pinned(size_bytes))
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        self.time("free_pinned", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.free_pinned(start) }
        })
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        self.time("register_host", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.register_host(start, size_bytes) }
        })
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        self.time("unregister_host", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.unregister_host(start) }
        })
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        self.time("device_pointer", || self.inner.device_pointer(start))
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.time("create_stream", || self.inner.create_stream())
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.time("destroy_stream", || self.inner.destroy_stream(stream))
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.time("synchronize_stream", || self.inner.synchronize_stream(stream))
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        self.time("create_event", || self.inner.create_event(kind))
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.time("destroy_event", || self.inner.destroy_event(event))
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        self.time("record_event", || self.inner.record_event(event, stream))
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        self.time("wait_event", || self.inner.wait_event(stream, event))
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        self.time("query_event", || self.inner.query_event(event))
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.time("synchronize_event", || self.inner.synchronize_event(event))
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        self.time("elapsed_us", || self.inner.elapsed_us(start, end))
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        self.time("copy", || {
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
        self.time("fill", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.fill(target, size_bytes, value, stream) }
        })
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        self.time("launch_host", || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.launch_host(function, stream) }
        })
    }

    fn note_access(&self, stream: StreamHandle, accesses: &[Access]) -> Result<(), DriverError> {
        self.time("note_access", || self.inner.note_access(stream, accesses))
    }

    fn wants_accesses(&self) -> bool {
        self.inner.wants_accesses()
    }
}
