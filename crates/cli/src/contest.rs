//! The command `compare`: our plans beside those of others, on the same recorded steps and
//! budgets, judged by one simulator.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adaptive::{
    Baseline, Budget, Generated, JointConfig, JointPlanner, Machine, Simulation, Strategy,
    gap_fraction, gap_reason, plan_for_member, run_baseline_with, simulate,
};
use anyhow::Context as _;
use serde::Serialize;

use crate::args::{CompareArgs, CompareOptions, budget_bytes};
use crate::plan::step::{Parts, Step};
use crate::plan::steps::Steps;
use crate::train::say;

mod plot;
mod table;

/// The distance between two budgets that are drawn, in percent of the peak.
const PLOT_STEP_PERCENT: f64 = 5.0;
/// How closely the least budget that fits is found, in percent of the peak.
const PLOT_LEAST_PERCENT: f64 = 0.5;

/// The plan of `joint` for the largest step of a file.
const OF_LARGEST: &str = "joint-of-largest";

/// Who plans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Contestant {
    /// A published strategy.
    Other(Baseline),
    /// Our own.
    Ours(Strategy),
}

impl Contestant {
    fn all() -> Vec<Contestant> {
        let others = Baseline::ALL.map(Contestant::Other);
        let ours = [Strategy::Swap, Strategy::Joint].map(Contestant::Ours);
        others.into_iter().chain(ours).collect()
    }

    fn name(self) -> &'static str {
        match self {
            Contestant::Other(baseline) => baseline.name(),
            Contestant::Ours(Strategy::Swap) => "swap",
            Contestant::Ours(_) => "joint",
        }
    }

    /// The step as this strategy would run it.
    fn run(self, step: &Step, machine: &Machine, args: &CompareOptions) -> Run {
        match self {
            Contestant::Other(baseline) => {
                let config = &args.planner.smartswap.config;
                Run::Other(run_baseline_with(&step.trace, machine, baseline, config).simulation)
            }
            Contestant::Ours(strategy) => {
                Run::Ours(planner(strategy, machine, args).make(&step.trace))
            }
        }
    }

    /// What no plan of this kind can add less than, if it is one of ours.
    fn bound_us(self, step: &Step, machine: &Machine, args: &CompareOptions) -> Option<f64> {
        match self {
            Contestant::Other(_) => None,
            Contestant::Ours(strategy) => {
                Some(planner(strategy, machine, args).bound_us(&step.trace))
            }
        }
    }
}

fn planner(strategy: Strategy, machine: &Machine, args: &CompareOptions) -> JointPlanner {
    JointPlanner::new(*machine, JointConfig { strategy, ..args.planner })
}

/// A step as a strategy would run it.
enum Run {
    Other(Simulation),
    Ours(Generated),
}

impl Run {
    fn simulation(&self) -> &Simulation {
        match self {
            Run::Other(simulation) => simulation,
            Run::Ours(made) => &made.simulation,
        }
    }

    /// Bytes that are missing where the step does not run.
    fn missing_bytes(&self) -> Option<u64> {
        let shortfall = match self {
            Run::Other(simulation) => simulation.shortfall,
            Run::Ours(made) => made.infeasible,
        };
        shortfall.map(|shortfall| shortfall.missing_bytes)
    }
}

/// One strategy on one step under one budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    strategy: &'static str,
    /// Whether the step runs at all. What is not planned for is moved on demand, and counted.
    fits: bool,
    /// Bytes that are missing where it does not run.
    infeasible: Option<u64>,
    step_us: f64,
    /// Time over that of the step with memory for everything, as a share of it.
    overhead_fraction: f64,
    peak_bytes: u64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    recomputed_us: f64,
    stall_us: f64,
    misses: u64,
    rescues: u64,
    /// What no plan of the same kind can add less than. Of our own strategies alone.
    bound_us: Option<f64>,
    /// By how much of the step ours misses that.
    gap_fraction: Option<f64>,
    /// Why, where that is above 3 %.
    gap_reason: Option<String>,
}

impl Row {
    fn new(strategy: &'static str, step: &Step, whole: &Run, bound_us: Option<f64>) -> Row {
        let run = whole.simulation();
        let missing_bytes = whole.missing_bytes();
        let ours = match whole {
            Run::Ours(made) if missing_bytes.is_none() => Some(made).zip(bound_us),
            _ => None,
        };
        Row {
            bound_us: ours.map(|(_, bound_us)| bound_us),
            gap_fraction: ours.map(|(made, bound_us)| gap_fraction(made, bound_us)),
            gap_reason: ours.and_then(|(made, us)| gap_reason(&step.trace, made, us)),
            strategy,
            fits: missing_bytes.is_none(),
            infeasible: missing_bytes,
            step_us: run.step_us,
            overhead_fraction: run.step_us / step.baseline_us - 1.0,
            peak_bytes: run.held_bytes_peak,
            swapped_out_bytes: run.swapped_out_bytes,
            swapped_in_bytes: run.swapped_in_bytes,
            recomputed_us: run.recomputed_us,
            stall_us: run.stall_us,
            misses: run.misses,
            rescues: run.rescues,
        }
    }
}

/// All strategies on one step under one budget.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Contest {
    trace: String,
    budget_bytes: u64,
    peak_before_bytes: u64,
    baseline_us: f64,
    /// Where operators over lists run in parts, for all strategies alike.
    in_parts: Option<Parts>,
    strategies: Vec<Row>,
}

/// The object that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answer {
    contests: Vec<Contest>,
    /// The file of the drawing.
    plot: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let args = &args.options()?;
    let open = |path: &PathBuf| Steps::open(path).map(|steps| (label(path), steps));
    let files = args.traces.iter().map(open).collect::<anyhow::Result<Vec<_>>>()?;
    let mut contests = Vec::new();
    for (name, steps) in &files {
        for &budget in &args.budgets {
            let budget_bytes = budget_bytes(budget, steps.planned.peak_bytes)?;
            contests.extend(hold_each(name, steps, budget_bytes, args));
        }
    }
    if let Some(path) = &args.plot {
        let charts: Vec<plot::Chart> =
            files.iter().map(|(name, steps)| sweep(name, &steps.planned, args)).collect();
        let drawing = plot::draw(&charts);
        adaptive::save_bytes(path, drawing.as_bytes())?;
    }
    if args.json {
        let answer = Answer { contests, plot: args.plot.clone() };
        let json = serde_json::to_string_pretty(&answer).context("cannot write the answer")?;
        say(&(json + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !args.speaks {
        return Ok(ExitCode::SUCCESS);
    }
    let tables: Vec<String> = contests.iter().map(table::text).collect();
    say(&tables.join("\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// What a trace is called: its file without folder and endings.
fn label(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    name.strip_suffix(".json").unwrap_or(name).to_owned()
}

/// All steps of a file under one budget. Where they are several, the plan that our own planner
/// makes for the largest is held against the others, as training runs them.
fn hold_each(name: &str, steps: &Steps, budget_bytes: u64, args: &CompareOptions) -> Vec<Contest> {
    let machine = args.machine(budget_bytes);
    let largest = steps.planned.under(budget_bytes);
    let each = steps.each();
    let of_largest = (each.len() > 1).then(|| {
        let ours = JointConfig { strategy: Strategy::Joint, ..args.planner };
        JointPlanner::new(machine, ours).make(&largest.trace).plan
    });
    let held = each.into_iter().enumerate().map(|(index, step)| {
        let Some(plan) = &of_largest else { return hold(name, step, budget_bytes, args) };
        let mut contest = hold(&format!("{name}, step {}", index + 1), step, budget_bytes, args);
        let step = step.maybe_in_parts(largest.part_bytes());
        let run = Run::Other(simulate(&step.trace, &plan_for_member(plan, &step.trace), &machine));
        contest.strategies.push(Row::new(OF_LARGEST, &step, &run, None));
        contest
    });
    held.collect()
}

fn hold(name: &str, recorded: &Step, budget_bytes: u64, args: &CompareOptions) -> Contest {
    let step = &*recorded.under(budget_bytes);
    let machine = args.machine(budget_bytes);
    let row = |contestant: Contestant| {
        let run = contestant.run(step, &machine, args);
        Row::new(contestant.name(), step, &run, contestant.bound_us(step, &machine, args))
    };
    Contest {
        trace: name.to_owned(),
        budget_bytes,
        peak_before_bytes: step.peak_bytes,
        baseline_us: step.baseline_us,
        in_parts: step.parts.clone(),
        strategies: Contestant::all().into_iter().map(row).collect(),
    }
}

/// Each strategy from all of the peak down to the least that fits.
fn sweep(name: &str, step: &Step, args: &CompareOptions) -> plot::Chart {
    let lines = Contestant::all().into_iter().map(|contestant| {
        let step_ms = |percent: f64| {
            let budget_bytes = Budget::Percent(percent).of_peak(step.peak_bytes);
            let machine = args.machine(budget_bytes);
            let run = contestant.run(&step.under(budget_bytes), &machine, args);
            run.missing_bytes().is_none().then(|| run.simulation().step_us / 1e3)
        };
        plot::Line { name: contestant.name(), points: points(step_ms) }
    });
    plot::Chart {
        title: name.to_owned(),
        peak_bytes: step.peak_bytes,
        baseline_ms: step.baseline_us / 1e3,
        lines: lines.collect(),
    }
}

/// The points of a line: percent of the peak and what `step_ms` says, while it says something, and
/// the least at which it does.
fn points(step_ms: impl Fn(f64) -> Option<f64>) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    let mut percent = 100.0;
    while percent > 0.0
        && let Some(ms) = step_ms(percent)
    {
        points.push((percent, ms));
        percent -= PLOT_STEP_PERCENT;
    }
    let Some(&(mut fits, _)) = points.last() else { return points };
    let mut fails = percent;
    while fits - fails > PLOT_LEAST_PERCENT {
        let middle = f64::midpoint(fits, fails);
        match step_ms(middle) {
            Some(ms) => {
                fits = middle;
                points.push((middle, ms));
            }
            None => fails = middle,
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_the_least_that_fits() {
        let line = points(|percent| (percent >= 62.0).then_some(200.0 - percent));
        assert_eq!(line[..3], [(100.0, 100.0), (95.0, 105.0), (90.0, 110.0)]);
        assert!(line.is_sorted_by(|one, other| one.0 > other.0), "{line:?}");
        let least = line.last().unwrap().0;
        assert!((62.0..62.0 + PLOT_LEAST_PERCENT).contains(&least), "{least}");
        assert!(points(|_| None).is_empty());
        assert!(points(|_| Some(1.0)).last().unwrap().0 < PLOT_STEP_PERCENT);
    }

    #[test]
    fn a_trace_is_called_by_its_file() {
        assert_eq!(label(Path::new("/a/b.c.json.gz")), "b.c");
        assert_eq!(label(Path::new("step.json")), "step");
        assert_eq!(label(Path::new("step")), "step");
    }
}
