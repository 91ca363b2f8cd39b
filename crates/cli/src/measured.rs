//! Turns a measured step into what the page shows: spans on the time axis of the predicted ones,
//! and words for where the two part.

use adaptive::{
    Departure, Direction, LaneComparison, LaneCopy, LaneShares, Lanes, Part, Trace, compare_lanes,
};

use crate::report::run::{LaneSpan, WorkKind};
use crate::report::units;

/// Places where truth and prediction part that are told, the widest first.
const DEPARTURES_TOLD: usize = 8;
/// Less than this share of the step is not worth a word.
const LEAST_SHARE: f64 = 0.001;

/// What ran when.
pub(crate) fn spans(trace: &Trace, lanes: &Lanes) -> Vec<LaneSpan> {
    let span = |kind, name: &str, (start_us, end_us), size_bytes| {
        let name = if name.is_empty() { "unnamed" } else { name };
        LaneSpan { kind, name: name.to_owned(), start_us, end_us, size_bytes }
    };
    let name_of = |op: adaptive::OpIndex| &trace.ops[op.0 as usize].name;
    let ops =
        lanes.ops.iter().map(|op| span(WorkKind::Op, name_of(op.op), (op.start_us, op.end_us), 0));
    let host = lanes.ops.iter().filter_map(|op| {
        let times = op.host_us?;
        Some(span(WorkKind::Host, name_of(op.op), times, 0))
    });
    let replays = lanes
        .replays
        .iter()
        .map(|replay| span(WorkKind::Replay, &replay.name, (replay.start_us, replay.end_us), 0));
    let copies = lanes.copies.iter().map(|copy| {
        let kind = match copy.direction {
            Direction::Out => WorkKind::SwapOut,
            Direction::In => WorkKind::SwapIn,
        };
        let name = copy.block.map_or("", |block| &trace.blocks[block.0 as usize].name);
        span(kind, name, (copy.start_us, copy.end_us), copy.size_bytes)
    });
    ops.chain(host).chain(replays).chain(copies).collect()
}

/// Where a measured step parts from its prediction, in sentences: the whole step, each way of the
/// link, then single ops.
pub(crate) fn in_words(trace: &Trace, predicted: &Lanes, measured: &Lanes) -> Vec<String> {
    let comparison = compare_lanes(predicted, measured);
    let least_us = LEAST_SHARE * measured.step_us.max(predicted.step_us);
    let mut words = vec![of_step(predicted.step_us, measured.step_us, &comparison, least_us)];
    for direction in [Direction::Out, Direction::In] {
        words.extend(of_link(direction, predicted, measured));
    }
    let wide =
        |departure: &&Departure| (departure.measured_us - departure.predicted_us).abs() >= least_us;
    let told = comparison.departures.iter().filter(wide).take(DEPARTURES_TOLD);
    words.extend(told.map(|departure| of_op(trace, departure)));
    words
}

fn of_step(
    predicted_us: f64,
    measured_us: f64,
    comparison: &LaneComparison,
    least_us: f64,
) -> String {
    let mut text = format!(
        "The step took {}, predicted {}",
        units::time(measured_us),
        units::time(predicted_us)
    );
    let (expected, found) = (&comparison.predicted, &comparison.measured);
    let part = |name, of: fn(&LaneShares) -> f64| (name, of(expected), of(found));
    let parts = [
        part("ops", |shares| shares.ops_us),
        part("ops made again", |shares| shares.replays_us),
        part("waits for copies", |shares| shares.waits_us),
        part("nothing to compute", |shares| shares.idle_us),
    ];
    let wide = parts.iter().filter(|(_, expected, found)| (found - expected).abs() >= least_us);
    let list: Vec<String> = wide
        .map(|(name, expected, found)| {
            format!("{name} {}, predicted {}", units::time(*found), units::time(*expected))
        })
        .collect();
    if !list.is_empty() {
        text.push_str(": ");
        text.push_str(&list.join("; "));
    }
    text + "."
}

/// How copies of one direction went, if there were any.
fn of_link(direction: Direction, predicted: &Lanes, measured: &Lanes) -> Option<String> {
    let sum = |lanes: &Lanes| {
        let own = lanes.copies.iter().filter(|copy| copy.direction == direction);
        own.fold((0, 0.0), |(bytes, us), copy| {
            (bytes + copy.size_bytes, us + copy.end_us - copy.start_us)
        })
    };
    let in_words = |(bytes, us): (u64, f64)| {
        let rate = units::gb_per_s(bytes, us).map(|rate| format!(" at {rate:.2} GB/s"));
        format!("{}{}", units::bytes(bytes), rate.unwrap_or_default())
    };
    let (expected, found) = (sum(predicted), sum(measured));
    let way = match direction {
        Direction::Out => "to the host",
        Direction::In => "from the host",
    };
    (expected.0 > 0 || found.0 > 0)
        .then(|| format!("Copies {way}: {}, predicted {}.", in_words(found), in_words(expected)))
}

fn of_op(trace: &Trace, departure: &Departure) -> String {
    let number = departure.op.0;
    let op = format!("op {number} {}", trace.ops[number as usize].name);
    let (found, expected) =
        (units::time(departure.measured_us), units::time(departure.predicted_us));
    match departure.part {
        Part::Op => format!("{op} took {found}, predicted {expected}."),
        Part::Wait => {
            let copy = departure.copy.map(|copy| of_copy(trace, &copy)).unwrap_or_default();
            format!("{op} waited {found}{copy}, predicted {expected}.")
        }
        Part::Idle => {
            format!("Before {op} nothing was computed for {found}, predicted {expected}.")
        }
    }
}

/// For which copy.
fn of_copy(trace: &Trace, copy: &LaneCopy) -> String {
    let way = match copy.direction {
        Direction::Out => "to leave",
        Direction::In => "to come back",
    };
    let Some(block) = copy.block else {
        return format!(" for {} {way}", units::bytes(copy.size_bytes));
    };
    let name = &trace.blocks[block.0 as usize].name;
    let name = if name.is_empty() { String::new() } else { format!("{name}, ") };
    format!(" for block {} ({name}{}) {way}", block.0, units::bytes(copy.size_bytes))
}

#[cfg(test)]
mod tests {
    use adaptive::{
        BlockIndex, Direction, LaneCopy, LaneOp, LaneWait, Lanes, OpIndex, Origin, Trace,
        TraceBlock, TraceOp,
    };

    use super::{in_words, spans};

    fn trace() -> Trace {
        let op =
            |name: &str| TraceOp { name: name.to_owned(), device_us: 1000.0, ..TraceOp::default() };
        let block = |name: &str| TraceBlock {
            size_bytes: 64 << 20,
            origin: Origin::Persistent,
            name: name.to_owned(),
            held: false,
            nth: 0,
        };
        Trace {
            ops: ["aten::mm", "aten::add", "aten::mul"].map(op).to_vec(),
            blocks: ["weight", ""].map(block).to_vec(),
            ..Trace::default()
        }
    }

    fn lanes(starts_us: [f64; 3], wait_us: f64) -> Lanes {
        let op = |(op, start_us)| LaneOp {
            op: OpIndex(op),
            host_us: Some((start_us, start_us + 10.0)),
            start_us,
            end_us: start_us + 1000.0,
        };
        let end_us = starts_us[1];
        Lanes {
            step_us: starts_us[2] + 1000.0,
            ops: (0..).zip(starts_us).map(op).collect(),
            replays: Vec::new(),
            copies: vec![LaneCopy {
                block: Some(BlockIndex(0)),
                direction: Direction::In,
                size_bytes: 64 << 20,
                start_us: 100.0,
                end_us,
            }],
            waits: vec![LaneWait {
                op: OpIndex(1),
                copy: Some(0),
                start_us: end_us - wait_us,
                end_us,
            }],
        }
    }

    #[test]
    fn where_they_part_is_said() {
        let predicted = lanes([0.0, 1200.0, 2200.0], 200.0);
        let measured = lanes([0.0, 4100.0, 6000.0], 3100.0);
        let words = in_words(&trace(), &predicted, &measured);
        assert_eq!(
            words,
            [
                "The step took 7 ms, predicted 3.2 ms: waits for copies 3.1 ms, predicted 200 µs; \
                 nothing to compute 900 µs, predicted 0 µs.",
                "Copies from the host: 64 MiB at 16.78 GB/s, predicted 64 MiB at 61.01 GB/s.",
                "op 1 aten::add waited 3.1 ms for block 0 (weight, 64 MiB) to come back, predicted \
                 200 µs.",
                "Before op 2 aten::mul nothing was computed for 900 µs, predicted 0 µs.",
            ]
        );
        assert_eq!(in_words(&trace(), &measured, &measured).len(), 2, "they are the same");
    }

    #[test]
    fn every_part_is_a_span() {
        let drawn = spans(&trace(), &lanes([0.0, 1200.0, 2200.0], 200.0));
        assert_eq!(drawn.len(), 3 + 3 + 1);
        assert!(drawn.iter().any(|span| span.label() == "swap in weight"));
        assert!(drawn.iter().any(|span| span.label() == "host: aten::mul"));
    }
}
