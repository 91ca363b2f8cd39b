//! Runs scripts on an engine and judges what happens, by means of its own.
//!
//! The runner keeps a shadow of every block: which pattern it must hold. Every kernel compares all
//! bytes of its inputs with the shadow and writes new patterns. Ops whose work the engine does not
//! launch are ordered here against those of the other stream, by events of the driver, as the owner
//! of the work would. Whether an out-of-memory error is right is computed here, from what open ops
//! hold.

use std::sync::Arc;

use swap_core::devices::{CheckConfig, CheckDriver, FaultDriver, HostConfig, HostDriver};
use swap_core::{
    AccessMode, ActionKind, ArenaConfig, BlockId, BlockIndex, Compute, Config, Driver, Engine,
    Error, Lot, OpName, OpStack, Orders, Phase, Plan, PoolConfig, StepReport, StreamHandle,
    StreamId, Trace,
};
use vmem::{EventHandle, EventKind};

use super::judge::Judge;
use super::lots::laid_out;
use super::script::{Command, SIZES, Script};

use kernel::SharedRef;
use tally::state_name;

pub(crate) use kernel::word;
pub(crate) use tally::Tally;

mod kernel;
mod ops;
mod tally;
mod verdict;

pub(crate) const GRANULARITY: u64 = 4096;
pub(crate) const THRESHOLD: u64 = 8192;
pub(crate) const SEGMENT: u64 = 16_384;
const POISON: u64 = 0xdead_5a1e_dead_5a1e;
/// Of ops on either stream, by what they do.
const NAMES: [[OpName; 4]; 2] = [
    [OpName::new("make"), OpName::new("mix"), OpName::new("look"), OpName::new("change")],
    [
        OpName::new("side make"),
        OpName::new("side mix"),
        OpName::new("side look"),
        OpName::new("side change"),
    ],
];

/// Physical bytes of a swappable block on a device of the usual granularity.
pub(crate) fn physical(size_bytes: u64) -> u64 {
    size_bytes.next_multiple_of(GRANULARITY)
}

/// Sizes of a script's blocks on a device of this granularity. Where it is large, only one takes
/// more than one unit, for kernels look at every word.
fn sizes(granularity_bytes: u64) -> [u64; 8] {
    if granularity_bytes == GRANULARITY {
        return SIZES;
    }
    [64, 1000, 4096, 8192, 12_280, 16_384, 32_768, granularity_bytes + 8192]
}

/// A device for a test: poisoned memory, more of it than the cap, so that only the engine keeps
/// to the cap.
pub(crate) fn host(mut config: HostConfig) -> Arc<HostDriver> {
    config.granularity_bytes = GRANULARITY;
    config.poison = Some(POISON);
    HostDriver::new(config).expect("a host device opens")
}

pub(crate) fn config(limit_bytes: u64, arena_bytes: u64) -> Config {
    Config {
        pool: PoolConfig { limit_bytes, swap_threshold_bytes: THRESHOLD, segment_bytes: SEGMENT },
        arena: ArenaConfig { region_bytes: 64 << 10, ..ArenaConfig::new(arena_bytes) },
        compute: Compute::Own,
        record: true,
    }
}

/// Why a script did not go on.
#[derive(Debug)]
pub(crate) enum Stop {
    /// A legitimate out-of-memory error.
    OutOfMemory,
    /// A driver call was made to fail.
    Fault,
    /// A promise was broken.
    Broken(String),
}

/// One block as the runner knows it.
#[derive(Clone, Debug)]
pub(crate) struct Shadow {
    pub(crate) id: BlockId,
    pub(crate) size_bytes: u64,
    pub(crate) live: bool,
    pub(crate) persistent: bool,
    /// The pattern that it holds; `None` until something wrote it.
    pub(crate) tag: Option<u64>,
    address: u64,
    /// The stream and number of the launch that wrote it last.
    written: Option<(usize, u64)>,
    /// The last op on the first stream that read it by itself.
    watched: u64,
}

/// How a [`World`] runs.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) host: HostConfig,
    pub(crate) granularity_bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) arena_bytes: u64,
    /// Ask for residency all the time. It tells more, and hides missing waits.
    pub(crate) probe: bool,
    /// Driver errors are expected.
    pub(crate) faults: bool,
}

pub(crate) struct World {
    judge: Judge,
    pub(crate) check: Arc<CheckDriver>,
    pub(crate) fault: Arc<FaultDriver>,
    pub(crate) engine: Engine,
    ops: Option<OpStack>,
    streams: [(StreamId, StreamHandle); 2],
    event: EventHandle,
    pub(crate) blocks: Vec<Shadow>,
    pub(crate) shared: SharedRef,
    next_tag: u64,
    /// Launches on each stream, and how many of the other's each stream is behind.
    launched: [u64; 2],
    behind: [u64; 2],
    setup: Setup,
    /// Swap-ins ordered at the begin of each op, by place; and who has those places.
    ordered_in: Vec<(u32, usize)>,
    op_index: u32,
    places: Vec<BlockId>,
    /// Where blocks lie under later orders.
    pub(crate) lots: Vec<Option<Lot>>,
    pub(crate) tally: Tally,
    /// The most bytes that open ops held at once, and of everything alive.
    pub(crate) working_bytes_peak: u64,
    pub(crate) live_bytes_peak: u64,
    pub(crate) segment_bytes_peak: u64,
    pub(crate) trace: Option<Trace>,
    pub(crate) stopped: u64,
}

impl World {
    pub(crate) fn new(setup: Setup) -> World {
        let mut device = setup.host.clone();
        device.granularity_bytes = setup.granularity_bytes;
        device.poison = Some(POISON);
        let host = HostDriver::new(device).expect("a host device opens");
        World::on(host, setup).expect("an engine opens")
    }

    pub(crate) fn on(host: Arc<HostDriver>, setup: Setup) -> Result<World, Error> {
        let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
        let fault = Arc::new(FaultDriver::new(check.clone()));
        World::behind(host, check, fault, setup)
    }

    /// An engine on `fault`, behind which is the device that `judge` knows.
    pub(crate) fn behind(
        judge: impl Into<Judge>,
        check: Arc<CheckDriver>,
        fault: Arc<FaultDriver>,
        setup: Setup,
    ) -> Result<World, Error> {
        let mut settings = config(setup.limit_bytes, setup.arena_bytes);
        settings.arena.region_bytes = 16 * setup.granularity_bytes;
        let engine = Engine::new(fault.clone(), settings)?;
        let handles = engine.stream_handles()?;
        let side = check.create_stream().expect("a stream");
        let side_id = engine.adopt_stream(side)?;
        let event = check.create_event(EventKind::Order).expect("an event");
        let ops = engine.op_stack();
        let streams = [(engine.compute_stream(), handles[0]), (side_id, side)];
        Ok(World {
            judge: judge.into(),
            check,
            fault,
            engine,
            ops: Some(ops),
            streams,
            event,
            blocks: Vec::new(),
            shared: Arc::default(),
            next_tag: 1,
            launched: [0; 2],
            behind: [0; 2],
            setup,
            ordered_in: Vec::new(),
            op_index: 0,
            places: Vec::new(),
            lots: Vec::new(),
            tally: Tally { runs: 1, ..Tally::default() },
            working_bytes_peak: 0,
            live_bytes_peak: 0,
            segment_bytes_peak: 0,
            trace: None,
            stopped: 0,
        })
    }

    fn ops(&mut self) -> &mut OpStack {
        self.ops.as_mut().expect("there is always a stack")
    }

    /// Physical bytes of a swappable block, or of a segment.
    fn physical(&self, size_bytes: u64) -> u64 {
        size_bytes.next_multiple_of(self.setup.granularity_bytes)
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    pub(crate) fn live(&self) -> Vec<usize> {
        (0..self.blocks.len()).filter(|&index| self.blocks[index].live).collect()
    }

    fn pick(&self, pick: u16, wanted: impl Fn(&Shadow) -> bool) -> Option<usize> {
        let live: Vec<usize> = (0..self.blocks.len())
            .filter(|&at| self.blocks[at].live && wanted(&self.blocks[at]))
            .collect();
        if live.is_empty() { None } else { Some(live[pick as usize % live.len()]) }
    }

    fn is_open(&self, id: BlockId) -> bool {
        let shared = self.shared.lock().expect("no kernel panics");
        shared.open.iter().any(|frame| frame.contains_key(&id))
    }

    fn broken<T>(&self, what: impl Into<String>) -> Result<T, Stop> {
        Err(Stop::Broken(what.into()))
    }

    fn note_live(&mut self) {
        let live = |shadow: &&Shadow| shadow.live && shadow.size_bytes >= THRESHOLD;
        let bytes =
            self.blocks.iter().filter(live).map(|shadow| self.physical(shadow.size_bytes)).sum();
        self.live_bytes_peak = self.live_bytes_peak.max(bytes);
        let open = self.shared.lock().expect("no kernel panics").open_bytes();
        self.working_bytes_peak = self.working_bytes_peak.max(open);
        if let Ok(stats) = self.engine.memory_stats() {
            self.segment_bytes_peak = self.segment_bytes_peak.max(stats.segment_bytes.peak);
        }
    }

    fn enter(&self, id: Option<BlockId>, size_bytes: u64) {
        let mut shared = self.shared.lock().expect("no kernel panics");
        if let (Some(frame), Some(id)) = (shared.open.last_mut(), id) {
            frame.insert(id, if size_bytes >= THRESHOLD { self.physical(size_bytes) } else { 0 });
        }
    }

    fn new_block(
        &mut self,
        size: u8,
        op_stream: Option<usize>,
        persistent: bool,
    ) -> Result<usize, Stop> {
        let size_bytes = sizes(self.setup.granularity_bytes)[size as usize];
        let name = format!("b{}", self.blocks.len());
        let before_bytes = self.allocated_bytes();
        let result = if op_stream.is_some() {
            self.ops().allocate(size_bytes, &name)
        } else {
            self.engine.allocate(size_bytes, &name)
        };
        let id = match result {
            Ok(id) => id,
            Err(error) => {
                let needed = if size_bytes >= THRESHOLD { size_bytes } else { SEGMENT };
                let extra = self.physical(needed);
                return Err(self.judge(error, extra));
            }
        };
        let address = match self.engine.address(id) {
            Ok(address) => address.0,
            Err(error) => return self.broken(format!("a fresh block has no address: {error}")),
        };
        for other in self.blocks.iter().filter(|other| other.live) {
            let end = other.address + other.size_bytes;
            if address < end && other.address < address + size_bytes {
                return self.broken("two live blocks share addresses");
            }
        }
        // A piece of a segment takes less.
        let is_small = size_bytes < GRANULARITY / 2;
        let took_unit = self.allocated_bytes() == before_bytes.map(|bytes| bytes + GRANULARITY);
        self.tally.small_swappable += u64::from(is_small && before_bytes.is_some() && took_unit);
        self.blocks.push(Shadow {
            id,
            size_bytes,
            live: true,
            persistent,
            tag: None,
            address,
            written: None,
            watched: 0,
        });
        if size_bytes >= THRESHOLD {
            self.places.push(id);
        }
        self.enter(Some(id), size_bytes);
        self.note_live();
        Ok(self.blocks.len() - 1)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.engine.memory_stats().ok().map(|stats| stats.allocated_bytes.current)
    }

    pub(crate) fn free(&mut self, at: usize) -> Result<(), Stop> {
        let id = self.blocks[at].id;
        if self.setup.probe
            && let Ok(residency) = self.engine.residency(id)
        {
            *self.tally.frees.entry(state_name(residency)).or_default() += 1;
        }
        if let Err(error) = self.engine.free(id) {
            return self.broken(format!("free failed: {error}"));
        }
        self.blocks[at].live = false;
        if self.engine.free(id) != Err(Error::Freed) {
            // A block that discarded ones need may stay, but its owner has given it away.
            return self.broken("a block was freed twice");
        }
        Ok(())
    }

    fn drop_stack(&mut self) {
        self.ops = None;
        self.ops = Some(self.engine.op_stack());
        self.shared.lock().expect("no kernel panics").open.clear();
    }

    pub(crate) fn end_step(&mut self) -> Result<(), Stop> {
        let reports = match self.engine.end_step() {
            Ok(reports) => reports,
            Err(error) => return Err(self.judge(error, 0)),
        };
        self.take(reports);
        // Being measured makes no difference to a step.
        if self.tally.steps.is_multiple_of(2) {
            self.engine.measure_lanes().map_err(|error| self.judge(error, 0))?;
        }
        // Nor does it matter what the addresses of blocks show that are away.
        if self.tally.steps % 3 == 1 {
            self.engine.hide_away().map_err(|error| self.judge(error, 0))?;
        }
        self.op_index = 0;
        self.places = self
            .blocks
            .iter()
            .filter(|shadow| shadow.live && shadow.size_bytes >= THRESHOLD)
            .map(|shadow| shadow.id)
            .collect();
        Ok(())
    }

    fn take(&mut self, reports: Vec<StepReport>) {
        for report in reports {
            self.tally.report(&report);
            self.trace = report.trace.or(self.trace.take());
        }
    }

    /// The later steps' orders.
    pub(crate) fn set_orders(
        &mut self,
        record: bool,
        plan: Option<(&Plan, Option<&Trace>)>,
    ) -> Result<(), Stop> {
        self.ordered_in.clear();
        let orders = plan.map(|(plan, trace)| {
            for action in &plan.actions {
                if action.kind == ActionKind::SwapIn && action.phase == Phase::Begin {
                    self.ordered_in.push((action.op.0, action.block.0 as usize));
                }
            }
            let orders = match trace {
                Some(trace) => Orders::with_trace(plan, trace),
                None => Orders::new(plan),
            };
            Arc::new(laid_out(orders, &self.lots, GRANULARITY))
        });
        match self.engine.set_orders(record, orders) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.judge(error, 0)),
        }
    }

    /// The later steps' orders: for steps up to the size of the first of these, which has the
    /// lots, and for larger ones.
    pub(crate) fn set_sized_orders(
        &mut self,
        record: bool,
        planned: &[(Plan, Trace)],
        probe: BlockIndex,
    ) -> Result<(), Stop> {
        self.ordered_in.clear();
        let lots = self.lots.iter().flatten().map(|lot| lot.size_bytes);
        self.shared.lock().expect("no kernel panics").lot_bytes_max =
            lots.filter(|&bytes| bytes <= self.setup.limit_bytes).fold(GRANULARITY, u64::max);
        let of = |(plan, trace): &(Plan, Trace)| Orders::for_sizes_up_to(plan, trace, &[probe]);
        let lowest = laid_out(of(&planned[0]), &self.lots, GRANULARITY);
        let orders = Arc::new(lowest.or_larger(planned[1..].iter().map(of)));
        match self.engine.set_orders(record, Some(orders)) {
            Ok(()) => Ok(()),
            Err(error) => Err(self.judge(error, 0)),
        }
    }

    /// Allocates the blocks that outlive steps and fills them.
    pub(crate) fn open(&mut self, script: &Script) -> Result<(), Stop> {
        for &size in &script.persistent {
            self.open_one(size)?;
        }
        self.end_step()
    }

    fn open_one(&mut self, size: u8) -> Result<(), Stop> {
        let at = self.new_block(size, None, true)?;
        self.begin(0)?;
        self.touch(at, AccessMode::Write)?;
        self.launch(0, &[(at, AccessMode::Write)])?;
        self.end()
    }

    /// As [`open`](World::open), where calls may fail.
    pub(crate) fn open_anyway(&mut self, script: &Script) -> Result<(), String> {
        for &size in &script.persistent {
            self.outermost(|world| world.open_one(size))?;
        }
        self.outermost(World::end_step)
    }

    /// From now on no driver call fails.
    pub(crate) fn expect_no_faults(&mut self) {
        self.fault.disarm();
        self.setup.faults = false;
    }

    /// One command at the outermost level. Out of memory, and faults, end the command only.
    fn outermost(
        &mut self,
        run: impl FnOnce(&mut World) -> Result<(), Stop>,
    ) -> Result<(), String> {
        match run(self) {
            Ok(()) => Ok(()),
            Err(Stop::OutOfMemory | Stop::Fault) => {
                self.stopped += 1;
                self.drop_stack();
                Ok(())
            }
            Err(Stop::Broken(what)) => Err(what),
        }
    }

    /// One step of the script. What is left of it at the end is freed.
    pub(crate) fn step(&mut self, commands: &[Command]) -> Result<(), String> {
        for command in commands {
            self.outermost(|world| world.run(command, 0, 0))?;
        }
        for at in self.live() {
            if !self.blocks[at].persistent {
                self.outermost(|world| world.free(at))?;
            }
        }
        self.outermost(World::end_step)?;
        self.verdict()
    }

    /// Reads every block that is alive.
    pub(crate) fn read_all(&mut self) -> Result<(), String> {
        for at in self.live() {
            if self.blocks[at].tag.is_none() {
                continue;
            }
            let read = |world: &mut World| {
                world.begin(0)?;
                world.touch(at, AccessMode::Read)?;
                world.launch(0, &[(at, AccessMode::Read)])?;
                world.end()
            };
            self.outermost(read)?;
        }
        let again = |_| self.engine.synchronize();
        self.engine.synchronize().or_else(again).map_err(|error| error.to_string())?;
        self.verdict()
    }
}
