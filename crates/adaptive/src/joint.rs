//! Keep, swap or recompute: one choice for each block, against one budget.

use policy::{
    Feedback, GenerateConfig, Generated, Generator, Link, Machine, Movable, Plan, Planner,
    Prediction, Preference, Proposal, RecomputeOption, Trace, TraceFault, check_trace, generate,
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
/// two pure strategies, and the plan with the fastest simulated step wins. With an effort of 1,
/// which is for the largest steps, swapping alone is tried up to 20,000 ops, and making blocks
/// again alone is not.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](policy::check_trace)), or if a rate of the link
/// is not above 0.
pub fn plan_jointly(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    Joint::new(trace, machine, config).plan(config.generate.movable)
}

/// What several plans for one step have in common.
pub(crate) struct Joint<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    pub(crate) generator: Generator<'a>,
    config: &'a JointConfig,
    options: Vec<RecomputeOption>,
    pub(crate) bound_us: f64,
}

impl<'a> Joint<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        machine: &'a Machine,
        config: &'a JointConfig,
    ) -> Joint<'a> {
        let generator = Generator::new(trace, machine);
        let options = match config.strategy {
            Strategy::Keep | Strategy::Swap | Strategy::SmartSwap => Vec::new(),
            Strategy::Recompute | Strategy::Joint => recompute_options(trace, &config.recompute),
        };
        let bound_us = generator.bound_us(&options);
        Joint { trace, machine, generator, config, options, bound_us }
    }

    /// Whether the step has so many ops for the effort that one plan has to do.
    pub(crate) fn is_large(&self) -> bool {
        self.trace.ops.len() > OPS_MAX.saturating_mul(self.config.generate.effort.max(1) as usize)
    }

    /// The best plan if only some blocks may leave.
    pub(crate) fn plan(&self, movable: Movable) -> Generated {
        let run = |preference: Preference, options: &[RecomputeOption]| {
            let config = GenerateConfig { preference, movable, ..self.config.generate };
            self.generator.plan(&config, options, self.bound_us)
        };
        match self.config.strategy {
            Strategy::Keep => {
                // Moving on demand may do where no plan is made.
                self.generator.describe(Plan::default(), &self.config.generate, self.bound_us)
            }
            Strategy::SmartSwap => smartswap::plan(self.trace, self.machine, self.config),
            Strategy::Swap => run(Preference::Cheapest, &[]),
            Strategy::Recompute => run(Preference::RecomputeFirst, &self.options),
            Strategy::Joint => {
                let joint = run(Preference::Cheapest, &self.options);
                let quick = self.config.generate.effort <= 1;
                let unmoved = joint.plan.actions.is_empty();
                if unmoved || hardly_adds(&joint) || quick && self.is_large() {
                    return joint;
                }
                let swap = run(Preference::Cheapest, &[]);
                if quick {
                    return better(joint, swap);
                }
                let recompute = run(Preference::RecomputeFirst, &self.options);
                better(joint, better(swap, recompute))
            }
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

/// Ops for each unit of effort up to which several plans are made for one step.
const OPS_MAX: usize = 20_000;
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
}

impl Planner for JointPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        check_trace(trace)?;
        let link = self.machine.link;
        let scale = feedback.link_scale;
        let link = Link {
            out_bytes_per_us: link.out_bytes_per_us * scale,
            in_bytes_per_us: link.in_bytes_per_us * scale,
            both_bytes_per_us: link.both_bytes_per_us * scale,
        };
        let machine = Machine { link, ..self.machine };
        let mut config = self.config;
        let reserve_bytes = &mut config.generate.reserve_bytes;
        *reserve_bytes = reserve_bytes.saturating_add(feedback.margin_bytes);
        // What may not leave by plan would leave on demand, which takes longer.
        let (generated, _) = plan_preferring(trace, &machine, &config);
        let offer = !generated.plan.actions.is_empty();
        let proposal = Proposal { plan: generated.plan.clone(), predicted: predict(&generated) };
        self.latest = Some(generated);
        Ok(offer.then_some(proposal))
    }

    fn latest(&self) -> Option<&Generated> {
        self.latest.as_ref()
    }

    fn link(&self) -> Option<Link> {
        Some(self.machine.link)
    }

    fn set_link(&mut self, link: Link) {
        self.machine.link = link;
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
