//! Keep, swap or recompute: one choice for each block, against one budget.

use policy::{
    GenerateConfig, Generated, Generator, Machine, Movable, Plan, Preference, RecomputeOption,
    Start, Trace, assemble,
};

use crate::named::Named;
use crate::recompute::{RecomputeConfig, recompute_options};
use crate::smartswap::{self, SmartSwapStrategy};

/// What a planner may do with blocks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Strategy {
    /// Nothing: the step fits, or blocks are moved on demand.
    Keep,
    /// Copies to the host and back.
    Swap,
    /// Making blocks again wherever that lowers the peak; copies only for what then remains, or
    /// for all of it where the budget is not reached otherwise.
    Recompute,
    /// For each block what adds the least time.
    #[default]
    Joint,
    /// What one of the generators of SmartSwap for Ascend makes of the step.
    SmartSwap,
}

impl Named for Strategy {
    const ALL: &'static [(Strategy, &'static str, &'static str)] = &[
        (
            Strategy::Keep,
            "keep",
            "Without a plan: blocks leave only when there is no room otherwise",
        ),
        (Strategy::Swap, "swap", "Planned copies to the host and back"),
        (
            Strategy::Recompute,
            "recompute",
            "Planned dropping and recomputing; copies only for what then remains",
        ),
        (Strategy::Joint, "joint", "Whichever is cheaper, block by block"),
        (
            Strategy::SmartSwap,
            "smartswap",
            "As SmartSwap for Ascend plans it; `policy_v2` in the file of --config says which of \
             its generators",
        ),
    ];
}

/// What may leave the device. Without a wish, whichever makes the faster step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prefer {
    /// Activations only; weights and optimizer state too where those cannot reach the budget.
    Performance,
    /// Weights and optimizer state too.
    Memory,
}

impl Named for Prefer {
    const ALL: &'static [(Prefer, &'static str, &'static str)] = &[
        (
            Prefer::Performance,
            "performance",
            "Activations only; weights and optimizer state too where those cannot reach the budget",
        ),
        (Prefer::Memory, "memory", "Weights and optimizer state too"),
    ];
    /// Those of the originals.
    const ALIASES: &'static [(Prefer, &'static str)] =
        &[(Prefer::Performance, "BETTER_PERFORMANCE"), (Prefer::Memory, "BETTER_MEMORY_SAVING")];
}

impl Prefer {
    /// The wish that a plan answers in which so much may leave.
    pub fn of(movable: Movable) -> Prefer {
        match movable {
            Movable::Activations => Prefer::Performance,
            Movable::All => Prefer::Memory,
        }
    }
}

/// Settings of the joint planner.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct JointConfig {
    /// What may be done.
    pub strategy: Strategy,
    /// What may leave; without it, whichever makes the faster step.
    pub prefer: Option<Prefer>,
    /// Settings of the plan generator. Its preference follows from the strategy, and what may
    /// leave from `prefer`.
    pub generate: GenerateConfig,
    /// Settings of the recompute cost model.
    pub recompute: RecomputeConfig,
    /// Settings of the strategy [`SmartSwap`](Strategy::SmartSwap).
    pub smartswap: SmartSwapStrategy,
    /// Whether the loop prefers plans whose layout fits, where Stable steps are laid out.
    pub fits_layout: bool,
}

/// The plans of our own for one step.
pub(crate) struct Joint<'a> {
    pub(crate) trace: &'a Trace,
    pub(crate) machine: &'a Machine,
    pub(crate) config: &'a JointConfig,
    generator: Generator<'a>,
    options: Vec<RecomputeOption>,
    windows_us: f64,
}

impl<'a> Joint<'a> {
    pub(crate) fn new(
        trace: &'a Trace,
        machine: &'a Machine,
        config: &'a JointConfig,
    ) -> Joint<'a> {
        let generator = Generator::new(trace, machine);
        let options = options(trace, config);
        let windows_us = generator.windows_us(&options);
        Joint { trace, machine, config, generator, options, windows_us }
    }

    /// The best plan if so many blocks may leave.
    pub(crate) fn plan(&self, movable: Movable) -> Generated {
        let run = |preference: Preference, options: &[RecomputeOption]| {
            let config = GenerateConfig { preference, movable, ..self.config.generate };
            self.generator.plan(&config, options, self.windows_us)
        };
        let options = &self.options[..];
        match self.config.strategy {
            // Moving on demand may do where no plan is made.
            Strategy::Keep => self.unmoved(),
            Strategy::SmartSwap => smartswap::plan(self),
            Strategy::Swap => run(Preference::Cheapest, &[]),
            Strategy::Recompute => {
                let made = run(Preference::RecomputeFirst, options);
                // What was to be made again may keep so many inputs that nothing else fits.
                match made.infeasible {
                    None => made,
                    Some(_) => better(made, run(Preference::Cheapest, &[])),
                }
            }
            Strategy::Joint => {
                let start = |preference, options, from_effort| {
                    let config = GenerateConfig { preference, movable, ..self.config.generate };
                    Start { config, options, from_effort }
                };
                let is_large = self.trace.ops.len() > SWAP_OPS_MAX;
                let starts = [
                    start(Preference::Cheapest, options, 1),
                    start(Preference::Cheapest, &[], 1 + u32::from(is_large)),
                    start(Preference::RecomputeFirst, options, 2),
                ];
                let starts = if options.is_empty() { &starts[..1] } else { &starts };
                self.generator.best(starts, self.config.generate.effort, self.windows_us)
            }
        }
    }

    /// What is known about a plan that was made elsewhere.
    pub(crate) fn describe(&self, plan: Plan, movable: Movable) -> Generated {
        let config = GenerateConfig { movable, ..self.config.generate };
        self.generator.describe(plan, &config, self.windows_us)
    }

    /// No plan at all, with what is known of the step.
    pub(crate) fn unmoved(&self) -> Generated {
        self.describe(assemble(self.trace, Vec::new()), Movable::All)
    }
}

/// What may be made again.
fn options(trace: &Trace, config: &JointConfig) -> Vec<RecomputeOption> {
    match config.strategy {
        Strategy::Keep | Strategy::Swap | Strategy::SmartSwap => Vec::new(),
        Strategy::Recompute | Strategy::Joint => recompute_options(trace, &config.recompute),
    }
}

/// No plan of what these settings allow adds less to a step, in microseconds.
pub(crate) fn bound_us(trace: &Trace, machine: &Machine, config: &JointConfig) -> f64 {
    Generator::new(trace, machine).bound_us(&options(trace, config))
}

/// Ops up to which swapping alone is tried too with the least effort.
const SWAP_OPS_MAX: usize = 20_000;

/// The better of two plans; of equals the first.
pub(crate) fn better(one: Generated, other: Generated) -> Generated {
    if other.cost() < one.cost() { other } else { one }
}
