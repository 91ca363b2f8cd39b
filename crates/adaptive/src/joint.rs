//! Keep, swap or recompute: one choice for each block, against one budget.

use policy::{
    Feedback, GenerateConfig, Generated, Link, Machine, Movable, Planner, Prediction, Preference,
    Proposal, RecomputeOption, Trace, generate,
};

use crate::recompute::{RecomputeConfig, recompute_options};
use crate::smartswap::{self, SmartSwapStrategy};

/// What a planner may do with blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Strategy {
    /// Nothing: the step fits, or blocks are moved on demand.
    Keep,
    /// Copies to the host and back.
    Swap,
    /// Making blocks again wherever that lowers the peak; copies only for what then remains.
    Recompute,
    /// For each block what adds the least time.
    #[default]
    Joint,
    /// What one of the generators of SmartSwap for Ascend makes of the step.
    SmartSwap,
}

impl Strategy {
    /// Its name in files, in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Strategy::Keep => "keep",
            Strategy::Swap => "swap",
            Strategy::Recompute => "recompute",
            Strategy::Joint => "joint",
            Strategy::SmartSwap => "smartswap",
        }
    }
}

/// Settings of the joint planner.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct JointConfig {
    /// What may be done.
    pub strategy: Strategy,
    /// Settings of the plan generator. Its preference follows from the strategy.
    pub generate: GenerateConfig,
    /// Settings of the recompute cost model.
    pub recompute: RecomputeConfig,
    /// Settings of the strategy [`SmartSwap`](Strategy::SmartSwap).
    pub smartswap: SmartSwapStrategy,
}

/// Makes the best plan that the strategy allows.
///
/// Under [`Joint`](Strategy::Joint) the choices for each block are also held against those of the
/// two pure strategies, and the plan with the fastest simulated step wins; not so with an effort
/// of 1, which is for the largest steps.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](policy::check_trace)), or if a rate of the link
/// is not above 0.
pub fn plan_jointly(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    let options = recompute_options(trace, &config.recompute);
    let run = |preference: Preference, options: &[RecomputeOption]| {
        generate(trace, machine, &GenerateConfig { preference, ..config.generate }, options)
    };
    match config.strategy {
        Strategy::Keep => unmoved(trace, machine, config),
        Strategy::SmartSwap => smartswap::plan(trace, machine, config),
        Strategy::Swap => run(Preference::Cheapest, &[]),
        Strategy::Recompute => run(Preference::RecomputeFirst, &options),
        Strategy::Joint => {
            let joint = run(Preference::Cheapest, &options);
            let quick = config.generate.effort <= 1;
            if joint.plan.actions.is_empty() || hardly_adds(&joint) || quick {
                return joint;
            }
            let swap = run(Preference::Cheapest, &[]);
            let recompute = run(Preference::RecomputeFirst, &options);
            let bound_us = joint.bound_us;
            let best = better(joint, better(swap, recompute));
            // What holds for every plan that may recompute holds for the winner.
            Generated { bound_us, ..best }
        }
    }
}

/// The best plan in which activations alone leave, if the settings say so; all blocks may leave
/// where that does not reach the limit. Says also what may leave in the plan.
///
/// # Panics
/// As [`plan_jointly`].
pub fn plan_preferring(
    trace: &Trace,
    machine: &Machine,
    config: &JointConfig,
) -> (Generated, Movable) {
    let movable = config.generate.movable;
    let made = plan_jointly(trace, machine, config);
    let short = made.infeasible.is_some() || made.simulation.shortfall.is_some();
    if !short || movable == Movable::All || config.strategy == Strategy::SmartSwap {
        return (made, movable);
    }
    let movable = Movable::All;
    let generate = GenerateConfig { movable, ..config.generate };
    (plan_jointly(trace, machine, &JointConfig { generate, ..*config }), movable)
}

/// No plan at all, with what is known of the step.
pub(crate) fn unmoved(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    let untouched = GenerateConfig { min_block_bytes: u64::MAX, ..config.generate };
    let kept = generate(trace, machine, &untouched, &[]);
    // Moving on demand may do where no plan is made.
    Generated { infeasible: kept.simulation.shortfall, ..kept }
}

/// Below this share of the step, other plans could gain nothing that can be measured.
const ADDED_SHARE_IGNORED: f64 = 0.001;

fn hardly_adds(plan: &Generated) -> bool {
    plan.infeasible.is_none() && plan.added_us() <= ADDED_SHARE_IGNORED * plan.unlimited_us
}

/// The better of two plans; of equals the first.
fn better(one: Generated, other: Generated) -> Generated {
    let rank = |plan: &Generated| {
        (plan.infeasible.is_some(), !plan.simulation.went_to_plan(), plan.simulation.step_us)
    };
    if rank(&other) < rank(&one) { other } else { one }
}

/// The joint planner as the loop calls it: each try takes what the last ones showed into account.
#[derive(Clone, Debug)]
pub struct JointPlanner {
    machine: Machine,
    config: JointConfig,
    latest: Option<Generated>,
}

impl JointPlanner {
    /// A planner for a machine.
    pub fn new(machine: Machine, config: JointConfig) -> JointPlanner {
        JointPlanner { machine, config, latest: None }
    }

    /// The latest plan with its simulation and decisions.
    pub fn latest(&self) -> Option<&Generated> {
        self.latest.as_ref()
    }
}

impl Planner for JointPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Option<Proposal> {
        let link = self.machine.link;
        let scale = feedback.link_scale;
        let link = Link {
            out_bytes_per_us: link.out_bytes_per_us * scale,
            in_bytes_per_us: link.in_bytes_per_us * scale,
            both_bytes_per_us: link.both_bytes_per_us * scale,
        };
        let machine = Machine { link, ..self.machine };
        let mut config = self.config;
        config.generate.reserve_bytes += feedback.margin_bytes;
        // What may not leave by plan would leave on demand, which takes longer.
        let (generated, _) = plan_preferring(trace, &machine, &config);
        let offer = !generated.plan.actions.is_empty();
        let proposal = Proposal { plan: generated.plan.clone(), predicted: predict(&generated) };
        self.latest = Some(generated);
        offer.then_some(proposal)
    }
}

fn predict(generated: &Generated) -> Prediction {
    let simulation = &generated.simulation;
    let mut link_us = [0.0; 2];
    for copy in &simulation.copies {
        link_us[copy.direction as usize] += copy.span.end_us - copy.span.start_us;
    }
    Prediction {
        step_us: simulation.step_us,
        stall_us: simulation.stall_us,
        link_us: link_us[0].max(link_us[1]),
        peak_bytes: simulation.held_bytes_peak,
    }
}
