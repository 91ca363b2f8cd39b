//! The wrappers on the host driver: a swap pipeline that really runs, with every wait taken away
//! in turn and every call failed in turn.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use npu_sys::devices::{
    CheckConfig, CheckDriver, FaultDriver, FaultPlan, HostConfig, HostDriver, Lasting, RecordDriver,
};
use npu_sys::{
    Access, AccessMode, ChunkHandle, Copy, Driver, DriverError, ErrorKind, EventHandle, EventKind,
    HostFunction, HostPtr, Operands, StreamHandle, VaRange,
};

const CAPACITY_BYTES: u64 = 1 << 20;
const SIZE_BYTES: u64 = 64 << 10;
const ROUNDS: u64 = 4;
/// Waits between streams in all rounds.
const WAITS: u64 = 3 * ROUNDS;

/// Checker over fault over record over host.
struct Stack {
    host: Arc<HostDriver>,
    record: Arc<RecordDriver>,
    fault: Arc<FaultDriver>,
    check: Arc<CheckDriver>,
}

impl Stack {
    fn new(config: HostConfig) -> Stack {
        let host = HostDriver::new(config).unwrap();
        let record = Arc::new(RecordDriver::new(Arc::clone(&host) as Arc<dyn Driver>));
        let fault = Arc::new(FaultDriver::new(Arc::clone(&record) as Arc<dyn Driver>));
        let inner = Arc::clone(&fault) as Arc<dyn Driver>;
        let check = Arc::new(CheckDriver::new(inner, CheckConfig::ALL));
        Stack { host, record, fault, check }
    }
}

/// What a script holds, to be given back whatever happened.
struct Script<'a> {
    driver: &'a dyn Driver,
    /// The wait to leave out, from 0.
    left_out: Option<u64>,
    waits: u64,
    streams: Vec<StreamHandle>,
    events: Vec<EventHandle>,
    ranges: Vec<VaRange>,
    mapped: Vec<VaRange>,
    chunks: Vec<ChunkHandle>,
    pinned: Vec<HostPtr>,
    /// Numbers that came through the whole pipeline unharmed.
    right: Arc<AtomicU64>,
}

impl<'a> Script<'a> {
    fn new(driver: &'a dyn Driver, left_out: Option<u64>) -> Script<'a> {
        Script {
            driver,
            left_out,
            waits: 0,
            streams: Vec::new(),
            events: Vec::new(),
            ranges: Vec::new(),
            mapped: Vec::new(),
            chunks: Vec::new(),
            pinned: Vec::new(),
            right: Arc::default(),
        }
    }

    /// Numbers written on the compute stream go to a pinned slot on the out stream, by another
    /// address of their chunk, and come back to another chunk on the in stream.
    fn run(&mut self) -> Result<(), DriverError> {
        let [compute, out, back] = [self.stream()?, self.stream()?, self.stream()?];
        let [produced, copied, filled] = [self.event()?, self.event()?, self.event()?];
        let (first, second) = (self.chunk()?, self.chunk()?);
        let (source, home, target) = (self.map(first)?, self.map(first)?, self.map(second)?);
        let slot = self.driver.allocate_pinned(SIZE_BYTES)?;
        self.pinned.push(slot);
        for round in 0..ROUNDS {
            self.produce(compute, source, round)?;
            self.driver.record_event(produced, compute)?;
            self.wait(out, produced)?;
            let (source, size_bytes) = (home.start, SIZE_BYTES);
            self.copy(out, Copy::DeviceToHost { source, target: slot, size_bytes })?;
            self.driver.record_event(copied, out)?;
            self.wait(back, copied)?;
            let target_start = target.start;
            self.copy(back, Copy::HostToDevice { source: slot, target: target_start, size_bytes })?;
            self.driver.record_event(filled, back)?;
            self.wait(compute, filled)?;
            self.compare(compute, target, round)?;
        }
        self.driver.synchronize_event(filled)?;
        self.driver.synchronize_stream(compute)
    }

    fn produce(&self, stream: StreamHandle, range: VaRange, round: u64) -> Result<(), DriverError> {
        let body = move |operands: &Operands<'_>| operands.write::<u64>(0).fill(round + 1);
        self.launch(stream, "produce", range, AccessMode::Write, Box::new(body))
    }

    fn compare(&self, stream: StreamHandle, range: VaRange, round: u64) -> Result<(), DriverError> {
        let right = Arc::clone(&self.right);
        let body = move |operands: &Operands<'_>| {
            let equal = operands.read::<u64>(0).iter().filter(|&&value| value == round + 1);
            right.fetch_add(equal.count() as u64, Ordering::SeqCst);
        };
        self.launch(stream, "compare", range, AccessMode::Read, Box::new(body))
    }

    fn launch(
        &self,
        stream: StreamHandle,
        name: &'static str,
        range: VaRange,
        mode: AccessMode,
        body: Box<dyn FnOnce(&Operands<'_>) + Send>,
    ) -> Result<(), DriverError> {
        let accesses = vec![Access { start: range.start, size_bytes: range.size_bytes, mode }];
        let function = HostFunction { name, accesses, cost_us: 10.0, body };
        // SAFETY: the range is mapped until `give_back`, which waits; the checker in front of
        // the device refuses what is not ordered.
        unsafe { self.driver.launch_host(function, stream) }
    }

    fn copy(&self, stream: StreamHandle, copy: Copy) -> Result<(), DriverError> {
        // SAFETY: range and slot live until `give_back`, which waits; the checker in front of
        // the device refuses what is not ordered.
        unsafe { self.driver.copy(copy, stream) }
    }

    fn wait(&mut self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let number = self.waits;
        self.waits += 1;
        if self.left_out == Some(number) {
            return Ok(());
        }
        self.driver.wait_event(stream, event)
    }

    fn stream(&mut self) -> Result<StreamHandle, DriverError> {
        self.streams.push(self.driver.create_stream()?);
        Ok(self.streams[self.streams.len() - 1])
    }

    fn event(&mut self) -> Result<EventHandle, DriverError> {
        self.events.push(self.driver.create_event(EventKind::Order)?);
        Ok(self.events[self.events.len() - 1])
    }

    fn chunk(&mut self) -> Result<ChunkHandle, DriverError> {
        self.chunks.push(self.driver.create_chunk(SIZE_BYTES)?);
        Ok(self.chunks[self.chunks.len() - 1])
    }

    fn map(&mut self, chunk: ChunkHandle) -> Result<VaRange, DriverError> {
        let range = self.driver.reserve(SIZE_BYTES)?;
        self.ranges.push(range);
        self.driver.map(range, chunk)?;
        self.mapped.push(range);
        self.driver.set_access(range)?;
        Ok(range)
    }

    /// Gives back what is held. What could not be given back stays, to be tried again.
    fn give_back(&mut self) -> Result<(), DriverError> {
        for &stream in &self.streams {
            self.driver.synchronize_stream(stream)?;
        }
        while let Some(&range) = self.mapped.last() {
            // SAFETY: all streams were waited for just now.
            unsafe { self.driver.unmap(range) }?;
            self.mapped.pop();
        }
        while let Some(&range) = self.ranges.last() {
            self.driver.free_range(range)?;
            self.ranges.pop();
        }
        while let Some(&chunk) = self.chunks.last() {
            self.driver.release_chunk(chunk)?;
            self.chunks.pop();
        }
        while let Some(&start) = self.pinned.last() {
            // SAFETY: all streams were waited for just now.
            unsafe { self.driver.free_pinned(start) }?;
            self.pinned.pop();
        }
        while let Some(&event) = self.events.last() {
            self.driver.destroy_event(event)?;
            self.events.pop();
        }
        while let Some(&stream) = self.streams.last() {
            self.driver.destroy_stream(stream)?;
            self.streams.pop();
        }
        Ok(())
    }
}

/// Real threads, and several orders that the streams allow.
fn configs() -> impl Iterator<Item = HostConfig> {
    let lockstep = (0..20).map(|seed| HostConfig::lockstep(CAPACITY_BYTES, seed));
    let threads = [HostConfig::threads(CAPACITY_BYTES), HostConfig::by_time(CAPACITY_BYTES)];
    threads.into_iter().chain(lockstep)
}

#[test]
fn an_ordered_pipeline_passes_and_its_numbers_are_right() {
    for config in configs() {
        let stack = Stack::new(config);
        let mut script = Script::new(&*stack.check, None);
        script.run().unwrap();
        assert_eq!(script.right.load(Ordering::SeqCst), ROUNDS * SIZE_BYTES / 8);
        script.give_back().unwrap();
        assert_eq!((stack.check.waits_seen(), stack.check.violation_count()), (WAITS, 0));
        assert_eq!(stack.check.accesses_checked(), 6 * ROUNDS);
        assert_eq!(stack.record.count("copy"), 2 * ROUNDS);
        assert_eq!(stack.record.total(), stack.fault.calls());
        assert!(stack.host.ledger().is_empty(), "{:?}", stack.host.ledger());
    }
}

#[test]
fn without_any_one_wait_the_pipeline_is_refused_in_every_order() {
    for config in configs() {
        for left_out in 0..WAITS {
            let stack = Stack::new(config.clone());
            let mut script = Script::new(&*stack.check, Some(left_out));
            let error = script.run().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Race, "{error}");
            assert_eq!(script.waits, left_out + 1, "found at the first call after it");
            assert_eq!(stack.check.violation_count(), 1);
            script.give_back().unwrap();
            assert!(stack.host.ledger().is_empty());
        }
    }
}

#[test]
fn whichever_call_fails_all_is_given_back_and_nothing_is_unordered() {
    let stack = Stack::new(HostConfig::lockstep(CAPACITY_BYTES, 1));
    let mut script = Script::new(&*stack.check, None);
    script.run().unwrap();
    script.give_back().unwrap();
    let (calls, names) = (stack.fault.calls(), stack.fault.calls_by_name());
    assert!(calls > 60 && names.len() == 19, "{calls} {names:?}");

    for lasting in [Lasting::Once, Lasting::ForGood] {
        let mut hit = BTreeSet::new();
        for call in 1..=calls {
            let stack = Stack::new(HostConfig::lockstep(CAPACITY_BYTES, call));
            let kind = ErrorKind::Failed;
            stack.fault.arm(FaultPlan { call, lasting, kind, only: None });
            let mut script = Script::new(&*stack.check, None);
            let outcome = script.run();
            let given_back = script.give_back();
            assert_eq!(outcome.and(given_back).unwrap_err().kind, kind, "call {call}");
            hit.extend(stack.fault.hits().into_keys());
            stack.fault.disarm();
            script.give_back().unwrap();
            assert_eq!(stack.check.violations(), [], "call {call}");
            assert!(stack.host.ledger().is_empty(), "call {call}: {:?}", stack.host.ledger());
        }
        assert!(hit.into_iter().eq(names.keys().copied()), "every call site was reached");
    }
}
