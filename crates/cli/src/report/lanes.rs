//! The spans of one step made fit for drawing: in order, without overlap, and no finer than a
//! pixel.

use super::run::{Lane, LaneSpan, WorkKind};
use super::units;

/// The spans of a lane, sorted and without overlap.
///
/// A stream runs one piece of work at a time, so an overlap is noise of its clock: the later span
/// is trimmed. Spans whose times are not numbers are left out, and what was before the step is cut
/// off.
pub(super) fn of_lane(lane: Lane, spans: &[LaneSpan]) -> Vec<LaneSpan> {
    let is_sound = |span: &&LaneSpan| {
        span.kind.lane() == lane
            && span.start_us.is_finite()
            && span.end_us.is_finite()
            && span.start_us <= span.end_us
            && span.end_us >= 0.0
    };
    let mut sorted: Vec<LaneSpan> = spans.iter().filter(is_sound).cloned().collect();
    sorted.sort_by(|a, b| a.start_us.total_cmp(&b.start_us).then(a.end_us.total_cmp(&b.end_us)));
    let mut free_from_us = 0.0_f64;
    for span in &mut sorted {
        span.start_us = span.start_us.max(free_from_us);
        span.end_us = span.end_us.max(span.start_us);
        free_from_us = span.end_us;
    }
    sorted
}

/// One box of a lane: a span, or several too small to be seen alone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LaneBox {
    /// What the spans are.
    pub(super) kind: WorkKind,
    /// Start of the first, in microseconds.
    pub(super) start_us: f64,
    /// End of the last, in microseconds.
    pub(super) end_us: f64,
    /// What the tooltip says.
    pub(super) tip: String,
    /// Number of spans in it.
    pub(super) spans: u64,
    /// What is written into the box if there is room; empty for several spans.
    pub(super) label: String,
}

/// Boxes of one lane, in drawing order. Spans shorter than `pixel_us` are joined with neighbours
/// of their kind until a box is a few pixels wide.
pub(super) fn boxes(spans: &[LaneSpan], pixel_us: f64) -> Vec<LaneBox> {
    let mut drawn = Vec::new();
    for kind in WorkKind::ALL {
        let mut run: Vec<&LaneSpan> = Vec::new();
        for span in spans.iter().filter(|span| span.kind == kind) {
            let is_tiny = span.end_us - span.start_us < pixel_us;
            let joins = run.last().is_some_and(|last| {
                is_tiny
                    && span.start_us - last.end_us < pixel_us
                    && span.end_us - run[0].start_us < 4.0 * pixel_us
            });
            if !joins {
                drawn.extend(joined(&run));
                run.clear();
            }
            run.push(span);
            if !is_tiny {
                drawn.extend(joined(&run));
                run.clear();
            }
        }
        drawn.extend(joined(&run));
    }
    drawn
}

fn joined(run: &[&LaneSpan]) -> Option<LaneBox> {
    let (first, last) = (run.first()?, run.last()?);
    let size_bytes: u64 = run.iter().map(|span| span.size_bytes).sum();
    let busy_us: f64 = run.iter().map(|span| span.end_us - span.start_us).sum();
    let mut tip = match run {
        [only] => only.label(),
        _ => format!("{} to {}: {} spans", first.label(), last.label(), run.len()),
    };
    tip.push_str(&format!(
        "\n{}, from {} to {}",
        units::time(busy_us),
        units::time(first.start_us),
        units::time(last.end_us)
    ));
    if size_bytes > 0 {
        tip.push_str(&format!("\n{}", units::bytes(size_bytes)));
        if let Some(rate) = units::gb_per_s(size_bytes, busy_us) {
            tip.push_str(&format!(" at {rate:.2} GB/s"));
        }
    }
    let label = if run.len() == 1 { first.name.clone() } else { String::new() };
    Some(LaneBox {
        kind: first.kind,
        start_us: first.start_us,
        end_us: last.end_us,
        tip,
        spans: run.len() as u64,
        label,
    })
}

/// What a lane did, in words.
pub(super) fn in_words(lane: Lane, spans: &[LaneSpan], step_us: f64) -> String {
    if spans.is_empty() {
        return match lane {
            Lane::Compute => "no ops were recorded".to_owned(),
            Lane::SwapOut => "nothing was copied out".to_owned(),
            Lane::SwapIn => "nothing was copied in".to_owned(),
            Lane::Host => "the host was not measured".to_owned(),
        };
    }
    let busy_us: f64 = spans.iter().map(|span| span.end_us - span.start_us).sum();
    let busy = units::percent(busy_us, step_us);
    if lane == Lane::Compute {
        let replays = spans.iter().filter(|span| span.kind == WorkKind::Replay).count() as u64;
        let ops = units::count(spans.len() as u64 - replays, "op");
        return format!("{ops}, {}, busy {busy} of the step", units::count(replays, "replay"));
    }
    if lane == Lane::Host {
        let ops = units::count(spans.len() as u64, "op");
        return format!("{ops}, busy with them {busy} of the step");
    }
    let size_bytes: u64 = spans.iter().map(|span| span.size_bytes).sum();
    let copies = if spans.len() == 1 { "copy" } else { "copies" };
    let rate = units::gb_per_s(size_bytes, busy_us)
        .map_or_else(String::new, |rate| format!(" at {rate:.2} GB/s"));
    format!(
        "{} {copies}, {}{rate}, busy {busy} of the step",
        units::thousands(spans.len() as u64),
        units::bytes(size_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::{boxes, in_words, of_lane};
    use crate::report::run::{Lane, LaneSpan, WorkKind};

    fn op(start_us: f64, end_us: f64) -> LaneSpan {
        LaneSpan { kind: WorkKind::Op, name: "op".to_owned(), start_us, end_us, size_bytes: 0 }
    }

    #[test]
    fn lanes_are_sorted_and_never_overlap() {
        let spans = [op(5.0, 9.0), op(0.0, 6.0), op(f64::NAN, 1.0), op(3.0, 2.0), op(1.0, 2.0)];
        let [compute, out, back] = Lane::DEVICE.map(|lane| of_lane(lane, &spans));
        assert_eq!(compute.len(), 3);
        assert!(compute.is_sorted_by(|a, b| a.end_us <= b.start_us));
        assert!(out.is_empty() && back.is_empty());
    }

    #[test]
    fn tiny_spans_join_but_none_is_lost() {
        let spans: Vec<LaneSpan> = (0..20_000)
            .map(|place| op(f64::from(place), f64::from(place) + 0.9))
            .chain([op(30_000.0, 31_000.0)])
            .collect();
        let drawn = boxes(&spans, 25.0);
        assert!(drawn.len() < 500, "{}", drawn.len());
        assert_eq!(drawn.iter().map(|drawn| drawn.spans).sum::<u64>(), 20_001);
        assert!(drawn.is_sorted_by(|a, b| a.end_us <= b.start_us));
        let alone = drawn.last().expect("the long span is drawn");
        assert_eq!((alone.spans, alone.label.as_str()), (1, "op"));
    }

    #[test]
    fn wide_spans_stay_alone() {
        let spans = [op(0.0, 10.0), op(10.0, 20.0), op(20.0, 20.5), op(20.5, 30.0)];
        assert_eq!(boxes(&spans, 1.0).len(), 4);
        assert!(boxes(&[], 1.0).is_empty());
    }

    #[test]
    fn words_for_empty_and_busy_lanes() {
        assert_eq!(in_words(Lane::SwapOut, &[], 10.0), "nothing was copied out");
        let copy = LaneSpan { kind: WorkKind::SwapIn, size_bytes: 4_000, ..op(0.0, 2.0) };
        assert_eq!(
            in_words(Lane::SwapIn, &[copy], 10.0),
            "1 copy, 3.91 KiB at 2.00 GB/s, busy 20 % of the step"
        );
        assert_eq!(
            in_words(Lane::Compute, &[op(0.0, 5.0)], 10.0),
            "1 op, 0 replays, busy 50 % of the step"
        );
    }
}
