//! Promise: the simulator counts what the engine does.
//!
//! Traces are replayed on the engine over the host driver in lockstep, under generated and under
//! random plans. Once both have settled, held and resident peaks, bytes moved, misses, rescues and
//! replays agree exactly, and the step's time within 3 %. A laid-out step asks the driver for no
//! memory, and takes what was said, or up to a tenth less.

use std::collections::BTreeMap;
use std::sync::Arc;

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    AccessMode, Action, ActionKind, ArenaConfig, BlockId, BlockIndex, Compute, Config, Engine,
    Error, GenerateConfig, HostConfig, HostDriver, HostLink, Link, Lot, Machine, OpIndex, OpName,
    OpStack, Orders, Origin, Phase, Plan, PlanBlock, PoolConfig, Preference, Recipe,
    RecomputeOption, ReplaySpan, Simulation, Simulator, StepReport, Trace, TraceEvent, generate,
    lay_out, replayable_blocks,
};

const GRANULARITY_BYTES: u64 = 64 << 10;
const STEPS: usize = 5;

/// Replays a trace's calls on an engine.
struct Replayer<'a> {
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
    fn new(trace: &'a Trace, machine: &Machine) -> Replayer<'a> {
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

    fn run(&mut self, plan: &Plan) -> Result<Vec<StepReport>, Error> {
        self.run_in(plan, Vec::new())
    }

    /// Runs with blocks in these lots.
    fn run_in(&mut self, plan: &Plan, lots: Vec<Option<Lot>>) -> Result<Vec<StepReport>, Error> {
        self.start_as_the_simulator_does(plan)?;
        let orders = Arc::new(Orders::with_trace(plan, self.trace).with_lots(lots));
        let orders = (!plan.actions.is_empty()).then_some(orders);
        self.engine.set_orders(false, orders)?;
        let mut reports = Vec::new();
        for _ in 0..STEPS {
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

/// The trace without segments: small blocks are not replayed.
fn without_segments(mut trace: Trace) -> Trace {
    trace.segment_bytes = 0;
    trace.events.retain(|event| !matches!(event, TraceEvent::Segments(_)));
    trace
}

fn machine(limit_bytes: u64) -> Machine {
    let link =
        Link { out_bytes_per_us: 9_000.0, in_bytes_per_us: 8_000.0, both_bytes_per_us: 6_000.0 };
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 0.0 }
}

/// Random swaps of random blocks.
fn random_plan(numbers: &mut Numbers, trace: &Trace) -> Plan {
    let op_count = trace.ops.len() as u64;
    let mut actions: Vec<Action> = (0..numbers.below(2 * op_count))
        .map(|_| {
            let op = OpIndex(numbers.below(op_count) as u32);
            Action {
                op,
                phase: if numbers.chance(50) { Phase::Begin } else { Phase::End },
                kind: if numbers.chance(50) { ActionKind::SwapOut } else { ActionKind::SwapIn },
                block: BlockIndex(numbers.below(trace.blocks.len() as u64) as u32),
                due: op,
            }
        })
        .filter(|action| is_live(trace, action))
        .collect();
    actions.sort_by_key(|action| (action.op, action.phase));
    let blocks = (0..).zip(&trace.blocks).map(|(index, block)| PlanBlock {
        index: BlockIndex(index),
        size_bytes: block.size_bytes,
        origin: block.origin,
    });
    Plan {
        signature: trace.signature,
        op_count: op_count as u32,
        blocks: blocks.collect(),
        actions,
    }
}

/// Drops of random blocks that the step makes and frees, most of them just before their owner frees
/// them, and replays of some.
fn random_drops(numbers: &mut Numbers, trace: &Trace) -> Plan {
    let mut plan = random_plan(numbers, trace);
    let mut depth = 0;
    let mut ends: Vec<OpIndex> = Vec::new();
    let mut add = |op: OpIndex, phase: Phase, kind: ActionKind, block: BlockIndex, due: OpIndex| {
        plan.actions.push(Action { op, phase, kind, block, due });
    };
    let last = OpIndex(trace.ops.len() as u32 - 1);
    for &event in &trace.events {
        match event {
            TraceEvent::Begin(_) => depth += 1,
            TraceEvent::End(op) => {
                depth -= 1;
                ends.extend((depth == 0).then_some(op));
            }
            TraceEvent::Free(block) if numbers.chance(60) && !ends.is_empty() => {
                let back = numbers.below(ends.len().min(3) as u64) as usize;
                let op = ends[ends.len() - 1 - back];
                let due = if numbers.chance(70) { last } else { op };
                add(op, Phase::End, ActionKind::Discard, block, due);
                if numbers.chance(40) {
                    let at = ends[numbers.below(ends.len() as u64) as usize];
                    add(at, Phase::Begin, ActionKind::Replay, block, at);
                    let at = ends[numbers.below(ends.len() as u64) as usize];
                    add(at, Phase::End, ActionKind::Discard, block, at);
                }
            }
            _ => {}
        }
    }
    plan.actions.retain(|action| is_live(trace, action));
    plan.actions.sort_by_key(|action| (action.op, action.phase));
    plan
}

/// Whether the block lives when the action is due: the engine takes any other for drift.
fn is_live(trace: &Trace, action: &Action) -> bool {
    let at = trace.events.iter().position(|&event| match action.phase {
        Phase::Begin => event == TraceEvent::Begin(action.op),
        Phase::End => event == TraceEvent::End(action.op),
    });
    let before = &trace.events[..at.expect("each op begins and ends")];
    let born = trace.blocks[action.block.0 as usize].origin == Origin::Persistent
        || before.contains(&TraceEvent::Allocate(action.block));
    born && !before.contains(&TraceEvent::Free(action.block))
}

fn compare(trace: &Trace, plan: &Plan, machine: &Machine, what: &str) -> Option<Simulation> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    if persistent.map(|block| block.size_bytes).sum::<u64>() > machine.limit_bytes {
        // The engine could not start like the simulator: it allocates them one by one.
        return None;
    }
    let simulated = Simulator::new(trace, *machine).steps(plan, STEPS);
    let simulated = simulated.last().expect("one report a step");
    let mut replayer = Replayer::new(trace, machine);
    let executed = match replayer.run(plan) {
        Ok(reports) => reports.last().expect("one report a step").clone(),
        Err(Error::OutOfMemory(_)) => return None,
        Err(error) => panic!("{what}: {error}"),
    };
    if let Some(shortfall) = simulated.shortfall {
        panic!("{what}: the simulator ran out of memory, the engine did not: {shortfall:?}");
    }
    assert_eq!(executed.drifted_at, None, "{what}");
    let counters = executed.counters;
    let of_engine = [
        executed.held_bytes_peak,
        executed.resident_bytes_peak,
        counters.swapped_out_bytes,
        counters.swapped_in_bytes,
        counters.clean_swap_outs,
        counters.recomputed_ops,
        counters.misses,
        counters.rescues,
    ];
    let of_simulator = [
        simulated.held_bytes_peak,
        simulated.resident_bytes_peak,
        simulated.swapped_out_bytes,
        simulated.swapped_in_bytes,
        simulated.clean_swap_outs,
        simulated.recomputed_ops,
        simulated.misses,
        simulated.rescues,
    ];
    assert_eq!(
        of_engine, of_simulator,
        "{what}: held, resident, out, in, clean, recomputed, misses, rescues"
    );
    let ratio = simulated.step_us / executed.device_us;
    if what.starts_with("transformer") {
        assert!((0.97..=1.03).contains(&ratio), "{what}: simulated time is {ratio} of executed");
    }
    Some(simulated.clone())
}

#[test]
fn generated_plans_do_what_the_simulator_says() {
    let (mut swapped, mut compared) = (0, 0);
    for layers in [2, 4, 7] {
        let shape =
            TransformerShape { layers, weight_mib: 1, activation_mib: 2, forward_us: 2_000.0 };
        let trace = without_segments(transformer_trace(&shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        for percent in [100, 90, 80, 70, 60, 50, 40] {
            let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
            let machine = machine(limit_bytes);
            let generated = generate(&trace, &machine, &GenerateConfig::default(), &[]);
            let what = format!("transformer of {layers} layers at {percent} %");
            if let Some(simulation) = compare(&trace, &generated.plan, &machine, &what) {
                compared += 1;
                swapped += u64::from(simulation.swapped_out_bytes > 0);
            }
        }
    }
    assert!(compared >= 15 && swapped >= 10, "{compared} compared, {swapped} with swaps");
}

#[test]
fn a_step_that_is_laid_out_makes_no_calls_and_takes_the_time_that_was_said() {
    let slow =
        Link { out_bytes_per_us: 3_000.0, in_bytes_per_us: 2_000.0, both_bytes_per_us: 1_500.0 };
    let (mut compared, mut waited) = (0, 0);
    for layers in [4, 7, 12] {
        let shape =
            TransformerShape { layers, weight_mib: 1, activation_mib: 2, forward_us: 2_000.0 };
        let trace = without_segments(transformer_trace(&shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        for (percent, link) in
            [90, 80, 70, 60, 50].into_iter().zip([machine(0).link, slow].repeat(3))
        {
            let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
            let machine = Machine { link, ..machine(limit_bytes) };
            let made = generate(&trace, &machine, &GenerateConfig::default(), &[]);
            // With hardly any room, with some, and with plenty.
            for more_bytes in [0, limit_bytes / 16, limit_bytes] {
                let machine = machine.with_limit(limit_bytes + more_bytes);
                let layout = lay_out(&trace, &made.plan, &machine);
                if made.infeasible.is_some() || layout.excess_bytes(machine.limit_bytes) > 0 {
                    continue;
                }
                let reports = Replayer::new(&trace, &machine).run_in(&made.plan, layout.lots);
                let reports = reports.expect("it fits");
                let last = reports.last().expect("one report a step");
                let what = format!("{layers} layers at {percent} %, {more_bytes} bytes more");
                assert_eq!(last.counters.memory_calls.total(), 0, "{what}");
                let ratio = layout.step_us / last.device_us;
                // What has no lot may find its memory untouched, which is not foreseen.
                assert!((0.97..=1.1).contains(&ratio), "{what}: said {ratio} of executed");
                compared += 1;
                waited += u32::from(layout.step_us > 1.05 * made.unlimited_us);
            }
        }
    }
    assert!(compared >= 20 && waited >= 5, "{compared} compared, {waited} waited");
}

#[test]
fn random_plans_on_random_traces_agree_to_the_byte() {
    let mut numbers = Numbers::new(7);
    let (mut compared, mut rescues, mut misses, mut moved) = (0, 0, 0, 0);
    for seed in 0..300 {
        let shape = RandomShape { unit_bytes: GRANULARITY_BYTES, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        let percent = 40 + numbers.below(70);
        let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES).max(1 << 20);
        let plan = random_plan(&mut numbers, &trace);
        let what = format!("seed {seed} at {percent} %");
        if let Some(simulation) = compare(&trace, &plan, &machine(limit_bytes), &what) {
            compared += 1;
            rescues += simulation.rescues;
            misses += simulation.misses;
            moved += simulation.swapped_out_bytes;
        }
    }
    assert!(compared >= 150, "only {compared} traces ran");
    assert!(rescues > 100 && misses > 100 && moved > 0, "{rescues} {misses} {moved}");
}

/// When the op has ended behind which a block is freed.
fn freed_us(trace: &Trace, simulation: &Simulation, block: BlockIndex) -> f64 {
    let freed = trace.events.iter().position(|&event| event == TraceEvent::Free(block));
    let before = trace.events[..freed.expect("it is freed")].iter().rev();
    let last = before.into_iter().find_map(|event| match *event {
        TraceEvent::End(op) => Some(op),
        _ => None,
    });
    last.map_or(0.0, |op| simulation.ops[op.0 as usize].end_us)
}

#[test]
fn chains_of_replays_through_freed_blocks_do_what_the_simulator_says() {
    let mut numbers = Numbers::new(5);
    let (mut compared, mut replayed, mut through_freed) = (0, 0, 0);
    for seed in 0..800 {
        let unit_bytes = GRANULARITY_BYTES;
        let shape = RandomShape { unit_bytes, ops: 40, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let limit_bytes = unlimited[1].held_bytes_peak * (50 + numbers.below(70)) / 100;
        let machine = machine(limit_bytes.next_multiple_of(GRANULARITY_BYTES).max(1 << 20));
        let plan = random_drops(&mut numbers, &trace);
        let what = format!("chains, seed {seed}");
        if let Some(simulation) = compare(&trace, &plan, &machine, &what) {
            compared += 1;
            replayed += simulation.recomputed_ops;
            let late = |replay: &&ReplaySpan| {
                replay.span.start_us >= freed_us(&trace, &simulation, replay.block)
            };
            through_freed += simulation.replays.iter().filter(late).count() as u64;
        }
    }
    let seen = [compared, replayed, through_freed];
    assert!(compared >= 600 && replayed >= 800 && through_freed >= 50, "{seen:?}");
}

#[test]
fn replays_of_nested_ops_do_what_the_simulator_says() {
    let (mut compared, mut replayed) = (0, 0);
    let mut numbers = Numbers::new(11);
    for seed in 0..200 {
        let unit_bytes = GRANULARITY_BYTES;
        let shape = RandomShape { unit_bytes, nested_recipes: 90, ops: 40, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let nested = replayable_blocks(&trace).into_iter().filter(|one| {
            let op = &trace.ops[one.producer.0 as usize];
            assert!(one.device_us > 0.0, "seed {seed}: {one:?} costs nothing");
            op.depth > 0
        });
        // Cheap, so that they are taken.
        let option = |block| RecomputeOption { block, replay_us: 1.0 };
        let options: Vec<RecomputeOption> = nested.map(|one| option(one.block)).collect();
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        let percent = 50 + numbers.below(45);
        let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
        // So slow that what can be made again is not copied.
        let link = Link { out_bytes_per_us: 90.0, in_bytes_per_us: 80.0, both_bytes_per_us: 60.0 };
        let machine = Machine { link, ..machine(limit_bytes) };
        let preference = Preference::RecomputeFirst;
        let config = GenerateConfig { preference, min_block_bytes: 1, ..GenerateConfig::default() };
        let made = generate(&trace, &machine, &config, &options);
        let what = format!("nested, seed {seed} at {percent} %");
        if let Some(simulation) = compare(&trace, &made.plan, &machine, &what) {
            compared += 1;
            replayed += simulation.recomputed_ops;
        }
    }
    assert!(compared >= 60 && replayed >= 50, "{compared} compared, {replayed} replays");
}
