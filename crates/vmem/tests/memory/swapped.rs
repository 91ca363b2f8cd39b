//! Swapped memory: host memory that kernels use, on two streams, reused only after its last use.
//! Uses are told to the order checker; a simple model and the ledger judge the rest.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::devices::{CheckConfig, CheckDriver, FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{
    Access, AccessMode, ArenaConfig, DeviceMemory, DevicePtr, Driver, ErrorKind, HostMapping,
    MemoryError, Point, PoolConfig, Site, StreamId, SwappedBlock, Uses,
};

const PAGE: u64 = 4096;
const REGION: u64 = 8 * PAGE;
const ARENA: u64 = 24 * PAGE;
const BUDGET: u64 = 16 * PAGE;

fn open(driver: Arc<dyn Driver>) -> DeviceMemory {
    open_with(driver, ARENA)
}

/// With room for one page, so that the next block must take the place of the last.
fn open_tight(driver: Arc<dyn Driver>) -> DeviceMemory {
    open_with(driver, PAGE)
}

fn open_with(driver: Arc<dyn Driver>, arena_bytes: u64) -> DeviceMemory {
    let pool =
        PoolConfig { limit_bytes: 1 << 20, swap_threshold_bytes: 1 << 16, segment_bytes: 1 << 16 };
    let arena = ArenaConfig {
        region_bytes: REGION,
        swapped_limit_bytes: BUDGET,
        ..ArenaConfig::new(arena_bytes)
    };
    DeviceMemory::new(driver, pool, arena).expect("opens")
}

fn device(seed: u64) -> Arc<HostDriver> {
    HostDriver::new(HostConfig::lockstep(1 << 20, seed)).expect("opens")
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Allocate(u64, usize),
    Use(prop::sample::Index, usize, bool),
    Free(prop::sample::Index),
    /// A slot of the same arena comes and goes beside.
    Slot,
    Trim,
}

pub(super) fn calls() -> impl Strategy<Value = Vec<Call>> {
    let at = any::<prop::sample::Index>;
    let call = prop_oneof![
        6 => (0..5 * PAGE, 0usize..2).prop_map(|(size, on)| Call::Allocate(size, on)),
        8 => (at(), 0usize..2, any::<bool>()).prop_map(|(at, on, w)| Call::Use(at, on, w)),
        5 => at().prop_map(Call::Free),
        1 => Just(Call::Slot),
        1 => Just(Call::Trim),
    ];
    prop::collection::vec(call, 1..120)
}

#[derive(Default, Debug)]
pub(super) struct Tally {
    allocated: u64,
    over_budget: u64,
    reused: u64,
    uses: u64,
    waits: u64,
}

struct Live {
    block: SwappedBlock,
    uses: Uses,
}

struct Bench {
    host: Arc<HostDriver>,
    check: Arc<CheckDriver>,
    memory: DeviceMemory,
    streams: [StreamId; 2],
    live: Vec<Live>,
    freed: Vec<DevicePtr>,
    requested: Vec<u64>,
    tally: Tally,
}

fn fail<T>(error: impl std::fmt::Display) -> Result<T, TestCaseError> {
    Err(TestCaseError::fail(error.to_string()))
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let host = device(seed);
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let mut memory = open(check.clone());
        let streams = [(); 2].map(|()| memory.streams.create().expect("a stream"));
        Bench {
            host,
            check,
            memory,
            streams,
            live: Vec::new(),
            freed: Vec::new(),
            requested: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn used_bytes(&self) -> u64 {
        self.live.iter().map(|it| it.block.size_bytes()).sum()
    }

    /// Tells the checker that a kernel on the stream uses the block.
    fn launch(&mut self, at: usize, on: usize, write: bool) -> Result<(), TestCaseError> {
        let stream = self.streams[on];
        let Live { block, uses } = &mut self.live[at];
        let mode = if write { AccessMode::Write } else { AccessMode::Read };
        let access = Access { start: block.address(), size_bytes: block.size_bytes(), mode };
        self.check.note_access(self.memory.streams.handle(stream), &[access]).or_else(fail)?;
        uses.add(self.memory.streams.advance(stream));
        self.tally.uses += 1;
        Ok(())
    }

    fn allocate(&mut self, size_bytes: u64, on: usize) -> Result<(), TestCaseError> {
        let slot_bytes = size_bytes.max(1).next_multiple_of(PAGE);
        let fits = self.used_bytes() + slot_bytes <= BUDGET;
        match self.memory.allocate_swapped(size_bytes, self.streams[on]) {
            Ok(block) => {
                prop_assert!(fits);
                prop_assert_eq!(block.size_bytes(), slot_bytes);
                prop_assert_eq!(block.requested_bytes(), size_bytes);
                self.tally.reused += u64::from(self.freed.contains(&block.address()));
                self.tally.allocated += 1;
                self.live.push(Live { block, uses: Uses::default() });
                self.requested.push(size_bytes);
                // It may be written at once on its own stream.
                self.launch(self.live.len() - 1, on, true)
            }
            Err(MemoryError::SwappedFull { requested_bytes, used_bytes, limit_bytes }) => {
                prop_assert!(!fits);
                let used = self.used_bytes();
                prop_assert_eq!((requested_bytes, used_bytes), (size_bytes, used));
                prop_assert_eq!(limit_bytes, BUDGET);
                self.tally.over_budget += 1;
                Ok(())
            }
            // Regions that are whole elsewhere may leave no place, never a region's worth.
            Err(MemoryError::HostFull { .. }) => Ok(()),
            Err(error) => fail(error),
        }
    }

    fn step(&mut self, call: &Call) -> Result<(), TestCaseError> {
        match call {
            Call::Allocate(size_bytes, on) => self.allocate(*size_bytes, *on)?,
            Call::Slot => {
                if let Ok((slot, uses)) = self.memory.arena.take(3 * PAGE) {
                    let inside = DevicePtr(slot.start().0 + 1);
                    prop_assert!(!self.memory.swapped.is_swapped(inside), "slots are not swapped");
                    self.memory.arena.give_back(slot, uses);
                }
            }
            Call::Trim => {
                let DeviceMemory { arena, streams, .. } = &mut self.memory;
                arena.trim(streams).or_else(fail)?;
            }
            _ if self.live.is_empty() => {}
            Call::Use(at, on, write) => {
                let at = at.index(self.live.len());
                for &point in self.live[at].uses.clone().points() {
                    let stream = self.streams[*on];
                    let after = Site::TouchAfterArrival;
                    self.memory.streams.order_after(stream, point, after).or_else(fail)?;
                    self.tally.waits += 1;
                }
                self.launch(at, *on, *write)?;
            }
            Call::Free(at) => {
                let at = at.index(self.live.len());
                let Live { block, uses } = self.live.swap_remove(at);
                self.requested.swap_remove(at);
                self.freed.push(block.address());
                self.memory.free_swapped(block, uses);
            }
        }
        self.verdict()
    }

    fn verdict(&self) -> Result<(), TestCaseError> {
        let (swapped, stats) = (&self.memory.swapped, self.memory.swapped.stats());
        prop_assert_eq!(stats.blocks, self.live.len() as u64);
        prop_assert_eq!(stats.used_bytes.current, self.used_bytes());
        prop_assert_eq!(stats.requested_bytes.current, self.requested.iter().sum::<u64>());
        prop_assert_eq!(stats.allocations, self.tally.allocated);
        prop_assert!(stats.used_bytes.peak <= BUDGET);
        prop_assert_eq!(self.memory.arena.used_bytes().current, self.used_bytes());
        prop_assert_eq!(self.memory.pool.stats().requested_bytes.current, 0, "counted apart");
        prop_assert_eq!(self.host.ledger().chunk_bytes, 0);
        for Live { block, .. } in &self.live {
            for offset in [0, 1, block.size_bytes() - 1] {
                let address = block.address().offset(offset);
                prop_assert!(swapped.is_swapped(address));
                prop_assert_eq!(swapped.host_address(address), Some(block.host().offset(offset)));
            }
        }
        let is_live = |address: DevicePtr| {
            let covers = |it: &Live| {
                let start = it.block.address().0;
                (start..start + it.block.size_bytes()).contains(&address.0)
            };
            self.live.iter().any(covers)
        };
        for &address in &self.freed {
            prop_assert_eq!(swapped.is_swapped(address), is_live(address));
        }
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
    let trims = calls.iter().any(|call| matches!(call, Call::Trim));
    for call in calls {
        bench.step(call)?;
    }
    if !trims {
        prop_assert_eq!(bench.memory.streams.host_waits(), 0, "only streams wait");
    }
    for Live { block, uses } in bench.live.drain(..) {
        bench.memory.free_swapped(block, uses);
    }
    let Bench { host, check, memory, tally, .. } = bench;
    drop(memory);
    prop_assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    prop_assert_eq!(check.violation_count(), 0);
    Ok(tally)
}

#[test]
fn swapped_memory_agrees_with_a_simple_model_and_the_order_checker() {
    let config = Runs { cases: 800, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let all = RefCell::new(Vec::new());
    let result =
        TestRunner::new_with_rng(config, rng).run(&(any::<u64>(), calls()), |(seed, calls)| {
            all.borrow_mut().push(run(seed, &calls)?);
            Ok(())
        });
    if let Err(error) = result {
        panic!("{error}");
    }
    let all = all.into_inner();
    let sum = |of: &dyn Fn(&Tally) -> u64| all.iter().map(of).sum::<u64>();
    let counts = [
        ("allocated", sum(&|it| it.allocated)),
        ("over the budget", sum(&|it| it.over_budget)),
        ("reused", sum(&|it| it.reused)),
        ("uses", sum(&|it| it.uses)),
        ("waits", sum(&|it| it.waits)),
    ];
    println!("{counts:?}");
    for (what, count) in counts {
        assert!(count > 500, "{what}: {count}");
    }
}

/// A block is used on one stream, given back and taken on another, which waits or not.
fn reuse(waits: bool) -> Result<(), vmem::DriverError> {
    let host = device(3);
    let check = Arc::new(CheckDriver::new(host, CheckConfig::ORDER));
    let mut memory = open_tight(check.clone());
    let [first, second] = [(); 2].map(|()| memory.streams.create().expect("a stream"));
    let kernel = |memory: &mut DeviceMemory, block: &SwappedBlock, stream| -> Result<Point, _> {
        let (start, size_bytes) = (block.address(), block.size_bytes());
        let access = Access { start, size_bytes, mode: AccessMode::Write };
        check.note_access(memory.streams.handle(stream), &[access])?;
        Ok(memory.streams.advance(stream))
    };
    let block = memory.allocate_swapped(PAGE, first).expect("there is room");
    let used = kernel(&mut memory, &block, first)?;
    let address = block.address();
    memory.free_swapped(block, Uses::of(used));
    let block = if waits {
        memory.allocate_swapped(PAGE, second).expect("there is room")
    } else {
        let DeviceMemory { swapped, arena, .. } = &mut memory;
        let (block, uses) = swapped.take(arena, PAGE).expect("there is room");
        assert_eq!(uses, Uses::of(used), "whoever takes it is told whom to wait for");
        block
    };
    assert_eq!(block.address(), address, "it is reused at once");
    kernel(&mut memory, &block, second)?;
    assert_eq!(memory.streams.host_waits(), 0);
    Ok(())
}

#[test]
fn a_block_is_reused_at_once_but_after_its_last_use() {
    reuse(true).expect("the second stream waits for the first");
    let error = reuse(false).expect_err("the checker sees a wait that is missing");
    assert_eq!(error.kind, ErrorKind::Race);
}

fn device_with(host_mapping: HostMapping) -> Arc<HostDriver> {
    let config = HostConfig { host_mapping, ..HostConfig::lockstep(1 << 20, 1) };
    HostDriver::new(config).expect("opens")
}

#[test]
fn where_only_allocated_memory_serves_copies_of_others_the_arena_is_that() {
    for (mapping, allocated_bytes) in [
        (HostMapping::Kernels, 0),
        (HostMapping::AllocatedForAll, REGION),
        (HostMapping::AllForAll, 0),
    ] {
        let host = device_with(mapping);
        let mut memory = open(host.clone());
        let stream = memory.streams.create().expect("a stream");
        let block = memory.allocate_swapped(PAGE, stream).expect("there is room");
        let held = host.ledger();
        assert_eq!(held.pinned_bytes, allocated_bytes, "{mapping:?}");
        assert_eq!(held.pinned_bytes + held.registered_bytes, REGION, "{mapping:?}");
        memory.free_swapped(block, Uses::default());
        memory.arena.trim(&mut memory.streams).expect("nothing is in use");
        let held = host.ledger();
        assert_eq!((held.pinned_bytes, held.registered_bytes), (0, 0), "{mapping:?}");
    }
}

#[test]
fn a_device_that_cannot_address_host_memory_says_so() {
    let host = device_with(HostMapping::Nothing);
    let mut memory = open(host.clone());
    let stream = memory.streams.create().expect("a stream");
    let error = memory.allocate_swapped(PAGE, stream).expect_err("it cannot");
    assert!(matches!(error, MemoryError::HostNotMappable { .. }), "{error:?}");
    assert!(error.to_string().contains("keep this on the device"), "{error}");
    assert_eq!(host.ledger().registered_bytes, 0, "nothing was pinned for it");
}

#[test]
fn a_failing_call_leaves_nothing_behind() {
    let mut hits = 0;
    for call in 1..=4 {
        let host = device(5);
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let mut memory = open_tight(fault.clone());
        let [first, second] = [(); 2].map(|()| memory.streams.create().expect("a stream"));
        fault.arm(FaultPlan::once(call, ErrorKind::Failed));
        // The second block takes the place of the first, so its stream waits for an event.
        for stream in [first, second] {
            match memory.allocate_swapped(PAGE, stream) {
                Ok(block) => {
                    let used = memory.streams.advance(stream);
                    memory.free_swapped(block, Uses::of(used));
                }
                Err(error) => {
                    hits += 1;
                    assert!(matches!(error, MemoryError::Driver(_)), "{error:?}");
                }
            }
            let stats = memory.swapped.stats();
            assert_eq!((stats.blocks, stats.used_bytes.current), (0, 0));
            assert_eq!(memory.arena.used_bytes().current, 0);
            assert_eq!(memory.arena.pinned_bytes().current, host.ledger().registered_bytes);
        }
        drop(memory);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
    assert_eq!(hits, 4, "each call that is made can fail");
}

#[test]
fn sizes_at_the_edges() {
    let host = device(6);
    let mut memory = open(host.clone());
    let stream = memory.streams.create().expect("a stream");
    for size_bytes in [BUDGET + 1, u64::MAX] {
        let error = memory.allocate_swapped(size_bytes, stream).expect_err("too large");
        assert!(matches!(error, MemoryError::SwappedFull { .. }), "{error:?}");
    }
    let empty = memory.allocate_swapped(0, stream).expect("an empty tensor has an address too");
    let other = memory.allocate_swapped(0, stream).expect("and another one another");
    assert_ne!(empty.address(), other.address());
    let end = empty.address().offset(empty.size_bytes());
    assert_eq!(memory.swapped.is_swapped(end), end == other.address());
    assert!(!memory.swapped.is_swapped(DevicePtr(0)));
    memory.free_swapped(empty, Uses::default());
    memory.free_swapped(other, Uses::default());
    assert!(!memory.swapped.is_swapped(end));
    memory.swapped.reset_peaks();
    assert_eq!(memory.swapped.stats().used_bytes.peak, 0);
}
