//! The page about one simulated step: its drawing, and what became of each block.

use adaptive::CapCosts;
use askama::Template;

use super::cap_chart::{self, CapChart};
use super::html::{DecisionRow, TreatmentShare, row_of, shares};
use super::run::{Decision, LaneSpan, MemoryCurves};
use super::step_chart::{Reach, Shown, StepChart, draw_step};

/// What the page shows.
#[derive(Clone, Debug)]
pub(crate) struct StepPage {
    /// The outcome in one sentence.
    pub(crate) headline: String,
    /// What was simulated.
    pub(crate) lead: String,
    /// Whether some of its figures were measured where the step ran.
    pub(crate) has_measured: bool,
    /// The command as typed.
    pub(crate) command_line: String,
    /// Figures by name.
    pub(crate) facts: Vec<(&'static str, String)>,
    /// The budget.
    pub(crate) memory_limit_bytes: u64,
    /// Memory over the step.
    pub(crate) memory: MemoryCurves,
    /// What the engines do, in any order.
    pub(crate) spans: Vec<LaneSpan>,
    /// What was measured of such a step.
    pub(crate) measured: Option<MeasuredSpans>,
    /// What the step would take under other caps.
    pub(crate) caps: Option<CapCosts>,
    /// What becomes of each block, largest first.
    pub(crate) decisions: Vec<Decision>,
}

impl StepPage {
    /// What its drawing shows, on axes of its own.
    pub(super) fn shown(&self) -> Shown<'_> {
        Shown {
            spans: &self.spans,
            measured: self.measured.as_ref().map(|measured| &measured.spans[..]),
            memory: &self.memory,
            memory_limit_bytes: self.memory_limit_bytes,
            at_least: Reach::default(),
        }
    }
}

/// A measured step beside the simulated one.
#[derive(Clone, Debug)]
pub(crate) struct MeasuredSpans {
    /// What its streams and the host did, in any order.
    pub(crate) spans: Vec<LaneSpan>,
    /// Where it parts from the simulation, in sentences.
    pub(crate) departures: Vec<String>,
}

#[derive(Template)]
#[template(path = "step.html")]
struct Page<'a> {
    page: &'a StepPage,
    step: StepChart,
    caps: Option<CapChart>,
    shares: Vec<TreatmentShare>,
    decisions: Vec<DecisionRow<'a>>,
    version: &'static str,
}

/// The page's text.
///
/// # Errors
///
/// When the template cannot be filled in.
pub(crate) fn text(page: &StepPage) -> askama::Result<String> {
    Page {
        page,
        step: draw_step(&page.shown()),
        caps: page.caps.as_ref().map(cap_chart::draw),
        shares: shares(&page.decisions),
        decisions: page.decisions.iter().map(row_of).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
    .render()
}
