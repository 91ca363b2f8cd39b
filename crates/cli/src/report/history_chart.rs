//! The pictures of the whole run: step time by step number, and loss by step number.

use super::run::{Mode, Run, Step};
use super::scale::{self, Scale};
use super::summary::{self, Figures};
use super::svg::{CurvePoint, Share, Svg};
use super::units::{self, Unit};

/// Rows of the step times, in pixels.
const TIMES: (f64, f64) = (26.0, 226.0);
/// Rows of the losses, in pixels.
const LOSSES: (f64, f64) = (8.0, 148.0);
/// Room below a plot for its axis, in pixels.
const AXIS: f64 = 26.0;

/// Steps up to which each has a dot of its own. Beyond, dots stand for several.
const DOTS: usize = 400;
/// Columns of the loss curve, and of those that answer when pointed at.
const COLUMNS: usize = 500;
/// Steps longer than this many typical ones are drawn at the top edge, or a single slow step
/// would flatten all others.
const TALLEST: f64 = 3.0;

/// A drawing and what has to be said beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryChart {
    /// The drawing; `None` when there is nothing to draw.
    pub(super) svg: Option<String>,
    /// What the drawing leaves out, in words; empty when nothing.
    pub(super) note: String,
}

/// Where steps lie from left to right.
#[derive(Clone, Copy, Debug)]
struct StepAxis {
    scale: Scale,
}

impl StepAxis {
    fn new(steps: &[Step]) -> StepAxis {
        let first = steps.first().map_or(0, |step| step.step) as f64;
        let last = steps.last().map_or(0, |step| step.step) as f64;
        StepAxis { scale: Scale::new(first - 0.5, last + 0.5) }
    }

    /// The middle of a step.
    fn middle(self, step: &Step) -> f64 {
        self.scale.share(step.step as f64)
    }

    /// The columns that a run of steps takes up.
    fn columns(self, steps: &[Step]) -> (f64, f64) {
        let (Some(first), Some(last)) = (steps.first(), steps.last()) else { return (0.0, 0.0) };
        let share = |step: f64| self.scale.share(step);
        (share(first.step as f64 - 0.5), share(last.step as f64 + 0.5))
    }

    fn draw(self, svg: &mut Svg, bottom: f64) {
        for (position, tick) in self.scale.whole_ticks(10.0).into_iter().enumerate() {
            let class = if position % 2 == 0 { "tick mid" } else { "tick mid spare" };
            let text = units::thousands(tick.max(0.0) as u64);
            svg.label(class, &Share(self.scale.share(tick)), bottom + 17.0, &text);
        }
    }
}

/// Draws the time of every step, coloured by mode.
pub(super) fn draw_times(run: &Run) -> HistoryChart {
    let all = || run.steps.iter().map(|step| step.step_us).filter(|time| time.is_finite());
    let Some(slowest_us) = all().reduce(f64::max) else {
        return HistoryChart { svg: None, note: String::new() };
    };
    let typical_us = Figures::typical(run).step_us.unwrap_or(slowest_us);
    let typical_us = typical_us.max(run.step_us_uncapped.unwrap_or(0.0));
    let tallest_us = (slowest_us * 1.05).max(typical_us * 1.25).min(typical_us * TALLEST);
    let scale = Scale::new(0.0, tallest_us);
    let axis = StepAxis::new(&run.steps);
    let bin = run.steps.len().div_ceil(DOTS);
    let mut svg = Svg::plot(TIMES.1 + AXIS, &times_description(run));
    draw_mode_bands(&mut svg, run, axis);
    let unit = Unit::of_us(tallest_us);
    for tick_us in scale.decimal_ticks(7.0) {
        let y = scale.row(tick_us, TIMES);
        svg.rule("grid", y);
        svg.label("tick left", &"-8", y + 4.0, &unit.show(tick_us));
    }
    svg.rule("base", TIMES.1);
    axis.draw(&mut svg, TIMES.1);
    draw_dots(&mut svg, run, axis, scale, bin);
    draw_uncapped_line(&mut svg, run, scale);
    for steps in bins(&run.steps, run.steps.len().div_ceil(COLUMNS)) {
        let rows = (TIMES.0, TIMES.1 - TIMES.0);
        svg.tipped_rect("spot", axis.columns(steps), rows, &tip_of(steps));
    }
    let above = all().filter(|time| *time > tallest_us).count() as u64;
    HistoryChart { svg: Some(svg.finish()), note: times_note(bin, above, tallest_us) }
}

fn times_description(run: &Run) -> String {
    let medians = Mode::ALL.map(|mode| {
        let figures = Figures::of_mode(run, mode);
        format!("{} {}", mode.name(), units::time_or_unknown(figures.step_us))
    });
    format!(
        "Wall time of each of {}. Medians: {}; uncapped {}.",
        units::count(run.steps.len() as u64, "step"),
        medians.join(", "),
        units::time_or_unknown(run.step_us_uncapped)
    )
}

fn times_note(bin: usize, above: u64, tallest_us: f64) -> String {
    let mut notes = Vec::new();
    if bin > 1 {
        notes.push(format!(
            "Each dot is the median of up to {bin} steps, its line reaches from the fastest to \
             the slowest."
        ));
    }
    if above > 0 {
        let verb = if above == 1 { "is" } else { "are" };
        notes.push(format!(
            "{} longer than {} {verb} drawn at the top edge.",
            units::count(above, "step"),
            units::time(tallest_us)
        ));
    }
    notes.join(" ")
}

/// Pieces of at most `size` steps, each of one mode.
fn bins(steps: &[Step], size: usize) -> impl Iterator<Item = &[Step]> {
    steps.chunk_by(|a, b| a.mode == b.mode).flat_map(move |run| run.chunks(size.max(1)))
}

fn draw_mode_bands(svg: &mut Svg, run: &Run, axis: StepAxis) {
    for steps in run.steps.chunk_by(|a, b| a.mode == b.mode) {
        let mode = steps[0].mode;
        let (from, until) = axis.columns(steps);
        svg.leaf(
            "rect",
            &[
                ("class", &format!("band {}", class_of(mode))),
                ("x", &Share(from)),
                ("width", &Share(until - from)),
                ("y", &0),
                ("height", &TIMES.1),
            ],
        );
        // A narrow band has no room for its name; the legend has it too.
        if until - from > 0.1 {
            let spare = if until - from > 0.35 { "" } else { " spare" };
            let class = format!("band-name mid{spare}");
            svg.label(&class, &Share(f64::midpoint(from, until)), 16.0, mode.name());
        }
    }
}

fn draw_dots(svg: &mut Svg, run: &Run, axis: StepAxis, scale: Scale, bin: usize) {
    let mut dots: [Vec<CurvePoint>; 3] = Default::default();
    svg.open_curves(TIMES.1);
    for steps in bins(&run.steps, bin) {
        let times = || steps.iter().map(|step| step.step_us);
        let Some(median_us) = summary::median(times()) else { continue };
        let (from, until) = axis.columns(steps);
        let x = f64::midpoint(from, until);
        let rows = times().filter(|time| time.is_finite()).map(|time| scale.row(time, TIMES));
        let (top, bottom) =
            rows.fold((TIMES.1, TIMES.0), |reach, row| (reach.0.min(row), reach.1.max(row)));
        if bottom - top > 1.0 {
            let class = format!("reach {}", class_of(steps[0].mode));
            svg.curve(&class, &[(x, top), (x, bottom)]);
        }
        dots[steps[0].mode as usize].push((x, scale.row(median_us, TIMES)));
    }
    let size = if run.steps.len() > 120 { "small" } else { "large" };
    for mode in Mode::ALL {
        svg.dots(&format!("dots {size} {}", class_of(mode)), &dots[mode as usize]);
    }
    svg.close_curves();
}

fn draw_uncapped_line(svg: &mut Svg, run: &Run, scale: Scale) {
    let Some(uncapped_us) = run.step_us_uncapped.filter(|time| time.is_finite()) else { return };
    let y = scale.row(uncapped_us, TIMES);
    svg.rule("uncapped-line", y);
    // Below the line: settled steps are a little slower, so their dots lie above it.
    let text = format!("uncapped {}", units::time(uncapped_us));
    svg.label("uncapped-label", &"100%", y + 16.0, &text);
}

fn tip_of(steps: &[Step]) -> String {
    let (first, last) = (&steps[0], &steps[steps.len() - 1]);
    if steps.len() > 1 {
        return format!(
            "steps {} to {}, {}\nmedian {}",
            units::thousands(first.step),
            units::thousands(last.step),
            first.mode.name(),
            units::time_or_unknown(summary::median(steps.iter().map(|step| step.step_us)))
        );
    }
    let loss = first.loss.filter(|loss| loss.is_finite());
    let mut tip = format!(
        "step {}, {}\n{} (device {})\nloss {}\n{} out, {} in",
        units::thousands(first.step),
        first.mode.name(),
        units::time(first.step_us),
        units::time(first.device_us),
        loss.map_or(units::UNKNOWN.to_owned(), |loss| units::trimmed(f64::from(loss), 4)),
        units::bytes(first.swapped_out_bytes),
        units::bytes(first.swapped_in_bytes),
    );
    for (number, noun) in [(first.recomputed_ops, "recomputed op"), (first.rescues, "rescue")] {
        if number > 0 {
            tip.push_str(&format!("\n{}", units::count(number, noun)));
        }
    }
    if first.misses > 0 {
        let noun = if first.misses == 1 { "miss" } else { "misses" };
        tip.push_str(&format!("\n{} {noun}", units::thousands(first.misses)));
    }
    tip
}

/// The class that gives a mode its colour.
pub(super) fn class_of(mode: Mode) -> &'static str {
    match mode {
        Mode::WarmUp => "warm-up",
        Mode::SearchPolicy => "search",
        Mode::Stable => "stable",
    }
}

/// Draws the loss of every step that has one.
pub(super) fn draw_losses(run: &Run) -> HistoryChart {
    let known = |step: &Step| step.loss.map(f64::from).filter(|loss| loss.is_finite());
    let losses = || run.steps.iter().filter_map(known);
    let unknown = (run.steps.len() - losses().count()) as u64;
    let (Some(first), Some(last)) = (losses().next(), losses().next_back()) else {
        return HistoryChart { svg: None, note: "No loss is known.".to_owned() };
    };
    let scale = Scale::around(losses());
    let axis = StepAxis::new(&run.steps);
    let [first, last] = [first, last].map(|loss| units::trimmed(loss, 4));
    let description =
        format!("Loss of each step, from {first} in the first to {last} in the last.");
    let mut svg = Svg::plot(LOSSES.1 + AXIS, &description);
    for tick in scale.decimal_ticks(4.0) {
        let y = scale.row(tick, LOSSES);
        svg.rule("grid", y);
        svg.label("tick left", &"-8", y + 4.0, &units::trimmed(tick, 6));
    }
    svg.rule("base", LOSSES.1);
    axis.draw(&mut svg, LOSSES.1);
    svg.open_curves(LOSSES.1);
    // An unknown loss breaks the curve: nothing is drawn that was not measured.
    for piece in run.steps.chunk_by(|a, b| known(a).is_some() == known(b).is_some()) {
        let place = |step| Some((axis.middle(step), scale.row(known(step)?, LOSSES)));
        let points: Vec<CurvePoint> = piece.iter().filter_map(place).collect();
        svg.curve("loss-line", &scale::thin(&points, COLUMNS));
    }
    svg.close_curves();
    for steps in bins(&run.steps, run.steps.len().div_ceil(COLUMNS)) {
        let rows = (LOSSES.0, LOSSES.1 - LOSSES.0);
        svg.tipped_rect("spot", axis.columns(steps), rows, &loss_tip(steps, known));
    }
    let mut note = format!("From {first} to {last}.");
    if unknown > 0 {
        let verb = if unknown == 1 { "has" } else { "have" };
        note.push_str(&format!(" {} {verb} no known loss.", units::count(unknown, "step")));
    }
    HistoryChart { svg: Some(svg.finish()), note }
}

fn loss_tip(steps: &[Step], known: impl Fn(&Step) -> Option<f64>) -> String {
    let first = &steps[0];
    let loss = known(first).map_or(units::UNKNOWN.to_owned(), |loss| units::trimmed(loss, 4));
    format!("step {}\nloss {loss}", units::thousands(first.step))
}

#[cfg(test)]
mod tests {
    use super::{bins, draw_losses, draw_times};
    use crate::report::sample;

    #[test]
    fn three_and_three_thousand_steps_are_drawn() {
        let mut run = sample::swapping();
        run.steps.truncate(3);
        let few = draw_times(&run);
        assert_eq!(few.note, "");
        assert!(few.svg.expect("drawn").contains("dots large"));
        let run = sample::long();
        assert_eq!(run.steps.len(), 3_000);
        let many = draw_times(&run);
        assert!(many.note.contains("up to 8 steps"), "{}", many.note);
        let svg = many.svg.expect("drawn");
        assert!(svg.contains("dots small") && svg.contains("class=\"reach"));
        assert!(svg.len() < 300_000, "{}", svg.len());
    }

    #[test]
    fn one_very_slow_step_does_not_flatten_the_others() {
        let mut run = sample::swapping();
        run.steps[0].step_us = 1e9;
        let note = draw_times(&run).note;
        assert!(note.starts_with("1 step longer than") && note.contains("top edge"), "{note}");
    }

    #[test]
    fn bins_hold_one_mode_each_and_lose_no_step() {
        let run = sample::long();
        let mut steps = 0;
        for bin in bins(&run.steps, 8) {
            assert!(bin.len() <= 8 && bin.iter().all(|step| step.mode == bin[0].mode));
            steps += bin.len();
        }
        assert_eq!(steps, 3_000);
    }

    #[test]
    fn unknown_losses_break_the_curve() {
        let mut run = sample::swapping();
        run.steps[4].loss = None;
        run.steps[5].loss = Some(f32::NAN);
        let chart = draw_losses(&run);
        assert!(chart.note.ends_with("2 steps have no known loss."), "{}", chart.note);
        assert_eq!(chart.svg.expect("drawn").matches("loss-line").count(), 2);
        run.steps.iter_mut().for_each(|step| step.loss = None);
        assert_eq!(draw_losses(&run).svg, None);
    }

    #[test]
    fn no_steps_draw_nothing() {
        let mut run = sample::swapping();
        run.steps.clear();
        assert_eq!(draw_times(&run).svg, None);
        assert_eq!(draw_losses(&run).svg, None);
    }
}
