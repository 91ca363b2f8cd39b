//! `timeline.json`: one step in Chrome's trace event format, which Perfetto opens.

use serde::Serialize;

use super::lanes;
use super::run::{Lane, LaneSpan, MemoryPoint, Run, WorkKind};
use super::units;

/// What ran, or is predicted to.
const PROCESS: u32 = 1;
/// What was measured of a step of which the other is a prediction.
const MEASURED: u32 = 2;

#[derive(Serialize)]
struct Timeline {
    #[serde(rename = "displayTimeUnit")]
    display_time_unit: &'static str,
    #[serde(rename = "otherData")]
    other_data: OtherData,
    #[serde(rename = "traceEvents")]
    trace_events: Vec<Event>,
}

#[derive(Serialize)]
struct OtherData {
    command: String,
    memory_limit_bytes: u64,
}

/// One trace event. Times are in microseconds, as the format asks.
#[derive(Serialize)]
struct Event {
    name: String,
    #[serde(rename = "ph")]
    phase: &'static str,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    start_us: Option<f64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration_us: Option<f64>,
    #[serde(rename = "pid")]
    process: u32,
    #[serde(rename = "tid")]
    thread: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Args>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Args {
    Name { name: String },
    Order { sort_index: u32 },
    Resident { resident_bytes: u64 },
    Copy { tensor: String, bytes: u64, gb_per_s: Option<f64> },
}

/// The file's text.
///
/// # Errors
///
/// When the text cannot be made.
pub(crate) fn text(run: &Run) -> serde_json::Result<String> {
    draw(&run.command_line, run.memory_limit_bytes, &run.spans, None, &run.memory.planned)
}

/// The same from what it shows: spans in any order, memory in order of time. With `measured`, the
/// others are a prediction.
///
/// # Errors
///
/// When the text cannot be made.
pub(crate) fn draw(
    command_line: &str,
    memory_limit_bytes: u64,
    spans: &[LaneSpan],
    measured: Option<&[LaneSpan]>,
    memory: &[MemoryPoint],
) -> serde_json::Result<String> {
    let title = match measured {
        Some(_) => "SmartSwap: one step, predicted",
        None => "SmartSwap: one step",
    };
    let mut events = process(PROCESS, title, &Lane::DEVICE, spans);
    if let Some(measured) = measured {
        let lanes = [Lane::Compute, Lane::SwapOut, Lane::SwapIn, Lane::Host];
        events.extend(process(MEASURED, "SmartSwap: one step, measured", &lanes, measured));
    }
    let points = memory.iter().filter(|point| point.at_us.is_finite());
    events.extend(points.map(|point| Event {
        name: "resident bytes".to_owned(),
        phase: "C",
        category: None,
        start_us: Some(point.at_us),
        duration_us: None,
        process: PROCESS,
        thread: 0,
        args: Some(Args::Resident { resident_bytes: point.bytes }),
    }));
    serde_json::to_string(&Timeline {
        display_time_unit: "ms",
        other_data: OtherData { command: command_line.to_owned(), memory_limit_bytes },
        trace_events: events,
    })
}

fn name(name: &str) -> Args {
    Args::Name { name: name.to_owned() }
}

/// A process with a thread for each lane.
fn process(process: u32, title: &str, lanes: &[Lane], spans: &[LaneSpan]) -> Vec<Event> {
    let mut events = vec![about("process_name", (process, 0), name(title))];
    for (position, &lane) in (1..).zip(lanes) {
        let thread = (process, position);
        events.push(about("thread_name", thread, name(lane.name())));
        events.push(about("thread_sort_index", thread, Args::Order { sort_index: position }));
    }
    for (position, &lane) in (1..).zip(lanes) {
        let spans = lanes::of_lane(lane, spans);
        events.extend(spans.iter().map(|span| complete(span, (process, position))));
    }
    events
}

/// An event that describes a process or a lane.
fn about(what: &str, (process, thread): (u32, u32), args: Args) -> Event {
    Event {
        name: what.to_owned(),
        phase: "M",
        category: None,
        start_us: None,
        duration_us: None,
        process,
        thread,
        args: Some(args),
    }
}

fn complete(span: &LaneSpan, (process, thread): (u32, u32)) -> Event {
    let duration_us = span.end_us - span.start_us;
    let category = match span.kind {
        WorkKind::Op => "op",
        WorkKind::Replay => "replay",
        WorkKind::SwapOut => "swap-out",
        WorkKind::SwapIn => "swap-in",
        WorkKind::Host => "host",
    };
    let is_copy = matches!(span.kind, WorkKind::SwapOut | WorkKind::SwapIn);
    let args = is_copy.then(|| Args::Copy {
        tensor: span.name.clone(),
        bytes: span.size_bytes,
        gb_per_s: units::gb_per_s(span.size_bytes, duration_us),
    });
    Event {
        name: span.label(),
        phase: "X",
        category: Some(category),
        start_us: Some(span.start_us),
        duration_us: Some(duration_us),
        process,
        thread,
        args,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use crate::report::run::{LaneSpan, WorkKind};
    use crate::report::sample;

    fn events_of(run: &crate::report::run::Run) -> Vec<Value> {
        let text = super::text(run).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        value["traceEvents"].as_array().unwrap().clone()
    }

    #[test]
    fn lanes_are_named_and_spans_do_not_overlap() {
        let mut run = sample::swapping();
        // Clock noise: a span that begins before the one before it ends.
        let mut noisy = run.spans[3].clone();
        noisy.start_us -= 1.0;
        run.spans.push(noisy);
        let events = events_of(&run);
        let names: Vec<&str> = events
            .iter()
            .filter(|event| event["name"] == "thread_name")
            .map(|event| event["args"]["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["compute", "swap-out", "swap-in"]);
        let mut free_from_us: BTreeMap<u64, f64> = BTreeMap::new();
        let mut spans = 0;
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let free_us = free_from_us.entry(event["tid"].as_u64().unwrap()).or_default();
            let start_us = event["ts"].as_f64().unwrap();
            assert!(start_us >= *free_us, "{event}");
            *free_us = start_us + event["dur"].as_f64().unwrap() - 1e-9;
            spans += 1;
        }
        assert_eq!(spans, run.spans.len());
        assert_eq!(free_from_us.len(), 3);
    }

    #[test]
    fn copies_are_named_after_their_tensors() {
        let mut run = sample::swapping();
        run.spans = vec![LaneSpan {
            kind: WorkKind::SwapOut,
            name: "layer3.mlp.hidden".to_owned(),
            start_us: 10.0,
            end_us: 1010.0,
            size_bytes: 2_000_000,
        }];
        let events = events_of(&run);
        let copy = events.iter().find(|event| event["ph"] == "X").unwrap();
        assert_eq!(copy["name"], "swap out layer3.mlp.hidden");
        assert_eq!(copy["args"]["tensor"], "layer3.mlp.hidden");
        assert_eq!(copy["args"]["bytes"], 2_000_000);
        assert_eq!(copy["args"]["gb_per_s"], 2.0);
    }

    #[test]
    fn the_counter_follows_the_planned_curve() {
        let run = sample::swapping();
        let events = events_of(&run);
        let counted: Vec<u64> = events
            .iter()
            .filter(|event| event["ph"] == "C")
            .map(|event| event["args"]["resident_bytes"].as_u64().unwrap())
            .collect();
        let wanted: Vec<u64> = run.memory.planned.iter().map(|point| point.bytes).collect();
        assert!(!wanted.is_empty());
        assert_eq!(counted, wanted);
    }
}
