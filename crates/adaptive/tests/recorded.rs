//! Promise: recorded steps of real trainings, repeated under a cap, go to plan once they are
//! Stable: no miss, no rescue, no memory call, and in the time that was predicted. Where small
//! memory has grown since the plan was made, few memory calls are made.
//!
//! The calls of a recorded step are repeated on the engine over the host driver, which counts what
//! is asked of it and keeps the clock. Sizes and the link are scaled down alike.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use adaptive::devices::{HostConfig, HostDriver, HostLink, MeterDriver};
use adaptive::{
    AccessMode, ArenaConfig, BlockId, BlockIndex, Compute, Config, Driver, Engine, Error,
    FinishedStep, GenerateConfig, JointConfig, JointPlanner, Link, LoopConfig, Machine,
    MemoryCalls, OpIndex, OpName, OpStack, Origin, Plan, PoolConfig, Recipe, RecipeUse,
    RecordedConfig, Session, Stage, Trace, TraceBlock, TraceEvent, load_trace, simulate,
};

const SCALE: u64 = 32;
const GRANULARITY_BYTES: u64 = (2 << 20) / SCALE;
/// PCIe 5.
const LINK_BYTES_PER_US: f64 = 55_000.0 / SCALE as f64;
/// Calls that make, map or give back memory.
const MEMORY_CALLS: [&str; 6] =
    ["create_chunk", "release_chunk", "reserve", "map", "set_access", "unmap"];
const STABLE_STEPS: usize = 5;
const STEPS_MAX: usize = 200;

/// A recorded step with small tensors. Sizes stay what they are beside each other.
fn recorded(file: &str) -> Trace {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let mut trace = load_trace(&path, &RecordedConfig::default()).expect("it is a recorded step");
    for block in &mut trace.blocks {
        block.size_bytes /= SCALE;
    }
    for event in &mut trace.events {
        if let TraceEvent::Segments(bytes) = event {
            *bytes = 0;
        }
    }
    trace.segment_bytes = 0;
    trace
}

/// The same step where the script keeps the largest result until some ops of the next step have
/// run after its like was made, as a loop keeps its last logits.
fn keeping_the_largest(trace: &Trace) -> Trace {
    let mut kept = trace.clone();
    let is_persistent = |block: &TraceBlock| block.origin == Origin::Persistent;
    let last = BlockIndex(trace.blocks.iter().filter(|block| is_persistent(block)).count() as u32);
    let made = (0..).zip(&trace.blocks).filter(|(_, block)| !is_persistent(block));
    let (largest, block) = made.max_by_key(|(_, block)| block.size_bytes).expect("it makes some");
    kept.blocks.insert(last.0 as usize, TraceBlock { origin: Origin::Persistent, ..block.clone() });
    let place = |block: BlockIndex| BlockIndex(block.0 + u32::from(block >= last));
    let largest = place(BlockIndex(largest));
    let renamed = |&event: &TraceEvent| match event {
        TraceEvent::Allocate(block) => TraceEvent::Allocate(place(block)),
        TraceEvent::Touch(block, mode) => TraceEvent::Touch(place(block), mode),
        TraceEvent::Free(block) => TraceEvent::Free(place(block)),
        other => other,
    };
    kept.events = trace.events.iter().map(renamed).collect();
    kept.events.retain(|&event| event != TraceEvent::Free(largest));
    let made_at = kept.events.iter().position(|&event| event == TraceEvent::Allocate(largest));
    let made_at = made_at.expect("an op makes it");
    let is_over = |event: &TraceEvent| match event {
        TraceEvent::End(op) => trace.ops[op.0 as usize].depth == 0,
        _ => false,
    };
    let mut over = (made_at..).zip(&kept.events[made_at..]).filter(|(_, event)| is_over(event));
    let (freed_at, _) = over.nth(4).expect("more ops follow");
    kept.events.insert(freed_at + 1, TraceEvent::Free(last));
    kept
}

/// A training whose every step makes the calls of a recorded one.
struct Training<'a> {
    trace: &'a Trace,
    names: Vec<OpName>,
    meter: Arc<MeterDriver>,
    session: Session<JointPlanner>,
    ops: OpStack,
    live: BTreeMap<u32, BlockId>,
}

/// The outermost op that is open. What ops inside it use, it uses.
struct Open {
    op: OpIndex,
    touches: Vec<(BlockId, AccessMode)>,
    /// What it uses and frees.
    freed: Vec<BlockId>,
}

impl<'a> Training<'a> {
    /// In this part of the memory that the step needs.
    fn new(trace: &'a Trace, share: f64) -> Training<'a> {
        let rate = LINK_BYTES_PER_US;
        let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
        let roomy = Machine {
            limit_bytes: u64::MAX / 2,
            host_limit_bytes: u64::MAX,
            link,
            copy_submit_us: 0.0,
        };
        let peak_bytes = simulate(trace, &Plan::default(), &roomy).resident_bytes_peak;
        let limit_bytes = (peak_bytes as f64 * share) as u64;
        let host = HostConfig {
            granularity_bytes: GRANULARITY_BYTES,
            link: Some(HostLink::duplex((rate * 1e6) as u64)),
            ..HostConfig::by_time(limit_bytes)
        };
        let meter = Arc::new(MeterDriver::new(HostDriver::new(host).expect("there is room")));
        let config = Config {
            pool: PoolConfig {
                limit_bytes,
                swap_threshold_bytes: GRANULARITY_BYTES,
                segment_bytes: GRANULARITY_BYTES,
            },
            arena: ArenaConfig::new(2 * peak_bytes),
            compute: Compute::Own,
            record: false,
        };
        let engine = Engine::new(meter.clone() as Arc<dyn Driver>, config).expect("opens");
        let settings = LoopConfig { limit_bytes, ..LoopConfig::default() };
        let generate =
            GenerateConfig { min_block_bytes: GRANULARITY_BYTES, ..GenerateConfig::default() };
        let planner = JointPlanner::new(
            Machine { limit_bytes, host_limit_bytes: 2 * peak_bytes, ..roomy },
            JointConfig { generate, fits_layout: true, ..JointConfig::default() },
        );
        let name = |text: &String| OpName::new(Box::leak(text.clone().into_boxed_str()));
        let ops = engine.op_stack();
        let mut training = Training {
            trace,
            names: trace.ops.iter().map(|op| name(&op.name)).collect(),
            meter,
            session: Session::new(engine, settings, planner).expect("a first step"),
            ops,
            live: BTreeMap::new(),
        };
        training.outlive();
        training
    }

    /// One step, and the memory calls that it made.
    fn step(&mut self) -> Result<(Vec<FinishedStep>, u64), Error> {
        self.meter.clear();
        let mut open = None;
        for &event in &self.trace.events {
            self.event(event, &mut open)?;
        }
        let sums = [self.meter.costs(), self.meter.costs_of_others()];
        let counts = sums.iter().flatten().filter(|(name, _)| MEMORY_CALLS.contains(name));
        let memory_calls = counts.map(|(_, cost)| cost.count).sum();
        // As a script does that looks at the loss.
        self.session.engine().synchronize()?;
        let finished = self.session.end_step()?;
        self.outlive();
        Ok((finished, memory_calls))
    }

    fn event(&mut self, event: TraceEvent, open: &mut Option<Open>) -> Result<(), Error> {
        let is_outermost = |op: OpIndex| self.trace.ops[op.0 as usize].depth == 0;
        match event {
            TraceEvent::Begin(op) if is_outermost(op) => {
                self.ops.begin(self.names[op.0 as usize])?;
                *open = Some(Open { op, touches: Vec::new(), freed: Vec::new() });
            }
            TraceEvent::Touch(block, mode) => {
                let id = self.live[&block.0];
                self.ops.touch(id, mode)?;
                open.as_mut().expect("touches are inside ops").touches.push((id, mode));
            }
            TraceEvent::Allocate(block) => {
                let size_bytes = self.trace.blocks[block.0 as usize].size_bytes;
                let id = match open {
                    None => self.session.engine().allocate(size_bytes, "")?,
                    Some(_) => self.ops.allocate(size_bytes, "")?,
                };
                self.live.insert(block.0, id);
            }
            TraceEvent::Free(block) => {
                let id = self.live.remove(&block.0).expect("it is live");
                match open {
                    Some(open) if open.touches.iter().any(|touch| touch.0 == id) => {
                        open.freed.push(id);
                    }
                    _ => self.session.engine().free(id)?,
                }
            }
            TraceEvent::End(op) if is_outermost(op) => {
                self.end(open.take().expect("it has begun"))?;
            }
            TraceEvent::Begin(_) | TraceEvent::End(_) | TraceEvent::Segments(_) => {}
        }
        Ok(())
    }

    /// It runs, and frees what it frees. Whatever changes no input can be made again.
    fn end(&mut self, open: Open) -> Result<(), Error> {
        let Open { op, touches, freed } = open;
        let (name, run_us) = (self.names[op.0 as usize], self.trace.ops[op.0 as usize].device_us);
        self.ops.launch(run_us, |_| {})?;
        let is_functional = touches.iter().all(|touch| touch.1 != AccessMode::ReadWrite);
        if is_functional && self.ops.recipe_use()? != RecipeUse::None {
            self.ops.recipe(Recipe::new(move |ops, output| {
                ops.begin(name)?;
                let reads = touches.iter().filter(|touch| touch.1 == AccessMode::Read);
                reads.copied().try_for_each(|(read, mode)| ops.touch(read, mode).map(drop))?;
                ops.touch(output, AccessMode::Write)?;
                ops.launch(run_us, |_| {})?;
                ops.end()
            }))?;
        }
        self.ops.end()?;
        freed.into_iter().try_for_each(|block| self.session.engine().free(block))
    }

    /// What lives on is what the next step starts with, size by size.
    fn outlive(&mut self) {
        let blocks = (0..).zip(&self.trace.blocks);
        let persistent = blocks.filter(|(_, block)| block.origin == Origin::Persistent);
        let mut left = std::mem::take(&mut self.live);
        let engine = self.session.engine();
        for (index, block) in persistent {
            let is_alike =
                |other: &&u32| self.trace.blocks[**other as usize].size_bytes == block.size_bytes;
            let survivor = left.keys().find(is_alike).copied();
            let id = survivor.and_then(|other| left.remove(&other));
            let fresh = || engine.allocate(block.size_bytes, "").expect("others can leave");
            self.live.insert(index, id.unwrap_or_else(fresh));
        }
        left.into_values().for_each(|id| engine.free(id).expect("it is live"));
    }
}

/// Trains until some steps were Stable, and looks at those.
fn goes_to_plan(file: &str, share: f64) {
    check_goes_to_plan(&recorded(file), file, share);
}

fn check_goes_to_plan(trace: &Trace, file: &str, share: f64) {
    let mut training = Training::new(trace, share);
    let (mut stable, mut calls, mut n_recorded) = (Vec::new(), Vec::new(), 0);
    for _ in 0..STEPS_MAX {
        let is_stable = training.session.stage() == Stage::Stable;
        let (finished, memory_calls) = training.step().expect("it fits");
        for step in finished.iter().filter(|step| step.stage == Stage::SearchPolicy) {
            let is_recorded = step.report.trace.is_some();
            // What is recorded while its memory is being mapped says more of that.
            let maps = step.report.counters.memory_calls != MemoryCalls::default();
            assert!(!(is_recorded && maps), "{file} at {share}: {:?}", step.report.counters);
            n_recorded += u32::from(is_recorded);
        }
        stable.extend(finished.into_iter().filter(|step| step.stage == Stage::Stable));
        calls.extend(is_stable.then_some(memory_calls));
        if stable.len() == STABLE_STEPS {
            break;
        }
    }
    assert_eq!(stable.len(), STABLE_STEPS, "{file} at {share}: it searches without end");
    assert!(n_recorded > 0, "{file} at {share}: nothing was learnt of its plans");
    assert_eq!(calls[1..], [0; STABLE_STEPS - 1], "{file} at {share}");
    for FinishedStep { made, report, .. } in &stable {
        let counters = &report.counters;
        let predicted_us = made.as_ref().expect("it was planned").simulation.step_us;
        let ratio = report.device_us / predicted_us;
        assert_eq!((counters.misses, counters.rescues), (0, 0), "{file} at {share}");
        assert!((0.97..=1.03).contains(&ratio), "{file} at {share}: {ratio}");
        assert!(counters.swapped_in_bytes > 0, "{file} at {share}: nothing had to move");
        assert!(counters.recomputed_ops > 0, "{file} at {share}: nothing was made again");
    }
}

#[test]
fn a_decoder_goes_to_plan() {
    goes_to_plan("../../docs/gpt2m.json.gz", 0.6);
    goes_to_plan("../../docs/gpt2m.json.gz", 0.4);
}

#[test]
fn a_step_under_autocast_goes_to_plan() {
    goes_to_plan("../policy/tests/data/nanogpt.json.gz", 0.6);
}

#[test]
fn a_step_that_keeps_its_result_until_the_next_has_its_like_goes_to_plan() {
    let file = "../policy/tests/data/nanogpt.json.gz";
    let trace = keeping_the_largest(&recorded(file));
    check_goes_to_plan(&trace, "nanogpt with its logits kept", 0.65);
}

#[test]
fn small_memory_that_grows_costs_a_layout_few_calls() {
    let trace = recorded("../policy/tests/data/nanogpt.json.gz");
    let mut training = Training::new(&trace, 0.5);
    let mut on_demand_calls = 0;
    while training.session.plan_number() == 0 {
        on_demand_calls = training.step().expect("it fits").1;
    }
    for _ in 0..STEPS_MAX {
        if training.session.stage() == Stage::Stable {
            break;
        }
        training.step().expect("it fits");
    }
    // Later plans would leave room for it.
    let grown_bytes = (160 << 20) / SCALE;
    for _ in 0..grown_bytes / (GRANULARITY_BYTES / 4) {
        training.session.engine().allocate(GRANULARITY_BYTES / 4, "").expect("there is room");
    }
    training.step().expect("it fits");
    let (finished, calls) = training.step().expect("it fits");
    let step = finished.last().expect("it was observed");
    assert_eq!(step.stage, Stage::Stable, "it searches without end");
    assert_eq!((step.report.counters.misses, step.report.counters.rescues), (0, 0));
    println!("{calls} of {on_demand_calls} on demand");
    assert!(calls > 0, "the layout has room enough");
    assert!(calls < on_demand_calls / 4, "{calls} of {on_demand_calls} on demand");
}
