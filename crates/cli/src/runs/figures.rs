//! What two reports say of their runs, figure by figure.

use std::fs;
use std::path::Path;

use adaptive::Settings;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use crate::args::SimulateOptions;
use crate::report::units;

/// What is read of a report's `explain.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Explained {
    limit_bytes: u64,
    host_limit_bytes: u64,
    link: ReportedLink,
    steps: u64,
    steps_by_stage: Stages,
    plan_actions: Option<u64>,
    measured: Option<Measured>,
    memory: Memory,
    prediction: Option<Prediction>,
    decisions: Vec<Decision>,
}

#[derive(Debug, Deserialize)]
struct ReportedLink {
    out_bytes_per_s: f64,
    in_bytes_per_s: f64,
    both_bytes_per_s: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Stages {
    warm_up: u64,
    search_policy: u64,
    stable: u64,
}

#[derive(Debug, Deserialize)]
struct Measured {
    step_us: f64,
    resident_bytes_peak: u64,
}

#[derive(Debug, Deserialize)]
struct Memory {
    allocated_bytes_peak: u64,
    reserved_bytes_peak: u64,
}

#[derive(Debug, Deserialize)]
struct Prediction {
    step_us: f64,
    unlimited_us: f64,
    stall_us: f64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    recomputed_us: f64,
}

#[derive(Debug, Deserialize)]
struct Decision {
    size_bytes: u64,
    treatment: String,
}

/// How a figure reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Unit {
    Bytes,
    Microseconds,
    Count,
}

/// One figure of both runs; `None` where a run does not know it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) values: [Option<f64>; 2],
}

impl Figure {
    /// Its name, both values in words, and how the second is to the first.
    pub(super) fn row(&self) -> [String; 4] {
        let [first, second] = self.values.map(|value| self.words(value));
        let ratio = match self.values {
            [Some(first), Some(second)] if first.to_bits() == second.to_bits() => "same".to_owned(),
            [Some(first), Some(second)] if first > 0.0 => format!("{:.2}x", second / first),
            _ => String::new(),
        };
        [self.name.to_owned(), first, second, ratio]
    }

    fn words(&self, value: Option<f64>) -> String {
        let Some(value) = value else { return "-".to_owned() };
        match self.unit {
            Unit::Bytes => units::bytes(value as u64),
            Unit::Microseconds => units::time(value),
            Unit::Count => format!("{value:.0}"),
        }
    }
}

/// Reads the report in a folder.
///
/// # Errors
/// If there is none that this version understands.
pub(super) fn read(folder: &Path) -> anyhow::Result<Explained> {
    let path = folder.join("explain.json");
    let text = fs::read(&path).with_context(|| {
        format!(
            "there is no report in '{}'; train with --report FOLDER and name that folder",
            folder.display()
        )
    })?;
    serde_json::from_slice(&text)
        .with_context(|| format!("'{}' is not a report of this version", path.display()))
}

impl Explained {
    /// What draws the report's step.
    pub(super) fn options(&self, folder: &Path) -> SimulateOptions {
        let plan = folder.join("plan.json");
        let settings = Settings {
            link_out: Some(self.link.out_bytes_per_s as u64),
            link_in: Some(self.link.in_bytes_per_s as u64),
            link_both: Some(self.link.both_bytes_per_s as u64),
            host_memory: Some(self.host_limit_bytes),
            ..Settings::default()
        };
        let measured = self.measured.as_ref();
        SimulateOptions::of_report(
            folder.join("trace.json"),
            plan.is_file().then_some(plan),
            self.limit_bytes,
            measured.map(|measured| (measured.step_us, measured.resident_bytes_peak)),
            settings,
        )
    }

    /// Bytes of the blocks that are listed and treated so.
    fn treated_bytes(&self, treatment: &str) -> u64 {
        let same = self.decisions.iter().filter(|decision| decision.treatment == treatment);
        same.map(|decision| decision.size_bytes).sum()
    }
}

/// All figures, in the order in which they are read.
pub(super) fn of(runs: &[Explained; 2]) -> Vec<Figure> {
    let figure = |name, unit, value: &dyn Fn(&Explained) -> Option<f64>| Figure {
        name,
        unit,
        values: [value(&runs[0]), value(&runs[1])],
    };
    let bytes = |name, value: &dyn Fn(&Explained) -> u64| {
        figure(name, Unit::Bytes, &|run| Some(value(run) as f64))
    };
    let count = |name, value: &dyn Fn(&Explained) -> u64| {
        figure(name, Unit::Count, &|run| Some(value(run) as f64))
    };
    let planned = |name, unit, value: &dyn Fn(&Prediction) -> f64| {
        figure(name, unit, &|run| run.prediction.as_ref().map(value))
    };
    let (size, time) = (Unit::Bytes, Unit::Microseconds);
    let mut figures = vec![
        bytes("cap", &|run| run.limit_bytes),
        bytes("held at most", &|run| run.memory.reserved_bytes_peak),
        bytes("tensors at most", &|run| run.memory.allocated_bytes_peak),
        figure("step, measured", time, &|run| Some(run.measured.as_ref()?.step_us)),
        planned("step, predicted", time, &|plan| plan.step_us),
        planned("step with memory for all", time, &|plan| plan.unlimited_us),
        planned("waits for copies a step", time, &|plan| plan.stall_us),
        planned("run again a step", time, &|plan| plan.recomputed_us),
        planned("moved out a step", size, &|plan| plan.swapped_out_bytes as f64),
        planned("moved in a step", size, &|plan| plan.swapped_in_bytes as f64),
    ];
    for (name, treatment) in
        [("kept, of what is listed", "keep"), ("swapped", "swap"), ("made again", "recompute")]
    {
        figures.push(bytes(name, &|run| run.treated_bytes(treatment)));
    }
    figures.extend([
        figure("moves of the plan", Unit::Count, &|run| run.plan_actions.map(|count| count as f64)),
        count("steps", &|run| run.steps),
        count("steps before Stable", &|run| {
            run.steps_by_stage.warm_up + run.steps_by_stage.search_policy
        }),
        count("Stable steps", &|run| run.steps_by_stage.stable),
    ]);
    figures
}

#[cfg(test)]
mod tests {
    use super::{Figure, Unit};

    #[test]
    fn a_row_says_how_the_second_is_to_the_first() {
        let row = |unit, values| Figure { name: "it", unit, values }.row().join("|");
        assert_eq!(row(Unit::Bytes, [Some(2048.0), Some(1024.0)]), "it|2 KiB|1 KiB|0.50x");
        assert_eq!(row(Unit::Microseconds, [Some(1e3), Some(1e3)]), "it|1 ms|1 ms|same");
        assert_eq!(row(Unit::Count, [None, Some(7.0)]), "it|-|7|");
        assert_eq!(row(Unit::Count, [Some(0.0), Some(7.0)]), "it|0|7|");
    }
}
