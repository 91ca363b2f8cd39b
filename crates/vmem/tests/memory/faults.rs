//! Driver calls that fail, two of them in one script, with and without another thread that maps:
//! each is an error or is mended, and when the driver is well again nothing is lost and
//! everything works. The order checker and the ledger judge.

use std::collections::BTreeMap;
use std::sync::Arc;

use vmem::devices::{CheckConfig, CheckDriver, FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, Departure, DeviceMemory, Driver, ErrorKind, Lot,
    LotPiece, MemoryError, Point, PoolConfig, Site, Slot, StreamId, SwappedBlock, Uses,
};

mod scripts;

use scripts::{Call, SCRIPTS};

const UNIT: u64 = 4096;
const LIMIT: u64 = 8 * UNIT;

#[derive(Debug)]
struct Block {
    id: BlockId,
    size_bytes: u64,
    away: Option<Departure>,
    arrived: Option<Point>,
}

struct Bench {
    host: Arc<HostDriver>,
    check: Arc<CheckDriver>,
    faults: [Arc<FaultDriver>; 2],
    memory: DeviceMemory,
    compute: StreamId,
    copy: StreamId,
    /// In the order of their allocation; `None` once freed, or if there never was one.
    blocks: Vec<Option<Block>>,
    slots: Vec<Slot>,
    swapped: Vec<SwappedBlock>,
    lots: Vec<Lot>,
}

fn in_units(&(at, units): &(u64, u64)) -> Lot {
    Lot { offset_bytes: at * UNIT, size_bytes: units * UNIT }
}

impl Bench {
    fn new(is_ahead: bool) -> Bench {
        let settings = HostConfig {
            granularity_bytes: UNIT,
            map_waits_for_copies: is_ahead,
            ..HostConfig::lockstep(2 * LIMIT, 5)
        };
        let host = HostDriver::new(settings).expect("opens");
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let second = Arc::new(FaultDriver::new(check.clone()));
        let first = Arc::new(FaultDriver::new(second.clone()));
        let pool =
            PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: UNIT, segment_bytes: UNIT };
        let arena = ArenaConfig { region_bytes: 2 * UNIT, ..ArenaConfig::new(8 * UNIT) };
        let mut memory = DeviceMemory::new(first.clone(), pool, arena).expect("opens");
        let [compute, copy] = [(); 2].map(|()| memory.streams.create().expect("a stream"));
        let faults = [first, second];
        let (blocks, slots, swapped, lots) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Bench { host, check, faults, memory, compute, copy, blocks, slots, swapped, lots }
    }

    fn injected(&self) -> u64 {
        self.faults.iter().map(|fault| fault.injected()).sum()
    }

    /// A piece of work that uses a block's memory: at its address, or at its home.
    fn work(&mut self, id: BlockId, stream: StreamId, at_home: bool, write: bool) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let start = if at_home { pool.home(id) } else { pool.address(id) };
        let mode = if write { AccessMode::Write } else { AccessMode::Read };
        let size_bytes = if pool.is_swappable(id) { UNIT } else { UNIT / 4 };
        let access = Access { start, size_bytes, mode };
        let noted = self.check.note_access(streams.handle(stream), &[access]);
        noted.expect("mapped, and ordered after its earlier users");
        let point = streams.advance(stream);
        pool.note_use(id, point);
    }

    fn order(&mut self, stream: StreamId, points: &[Point], site: Site) -> Result<(), MemoryError> {
        for &point in points {
            self.memory.streams.order_after(stream, point, site)?;
        }
        Ok(())
    }

    /// The lot that begins at this unit, if the last layout has one.
    fn lot(&self, at: u64) -> Option<Lot> {
        self.lots.iter().find(|lot| lot.offset_bytes == at * UNIT).copied()
    }

    fn allocate(&mut self, size_bytes: u64, lot: Option<Lot>) -> Result<(), MemoryError> {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let allocated = pool.allocate_swappable(streams, size_bytes, self.compute, lot);
        let block = |id| Block { id, size_bytes, away: None, arrived: None };
        self.blocks.push(allocated.as_ref().ok().map(|&id| block(id)));
        self.work(allocated?, self.compute, false, true);
        Ok(())
    }

    fn use_(&mut self, at: usize) -> Result<(), MemoryError> {
        let Some(Block { id, away: None, arrived, .. }) = self.blocks[at] else { return Ok(()) };
        self.order(self.compute, arrived.as_slice(), Site::TouchAfterArrival)?;
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.map_block(streams, id)?;
        self.work(id, self.compute, false, true);
        Ok(())
    }

    fn detach(&mut self, at: usize) -> Result<(), MemoryError> {
        let Some(Block { id, away: None, .. }) = self.blocks[at] else { return Ok(()) };
        let uses = self.memory.pool.uses(id).clone();
        self.order(self.copy, uses.points(), Site::CopyOutAfterUse)?;
        self.work(id, self.copy, true, false);
        let copied = self.memory.streams.here(self.copy);
        let departure = self.memory.pool.detach(id, Uses::of(copied));
        let block = self.blocks[at].as_mut().expect("seen above");
        (block.away, block.arrived) = (Some(departure), Some(copied));
        Ok(())
    }

    fn return_(&mut self, at: usize, lot: Option<Lot>) -> Result<(), MemoryError> {
        let Some(Block { id, away: Some(departure), .. }) = self.blocks[at] else {
            return Ok(());
        };
        if !self.memory.pool.retake(id, departure) {
            let DeviceMemory { pool, streams, .. } = &mut self.memory;
            let in_lot = lot.map_or(Ok(None), |lot| pool.attach_lot(streams, id, lot))?;
            let ready = in_lot.map_or_else(|| pool.attach(streams, id), Ok)?;
            let ordered = self.order(self.copy, ready.points(), Site::CopyInAfterRelease);
            if let Err(error) = ordered {
                // It is away again, with nothing of it in the chunk.
                let departure = self.memory.pool.detach(id, ready);
                self.blocks[at].as_mut().expect("seen above").away = Some(departure);
                return Err(error);
            }
            self.work(id, self.copy, true, true);
            let arrived = self.memory.streams.here(self.copy);
            self.blocks[at].as_mut().expect("seen above").arrived = Some(arrived);
        }
        self.blocks[at].as_mut().expect("seen above").away = None;
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        Ok(pool.poll_block(streams, id)?)
    }

    fn step(&mut self, call: Call) -> Result<(), MemoryError> {
        let DeviceMemory { pool, arena, streams, .. } = &mut self.memory;
        match call {
            Call::Allocate(units) => return self.allocate(units * UNIT, None),
            Call::AllocateIn(units, at) => return self.allocate(units * UNIT, self.lot(at)),
            Call::Small => return self.allocate(UNIT / 4, None),
            Call::LayOut(lots) => {
                self.lots = lots.iter().map(in_units).collect();
                pool.lay_out(&self.lots, &[])?;
            }
            Call::LayOutInPieces(lots, pieces) => {
                self.lots = lots.iter().map(in_units).collect();
                let piece = |&(shown, at, units): &(u64, u64, u64)| LotPiece {
                    shown_at_bytes: shown * UNIT,
                    memory: in_units(&(at, units)),
                };
                let pieces: Vec<LotPiece> = pieces.iter().map(piece).collect();
                pool.lay_out(&self.lots, &pieces)?;
            }
            Call::Use(at) => return self.use_(at),
            Call::Detach(at) => return self.detach(at),
            Call::Return(at) => return self.return_(at, None),
            Call::ReturnTo(at, lot) => return self.return_(at, self.lot(lot)),
            Call::Free(at) => {
                if let Some(block) = self.blocks[at].take() {
                    pool.free(block.id);
                }
            }
            Call::Poll => pool.poll(streams)?,
            Call::HoldByNeed => pool.hold_by_need(),
            Call::EndSteps(count) => {
                let ends = (0..count).map(|_| pool.end_step(streams));
                ends.fold(Ok(()), Result::and)?;
            }
            Call::Trim => {
                let result = pool.trim(streams);
                arena.trim(streams).and(result)?;
            }
            Call::TakeSlot => self.slots.push(arena.take(UNIT)?.0),
            Call::GiveSlotBack => {
                if let Some(slot) = self.slots.pop() {
                    arena.give_back(slot, Uses::default());
                }
            }
            Call::Swapped => {
                self.swapped.push(self.memory.allocate_swapped(UNIT, self.compute)?);
            }
        }
        Ok(())
    }

    /// Counts are those of the ledger, whatever failed.
    fn agree(&self) {
        let ledger = self.host.ledger();
        assert!(ledger.chunk_bytes_peak <= LIMIT);
        assert_eq!(self.memory.pool.held_bytes(), ledger.chunk_bytes);
        assert_eq!(self.memory.arena.pinned_bytes().current, ledger.registered_bytes);
        let live = self.blocks.iter().flatten();
        let resident = live.filter(|block| block.away.is_none() && block.size_bytes >= UNIT);
        let resident_bytes: u64 = resident.map(|block| block.size_bytes).sum();
        let stats = self.memory.pool.stats();
        assert!(stats.active_bytes.current >= resident_bytes);
        assert_eq!(self.check.violation_count(), 0, "{:?}", self.check.violations());
    }

    /// All that lives can be used, one after the other, and then nothing is held.
    fn finish(mut self) {
        self.faults.iter().for_each(|fault| fault.disarm());
        for at in 0..self.blocks.len() {
            self.return_(at, None)
                .or_else(|error| match error {
                    // Others have the room.
                    MemoryError::DeviceFull { .. } => Ok(()),
                    error => Err(error),
                })
                .expect("the driver is well");
            // The other thread's failure may be told only now, once.
            let used = self.use_(at).or_else(|_| self.use_(at));
            used.expect("the driver is well");
            self.agree();
            if let Some(block) = self.blocks[at].take() {
                self.memory.pool.free(block.id);
            }
        }
        let Bench { host, memory, .. } = self;
        drop(memory);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

/// Runs a script under two faults, of which the second counts the calls that the first lets
/// through. Returns the calls of the script, and those that failed, by name.
fn run(
    script: &[Call],
    is_ahead: bool,
    plans: [Option<FaultPlan>; 2],
) -> (u64, BTreeMap<&'static str, u64>) {
    // Shown only if the test fails.
    println!("ahead: {is_ahead}, {plans:?}, {script:?}");
    let mut bench = Bench::new(is_ahead);
    for (fault, plan) in bench.faults.iter().zip(plans) {
        if let Some(plan) = plan {
            fault.arm(plan);
        }
    }
    let before = bench.faults[0].calls();
    for &call in script {
        if let Err(error) = bench.step(call) {
            assert!(bench.injected() > 0, "{call:?}: {error}");
            let of_driver = matches!(
                error,
                MemoryError::Driver(_)
                    | MemoryError::DeviceFull { .. }
                    | MemoryError::HostFull { .. }
            );
            assert!(of_driver, "{call:?}: {error:?}");
        }
        bench.agree();
    }
    let calls = bench.faults[0].calls() - before;
    let mut hits = BTreeMap::new();
    for fault in &bench.faults {
        for (name, count) in fault.hits() {
            *hits.entry(name).or_default() += count;
        }
    }
    bench.finish();
    (calls, hits)
}

#[test]
fn whichever_two_calls_fail_nothing_is_lost_and_everything_works_afterwards() {
    let mut pairs = 0;
    let mut failed: BTreeMap<&'static str, u64> = BTreeMap::new();
    for is_ahead in [false, true] {
        for script in SCRIPTS {
            let (calls, _) = run(script, is_ahead, [None, None]);
            for first in 1..=calls {
                for second in (first..=calls).step_by(2) {
                    let kinds = match (second - first) % 4 {
                        0 => [ErrorKind::OutOfMemory, ErrorKind::Failed],
                        _ => [ErrorKind::Failed, ErrorKind::OutOfMemory],
                    };
                    let plan = |at: usize, call| Some(FaultPlan::once(call, kinds[at]));
                    let (_, hits) = run(script, is_ahead, [plan(0, first), plan(1, second)]);
                    pairs += u64::from(hits.values().sum::<u64>() == 2);
                    hits.into_iter().for_each(|(name, n)| *failed.entry(name).or_default() += n);
                }
            }
        }
    }
    println!("{pairs} pairs: {failed:?}");
    assert!(pairs > 5000, "{pairs} pairs");
    for name in ["map", "set_access", "unmap", "create_chunk", "release_chunk", "reserve"] {
        assert!(failed.get(name).is_some_and(|&count| count > 100), "{name}: {failed:?}");
    }
}

#[test]
fn a_driver_that_fails_for_good_leaves_what_works_when_it_is_well_again() {
    let mut failed = 0;
    for is_ahead in [false, true] {
        for script in SCRIPTS {
            let (calls, _) = run(script, is_ahead, [None, None]);
            for call in 1..=calls {
                for kind in [ErrorKind::Failed, ErrorKind::OutOfMemory] {
                    let (_, hits) =
                        run(script, is_ahead, [Some(FaultPlan::for_good(call, kind)), None]);
                    failed += hits.values().sum::<u64>();
                }
            }
        }
    }
    assert!(failed > 1000, "{failed} calls failed");
}
