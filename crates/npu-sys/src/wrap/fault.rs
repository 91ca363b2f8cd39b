//! Fails chosen driver calls, so that every error path can be walked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::assert_is_call;
use crate::driver::{Driver, HostFunction};
use crate::error::{DriverError, ErrorKind};
use crate::types::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};

/// How long a fault lasts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lasting {
    /// One call fails; later ones go through.
    Once,
    /// The call and every later one that the plan covers fail, teardown included.
    ForGood,
}

/// Which call fails, and how.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FaultPlan {
    /// The first call to fail: 1 is the first one that the plan covers after arming.
    pub call: u64,
    /// Whether later calls fail too.
    pub lasting: Lasting,
    /// What the failed call reports.
    pub kind: ErrorKind,
    /// Covers, and counts, only calls of this name (see
    /// [`FALLIBLE_CALLS`](crate::FALLIBLE_CALLS)). `None` covers all.
    pub only: Option<&'static str>,
}

impl FaultPlan {
    /// The `call`-th call of any name fails once.
    pub fn once(call: u64, kind: ErrorKind) -> FaultPlan {
        FaultPlan { call, lasting: Lasting::Once, kind, only: None }
    }

    /// The `call`-th call of any name fails, and so does every call after it.
    pub fn for_good(call: u64, kind: ErrorKind) -> FaultPlan {
        FaultPlan { call, lasting: Lasting::ForGood, kind, only: None }
    }

    /// The same plan for calls named `name`.
    ///
    /// # Panics
    /// If the driver has no fallible call of that name.
    #[must_use]
    pub fn only(self, name: &'static str) -> FaultPlan {
        assert_is_call(name);
        FaultPlan { only: Some(name), ..self }
    }
}

/// A driver whose calls fail by plan.
///
/// Each fallible call is counted. One that is chosen to fail does not reach the driver behind,
/// which is thus as it was. Unarmed, it only counts: run a script once to learn how many calls it
/// makes, then once for each of them.
///
/// Counts start anew when a plan is armed.
#[derive(Debug)]
pub struct FaultDriver {
    inner: Arc<dyn Driver>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    plan: Option<FaultPlan>,
    /// Calls that the armed plan covers.
    covered: u64,
    calls: BTreeMap<&'static str, u64>,
    hits: BTreeMap<&'static str, u64>,
}

impl FaultDriver {
    /// Stands in front of `inner`, unarmed.
    pub fn new(inner: Arc<dyn Driver>) -> FaultDriver {
        FaultDriver { inner, state: Mutex::default() }
    }

    /// Starts to count from zero and to fail calls by `plan`.
    ///
    /// # Panics
    /// If `plan.call` is 0, or `plan.only` is not the name of a fallible call.
    pub fn arm(&self, plan: FaultPlan) {
        assert!(plan.call > 0, "calls are numbered from 1");
        if let Some(name) = plan.only {
            assert_is_call(name);
        }
        *self.lock() = State { plan: Some(plan), ..State::default() };
    }

    /// Lets every call through from now on. Counts stay and go on.
    pub fn disarm(&self) {
        self.lock().plan = None;
    }

    /// Fallible calls of any name, failed ones included.
    pub fn calls(&self) -> u64 {
        self.lock().calls.values().sum()
    }

    /// The same by name. Names that were not called are absent.
    pub fn calls_by_name(&self) -> BTreeMap<&'static str, u64> {
        self.lock().calls.clone()
    }

    /// Calls that this driver failed.
    pub fn injected(&self) -> u64 {
        self.lock().hits.values().sum()
    }

    /// The same by name. Names that were not failed are absent.
    pub fn hits(&self) -> BTreeMap<&'static str, u64> {
        self.lock().hits.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts the call and decides its fate.
    fn pass(&self, call: &'static str) -> Result<(), DriverError> {
        let mut state = self.lock();
        *state.calls.entry(call).or_default() += 1;
        let Some(plan) = state.plan else { return Ok(()) };
        if plan.only.is_some_and(|only| only != call) {
            return Ok(());
        }
        state.covered += 1;
        let fails = match plan.lasting {
            Lasting::Once => state.covered == plan.call,
            Lasting::ForGood => state.covered >= plan.call,
        };
        if !fails {
            return Ok(());
        }
        *state.hits.entry(call).or_default() += 1;
        Err(DriverError {
            call,
            code: plausible_code(plan.kind),
            text: format!("injected fault at call {}", state.covered).into(),
            kind: plan.kind,
        })
    }
}

/// The code that CUDA's driver gives for such an error, as far as it has one.
fn plausible_code(kind: ErrorKind) -> i64 {
    match kind {
        ErrorKind::OutOfMemory => 2,
        ErrorKind::Unsupported => 801,
        ErrorKind::Invalid => 1,
        ErrorKind::DeviceLost => 719,
        ErrorKind::Race => -1,
        ErrorKind::Failed => 999,
    }
}

impl Driver for FaultDriver {
    fn properties(&self) -> DeviceProperties {
        self.inner.properties()
    }

    fn memory_info(&self) -> Result<MemoryInfo, DriverError> {
        self.pass("memory_info")?;
        self.inner.memory_info()
    }

    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError> {
        self.pass("reserve")?;
        self.inner.reserve(size_bytes)
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        self.pass("free_range")?;
        self.inner.free_range(range)
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        self.pass("create_chunk")?;
        self.inner.create_chunk(size_bytes)
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.pass("release_chunk")?;
        self.inner.release_chunk(chunk)
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        self.pass("map")?;
        self.inner.map(range, chunk)
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        self.pass("set_access")?;
        self.inner.set_access(range)
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        self.pass("unmap")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.unmap(range) }
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        self.pass("allocate_device")?;
        self.inner.allocate_device(size_bytes)
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        self.pass("free_device")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.free_device(start) }
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        self.pass("allocate_pinned")?;
        self.inner.allocate_pinned(size_bytes)
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        self.pass("free_pinned")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.free_pinned(start) }
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        self.pass("register_host")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.register_host(start, size_bytes) }
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        self.pass("unregister_host")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.unregister_host(start) }
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        self.pass("device_pointer")?;
        self.inner.device_pointer(start)
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        self.pass("create_stream")?;
        self.inner.create_stream()
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.pass("destroy_stream")?;
        self.inner.destroy_stream(stream)
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        self.pass("synchronize_stream")?;
        self.inner.synchronize_stream(stream)
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        self.pass("create_event")?;
        self.inner.create_event(kind)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.pass("destroy_event")?;
        self.inner.destroy_event(event)
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        self.pass("record_event")?;
        self.inner.record_event(event, stream)
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        self.pass("wait_event")?;
        self.inner.wait_event(stream, event)
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        self.pass("query_event")?;
        self.inner.query_event(event)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        self.pass("synchronize_event")?;
        self.inner.synchronize_event(event)
    }

    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError> {
        self.pass("elapsed_us")?;
        self.inner.elapsed_us(start, end)
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        self.pass("copy")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.copy(copy, stream) }
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        self.pass("fill")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.fill(target, size_bytes, value, stream) }
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        self.pass("launch_host")?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.launch_host(function, stream) }
    }

    fn note_access(&self, stream: StreamHandle, accesses: &[Access]) -> Result<(), DriverError> {
        self.pass("note_access")?;
        self.inner.note_access(stream, accesses)
    }

    fn wants_accesses(&self) -> bool {
        self.inner.wants_accesses()
    }
}
