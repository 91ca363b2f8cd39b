//! Replays a trace on the engine over the host driver in lockstep, call by call.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::devices::{HostConfig, HostDriver, HostLink};
use policy::{
    AccessMode, Action, ActionKind, ArenaConfig, BlockId, BlockIndex, Compute, Config, Engine,
    Error, Layout, Machine, OpIndex, OpName, OpStack, Orders, Origin, Phase, Plan, PlanBlock,
    PoolConfig, Recipe, StepReport, Trace, TraceEvent, replayable_blocks,
};

pub(crate) const GRANULARITY_BYTES: u64 = 64 << 10;
pub(crate) const STEPS: usize = 5;

/// Replays a trace's calls on an engine.
pub(crate) struct Replayer<'a> {
    trace: &'a Trace,
    engine: Engine,
    ops: OpStack,
    names: Vec<OpName>,
    /// By op that can run again: what it takes.
    replay_us: BTreeMap<OpIndex, f64>,
    live: BTreeMap<u32, BlockId>,
    /// For the recipe of each open op.
    open: Vec<Open>,
}

/// What an open op has done so far.
struct Open {
    op: OpIndex,
    touches: Vec<(BlockId, AccessMode)>,
    /// What it allocated or overwrites, with physical bytes.
    made: Vec<(BlockId, u64)>,
    /// It has run on the device.
    has_run: bool,
}

impl Open {
    fn makes(&mut self, block: BlockId, size_bytes: u64) {
        if self.made.iter().all(|made| made.0 != block) {
            self.made.push((block, size_bytes));
        }
    }

    /// The op once more, for one of its outputs; what else it makes goes to scratch.
    fn again(self, name: OpName, cost_us: f64) -> Recipe {
        let Open { touches, made, .. } = self;
        Recipe::new(move |ops, output| {
            ops.begin(name)?;
            for &(block, mode) in touches.iter().filter(|touch| touch.1 == AccessMode::Read) {
                if made.iter().all(|made| made.0 != block) {
                    ops.touch(block, mode)?;
                }
            }
            let others = made.iter().filter(|made| made.0 != output);
            let scratch: Result<Vec<BlockId>, Error> =
                others.map(|&(_, size_bytes)| ops.allocate(size_bytes, "scratch")).collect();
            ops.touch(output, AccessMode::Write)?;
            ops.launch(cost_us, |_| {})?;
            scratch?.into_iter().try_for_each(|block| ops.free(block))?;
            ops.end()
        })
    }
}

impl<'a> Replayer<'a> {
    pub(crate) fn new(trace: &'a Trace, machine: &Machine) -> Replayer<'a> {
        let rate = |bytes_per_us: f64| (bytes_per_us * 1e6) as u64;
        let link = HostLink {
            out_bytes_per_s: rate(machine.link.out_bytes_per_us),
            in_bytes_per_s: rate(machine.link.in_bytes_per_us),
            both_bytes_per_s: rate(machine.link.both_bytes_per_us),
        };
        let config = HostConfig {
            link: Some(link),
            granularity_bytes: GRANULARITY_BYTES,
            ..HostConfig::by_time(machine.limit_bytes)
        };
        let device = HostDriver::new(config).expect("the host has memory");
        let config = Config {
            pool: PoolConfig {
                limit_bytes: machine.limit_bytes,
                swap_threshold_bytes: GRANULARITY_BYTES,
                segment_bytes: GRANULARITY_BYTES,
            },
            arena: ArenaConfig { region_bytes: 1 << 20, ..ArenaConfig::new(1 << 40) },
            compute: Compute::Own,
            record: false,
        };
        let engine = Engine::new(device, config).expect("the settings are good");
        let ops = engine.op_stack();
        let name = |text: &String| OpName::new(Box::leak(text.clone().into_boxed_str()));
        let names = trace.ops.iter().map(|op| name(&op.name)).collect();
        let replays = replayable_blocks(trace).into_iter();
        let replay_us = replays.map(|one| (one.producer, one.device_us)).collect();
        Replayer { trace, engine, ops, names, replay_us, live: BTreeMap::new(), open: Vec::new() }
    }

    pub(crate) fn run(&mut self, plan: &Plan) -> Result<Vec<StepReport>, Error> {
        self.run_in(plan, Layout::default())
    }

    /// Runs with blocks where a layout has them.
    pub(crate) fn run_in(&mut self, plan: &Plan, layout: Layout) -> Result<Vec<StepReport>, Error> {
        self.start_as_the_simulator_does(plan)?;
        let orders = Orders::with_trace(plan, self.trace);
        let orders = Arc::new(orders.with_lots(layout.turns).with_pieces(layout.pieces));
        let orders = (!plan.actions.is_empty()).then_some(orders);
        self.engine.set_orders(false, orders)?;
        let mut reports = Vec::new();
        for step in 0..STEPS {
            if step + 1 == STEPS {
                assert!(self.engine.measure_lanes()?, "the last step is measured");
            }
            for &event in &self.trace.events {
                self.event(event)?;
            }
            self.roll_over();
            reports.extend(self.engine.end_step()?);
        }
        reports.extend(self.engine.drain_reports()?);
        assert_eq!(reports.len(), STEPS, "each step reports once");
        Ok(reports)
    }

    /// Persistent blocks that the plan leaves away start away, the others resident, and nothing
    /// is cached.
    fn start_as_the_simulator_does(&mut self, plan: &Plan) -> Result<(), Error> {
        for (index, block) in (0..).zip(&self.trace.blocks) {
            if block.origin == Origin::Persistent {
                self.live.insert(index, self.engine.allocate(block.size_bytes, "")?);
            }
        }
        self.engine.end_step()?;
        let (op, phase, kind) = (OpIndex(0), Phase::End, ActionKind::SwapOut);
        let away = left_away(self.trace, plan);
        let leave = |&block: &BlockIndex| Action { op, phase, kind, block, due: op };
        let blocks = self.trace.blocks.iter().take_while(|b| b.origin == Origin::Persistent);
        let blocks = (0..).zip(blocks).map(|(index, block)| PlanBlock {
            index: BlockIndex(index),
            size_bytes: block.size_bytes,
            origin: Origin::Persistent,
        });
        let setup = Plan {
            blocks: blocks.collect(),
            actions: away.iter().map(leave).collect(),
            ..Plan::default()
        };
        self.engine.set_orders(false, Some(Arc::new(Orders::new(&setup))))?;
        self.ops.begin(OpName::new("setup"))?;
        self.ops.end()?;
        self.engine.end_step()?;
        self.engine.drain_reports()?;
        self.engine.trim()
    }

    fn event(&mut self, event: TraceEvent) -> Result<(), Error> {
        match event {
            TraceEvent::Begin(op) => {
                self.ops.begin(self.names[op.0 as usize])?;
                self.open.push(Open { op, touches: Vec::new(), made: Vec::new(), has_run: false });
            }
            TraceEvent::Touch(block, mode) => {
                let id = self.live[&block.0];
                self.ops.touch(id, mode)?;
                let open = self.open.last_mut().expect("touches are inside ops");
                open.touches.push((id, mode));
                if mode == AccessMode::Write {
                    open.makes(id, self.trace.blocks[block.0 as usize].size_bytes);
                }
            }
            TraceEvent::Allocate(block) => {
                let size_bytes = self.trace.blocks[block.0 as usize].size_bytes;
                let id = match self.open.is_empty() {
                    true => self.engine.allocate(size_bytes, "")?,
                    false => self.ops.allocate(size_bytes, "")?,
                };
                self.live.insert(block.0, id);
                self.open.iter_mut().for_each(|open| open.makes(id, size_bytes));
            }
            TraceEvent::Free(block) => {
                // What an op frees it uses before.
                self.run_outermost()?;
                let id = self.live.remove(&block.0).expect("it is live");
                self.engine.free(id)?;
            }
            TraceEvent::Segments(_) => unreachable!("such traces are left out"),
            TraceEvent::End(op) => self.end(op)?,
        }
        Ok(())
    }

    /// Runs the outermost open op on the device, unless it has. What is in the bytes is another
    /// test's business.
    fn run_outermost(&mut self) -> Result<(), Error> {
        let Some(open) = self.open.first_mut().filter(|open| !open.has_run) else { return Ok(()) };
        open.has_run = true;
        self.ops.launch(self.trace.ops[open.op.0 as usize].device_us, |_| {})
    }

    fn end(&mut self, op: OpIndex) -> Result<(), Error> {
        if self.open.len() == 1 {
            self.run_outermost()?;
        }
        let open = self.open.pop().expect("ops nest");
        assert_eq!(open.op, op);
        let traced = &self.trace.ops[op.0 as usize];
        let cost_us = traced.device_us;
        if traced.replayable {
            let name = self.names[op.0 as usize];
            let cost_us = self.replay_us.get(&op).copied().unwrap_or(cost_us);
            self.ops.recipe(open.again(name, cost_us))?;
        }
        self.ops.end()
    }

    /// Blocks alive at the step's end are numbered anew, oldest first, as the engine does.
    fn roll_over(&mut self) {
        let live: Vec<BlockId> = std::mem::take(&mut self.live).into_values().collect();
        self.live = (0..).zip(live).collect();
    }
}

/// The blocks of the next step that the plan leaves away at the end of one, by their place there.
fn left_away(trace: &Trace, plan: &Plan) -> Vec<BlockIndex> {
    let freed = |block: BlockIndex| trace.events.contains(&TraceEvent::Free(block));
    let survivors: Vec<BlockIndex> =
        (0..trace.blocks.len() as u32).map(BlockIndex).filter(|&block| !freed(block)).collect();
    let mut away = BTreeMap::new();
    for action in &plan.actions {
        if let Some(place) = survivors.iter().position(|&block| block == action.block) {
            away.insert(place as u32, action.kind == ActionKind::SwapOut);
        }
    }
    away.into_iter().filter(|&(_, away)| away).map(|(place, _)| BlockIndex(place)).collect()
}
