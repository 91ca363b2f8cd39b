//! The command `plan`: makes a plan for a recorded step and says what it does and why.

use std::process::ExitCode;
use std::time::Instant;

use adaptive::{
    Bytes, Generated, JointPlanner, OpIndex, PrintLevel, Shortfall, Treatment, with_state_held,
};
use anyhow::Context as _;

use crate::args::{PlanArgs, budget_bytes, joint_planner};
use crate::report::files::OutFolder;
use crate::train::say;

mod advice;
mod holders;
mod report;
pub(crate) mod step;
pub(crate) mod steps;

use advice::advice;
use holders::{Holder, holders};
use report::Report;
use step::Step;
use steps::{MemberRow, Steps};

/// Blocks that the line about a budget out of reach names.
const NAMED_HOLDERS: usize = 4;

/// Runs the command. Exit code 1 says that no plan reaches the budget.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let args = &args.options()?;
    let save = args.save.as_deref().map(OutFolder::prepare).transpose()?;
    let out = args.out.clone().or_else(|| save.map(|folder| folder.path("plan.json")));
    let steps = Steps::open(&args.trace)?;
    let recorded = &steps.planned;
    let budget_bytes = budget_bytes(args.budget, recorded.peak_bytes)?;
    let step = recorded.under(budget_bytes);
    let started = now();
    let planner = joint_planner(&args.settings, budget_bytes);
    let (made, members) = make(&steps, &step, &planner);
    let plan_ms = started.elapsed().as_secs_f64() * 1e3;
    let bound_us = planner.bound_us(&step.trace);
    let is_whole = made.infeasible.is_none();
    let layout = is_whole.then(|| planner.lay_out(&step.trace, &made.plan));
    let (made, step) = (&made, &step);
    let report = Report { args, step, budget_bytes, made, bound_us, plan_ms, layout, members };
    if made.infeasible.is_none()
        && let Some(path) = &out
    {
        let part_bytes = step.part_bytes();
        adaptive::save_in_parts(path, &made.plan, part_bytes)?;
    }
    if args.json {
        say(&(report.json().context("cannot write the report")? + "\n"))?;
    } else if let Some(shortfall) = made.infeasible {
        let holders = holders(&step.trace, made, shortfall.op);
        let advice = advice(&args.settings, recorded, budget_bytes, shortfall);
        eprintln!("error: {}", out_of_reach(&report, &holders, shortfall, &advice));
    } else if args.print_level < PrintLevel::None {
        say(&report.text())?;
    }
    Ok(if made.infeasible.is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// The plan for a step, and what becomes of the others of its file under it. What is as large in
/// all steps takes as long to move in short ones, so for several a plan that leaves it where it is
/// is made as well, and taken if that is better for all together.
fn make(steps: &Steps, step: &Step, planner: &JointPlanner) -> (Generated, Vec<MemberRow>) {
    let machine = planner.machine();
    let made = planner.make(&step.trace);
    let rows = steps.under(&made.plan, step, machine);
    if rows.is_empty() || made.plan.actions.is_empty() {
        return (made, rows);
    }
    let mut keeping = planner.make(&with_state_held(&step.trace));
    keeping.plan.signature = step.trace.signature;
    let keeping_rows = steps.under(&keeping.plan, step, machine);
    if keeping.infeasible.is_none() && mean_ratio(&keeping_rows) < mean_ratio(&rows) {
        return (keeping, keeping_rows);
    }
    (made, rows)
}

/// What steps take of their time with all memory, on average; without bound if one runs out.
fn mean_ratio(rows: &[MemberRow]) -> f64 {
    let ratios = rows.iter().map(|row| row.ratio.unwrap_or(f64::INFINITY));
    ratios.sum::<f64>() / rows.len() as f64
}

/// Why no plan reaches the budget, in one line.
fn out_of_reach(
    report: &Report<'_>,
    holders: &[Holder],
    shortfall: Shortfall,
    advice: &str,
) -> String {
    let used_bytes: u64 =
        holders.iter().filter(|holder| holder.in_use).map(|holder| holder.size_bytes).sum();
    let largest: Vec<String> = holders
        .iter()
        .take(NAMED_HOLDERS)
        .map(|holder| {
            let use_ = if holder.in_use { "in use" } else { "waiting" };
            format!("{} ({}, {use_})", holder.name, Bytes(holder.size_bytes))
        })
        .collect();
    format!(
        "no plan runs '{}' in {}: {} more are needed at {}, which uses {} itself; the largest \
         blocks there are {}; {}",
        report.args.trace.display(),
        Bytes(report.budget_bytes),
        Bytes(shortfall.missing_bytes),
        report.step.op_label(shortfall.op),
        Bytes(used_bytes),
        if largest.is_empty() { "small ones".to_owned() } else { largest.join(", ") },
        advice,
    )
}

/// Whether a decision has its block away while an op runs.
fn is_away(decision: &adaptive::Decision, op: OpIndex) -> bool {
    if decision.treatment == Treatment::Keep {
        return false;
    }
    let left = decision.leaves_after.is_none_or(|from| from < op);
    let not_back = decision.returns_before.is_none_or(|to| op < to);
    match (decision.leaves_after, decision.returns_before) {
        // Round the end of the step.
        (Some(from), Some(to)) if to <= from => left || not_back,
        _ => left && not_back,
    }
}

#[allow(clippy::disallowed_methods)] // How long planning takes is part of what is shown.
fn now() -> Instant {
    Instant::now()
}
