//! The trace file's content.

use std::borrow::Cow;
use std::path::Path;

use serde::de::Error as _;
use serde::{Deserialize, Serialize};
use swap_core::{
    AccessMode, BlockIndex, OpIndex, Signature, Trace, TraceBlock, TraceEvent, TraceOp,
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
    #[serde(skip_deserializing)]
    meta: MetaMirror,
    #[serde(borrow)]
    ops: Vec<OpMirror<'a>>,
    #[serde(borrow)]
    tensors: Vec<TensorMirror<'a>>,
    events: Vec<Cow<'a, str>>,
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
    #[serde(skip_deserializing)]
    reads: Vec<u32>,
    #[serde(skip_deserializing)]
    writes: Vec<u32>,
    #[serde(skip_deserializing)]
    outputs: Vec<u32>,
    replayable: bool,
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
}

/// The file of a trace.
pub(super) fn write(trace: &Trace) -> String {
    let mut file = FileMirror {
        format: EXPECTED.format.into(),
        version: EXPECTED.version,
        signature: trace.signature.0,
        step_us: trace.step_us,
        segment_bytes: trace.segment_bytes,
        meta: MetaMirror { step_ms: trace.step_us / 1000.0, source: "smartswap" },
        ops: trace.ops.iter().map(OpMirror::of).collect(),
        tensors: trace.blocks.iter().map(TensorMirror::of).collect(),
        events: trace.events.iter().map(|&event| event_text(event).into()).collect(),
    };
    derive_interchange(&mut file, &trace.events);
    serde_json::to_string(&file).expect("mirror types have string keys and no failing fields")
}

/// The trace of a file.
pub(super) fn read(bytes: &[u8], path: &Path) -> Result<Trace, FileError> {
    check_head(bytes, path, &EXPECTED)?;
    let malformed = |source| FileError::Malformed { path: path.to_owned(), source };
    let file: FileMirror<'_> = serde_json::from_slice(bytes).map_err(malformed)?;
    let events: Result<Vec<TraceEvent>, _> =
        file.events.iter().map(|text| parse_event(text)).collect();
    let events = events.map_err(malformed)?;
    let trace = Trace {
        signature: Signature(file.signature),
        ops: file.ops.into_iter().map(OpMirror::into_op).collect(),
        blocks: file.tensors.into_iter().map(TensorMirror::into_block).collect(),
        events,
        segment_bytes: file.segment_bytes,
        step_us: file.step_us,
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

fn event_text(event: TraceEvent) -> String {
    match event {
        TraceEvent::Begin(op) => format!("B{}", op.0),
        TraceEvent::Touch(block, AccessMode::Read) => format!("R{}", block.0),
        TraceEvent::Touch(block, AccessMode::Write) => format!("W{}", block.0),
        TraceEvent::Touch(block, AccessMode::ReadWrite) => format!("M{}", block.0),
        TraceEvent::Allocate(block) => format!("A{}", block.0),
        TraceEvent::Free(block) => format!("F{}", block.0),
        TraceEvent::Segments(bytes) => format!("S{bytes}"),
        TraceEvent::End(op) => format!("E{}", op.0),
    }
}

fn parse_event(text: &str) -> Result<TraceEvent, serde_json::Error> {
    let fault = || serde_json::Error::custom(format_args!("'{text:.20}' is no event"));
    let mut letters = text.chars();
    let letter = letters.next().ok_or_else(fault)?;
    let digits = letters.as_str();
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(fault());
    }
    if letter == 'S' {
        return digits.parse().map(TraceEvent::Segments).map_err(|_| fault());
    }
    let index: u32 = digits.parse().map_err(|_| fault())?;
    let (op, block) = (OpIndex(index), BlockIndex(index));
    Ok(match letter {
        'B' => TraceEvent::Begin(op),
        'R' => TraceEvent::Touch(block, AccessMode::Read),
        'W' => TraceEvent::Touch(block, AccessMode::Write),
        'M' => TraceEvent::Touch(block, AccessMode::ReadWrite),
        'A' => TraceEvent::Allocate(block),
        'F' => TraceEvent::Free(block),
        'E' => TraceEvent::End(op),
        _ => return Err(fault()),
    })
}

impl<'a> OpMirror<'a> {
    fn of(op: &'a TraceOp) -> OpMirror<'a> {
        OpMirror {
            name: op.name.as_str().into(),
            depth: op.depth,
            us: op.device_us,
            reads: Vec::new(),
            writes: Vec::new(),
            outputs: Vec::new(),
            replayable: op.replayable,
        }
    }

    fn into_op(self) -> TraceOp {
        TraceOp {
            name: self.name.into_owned(),
            depth: self.depth,
            device_us: self.us,
            replayable: self.replayable,
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
        }
    }

    fn into_block(self) -> TraceBlock {
        TraceBlock {
            size_bytes: self.bytes,
            origin: self.origin.into_origin(),
            name: self.name.into_owned(),
        }
    }
}
