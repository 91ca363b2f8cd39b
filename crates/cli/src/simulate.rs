//! The command `simulate`: time and memory of a recorded step under a plan.

use std::borrow::Cow;
use std::process::ExitCode;

use adaptive::{Bytes, CopySpan, Direction, Machine, Plan, SavedPlan, Simulation, simulate};
use anyhow::Context as _;
use serde::Serialize;

use crate::args::{SimulateArgs, SimulateOptions, budget_bytes};
use crate::caps;
use crate::collect;
use crate::measured;
use crate::plan::step::{MEMORY_ENDLESS, Parts, Step};
use crate::plan::steps::{self, MemberRow, Steps};
use crate::report::run::{LaneSpan, WorkKind};
use crate::report::step_page::{self, MeasuredSpans, StepPage};
use crate::report::{timeline, units};
use crate::train::{command_line, say};

#[derive(Serialize)]
struct Object {
    trace: String,
    op_count: usize,
    in_parts: Option<Parts>,
    budget_bytes: Option<u64>,
    peak_before_bytes: u64,
    peak_bytes: u64,
    held_bytes_peak: u64,
    host_bytes_peak: u64,
    baseline_us: f64,
    step_us: f64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    clean_swap_outs: u64,
    recomputed_ops: u64,
    recomputed_us: f64,
    stall_us: f64,
    misses: u64,
    rescues: u64,
    infeasible: Option<u64>,
    /// Empty where the file holds one step; else all above is about the largest.
    members: Vec<MemberRow>,
}

/// Runs the command. Exit code 1 says that memory runs out.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &SimulateArgs) -> anyhow::Result<ExitCode> {
    let args = &args.options()?;
    let steps = Steps::open(&args.trace)?;
    let Simulated { step, plan, machine, budget_bytes, simulation } = simulated(args, &steps)?;
    let members = steps.under(&plan, &step, &machine);
    write_files(args, &step, &plan, &machine, &simulation)?;
    if args.json {
        let object = object(args, &step, budget_bytes, &simulation, members);
        let text = serde_json::to_string(&object).context("cannot write the report")?;
        say(&(text + "\n"))?;
    } else if let Some(shortfall) = simulation.shortfall {
        eprintln!(
            "error: '{}' runs out of memory at {}: {} are missing of {}; raise --memory, or make \
             a plan for it with smartswap plan",
            args.trace.display(),
            step.op_label(shortfall.op),
            Bytes(shortfall.missing_bytes),
            Bytes(machine.limit_bytes),
        );
    } else if args.speaks {
        say(&(text(&step, budget_bytes, &simulation) + &steps::table(&members)))?;
    }
    Ok(if simulation.shortfall.is_some() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// A recorded step under a plan.
struct Simulated<'a> {
    step: Cow<'a, Step>,
    plan: Plan,
    machine: Machine,
    budget_bytes: Option<u64>,
    simulation: Simulation,
}

fn simulated<'a>(args: &SimulateOptions, steps: &'a Steps) -> anyhow::Result<Simulated<'a>> {
    let recorded = &steps.planned;
    let budget = args.memory.map(|budget| budget_bytes(budget, recorded.peak_bytes));
    let budget_bytes = budget.transpose()?;
    let (step, plan) = match &args.plan {
        Some(path) => {
            // The plan says what its step is, whatever memory it is tried in.
            let SavedPlan { plan, part_bytes } = adaptive::load(path)?;
            let step = recorded.maybe_in_parts(part_bytes);
            step.check_plan(&plan, path, &args.trace)?;
            (step, plan)
        }
        None => (recorded.under(budget_bytes.unwrap_or(MEMORY_ENDLESS)), Plan::default()),
    };
    let machine = args.machine(budget_bytes.unwrap_or(MEMORY_ENDLESS));
    let simulation = simulate(&step.trace, &plan, &machine);
    Ok(Simulated { step, plan, machine, budget_bytes, simulation })
}

/// The page about a recorded step.
///
/// # Errors
/// As the command.
pub(crate) fn page_of(args: &SimulateOptions) -> anyhow::Result<StepPage> {
    let steps = Steps::open(&args.trace)?;
    let Simulated { step, plan, machine, simulation, .. } = simulated(args, &steps)?;
    page(args, &step, &plan, &machine, &simulation)
}

/// The timeline and the page, if they were asked for.
fn write_files(
    args: &SimulateOptions,
    step: &Step,
    plan: &Plan,
    machine: &Machine,
    simulation: &Simulation,
) -> anyhow::Result<()> {
    if args.timeline.is_none() && args.report.is_none() {
        return Ok(());
    }
    let page = page(args, step, plan, machine, simulation)?;
    if let Some(path) = &args.timeline {
        let limit_bytes = page.memory_limit_bytes;
        let measured = page.measured.as_ref().map(|measured| &measured.spans[..]);
        let planned = &page.memory.planned;
        let text = timeline::draw(&command_line(), limit_bytes, &page.spans, measured, planned)?;
        adaptive::save_bytes(path, text.as_bytes())?;
    }
    if let Some(path) = &args.report {
        adaptive::save_bytes(path, step_page::text(&page)?.as_bytes())?;
    }
    Ok(())
}

fn page(
    args: &SimulateOptions,
    step: &Step,
    plan: &Plan,
    machine: &Machine,
    simulation: &Simulation,
) -> anyhow::Result<StepPage> {
    let beside = measured_beside(args, step, simulation)?;
    // Without a limit the drawing's line is at what the step takes.
    let memory_limit_bytes = match args.memory {
        Some(_) => machine.limit_bytes,
        None => simulation.held_bytes_peak,
    };
    let budget_bytes = args.memory.map(|_| machine.limit_bytes);
    let mut facts = lines(step, budget_bytes, simulation);
    let measured = measured(args, step);
    facts.extend(measured.as_ref().map(|words| ("measured", words.clone())));
    let mut decisions = match args.plan {
        Some(_) => collect::adopted(plan, &step.trace),
        None => collect::unplanned(&step.trace, simulation.went_to_plan()),
    };
    decisions.sort_by_key(|decision| std::cmp::Reverse(decision.size_bytes));
    Ok(StepPage {
        headline: headline(args, step, simulation),
        lead: format!(
            "{}: one step of {}, {}.",
            args.trace.display(),
            units::count(step.trace.ops.len() as u64, "op"),
            if measured.is_some() { "as it was measured and simulated" } else { "simulated" },
        ),
        has_measured: measured.is_some() || beside.is_some(),
        command_line: command_line(),
        facts,
        memory_limit_bytes,
        memory: collect::memory(&step.trace, Some(plan), machine, &[]),
        spans: spans(step, simulation),
        measured: beside,
        caps: args.caps.as_deref().map(caps::load).transpose()?,
        decisions,
    })
}

/// What was measured of such a step, if a file says so.
fn measured_beside(
    args: &SimulateOptions,
    step: &Step,
    simulation: &Simulation,
) -> anyhow::Result<Option<MeasuredSpans>> {
    let Some(path) = &args.lanes else { return Ok(None) };
    let lanes = adaptive::load_lanes(path, &step.trace)?;
    let predicted = adaptive::predicted_lanes(&step.trace, simulation);
    Ok(Some(MeasuredSpans {
        spans: measured::spans(&step.trace, &lanes),
        departures: measured::in_words(&step.trace, &predicted, &lanes),
    }))
}

/// The outcome in one sentence: as measured where it was, else as simulated.
fn headline(args: &SimulateOptions, step: &Step, simulation: &Simulation) -> String {
    let peak_bytes = args.measured_bytes.unwrap_or(simulation.resident_bytes_peak);
    let memory =
        format!("{} instead of {}", units::bytes(peak_bytes), units::bytes(step.peak_bytes));
    match args.measured_us {
        Some(us) => format!(
            "{memory}, at {} a step; {} in the simulation",
            units::time(us),
            units::time(simulation.step_us)
        ),
        None => format!("{memory}, at {:.2} % more time", added_percent(step, simulation)),
    }
}

/// What was measured, in words.
fn measured(args: &SimulateOptions, step: &Step) -> Option<String> {
    let time = args.measured_us.map(|us| {
        let ratio = us / step.baseline_us.max(f64::MIN_POSITIVE);
        format!("{} a step, {ratio:.2}x the time of its ops", units::time(us))
    });
    let peak = args.measured_bytes.map(|bytes| format!("{} at most", units::bytes(bytes)));
    let words: Vec<String> = time.into_iter().chain(peak).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// How much longer the step takes, in percent.
fn added_percent(step: &Step, simulation: &Simulation) -> f64 {
    100.0 * (simulation.step_us - step.baseline_us) / step.baseline_us.max(f64::MIN_POSITIVE)
}

fn object(
    args: &SimulateOptions,
    step: &Step,
    budget_bytes: Option<u64>,
    simulation: &Simulation,
    members: Vec<MemberRow>,
) -> Object {
    Object {
        trace: args.trace.display().to_string(),
        op_count: step.trace.ops.len(),
        in_parts: step.parts.clone(),
        budget_bytes,
        peak_before_bytes: step.peak_bytes,
        peak_bytes: simulation.resident_bytes_peak,
        held_bytes_peak: simulation.held_bytes_peak,
        host_bytes_peak: simulation.host_bytes_peak,
        baseline_us: step.baseline_us,
        step_us: simulation.step_us,
        swapped_out_bytes: simulation.swapped_out_bytes,
        swapped_in_bytes: simulation.swapped_in_bytes,
        clean_swap_outs: simulation.clean_swap_outs,
        recomputed_ops: simulation.recomputed_ops,
        recomputed_us: simulation.recomputed_us,
        stall_us: simulation.stall_us,
        misses: simulation.misses,
        rescues: simulation.rescues,
        infeasible: simulation.shortfall.map(|shortfall| shortfall.missing_bytes),
        members,
    }
}

fn text(step: &Step, budget_bytes: Option<u64>, simulation: &Simulation) -> String {
    let lines = lines(step, budget_bytes, simulation);
    lines.iter().map(|(name, words)| format!("{name:<12}{words}\n")).collect()
}

/// The figures by name.
fn lines(
    step: &Step,
    budget_bytes: Option<u64>,
    simulation: &Simulation,
) -> Vec<(&'static str, String)> {
    let more = added_percent(step, simulation);
    let budget = budget_bytes.map_or_else(|| "no limit".to_owned(), units::bytes);
    let mut lines = vec![
        ("budget", budget),
        (
            "peak",
            format!(
                "{} without a plan, {} with it; {} with the cache",
                units::bytes(step.peak_bytes),
                units::bytes(simulation.resident_bytes_peak),
                units::bytes(simulation.held_bytes_peak)
            ),
        ),
        (
            "step time",
            format!(
                "{} without a plan, {} with it: {more:.2} % more",
                units::time(step.baseline_us),
                units::time(simulation.step_us)
            ),
        ),
        (
            "swapped",
            format!(
                "{} out, {} in; {} left without a copy; at most {} on the host",
                units::bytes(simulation.swapped_out_bytes),
                units::bytes(simulation.swapped_in_bytes),
                units::count(simulation.clean_swap_outs, "block"),
                units::bytes(simulation.host_bytes_peak)
            ),
        ),
        (
            "recomputed",
            format!(
                "{}, {}",
                units::count(simulation.recomputed_ops, "op"),
                units::time(simulation.recomputed_us)
            ),
        ),
        ("stalls", units::time(simulation.stall_us)),
        (
            "on demand",
            format!(
                "{} touches of blocks that were away, {} evictions",
                simulation.misses, simulation.rescues
            ),
        ),
    ];
    lines.extend(step.parts.as_ref().map(|parts| ("in parts", parts.to_string())));
    lines
}

/// What the three engines do in the step.
fn spans(step: &Step, simulation: &Simulation) -> Vec<LaneSpan> {
    let trace = &step.trace;
    let outermost = trace.ops.iter().zip(&simulation.ops).filter(|(op, _)| op.depth == 0);
    let ops = outermost.map(|(op, span)| LaneSpan {
        kind: WorkKind::Op,
        name: op.name.clone(),
        start_us: span.start_us,
        end_us: span.end_us,
        size_bytes: 0,
    });
    let replays = simulation.replays.iter().map(|replay| LaneSpan {
        kind: WorkKind::Replay,
        name: step.op_label(replay.op),
        start_us: replay.span.start_us,
        end_us: replay.span.end_us,
        size_bytes: 0,
    });
    let copies = simulation.copies.iter().map(|copy: &CopySpan| LaneSpan {
        kind: match copy.direction {
            Direction::Out => WorkKind::SwapOut,
            Direction::In => WorkKind::SwapIn,
        },
        name: trace.blocks[copy.block.0 as usize].name.clone(),
        start_us: copy.span.start_us,
        end_us: copy.span.end_us,
        size_bytes: copy.size_bytes,
    });
    ops.chain(replays).chain(copies).collect()
}
