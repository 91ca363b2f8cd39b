//! The steps of a file: one, or several whose ops are the same and whose sizes are not.
//!
//! ```text
//!   recorded   1 ----- 2 -- 3        sizes of one block, the probe
//!                           |
//!                           planned  the plan names ops and blocks by their places, and so
//!                                    serves the smaller ones
//! ```

use std::path::Path;

use adaptive::{Bytes, Family, Machine, Plan, Trace, plan_for_member, simulate};
use anyhow::Context as _;
use serde::Serialize;

use super::step::Step;
use crate::report::columns::{self, Align};
use crate::report::units;

/// What a file holds.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    /// The step to plan for: the only one, or the largest.
    pub(crate) planned: Step,
    /// All of them, in order, if they are more than one.
    members: Vec<Recorded>,
}

/// A step of several.
#[derive(Clone, Debug)]
struct Recorded {
    peak_bytes: u64,
    baseline_us: f64,
    /// As what is known of all predicts it: with all blocks of the largest.
    predicted: Step,
}

/// What becomes of one of several steps.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MemberRow {
    /// Its place in the file, from 1 on.
    step: usize,
    recorded_peak_bytes: u64,
    /// What the others and it say of it together.
    predicted_peak_bytes: u64,
    recorded_us: f64,
    predicted_us: f64,
    /// Under the plan; null where memory runs out.
    pub(crate) step_us: Option<f64>,
    /// The same, of what it takes with all memory.
    pub(crate) ratio: Option<f64>,
}

impl Steps {
    /// Loads a file.
    ///
    /// # Errors
    /// One line that names the file, and how the steps differ if they are none of one family.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Steps> {
        let mut recorded = Step::open_all(path)?;
        if recorded.len() == 1 {
            return Ok(Steps { planned: recorded.remove(0), members: Vec::new() });
        }
        let traces: Vec<Trace> = recorded.iter().map(|step| step.trace.clone()).collect();
        let family = Family::of(&traces).with_context(|| {
            let path = path.display();
            format!("the steps of {path} need plans of their own: give one line of it at a time")
        })?;
        let small = || format!("{} has a step that is too small to tell its size", path.display());
        let member = |step: &Step| {
            let predicted = Step::new(family.like(&step.trace).with_context(small)?);
            Ok(Recorded { peak_bytes: step.peak_bytes, baseline_us: step.baseline_us, predicted })
        };
        let members = recorded.iter().map(member).collect::<anyhow::Result<_>>()?;
        Ok(Steps { planned: Step::new(family.largest().with_context(small)?), members })
    }

    /// Each step for itself: the only one, or all as they are predicted.
    pub(crate) fn each(&self) -> Vec<&Step> {
        match &self.members[..] {
            [] => vec![&self.planned],
            members => members.iter().map(|member| &member.predicted).collect(),
        }
    }

    /// What becomes of each of several steps under a plan for the largest, which is `planned`,
    /// maybe [in parts](Step::in_parts).
    pub(crate) fn under(&self, plan: &Plan, planned: &Step, machine: &Machine) -> Vec<MemberRow> {
        let row = |(index, member): (usize, &Recorded)| {
            let step = member.predicted.maybe_in_parts(planned.part_bytes());
            let simulated = simulate(&step.trace, &plan_for_member(plan, &step.trace), machine);
            let step_us = simulated.shortfall.is_none().then_some(simulated.step_us);
            MemberRow {
                step: index + 1,
                recorded_peak_bytes: member.peak_bytes,
                predicted_peak_bytes: member.predicted.peak_bytes,
                recorded_us: member.baseline_us,
                predicted_us: member.predicted.baseline_us,
                step_us,
                ratio: step_us.map(|us| us / member.predicted.baseline_us.max(f64::MIN_POSITIVE)),
            }
        };
        self.members.iter().enumerate().map(row).collect()
    }
}

/// The table of several steps, behind an empty line; `None` for one.
pub(crate) fn table(rows: &[MemberRow]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let head = ["step", "peak", "predicted", "time", "predicted", "under the plan", "of that"];
    let cells = |row: &MemberRow| -> [String; 7] {
        [
            row.step.to_string(),
            Bytes(row.recorded_peak_bytes).to_string(),
            Bytes(row.predicted_peak_bytes).to_string(),
            units::time(row.recorded_us),
            units::time(row.predicted_us),
            row.step_us.map_or_else(|| "out of memory".to_owned(), units::time),
            row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}x")),
        ]
    };
    let lines: Vec<_> =
        [head.map(str::to_owned)].into_iter().chain(rows.iter().map(cells)).collect();
    format!("\n{}", columns::lines(&lines, Align::Right))
}
