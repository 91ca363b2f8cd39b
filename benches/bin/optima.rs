//! Holds the planner and its bound against the certified optima of small steps.
//!
//! `optima` prints the figures; `optima make` looks for the optima again and prints the suite's
//! file; `optima write FOLDER` writes each step and its best plan as files.

use std::path::Path;
use std::process::ExitCode;

use adaptive::{GenerateConfig, JointConfig, JointPlanner, save, save_trace};
use benches::optima::{Entry, Kind, added_us, machine, optimum, peak_bytes, step, suite};

/// Entries of each kind.
const ENTRIES: usize = 25;
/// Steps of a kind that are looked at for them.
const NUMBERS: u64 = 1_000;
/// A plan is near if its step is longer than the best one by no more than this share.
const NEAR: f64 = 0.03;
/// Steps to which the best plan adds less than this share say little.
const ADDED_SHARE_MIN: f64 = 0.002;
/// Rounding in the file.
const ROUNDING_US: f64 = 1e-3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => return check(),
        ["make"] => make(),
        ["write", folder] => write(Path::new(folder)),
        _ => {
            eprintln!("usage: optima [make | write FOLDER]");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}

/// What the planner makes of an entry.
struct Judged {
    /// What the best plan and ours add, as shares of the best step.
    best_share: f64,
    ours_share: Option<f64>,
    bound_share: f64,
    /// Whether the bound is above either of them.
    bound_above: bool,
}

fn judge(entry: &Entry) -> Judged {
    let trace = step(entry.kind, entry.number);
    let machine = machine(entry.limit_bytes);
    let device_us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
    let found = added_us(&trace, &machine, &entry.plan);
    let same = found.is_some_and(|us| (us - entry.added_us).abs() <= 2.0 * ROUNDING_US);
    assert!(same, "{}: its plan adds {found:?}", entry.line());
    let generate = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let planner = JointPlanner::new(machine, JointConfig { generate, ..JointConfig::default() });
    let (made, bound_us) = (planner.make(&trace), planner.bound_us(&trace));
    let best_us = device_us + entry.added_us;
    let ours_us = made.infeasible.is_none().then_some(made.simulation.step_us);
    let demands_nothing_us = added_us(&trace, &machine, &made.plan);
    let known_us = demands_nothing_us.map_or(entry.added_us, |us| us.min(entry.added_us));
    Judged {
        best_share: entry.added_us / best_us,
        ours_share: ours_us.map(|us| (us - device_us) / best_us),
        bound_share: bound_us / best_us,
        bound_above: bound_us > known_us + 2.0 * ROUNDING_US,
    }
}

fn check() -> ExitCode {
    println!(
        "{:<12}{:>6}{:>10}{:>8}{:>10}{:>12}{:>12}{:>14}",
        "kind", "steps", "near", "faster", "no plan", "mean gap", "bound above", "bound, median"
    );
    let (mut all, mut above) = (Vec::new(), 0);
    for kind in Kind::ALL {
        let own = suite().into_iter().filter(|entry| entry.kind == kind);
        let judged: Vec<Judged> = own.map(|entry| judge(&entry)).collect();
        above += print(kind.name(), &judged);
        all.extend(judged);
    }
    print("all", &all);
    ExitCode::from(u8::from(above > 0))
}

/// Prints the figures of some steps. Says how many have a bound above the best known plan.
fn print(name: &str, judged: &[Judged]) -> usize {
    let count = |wanted: &dyn Fn(&Judged) -> bool| judged.iter().filter(|one| wanted(one)).count();
    let gap = |one: &Judged| one.ours_share.map(|ours| ours - one.best_share);
    let near = count(&|one| gap(one).is_some_and(|gap| gap <= NEAR));
    let faster = count(&|one| gap(one).is_some_and(|gap| gap < -1e-6));
    let none = count(&|one| one.ours_share.is_none());
    let above = count(&|one| one.bound_above);
    let gaps: Vec<f64> = judged.iter().filter_map(gap).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let mut bounds: Vec<f64> = judged.iter().map(|one| one.bound_share / one.best_share).collect();
    bounds.sort_by(f64::total_cmp);
    let median = bounds.get(bounds.len() / 2).copied().unwrap_or(0.0);
    println!(
        "{name:<12}{:>6}{near:>10}{faster:>8}{none:>10}{:>10.2} %{above:>12}{:>12.0} %",
        judged.len(),
        100.0 * mean(&gaps),
        100.0 * median
    );
    above
}

fn make() {
    println!("# kind, number, budget in bytes, what the best plan adds in us, that plan");
    for kind in Kind::ALL {
        let found = (0..NUMBERS).filter_map(|number| find(kind, number));
        found.take(ENTRIES).for_each(|entry| println!("{}", entry.line()));
    }
}

fn find(kind: Kind, number: u64) -> Option<Entry> {
    let trace = step(kind, number);
    let device_us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
    let limit_bytes = peak_bytes(&trace) / 100 * (45 + number * 7 % 45);
    let best = optimum(&trace, &machine(limit_bytes))?;
    eprintln!("{} {number}: {} states, {:.0} us", kind.name(), best.looked_at, best.added_us);
    let hard = best.added_us >= ADDED_SHARE_MIN * device_us;
    let (added_us, plan) = (best.added_us, best.plan);
    hard.then_some(Entry { kind, number, limit_bytes, added_us, plan })
}

fn write(folder: &Path) {
    for entry in suite() {
        let name = format!("{}-{}", entry.kind.name(), entry.number);
        let trace = step(entry.kind, entry.number);
        save_trace(&folder.join(format!("{name}.trace.json")), &trace)
            .and_then(|()| save(&folder.join(format!("{name}.plan.json")), &entry.plan))
            .unwrap_or_else(|error| panic!("{error}"));
    }
}
