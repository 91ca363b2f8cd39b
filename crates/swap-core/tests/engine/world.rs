//! Runs scripts on an engine and judges what happens, by means of its own.
//!
//! The runner keeps a shadow of every block: which pattern it must hold. Every kernel compares all
//! bytes of its inputs with the shadow and writes new patterns. Ops whose work the engine does not
//! launch are ordered here against those of the other stream, by events of the driver, as the owner
//! of the work would. Whether an out-of-memory error is right is computed here, from what open ops
//! hold.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use swap_core::{
    AccessMode, ActionKind, ArenaConfig, BlockId, CheckConfig, CheckDriver, Compute, Config,
    Driver, Engine, Error, FaultDriver, HostConfig, HostDriver, OpName, OpStack, Operands, Orders,
    Phase, Plan, PoolConfig, Recipe, Residency, StepCounters, StepReport, StreamHandle, StreamId,
    Trace,
};
use vmem::{EventHandle, EventKind};

use super::judge::Judge;
use super::script::{Command, OpSpec, SIZES, Script, Writes};

pub(crate) const GRANULARITY: u64 = 4096;
pub(crate) const THRESHOLD: u64 = 8192;
pub(crate) const SEGMENT: u64 = 16_384;
const POISON: u64 = 0xdead_5a1e_dead_5a1e;
const NAMES: [OpName; 4] =
    [OpName::new("make"), OpName::new("mix"), OpName::new("side"), OpName::new("check")];

/// The `index`-th word of a block that holds pattern `tag`.
pub(crate) fn word(tag: u64, index: usize) -> u64 {
    (tag.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(index as u64 * 0x0001_0000_0001)
}

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

/// What kernels and recipes, which run elsewhere, share with the runner.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// Wrong bytes that kernels saw.
    pub(crate) errors: Vec<String>,
    /// The swappable blocks of each open op, replays included, with their physical bytes.
    open: Vec<BTreeMap<BlockId, u64>>,
    /// Bytes that the op at which memory ran out needed beside those around it.
    needed_bytes: Option<u64>,
    pub(crate) kernels: u64,
    pub(crate) words_checked: u64,
    pub(crate) replays: u64,
}

impl Shared {
    fn open_bytes(&self) -> u64 {
        let mut all: BTreeMap<BlockId, u64> = BTreeMap::new();
        for frame in &self.open {
            all.extend(frame);
        }
        all.values().sum()
    }
}

pub(crate) type SharedRef = Arc<Mutex<Shared>>;

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

/// Sums over many runs, to show that they did something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) steps: u64,
    pub(crate) ops: u64,
    pub(crate) kernels: u64,
    pub(crate) words_checked: u64,
    pub(crate) counters: StepCounters,
    pub(crate) drifted: u64,
    pub(crate) out_of_memory: u64,
    pub(crate) host_full: u64,
    pub(crate) retakes: u64,
    pub(crate) put_off: u64,
    pub(crate) abandoned: u64,
    pub(crate) side_ops: u64,
    pub(crate) nested_ops: u64,
    pub(crate) ordered: u64,
    pub(crate) replays: u64,
    pub(crate) accesses_checked: u64,
    /// By what [`Residency`] said before: frees, touches.
    pub(crate) frees: BTreeMap<&'static str, u64>,
    pub(crate) touches: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.ops += other.ops;
        self.kernels += other.kernels;
        self.words_checked += other.words_checked;
        self.counters.swapped_out_bytes += other.counters.swapped_out_bytes;
        self.counters.swapped_in_bytes += other.counters.swapped_in_bytes;
        self.counters.clean_swap_outs += other.counters.clean_swap_outs;
        self.counters.recomputed_ops += other.counters.recomputed_ops;
        self.counters.misses += other.counters.misses;
        self.counters.rescues += other.counters.rescues;
        self.counters.host_waits += other.counters.host_waits;
        self.counters.stall_us += other.counters.stall_us;
        self.drifted += other.drifted;
        self.out_of_memory += other.out_of_memory;
        self.host_full += other.host_full;
        self.retakes += other.retakes;
        self.put_off += other.put_off;
        self.abandoned += other.abandoned;
        self.side_ops += other.side_ops;
        self.nested_ops += other.nested_ops;
        self.ordered += other.ordered;
        self.replays += other.replays;
        self.accesses_checked += other.accesses_checked;
        for (from, to) in [(&other.frees, &mut self.frees), (&other.touches, &mut self.touches)] {
            for (name, count) in from {
                *to.entry(name).or_default() += count;
            }
        }
    }

    fn report(&mut self, report: &StepReport) {
        self.steps += 1;
        let counters = report.counters;
        let once = Tally { counters, ..Tally::default() };
        self.drifted += u64::from(report.drifted_at.is_some());
        self.add(&once);
    }
}

pub(crate) fn state_name(residency: Residency) -> &'static str {
    match residency {
        Residency::Resident => "resident",
        Residency::Leaving => "leaving",
        Residency::Away => "away",
        Residency::Arriving => "arriving",
        Residency::Discarded => "discarded",
    }
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
    pub(crate) tally: Tally,
    /// The most bytes that open ops held at once, and of everything alive.
    pub(crate) working_bytes_peak: u64,
    pub(crate) live_bytes_peak: u64,
    pub(crate) segment_bytes_peak: u64,
    pub(crate) trace: Option<Trace>,
    pub(crate) stopped: u64,
}

/// What one kernel does: by operand, the pattern it must find and the one it leaves.
#[derive(Clone, Debug, Default)]
struct Kernel {
    finds: Vec<Option<u64>>,
    leaves: Vec<Option<u64>>,
}

impl Kernel {
    fn body(&self, shared: &SharedRef, what: &str) -> impl FnOnce(&Operands<'_>) + Send + 'static {
        let (kernel, shared, what) = (self.clone(), Arc::clone(shared), what.to_owned());
        move |operands| {
            let mut wrong = Vec::new();
            let mut checked = 0;
            for (index, (finds, leaves)) in kernel.finds.iter().zip(&kernel.leaves).enumerate() {
                let mut look = |words: &[u64]| {
                    let Some(tag) = *finds else { return };
                    checked += words.len() as u64;
                    let bad = words.iter().enumerate().find(|&(at, &is)| is != word(tag, at));
                    if let Some((at, is)) = bad {
                        let must = word(tag, at);
                        wrong.push(format!(
                            "{what}: operand {index} word {at}: {is:#x}, not {must:#x}"
                        ));
                    }
                };
                match leaves {
                    None => look(operands.read::<u64>(index)),
                    Some(tag) => {
                        let words = operands.write::<u64>(index);
                        look(words);
                        for (at, word_) in words.iter_mut().enumerate() {
                            *word_ = word(*tag, at);
                        }
                    }
                }
            }
            let mut shared = shared.lock().expect("no kernel panics");
            shared.errors.extend(wrong);
            shared.kernels += 1;
            shared.words_checked += checked;
        }
    }
}

/// An op's operands in order.
type Operand = (usize, AccessMode);

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

    /// Judges a failed call. `extra_bytes` is what the call itself asked for.
    fn judge(&mut self, error: Error, extra_bytes: u64) -> Stop {
        match error {
            Error::OutOfMemory(report) => {
                self.tally.out_of_memory += 1;
                let needed = {
                    let mut shared = self.shared.lock().expect("no kernel panics");
                    let open_bytes = shared.open_bytes() + extra_bytes;
                    shared.needed_bytes.take().unwrap_or(0).max(open_bytes)
                };
                let segments = match self.engine.memory_stats() {
                    Ok(stats) => stats.segment_bytes.current,
                    Err(error) => return Stop::Broken(error.to_string()),
                };
                if report.host_full {
                    self.tally.host_full += 1;
                    if self.setup.arena_bytes < 1 << 30 {
                        return Stop::OutOfMemory;
                    }
                }
                if self.setup.faults || needed + segments > self.setup.limit_bytes {
                    return Stop::OutOfMemory;
                }
                Stop::Broken(format!(
                    "out of memory, but open ops need only {needed} + {segments} of {}: {report}",
                    self.setup.limit_bytes
                ))
            }
            error if self.setup.faults => {
                let _ = error;
                Stop::Fault
            }
            error => Stop::Broken(format!("unexpected error: {error}")),
        }
    }

    /// The largest discarded block: a write may first have to bring it back.
    fn largest_discarded(&self) -> u64 {
        let discarded = |shadow: &&Shadow| {
            shadow.live && self.engine.residency(shadow.id) == Ok(Residency::Discarded)
        };
        let sizes =
            self.blocks.iter().filter(discarded).map(|shadow| self.physical(shadow.size_bytes));
        sizes.max().unwrap_or(0)
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

    fn touch(&mut self, at: usize, mode: AccessMode) -> Result<(), Stop> {
        let Shadow { id, size_bytes, address, .. } = self.blocks[at];
        self.enter(Some(id), size_bytes);
        self.note_live();
        let mut before = None;
        if self.setup.probe
            && let Ok(residency) = self.engine.residency(id)
        {
            *self.tally.touches.entry(state_name(residency)).or_default() += 1;
            if matches!(residency, Residency::Leaving | Residency::Away) {
                before = Some(self.copies());
            }
        }
        match self.ops().touch(id, mode) {
            Ok(found) if found.0 == address => {
                if before.is_some_and(|copies| copies == self.copies()) {
                    self.tally.retakes += 1;
                }
                Ok(())
            }
            Ok(found) => self.broken(format!("the block moved from {address:#x} to {found:?}")),
            Err(error) => {
                let extra = if mode.writes() { self.largest_discarded() } else { 0 };
                Err(self.judge(error, extra))
            }
        }
    }

    fn copies(&self) -> u64 {
        self.fault.calls_by_name().get("copy").copied().unwrap_or(0)
    }

    /// The owner's own order: later work of `stream` comes behind this much of the other's.
    fn order(&mut self, stream: usize, needed: u64) {
        let other = 1 - stream;
        if needed > self.behind[stream] {
            self.check.record_event(self.event, self.streams[other].1).expect("records");
            self.check.wait_event(self.streams[stream].1, self.event).expect("waits");
            self.behind[stream] = self.launched[other];
            self.tally.ordered += 1;
        }
    }

    /// Launches the kernel of the open op, and follows it in the shadow.
    fn launch(&mut self, stream: usize, operands: &[Operand]) -> Result<Kernel, Stop> {
        let mut kernel = Kernel::default();
        for &(at, mode) in operands {
            if mode.writes() && stream == 1 {
                self.order(1, self.blocks[at].watched);
            }
            let tag = self.blocks[at].tag;
            let fresh = if mode.writes() { Some(self.tag()) } else { None };
            kernel.finds.push(if mode == AccessMode::Write { None } else { tag });
            kernel.leaves.push(fresh);
        }
        let what = format!("op {} of step {}", self.op_index, self.tally.steps);
        let body = kernel.body(&self.shared, &what);
        if let Err(error) = self.ops().launch(10.0, body) {
            return Err(self.judge(error, 0));
        }
        self.launched[stream] += 1;
        let number = self.launched[stream];
        for (&(at, mode), leaves) in operands.iter().zip(&kernel.leaves) {
            let shadow = &mut self.blocks[at];
            if mode.writes() {
                shadow.tag = *leaves;
                shadow.written = Some((stream, number));
            }
        }
        Ok(kernel)
    }

    fn begin(&mut self, stream: usize) -> Result<(), Stop> {
        self.shared.lock().expect("no kernel panics").open.push(BTreeMap::new());
        let (op, on) = (self.op_index, self.streams[stream].0);
        if let Err(error) = self.ops().begin_on(NAMES[stream * 2], on) {
            return Err(self.judge(error, 0));
        }
        self.op_index += 1;
        self.tally.ops += 1;
        self.tally.side_ops += stream as u64;
        if self.setup.probe {
            let due = self.ordered_in.iter().filter(|ordered| ordered.0 == op);
            let ids: Vec<BlockId> =
                due.filter_map(|&(_, at)| self.places.get(at).copied()).collect();
            for id in ids {
                let away =
                    matches!(self.engine.residency(id), Ok(Residency::Away | Residency::Leaving));
                self.tally.put_off += u64::from(away);
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Stop> {
        let result = self.ops().end();
        self.shared.lock().expect("no kernel panics").open.pop();
        result.map_err(|error| self.judge(error, 0))
    }

    fn run_op(&mut self, spec: &OpSpec, depth: usize) -> Result<(), Stop> {
        let stream = usize::from(spec.side);
        self.begin(stream)?;
        self.tally.nested_ops += u64::from(depth > 0);
        let mut operands: Vec<Operand> = Vec::new();
        for &pick in &spec.reads {
            let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { continue };
            if !operands.iter().any(|operand| operand.0 == at) {
                self.touch(at, AccessMode::Read)?;
                operands.push((at, AccessMode::Read));
            }
        }
        for command in &spec.inner {
            self.run(command, depth + 1, stream)?;
        }
        let mut fresh = Vec::new();
        match spec.writes {
            Writes::Nothing => {}
            Writes::InPlace(pick) | Writes::Over(pick) => {
                let at = self.pick(pick, |_| true);
                if let Some(at) = at.filter(|&at| !operands.iter().any(|operand| operand.0 == at)) {
                    let knows = self.blocks[at].tag.is_some();
                    let in_place = knows && matches!(spec.writes, Writes::InPlace(_));
                    let mode = if in_place { AccessMode::ReadWrite } else { AccessMode::Write };
                    self.touch(at, mode)?;
                    operands.push((at, mode));
                }
            }
            Writes::Fresh(size) => fresh.push(size),
            Writes::Two(first, second) => fresh.extend([first, second]),
        }
        for size in fresh {
            let at = self.new_block(size, Some(stream), false)?;
            self.touch(at, AccessMode::Write)?;
            operands.push((at, AccessMode::Write));
        }
        let mut temporary = None;
        if let Some(size) = spec.temporary {
            let at = self.new_block(size, Some(stream), false)?;
            self.touch(at, AccessMode::Write)?;
            operands.push((at, AccessMode::Write));
            temporary = Some(at);
        }
        let kernel = self.launch(stream, &operands)?;
        if spec.recipe && temporary.is_none() && !operands.is_empty() {
            let recipe = self.recipe(stream, &operands, &kernel);
            if let Err(error) = self.ops().recipe(recipe) {
                return Err(self.judge(error, 0));
            }
        }
        if let Some(at) = temporary {
            self.free(at)?;
        }
        if spec.frees_input
            && let Some(&(at, AccessMode::Read)) = operands.first()
            && !self.blocks[at].persistent
            && depth == 0
        {
            self.free(at)?;
        }
        self.end()
    }

    fn recipe(&self, stream: usize, operands: &[Operand], kernel: &Kernel) -> Recipe {
        let blocks: Vec<(BlockId, u64, AccessMode)> = operands
            .iter()
            .map(|&(at, mode)| (self.blocks[at].id, self.blocks[at].size_bytes, mode))
            .collect();
        let (shared, kernel, stream) =
            (Arc::clone(&self.shared), kernel.clone(), self.streams[stream].0);
        let granularity = self.setup.granularity_bytes;
        Recipe::new(move |ops| {
            let physical = |size: u64| size.next_multiple_of(granularity);
            let bytes = |size: u64| if size >= THRESHOLD { physical(size) } else { 0 };
            let frame = blocks.iter().map(|&(id, size, _)| (id, bytes(size))).collect();
            let depth = {
                let mut shared = shared.lock().expect("no kernel panics");
                shared.open.push(frame);
                shared.replays += 1;
                shared.open.len()
            };
            let result = replay(ops, stream, &blocks, &kernel, &shared);
            let mut shared = shared.lock().expect("no kernel panics");
            if let Err(Error::OutOfMemory(_)) = &result {
                let needed = shared.open_bytes();
                shared.needed_bytes.get_or_insert(needed);
            }
            shared.open.truncate(depth - 1);
            result
        })
    }

    fn run(&mut self, command: &Command, depth: usize, stream: usize) -> Result<(), Stop> {
        match command {
            Command::Op(spec) => self.run_op(spec, depth),
            Command::Free(pick) => {
                let at = self.pick(*pick, |shadow| !shadow.persistent && !self.is_open(shadow.id));
                at.map_or(Ok(()), |at| self.free(at))
            }
            Command::Allocate(size) => {
                self.new_block(*size, (depth > 0).then_some(stream), false).map(|_| ())
            }
            Command::Watch(pick) => self.watch(*pick),
            Command::Trim => match self.engine.trim() {
                Ok(()) => Ok(()),
                Err(error) => Err(self.judge(error, 0)),
            },
            Command::Abandon(pick) => self.abandon(*pick),
            Command::EndStep => self.end_step(),
        }
    }

    /// An exception in the middle of an op: work was launched, the op never ends.
    fn abandon(&mut self, pick: u16) -> Result<(), Stop> {
        let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { return Ok(()) };
        self.begin(0)?;
        self.touch(at, AccessMode::ReadWrite)?;
        self.launch(0, &[(at, AccessMode::ReadWrite)])?;
        self.drop_stack();
        self.tally.abandoned += 1;
        Ok(())
    }

    /// An op without a launch, as operators of a framework are.
    fn watch(&mut self, pick: u16) -> Result<(), Stop> {
        let Some(at) = self.pick(pick, |shadow| shadow.tag.is_some()) else { return Ok(()) };
        self.begin(0)?;
        self.touch(at, AccessMode::Read)?;
        if let Some((1, number)) = self.blocks[at].written {
            self.order(0, number);
        }
        self.launched[0] += 1;
        self.blocks[at].watched = self.launched[0];
        self.end()
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
            Arc::new(match trace {
                Some(trace) => Orders::with_trace(plan, trace),
                None => Orders::new(plan),
            })
        });
        match self.engine.set_orders(record, orders) {
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

    /// What kernels, the checker and the ledger say.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        if let Some(error) = self.shared.lock().expect("no kernel panics").errors.first() {
            return Err(format!("wrong bytes: {error}"));
        }
        if let Some(violation) = self.check.violations().first() {
            return Err(format!("not ordered: {violation:?}"));
        }
        let ledger = self.judge.ledger();
        if ledger.chunk_bytes_peak > self.setup.limit_bytes {
            return Err(format!(
                "{} held under a cap of {}",
                ledger.chunk_bytes_peak, self.setup.limit_bytes
            ));
        }
        if ledger.registered_bytes_peak > self.setup.arena_bytes {
            return Err(format!("{} pinned", ledger.registered_bytes_peak));
        }
        let stats = self.engine.memory_stats().map_err(|error| error.to_string())?;
        if stats.reserved_bytes.current != ledger.chunk_bytes {
            return Err(format!("{stats:?} disagrees with {ledger:?}"));
        }
        let live = || self.blocks.iter().filter(|shadow| shadow.live);
        let requested: u64 = live().map(|shadow| shadow.size_bytes).sum();
        if stats.requested_bytes.current < requested {
            return Err(format!("{requested} requested, {stats:?}"));
        }
        Ok(())
    }

    /// Ends everything and looks at what is left.
    pub(crate) fn close(mut self) -> Result<Tally, String> {
        if let Ok(reports) = self.engine.drain_reports() {
            self.take(reports);
        }
        let World { engine, ops, judge, check, shared, mut tally, streams, event, .. } = self;
        drop(ops);
        drop(engine);
        check.destroy_event(event).expect("the event is ours");
        check.destroy_stream(streams[1].1).expect("the stream is ours");
        let ledger = judge.ledger();
        if !ledger.is_empty() {
            return Err(format!("something is left: {ledger:?}"));
        }
        if let Some(violation) = check.violations().first() {
            return Err(format!("not ordered at the end: {violation:?}"));
        }
        let shared = shared.lock().expect("no kernel panics");
        tally.kernels += shared.kernels;
        tally.words_checked += shared.words_checked;
        tally.replays += shared.replays;
        tally.accesses_checked += check.accesses_checked();
        match shared.errors.first() {
            Some(error) => Err(format!("wrong bytes at the end: {error}")),
            None => Ok(tally),
        }
    }
}

/// What a recipe does: the op once more.
fn replay(
    ops: &mut OpStack,
    stream: StreamId,
    blocks: &[(BlockId, u64, AccessMode)],
    kernel: &Kernel,
    shared: &SharedRef,
) -> Result<(), Error> {
    ops.begin_on(NAMES[1], stream)?;
    for &(id, _, mode) in blocks {
        ops.touch(id, mode)?;
    }
    ops.launch(10.0, kernel.body(shared, "replay"))?;
    ops.end()
}
