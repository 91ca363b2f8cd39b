//! `report.html`: one page that needs nothing but itself.

use adaptive::Treatment;
use askama::Template;

use super::history_chart::{self, HistoryChart};
use super::run::{Decision, Run};
use super::step_chart::{self, StepChart};
use super::summary::{self, Figures};
use super::table::{self, Row};
use super::units;

/// The page. Drawings are finished SVG text; all other text is escaped by the template.
#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    run: &'a Run,
    headline: String,
    model_line: String,
    tiles: Vec<Tile>,
    meter: Option<Meter>,
    step: StepChart,
    times: HistoryChart,
    losses: HistoryChart,
    columns: [&'static str; 4],
    rows: Vec<Row>,
    shares: Vec<TreatmentShare>,
    decisions: Vec<DecisionRow<'a>>,
    facts: Vec<(&'static str, String)>,
    is_stable: bool,
    version: &'static str,
}

/// One headline figure.
struct Tile {
    name: &'static str,
    figure: String,
    detail: String,
    /// `good`, `bad` or empty.
    mood: &'static str,
}

/// Peak and cap as shares of the uncapped peak.
struct Meter {
    peak_percent: String,
    cap_percent: String,
    words: String,
}

/// What part of all blocks' bytes got one treatment.
pub(super) struct TreatmentShare {
    pub(super) name: &'static str,
    pub(super) percent: String,
    pub(super) words: String,
}

/// A row of the decision table: texts, and numbers to sort by.
pub(super) struct DecisionRow<'a> {
    pub(super) decision: &'a Decision,
    pub(super) size: String,
    pub(super) added: String,
    pub(super) added_us: f64,
    /// The first op of the time away, or nothing.
    pub(super) from_op: &'a str,
    pub(super) until_op: &'a str,
}

/// The page's text.
///
/// # Errors
///
/// When the template cannot be filled in.
pub(crate) fn text(run: &Run) -> askama::Result<String> {
    Page {
        run,
        headline: summary::headline(run),
        model_line: model_line(run),
        tiles: tiles(run),
        meter: meter(run),
        step: step_chart::draw(run),
        times: history_chart::draw_times(run),
        losses: history_chart::draw_losses(run),
        columns: table::COLUMNS,
        rows: table::rows(run),
        shares: shares(&run.decisions),
        decisions: run.decisions.iter().map(row_of).collect(),
        facts: facts(run),
        is_stable: summary::is_stable(run),
        version: env!("CARGO_PKG_VERSION"),
    }
    .render()
}

fn model_line(run: &Run) -> String {
    let model = &run.model;
    format!(
        "A GPT with {} and {}, strategy {}, under a cap of {}.",
        units::count(model.layers, "layer"),
        units::count(model.parameters, "parameter"),
        run.strategy,
        units::bytes(run.memory_limit_bytes)
    )
}

fn tiles(run: &Run) -> Vec<Tile> {
    let typical = Figures::typical(run);
    let stable = if summary::is_stable(run) { "Stable" } else { "all" };
    let peak_detail = match run.peak_uncapped_bytes {
        Some(uncapped) if summary::is_smaller(run) => {
            format!("instead of {}", units::bytes(uncapped))
        }
        _ => format!("cap {}", units::bytes(run.memory_limit_bytes)),
    };
    let time_detail = match (run.step_us_uncapped, summary::slowdown(run)) {
        (Some(us), Some(ratio)) => format!("{ratio:.2}x the uncapped {}", units::time(us)),
        _ => "the uncapped run was not timed".to_owned(),
    };
    let (compared, compared_detail, mood) = match run.bit_identical {
        Some(true) => ("identical", "losses and weights, bit for bit", "good"),
        Some(false) => ("different", "from the uncapped run", "bad"),
        None => ("not compared", "--verify compares with an uncapped run", ""),
    };
    let calm = typical.misses == 0 && typical.rescues == 0;
    let within = run.peak_device_bytes <= run.memory_limit_bytes;
    let tile = |name, figure, detail, mood| Tile { name, figure, detail, mood };
    vec![
        tile(
            "Peak memory",
            units::bytes(run.peak_device_bytes),
            peak_detail,
            if within { "" } else { "bad" },
        ),
        tile("Step time", units::time_or_unknown(typical.step_us), time_detail, ""),
        tile("Results", compared.to_owned(), compared_detail.to_owned(), mood),
        tile(
            "Moved per step",
            units::bytes(typical.swapped_out_bytes + typical.swapped_in_bytes),
            format!(
                "{} out, {} in",
                units::bytes(typical.swapped_out_bytes),
                units::bytes(typical.swapped_in_bytes)
            ),
            "",
        ),
        tile(
            "Recomputed per step",
            units::count(typical.recomputed_ops, "op"),
            format!("compute waited {}", units::time(typical.stall_us)),
            "",
        ),
        tile(
            "Misses and rescues",
            format!("{} and {}", typical.misses, typical.rescues),
            format!("in {stable} {}", if typical.steps == 1 { "step" } else { "steps" }),
            if calm { "good" } else { "" },
        ),
    ]
}

fn meter(run: &Run) -> Option<Meter> {
    let uncapped = run.peak_uncapped_bytes.filter(|bytes| *bytes > 0)? as f64;
    let (peak, cap) = (run.peak_device_bytes as f64, run.memory_limit_bytes as f64);
    // A generous cap may lie beyond the uncapped peak.
    let whole = uncapped.max(peak).max(cap.min(uncapped * 1.5));
    let percent = |bytes: f64| units::trimmed((100.0 * bytes / whole).min(100.0), 2);
    Some(Meter {
        peak_percent: percent(peak),
        cap_percent: percent(cap),
        words: format!(
            "Peak {} under a cap of {}; {} without a cap.",
            units::bytes(run.peak_device_bytes),
            units::bytes(run.memory_limit_bytes),
            units::bytes(uncapped as u64)
        ),
    })
}

pub(super) fn shares(decisions: &[Decision]) -> Vec<TreatmentShare> {
    let bytes_of = |treatment: Option<Treatment>| -> u64 {
        let wanted = decisions.iter().filter(|row| treatment.is_none_or(|it| row.treatment == it));
        wanted.map(|row| row.size_bytes).sum()
    };
    let total_bytes = bytes_of(None).max(1);
    let share = |treatment: Treatment| {
        let count = decisions.iter().filter(|row| row.treatment == treatment).count() as u64;
        let size_bytes = bytes_of(Some(treatment));
        TreatmentShare {
            name: treatment.name(),
            percent: units::trimmed(100.0 * size_bytes as f64 / total_bytes as f64, 2),
            words: format!("{}, {}", units::count(count, "block"), units::bytes(size_bytes)),
        }
    };
    Treatment::ALL.map(share).into()
}

pub(super) fn row_of(decision: &Decision) -> DecisionRow<'_> {
    let added_us = if decision.added_us.is_finite() { decision.added_us } else { 0.0 };
    let (from_op, until_op) = decision
        .away
        .as_ref()
        .map_or(("", ""), |away| (away.from_op.as_str(), away.until_op.as_str()));
    DecisionRow {
        decision,
        size: units::bytes(decision.size_bytes),
        added: if added_us > 0.0 { units::time(added_us) } else { "none".to_owned() },
        added_us,
        from_op,
        until_op,
    }
}

fn facts(run: &Run) -> Vec<(&'static str, String)> {
    let model = &run.model;
    vec![
        ("Layers", units::thousands(model.layers)),
        ("Hidden width", units::thousands(model.hidden)),
        ("Heads", units::thousands(model.heads)),
        ("Sequence", units::count(model.seq, "token")),
        ("Batch", units::count(model.batch, "sequence")),
        ("Parameters", units::thousands(model.parameters)),
        ("Strategy", run.strategy.clone()),
        ("Seed", run.seed.to_string()),
        ("Steps", units::thousands(run.steps.len() as u64)),
        ("Memory cap", format!("{} bytes", units::thousands(run.memory_limit_bytes))),
        ("Peak on the device", format!("{} bytes", units::thousands(run.peak_device_bytes))),
        (
            "Peak without a cap",
            run.peak_uncapped_bytes.map_or_else(
                || units::UNKNOWN.to_owned(),
                |bytes| format!("{} bytes", units::thousands(bytes)),
            ),
        ),
    ]
}
