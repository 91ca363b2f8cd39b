//! What the engine decided and why, as JSON.

use adaptive::{
    Decision, FamilySummary, Generated, Held, LevelSummary, Machine, Named, Planner, Prefer,
    Simulation, Trace, unlimited_us,
};
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;
use crate::shown::ShownStep;

/// Decisions in the answer at most, the largest blocks first.
const DECISIONS_MAX: usize = 200;
/// Names of operators that wait, at most.
const WAITS_MAX: usize = 20;

/// The whole answer.
pub(crate) fn explain(context: &Context) -> Result<Value, Failure> {
    let course = context.course();
    let machine = course.with_link(context.settings.machine);
    let link = machine.link;
    let stage = format!("{:?}", context.stage(&course));
    let totals = &course.totals;
    let [_, allocated, active, reserved] = totals.with_peaks(&context.engine.memory_stats()?);
    let shown = course.shown.as_ref();
    let trace = shown.map(ShownStep::trace);
    // Where the planner had nothing to offer, it still says why.
    let planner = course.session.policy().planner();
    let last = planner.latest();
    let unplanned = last.filter(|made| shown.is_some_and(|shown| shown.is_about(made)));
    let generated = shown.and_then(|shown| shown.made.as_deref()).or(unplanned);
    let [warm_up, search, stable] = totals.steps_by_stage;
    let prediction = generated.zip(shown).map(|(made, shown)| {
        let bound_us = planner.bound_us(&shown.trace());
        predicted(made, shown, &machine, bound_us)
    });
    let decisions = generated.map_or(&[][..], |generated| &generated.decisions);
    Ok(json!({
        "stage": stage,
        "limit_bytes": machine.limit_bytes,
        "host_limit_bytes": machine.host_limit_bytes,
        "min_block_bytes": context.settings.engine.pool.swap_threshold_bytes,
        "strategy": context.settings.planning.strategy.name(),
        "prefer": context.settings.planning.prefer.map(Prefer::name),
        "link": {
            "out_bytes_per_s": link.out_bytes_per_us * 1e6,
            "in_bytes_per_s": link.in_bytes_per_us * 1e6,
            "both_bytes_per_s": link.both_bytes_per_us * 1e6,
        },
        "steps": totals.steps(),
        "steps_by_stage": { "WarmUp": warm_up, "SearchPolicy": search, "Stable": stable },
        "last_step_us": totals.last_step_us,
        "op_count": trace.as_ref().map(|trace| trace.ops.len()),
        "plan_actions": shown.and_then(|shown| Some(shown.plan.as_ref()?.actions.len())),
        "measured": shown.and_then(ShownStep::measured).map(|measured| {
            json!({
                "step_us": measured.step_us,
                "steps": measured.steps,
                "resident_bytes_peak": measured.resident_bytes,
                "held_bytes_peak": measured.held_bytes,
                "memory_calls": measured.memory_calls,
            })
        }),
        "held": held(context)?,
        "memory": {
            "allocated_bytes_peak": allocated.peak,
            "active_bytes_peak": active.peak,
            "reserved_bytes_peak": reserved.peak,
        },
        "order": context.order_checked(),
        "prediction": prediction,
        "families": course.session.policy().families().iter().map(family).collect::<Vec<_>>(),
        "decisions": largest(decisions),
    }))
}

/// What is said of a step by its plan, or why it has none.
fn predicted(made: &Generated, shown: &ShownStep, machine: &Machine, bound_us: f64) -> Value {
    let trace = shown.trace();
    let simulation = match shown.plan {
        Some(_) => &shown.simulation(machine),
        None => &made.simulation,
    };
    let unlimited_us = unlimited_us(&trace);
    json!({
        "prefer": Prefer::of(made.movable).name(),
        "step_us": simulation.step_us,
        "unlimited_us": unlimited_us,
        "added_us": simulation.step_us - unlimited_us,
        "bound_us": bound_us,
        "stall_us": simulation.stall_us,
        "peak_bytes": simulation.held_bytes_peak,
        "swapped_out_bytes": simulation.swapped_out_bytes,
        "swapped_in_bytes": simulation.swapped_in_bytes,
        "recomputed_us": simulation.recomputed_us,
        "infeasible_bytes": made.infeasible.as_ref().map(|lack| lack.missing_bytes),
        "waits": waits(&trace, simulation),
    })
}

/// For what operators the step waits, the longest waits first.
fn waits(trace: &Trace, simulation: &Simulation) -> Vec<Value> {
    let longest = adaptive::waits_by_name(trace, simulation).into_iter().take(WAITS_MAX);
    longest.map(|(name, wait_us)| json!({ "op": name, "wait_us": wait_us })).collect()
}

/// Steps that differ in their sizes alone.
fn family(family: &FamilySummary) -> Value {
    let level = |level: &LevelSummary| {
        json!({
            "probe_bytes": level.probe_bytes,
            "plan_actions": level.actions,
            "predicted_ratio": level.predicted_ratio,
            "measured_ratio": level.measured_ratio,
            "steps": level.steps,
            "misses": level.misses,
            "rescues": level.rescues,
        })
    };
    json!({
        "recorded_probe_bytes": family.recorded_bytes,
        "recent_probe_bytes": family.recent_bytes,
        "levels": family.levels.iter().map(level).collect::<Vec<_>>(),
    })
}

/// Who keeps memory on the device, most bytes first.
pub(crate) fn held(context: &Context) -> Result<Value, Failure> {
    let describe = |held: Held| {
        json!({
            "by": held.by,
            "until": if held.is_lent { "step end" } else { "freed" },
            "blocks": held.blocks,
            "bytes": held.size_bytes,
        })
    };
    Ok(context.engine.held()?.into_iter().map(describe).collect())
}

fn largest(decisions: &[Decision]) -> Vec<Value> {
    let mut order: Vec<&Decision> = decisions.iter().collect();
    order.sort_by_key(|decision| std::cmp::Reverse(decision.size_bytes));
    order.into_iter().take(DECISIONS_MAX).map(decision).collect()
}

fn decision(decision: &Decision) -> Value {
    json!({
        "block": decision.block.0,
        "made_by": decision.name,
        "size_bytes": decision.size_bytes,
        "treatment": decision.treatment.name(),
        "leaves_after_op": decision.leaves_after.map(|op| op.0),
        "returns_before_op": decision.returns_before.map(|op| op.0),
        "why": decision.reason.to_string(),
    })
}
