//! The device pool on a device without virtual memory: blocks of all sizes on two streams come and
//! go under the cap. The order checker judges reuse and giving back, the ledger the cap.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::devices::{CheckConfig, CheckDriver, FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, DeviceMemory, DevicePtr, Driver, ErrorKind,
    MemoryError, PoolConfig, StreamId,
};

const GRANULARITY: u64 = 4096;
const SEGMENT: u64 = 16_384;
/// Not a multiple of the segment: the last segments are shorter.
const LIMIT: u64 = 100 << 10;
const SIZES: [u64; 7] = [1, 700, 5000, 8192, 12_000, 20_000, 40_000];

#[derive(Clone, Debug)]
pub(super) enum Call {
    Allocate(usize, usize),
    Free(prop::sample::Index),
    Use(prop::sample::Index),
    Trim,
}

pub(super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let at = any::<prop::sample::Index>;
    let call = prop_oneof![
        8 => (0..SIZES.len(), 0usize..2).prop_map(|(size, on)| Call::Allocate(size, on)),
        6 => at().prop_map(Call::Free),
        6 => at().prop_map(Call::Use),
        1 => Just(Call::Trim),
    ];
    prop::collection::vec(call, 1..150)
}

#[derive(Default, Debug)]
pub(super) struct Tally {
    allocated: u64,
    large: u64,
    full: u64,
    made_room: u64,
    short_segments: u64,
    trimmed: u64,
}

struct Block {
    id: BlockId,
    start: DevicePtr,
    size_bytes: u64,
    stream: StreamId,
}

struct Bench {
    host: Arc<HostDriver>,
    check: Arc<CheckDriver>,
    memory: DeviceMemory,
    streams: [StreamId; 2],
    live: Vec<Block>,
    tally: Tally,
}

fn fail<T>(error: impl std::fmt::Display) -> Result<T, TestCaseError> {
    Err(TestCaseError::fail(error.to_string()))
}

fn plain(seed: u64) -> HostConfig {
    HostConfig {
        granularity_bytes: GRANULARITY,
        has_virtual_memory: false,
        ..HostConfig::lockstep(2 * LIMIT, seed)
    }
}

fn open(driver: Arc<dyn Driver>) -> DeviceMemory {
    let pool =
        PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: 8192, segment_bytes: SEGMENT };
    let arena = ArenaConfig { region_bytes: 4096, ..ArenaConfig::new(0) };
    DeviceMemory::new(driver, pool, arena).expect("opens")
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let host = HostDriver::new(plain(seed)).expect("opens");
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let mut memory = open(check.clone());
        let streams = [(); 2].map(|()| memory.streams.create().expect("a stream"));
        Bench { host, check, memory, streams, live: Vec::new(), tally: Tally::default() }
    }

    fn use_(&mut self, at: usize) -> Result<(), TestCaseError> {
        let &Block { id, start, size_bytes, stream } = &self.live[at];
        let access = Access { start, size_bytes, mode: AccessMode::Write };
        let handle = self.memory.streams.handle(stream);
        self.check.note_access(handle, &[access]).or_else(fail)?;
        let point = self.memory.streams.advance(stream);
        self.memory.pool.note_use(id, point);
        Ok(())
    }

    fn allocate(&mut self, size: usize, on: usize) -> Result<(), TestCaseError> {
        let (size_bytes, stream) = (SIZES[size], self.streams[on]);
        let least_bytes = size_bytes.next_multiple_of(GRANULARITY);
        let before = self.host.ledger();
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        match pool.allocate(streams, size_bytes, stream) {
            Ok(id) => {
                let start = pool.address(id);
                prop_assert!(!pool.is_swappable(id));
                prop_assert_eq!(pool.mapped_address(id), Some(start));
                for other in &self.live {
                    let apart = start.0 + size_bytes <= other.start.0
                        || other.start.0 + other.size_bytes <= start.0;
                    prop_assert!(apart, "two blocks share bytes");
                }
                self.live.push(Block { id, start, size_bytes, stream });
                let after = self.host.ledger();
                let grew = after.chunk_bytes.saturating_sub(before.chunk_bytes);
                self.tally.allocated += 1;
                self.tally.large += u64::from(size_bytes >= 8192);
                self.tally.made_room += u64::from(after.chunk_count < before.chunk_count);
                self.tally.short_segments += u64::from(0 < grew && grew < SEGMENT);
                // It may be written at once on its own stream.
                self.use_(self.live.len() - 1)?;
            }
            Err(MemoryError::DeviceFull { missing_bytes, limit_bytes }) => {
                // All that is left holds blocks, and there is no room beside it.
                let held = self.host.ledger().chunk_bytes;
                prop_assert_eq!((limit_bytes, missing_bytes), (LIMIT, held + least_bytes - LIMIT));
                prop_assert!(missing_bytes > 0);
                prop_assert!(self.host.ledger().chunk_count <= self.live.len() as u64);
                self.tally.full += 1;
            }
            Err(error) => return fail(error),
        }
        Ok(())
    }

    fn step(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match call {
            Call::Allocate(size, on) => self.allocate(*size, *on)?,
            Call::Trim => {
                let DeviceMemory { pool, streams, .. } = &mut self.memory;
                pool.trim(streams).or_else(fail)?;
                prop_assert!(self.host.ledger().chunk_count <= self.live.len() as u64);
                self.tally.trimmed += 1;
            }
            _ if self.live.is_empty() => {}
            Call::Free(at) => {
                let block = self.live.swap_remove(at.index(self.live.len()));
                self.memory.pool.free(block.id);
            }
            Call::Use(at) => self.use_(at.index(self.live.len()))?,
        }
        let (ledger, stats) = (self.host.ledger(), self.memory.pool.stats());
        prop_assert!(ledger.chunk_bytes_peak <= LIMIT);
        prop_assert_eq!(stats.reserved_bytes.current, ledger.chunk_bytes);
        prop_assert_eq!(stats.reserved_bytes.peak, ledger.chunk_bytes_peak);
        prop_assert_eq!(stats.segment_bytes.current, ledger.chunk_bytes);
        let requested: u64 = self.live.iter().map(|block| block.size_bytes).sum();
        prop_assert_eq!(stats.requested_bytes.current, requested);
        prop_assert_eq!(self.check.violation_count(), 0);
        Ok(())
    }
}

fn run(seed: u64, calls: &[Call]) -> Result<Tally, TestCaseError> {
    run_with(seed, calls, |_| ())
}

/// Runs the calls on memory that `prepare` has seen first.
pub(super) fn run_with(
    seed: u64,
    calls: &[Call],
    prepare: impl FnOnce(&mut DeviceMemory),
) -> Result<Tally, TestCaseError> {
    let mut bench = Bench::new(seed);
    prepare(&mut bench.memory);
    for call in calls {
        bench.step(call)?;
    }
    let Bench { host, check, memory, tally, .. } = bench;
    drop(memory);
    prop_assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    prop_assert_eq!(check.violation_count(), 0);
    Ok(tally)
}

#[test]
fn without_virtual_memory_all_blocks_are_pieces_and_the_cap_holds() {
    let config = Runs { cases: 1000, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let all = RefCell::new(Vec::new());
    let result = TestRunner::new_with_rng(config, rng).run(&(any::<u64>(), calls()), |case| {
        all.borrow_mut().push(run(case.0, &case.1)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let all = all.into_inner();
    let sum = |of: &dyn Fn(&Tally) -> u64| all.iter().map(of).sum::<u64>();
    let counts = [
        ("allocated", sum(&|it| it.allocated)),
        ("large", sum(&|it| it.large)),
        ("full", sum(&|it| it.full)),
        ("made room", sum(&|it| it.made_room)),
        ("short segments", sum(&|it| it.short_segments)),
        ("trimmed", sum(&|it| it.trimmed)),
    ];
    println!("{counts:?}");
    for (what, count) in counts {
        assert!(count > 50, "{what}: {count}");
    }
}

#[test]
fn a_segment_that_the_driver_does_not_take_back_stays_counted_and_serves() {
    let host = HostDriver::new(plain(1)).expect("opens");
    let fault = Arc::new(FaultDriver::new(host.clone()));
    let mut memory = open(fault.clone());
    let stream = memory.streams.create().expect("a stream");
    let block = memory.pool.allocate(&mut memory.streams, 9000, stream).expect("there is room");
    let start = memory.pool.address(block);
    memory.pool.free(block);

    fault.arm(FaultPlan::once(1, ErrorKind::Failed).only("free_device"));
    let refused = memory.pool.trim(&mut memory.streams).expect_err("the call failed");
    assert_eq!((refused.call, refused.kind), ("free_device", ErrorKind::Failed));
    assert_eq!(memory.pool.held_bytes(), SEGMENT);
    assert_eq!(host.ledger().chunk_bytes, SEGMENT);
    let again = memory.pool.allocate(&mut memory.streams, 9000, stream).expect("it is there");
    assert_eq!(memory.pool.address(again), start);
    memory.pool.free(again);
    memory.pool.trim(&mut memory.streams).expect("the driver takes it now");
    assert_eq!((memory.pool.held_bytes(), host.ledger().chunk_count), (0, 0));
}

#[test]
fn a_device_with_less_than_the_cap_gives_what_it_has() {
    let small = HostConfig { capacity_bytes: 3 * GRANULARITY, ..plain(1) };
    let host = HostDriver::new(small).expect("opens");
    let mut memory = open(host.clone());
    let stream = memory.streams.create().expect("a stream");
    // No whole segment fits, but the block does.
    let block = memory.pool.allocate(&mut memory.streams, 9000, stream).expect("it just fits");
    assert_eq!(host.ledger().chunk_bytes, 3 * GRANULARITY);
    let full = memory.pool.allocate(&mut memory.streams, 9000, stream).expect_err("all is taken");
    let limit_bytes = LIMIT;
    let missing_bytes = 3 * GRANULARITY;
    assert_eq!(full, MemoryError::DeviceFull { missing_bytes, limit_bytes });
    memory.pool.free(block);
    drop(memory);
    assert!(host.ledger().is_empty(), "{:?}", host.ledger());
}
