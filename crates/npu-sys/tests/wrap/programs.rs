//! Random stream programs. A judge that knows no clocks, only a graph of what waits for what and
//! the accesses to each byte, must agree with the checker on every call.

mod oracle;

use std::sync::atomic::Ordering;

use npu_sys::devices::Violation;
use npu_sys::{
    Access, AccessMode, ChunkHandle, Copy, DevicePtr, ErrorKind, EventHandle, HostPtr,
    StreamHandle, VaRange,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use self::oracle::{Byte, Oracle, Use, Verdict};
use super::bench::{Bench, Outcome};

/// Bytes of a chunk, a range and a slot: few, so that accesses often meet.
const SIZE_BYTES: u64 = 16;
const STREAMS: usize = 4;
const EVENTS: usize = 3;
const CHUNKS: usize = 3;
const WINDOWS: usize = 5;
const SLOTS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    Launch { stream: usize, accesses: Vec<(u64, u64, AccessMode)> },
    Note { stream: usize, accesses: Vec<(u64, u64, AccessMode)> },
    SwapOut { stream: usize, source: u64, slot: usize, offset: u64, size: u64 },
    SwapIn { stream: usize, slot: usize, offset: u64, target: u64, size: u64 },
    ReadSlotOnDevice { stream: usize, slot: usize },
    Record { event: usize, stream: usize },
    Wait { stream: usize, event: usize },
    Query { event: usize, complete: bool },
    SynchronizeEvent { event: usize },
    SynchronizeStream { stream: usize },
    ReplaceStream { stream: usize },
    ReplaceEvent { event: usize },
    Unmap { window: usize },
    Map { window: usize, chunk: usize },
    ReplaceChunk { chunk: usize },
    ReplaceSlot { slot: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop_oneof![
        3 => Just(AccessMode::Read),
        2 => Just(AccessMode::Write),
        1 => Just(AccessMode::ReadWrite),
    ];
    let address = 0..WINDOWS as u64 * SIZE_BYTES;
    let accesses = prop::collection::vec((address.clone(), 1..24_u64, mode), 1..3);
    let (stream, event, slot) = (0..STREAMS, 0..EVENTS, 0..SLOTS);
    let (offset, size) = (0..SIZE_BYTES, 1..SIZE_BYTES);
    prop_oneof![
        10 => (stream.clone(), accesses.clone())
            .prop_map(|(stream, accesses)| Step::Launch { stream, accesses }),
        3 => (stream.clone(), accesses)
            .prop_map(|(stream, accesses)| Step::Note { stream, accesses }),
        4 => (stream.clone(), address.clone(), slot.clone(), offset.clone(), size.clone())
            .prop_map(|(stream, source, slot, offset, size)|
                Step::SwapOut { stream, source, slot, offset, size }),
        4 => (stream.clone(), slot.clone(), offset, address, size)
            .prop_map(|(stream, slot, offset, target, size)|
                Step::SwapIn { stream, slot, offset, target, size }),
        2 => (stream.clone(), slot.clone())
            .prop_map(|(stream, slot)| Step::ReadSlotOnDevice { stream, slot }),
        9 => (event.clone(), stream.clone())
            .prop_map(|(event, stream)| Step::Record { event, stream }),
        12 => (stream.clone(), event.clone())
            .prop_map(|(stream, event)| Step::Wait { stream, event }),
        4 => (event.clone(), any::<bool>())
            .prop_map(|(event, complete)| Step::Query { event, complete }),
        2 => event.clone().prop_map(|event| Step::SynchronizeEvent { event }),
        2 => stream.clone().prop_map(|stream| Step::SynchronizeStream { stream }),
        2 => stream.prop_map(|stream| Step::ReplaceStream { stream }),
        1 => event.prop_map(|event| Step::ReplaceEvent { event }),
        4 => (0..WINDOWS).prop_map(|window| Step::Unmap { window }),
        8 => (0..WINDOWS, 0..CHUNKS).prop_map(|(window, chunk)| Step::Map { window, chunk }),
        2 => (0..CHUNKS).prop_map(|chunk| Step::ReplaceChunk { chunk }),
        2 => slot.prop_map(|slot| Step::ReplaceSlot { slot }),
    ]
}

/// The bytes of each access, `None` if some cannot be reached, and how they are used.
type Uses = Vec<(Option<Vec<Byte>>, AccessMode)>;

/// The driver's handles, and what each stands for in the judge's eyes.
struct World {
    bench: Bench,
    oracle: Oracle,
    streams: [StreamHandle; STREAMS],
    events: [EventHandle; EVENTS],
    chunks: [(ChunkHandle, u64); CHUNKS],
    /// One behind the other, without a gap.
    ranges: [VaRange; WINDOWS],
    /// The chunk behind each range, and the number of this mapping.
    mapped: [Option<(usize, u64)>; WINDOWS],
    slots: [(HostPtr, u64); SLOTS],
    names: u64,
    tally: Tally,
}

#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    work_passed: u64,
    work_raced: u64,
    teardown_passed: u64,
    teardown_raced: u64,
    invalid: u64,
}

impl World {
    fn new() -> World {
        let bench = Bench::new();
        let ranges = std::array::from_fn(|_| bench.reserve(SIZE_BYTES));
        let mut world = World {
            streams: bench.streams(),
            events: std::array::from_fn(|_| bench.event()),
            chunks: [(ChunkHandle(0), 0); CHUNKS],
            ranges,
            mapped: [None; WINDOWS],
            slots: [(HostPtr(0), 0); SLOTS],
            bench,
            oracle: Oracle::new(),
            names: 0,
            tally: Tally::default(),
        };
        for chunk in 0..CHUNKS {
            world.create_chunk(chunk);
            world.map(chunk, chunk);
        }
        // An alias of the first chunk.
        world.map(CHUNKS, 0);
        (0..SLOTS).for_each(|slot| world.create_slot(slot));
        world
    }

    /// A number for something that is new, even if its handle is not.
    fn name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    fn create_chunk(&mut self, chunk: usize) {
        self.chunks[chunk] = (self.bench.create_chunk(SIZE_BYTES), self.name());
    }

    fn create_slot(&mut self, slot: usize) {
        let start = self.bench.allocate_pinned(SIZE_BYTES);
        self.bench.device_pointer(start);
        self.slots[slot] = (start, self.name());
    }

    fn map(&mut self, window: usize, chunk: usize) {
        if self.mapped[window].is_none() {
            self.bench.map(self.ranges[window], self.chunks[chunk].0);
            self.mapped[window] = Some((chunk, self.name()));
        }
    }

    /// The bytes at `size` addresses from the `start`-th of all ranges; `None` if one is missing.
    fn device_bytes(&self, start: u64, size: u64) -> Option<Vec<Byte>> {
        let byte = |address: u64| {
            let window = (address / SIZE_BYTES) as usize;
            let (chunk, mapping) = (*self.mapped.get(window)?)?;
            let memory = self.chunks[chunk].1;
            Some(Byte { memory, offset: address % SIZE_BYTES, mapping: Some(mapping) })
        };
        (start..start + size).map(byte).collect()
    }

    fn slot_bytes(&self, slot: usize, offset: u64, size: u64) -> Option<Vec<Byte>> {
        let byte = |offset| Byte { memory: self.slots[slot].1, offset, mapping: None };
        (offset + size <= SIZE_BYTES).then(|| (offset..offset + size).map(byte).collect())
    }

    fn address(&self, start: u64) -> DevicePtr {
        self.ranges[0].start.offset(start)
    }

    /// Compares verdicts on a piece of work whose call returned `outcome`.
    fn judge_work(&mut self, stream: usize, uses: Uses, disjoint: bool, outcome: Outcome) {
        let stream = self.streams[stream];
        let uses: Vec<Use> =
            uses.into_iter().map(|(bytes, mode)| Use { bytes, writes: mode.writes() }).collect();
        let verdict = self.oracle.work(stream, &uses, disjoint);
        let kind = outcome.err().map(|error| error.kind);
        match &verdict {
            Verdict { unreachable: false, conflicts } if conflicts.is_empty() => {
                assert_eq!(kind, None, "refused without a reason");
                self.tally.work_passed += 1;
            }
            Verdict { unreachable: true, conflicts } if conflicts.is_empty() => {
                assert_eq!(kind, Some(ErrorKind::Invalid));
                self.tally.invalid += 1;
            }
            Verdict { unreachable, .. } => match kind {
                Some(ErrorKind::Race) => {
                    self.assert_is_named(&verdict);
                    self.tally.work_raced += 1;
                }
                Some(ErrorKind::Invalid) if *unreachable => self.tally.invalid += 1,
                other => panic!("expected a race, got {other:?}"),
            },
        }
    }

    /// The two accesses that the checker names do conflict.
    fn assert_is_named(&self, verdict: &Verdict) {
        let violation = self.bench.check.violations().pop();
        let Some(Violation::Race { earlier, shared_bytes, .. }) = violation else {
            panic!("no race was kept: {violation:?}");
        };
        for byte in shared_bytes {
            let named = (earlier.stream, byte);
            assert!(verdict.conflicts.contains(&named), "{named:?} is not in {verdict:?}");
        }
    }

    /// Compares verdicts on giving back; whether it was done.
    fn judge_teardown(&mut self, idle: bool, legal: bool, outcome: Outcome) -> bool {
        let kind = outcome.err().map(|error| error.kind);
        let expected = match (idle, legal) {
            (false, _) => Some(ErrorKind::Race),
            (true, false) => Some(ErrorKind::Invalid),
            (true, true) => None,
        };
        assert_eq!(kind, expected);
        match kind {
            None => self.tally.teardown_passed += 1,
            Some(ErrorKind::Race) => self.tally.teardown_raced += 1,
            Some(_) => self.tally.invalid += 1,
        }
        kind.is_none()
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Launch { stream, ref accesses } => {
                let (declared, uses) = self.declare(accesses);
                let outcome = self.bench.launch(self.streams[stream], "kernel", &declared);
                self.judge_work(stream, uses, true, outcome);
            }
            Step::Note { stream, ref accesses } => {
                let (declared, uses) = self.declare(accesses);
                let outcome = self.bench.note(self.streams[stream], &declared);
                self.judge_work(stream, uses, false, outcome);
            }
            Step::SwapOut { stream, source, slot, offset, size: size_bytes } => {
                let target = self.slots[slot].0.offset(offset);
                let copy = Copy::DeviceToHost { source: self.address(source), target, size_bytes };
                let uses = vec![
                    (self.device_bytes(source, size_bytes), AccessMode::Read),
                    (self.slot_bytes(slot, offset, size_bytes), AccessMode::Write),
                ];
                let outcome = self.bench.copy(self.streams[stream], copy);
                self.judge_work(stream, uses, true, outcome);
            }
            Step::SwapIn { stream, slot, offset, target, size: size_bytes } => {
                let source = self.slots[slot].0.offset(offset);
                let copy = Copy::HostToDevice { source, target: self.address(target), size_bytes };
                let uses = vec![
                    (self.slot_bytes(slot, offset, size_bytes), AccessMode::Read),
                    (self.device_bytes(target, size_bytes), AccessMode::Write),
                ];
                let outcome = self.bench.copy(self.streams[stream], copy);
                self.judge_work(stream, uses, true, outcome);
            }
            Step::ReadSlotOnDevice { stream, slot } => {
                let start = self.bench.device_pointer(self.slots[slot].0);
                let mode = AccessMode::Read;
                let access = Access { start, size_bytes: SIZE_BYTES, mode };
                let outcome = self.bench.launch(self.streams[stream], "kernel", &[access]);
                let uses = vec![(self.slot_bytes(slot, 0, SIZE_BYTES), mode)];
                self.judge_work(stream, uses, true, outcome);
            }
            _ => self.run_order(step),
        }
    }

    fn run_order(&mut self, step: &Step) {
        match *step {
            Step::Record { event, stream } => {
                self.bench.record(self.events[event], self.streams[stream]);
                self.oracle.record(self.events[event], self.streams[stream]);
            }
            Step::Wait { stream, event } => {
                self.bench.wait(self.streams[stream], self.events[event]);
                self.oracle.wait(self.streams[stream], self.events[event]);
            }
            Step::Query { event, complete } => {
                self.bench.fake.complete.store(complete, Ordering::SeqCst);
                assert_eq!(self.bench.query(self.events[event]), complete);
                if complete {
                    self.oracle.host_waits_for_event(self.events[event]);
                }
            }
            Step::SynchronizeEvent { event } => {
                self.bench.synchronize_event(self.events[event]);
                self.oracle.host_waits_for_event(self.events[event]);
            }
            Step::SynchronizeStream { stream } => {
                self.bench.synchronize(self.streams[stream]);
                self.oracle.host_waits_for_stream(self.streams[stream]);
            }
            _ => self.run_memory(step),
        }
    }

    fn run_memory(&mut self, step: &Step) {
        match *step {
            Step::ReplaceStream { stream } => {
                self.oracle.destroy_stream(self.streams[stream]);
                self.streams[stream] = self.bench.replace_stream(self.streams[stream]);
            }
            Step::ReplaceEvent { event } => {
                self.oracle.destroy_event(self.events[event]);
                self.events[event] = self.bench.replace_event(self.events[event]);
            }
            Step::Unmap { window } => {
                let outcome = self.bench.unmap(self.ranges[window]);
                let mapping = self.mapped[window].map(|(_, mapping)| mapping);
                let idle = mapping.is_none_or(|mapping| self.oracle.is_mapping_idle(mapping));
                if self.judge_teardown(idle, mapping.is_some(), outcome) {
                    self.mapped[window] = None;
                }
            }
            Step::Map { window, chunk } => self.map(window, chunk),
            Step::ReplaceChunk { chunk } => {
                let (handle, memory) = self.chunks[chunk];
                let outcome = self.bench.release(handle);
                let is_mapped = self.mapped.iter().flatten().any(|&(other, _)| other == chunk);
                let idle = self.oracle.is_memory_idle(memory);
                if self.judge_teardown(idle, !is_mapped, outcome) {
                    self.create_chunk(chunk);
                }
            }
            Step::ReplaceSlot { slot } => {
                let (start, memory) = self.slots[slot];
                let outcome = self.bench.free_pinned(start);
                if self.judge_teardown(self.oracle.is_memory_idle(memory), true, outcome) {
                    self.create_slot(slot);
                }
            }
            _ => unreachable!("`run` and `run_order` do the others"),
        }
    }

    fn declare(&self, accesses: &[(u64, u64, AccessMode)]) -> (Vec<Access>, Uses) {
        let declared = |&(start, size_bytes, mode): &(u64, u64, AccessMode)| Access {
            start: self.address(start),
            size_bytes,
            mode,
        };
        let used =
            |&(start, size, mode): &(u64, u64, AccessMode)| (self.device_bytes(start, size), mode);
        (accesses.iter().map(declared).collect(), accesses.iter().map(used).collect())
    }
}

#[test]
fn the_checker_agrees_with_reachability_on_random_programs() {
    let config = Config { cases: 1500, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let total = std::cell::Cell::new(Tally::default());
    let program = prop::collection::vec(step(), 20..150);
    let result = runner.run(&program, |program| {
        let mut world = World::new();
        program.iter().for_each(|step| world.run(step));
        let (sum, tally) = (total.get(), world.tally);
        total.set(Tally {
            work_passed: sum.work_passed + tally.work_passed,
            work_raced: sum.work_raced + tally.work_raced,
            teardown_passed: sum.teardown_passed + tally.teardown_passed,
            teardown_raced: sum.teardown_raced + tally.teardown_raced,
            invalid: sum.invalid + tally.invalid,
        });
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let tally = total.get();
    println!("{tally:?}");
    assert!(tally.work_passed > 5_000 && tally.work_raced > 5_000, "{tally:?}");
    assert!(tally.teardown_passed > 1_000 && tally.teardown_raced > 1_000, "{tally:?}");
    assert!(tally.invalid > 1_000, "{tally:?}");
}
