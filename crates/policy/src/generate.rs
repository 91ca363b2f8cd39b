//! Makes a plan: which blocks leave, when, and how they come back.

use swap_core::{BlockIndex, OpIndex, Plan, Trace};

use crate::machine::Machine;
use crate::simulate::{Shortfall, Simulation};
use crate::usage::Usage;

mod decide;
mod deterministic;
mod offers;
mod place;
mod select;

pub use decide::{Decision, Reason, Treatment};
pub use deterministic::{is_deterministic, mark_replayable};
use place::{Placement, Placer};
use select::{HIDDEN_SHARES, Selection, by_slot, need_curve, select};

/// What to prefer where a block can be swapped or made again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Preference {
    /// What adds the least time.
    #[default]
    Cheapest,
    /// Making blocks again, as long as that lowers the peak; swaps only after that.
    RecomputeFirst,
}

/// Which blocks may leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Movable {
    /// All that are large enough.
    #[default]
    All,
    /// Only those that the step makes: weights and optimizer state stay.
    Activations,
}

/// Settings of the generator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GenerateConfig {
    /// What to prefer.
    pub preference: Preference,
    /// Blocks below this stay where they are.
    pub min_block_bytes: u64,
    /// Which blocks may leave.
    pub movable: Movable,
    /// The most bytes that swaps of one step may send away. A block counts each time it leaves.
    pub swap_bytes_max: u64,
    /// Memory to leave unused below the limit.
    pub reserve_bytes: u64,
    /// How many placements to simulate, at most, for each way to choose what leaves. With 1 there
    /// is one such way. More take longer and may find a faster plan.
    pub effort: u32,
}

impl Default for GenerateConfig {
    fn default() -> GenerateConfig {
        GenerateConfig {
            preference: Preference::default(),
            min_block_bytes: 1 << 20,
            movable: Movable::default(),
            swap_bytes_max: u64::MAX,
            reserve_bytes: 0,
            effort: 8,
        }
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

/// A block that its producer can make again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayable {
    /// The block.
    pub block: BlockIndex,
    /// The outermost op that makes it and changes nothing else.
    pub producer: OpIndex,
    /// The blocks that this op reads, in order of index.
    pub inputs: Vec<BlockIndex>,
}

/// The blocks of a step that a replay of one outermost op can bring back, by block and then by
/// time. A block that is overwritten by several such ops comes once for each.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)).
pub fn replayable_blocks(trace: &Trace) -> Vec<Replayable> {
    let usage = Usage::new(trace);
    let mut replayable = Vec::new();
    for (index, recipes) in usage.recipes.iter().enumerate() {
        let block = index as u32;
        let own = |op: OpIndex| trace.ops[op.0 as usize].depth == 0;
        for recipe in recipes.iter().filter(|r| own(r.producer) && r.is_pure(block)) {
            let inputs = recipe.inputs(block).into_iter().map(BlockIndex).collect();
            let block = BlockIndex(block);
            replayable.push(Replayable { block, producer: recipe.producer, inputs });
        }
    }
    replayable
}

/// Everything that choosing and placing need.
struct Chooser<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &'a Machine,
    /// The machine less what is to stay unused.
    target: Machine,
    options: &'a [RecomputeOption],
    config: &'a GenerateConfig,
}

impl Chooser<'_> {
    /// The fastest of several choices of gaps, each placed as well as it can be.
    ///
    /// Only where blocks can be made again is there more than one: then a busy link can be worth
    /// sparing, and by how much shows in the simulation alone.
    fn best(&self) -> (Selection, Placement) {
        let several = self.config.effort > 1 && !self.options.is_empty();
        let ways = if several { HIDDEN_SHARES.len() } else { 1 };
        let mut best: Option<(Selection, Placement)> = None;
        for &share in &HIDDEN_SHARES[..ways] {
            let made = self.attempt(share);
            let done = made.0.choices.is_empty();
            if best.as_ref().is_none_or(|best| rank(&made) < rank(best)) {
                best = Some(made);
            }
            if done {
                break;
            }
        }
        best.expect("at least one choice was made")
    }

    fn attempt(&self, hidden_share: f64) -> (Selection, Placement) {
        let Chooser { trace, usage, target, options, config, .. } = *self;
        let selection = select(trace, usage, &target, options, config, hidden_share);
        let placer = Placer {
            trace,
            usage,
            machine: self.machine,
            room_bytes: target.limit_bytes.max(self.least_bytes(&selection)),
            selection: &selection,
        };
        let placement = placer.best(config.effort);
        (selection, placement)
    }

    /// The memory that a choice needs if the limit is too low for it.
    fn least_bytes(&self, selection: &Selection) -> u64 {
        selection.excess.map_or(0, |(_, bytes)| self.target.limit_bytes + bytes)
    }
}

/// What is better comes first: what fits, what goes to plan, what is fast.
fn rank((selection, placement): &(Selection, Placement)) -> (u64, bool, f64) {
    let simulation = &placement.simulation;
    let missing_bytes = selection.excess.map_or(0, |(_, bytes)| bytes);
    (missing_bytes, !simulation.went_to_plan(), simulation.step_us)
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
    let choice = Chooser { trace, usage: &usage, machine, target, options: &options, config };
    let (selection, Placement { plan, simulation }) = choice.best();
    let least_bytes = choice.least_bytes(&selection);
    let unlimited_us = trace.ops.iter().map(|op| op.device_us).sum();
    let infeasible = selection.excess.and_then(|(row, _)| {
        let last = OpIndex(trace.ops.len() as u32);
        let missing_bytes = least_bytes.saturating_sub(machine.limit_bytes);
        (missing_bytes > 0).then_some(Shortfall {
            op: usage.slots.get(usage.row_slot[row] as usize).copied().unwrap_or(last),
            missing_bytes,
        })
    });
    let decisions =
        decide::decide(trace, &usage, machine, config, &selection, &by_slot(&usage, &need));
    let bound_us = crate::bound::bound_us(trace, &usage, machine, &options);
    Generated { plan, simulation, unlimited_us, decisions, bound_us, infeasible }
}
