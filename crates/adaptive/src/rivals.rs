//! Our plans against all that others would do: the fastest simulated step stands.

use policy::{
    Action, ActionKind, Baseline, GenerateConfig, Generated, Machine, Movable, Origin, Plan, Trace,
    run_baseline,
};

use crate::joint::{Joint, JointConfig, Strategy};

/// Steps with more ops than this for each unit of effort are not planned in the way of others.
const RIVAL_OPS_MAX: usize = 5_000;
/// A step that is longer than the bound by less than this share is as good as any.
const AT_BOUND: f64 = 1e-9;

/// The fastest plan of those in which so many blocks may leave, and which of them that is.
///
/// It is also held against the plans of others that the strategy and the settings allow, and
/// against no plan at all, so it is never slower than those in the simulation; steps of more than
/// 5,000 ops for each unit of effort are not, and from 20,000 ops on the first of `movable` that
/// reaches the limit has to do. Other than
/// [`plan_jointly`](crate::plan_jointly), it may so leave some moves to be made on demand.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](policy::check_trace)), if a rate of the link is
/// not above 0, or if `movable` is empty.
pub fn plan_best(
    trace: &Trace,
    machine: &Machine,
    config: &JointConfig,
    movable: &[Movable],
) -> (Generated, Movable) {
    let joint = Joint::new(trace, machine, config);
    let mut best: Option<(Generated, Movable)> = None;
    for &movable in movable {
        let made = joint.plan(movable);
        if best.as_ref().is_none_or(|(best, _)| rank(&made) < rank(best)) {
            best = Some((made, movable));
        }
        let done =
            |best: &Generated| is_at_bound(best) || joint.is_large() && best.infeasible.is_none();
        if best.as_ref().is_some_and(|(best, _)| done(best)) {
            break;
        }
    }
    let (mut best, mut moved) = best.expect("some blocks may leave");
    let plans = matches!(config.strategy, Strategy::Swap | Strategy::Joint);
    let large = trace.ops.len() > RIVAL_OPS_MAX.saturating_mul(config.generate.effort as usize);
    if !plans || is_at_bound(&best) || large {
        return (best, moved);
    }
    for baseline in Baseline::ALL {
        let run = run_baseline(trace, machine, baseline);
        let plan = run.plan;
        let Some(&movable) = movable.iter().find(|&&movable| allows(trace, config, movable, &plan))
        else {
            continue;
        };
        // Some change the step's calls, and what they do is no plan for this one.
        if *run.trace != *trace || run.simulation.step_us >= best.simulation.step_us {
            continue;
        }
        let made = joint.generator.describe(plan, &config.generate, joint.bound_us);
        if rank(&made) < rank(&best) {
            (best, moved) = (made, movable);
        }
    }
    (best, moved)
}

fn is_at_bound(made: &Generated) -> bool {
    let least_us = made.unlimited_us + made.bound_us;
    made.infeasible.is_none() && made.simulation.step_us <= least_us * (1.0 + AT_BOUND)
}

/// What is better comes first: what fits, what is fast, what leaves nothing to demand.
fn rank(made: &Generated) -> (u64, f64, bool) {
    let short = made.infeasible.or(made.simulation.shortfall);
    let missing_bytes = short.map_or(0, |shortfall| shortfall.missing_bytes);
    (missing_bytes, made.simulation.step_us, !made.simulation.went_to_plan())
}

/// Whether somebody else's plan keeps to the settings. What moves on demand may be anything, so
/// without a plan everything must be allowed to move.
fn allows(trace: &Trace, config: &JointConfig, movable: Movable, plan: &Plan) -> bool {
    let GenerateConfig { min_block_bytes, swap_bytes_max, reserve_bytes, .. } = config.generate;
    let capped = swap_bytes_max < u64::MAX || reserve_bytes > 0;
    if capped || plan.actions.is_empty() && movable == Movable::Activations {
        return false;
    }
    plan.actions.iter().all(|action: &Action| {
        let block = &trace.blocks[action.block.0 as usize];
        let replays = matches!(action.kind, ActionKind::Discard | ActionKind::Replay);
        block.size_bytes >= min_block_bytes
            && !(movable == Movable::Activations && block.origin == Origin::Persistent)
            && !(replays && config.strategy == Strategy::Swap)
    })
}
