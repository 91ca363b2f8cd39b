//! Our plan against all that others would do: the better one stands.

use policy::{
    ActionKind, Baseline, GenerateConfig, Generated, Movable, Origin, Plan, Trace, run_baseline,
};

use crate::joint::{Joint, Strategy};

/// Whose plans compete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rivals {
    Any,
    /// Those that plan all moves that the step needs.
    WithoutDemand,
}

/// The best of a plan of ours and those of others that the settings allow.
pub(crate) fn against(joint: &Joint<'_>, ours: Generated, rivals: Rivals) -> Generated {
    let swaps = matches!(joint.config.strategy, Strategy::Swap | Strategy::Joint);
    let GenerateConfig { swap_bytes_max, reserve_bytes, .. } = joint.config.generate;
    // None of them heeds such a cap.
    if !swaps || swap_bytes_max < u64::MAX {
        return ours;
    }
    let machine = joint.machine.with_limit(joint.machine.limit_bytes.saturating_sub(reserve_bytes));
    let (wish, most) = (joint.config.prefer, ours.movable);
    let mut best = ours;
    for baseline in Baseline::ALL {
        let run = run_baseline(joint.trace, &machine, baseline);
        let fits = run.simulation.shortfall.is_none();
        let planned = run.simulation.went_to_plan();
        if !fits || !planned && rivals == Rivals::WithoutDemand || run.cost() >= best.cost() {
            continue;
        }
        // What moves on demand may be anything.
        let all = !planned || moves_state(joint.trace, &run.plan);
        let movable = match (wish, all) {
            (Some(_), _) => most,
            (None, true) => Movable::All,
            (None, false) => Movable::Activations,
        };
        let too_much = all && movable == Movable::Activations;
        // Some change the step's calls, and what they do is not a plan for this one.
        let same_step = *run.trace == *joint.trace;
        if same_step && !too_much && keeps_settings(joint, &run.plan) {
            best = joint.describe(run.plan, movable);
        }
    }
    best
}

/// Whether a plan moves what lives from step to step.
fn moves_state(trace: &Trace, plan: &Plan) -> bool {
    let mut blocks = plan.actions.iter().map(|action| &trace.blocks[action.block.0 as usize]);
    blocks.any(|block| block.origin == Origin::Persistent)
}

/// Whether a plan moves only blocks of the size, and in the ways, that are allowed.
fn keeps_settings(joint: &Joint<'_>, plan: &Plan) -> bool {
    plan.actions.iter().all(|action| {
        let size_bytes = joint.trace.blocks[action.block.0 as usize].size_bytes;
        let replays = matches!(action.kind, ActionKind::Discard | ActionKind::Replay);
        size_bytes >= joint.config.generate.min_block_bytes
            && !(replays && joint.config.strategy == Strategy::Swap)
    })
}
