//! The page about two runs: their figures, and a step of each drawn to the same scales.

use askama::Template;

use super::step_chart::{Shown, StepChart, draw_step};
use super::step_page::StepPage;

/// What the page shows.
#[derive(Clone, Debug)]
pub(crate) struct RunsPage {
    pub(crate) sides: [Side; 2],
    /// Name, both values, and how the second is to the first.
    pub(crate) rows: Vec<[String; 4]>,
    /// The command as typed.
    pub(crate) command_line: String,
}

/// One of the runs.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    /// The folder of its report.
    pub(crate) name: String,
    pub(crate) page: StepPage,
}

#[derive(Template)]
#[template(path = "runs.html")]
struct Page<'a> {
    page: &'a RunsPage,
    drawn: [Drawn<'a>; 2],
    version: &'static str,
}

struct Drawn<'a> {
    side: &'a Side,
    step: StepChart,
}

/// The page's text.
///
/// # Errors
///
/// When the template cannot be filled in.
pub(crate) fn text(page: &RunsPage) -> askama::Result<String> {
    let steps = page.sides.each_ref().map(|side| side.page.shown());
    let reach = steps[0].reach().and(steps[1].reach());
    let drawn = page.sides.each_ref().map(|side| {
        let step = draw_step(&Shown { at_least: reach, ..side.page.shown() });
        Drawn { side, step }
    });
    Page { page, drawn, version: env!("CARGO_PKG_VERSION") }.render()
}
