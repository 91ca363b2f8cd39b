//! Planned memory: a laid-out step makes no memory calls, idle tiles go where others need their
//! room, and lots that cannot be had are refused. The driver's log and ledger judge, and the order
//! checker, which knows what is mapped where.

use std::sync::Arc;

use proptest::test_runner::TestCaseError;
use vmem::devices::{CheckConfig, CheckDriver, HostConfig, HostDriver, RecordDriver};
use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, Departure, DeviceMemory, DevicePtr, Driver,
    DriverError, Lot, LotPiece, MemoryError, Point, PoolConfig, Site, StreamId, Uses,
};

mod pieces;
mod room;

const UNIT: u64 = 4096;

fn lot(offset: u64, size: u64) -> Lot {
    Lot { offset_bytes: offset * UNIT, size_bytes: size * UNIT }
}

/// A device whose memory is the cap: whatever is held beyond it is an error at once.
fn device(units: u64) -> HostConfig {
    HostConfig { granularity_bytes: UNIT, ..HostConfig::lockstep(units * UNIT, 3) }
}

struct Bench {
    host: Arc<HostDriver>,
    record: Arc<RecordDriver>,
    check: Arc<CheckDriver>,
    memory: DeviceMemory,
    /// Two that compute and one that copies.
    streams: [StreamId; 3],
    live: Vec<(BlockId, DevicePtr)>,
}

impl Bench {
    fn new(units: u64) -> Bench {
        Bench::on(device(units), units)
    }

    fn on(device: HostConfig, limit_units: u64) -> Bench {
        let host = HostDriver::new(device).expect("opens");
        let record = Arc::new(RecordDriver::bounded(host.clone(), 1));
        let check = Arc::new(CheckDriver::new(record.clone(), CheckConfig::ORDER));
        let limit_bytes = limit_units * UNIT;
        let pool = PoolConfig { limit_bytes, swap_threshold_bytes: UNIT, segment_bytes: UNIT };
        let mut memory =
            DeviceMemory::new(check.clone(), pool, ArenaConfig::new(0)).expect("opens");
        let streams = [(); 3].map(|()| memory.streams.create().expect("a stream"));
        Bench { host, record, check, memory, streams, live: Vec::new() }
    }

    /// A piece of work on a block, at its address or at its home.
    fn work(&mut self, id: BlockId, on: usize, at_home: bool) -> Result<Point, DriverError> {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let start = if at_home { pool.home(id) } else { pool.address(id) };
        let access = Access { start, size_bytes: pool.size_bytes(id), mode: AccessMode::ReadWrite };
        self.check.note_access(streams.handle(self.streams[on]), &[access])?;
        let point = streams.advance(self.streams[on]);
        pool.note_use(id, point);
        Ok(point)
    }

    /// A new block that its op writes.
    fn try_allocate(
        &mut self,
        units: u64,
        lot: impl Into<Option<Lot>>,
        on: usize,
    ) -> Result<BlockId, MemoryError> {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let id = pool.allocate_swappable(streams, units * UNIT, self.streams[on], lot.into())?;
        let address = pool.address(id);
        assert!(self.live.iter().all(|&(_, other)| other != address), "two blocks at {address:?}");
        self.live.push((id, address));
        self.work(id, on, false)?;
        Ok(id)
    }

    fn allocate(&mut self, units: u64, lot: impl Into<Option<Lot>>) -> BlockId {
        self.try_allocate(units, lot, 0).expect("there is room")
    }

    fn use_(&mut self, id: BlockId) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        for &point in pool.uses(id).clone().points() {
            let ordered = streams.order_after(self.streams[0], point, Site::TouchAfterArrival);
            ordered.expect("orders");
        }
        pool.map_block(streams, id).expect("maps");
        self.work(id, 0, false).expect("is there, and in order");
    }

    /// Copied out and given away.
    fn detach(&mut self, id: BlockId) -> Departure {
        self.order_copy(&self.memory.pool.uses(id).clone(), Site::CopyOutAfterUse);
        let copied = self.work(id, 2, true).expect("is there, and in order");
        self.memory.pool.detach(id, Uses::of(copied))
    }

    /// Copied in: to its lot, if that is free, else to a chunk. Returns whether it was free.
    fn bring_back(&mut self, id: BlockId, lot: Lot) -> bool {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let in_lot = pool.attach_lot(streams, id, lot).expect("attaches");
        let is_in_lot = in_lot.is_some();
        let ready = in_lot.unwrap_or_else(|| pool.attach(streams, id).expect("there is room"));
        self.order_copy(&ready, Site::CopyInAfterRelease);
        self.work(id, 2, true).expect("is there, and in order");
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.poll_block(streams, id).expect("polls");
        is_in_lot
    }

    fn order_copy(&mut self, uses: &Uses, site: Site) {
        for &point in uses.points() {
            self.memory.streams.order_after(self.streams[2], point, site).expect("orders");
        }
    }

    fn free(&mut self, id: BlockId) {
        let at = self.live.iter().position(|&(live, _)| live == id).expect("it lives");
        let (_, address) = self.live.swap_remove(at);
        assert_eq!(self.memory.pool.address(id), address, "it moved");
        self.memory.pool.free(id);
    }

    fn lay_out(&mut self, lots: &[Lot]) {
        self.lay_out_in_pieces(lots, &[]);
    }

    fn lay_out_in_pieces(&mut self, lots: &[Lot], pieces: &[LotPiece]) {
        self.memory.pool.lay_out(lots, pieces).expect("there are addresses");
    }

    fn end_step(&mut self) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.end_step(streams).expect("gives back");
    }

    fn trim(&mut self) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.trim(streams).expect("gives back");
    }

    fn home(&self, id: BlockId) -> DevicePtr {
        self.memory.pool.home(id)
    }

    fn held_units(&self) -> u64 {
        let held_bytes = self.host.ledger().chunk_bytes;
        assert_eq!(self.memory.pool.held_bytes(), held_bytes);
        held_bytes / UNIT
    }

    /// Calls that make, map and give back memory.
    fn calls(&self) -> u64 {
        let names = ["create_chunk", "release_chunk", "map", "set_access", "unmap", "reserve"];
        names.map(|name| self.record.count(name)).iter().sum()
    }

    fn close(self) {
        let Bench { host, check, memory, .. } = self;
        drop(memory);
        assert_eq!(check.violations(), vec![]);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}

const WEIGHT: (u64, Lot) = (4, Lot { offset_bytes: 0, size_bytes: 4 * UNIT });

/// A weight that leaves and comes back, an activation that does while others have its room, and
/// what lies across both lots.
fn step(bench: &mut Bench, weight: BlockId) {
    let [activation, hidden, across] = [lot(4, 4), lot(4, 1), lot(3, 4)];
    let made = bench.allocate(4, activation);
    bench.use_(weight);
    bench.detach(made);
    let small = bench.allocate(1, hidden);
    bench.use_(small);
    bench.free(small);
    bench.detach(weight);
    let wide = bench.allocate(4, across);
    bench.use_(wide);
    bench.free(wide);
    assert!(bench.bring_back(weight, WEIGHT.1) && bench.bring_back(made, activation));
    for block in [made, weight] {
        bench.use_(block);
    }
    let departure = bench.detach(made);
    assert!(bench.memory.pool.retake(made, departure), "nobody had it");
    bench.use_(made);
    // Freed while it is away.
    bench.detach(made);
    bench.free(made);
    bench.end_step();
}

#[test]
fn a_laid_out_step_makes_no_memory_calls_from_the_third_step_on() {
    for map_waits_for_copies in [false, true] {
        let mut bench = Bench::on(HostConfig { map_waits_for_copies, ..device(8) }, 8);
        let weight = bench.allocate(WEIGHT.0, None);
        bench.lay_out(&[WEIGHT.1, lot(4, 4), lot(4, 1), lot(3, 4)]);
        bench.detach(weight);
        bench.bring_back(weight, WEIGHT.1);
        let made_before = bench.record.count("create_chunk");
        let calls: Vec<u64> = (0..8)
            .map(|_| {
                let before = bench.calls();
                // As the engine does between steps.
                bench.lay_out(&[WEIGHT.1, lot(4, 4), lot(4, 1), lot(3, 4)]);
                step(&mut bench, weight);
                bench.calls() - before
            })
            .collect();
        assert!(bench.record.count("create_chunk") > made_before, "the tiles were made here");
        assert_eq!(calls[2..], [0; 6], "{calls:?}");
        assert_eq!(bench.held_units(), 8);
        bench.close();
    }
}

#[test]
fn a_block_that_nobody_followed_takes_its_lot_back_without_a_copy() {
    let mut bench = Bench::new(8);
    bench.lay_out(&[lot(0, 4), lot(4, 4), lot(2, 1)]);
    let [first, second] = [lot(0, 4), lot(4, 4)].map(|lot| bench.allocate(4, lot));
    let departure = bench.detach(first);
    bench.use_(second);
    let before = bench.calls();
    assert!(bench.memory.pool.retake(first, departure));
    assert_eq!(bench.memory.pool.mapped_address(first), Some(bench.memory.pool.address(first)));
    bench.use_(first);
    assert_eq!(bench.calls(), before);
    // Part of it had another user, and is free again.
    let departure = bench.detach(first);
    let other = bench.allocate(1, lot(2, 1));
    assert!(!bench.memory.pool.retake(first, departure), "its bytes are gone");
    bench.free(other);
    assert!(!bench.memory.pool.retake(first, departure), "its bytes are gone still");
    assert!(bench.bring_back(first, lot(0, 4)));
    bench.use_(first);
    bench.close();
}

#[test]
fn a_block_that_comes_back_in_a_chunk_waits_for_nobody_and_may_leave_again_untouched() {
    let untouched = (0..60).filter(|&seed| {
        let device = HostConfig { granularity_bytes: UNIT, ..HostConfig::lockstep(8 * UNIT, seed) };
        let mut bench = Bench::on(device, 8);
        bench.lay_out(&[lot(0, 4)]);
        let first = bench.allocate(4, lot(0, 4));
        bench.detach(first);
        let second = bench.allocate(4, lot(0, 4));
        let waits = bench.memory.streams.host_waits();
        assert!(!bench.bring_back(first, lot(0, 4)));
        assert_eq!(bench.memory.streams.host_waits(), waits);
        // Its address may show the lot still.
        let is_mapped = bench.memory.pool.mapped_address(first).is_some();
        let departure = bench.detach(first);
        assert!(bench.memory.pool.retake(first, departure), "nobody had the chunk");
        bench.use_(first);
        bench.use_(second);
        bench.close();
        !is_mapped
    });
    assert!(untouched.count() > 3);
}

#[test]
fn a_lot_that_is_taken_is_refused_and_the_block_lies_elsewhere() {
    let mut bench = Bench::new(12);
    bench.lay_out(&[lot(1, 4), lot(3, 4), lot(5, 2)]);
    let first = bench.allocate(4, lot(1, 4));
    let second = bench.allocate(4, lot(3, 4));
    let third = bench.allocate(2, lot(5, 2));
    let homes = [first, second, third].map(|id| bench.home(id).0);
    assert_eq!(homes[2], homes[0] + 4 * UNIT, "both are in one memory");
    assert!(homes[1] + 4 * UNIT <= homes[0] || homes[1] >= homes[0] + 6 * UNIT, "{homes:?}");
    // What has a chunk of its own finds its lot when it comes back, if it is free then.
    bench.detach(second);
    assert!(!bench.bring_back(second, lot(3, 4)));
    bench.use_(second);
    bench.free(first);
    bench.free(third);
    bench.detach(second);
    assert!(bench.bring_back(second, lot(3, 4)));
    bench.use_(second);
    assert_eq!(bench.home(second).0, homes[0] + 2 * UNIT);
    bench.close();
}

#[test]
fn lots_that_no_memory_can_be_are_refused() {
    let mut bench = Bench::new(8);
    let nonsense = [
        lot(0, 0),
        lot(u64::MAX / UNIT, 4),
        lot(6, 4),
        lot(1 << 40, 4),
        Lot { offset_bytes: 100, size_bytes: 4 * UNIT },
        Lot { offset_bytes: 0, size_bytes: 4 * UNIT + 100 },
        Lot { offset_bytes: u64::MAX, size_bytes: u64::MAX },
    ];
    for lots in [&nonsense[..], &[nonsense[0]], &[nonsense[3], lot(0, 4)], &[]] {
        bench.lay_out(lots);
        for &wrong in &nonsense {
            let block = bench.allocate(4, wrong);
            bench.detach(block);
            assert!(!bench.bring_back(block, wrong));
            bench.use_(block);
            bench.free(block);
        }
    }
    bench.close();
}

#[test]
fn another_layout_has_the_memory_of_the_one_before_once_its_blocks_are_gone() {
    let mut bench = Bench::new(16);
    bench.lay_out(&[lot(0, 4), lot(4, 4)]);
    let [stays, away] = [lot(0, 4), lot(4, 4)].map(|lot| bench.allocate(4, lot));
    bench.detach(away);
    bench.lay_out(&[lot(2, 4), lot(6, 2)]);
    bench.memory.streams.synchronize().expect("waits");
    bench.end_step();
    assert_eq!(bench.held_units(), 4, "what is idle goes");
    assert!(bench.bring_back(away, lot(2, 4)));
    let ranges = bench.host.ledger().range_count;
    for block in [away, stays] {
        bench.use_(block);
    }
    bench.free(stays);
    bench.memory.streams.synchronize().expect("waits");
    bench.end_step();
    assert_eq!(bench.held_units(), 4, "the last block of the first layout went");
    assert_eq!(bench.host.ledger().range_count, ranges, "addresses are kept for others");
    // The first layout again is a new one.
    bench.lay_out(&[]);
    bench.lay_out(&[lot(0, 4), lot(4, 4)]);
    assert_eq!(bench.host.ledger().range_count, ranges, "its addresses serve again");
    bench.detach(away);
    assert!(bench.bring_back(away, lot(4, 4)));
    bench.use_(away);
    bench.close();
}

#[test]
fn an_idle_lot_is_the_smallest_run_of_idle_tiles_that_wastes_less_than_half() {
    let mut bench = Bench::new(16);
    let idle = |bench: &Bench, units| bench.memory.pool.idle_lot(units * UNIT);
    assert_eq!(idle(&bench, 1), None, "there is no layout");
    let lots = [lot(0, 4), lot(4, 2), lot(6, 3), lot(9, 7)];
    bench.lay_out(&lots);
    assert_eq!(idle(&bench, 1), None, "no tile has memory yet");
    let blocks = [0, 1, 2].map(|at| bench.allocate(lots[at].size_bytes / UNIT, lots[at]));
    assert_eq!(idle(&bench, 2), None, "all are taken");
    bench.free(blocks[0]);
    bench.free(blocks[2]);
    assert_eq!(idle(&bench, 1), None, "each is too large");
    assert_eq!(idle(&bench, 2), Some(lots[2]));
    assert_eq!(idle(&bench, 4), Some(lots[0]));
    assert_eq!(idle(&bench, 5), None, "they are not side by side");
    bench.free(blocks[1]);
    assert_eq!(idle(&bench, 5), Some(lot(4, 5)));
    assert_eq!(idle(&bench, 9), Some(lot(0, 9)));
    assert_eq!(idle(&bench, 10), None);
    assert_eq!(idle(&bench, u64::MAX / UNIT), None);
    let (made, scratch) = (bench.record.count("create_chunk"), idle(&bench, 5));
    let block = bench.allocate(5, scratch);
    assert_eq!(bench.record.count("create_chunk"), made);
    bench.free(block);
    bench.close();
}

#[test]
fn a_spare_lot_is_the_one_of_that_size_that_was_left_last() {
    let mut bench = Bench::new(16);
    let spare = |bench: &Bench, units| bench.memory.pool.spare_lot(units * UNIT);
    assert_eq!(spare(&bench, 4), None, "there is no layout");
    let lots = [lot(0, 4), lot(4, 4), lot(8, 2), lot(10, 2), lot(12, 3)];
    bench.lay_out(&lots);
    assert_eq!(spare(&bench, 4), None, "no tile has memory yet");
    let blocks = lots.map(|lot| bench.allocate(lot.size_bytes / UNIT, lot));
    assert_eq!(spare(&bench, 4), None, "all are taken");
    bench.free(blocks[1]);
    bench.free(blocks[0]);
    assert_eq!(spare(&bench, 3), None, "none is as small");
    let calls = bench.calls();
    for at in [0, 1] {
        let found = spare(&bench, 4);
        assert_eq!(found, Some(lots[at]));
        bench.allocate(4, found);
    }
    assert_eq!(bench.calls(), calls, "addresses show both");
    assert_eq!(spare(&bench, 4), None);
    bench.free(blocks[2]);
    bench.free(blocks[3]);
    assert_eq!(spare(&bench, 4), Some(lot(8, 4)), "two that lie side by side");
    assert_eq!(spare(&bench, u64::MAX / UNIT), None);
    let made = bench.record.count("create_chunk");
    bench.allocate(4, spare(&bench, 4));
    assert_eq!(bench.record.count("create_chunk"), made);
    bench.close();
}

/// Work that relies on each wait of planned memory: lots change hands between streams, are left
/// for chunks, and go back to the driver while their last users run.
pub(super) fn run_with(
    seed: u64,
    prepare: impl FnOnce(&mut DeviceMemory),
) -> Result<(), TestCaseError> {
    let fail = |error: MemoryError| TestCaseError::fail(error.to_string());
    let device = HostConfig { granularity_bytes: UNIT, ..HostConfig::lockstep(16 * UNIT, seed) };
    let mut bench = Bench::on(device, 8);
    prepare(&mut bench.memory);
    bench.lay_out(&[lot(0, 4), lot(4, 2)]);
    let first = bench.try_allocate(4, lot(0, 4), 0).map_err(fail)?;
    bench.free(first);
    let second = bench.try_allocate(4, lot(0, 4), 1).map_err(fail)?;
    bench.detach(second);
    let other = bench.try_allocate(4, lot(0, 4), 0).map_err(fail)?;
    let DeviceMemory { pool, streams, .. } = &mut bench.memory;
    let ready = pool.attach(streams, second).map_err(fail)?;
    pool.map_block(streams, second).map_err(|error| fail(error.into()))?;
    bench.order_copy(&ready, Site::CopyInAfterRelease);
    bench.free(second);
    bench.free(other);
    // An allocation that needs the room of the tile, whose last user runs.
    bench.try_allocate(8, None, 0).map_err(fail)?;
    bench.close();
    Ok(())
}

#[test]
fn lots_change_hands_in_order() {
    for seed in 0..100 {
        run_with(seed, |_| ()).expect("each user waits for those before it");
    }
}
