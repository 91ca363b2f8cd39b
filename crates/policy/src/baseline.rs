//! How others would plan the same step: published strategies as plans for our simulator.
//!
//! | strategy | what it does |
//! |---|---|
//! | `keep` | no plan; memory that is missing is taken from the least recently used block |
//! | `vdnn` | every activation leaves after forward and comes back one layer ahead of its use |
//! | `capuchin` | measured free time of each gap, triggers moved by feedback, else recompute |
//! | `smartswap-v1` | peaks are shaved by score, copies fill the slack of stages |
//! | `smartswap-v2` | all large activations of one layer, one layer ahead |
//! | `full-recompute` | every layer keeps its input alone and runs forward again in backward |
//!
//! All are judged by the same rules as our own plans, so differences come from the decisions. What
//! the engine does better than theirs counts for all: memory is given on as soon as a copy is
//! ordered, no address changes, a block that is missed comes back on demand.

use std::borrow::Cow;
use std::fmt;

use swap_core::{Action, BlockIndex, OpIndex, Origin, Phase, Plan, Trace};

use crate::assemble::assemble;
use crate::candidate::{Gap, find_gaps};
use crate::cost::Cost;
use crate::machine::Machine;
use crate::simulate::{Simulation, simulate_with};
use crate::usage::Usage;

mod capuchin;
mod checkpoint;
mod smartswap;
mod stages;
mod vdnn;

#[cfg(test)]
mod tests;

use smartswap::Model;
pub use smartswap::SmartSwapConfig;
use stages::{Part, Stages};

/// A published strategy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Baseline {
    /// No plan: blocks leave when there is no room otherwise.
    Keep,
    /// vDNN: all activations out, back one layer ahead.
    Vdnn,
    /// Capuchin: free time of gaps, triggers with feedback, recompute by memory saved per second.
    Capuchin,
    /// SmartSwap's first generator. Its model divides the step evenly over the ops and takes the
    /// link for 25.6 GB/s.
    SmartSwapV1,
    /// The same with the measured times of ops and the rates of the link.
    SmartSwapV1Measured,
    /// SmartSwap's second generator. It has no model of time.
    SmartSwapV2,
    /// The same, with buckets as large as what the link moves in the measured time of a stage.
    SmartSwapV2Measured,
    /// Activation checkpointing of each layer, as frameworks offer it.
    FullRecompute,
}

impl Baseline {
    /// All of them.
    pub const ALL: [Baseline; 8] = [
        Baseline::Keep,
        Baseline::Vdnn,
        Baseline::Capuchin,
        Baseline::SmartSwapV1,
        Baseline::SmartSwapV1Measured,
        Baseline::SmartSwapV2,
        Baseline::SmartSwapV2Measured,
        Baseline::FullRecompute,
    ];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Baseline::Keep => "keep",
            Baseline::Vdnn => "vdnn",
            Baseline::Capuchin => "capuchin",
            Baseline::SmartSwapV1 => "smartswap-v1",
            Baseline::SmartSwapV1Measured => "smartswap-v1-measured",
            Baseline::SmartSwapV2 => "smartswap-v2",
            Baseline::SmartSwapV2Measured => "smartswap-v2-measured",
            Baseline::FullRecompute => "full-recompute",
        }
    }
}

impl fmt::Display for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a strategy makes of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct BaselineRun<'a> {
    /// The step that is run: the recorded one, or another where the strategy changes its calls or
    /// what can run again.
    pub trace: Cow<'a, Trace>,
    /// The plan for that step.
    pub plan: Plan,
    /// The step under the plan, in the steady state.
    pub simulation: Simulation,
}

impl BaselineRun<'_> {
    /// Its place in the order of plans.
    pub fn cost(&self) -> Cost {
        Cost::new(0, &self.simulation)
    }
}

/// Plans a step as `baseline` does and simulates it. The result depends on the arguments alone.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)), or if a rate of the link
/// is not above 0.
///
/// # Examples
/// ```
/// use policy::synthetic::{TransformerShape, transformer_trace};
/// use policy::{Baseline, Link, Machine, run_baseline};
///
/// let shape =
///     TransformerShape { layers: 6, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
/// let trace = transformer_trace(&shape);
/// let rate = 50_000.0;
/// let machine = Machine {
///     limit_bytes: 64 << 30,
///     host_limit_bytes: 64 << 30,
///     link: Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate },
///     copy_submit_us: 8.0,
/// };
/// let vdnn = run_baseline(&trace, &machine, Baseline::Vdnn);
/// assert!(vdnn.simulation.swapped_out_bytes > 0, "it moves even what would fit");
/// ```
pub fn run_baseline<'a>(
    trace: &'a Trace,
    machine: &Machine,
    baseline: Baseline,
) -> BaselineRun<'a> {
    run_baseline_with(trace, machine, baseline, &SmartSwapConfig::default())
}

/// As [`run_baseline`], with settings for the generators of SmartSwap.
///
/// # Panics
/// As [`run_baseline`].
pub fn run_baseline_with<'a>(
    trace: &'a Trace,
    machine: &Machine,
    baseline: Baseline,
    config: &SmartSwapConfig,
) -> BaselineRun<'a> {
    let scene = || Scene::new(trace, machine);
    match baseline {
        Baseline::Keep => {
            let usage = Usage::new(trace);
            judge(Cow::Borrowed(trace), &usage, assemble(trace, Vec::new()), machine)
        }
        Baseline::Vdnn => {
            let scene = scene();
            let plan = vdnn::plan(&scene);
            judge(Cow::Borrowed(trace), &scene.usage, plan, machine)
        }
        Baseline::Capuchin => capuchin::run(trace, machine),
        Baseline::SmartSwapV1 => smartswap::v1(&scene(), Model::Original, config),
        Baseline::SmartSwapV1Measured => smartswap::v1(&scene(), Model::Measured, config),
        Baseline::SmartSwapV2 => smartswap::v2(&scene(), Model::Original, config),
        Baseline::SmartSwapV2Measured => smartswap::v2(&scene(), Model::Measured, config),
        Baseline::FullRecompute => checkpoint::run(trace, machine),
    }
}

fn judge<'a>(
    trace: Cow<'a, Trace>,
    usage: &Usage,
    plan: Plan,
    machine: &Machine,
) -> BaselineRun<'a> {
    let simulation = simulate_with(&trace, usage, &plan, machine);
    BaselineRun { trace, plan, simulation }
}

/// What most strategies look at.
struct Scene<'a> {
    trace: &'a Trace,
    machine: Machine,
    usage: Usage,
    stages: Stages,
    /// When each slot starts, and when the step ends.
    slot_us: Vec<f64>,
}

impl<'a> Scene<'a> {
    fn new(trace: &'a Trace, machine: &Machine) -> Scene<'a> {
        let usage = Usage::new(trace);
        let stages = Stages::by_layer(trace, &usage);
        let mut slot_us = vec![0.0];
        let mut end_us = 0.0;
        for us in &usage.slot_us[..usage.slots.len()] {
            end_us += us;
            slot_us.push(end_us);
        }
        Scene { trace, machine: *machine, usage, stages, slot_us }
    }

    fn size_bytes(&self, gap: &Gap) -> u64 {
        self.trace.blocks[gap.block as usize].size_bytes
    }

    /// The gaps of activations between forward and backward.
    fn activations(&self) -> Vec<Gap> {
        let part = |slot: i64| self.stages.part.get(slot as usize);
        let mut gaps = find_gaps(self.trace, &self.usage);
        gaps.retain(|gap| {
            let persistent = self.trace.blocks[gap.block as usize].origin == Origin::Persistent;
            let inside = gap.from >= 0 && gap.to < self.usage.slots.len() as i64;
            !persistent
                && gap.returns
                && inside
                && part(gap.from) == Some(&Part::Forward)
                && part(gap.to) == Some(&Part::Backward)
        });
        gaps
    }

    /// The most resident bytes of each slot with memory for everything.
    fn need(&self) -> Vec<u64> {
        let machine = self.machine.with_limit(u64::MAX >> 1);
        let free = simulate_with(self.trace, &self.usage, &Plan::default(), &machine);
        let mut need = vec![0; self.usage.slot_count()];
        let mut last_bytes = 0;
        for (event, &bytes) in free.resident_bytes_by_event.iter().enumerate() {
            let most = &mut need[self.usage.event_slot[event] as usize];
            *most = bytes.max(last_bytes).max(*most);
            last_bytes = bytes;
        }
        need
    }

    fn op(&self, slot: i64) -> OpIndex {
        self.usage.slots[(slot.max(0) as usize).min(self.usage.slots.len() - 1)]
    }
}

/// One move in the making.
#[derive(Clone, Copy, Debug)]
struct Order {
    slot: i64,
    phase: Phase,
    kind: swap_core::ActionKind,
    block: u32,
    /// The slot by which it should be done; also its rank among those issued together.
    due: i64,
}

/// The plan that consists of some orders.
fn plan_of(scene: &Scene<'_>, mut orders: Vec<Order>) -> Plan {
    orders.sort_by_key(|order| (order.slot, order.phase, order.kind, order.due, order.block));
    let action = |order: &Order| Action {
        op: scene.op(order.slot),
        phase: order.phase,
        kind: order.kind,
        block: BlockIndex(order.block),
        due: scene.op(order.due),
    };
    assemble(scene.trace, orders.iter().map(action).collect())
}

/// A swap of one gap: away behind its last use, asked back for at the begin of `back`.
fn swap(gap: &Gap, back: i64) -> [Order; 2] {
    use swap_core::ActionKind::{SwapIn, SwapOut};
    let back = back.clamp(gap.from + 1, gap.to);
    let out = (gap.from, Phase::End, SwapOut, gap.from + 1);
    let home = (back, Phase::Begin, SwapIn, gap.to);
    [out, home].map(|(slot, phase, kind, due)| Order { slot, phase, kind, block: gap.block, due })
}

/// The better of two runs; of equals the first.
fn better<'a>(one: BaselineRun<'a>, other: BaselineRun<'a>) -> BaselineRun<'a> {
    if other.cost() < one.cost() { other } else { one }
}
