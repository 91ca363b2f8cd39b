//! A small writer of SVG elements.
//!
//! Charts stretch with the page without scaling their text: horizontal places are percentages
//! of the plot, vertical ones are pixels. Only curves live in an inner drawing that is stretched.

use std::fmt::{self, Display, Write};

/// Width of the inner drawing in which curves are given.
const CURVE_WIDTH: f64 = 1000.0;

/// A share of the plot's width, written as a percentage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share(pub(super) f64);

impl Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", super::units::trimmed(finite(self.0) * 100.0, 3))
    }
}

/// A place or length in pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Px(pub(super) f64);

impl Display for Px {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&super::units::trimmed(finite(self.0), 2))
    }
}

/// A drawing has no place for what is not a number.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

/// A point of a curve: share of the width, and pixels from the top.
pub(super) type CurvePoint = (f64, f64);

/// Attributes of an element in order.
type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// SVG text in the making.
#[derive(Debug, Default)]
pub(super) struct Svg {
    text: String,
}

impl Svg {
    /// Begins a plot `height` pixels high that fills its container, described for those who
    /// cannot see it.
    pub(super) fn plot(height: f64, description: &str) -> Svg {
        let mut svg = Svg::default();
        svg.open(
            "svg",
            &[
                ("class", &"plot"),
                ("role", &"img"),
                ("aria-label", &description),
                ("width", &"100%"),
                ("height", &Px(height)),
            ],
        );
        svg
    }

    /// Ends the plot.
    pub(super) fn finish(mut self) -> String {
        self.close("svg");
        self.text
    }

    /// Opens an element.
    pub(super) fn open(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push('>');
    }

    /// Closes an element.
    pub(super) fn close(&mut self, tag: &str) {
        self.text.push_str("</");
        self.text.push_str(tag);
        self.text.push_str(">\n");
    }

    /// An element without content.
    pub(super) fn leaf(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.start(tag, attributes);
        self.text.push_str("/>\n");
    }

    /// A line of text.
    pub(super) fn label(&mut self, class: &str, x: &dyn Display, y: f64, text: &str) {
        self.start("text", &[("class", &class), ("x", x), ("y", &Px(y))]);
        self.text.push('>');
        self.text.push_str(&escape(text));
        self.close("text");
    }

    /// A rectangle with a tooltip.
    pub(super) fn tipped_rect(
        &mut self,
        class: &str,
        (from, until): (f64, f64),
        (top, height): (f64, f64),
        tip: &str,
    ) {
        self.start(
            "rect",
            &[
                ("class", &class),
                ("x", &Share(from)),
                ("width", &Share(until - from)),
                ("y", &Px(top)),
                ("height", &Px(height)),
            ],
        );
        self.text.push_str("><title>");
        self.text.push_str(&escape(tip));
        self.text.push_str("</title></rect>\n");
    }

    /// A horizontal line over the whole width.
    pub(super) fn rule(&mut self, class: &str, y: f64) {
        self.leaf(
            "line",
            &[("class", &class), ("x1", &"0"), ("x2", &"100%"), ("y1", &Px(y)), ("y2", &Px(y))],
        );
    }

    /// A vertical line at a share of the width.
    pub(super) fn upright(&mut self, class: &str, x: f64, (top, bottom): (f64, f64)) {
        self.leaf(
            "line",
            &[
                ("class", &class),
                ("x1", &Share(x)),
                ("x2", &Share(x)),
                ("y1", &Px(top)),
                ("y2", &Px(bottom)),
            ],
        );
    }

    /// Begins the stretched inner drawing of the plot's upper `height` pixels.
    pub(super) fn open_curves(&mut self, height: f64) {
        let view = format!("0 0 {CURVE_WIDTH} {}", Px(height));
        self.open(
            "svg",
            &[
                ("class", &"curves"),
                ("width", &"100%"),
                ("height", &Px(height)),
                ("viewBox", &view),
                ("preserveAspectRatio", &"none"),
            ],
        );
    }

    /// Ends the inner drawing.
    pub(super) fn close_curves(&mut self) {
        self.close("svg");
    }

    /// A line through points, inside the inner drawing. One point is drawn as a dot.
    pub(super) fn curve(&mut self, class: &str, points: &[CurvePoint]) {
        let path = path_of(points);
        if !path.is_empty() {
            self.leaf("path", &[("class", &class), ("d", &path)]);
        }
    }

    /// The area between points and the level `bottom`, inside the inner drawing.
    pub(super) fn area(&mut self, class: &str, points: &[CurvePoint], bottom: f64) {
        let (Some(first), Some(last)) = (points.first(), points.last()) else { return };
        let mut closed = points.to_vec();
        closed.extend([(last.0, bottom), (first.0, bottom)]);
        self.leaf("path", &[("class", &class), ("d", &format!("{}Z", path_of(&closed)))]);
    }

    /// Round dots of a size that `class` gives, inside the inner drawing.
    pub(super) fn dots(&mut self, class: &str, points: &[CurvePoint]) {
        let mut path = String::new();
        for point in points {
            // A line of no length with round ends: a dot that the stretching leaves round.
            push_point(&mut path, 'M', *point);
            path.push_str("h0");
        }
        if !path.is_empty() {
            self.leaf("path", &[("class", &class), ("d", &path)]);
        }
    }

    fn start(&mut self, tag: &str, attributes: Attributes<'_>) {
        self.text.push('<');
        self.text.push_str(tag);
        for (name, value) in attributes {
            let value = escape(&value.to_string());
            write!(self.text, " {name}=\"{value}\"").expect("writing to a string cannot fail");
        }
    }
}

fn path_of(points: &[CurvePoint]) -> String {
    let mut path = String::new();
    for (position, point) in points.iter().enumerate() {
        push_point(&mut path, if position == 0 { 'M' } else { 'L' }, *point);
    }
    if points.len() == 1 {
        path.push_str("h0");
    }
    path
}

fn push_point(path: &mut String, verb: char, (x, y): CurvePoint) {
    write!(path, "{verb}{} {}", Px(x * CURVE_WIDTH), Px(y))
        .expect("writing to a string cannot fail");
}

/// Text that is safe between tags and in quoted attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // Control characters have no place in a page.
            other if other.is_control() && other != '\n' => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::{Share, Svg, escape};

    #[test]
    fn hostile_text_is_defused_everywhere() {
        assert_eq!(escape("<script>\"'&\u{0}"), "&lt;script&gt;&quot;&#39;&amp;\u{fffd}");
        let mut svg = Svg::plot(10.0, "<b>");
        svg.label("\"x", &Share(0.5), 1.0, "</text><script>");
        svg.tipped_rect("a", (0.0, 0.5), (0.0, 1.0), "</title><script>");
        let text = svg.finish();
        assert!(!text.contains("<script>") && !text.contains("<b>") && !text.contains("\"\"x"));
    }

    #[test]
    fn what_is_no_number_is_drawn_at_zero() {
        let mut svg = Svg::default();
        svg.curve("c", &[(f64::NAN, f64::INFINITY), (0.5, 2.0)]);
        svg.upright("u", f64::NEG_INFINITY, (0.0, f64::NAN));
        assert!(svg.text.contains("M0 0L500 2"));
        assert!(!svg.text.contains("NaN") && !svg.text.contains("inf"));
    }

    #[test]
    fn empty_curves_draw_nothing_and_one_point_is_a_dot() {
        let mut svg = Svg::default();
        svg.curve("c", &[]);
        svg.area("c", &[], 1.0);
        svg.dots("c", &[]);
        assert_eq!(svg.text, "");
        svg.curve("c", &[(0.1, 3.0)]);
        assert!(svg.text.contains("M100 3h0"));
    }
}
