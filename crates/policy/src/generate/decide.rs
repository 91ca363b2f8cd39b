//! Says for each block what becomes of it, and why.

use std::fmt;

use swap_core::{Action, ActionKind, BlockIndex, OpIndex, Plan, Trace};

use super::GenerateConfig;
use super::select::{Mode, Selection};
use crate::filter::{Exclusion, exclusion};
use crate::machine::Machine;
use crate::usage::Usage;

/// What a plan does with a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Treatment {
    /// It stays.
    Keep,
    /// Its bytes wait on the host.
    Swap,
    /// It is dropped and made again.
    Recompute,
}

impl Treatment {
    /// All treatments.
    pub const ALL: [Treatment; 3] = [Treatment::Keep, Treatment::Swap, Treatment::Recompute];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Treatment::Keep => "keep",
            Treatment::Swap => "swap",
            Treatment::Recompute => "recompute",
        }
    }
}

/// Why a block is treated as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// Everything fits.
    Fits,
    /// It cannot help.
    Excluded(Exclusion),
    /// Others made enough room at less cost.
    OthersAreCheaper,
    /// Its copies run beside compute.
    Hidden,
    /// Not all of its copy time is hidden, but nothing cheaper would do.
    Exposed,
    /// Making it again takes less time than waiting for the link.
    CheaperThanLink,
    /// It is dropped, and not needed again.
    NotNeeded,
    /// A published strategy has it so.
    Prescribed,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Fits => f.write_str("everything fits"),
            Reason::Excluded(exclusion) => exclusion.fmt(f),
            Reason::OthersAreCheaper => f.write_str("others make enough room at less cost"),
            Reason::Hidden => f.write_str("its copies run beside compute"),
            Reason::Exposed => f.write_str("some waiting, but nothing cheaper would do"),
            Reason::CheaperThanLink => f.write_str("making it again beats waiting for the link"),
            Reason::NotNeeded => f.write_str("not needed again"),
            Reason::Prescribed => f.write_str("as the strategy has it"),
        }
    }
}

/// What becomes of one block in one gap, or in the whole step if it stays.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The block.
    pub block: BlockIndex,
    /// Its owner's name for it.
    pub name: String,
    /// Its physical bytes.
    pub size_bytes: u64,
    /// What is done with it.
    pub treatment: Treatment,
    /// The op after which it leaves; nothing if it stays or if no op of the step uses it.
    pub leaves_after: Option<OpIndex>,
    /// The op before which it is back; nothing if it stays or not needed again.
    pub returns_before: Option<OpIndex>,
    /// Why.
    pub reason: Reason,
    /// What it was expected to add to the step, in microseconds.
    pub added_us: f64,
}

/// Decisions by block; a block that leaves more than once has one for each time.
pub(super) fn decide(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    config: &GenerateConfig,
    selection: &Selection,
    need: &[u64],
) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = selection
        .choices
        .iter()
        .filter(|choice| choice.stands)
        .map(|choice| {
            let gap = choice.gap.describe(trace, usage);
            let exposed = choice.added_us > 0.0;
            let (treatment, reason) = match choice.mode {
                Mode::Swap if exposed => (Treatment::Swap, Reason::Exposed),
                Mode::Swap => (Treatment::Swap, Reason::Hidden),
                Mode::Recompute if !choice.gap.returns => (Treatment::Recompute, Reason::NotNeeded),
                Mode::Recompute => (Treatment::Recompute, Reason::CheaperThanLink),
            };
            Decision {
                block: gap.block,
                name: trace.blocks[gap.block.0 as usize].name.clone(),
                size_bytes: gap.size_bytes,
                treatment,
                leaves_after: gap.leaves_after,
                returns_before: gap.returns_before,
                reason,
                added_us: choice.added_us,
            }
        })
        .collect();
    let fits = selection.choices.is_empty() && selection.excess.is_none();
    add_kept(&mut decisions, fits, trace, exclusion(trace, usage, machine, config, need));
    decisions
}

/// The decisions that the actions of a plan stand for.
pub(super) fn decide_plan(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    config: &GenerateConfig,
    plan: &Plan,
    need: &[u64],
) -> Vec<Decision> {
    let mut decisions = Vec::new();
    for (place, action) in plan.actions.iter().enumerate() {
        let (treatment, reason, back) = match action.kind {
            ActionKind::SwapOut => (Treatment::Swap, Reason::Exposed, ActionKind::SwapIn),
            ActionKind::Discard => {
                (Treatment::Recompute, Reason::CheaperThanLink, ActionKind::Replay)
            }
            ActionKind::SwapIn | ActionKind::Replay => continue,
        };
        let returns = |other: &&Action| other.block == action.block && other.kind == back;
        let later = plan.actions[place..].iter().find(returns);
        let returned = later.or_else(|| plan.actions[..place].iter().find(returns));
        let block = &trace.blocks[action.block.0 as usize];
        decisions.push(Decision {
            block: action.block,
            name: block.name.clone(),
            size_bytes: block.size_bytes,
            treatment,
            leaves_after: Some(action.op),
            returns_before: returned.map(|action| action.due),
            reason,
            added_us: 0.0,
        });
    }
    let fits = need.iter().all(|&bytes| bytes <= machine.limit_bytes);
    add_kept(&mut decisions, fits, trace, exclusion(trace, usage, machine, config, need));
    decisions
}

/// Adds the blocks that stay all the time, and puts all in order.
fn add_kept(
    decisions: &mut Vec<Decision>,
    fits: bool,
    trace: &Trace,
    exclusions: Vec<Option<Exclusion>>,
) {
    let mut leaves = vec![false; trace.blocks.len()];
    for decision in decisions.iter() {
        leaves[decision.block.0 as usize] = true;
    }
    for (index, block) in trace.blocks.iter().enumerate().filter(|&(index, _)| !leaves[index]) {
        let reason = match exclusions[index] {
            _ if fits => Reason::Fits,
            Some(exclusion) => Reason::Excluded(exclusion),
            None => Reason::OthersAreCheaper,
        };
        decisions.push(Decision {
            block: BlockIndex(index as u32),
            name: block.name.clone(),
            size_bytes: block.size_bytes,
            treatment: Treatment::Keep,
            leaves_after: None,
            returns_before: None,
            reason,
            added_us: 0.0,
        });
    }
    decisions.sort_by_key(|decision| (decision.block, decision.leaves_after));
}
