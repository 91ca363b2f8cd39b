//! The trace file's content.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use swap_core::{
    AccessMode, BlockIndex, HostCosts, OpIndex, Signature, Trace, TraceBlock, TraceEvent, TraceOp,
};

use super::json::{Expected, check_head, hex};
use super::plan::OriginMirror;
use crate::check::check_trace;
use crate::error::FileError;

const EXPECTED: Expected = Expected { what: "trace", format: "smartswap-trace", version: 1 };

#[derive(Serialize, Deserialize)]
struct FileMirror<'a> {
    format: Cow<'a, str>,
    version: u64,
    #[serde(with = "hex")]
    signature: u64,
    step_us: f64,
    segment_bytes: u64,
    #[serde(default, skip_serializing_if = "is_nought")]
    host_replay_us: f64,
    #[serde(default, skip_serializing_if = "is_nought")]
    host_move_us: f64,
    #[serde(skip_deserializing)]
    meta: MetaMirror,
    #[serde(borrow)]
    ops: Vec<OpMirror<'a>>,
    #[serde(borrow)]
    tensors: Vec<TensorMirror<'a>>,
    events: Vec<EventMirror>,
}

/// For readers elsewhere.
#[derive(Serialize, Default)]
struct MetaMirror {
    step_ms: f64,
    source: &'static str,
}

#[derive(Serialize, Deserialize)]
struct OpMirror<'a> {
    name: Cow<'a, str>,
    depth: u32,
    us: f64,
    #[serde(default, skip_serializing_if = "is_nought")]
    host_us: f64,
    #[serde(default, skip_serializing_if = "is_false")]
    host_waits: bool,
    #[serde(skip_deserializing)]
    reads: Vec<u32>,
    #[serde(skip_deserializing)]
    writes: Vec<u32>,
    #[serde(skip_deserializing)]
    outputs: Vec<u32>,
    replayable: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    at_any_size: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outdated_by: Option<u32>,
}

#[derive(Serialize, Deserialize)]
struct TensorMirror<'a> {
    bytes: u64,
    #[serde(skip_deserializing)]
    alloc: i64,
    #[serde(skip_deserializing)]
    free: i64,
    name: Cow<'a, str>,
    origin: OriginMirror,
    #[serde(default, skip_serializing_if = "is_false")]
    held: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    nth: u32,
}

fn is_false(value: &bool) -> bool {
    !value
}

fn is_nought(value: &f64) -> bool {
    *value == 0.0
}

fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// One event, as a letter and a number.
struct EventMirror(TraceEvent);

/// The file of a trace.
pub(super) fn write(trace: &Trace) -> String {
    let mut file = FileMirror {
        format: EXPECTED.format.into(),
        version: EXPECTED.version,
        signature: trace.signature.0,
        step_us: trace.step_us,
        segment_bytes: trace.segment_bytes,
        host_replay_us: trace.host_costs.replay_us,
        host_move_us: trace.host_costs.move_us,
        meta: MetaMirror { step_ms: trace.step_us / 1000.0, source: "smartswap" },
        ops: trace.ops.iter().map(OpMirror::of).collect(),
        tensors: trace.blocks.iter().map(TensorMirror::of).collect(),
        events: trace.events.iter().copied().map(EventMirror).collect(),
    };
    derive_interchange(&mut file, &trace.events);
    serde_json::to_string(&file).expect("mirror types have string keys and no failing fields")
}

/// The trace of a file.
pub(super) fn read(bytes: &[u8], path: &Path) -> Result<Trace, FileError> {
    check_head(bytes, path, &EXPECTED)?;
    let malformed = |source| FileError::Malformed { path: path.to_owned(), source };
    let file: FileMirror<'_> = serde_json::from_slice(bytes).map_err(malformed)?;
    let trace = Trace {
        signature: Signature(file.signature),
        ops: file.ops.into_iter().map(OpMirror::into_op).collect(),
        blocks: file.tensors.into_iter().map(TensorMirror::into_block).collect(),
        events: file.events.into_iter().map(|event| event.0).collect(),
        segment_bytes: file.segment_bytes,
        step_us: file.step_us,
        host_costs: HostCosts { replay_us: file.host_replay_us, move_us: file.host_move_us },
    };
    check_trace(&trace).map_err(|fault| FileError::Trace { path: path.to_owned(), fault })?;
    Ok(trace)
}

/// Fills the fields that follow from the events. Indexes that lead nowhere are passed over:
/// a trace is checked when it is read.
fn derive_interchange(file: &mut FileMirror<'_>, events: &[TraceEvent]) {
    let mut open: Vec<OpIndex> = Vec::new();
    let mut begun = 0_i64;
    for &event in events {
        match event {
            TraceEvent::Begin(op) => {
                open.push(op);
                begun += 1;
            }
            TraceEvent::Touch(block, mode) => {
                let op = open.last().and_then(|op| file.ops.get_mut(op.0 as usize));
                let Some(op) = op else { continue };
                if mode != AccessMode::Write && !op.reads.contains(&block.0) {
                    op.reads.push(block.0);
                }
                if mode.writes() && !op.writes.contains(&block.0) {
                    op.writes.push(block.0);
                }
            }
            TraceEvent::Allocate(block) => {
                if let Some(tensor) = file.tensors.get_mut(block.0 as usize) {
                    tensor.alloc = begun;
                }
                if let Some(op) = open.last().and_then(|op| file.ops.get_mut(op.0 as usize)) {
                    op.outputs.push(block.0);
                }
            }
            TraceEvent::Free(block) => {
                if let Some(tensor) = file.tensors.get_mut(block.0 as usize) {
                    tensor.free = begun;
                }
                // What an op frees before it ends is scratch, not output.
                for op in &open {
                    if let Some(op) = file.ops.get_mut(op.0 as usize) {
                        op.outputs.retain(|&output| output != block.0);
                    }
                }
            }
            TraceEvent::Segments(_) => {}
            TraceEvent::End(_) => {
                open.pop();
            }
        }
    }
}

impl Serialize for EventMirror {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let (letter, number) = match self.0 {
            TraceEvent::Begin(op) => ('B', u64::from(op.0)),
            TraceEvent::Touch(block, AccessMode::Read) => ('R', u64::from(block.0)),
            TraceEvent::Touch(block, AccessMode::Write) => ('W', u64::from(block.0)),
            TraceEvent::Touch(block, AccessMode::ReadWrite) => ('M', u64::from(block.0)),
            TraceEvent::Allocate(block) => ('A', u64::from(block.0)),
            TraceEvent::Free(block) => ('F', u64::from(block.0)),
            TraceEvent::Segments(bytes) => ('S', bytes),
            TraceEvent::End(op) => ('E', u64::from(op.0)),
        };
        to.collect_str(&format_args!("{letter}{number}"))
    }
}

impl<'de> Deserialize<'de> for EventMirror {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<EventMirror, D::Error> {
        from.deserialize_str(EventText)
    }
}

/// Reads an event where it stands: a text of its own for each would take several times the memory
/// of the file.
struct EventText;

impl Visitor<'_> for EventText {
    type Value = EventMirror;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("an event such as \"B3\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<EventMirror, E> {
        let fault = || E::custom(format_args!("'{text:.20}' is not an event"));
        parse_event(text).map(EventMirror).ok_or_else(fault)
    }
}

fn parse_event(text: &str) -> Option<TraceEvent> {
    let mut letters = text.chars();
    let letter = letters.next()?;
    let digits = letters.as_str();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    if letter == 'S' {
        return digits.parse().ok().map(TraceEvent::Segments);
    }
    let index: u32 = digits.parse().ok()?;
    let (op, block) = (OpIndex(index), BlockIndex(index));
    Some(match letter {
        'B' => TraceEvent::Begin(op),
        'R' => TraceEvent::Touch(block, AccessMode::Read),
        'W' => TraceEvent::Touch(block, AccessMode::Write),
        'M' => TraceEvent::Touch(block, AccessMode::ReadWrite),
        'A' => TraceEvent::Allocate(block),
        'F' => TraceEvent::Free(block),
        'E' => TraceEvent::End(op),
        _ => return None,
    })
}

impl<'a> OpMirror<'a> {
    fn of(op: &'a TraceOp) -> OpMirror<'a> {
        OpMirror {
            name: op.name.as_str().into(),
            depth: op.depth,
            us: op.device_us,
            host_us: op.host_us,
            host_waits: op.host_waits,
            reads: Vec::new(),
            writes: Vec::new(),
            outputs: Vec::new(),
            replayable: op.replayable,
            at_any_size: op.at_any_size,
            outdated_by: op.outdated_by.map(|by| by.0),
        }
    }

    fn into_op(self) -> TraceOp {
        TraceOp {
            name: self.name.into_owned(),
            depth: self.depth,
            device_us: self.us,
            host_us: self.host_us,
            host_waits: self.host_waits,
            replayable: self.replayable,
            at_any_size: self.at_any_size,
            outdated_by: self.outdated_by.map(OpIndex),
        }
    }
}

impl<'a> TensorMirror<'a> {
    fn of(block: &'a TraceBlock) -> TensorMirror<'a> {
        TensorMirror {
            bytes: block.size_bytes,
            alloc: -1,
            free: -1,
            name: block.name.as_str().into(),
            origin: OriginMirror::of(block.origin),
            held: block.held,
            nth: block.nth,
        }
    }

    fn into_block(self) -> TraceBlock {
        TraceBlock {
            size_bytes: self.bytes,
            origin: self.origin.into_origin(),
            name: self.name.into_owned(),
            held: self.held,
            nth: self.nth,
        }
    }
}
