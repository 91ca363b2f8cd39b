//! The device pool: swappable and small blocks on three streams that come, go, give their chunks
//! away and get them back. Uses of memory are told to the order checker, so that reuse, unmapping
//! and release too soon are found; the model and the ledger find the rest.

use std::cell::RefCell;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use vmem::devices::{CheckConfig, CheckDriver, HostConfig, HostDriver};
use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, Departure, DeviceMemory, DevicePtr, Driver,
    EventHandle, EventKind, Lot, LotPiece, MemoryError, Point, PoolConfig, Site, StreamId, Uses,
};

mod calls;

use calls::{Call, SIZES};
pub(super) use calls::{calls, planned_calls};

const GRANULARITY: u64 = 4096;
const THRESHOLD: u64 = 8192;
const LIMIT: u64 = 128 << 10;
const SEGMENT: u64 = 16_384;

/// Who maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mapping {
    /// The thread that needs it.
    Caller,
    /// Another one, ahead of need.
    Ahead,
}

#[derive(Default, Debug)]
pub(super) struct Tally {
    allocated: u64,
    small_swappable: u64,
    segments_given_back: u64,
    full: u64,
    detached: u64,
    retaken: u64,
    attached: u64,
    returned_full: u64,
    laid_out: u64,
    in_lots: u64,
    refused: u64,
    freed_away: u64,
    trimmed: u64,
    slack: u64,
    accesses: u64,
}

#[derive(Debug)]
struct Model {
    id: BlockId,
    requested_bytes: u64,
    /// Of a swappable block: more than its size where a larger chunk serves.
    chunk_bytes: u64,
    swappable: bool,
    address: DevicePtr,
    /// It came back to a lot, where its slack is nobody's.
    in_lot: bool,
    /// `Some` while it is away.
    away: Option<Departure>,
    arrived: Option<Point>,
}

impl Model {
    fn size_bytes(&self) -> u64 {
        let unit = if self.swappable { GRANULARITY } else { 512 };
        self.requested_bytes.max(1).next_multiple_of(unit)
    }
}

struct Bench {
    host: Arc<HostDriver>,
    check: Arc<CheckDriver>,
    memory: DeviceMemory,
    /// Two that compute and one that copies.
    streams: [StreamId; 3],
    event: EventHandle,
    live: Vec<Model>,
    /// Where segments start, or did.
    segments: Vec<u64>,
    lots: Vec<Lot>,
    tally: Tally,
}

type Outcome = Result<(), TestCaseError>;

fn fail<T>(error: impl std::fmt::Display) -> Result<T, TestCaseError> {
    Err(TestCaseError::fail(error.to_string()))
}

/// Cuts every second lot in two, which change places: it then lies beyond all others.
fn cut_every_second(lots: &mut [Lot]) -> Vec<LotPiece> {
    let mut pieces = Vec::new();
    let mut beyond_bytes = lots.iter().map(|lot| lot.end_bytes()).max().unwrap_or(0);
    for lot in lots.iter_mut().skip(1).step_by(2) {
        let Lot { offset_bytes, size_bytes } = *lot;
        let lower_bytes = size_bytes / GRANULARITY / 2 * GRANULARITY;
        let lower = Lot { offset_bytes, size_bytes: lower_bytes };
        let upper_bytes = size_bytes - lower_bytes;
        let upper = Lot { offset_bytes: lower.end_bytes(), size_bytes: upper_bytes };
        pieces.push(LotPiece { shown_at_bytes: beyond_bytes, memory: upper });
        if lower_bytes > 0 {
            pieces.push(LotPiece { shown_at_bytes: beyond_bytes + upper_bytes, memory: lower });
        }
        lot.offset_bytes = beyond_bytes;
        beyond_bytes = lot.end_bytes();
    }
    pieces
}

impl Bench {
    fn new(seed: u64, mapping: Mapping) -> Bench {
        let mut settings = HostConfig::lockstep(2 * LIMIT, seed);
        settings.granularity_bytes = GRANULARITY;
        settings.map_waits_for_copies = mapping == Mapping::Ahead;
        let host = HostDriver::new(settings).expect("opens");
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let pool = PoolConfig {
            limit_bytes: LIMIT,
            swap_threshold_bytes: THRESHOLD,
            segment_bytes: SEGMENT,
        };
        let arena = ArenaConfig { region_bytes: 4096, ..ArenaConfig::new(0) };
        let mut memory = DeviceMemory::new(check.clone(), pool, arena).expect("opens");
        let streams = [(); 3].map(|()| memory.streams.create().expect("a stream"));
        let event = check.create_event(EventKind::Order).expect("an event");
        if seed.is_multiple_of(2) {
            memory.pool.hold_by_need();
        }
        let (live, segments, lots, tally) = Default::default();
        Bench { host, check, memory, streams, event, live, segments, lots, tally }
    }

    /// A lot of that size, or one that does not fit; each in turn.
    fn lot(&mut self, size_bytes: u64) -> Option<Lot> {
        let turn = usize::from(!self.lots.is_empty());
        self.lots.rotate_left(turn);
        let fits = |lot: &&Lot| lot.size_bytes == size_bytes;
        let smaller = |lot: &&Lot| lot.size_bytes < size_bytes;
        let lots = || self.lots.iter();
        lots().find(fits).or_else(|| lots().find(smaller)).copied()
    }

    fn lay_out(&mut self, lots: &[(u64, u64)]) -> Outcome {
        let lot = |&(offset, size)| Lot {
            offset_bytes: offset * GRANULARITY,
            size_bytes: size * GRANULARITY,
        };
        self.lots = lots.iter().map(lot).collect();
        let pieces = cut_every_second(&mut self.lots);
        self.memory.pool.lay_out(&self.lots, &pieces).or_else(fail)?;
        self.tally.laid_out += 1;
        Ok(())
    }

    /// Bytes that nobody can take: chunks of resident blocks, and segments that hold blocks.
    fn taken_bytes(&self) -> u64 {
        let resident = self.live.iter().filter(|it| it.swappable && it.away.is_none());
        let holds = |start: &&u64| {
            let is_in = |it: &Model| it.address.0.wrapping_sub(**start) < SEGMENT;
            self.live.iter().any(|it| !it.swappable && is_in(it))
        };
        let segments = self.segments.iter().filter(holds).count() as u64;
        resident.map(|it| it.chunk_bytes).sum::<u64>() + segments * SEGMENT
    }

    /// A small block begins each new segment.
    fn note_segment(&mut self, address: DevicePtr) {
        if !self.segments.iter().any(|start| address.0.wrapping_sub(*start) < SEGMENT) {
            self.segments.push(address.0);
        }
    }

    fn note(
        &mut self,
        stream: StreamId,
        start: DevicePtr,
        size_bytes: u64,
        write: bool,
    ) -> Outcome {
        let mode = if write { AccessMode::Write } else { AccessMode::Read };
        let access = Access { start, size_bytes, mode };
        let handle = self.memory.streams.handle(stream);
        self.tally.accesses += 1;
        self.check.note_access(handle, &[access]).or_else(fail)
    }

    fn order(&mut self, stream: StreamId, point: Point, site: Site) -> Outcome {
        self.memory.streams.order_after(stream, point, site).or_else(fail)
    }

    fn allocate(&mut self, size: usize, on: usize, own: bool) -> Outcome {
        let requested_bytes = SIZES[size];
        let is_large = requested_bytes >= THRESHOLD;
        let swappable = is_large || own;
        let needed =
            if swappable { requested_bytes.next_multiple_of(GRANULARITY) } else { SEGMENT };
        let fits = self.taken_bytes() + needed <= LIMIT;
        let before = self.memory.pool.stats();
        let lot = self.lot(needed);
        let stream = self.streams[on];
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let allocated = match swappable {
            true => pool.allocate_swappable(streams, requested_bytes, stream, lot),
            false => pool.allocate(streams, requested_bytes, stream),
        };
        match allocated {
            Ok(id) => {
                prop_assert!(fits || !swappable);
                let address = pool.address(id);
                let slack_bytes = pool.stats().slack_bytes - before.slack_bytes;
                let chunk_bytes = needed + slack_bytes;
                prop_assert!(pool.stats().slack_bytes <= LIMIT / 2);
                self.tally.slack += slack_bytes;
                self.tally.small_swappable += u64::from(swappable && !is_large);
                let (in_lot, away, arrived) = (false, None, None);
                let block = Model {
                    id,
                    requested_bytes,
                    chunk_bytes,
                    swappable,
                    address,
                    in_lot,
                    away,
                    arrived,
                };
                for other in &self.live {
                    let (a, b) = (address.0, other.address.0);
                    prop_assert!(a + block.size_bytes() <= b || b + other.size_bytes() <= a);
                }
                prop_assert_eq!(pool.is_swappable(id), swappable);
                let segment_bytes = pool.segment_bytes();
                self.tally.segments_given_back +=
                    u64::from(segment_bytes < before.segment_bytes.current);
                if !swappable {
                    self.note_segment(address);
                }
                self.tally.allocated += 1;
                // It may be written at once on its own stream.
                self.note(self.streams[on], address, requested_bytes, true)?;
                let point = self.memory.streams.advance(self.streams[on]);
                self.memory.pool.note_use(id, point);
                self.live.push(block);
            }
            Err(MemoryError::DeviceFull { missing_bytes, limit_bytes }) => {
                prop_assert!(!fits);
                prop_assert_eq!(missing_bytes, self.taken_bytes() + needed - LIMIT);
                prop_assert_eq!(limit_bytes, LIMIT);
                self.tally.full += 1;
            }
            Err(error) => return fail(error),
        }
        Ok(())
    }

    fn use_(&mut self, at: usize, on: usize, write: bool) -> Outcome {
        let (stream, other) = (self.streams[on], self.streams[1 - on]);
        let (id, address, size_bytes, arrived) = {
            let block = &self.live[at];
            if block.away.is_some() {
                return Ok(());
            }
            (block.id, block.address, block.requested_bytes, block.arrived)
        };
        // The owner's own order between its streams.
        let handles = [stream, other].map(|stream| self.memory.streams.handle(stream));
        self.check.record_event(self.event, handles[1]).or_else(fail)?;
        self.check.wait_event(handles[0], self.event).or_else(fail)?;
        if let Some(point) = arrived {
            self.order(stream, point, Site::TouchAfterArrival)?;
        }
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.map_block(streams, id).or_else(fail)?;
        prop_assert_eq!(pool.address(id), address);
        self.note(stream, address, size_bytes, write)?;
        let point = self.memory.streams.advance(stream);
        self.memory.pool.note_use(id, point);
        Ok(())
    }

    fn detach(&mut self, at: usize) -> Outcome {
        let block = &self.live[at];
        if block.away.is_some() || !block.swappable {
            return Ok(());
        }
        let (id, size_bytes, copy) = (block.id, block.size_bytes(), self.streams[2]);
        for &point in self.memory.pool.uses(id).clone().points() {
            self.order(copy, point, Site::CopyOutAfterUse)?;
        }
        let home = self.memory.pool.home(id);
        self.note(copy, home, size_bytes, false)?;
        let copied = self.memory.streams.advance(copy);
        let departure = self.memory.pool.detach(id, Uses::of(copied));
        let block = &mut self.live[at];
        (block.away, block.arrived) = (Some(departure), Some(copied));
        self.tally.detached += 1;
        Ok(())
    }

    fn return_(&mut self, at: usize) -> Outcome {
        let taken = self.taken_bytes();
        let lot = self.lot(self.live[at].chunk_bytes);
        let block = &mut self.live[at];
        let Some(departure) = block.away else { return Ok(()) };
        let (id, size_bytes, chunk_bytes) = (block.id, block.size_bytes(), block.chunk_bytes);
        if self.memory.pool.retake(id, departure) {
            block.away = None;
            self.tally.retaken += 1;
            return Ok(());
        }
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let in_lot = lot.map_or(Ok(None), |lot| pool.attach_lot(streams, id, lot)).or_else(fail)?;
        let is_in_lot = in_lot.is_some();
        self.tally.in_lots += u64::from(is_in_lot);
        self.tally.refused += u64::from(!is_in_lot && lot.is_some());
        match in_lot.map_or_else(|| pool.attach(streams, id), Ok) {
            Ok(ready) => {
                prop_assert!(taken + chunk_bytes <= LIMIT);
                let copy = self.streams[2];
                for &point in ready.points() {
                    self.order(copy, point, Site::CopyInAfterRelease)?;
                }
                let home = self.memory.pool.home(id);
                self.note(copy, home, size_bytes, true)?;
                let arrived = self.memory.streams.advance(copy);
                self.memory.pool.note_use(id, arrived);
                let block = &mut self.live[at];
                (block.away, block.arrived, block.in_lot) = (None, Some(arrived), is_in_lot);
                self.tally.attached += 1;
            }
            Err(MemoryError::DeviceFull { missing_bytes, .. }) => {
                prop_assert_eq!(missing_bytes, (taken + chunk_bytes).saturating_sub(LIMIT));
                prop_assert!(missing_bytes > 0);
                self.tally.returned_full += 1;
            }
            Err(error) => return fail(error),
        }
        Ok(())
    }

    fn step(&mut self, call: &Call) -> Outcome {
        let pick = |at: &prop::sample::Index, live: &[Model]| at.index(live.len());
        match call {
            Call::Allocate(size, on, own) => self.allocate(*size, *on, *own)?,
            Call::Poll => {
                let DeviceMemory { pool, streams, .. } = &mut self.memory;
                pool.poll(streams).or_else(fail)?;
            }
            Call::LayOut(lots) => self.lay_out(lots)?,
            Call::EndStep => {
                let DeviceMemory { pool, streams, .. } = &mut self.memory;
                pool.end_step(streams).or_else(fail)?;
            }
            Call::Trim => {
                let DeviceMemory { pool, streams, .. } = &mut self.memory;
                pool.trim(streams).or_else(fail)?;
                prop_assert_eq!(pool.stats().cached_bytes, 0);
                self.tally.trimmed += 1;
            }
            _ if self.live.is_empty() => {}
            Call::Free(at) => {
                let block = self.live.swap_remove(pick(at, &self.live));
                self.tally.freed_away += u64::from(block.away.is_some());
                self.memory.pool.free(block.id);
                prop_assert!(!self.memory.pool.is_live(block.id));
            }
            Call::Use(at, on, write) => self.use_(pick(at, &self.live), *on, *write)?,
            Call::Detach(at) => self.detach(pick(at, &self.live))?,
            Call::Return(at) => self.return_(pick(at, &self.live))?,
        }
        self.verdict()
    }

    /// Recomputes every counter, and asks the ledger.
    fn verdict(&self) -> Outcome {
        let (ledger, stats) = (self.host.ledger(), self.memory.pool.stats());
        prop_assert!(ledger.chunk_bytes_peak <= LIMIT);
        prop_assert_eq!(stats.reserved_bytes.current, ledger.chunk_bytes);
        prop_assert_eq!(stats.reserved_bytes.peak, ledger.chunk_bytes_peak);
        prop_assert_eq!(self.memory.pool.held_bytes(), ledger.chunk_bytes);
        // The rest is on its way out.
        prop_assert!(stats.cached_bytes + self.taken_bytes() <= ledger.chunk_bytes);
        let sum = |of: &dyn Fn(&Model) -> u64| self.live.iter().map(of).sum::<u64>();
        prop_assert_eq!(stats.requested_bytes.current, sum(&|it| it.requested_bytes));
        prop_assert_eq!(stats.allocated_bytes.current, sum(&Model::size_bytes));
        let active = sum(&|it| if it.away.is_none() { it.size_bytes() } else { 0 });
        prop_assert_eq!(stats.active_bytes.current, active);
        let is_here = |it: &Model| it.swappable && it.away.is_none();
        let is_behind = |it: &Model| is_here(it) && !it.in_lot;
        let slack = |it: &Model| if is_behind(it) { it.chunk_bytes - it.size_bytes() } else { 0 };
        prop_assert_eq!(stats.slack_bytes, sum(&slack));
        let here = sum(&|it| if is_here(it) { it.size_bytes() } else { 0 });
        prop_assert_eq!(stats.in_use_bytes, here + self.memory.pool.fixed_bytes());
        for block in &self.live {
            prop_assert!(self.memory.pool.is_live(block.id));
            prop_assert_eq!(self.memory.pool.address(block.id), block.address);
        }
        prop_assert_eq!(self.check.violation_count(), 0);
        Ok(())
    }
}

fn run(seed: u64, mapping: Mapping, calls: &[Call]) -> Result<Tally, TestCaseError> {
    run_with(seed, mapping, calls, |_| ())
}

/// Runs the calls on memory that `prepare` has seen first.
pub(super) fn run_with(
    seed: u64,
    mapping: Mapping,
    calls: &[Call],
    prepare: impl FnOnce(&mut DeviceMemory),
) -> Result<Tally, TestCaseError> {
    let mut bench = Bench::new(seed, mapping);
    prepare(&mut bench.memory);
    for call in calls {
        bench.step(call)?;
    }
    let Bench { host, check, memory, event, tally, .. } = bench;
    drop(memory);
    check.destroy_event(event).or_else(fail)?;
    prop_assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    prop_assert_eq!(check.violation_count(), 0);
    Ok(tally)
}

#[test]
fn the_pool_agrees_with_a_simple_model_and_the_ledger() {
    agree(calls(), Mapping::Caller, &[]);
}

#[test]
fn it_agrees_as_well_where_another_thread_maps() {
    agree(calls(), Mapping::Ahead, &[]);
}

#[test]
fn it_agrees_under_any_layouts() {
    for mapping in [Mapping::Caller, Mapping::Ahead] {
        let laid_out: [Count; 3] = [
            ("laid out", |it| it.laid_out),
            ("back in lots", |it| it.in_lots),
            ("refused lots", |it| it.refused),
        ];
        agree(planned_calls(), mapping, &laid_out);
    }
}

type Count = (&'static str, fn(&Tally) -> u64);

fn agree(calls: impl Strategy<Value = Vec<Call>>, mapping: Mapping, more: &[Count]) {
    let config = Runs { cases: 2500, failure_persistence: None, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let all = RefCell::new(Vec::new());
    let result = runner.run(&(any::<u64>(), calls), |(seed, calls)| {
        all.borrow_mut().push(run(seed, mapping, &calls)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let all = all.into_inner();
    let counts: [Count; 12] = [
        ("allocated", |it| it.allocated),
        ("small ones with their own addresses", |it| it.small_swappable),
        ("segments given back for others", |it| it.segments_given_back),
        ("full", |it| it.full),
        ("detached", |it| it.detached),
        ("retaken", |it| it.retaken),
        ("attached", |it| it.attached),
        ("no room to return", |it| it.returned_full),
        ("freed while away", |it| it.freed_away),
        ("trimmed", |it| it.trimmed),
        ("slack", |it| it.slack),
        ("accesses", |it| it.accesses),
    ];
    for (what, of) in counts.iter().chain(more) {
        let count = all.iter().map(of).sum::<u64>();
        println!("{what}: {count}");
        assert!(count > 50, "{what}: {count}");
    }
}
