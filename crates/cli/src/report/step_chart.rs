//! The picture of one step: memory above, the lanes below, all on one time axis. A measured step
//! has its lanes below those that were predicted.

use super::lanes::{self, LaneBox};
use super::run::{Lane, LaneSpan, MemoryCurves, MemoryPoint, Run, WorkKind};
use super::scale::{self, Scale};
use super::svg::{CurvePoint, Share, Svg};
use super::units::{self, Unit};

/// Rows of the memory plot, in pixels.
const MEMORY: (f64, f64) = (22.0, 252.0);
const LANES_TOP: f64 = 276.0;
const LANE_HEIGHT: f64 = 28.0;
/// Between lanes, and between the two rows of one.
const LANE_GAP: f64 = 10.0;
const ROW_GAP: f64 = 2.0;
/// For the numbers below the axis.
const AXIS_HEIGHT: f64 = 26.0;

/// What the row of a lane is called that was measured, below the predicted one.
const MEASURED: &str = "measured";

/// The width that drawings are prepared for, in pixels. On wider screens they stay sharp but
/// show no more detail.
const PIXELS: usize = 1000;

/// Columns that answer with the memory at their time when pointed at.
const TIP_COLUMNS: usize = 250;

/// The picture and what has to be said beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepChart {
    /// The drawing; `None` when nothing was recorded.
    pub(super) svg: Option<String>,
    /// Each lane's name and what it did, in words.
    pub(super) lanes: Vec<(&'static str, String)>,
    /// Whether the host has a lane.
    pub(super) has_host: bool,
    /// What the drawing leaves out, in words; empty when nothing.
    pub(super) note: String,
}

/// What the drawing shows of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'a> {
    /// What the streams did, in any order.
    pub(super) spans: &'a [LaneSpan],
    /// What was measured of a step of which `spans` is a prediction, in any order.
    pub(super) measured: Option<&'a [LaneSpan]>,
    /// Memory over the step.
    pub(super) memory: &'a MemoryCurves,
    /// The cap.
    pub(super) memory_limit_bytes: u64,
    /// How far both axes go at least.
    pub(super) at_least: Reach,
}

/// How far the axes of a drawing go.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Reach {
    until_us: f64,
    bytes: u64,
}

impl Reach {
    /// As far as the further one.
    pub(super) fn and(self, other: Reach) -> Reach {
        Reach { until_us: self.until_us.max(other.until_us), bytes: self.bytes.max(other.bytes) }
    }
}

impl Shown<'_> {
    /// Up to all that is drawn.
    pub(super) fn reach(&self) -> Reach {
        let points = || self.memory.uncapped.iter().chain(&self.memory.planned);
        let times = points().map(|point| point.at_us);
        let until_us = times
            .chain(self.spans.iter().chain(self.measured.unwrap_or(&[])).map(|span| span.end_us))
            .filter(|time_us| time_us.is_finite())
            .fold(0.0, f64::max);
        let highest = points().map(|point| point.bytes).max().unwrap_or(0);
        Reach { until_us, bytes: highest.max(self.memory_limit_bytes) }.and(self.at_least)
    }
}

/// Draws one step of `run`.
pub(super) fn draw(run: &Run) -> StepChart {
    draw_step(&Shown {
        spans: &run.spans,
        measured: None,
        memory: &run.memory,
        memory_limit_bytes: run.memory_limit_bytes,
        at_least: Reach::default(),
    })
}

/// One row of spans.
struct Row {
    lane: Lane,
    name: &'static str,
    /// Where it is, in pixels from the drawing's top.
    top: f64,
    spans: Vec<LaneSpan>,
}

/// The rows from top to bottom.
fn rows(step: &Shown<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut top = LANES_TOP;
    let mut add = |lane: Lane, name, spans, gap| {
        rows.push(Row { lane, name, top, spans: lanes::of_lane(lane, spans) });
        top += LANE_HEIGHT + gap;
    };
    for lane in Lane::DEVICE {
        let gap = if step.measured.is_some() { ROW_GAP } else { LANE_GAP };
        add(lane, lane.name(), step.spans, gap);
        if let Some(measured) = step.measured {
            add(lane, MEASURED, measured, LANE_GAP);
        }
    }
    if let Some(measured) = step.measured {
        add(Lane::Host, Lane::Host.name(), measured, LANE_GAP);
    }
    rows
}

/// Draws one step.
pub(super) fn draw_step(step: &Shown<'_>) -> StepChart {
    let rows = rows(step);
    let own = Shown { at_least: Reach::default(), ..*step }.reach();
    let end_us = own.until_us;
    let words = |row: &Row| (row.name, lanes::in_words(row.lane, &row.spans, end_us));
    let lanes = rows.iter().map(words).collect();
    if end_us <= 0.0 {
        return StepChart { svg: None, lanes, has_host: false, note: String::new() };
    }
    let reach = own.and(step.at_least);
    let axis = Scale::new(0.0, reach.until_us);
    let pixel_us = reach.until_us / PIXELS as f64;
    let boxes: Vec<Vec<LaneBox>> =
        rows.iter().map(|row| lanes::boxes(&row.spans, pixel_us)).collect();
    let note = joined_note(&boxes, pixel_us);
    let axis_top = rows.last().map_or(LANES_TOP, |row| row.top) + LANE_HEIGHT + LANE_GAP;
    let mut svg = Svg::plot(axis_top + AXIS_HEIGHT, &description(step, end_us));
    draw_time_axis(&mut svg, axis, reach.until_us, axis_top);
    draw_memory(&mut svg, step, axis, end_us, reach.bytes);
    for (row, boxes) in rows.iter().zip(&boxes) {
        draw_row(&mut svg, row, boxes, axis);
    }
    let has_host = step.measured.is_some();
    StepChart { svg: Some(svg.finish()), lanes, has_host, note }
}

fn description(step: &Shown<'_>, end_us: f64) -> String {
    let peak = |points: &[MemoryPoint]| {
        points.iter().map(|point| point.bytes).max().map_or(units::UNKNOWN.to_owned(), units::bytes)
    };
    format!(
        "Resident memory over one step of {}: at most {} with the plan, {} without it, under a cap \
         of {}. Below it what the compute, swap-out and swap-in streams did at the same time{}.",
        units::time(end_us),
        peak(&step.memory.planned),
        peak(&step.memory.uncapped),
        units::bytes(step.memory_limit_bytes),
        if step.measured.is_some() { ", as predicted and as measured, and the host" } else { "" }
    )
}

fn joined_note(boxes: &[Vec<LaneBox>], pixel_us: f64) -> String {
    let joined = boxes.iter().flatten().filter(|drawn| drawn.spans > 1);
    let (spans, joints) = joined.fold((0, 0), |sum, drawn| (sum.0 + drawn.spans, sum.1 + 1));
    if joints == 0 {
        return String::new();
    }
    format!(
        "{} shorter than {} (a pixel here) are drawn together as {}; timeline.json has each.",
        units::count(spans, "span"),
        units::time(pixel_us),
        if joints == 1 {
            "1 box".to_owned()
        } else {
            format!("{} boxes", units::thousands(joints))
        }
    )
}

fn draw_time_axis(svg: &mut Svg, axis: Scale, end_us: f64, axis_top: f64) {
    let unit = Unit::of_us(end_us);
    for (position, tick_us) in axis.decimal_ticks(10.0).into_iter().enumerate() {
        let x = axis.share(tick_us);
        svg.upright("grid", x, (MEMORY.0, axis_top));
        let class = if position % 2 == 0 { "tick mid" } else { "tick mid spare" };
        svg.label(class, &Share(x), axis_top + 17.0, &unit.show(tick_us));
    }
}

fn draw_memory(svg: &mut Svg, step: &Shown<'_>, axis: Scale, end_us: f64, highest_bytes: u64) {
    let limit = step.memory_limit_bytes as f64;
    let curves = [&step.memory.uncapped, &step.memory.planned];
    let scale = Scale::new(0.0, highest_bytes as f64 * 1.08);
    let unit = Unit::of_bytes(scale.high());
    for tick in scale.binary_ticks(8.0) {
        let y = scale.row(tick, MEMORY);
        svg.rule("grid", y);
        svg.label("tick left", &"-8", y + 4.0, &unit.show(tick));
    }
    let end = axis.share(end_us);
    let [uncapped, planned] = curves.map(|points| corners(points, axis, scale, end));
    svg.open_curves(MEMORY.1);
    svg.area("without-area", &uncapped, MEMORY.1);
    svg.area("with-area", &planned, MEMORY.1);
    svg.curve("without-line", &uncapped);
    svg.curve("with-line", &planned);
    svg.close_curves();
    svg.rule("base", MEMORY.1);
    let cap_row = scale.row(limit, MEMORY);
    svg.rule("cap-line", cap_row);
    // Above its line the label meets only the uncapped curve, which is low at the step's end.
    svg.label(
        "cap-label",
        &"100%",
        cap_row - 6.0,
        &format!("cap {}", units::bytes(step.memory_limit_bytes)),
    );
    draw_memory_tips(svg, step, axis.high());
}

/// The corners of a curve that keeps each value until the next point, and the last to `end`.
fn corners(points: &[MemoryPoint], axis: Scale, scale: Scale, end: f64) -> Vec<CurvePoint> {
    let mut path: Vec<CurvePoint> = Vec::with_capacity(points.len() * 2 + 1);
    for point in points {
        let (x, y) = (axis.share(point.at_us), scale.row(point.bytes as f64, MEMORY));
        // Points out of order would draw back over the curve.
        let x = path.last().map_or(x, |last| last.0.max(x));
        if let Some(&(_, before)) = path.last() {
            path.push((x, before));
        }
        path.push((x, y));
    }
    if let Some(&(x, y)) = path.last()
        && x < end
    {
        path.push((end, y));
    }
    scale::thin(&path, PIXELS)
}

/// Invisible columns that say both values at their time.
fn draw_memory_tips(svg: &mut Svg, step: &Shown<'_>, end_us: f64) {
    let (mut uncapped, mut planned) =
        (Cursor::new(&step.memory.uncapped), Cursor::new(&step.memory.planned));
    for column in 0..TIP_COLUMNS {
        let (from, until) =
            (column as f64 / TIP_COLUMNS as f64, (column + 1) as f64 / TIP_COLUMNS as f64);
        let (without, with) =
            (uncapped.highest_until(until * end_us), planned.highest_until(until * end_us));
        let mut tip = format!("at {}", units::time((from + until) / 2.0 * end_us));
        for (bytes, name) in [(without, "without the plan"), (with, "with the plan")] {
            if let Some(bytes) = bytes {
                tip.push_str(&format!("\n{} {name}", units::bytes(bytes)));
            }
        }
        svg.tipped_rect("spot", (from, until), (MEMORY.0, MEMORY.1 - MEMORY.0), &tip);
    }
}

/// Walks along a curve of memory.
#[derive(Debug)]
struct Cursor<'a> {
    points: &'a [MemoryPoint],
    current: Option<u64>,
}

impl<'a> Cursor<'a> {
    fn new(points: &'a [MemoryPoint]) -> Cursor<'a> {
        Cursor { points, current: None }
    }

    /// The most bytes from where the walk stands up to `until_us`; `None` before the first point.
    fn highest_until(&mut self, until_us: f64) -> Option<u64> {
        let mut highest = self.current;
        while let Some((point, rest)) = self.points.split_first()
            && point.at_us < until_us
        {
            self.current = Some(point.bytes);
            highest = highest.max(self.current);
            self.points = rest;
        }
        highest
    }
}

fn draw_row(svg: &mut Svg, row: &Row, boxes: &[LaneBox], axis: Scale) {
    let (lane, top) = (row.lane, row.top);
    svg.leaf(
        "rect",
        &[
            ("class", &"lane"),
            ("x", &"0"),
            ("width", &"100%"),
            ("y", &super::svg::Px(top)),
            ("height", &super::svg::Px(LANE_HEIGHT)),
        ],
    );
    svg.label("lane-name left", &"-8", top + LANE_HEIGHT / 2.0 + 4.0, row.name);
    if boxes.is_empty() {
        let words = match lane {
            Lane::Compute => "not recorded",
            Lane::SwapOut | Lane::SwapIn => "no copies in this step",
            Lane::Host => "not measured",
        };
        svg.label("empty mid", &"50%", top + LANE_HEIGHT / 2.0 + 4.0, words);
    }
    for (position, drawn) in boxes.iter().enumerate() {
        let shade = if position % 2 == 0 { "" } else { " alt" };
        let class = format!("span {}{shade}", class_of(drawn.kind));
        let (from, until) = (axis.share(drawn.start_us), axis.share(drawn.end_us));
        // At least a hair wide: a copy that happened must be seen.
        let until = until.max(from + 0.4 / PIXELS as f64);
        svg.tipped_rect(&class, (from, until), (top, LANE_HEIGHT), &drawn.tip);
        let room_pixels = (until - from) * PIXELS as f64 - 8.0;
        if !drawn.label.is_empty() && drawn.label.chars().count() as f64 * 6.4 < room_pixels {
            let middle = Share((from + until) / 2.0);
            svg.label("span-name mid", &middle, top + LANE_HEIGHT / 2.0 + 4.0, &drawn.label);
        }
    }
}

fn class_of(kind: WorkKind) -> &'static str {
    match kind {
        WorkKind::Op => "op",
        WorkKind::Replay => "replay",
        WorkKind::SwapOut => "out",
        WorkKind::SwapIn => "in",
        WorkKind::Host => "host",
    }
}

#[cfg(test)]
mod tests {
    use super::{Cursor, corners, draw};
    use crate::report::run::{LaneSpan, MemoryCurves, MemoryPoint, WorkKind};
    use crate::report::sample;
    use crate::report::scale::Scale;

    #[test]
    fn curves_are_steps_to_the_end() {
        let points = [MemoryPoint { at_us: 0.0, bytes: 2 }, MemoryPoint { at_us: 5.0, bytes: 4 }];
        let path = corners(&points, Scale::new(0.0, 10.0), Scale::new(0.0, 4.0), 1.0);
        assert_eq!(path, [(0.0, 137.0), (0.5, 137.0), (0.5, 22.0), (1.0, 22.0)]);
        assert!(corners(&[], Scale::new(0.0, 1.0), Scale::new(0.0, 1.0), 1.0).is_empty());
        let path = corners(&points, Scale::new(0.0, 10.0), Scale::new(0.0, 4.0), 0.75);
        assert_eq!(path.last(), Some(&(0.75, 22.0)), "a longer axis does not make it longer");
    }

    #[test]
    fn a_spike_between_two_columns_is_not_lost() {
        let points = [(0.0, 5), (1.0, 900), (1.1, 7)];
        let points = points.map(|(at_us, bytes)| MemoryPoint { at_us, bytes });
        let mut cursor = Cursor::new(&points);
        assert_eq!(cursor.highest_until(0.0), None);
        assert_eq!(cursor.highest_until(0.5), Some(5));
        assert_eq!(cursor.highest_until(3.0), Some(900));
        assert_eq!(cursor.highest_until(4.0), Some(7));
    }

    #[test]
    fn nothing_recorded_is_said_and_not_drawn() {
        let mut run = sample::swapping();
        run.spans.clear();
        run.memory = MemoryCurves::default();
        let chart = draw(&run);
        assert_eq!(chart.svg, None);
        assert_eq!(chart.lanes[1], ("swap-out", "nothing was copied out".to_owned()));
    }

    #[test]
    fn many_spans_are_joined_and_it_is_said() {
        let mut run = sample::swapping();
        run.spans = (0..20_000)
            .map(|place| LaneSpan {
                kind: WorkKind::SwapOut,
                name: "t".to_owned(),
                start_us: f64::from(place),
                end_us: f64::from(place) + 0.5,
                size_bytes: 8,
            })
            .collect();
        let chart = draw(&run);
        assert!(chart.note.starts_with("20,000 spans shorter than"), "{}", chart.note);
        let svg = chart.svg.expect("drawn");
        let boxes = svg.matches("class=\"span out").count();
        assert!((50..500).contains(&boxes), "{boxes}");
    }
}
