//! Step time against memory, a panel for each step and a line for each strategy, as one SVG file
//! that reads on light and on dark ground.

use std::fmt::Write as _;

use crate::report::scale::Scale;
use crate::report::svg::escape;
use crate::report::units;

const WIDTH: f64 = 960.0;
const PANEL_HEIGHT: f64 = 380.0;
/// The plot's left and right end in a panel.
const PLOT_X: (f64, f64) = (74.0, 700.0);
/// The plot's top and bottom in a panel.
const PLOT_Y: (f64, f64) = (52.0, 324.0);
const LEGEND_X: f64 = 724.0;
const LEGEND_PITCH: f64 = 24.0;
/// What takes longer than this many times the step with memory for everything is cut off.
const TIMES_SHOWN_MAX: f64 = 2.0;

/// A colour on light and on dark ground, and a dash, for each line in turn.
const STYLES: [(&str, &str, &str); 10] = [
    ("#8a8a8a", "#9a9a9a", "2 4"),
    ("#b35900", "#f0a35e", "8 4"),
    ("#7b3fb5", "#c79bf2", "none"),
    ("#a8862b", "#e0c56b", "2 3"),
    ("#a8862b", "#e0c56b", "none"),
    ("#0b8a8a", "#58d0cf", "2 3"),
    ("#0b8a8a", "#58d0cf", "none"),
    ("#c2306e", "#ff8db8", "10 3 2 3"),
    ("#1f9d45", "#5fdc86", "none"),
    ("#1457d9", "#7fb0ff", "none"),
];
/// Lines from this one on are our own, and drawn thicker.
const OURS_FROM: usize = 8;

const CSS: &str = "\
text{font:13px system-ui,sans-serif;fill:#333}.title{font-size:16px;font-weight:600;fill:#111}\
.mid{text-anchor:middle}.right{text-anchor:end}.soft{fill:#666}.back{fill:#fff}\
.grid{stroke:#e3e3e3}.base{stroke:#777}.line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
.ours{stroke-width:3.2}";
const CSS_DARK: &str = "\
text{fill:#d5d5d5}.title{fill:#fff}.soft{fill:#a0a0a0}.back{fill:#16181c}\
.grid{stroke:#2d3138}.base{stroke:#999}";

/// One strategy: its name, and points of percent of the peak and milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) name: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    pub(super) peak_bytes: u64,
    pub(super) baseline_ms: f64,
    pub(super) lines: Vec<Line>,
}

/// The drawing of all steps, one below the other.
pub(super) fn draw(charts: &[Chart]) -> String {
    let height = PANEL_HEIGHT * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
         aria-label=\"Step time against memory for each strategy\">\n<style>{CSS}"
    );
    let mut dark = CSS_DARK.to_owned();
    for (index, (on_light, on_dark, dash)) in STYLES.iter().enumerate() {
        push(&mut svg, format_args!(".s{index}{{stroke:{on_light};stroke-dasharray:{dash}}}"));
        push(&mut dark, format_args!(".s{index}{{stroke:{on_dark}}}"));
    }
    push(&mut svg, format_args!("@media(prefers-color-scheme:dark){{{dark}}}</style>\n"));
    push(&mut svg, format_args!("<rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>\n"));
    for (index, chart) in charts.iter().enumerate() {
        let top = PANEL_HEIGHT * index as f64;
        push(&mut svg, format_args!("<g transform=\"translate(0 {top})\">\n"));
        panel(&mut svg, chart, index);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn push(svg: &mut String, text: std::fmt::Arguments<'_>) {
    svg.write_fmt(text).expect("writing to a string cannot fail");
}

fn label(svg: &mut String, class: &str, (x, y): (f64, f64), text: &str) {
    let text = escape(text);
    push(svg, format_args!("<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{text}</text>\n"));
}

fn rule(svg: &mut String, class: &str, from: (f64, f64), to: (f64, f64)) {
    push(
        svg,
        format_args!(
            "<line class=\"{class}\" x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\"/>\n",
            from.0, from.1, to.0, to.1
        ),
    );
}

fn panel(svg: &mut String, chart: &Chart, index: usize) {
    let points = || chart.lines.iter().flat_map(|line| &line.points);
    let least = points().map(|point| point.0).fold(95.0, f64::min);
    let slowest = points().map(|point| point.1).fold(chart.baseline_ms * 1.1, f64::max);
    let x_scale = Scale::new(least, 100.0);
    let high = slowest.min(chart.baseline_ms * TIMES_SHOWN_MAX);
    let y_scale = Scale::new(chart.baseline_ms * 0.97, high);
    let x = |percent: f64| PLOT_X.0 + (PLOT_X.1 - PLOT_X.0) * x_scale.share(percent);
    let y = |ms: f64| y_scale.row(ms, PLOT_Y);
    label(svg, "title", (PLOT_X.0, 22.0), &chart.title);
    let words = format!(
        "step time; {:.0} ms and {} with memory for everything",
        chart.baseline_ms,
        units::bytes(chart.peak_bytes)
    );
    label(svg, "soft", (PLOT_X.0, 41.0), &words);
    for tick in y_scale.decimal_ticks(6.0) {
        rule(svg, "grid", (PLOT_X.0, y(tick)), (PLOT_X.1, y(tick)));
        let name = units::time(tick * 1e3);
        label(svg, "right", (PLOT_X.0 - 8.0, y(tick) + 4.0), &name);
    }
    for tick in x_scale.decimal_ticks(8.0) {
        rule(svg, "grid", (x(tick), PLOT_Y.0), (x(tick), PLOT_Y.1));
        label(svg, "mid", (x(tick), PLOT_Y.1 + 18.0), &format!("{tick:.0} %"));
    }
    let middle = (PLOT_X.0 + PLOT_X.1) / 2.0;
    label(svg, "mid soft", (middle, PLOT_Y.1 + 38.0), "memory, in percent of the step's own peak");
    rule(svg, "base", (PLOT_X.0, y(chart.baseline_ms)), (PLOT_X.1, y(chart.baseline_ms)));
    push(
        svg,
        format_args!(
            "<clipPath id=\"plot{index}\"><rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\
             </clipPath>\n",
            PLOT_X.0,
            PLOT_Y.0 - 2.0,
            PLOT_X.1 - PLOT_X.0,
            PLOT_Y.1 - PLOT_Y.0 + 4.0
        ),
    );
    // Beyond the scale a line goes on straight, so that it leaves the plot where it should.
    let beyond = |ms: f64| {
        let (low, span) = (chart.baseline_ms * 0.97, high - chart.baseline_ms * 0.97);
        PLOT_Y.1 - (PLOT_Y.1 - PLOT_Y.0) * (ms - low) / span
    };
    for (position, line) in chart.lines.iter().enumerate() {
        draw_line(svg, line, position, index, |(percent, ms)| (x(percent), beyond(ms)));
    }
    for (position, line) in chart.lines.iter().enumerate() {
        let row = PLOT_Y.0 + LEGEND_PITCH * position as f64 + 4.0;
        let class = class(position);
        rule(svg, &class, (LEGEND_X, row), (LEGEND_X + 34.0, row));
        let cut = line.points.iter().all(|point| point.1 > high);
        let words = match (line.points.is_empty(), cut) {
            (true, _) => format!("{}: does not fit", line.name),
            (false, true) => format!("{}: slower", line.name),
            (false, false) => line.name.to_owned(),
        };
        label(svg, "", (LEGEND_X + 44.0, row + 4.0), &words);
    }
}

fn class(position: usize) -> String {
    let style = position % STYLES.len();
    let ours = if position >= OURS_FROM { " ours" } else { "" };
    format!("line s{style}{ours}")
}

fn draw_line(
    svg: &mut String,
    line: &Line,
    position: usize,
    index: usize,
    place: impl Fn((f64, f64)) -> (f64, f64),
) {
    if line.points.is_empty() {
        return;
    }
    let class = class(position);
    push(
        svg,
        format_args!("<polyline class=\"{class}\" clip-path=\"url(#plot{index})\" points=\""),
    );
    for &point in &line.points {
        let (x, y) = place(point);
        push(svg, format_args!("{x:.1},{y:.1} "));
    }
    push(svg, format_args!("\"><title>{}</title></polyline>\n", escape(line.name)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_where_they_fit_and_named_where_not() {
        let chart = Chart {
            title: "a<b".to_owned(),
            peak_bytes: 8 << 30,
            baseline_ms: 100.0,
            lines: vec![
                Line { name: "keep", points: vec![(100.0, 100.0), (95.0, 900.0)] },
                Line { name: "vdnn", points: vec![(100.0, 300.0), (95.0, 300.0)] },
                Line { name: "swap", points: vec![] },
            ],
        };
        let svg = draw(&[chart.clone(), chart]);
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert_eq!(svg.matches("a&lt;b").count(), 2);
        assert!(svg.contains("swap: does not fit") && svg.contains("vdnn: slower"), "{svg}");
        assert!(svg.contains(">keep<") && svg.contains("prefers-color-scheme:dark"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
