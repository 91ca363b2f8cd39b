//! A checker in front of the fake driver, with short names for what tests do with it.

use std::sync::Arc;

use npu_sys::devices::{CheckConfig, CheckDriver};
use npu_sys::{
    Access, AccessMode, ChunkHandle, Copy, DevicePtr, Driver, DriverError, ErrorKind, EventHandle,
    EventKind, HostFunction, HostPtr, StreamHandle, VaRange,
};

use super::fake::FakeDriver;

/// What a driver call without a value returns.
pub(crate) type Outcome = Result<(), DriverError>;

/// The checker under test and the fake behind it.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) fake: Arc<FakeDriver>,
    pub(crate) check: CheckDriver,
}

/// Size of a [`Bench::buffer`], in bytes.
pub(crate) const BUFFER_BYTES: u64 = 256;

impl Bench {
    pub(crate) fn new() -> Bench {
        Bench::with(CheckConfig::ORDER)
    }

    pub(crate) fn with(config: CheckConfig) -> Bench {
        let fake = Arc::new(FakeDriver::default());
        let check = CheckDriver::new(Arc::clone(&fake) as Arc<dyn Driver>, config);
        Bench { fake, check }
    }

    pub(crate) fn streams<const N: usize>(&self) -> [StreamHandle; N] {
        std::array::from_fn(|_| self.check.create_stream().unwrap())
    }

    pub(crate) fn event(&self) -> EventHandle {
        self.check.create_event(EventKind::Order).unwrap()
    }

    /// A chunk of its own behind a range of its own, accessible.
    pub(crate) fn buffer(&self) -> (ChunkHandle, VaRange) {
        let chunk = self.check.create_chunk(BUFFER_BYTES).unwrap();
        (chunk, self.alias(chunk))
    }

    /// One more range for a chunk, accessible.
    pub(crate) fn alias(&self, chunk: ChunkHandle) -> VaRange {
        let range = self.check.reserve(BUFFER_BYTES).unwrap();
        self.map(range, chunk);
        range
    }

    pub(crate) fn map(&self, range: VaRange, chunk: ChunkHandle) {
        self.check.map(range, chunk).unwrap();
        self.check.set_access(range).unwrap();
    }

    pub(crate) fn write(&self, stream: StreamHandle, range: VaRange) -> Outcome {
        self.fill(stream, range.start, range.size_bytes)
    }

    pub(crate) fn read(&self, stream: StreamHandle, range: VaRange) -> Outcome {
        self.launch(stream, "read", &[access(range, AccessMode::Read)])
    }

    pub(crate) fn fill(&self, stream: StreamHandle, start: DevicePtr, size_bytes: u64) -> Outcome {
        // SAFETY: the driver behind touches no memory.
        unsafe { self.check.fill(start, size_bytes, 7, stream) }
    }

    pub(crate) fn copy(&self, stream: StreamHandle, copy: Copy) -> Outcome {
        // SAFETY: the driver behind touches no memory.
        unsafe { self.check.copy(copy, stream) }
    }

    pub(crate) fn launch(
        &self,
        stream: StreamHandle,
        name: &'static str,
        accesses: &[Access],
    ) -> Outcome {
        let accesses = accesses.to_vec();
        let function = HostFunction { name, accesses, cost_us: 1.0, body: Box::new(|_| ()) };
        // SAFETY: the driver behind runs nothing.
        unsafe { self.check.launch_host(function, stream) }
    }

    pub(crate) fn unmap(&self, range: VaRange) -> Outcome {
        // SAFETY: the driver behind maps nothing.
        unsafe { self.check.unmap(range) }
    }

    pub(crate) fn free_device(&self, start: DevicePtr) -> Outcome {
        // SAFETY: the driver behind allocates nothing.
        unsafe { self.check.free_device(start) }
    }

    pub(crate) fn free_pinned(&self, start: HostPtr) -> Outcome {
        // SAFETY: the driver behind allocates nothing.
        unsafe { self.check.free_pinned(start) }
    }

    pub(crate) fn register(&self, start: HostPtr, size_bytes: u64) -> Outcome {
        // SAFETY: the driver behind pins nothing.
        unsafe { self.check.register_host(start, size_bytes) }
    }

    pub(crate) fn unregister(&self, start: HostPtr) -> Outcome {
        // SAFETY: the driver behind pins nothing.
        unsafe { self.check.unregister_host(start) }
    }

    pub(crate) fn note(&self, stream: StreamHandle, accesses: &[Access]) -> Outcome {
        self.check.note_access(stream, accesses)
    }

    pub(crate) fn release(&self, chunk: ChunkHandle) -> Outcome {
        self.check.release_chunk(chunk)
    }

    pub(crate) fn reserve(&self, size_bytes: u64) -> VaRange {
        self.check.reserve(size_bytes).unwrap()
    }

    pub(crate) fn create_chunk(&self, size_bytes: u64) -> ChunkHandle {
        self.check.create_chunk(size_bytes).unwrap()
    }

    pub(crate) fn allocate_pinned(&self, size_bytes: u64) -> HostPtr {
        self.check.allocate_pinned(size_bytes).unwrap()
    }

    pub(crate) fn device_pointer(&self, start: HostPtr) -> DevicePtr {
        self.check.device_pointer(start).unwrap()
    }

    pub(crate) fn query(&self, event: EventHandle) -> bool {
        self.check.query_event(event).unwrap()
    }

    pub(crate) fn synchronize_event(&self, event: EventHandle) {
        self.check.synchronize_event(event).unwrap();
    }

    pub(crate) fn replace_stream(&self, stream: StreamHandle) -> StreamHandle {
        self.check.destroy_stream(stream).unwrap();
        self.check.create_stream().unwrap()
    }

    pub(crate) fn replace_event(&self, event: EventHandle) -> EventHandle {
        self.check.destroy_event(event).unwrap();
        self.event()
    }

    pub(crate) fn record(&self, event: EventHandle, stream: StreamHandle) {
        self.check.record_event(event, stream).unwrap();
    }

    pub(crate) fn wait(&self, stream: StreamHandle, event: EventHandle) {
        self.check.wait_event(stream, event).unwrap();
    }

    /// Orders later work of `after` after the work of `before` so far.
    pub(crate) fn order(&self, before: StreamHandle, after: StreamHandle) {
        let event = self.event();
        self.record(event, before);
        self.wait(after, event);
        self.check.destroy_event(event).unwrap();
    }

    pub(crate) fn synchronize(&self, stream: StreamHandle) {
        self.check.synchronize_stream(stream).unwrap();
    }

    /// The checker refused exactly `count` calls, and kept them all.
    pub(crate) fn assert_violations(&self, count: usize) {
        assert_eq!(self.check.violations().len(), count, "{:#?}", self.check.violations());
        assert_eq!(self.check.violation_count(), count as u64);
    }
}

pub(crate) fn access(range: VaRange, mode: AccessMode) -> Access {
    Access { start: range.start, size_bytes: range.size_bytes, mode }
}

/// The first `size_bytes` bytes of `range` from `offset_bytes` on.
pub(crate) fn part(range: VaRange, offset_bytes: u64, size_bytes: u64) -> VaRange {
    VaRange { start: range.start.offset(offset_bytes), size_bytes }
}

/// Copies all of `source` out.
pub(crate) fn swap_out(source: VaRange, target: HostPtr) -> Copy {
    Copy::DeviceToHost { source: source.start, target, size_bytes: source.size_bytes }
}

/// Copies all of `target` in.
pub(crate) fn swap_in(source: HostPtr, target: VaRange) -> Copy {
    Copy::HostToDevice { source, target: target.start, size_bytes: target.size_bytes }
}

/// The call went through.
#[track_caller]
pub(crate) fn passes(outcome: Outcome) {
    if let Err(error) = outcome {
        panic!("refused: {error}");
    }
}

/// The call was refused for want of order.
#[track_caller]
pub(crate) fn races(outcome: Outcome) {
    refused(outcome, ErrorKind::Race);
}

/// The call was refused for its arguments.
#[track_caller]
pub(crate) fn is_invalid(outcome: Outcome) {
    refused(outcome, ErrorKind::Invalid);
}

#[track_caller]
fn refused(outcome: Outcome, kind: ErrorKind) {
    let error = outcome.expect_err("went through");
    assert_eq!(error.kind, kind, "{error}");
}
