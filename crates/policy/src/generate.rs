//! Makes a plan: which blocks leave, when, and how they come back.

use swap_core::{BlockIndex, OpIndex, Plan, Trace};

use crate::cost::Cost;
use crate::host::unlimited_us;
use crate::machine::Machine;
use crate::simulate::{Shortfall, Simulation, simulate_with};
use crate::usage::Usage;

mod chain;
mod choose;
mod decide;
mod deterministic;
mod moves;
mod need;
mod offers;
mod order;
mod place;
mod refine;
mod search;
mod select;
mod taste;
mod waits;

use choose::{Chooser, Made};
pub use decide::{Decision, Reason, Treatment};
pub use deterministic::{is_deterministic, mark_replayable};
use need::{by_slot, need_curve};
use place::Placement;
use search::{Lineage, Search};

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
    /// How many rounds the search has, at most. With 1 there is one choice for each start, and no
    /// search. More take longer, and may find a faster plan but never a worse one.
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
    /// Which blocks it may move.
    pub movable: Movable,
    /// The step under the plan, in the steady state.
    pub simulation: Simulation,
    /// Time of the step with enough memory for everything, in microseconds.
    pub unlimited_us: f64,
    /// What becomes of each block, and why.
    pub decisions: Vec<Decision>,
    /// What the search knew that any plan adds, in microseconds.
    /// [`bound_us`](Generator::bound_us) mostly knows of more.
    pub windows_us: f64,
    /// Set if the plan does not fit: by how much what it moves is not enough, unless the simulated
    /// step goes to plan nevertheless, or else by how much that runs short, and where.
    pub infeasible: Option<Shortfall>,
}

impl Generated {
    /// What the plan adds to the step, in microseconds.
    pub fn added_us(&self) -> f64 {
        self.simulation.step_us - self.unlimited_us
    }

    /// Its place in the order of plans.
    pub fn cost(&self) -> Cost {
        let missing_bytes = self.infeasible.map_or(0, |short| short.missing_bytes);
        Cost::new(missing_bytes, &self.simulation)
    }
}

/// A block that its producer can make again.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayable {
    /// The block.
    pub block: BlockIndex,
    /// The op that makes it.
    pub producer: OpIndex,
    /// What the op takes, in microseconds; of a nested one, its share by the bytes that it touches.
    pub device_us: f64,
    /// The blocks that this op reads, in order of index.
    pub inputs: Vec<BlockIndex>,
}

/// The blocks of a step that a replay of one op can bring back, by block and then by
/// time. A block that is overwritten by several such ops comes once for each.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)).
pub fn replayable_blocks(trace: &Trace) -> Vec<Replayable> {
    let usage = Usage::new(trace);
    let mut replayable = Vec::new();
    for (index, recipes) in usage.recipes.iter().enumerate() {
        let block = index as u32;
        for recipe in recipes {
            let mut inputs: Vec<BlockIndex> =
                recipe.inputs.iter().copied().map(BlockIndex).collect();
            inputs.sort_unstable();
            let (producer, device_us) = (recipe.producer, recipe.device_us);
            replayable.push(Replayable { block: BlockIndex(block), producer, device_us, inputs });
        }
    }
    replayable
}

/// Where the search for a plan starts.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// What may leave, and what is preferred. Its effort does not count.
    pub config: GenerateConfig,
    /// Blocks that can be made again.
    pub options: &'a [RecomputeOption],
    /// The least effort for which it counts.
    pub from_effort: u32,
}

/// Makes plans for one kind of step on one machine.
#[derive(Debug)]
pub struct Generator<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    usage: Usage,
    /// Bytes by row with everything resident.
    need: Vec<u64>,
    unlimited_us: f64,
}

impl<'a> Generator<'a> {
    /// Prepares the lookups on a trace once, for several plans.
    ///
    /// # Panics
    /// If the trace is not well formed ([`check_trace`](crate::check_trace)).
    pub fn new(trace: &'a Trace, machine: &'a Machine) -> Generator<'a> {
        let usage = Usage::new(trace);
        let need = need_curve(trace, &usage);
        let unlimited_us = unlimited_us(trace);
        Generator { trace, machine, usage, need, unlimited_us }
    }

    /// No plan for the machine's limit can add less than this to the step, in microseconds. It is
    /// never higher for more memory.
    ///
    /// # Panics
    /// If a rate of the link is not above 0.
    pub fn bound_us(&self, options: &[RecomputeOption]) -> f64 {
        let options = in_order(self.trace, options);
        crate::bound::bound_us(self.trace, &self.usage, self.machine, &options)
    }

    /// No plan for the machine's limit can add less than this, either, which is found in less time
    /// and mostly lower. It is for [`plan`](Generator::plan) and [`best`](Generator::best), to see
    /// when to stop.
    ///
    /// # Panics
    /// If a rate of the link is not above 0.
    pub fn windows_us(&self, options: &[RecomputeOption]) -> f64 {
        let options = in_order(self.trace, options);
        crate::bound::windows_us(self.trace, &self.usage, self.machine, &options)
    }

    /// Makes a plan. Stops looking for a better one where it comes close to `windows_us`, which
    /// must be a bound for these options; 0 always is.
    ///
    /// # Panics
    /// If a rate of the link is not above 0.
    pub fn plan(
        &self,
        config: &GenerateConfig,
        options: &[RecomputeOption],
        windows_us: f64,
    ) -> Generated {
        let start = Start { config: *config, options, from_effort: 1 };
        self.search(&[start], false, config.effort, windows_us)
    }

    /// The best plan of a search from several starts, one of which is for any effort. It is no
    /// worse than the [`plan`](Generator::plan) of each of them.
    ///
    /// # Panics
    /// If a rate of the link is not above 0, or if no start is for any effort.
    pub fn best(&self, starts: &[Start<'_>], effort: u32, windows_us: f64) -> Generated {
        self.search(starts, true, effort, windows_us)
    }

    fn search(
        &self,
        starts: &[Start<'_>],
        has_front: bool,
        effort: u32,
        windows_us: f64,
    ) -> Generated {
        let Generator { trace, machine, ref usage, ref need, unlimited_us } = *self;
        let ordered: Vec<Vec<RecomputeOption>> =
            starts.iter().map(|start| in_order(trace, start.options)).collect();
        let fits = need.iter().all(|&bytes| bytes <= machine.limit_bytes);
        let mut lineages = Vec::new();
        for (start, options) in starts.iter().zip(&ordered) {
            let config = &start.config;
            let reserve_bytes = if fits { 0 } else { config.reserve_bytes };
            let target = machine.with_limit(machine.limit_bytes.saturating_sub(reserve_bytes));
            let chooser = Chooser { trace, usage, machine, target, options, config };
            lineages.push(Lineage::new(chooser, start.from_effort));
        }
        let limits_us = [unlimited_us, unlimited_us + windows_us];
        let made = Search::new(lineages, has_front, limits_us).run(effort);
        let excess = made.excess();
        let Made { chooser, selection, placement: Placement { plan, simulation, .. }, .. } = made;
        let least_bytes = chooser.least_bytes(&selection);
        let short = excess.and_then(|(row, _)| {
            let last = OpIndex(trace.ops.len() as u32);
            let missing_bytes = least_bytes.saturating_sub(machine.limit_bytes);
            (missing_bytes > 0).then_some(Shortfall {
                op: usage.slots.get(usage.row_slot[row] as usize).copied().unwrap_or(last),
                missing_bytes,
            })
        });
        let infeasible = short.or(simulation.shortfall);
        let (config, movable) = (chooser.config, chooser.config.movable);
        let decisions =
            decide::decide(trace, usage, machine, config, &selection, &by_slot(usage, need));
        Generated { plan, movable, simulation, unlimited_us, decisions, windows_us, infeasible }
    }

    /// What is known about a plan that was made elsewhere, under the same settings.
    ///
    /// # Panics
    /// If a rate of the link is not above 0.
    pub fn describe(&self, plan: Plan, config: &GenerateConfig, windows_us: f64) -> Generated {
        let Generator { trace, machine, ref usage, ref need, unlimited_us } = *self;
        let simulation = simulate_with(trace, usage, &plan, machine);
        let need = by_slot(usage, need);
        let decisions = decide::decide_plan(trace, usage, machine, config, &plan, &need);
        let (movable, infeasible) = (config.movable, simulation.shortfall);
        Generated { plan, movable, simulation, unlimited_us, decisions, windows_us, infeasible }
    }
}

/// Options by block, one for each.
fn in_order(trace: &Trace, options: &[RecomputeOption]) -> Vec<RecomputeOption> {
    let mut options = options.to_vec();
    options.retain(|option| (option.block.0 as usize) < trace.blocks.len());
    options.sort_by_key(|option| option.block);
    options.dedup_by_key(|option| option.block);
    options
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
    let generator = Generator::new(trace, machine);
    let windows_us = generator.windows_us(options);
    generator.plan(config, options, windows_us)
}
