//! The generators of SmartSwap for Ascend as a strategy beside our own.

use policy::{
    ActionKind, Baseline, BlockIndex, Decision, Generated, Movable, Plan, Reason, SmartSwapConfig,
    Trace, Treatment, run_baseline_with,
};

use crate::joint::Joint;

/// Which generator of SmartSwap, and its settings.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SmartSwapStrategy {
    /// Whether it is the second generator, which knows no limit, or else the first.
    pub policy_v2: bool,
    /// Its settings. The reserve is that of
    /// [`JointConfig::generate`](crate::JointConfig::generate).
    pub config: SmartSwapConfig,
}

impl Default for SmartSwapStrategy {
    fn default() -> SmartSwapStrategy {
        SmartSwapStrategy { policy_v2: true, config: SmartSwapConfig::default() }
    }
}

/// Their plan in the shape of ours, with our bound.
pub(crate) fn plan(joint: &Joint<'_>) -> Generated {
    let SmartSwapStrategy { policy_v2, config: theirs } = joint.config.smartswap;
    let generator = if policy_v2 { Baseline::SmartSwapV2 } else { Baseline::SmartSwapV1 };
    let reserve_bytes = joint.config.generate.reserve_bytes;
    let theirs = SmartSwapConfig { reserve_bytes, ..theirs };
    let run = run_baseline_with(joint.trace, joint.machine, generator, &theirs);
    let activations = policy_v2 && !theirs.optimizer_state;
    let kept = joint.unmoved();
    let mut decisions = moved(joint.trace, &run.plan);
    let leaves = |block: BlockIndex| {
        run.plan.blocks.binary_search_by_key(&block, |block| block.index).is_ok()
    };
    let mut stay = kept.decisions;
    stay.retain(|decision| !leaves(decision.block));
    for decision in stay.iter_mut().filter(|decision| decision.reason != Reason::Fits) {
        decision.reason = Reason::Prescribed;
    }
    decisions.extend(stay);
    decisions.sort_by_key(|decision| (decision.block, decision.leaves_after));
    Generated {
        plan: run.plan,
        movable: if activations { Movable::Activations } else { Movable::All },
        infeasible: run.simulation.shortfall,
        simulation: run.simulation,
        unlimited_us: kept.unlimited_us,
        windows_us: kept.windows_us,
        decisions,
    }
}

/// What leaves in a plan of swaps.
fn moved(trace: &Trace, plan: &Plan) -> Vec<Decision> {
    let mut decisions: Vec<Decision> = Vec::new();
    let mut actions: Vec<_> = plan.actions.iter().collect();
    actions.sort_by_key(|action| action.block);
    for pair in actions.chunk_by(|one, other| one.block == other.block) {
        let mut back = pair.iter().filter(|action| action.kind == ActionKind::SwapIn);
        for out in pair.iter().filter(|action| action.kind == ActionKind::SwapOut) {
            let block = &trace.blocks[out.block.0 as usize];
            decisions.push(Decision {
                block: out.block,
                name: block.name.clone(),
                size_bytes: block.size_bytes,
                treatment: Treatment::Swap,
                leaves_after: Some(out.op),
                returns_before: back.next().map(|back| back.due),
                reason: Reason::Prescribed,
                added_us: 0.0,
            });
        }
    }
    decisions
}
