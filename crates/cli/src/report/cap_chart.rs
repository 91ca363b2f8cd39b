//! The picture of what a step takes under one cap after another, and the table below it.

use adaptive::{AccumulationCost, Burden, CapCost, CapCosts};

use super::scale::Scale;
use super::svg::{CurvePoint, Share, Svg};
use super::units::{self, Unit};

/// Rows of the plot, in pixels.
const ROWS: (f64, f64) = (12.0, 212.0);
/// Room below it for the axis, in pixels.
const AXIS: f64 = 26.0;

/// The drawing, and a row of texts for each cap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapChart {
    pub(super) svg: String,
    pub(super) rows: Vec<CapRow>,
    /// What the step takes with memory for everything, in words.
    pub(super) unlimited: String,
    /// The smallest cap that a plan was found for.
    pub(super) least: String,
    /// What steps with more micro-batches take under the cap of the training, in words.
    pub(super) accumulations: Vec<String>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapRow {
    pub(super) cap: String,
    pub(super) step: String,
    pub(super) ratio: String,
    pub(super) copies: String,
    pub(super) burden: &'static str,
    /// It is the cap that the training ran under.
    pub(super) is_own: bool,
}

pub(super) fn draw(caps: &CapCosts) -> CapChart {
    let most_bytes = caps.caps.iter().map(|cap| cap.limit_bytes).fold(caps.peak_bytes, u64::max);
    let across = Scale::new(0.0, most_bytes as f64 * 1.02);
    let measured = caps.measured_us.map(|us| caps.ratio(us));
    let ratios = caps.caps.iter().map(|cap| caps.ratio(cap.step_us)).chain(measured);
    let up = Scale::new(1.0, ratios.fold(1.05, f64::max) * 1.03);
    let mut svg = Svg::plot(ROWS.1 + AXIS, &description(caps));
    for tick in up.decimal_ticks(5.0) {
        let y = up.row(tick, ROWS);
        svg.rule("grid", y);
        svg.label("tick left", &"-8", y + 4.0, &format!("{}x", units::trimmed(tick, 3)));
    }
    svg.rule("base", ROWS.1);
    let unit = Unit::of_bytes(across.high());
    for tick in across.binary_ticks(8.0) {
        svg.label("tick mid", &Share(across.share(tick)), ROWS.1 + 17.0, &unit.show(tick));
    }
    let place = |bytes: u64, ratio: f64| -> CurvePoint {
        (across.share(bytes as f64), up.row(ratio, ROWS))
    };
    let points: Vec<CurvePoint> =
        caps.caps.iter().map(|cap| place(cap.limit_bytes, caps.ratio(cap.step_us))).collect();
    svg.upright("cap-line", across.share(caps.limit_bytes as f64), ROWS);
    svg.open_curves(ROWS.1);
    svg.curve("with-line", &points);
    svg.dots("dots large stable", &points);
    if let Some(ratio) = measured {
        svg.dots("dots large warm-up", &[place(caps.limit_bytes, ratio)]);
    }
    svg.close_curves();
    for cap in &caps.caps {
        let middle = across.share(cap.limit_bytes as f64);
        let rows = (ROWS.0, ROWS.1 - ROWS.0);
        svg.tipped_rect("spot", (middle - 0.012, middle + 0.012), rows, &tip_of(caps, cap));
    }
    CapChart {
        svg: svg.finish(),
        rows: caps.caps.iter().map(|cap| row_of(caps, cap)).collect(),
        unlimited: units::time(caps.unlimited_us),
        least: caps.caps.last().map_or_else(String::new, |cap| units::bytes(cap.limit_bytes)),
        accumulations: caps.accumulations.iter().map(words_of).collect(),
    }
}

fn words_of(cost: &AccumulationCost) -> String {
    format!(
        "With {} times as many micro-batches a step takes {} instead of {}, {} times as long.",
        cost.times,
        units::time(cost.step_us),
        units::time(cost.unlimited_us),
        units::trimmed(cost.step_us / cost.unlimited_us, 2),
    )
}

fn description(caps: &CapCosts) -> String {
    let words = caps
        .caps
        .iter()
        .map(|cap| format!("{} {}", units::bytes(cap.limit_bytes), ratio_of(caps, cap)));
    let words: Vec<String> = words.collect();
    format!("Step time against the cap on device memory: {}.", words.join(", "))
}

fn ratio_of(caps: &CapCosts, cap: &CapCost) -> String {
    format!("{}x", units::trimmed(caps.ratio(cap.step_us), 2))
}

fn tip_of(caps: &CapCosts, cap: &CapCost) -> String {
    format!(
        "{}\n{} a step, {}\n{} out, {} in\n{} on operators that run again",
        units::bytes(cap.limit_bytes),
        units::time(cap.step_us),
        ratio_of(caps, cap),
        units::bytes(cap.out_bytes),
        units::bytes(cap.in_bytes),
        units::time(cap.recomputed_us),
    )
}

fn row_of(caps: &CapCosts, cap: &CapCost) -> CapRow {
    CapRow {
        cap: units::bytes(cap.limit_bytes),
        step: units::time(cap.step_us),
        ratio: ratio_of(caps, cap),
        copies: format!("{} out, {} in", units::bytes(cap.out_bytes), units::bytes(cap.in_bytes)),
        burden: match cap.burden {
            Burden::None => "nothing",
            Burden::Link => "copies",
            Burden::Recompute => "operators that run again",
        },
        is_own: cap.limit_bytes == caps.limit_bytes,
    }
}
