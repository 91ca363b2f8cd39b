//! Makes a plan: which blocks leave, when, and how they come back.

use swap_core::{BlockIndex, OpIndex, Plan, Trace};

use crate::machine::Machine;
use crate::simulate::{Shortfall, Simulation};
use crate::usage::Usage;

mod decide;
mod place;
mod select;

pub use decide::{Decision, Reason, Treatment};
use place::{Placement, Placer};
use select::{need_curve, select};

/// Settings of the generator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateConfig {
    /// Blocks below this stay where they are.
    pub min_block_bytes: u64,
    /// Memory to leave unused below the limit.
    pub reserve_bytes: u64,
    /// How many placements to simulate, at most. More take longer and may find a faster plan.
    pub effort: u32,
}

impl Default for GenerateConfig {
    fn default() -> GenerateConfig {
        GenerateConfig { min_block_bytes: 1 << 20, reserve_bytes: 0, effort: 12 }
    }
}

/// A block that can be made again by running its producer once more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecomputeOption {
    /// The block.
    pub block: BlockIndex,
    /// What that adds to the step, in microseconds.
    pub replay_us: f64,
}

/// A plan and what is known about it.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The plan.
    pub plan: Plan,
    /// The step under the plan, in the steady state.
    pub simulation: Simulation,
    /// Time of the step with enough memory for everything, in microseconds.
    pub unlimited_us: f64,
    /// What becomes of each block, and why.
    pub decisions: Vec<Decision>,
    /// No plan for this limit can add less than this to the step, in microseconds.
    pub bound_us: f64,
    /// Set if the step cannot run under the limit whatever moves: by how much, and where.
    pub infeasible: Option<Shortfall>,
}

impl Generated {
    /// What the plan adds to the step, in microseconds.
    pub fn added_us(&self) -> f64 {
        self.simulation.step_us - self.unlimited_us
    }
}

/// Makes a plan for one kind of step.
///
/// The result depends on the arguments alone. Blocks in `options` may be dropped and made again
/// where that is cheaper than moving them; without options every choice is a swap, and a larger
/// limit never means more bytes to swap.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)), or if a rate of the link
/// is not above 0.
pub fn generate(
    trace: &Trace,
    machine: &Machine,
    config: &GenerateConfig,
    options: &[RecomputeOption],
) -> Generated {
    let usage = Usage::new(trace);
    let mut options = options.to_vec();
    options.retain(|option| (option.block.0 as usize) < trace.blocks.len());
    options.sort_by_key(|option| option.block);
    options.dedup_by_key(|option| option.block);
    let need = need_curve(trace, &usage);
    let fits = need.iter().all(|&bytes| bytes <= machine.limit_bytes);
    let reserve_bytes = if fits { 0 } else { config.reserve_bytes };
    let target = machine.with_limit(machine.limit_bytes.saturating_sub(reserve_bytes));
    let selection = select(trace, &usage, &target, &options, config.min_block_bytes);
    let least_bytes = selection.excess.map_or(0, |(_, bytes)| target.limit_bytes + bytes);
    let placer = Placer {
        trace,
        usage: &usage,
        machine,
        room_bytes: target.limit_bytes.max(least_bytes),
        selection: &selection,
    };
    let Placement { plan, simulation } = placer.best(config.effort);
    let unlimited_us = trace.ops.iter().map(|op| op.device_us).sum();
    let infeasible = selection.excess.and_then(|(slot, _)| {
        let last = OpIndex(trace.ops.len() as u32);
        let missing_bytes = least_bytes.saturating_sub(machine.limit_bytes);
        (missing_bytes > 0).then_some(Shortfall {
            op: usage.slots.get(slot).copied().unwrap_or(last),
            missing_bytes,
        })
    });
    let decisions = decide::decide(trace, &usage, machine, config, &selection, &need);
    let bound_us = crate::bound::bound_us(trace, &usage, machine, &options);
    Generated { plan, simulation, unlimited_us, decisions, bound_us, infeasible }
}
