//! A bench for single transitions: one engine, blocks with known bytes, and actions on demand.

use std::sync::{Arc, Mutex};

use swap_core::devices::{CheckConfig, CheckDriver, HostConfig, HostDriver, HostLink, MeterDriver};
use swap_core::{
    Access, AccessMode, Action, ActionKind, BlockId, BlockIndex, Driver, DriverError, Engine,
    Error, EventKind, HostFunction, OpIndex, OpName, OpStack, Operands, Orders, Origin, Phase,
    Plan, PlanBlock, Recipe, Residency, StepCounters,
};

use super::world::{config, host, physical, word};

pub(crate) const BLOCK: u64 = 16_384;
pub(crate) const ENOUGH: u64 = 1 << 30;
pub(crate) const OP: OpName = OpName::new("op");
const TICK: OpName = OpName::new("tick");

pub(crate) type Errors = Arc<Mutex<Vec<String>>>;

pub(crate) struct Lab {
    pub(crate) host: Arc<HostDriver>,
    pub(crate) meter: Arc<MeterDriver>,
    pub(crate) check: Arc<CheckDriver>,
    pub(crate) engine: Engine,
    pub(crate) ops: OpStack,
    pub(crate) errors: Errors,
    /// Swappable blocks in order of birth, with their physical bytes.
    pub(crate) places: Vec<(BlockId, u64)>,
    pub(crate) counters: StepCounters,
}

/// The work of one op: each operand must hold the pattern (if any) and is left with the other.
pub(crate) type Operand = (BlockId, AccessMode, u64);

pub(crate) fn read(block: BlockId, tag: u64) -> Operand {
    (block, AccessMode::Read, tag)
}

pub(crate) fn write(block: BlockId, tag: u64) -> Operand {
    (block, AccessMode::Write, tag)
}

fn add(sum: &mut StepCounters, more: &StepCounters) {
    sum.swapped_out_bytes += more.swapped_out_bytes;
    sum.swapped_in_bytes += more.swapped_in_bytes;
    sum.clean_swap_outs += more.clean_swap_outs;
    sum.recomputed_ops += more.recomputed_ops;
    sum.misses += more.misses;
    sum.rescues += more.rescues;
    sum.recalls += more.recalls;
}

/// Touches the operands and launches the work on the innermost op.
pub(crate) fn work(ops: &mut OpStack, operands: &[Operand], errors: &Errors) -> Result<(), Error> {
    for &(block, mode, _) in operands {
        ops.touch(block, mode)?;
    }
    let (operands, errors) = (operands.to_vec(), Arc::clone(errors));
    ops.launch(5.0, move |given| {
        for (index, &(block, mode, tag)) in operands.iter().enumerate() {
            if mode == AccessMode::Read {
                let words = given.read::<u64>(index);
                let wrong = (0..words.len()).find(|&at| words[at] != word(tag, at));
                if let Some(at) = wrong {
                    let is = words[at];
                    let text = format!("{block:?} word {at} is {is:#x}, not of pattern {tag}");
                    errors.lock().expect("no kernel panics").push(text);
                }
            } else {
                let words = given.write::<u64>(index);
                for (at, is) in words.iter_mut().enumerate() {
                    *is = word(tag, at);
                }
            }
        }
    })
}

/// Submits work of the caller's own, which the engine does not see. What it uses must be there and
/// stay until the work is done; the checker refuses what is not mapped.
pub(crate) fn submit_unseen(
    check: &CheckDriver,
    stream: swap_core::StreamHandle,
    accesses: Vec<Access>,
    cost_us: f64,
    body: impl FnOnce(&Operands<'_>) + Send + 'static,
) -> Result<(), DriverError> {
    let function = HostFunction { name: "unseen", accesses, cost_us, body: Box::new(body) };
    // SAFETY: all of it is mapped, or the checker refuses, and callers see to it that it stays so.
    unsafe { check.launch_host(function, stream) }
}

/// A recipe for [`work`].
pub(crate) fn recipe(operands: &[Operand], errors: &Errors) -> Recipe {
    let (operands, errors) = (operands.to_vec(), Arc::clone(errors));
    Recipe::new(move |ops, output| {
        ops.begin(OP)?;
        work(ops, &for_output(&operands, output), &errors)?;
        ops.end()
    })
}

/// What a replay for one output uses: of what the op writes, that alone.
pub(crate) fn for_output(operands: &[Operand], output: BlockId) -> Vec<Operand> {
    let used = |operand: &&Operand| operand.1 == AccessMode::Read || operand.0 == output;
    operands.iter().filter(used).copied().collect()
}

impl Lab {
    /// Virtual time with a slow link: copies are under way until time passes.
    pub(crate) fn new(limit_bytes: u64) -> Lab {
        Lab::with(limit_bytes, ENOUGH, HostConfig::by_time(2 * limit_bytes))
    }

    pub(crate) fn with(limit_bytes: u64, arena_bytes: u64, mut device: HostConfig) -> Lab {
        device.link = Some(HostLink::duplex(1 << 30));
        let host = host(device);
        let meter = Arc::new(MeterDriver::new(host.clone()));
        let check = Arc::new(CheckDriver::new(meter.clone(), CheckConfig::ORDER));
        let mut settings = config(limit_bytes, arena_bytes);
        settings.record = false;
        let engine = Engine::new(check.clone(), settings).expect("an engine opens");
        let ops = engine.op_stack();
        Lab {
            host,
            meter,
            check,
            engine,
            ops,
            errors: Arc::default(),
            places: Vec::new(),
            counters: StepCounters::default(),
        }
    }

    /// A block of pattern 1 that is away, and two of patterns 2 and 3 that fill the cap.
    pub(crate) fn full() -> (Lab, BlockId, [BlockId; 2]) {
        let mut lab = Lab::new(2 * BLOCK);
        let away = lab.make(1);
        lab.swap_out(away);
        let others = [lab.make(2), lab.make(3)];
        lab.complete_all();
        (lab, away, others)
    }

    /// A new block that holds pattern `tag`.
    pub(crate) fn make(&mut self, tag: u64) -> BlockId {
        self.make_sized(BLOCK, tag)
    }

    pub(crate) fn make_sized(&mut self, size_bytes: u64, tag: u64) -> BlockId {
        let block = self.try_make(size_bytes, tag).expect("there is room");
        self.errors();
        block
    }

    pub(crate) fn try_make(&mut self, size_bytes: u64, tag: u64) -> Result<BlockId, Error> {
        let block = self.engine.allocate(size_bytes, &format!("block {tag}"))?;
        self.places.push((block, physical(size_bytes)));
        self.op(&[write(block, tag)])?;
        Ok(block)
    }

    /// One op.
    pub(crate) fn op(&mut self, operands: &[Operand]) -> Result<(), Error> {
        self.ops.begin(OP)?;
        work(&mut self.ops, operands, &self.errors)?;
        self.ops.end()
    }

    /// An op that makes a block from inputs, and can do so again.
    pub(crate) fn derive(&mut self, inputs: &[Operand], tag: u64) -> BlockId {
        self.ops.begin(OP).expect("begins");
        let block = self.ops.allocate(BLOCK, &format!("derived {tag}")).expect("there is room");
        self.places.push((block, BLOCK));
        let mut operands = inputs.to_vec();
        operands.push(write(block, tag));
        work(&mut self.ops, &operands, &self.errors).expect("works");
        self.ops.recipe(recipe(&operands, &self.errors)).expect("an op is open");
        self.ops.end().expect("ends");
        block
    }

    /// Does these actions now: ends the step and runs an empty op under a plan that has them.
    pub(crate) fn act(&mut self, actions: &[(ActionKind, BlockId)]) {
        self.end_step();
        let blocks = self.places.iter().enumerate().map(|(at, &(_, size_bytes))| PlanBlock {
            index: BlockIndex(at as u32),
            size_bytes,
            origin: Origin::Persistent,
        });
        let place = |block: BlockId| {
            let at = self.places.iter().position(|place| place.0 == block);
            BlockIndex(at.expect("the lab made it") as u32)
        };
        let actions = actions.iter().map(|&(kind, block)| Action {
            op: OpIndex(0),
            phase: Phase::Begin,
            kind,
            block: place(block),
            due: OpIndex(0),
        });
        let plan = Plan { blocks: blocks.collect(), actions: actions.collect(), ..Plan::default() };
        let orders = Some(Arc::new(Orders::new(&plan)));
        self.engine.set_orders(false, orders).expect("between steps");
        self.tick();
        let report = self.end_step();
        assert_eq!(report, None, "the plan did not fit the step");
        self.engine.set_orders(false, None).expect("between steps");
    }

    /// An op that does nothing.
    pub(crate) fn tick(&mut self) {
        self.ops.begin(TICK).expect("begins");
        self.ops.end().expect("ends");
    }

    /// Ends the step, adds up counters, and returns where it drifted. Time does not pass.
    pub(crate) fn end_step(&mut self) -> Option<OpIndex> {
        let mut drifted = None;
        for report in self.engine.end_step().expect("the step ends") {
            add(&mut self.counters, &report.counters);
            drifted = drifted.or(report.drifted_at);
        }
        drifted
    }

    pub(crate) fn state(&self, block: BlockId) -> Residency {
        self.engine.residency(block).expect("the block lives")
    }

    /// Lets everything that is under way finish.
    pub(crate) fn complete_all(&self) {
        self.host.synchronize().expect("no kernel panicked");
    }

    /// Whether the block's address has memory, whose bytes may still be on their way.
    pub(crate) fn is_there(&self, block: BlockId) -> bool {
        matches!(self.state(block), Residency::Resident | Residency::Arriving)
    }

    /// Work on `stream` that no op tells of: it leaves `block`, which must be there and stay until
    /// the work is done, with pattern `tag`.
    pub(crate) fn write_unseen(&self, stream: swap_core::StreamHandle, block: BlockId, tag: u64) {
        let start = self.engine.address(block).expect("lives");
        let access = Access { start, size_bytes: BLOCK, mode: AccessMode::Write };
        assert!(self.is_there(block));
        let body = move |given: &Operands<'_>| {
            for (at, is) in given.write::<u64>(0).iter_mut().enumerate() {
                *is = word(tag, at);
            }
        };
        submit_unseen(&self.check, stream, vec![access], 500.0, body).expect("launches");
    }

    pub(crate) fn swap_out(&mut self, block: BlockId) {
        self.act(&[(ActionKind::SwapOut, block)]);
    }

    pub(crate) fn discard(&mut self, block: BlockId) {
        self.act(&[(ActionKind::Discard, block)]);
        assert_eq!(self.state(block), Residency::Discarded);
    }

    pub(crate) fn free(&mut self, block: BlockId) {
        self.engine.free(block).expect("the block lives");
        self.places.retain(|place| place.0 != block);
    }

    /// Bytes that callers have, and that they freed while others are made from them.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let stats = self.engine.memory_stats().expect("stats");
        (stats.requested_bytes.current, stats.disowned_bytes)
    }

    /// Counters of all steps so far, after the device has come to rest.
    pub(crate) fn total(&mut self) -> StepCounters {
        self.end_step();
        for report in self.engine.drain_reports().expect("reports") {
            add(&mut self.counters, &report.counters);
        }
        self.counters
    }

    /// Waits, and fails if a kernel saw wrong bytes or anything was not ordered.
    pub(crate) fn errors(&self) {
        self.engine.synchronize().expect("the device works");
        let errors = self.errors.lock().expect("no kernel panics");
        assert_eq!(errors.first(), None);
        assert_eq!(self.check.violations().first(), None);
    }

    /// The end: right bytes, order, the cap, and nothing left.
    pub(crate) fn finish(self) {
        self.errors();
        let cap = self.check.properties().total_bytes / 2;
        assert!(self.host.ledger().chunk_bytes_peak <= cap);
        let Lab { host, engine, ops, check, .. } = self;
        drop(ops);
        drop(engine);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
        assert_eq!(check.violations().first(), None);
    }
}

impl Lab {
    /// A second compute stream of the owner.
    pub(crate) fn check_stream(&self) -> (swap_core::StreamHandle, swap_core::StreamId) {
        let handle = self.check.create_stream().expect("a stream");
        (handle, self.engine.adopt_stream(handle).expect("known"))
    }

    /// The owner's order: what comes on `stream` runs after the compute stream's work so far.
    pub(crate) fn order(&self, stream: swap_core::StreamHandle) {
        let event = self.check.create_event(EventKind::Order).expect("an event");
        let compute = self.engine.stream_handles().expect("handles")[0];
        self.check.record_event(event, compute).expect("records");
        self.check.wait_event(stream, event).expect("waits");
        self.check.destroy_event(event).expect("destroys");
    }

    /// The reverse of [`order`](Lab::order).
    pub(crate) fn order_compute(&self, stream: swap_core::StreamHandle) {
        let event = self.check.create_event(EventKind::Order).expect("an event");
        let compute = self.engine.stream_handles().expect("handles")[0];
        self.check.record_event(event, stream).expect("records");
        self.check.wait_event(compute, event).expect("waits");
        self.check.destroy_event(event).expect("destroys");
    }

    /// As [`finish`](Lab::finish), with a stream from [`check_stream`](Lab::check_stream).
    pub(crate) fn close_with(self, stream: swap_core::StreamHandle) {
        let Lab { host, engine, ops, check, .. } = self;
        drop(ops);
        drop(engine);
        check.destroy_stream(stream).expect("destroys");
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
        assert_eq!(check.violations().first(), None);
    }
}
