//! Steps recorded by a framework: `meta`, `ops`, `tensors`, as JSON, mostly compressed.
//!
//! Ops come in call order with the tensors that they read, mutate and return; tensors come with
//! the op before whose record they were allocated and freed. This turns them into the calls that
//! the engine would have received.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::Path;

use serde::Deserialize;
use swap_core::{
    AccessMode, BlockIndex, OpIndex, OpName, Origin, Trace, TraceBlock, TraceEvent, TraceOp,
};

mod check;

use super::RecordedConfig;
use crate::check::check_trace;
use crate::error::FileError;
use crate::generate::mark_replayable;

#[derive(Deserialize)]
struct FileMirror<'a> {
    #[serde(default)]
    meta: MetaMirror,
    #[serde(borrow)]
    ops: Vec<OpMirror<'a>>,
    tensors: Vec<TensorMirror>,
}

#[derive(Deserialize, Default)]
struct MetaMirror {
    #[serde(default)]
    step_ms: Option<f64>,
}

#[derive(Deserialize)]
struct OpMirror<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    depth: u32,
    us: f64,
    reads: Vec<u32>,
    writes: Vec<u32>,
    outputs: Vec<u32>,
}

#[derive(Deserialize)]
struct TensorMirror {
    bytes: u64,
    alloc: i64,
    free: i64,
}

/// The trace in `json`. `path` is for messages only.
pub(super) fn read(json: &[u8], path: &Path, config: &RecordedConfig) -> Result<Trace, FileError> {
    let malformed = |source| FileError::Malformed { path: path.to_owned(), source };
    let file: FileMirror<'_> = serde_json::from_slice(json).map_err(malformed)?;
    let broken = |fault| FileError::Recorded { path: path.to_owned(), fault };
    check::check(&file).map_err(broken)?;
    let trace = Reader::new(&file, config).read();
    check_trace(&trace).map_err(|fault| FileError::Trace { path: path.to_owned(), fault })?;
    Ok(trace)
}

/// What a tensor is to the engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TensorState {
    /// In a segment, or empty.
    Small,
    /// A block that was not born yet.
    Unborn,
    Block(BlockIndex),
    Freed,
}

/// Whether an op returns memory that it leaves as it is.
fn only_allocates(name: &str) -> bool {
    name.starts_with("aten::empty") || name.starts_with("aten::new_empty")
}

struct Reader<'a> {
    file: &'a FileMirror<'a>,
    config: &'a RecordedConfig,
    /// By op: the tensors allocated and freed before its record.
    allocated: Vec<Vec<u32>>,
    freed: Vec<Vec<u32>>,
    states: Vec<TensorState>,
    /// By tensor: whether an op that can run again has made it, and nobody changed it since.
    made_again: Vec<bool>,
    open: Vec<OpIndex>,
    trace: Trace,
}

impl<'a> Reader<'a> {
    fn new(file: &'a FileMirror<'a>, config: &'a RecordedConfig) -> Reader<'a> {
        let mut allocated = vec![Vec::new(); file.ops.len() + 1];
        let mut freed = vec![Vec::new(); file.ops.len() + 1];
        for (index, tensor) in (0..).zip(&file.tensors) {
            if let Ok(op) = usize::try_from(tensor.alloc) {
                allocated[op].push(index);
            }
            if let Ok(op) = usize::try_from(tensor.free) {
                freed[op].push(index);
            }
        }
        let states = vec![TensorState::Unborn; file.tensors.len()];
        let step_us = file.ops.iter().map(|op| op.us).sum();
        let op = |op: &OpMirror<'_>| TraceOp {
            name: op.name.clone().into_owned(),
            depth: op.depth,
            device_us: if op.depth == 0 { op.us } else { 0.0 },
            ..TraceOp::default()
        };
        let ops = file.ops.iter().map(op).collect();
        let mut trace = Trace { step_us, ops, ..Trace::default() };
        mark_replayable(&mut trace);
        let (open, made_again) = (Vec::new(), vec![false; file.tensors.len()]);
        Reader { file, config, allocated, freed, states, made_again, open, trace }
    }

    fn read(mut self) -> Trace {
        self.trace.segment_bytes = self.segment_bytes();
        for (index, tensor) in self.file.tensors.iter().enumerate() {
            if !self.is_block(index) {
                self.states[index] = TensorState::Small;
            } else if tensor.alloc < 0 {
                self.add_block(index, Origin::Persistent);
            }
        }
        for index in 0..self.file.ops.len() {
            self.between(index);
            self.begin(index);
        }
        self.between(self.file.ops.len());
        let step_ms = self.file.meta.step_ms;
        self.trace.step_us = step_ms.map_or(self.trace.step_us, |step_ms| step_ms * 1e3);
        self.trace
    }

    fn is_block(&self, tensor: usize) -> bool {
        self.file.tensors[tensor].bytes >= self.config.swap_threshold_bytes.max(1)
    }

    /// What happened behind the begin of op `index - 1` and before that of op `index`.
    fn between(&mut self, index: usize) {
        let depth = self.file.ops.get(index).map_or(0, |op| op.depth as usize);
        for tensor in std::mem::take(&mut self.allocated[index]) {
            let origin = match self.open.last() {
                Some(&op) => Origin::Op(op),
                None => Origin::Before(OpIndex(index as u32)),
            };
            if self.states[tensor as usize] == TensorState::Unborn {
                let block = self.add_block(tensor as usize, origin);
                self.trace.events.push(TraceEvent::Allocate(block));
            }
        }
        while self.open.len() > depth {
            self.end();
        }
        for tensor in std::mem::take(&mut self.freed[index]) {
            if let TensorState::Block(block) = self.states[tensor as usize] {
                self.trace.events.push(TraceEvent::Free(block));
                self.states[tensor as usize] = TensorState::Freed;
            }
        }
    }

    /// Begins an op with what it reads and mutates. Files may list a tensor any number of times.
    fn begin(&mut self, index: usize) {
        let op = &self.file.ops[index];
        let number = OpIndex(index as u32);
        self.trace.events.push(TraceEvent::Begin(number));
        self.open.push(number);
        self.trace.signature = self.trace.signature.mix(OpName::hash_of(&op.name));
        let mut touched: BTreeSet<u32> = op.writes.iter().copied().collect();
        for &tensor in &op.reads {
            if touched.insert(tensor) {
                self.touch(tensor, AccessMode::Read);
            }
        }
        touched.clear();
        for &tensor in &op.writes {
            if touched.insert(tensor) {
                self.touch(tensor, AccessMode::ReadWrite);
                self.made_again[tensor as usize] = false;
            }
        }
    }

    /// Ends the innermost op: what it returns and made itself, it wrote. What an op inside it made
    /// and could make again stays that op's work.
    fn end(&mut self) {
        let op = self.open.pop().expect("the caller saw one");
        let record = &self.file.ops[op.0 as usize];
        let mut touched: BTreeSet<u32> = record.writes.iter().copied().collect();
        let outputs: &[u32] = if only_allocates(&record.name) { &[] } else { &record.outputs };
        for &tensor in outputs {
            let born = self.file.tensors[tensor as usize].alloc;
            let own = born > i64::from(op.0) && !self.made_again[tensor as usize];
            if own && touched.insert(tensor) {
                self.touch(tensor, AccessMode::Write);
                self.made_again[tensor as usize] = self.trace.ops[op.0 as usize].replayable;
            }
        }
        self.trace.events.push(TraceEvent::End(op));
    }

    fn touch(&mut self, tensor: u32, mode: AccessMode) {
        if let TensorState::Block(block) = self.states[tensor as usize] {
            self.trace.events.push(TraceEvent::Touch(block, mode));
        }
    }

    fn add_block(&mut self, tensor: usize, origin: Origin) -> BlockIndex {
        let block = BlockIndex(self.trace.blocks.len() as u32);
        let size_bytes =
            self.file.tensors[tensor].bytes.next_multiple_of(self.config.granularity_bytes);
        self.trace.signature = self.trace.signature.mix(size_bytes);
        let name = format!("tensor {tensor}");
        // Which small ones came before it, the file does not say.
        self.trace.blocks.push(TraceBlock { size_bytes, origin, name, held: false, nth: 0 });
        self.states[tensor] = TensorState::Block(block);
        block
    }

    /// Segments that hold the small tensors at their most: they never shrink in a step.
    fn segment_bytes(&self) -> u64 {
        let small = |&&tensor: &&u32| !self.is_block(tensor as usize);
        let bytes = |&tensor: &u32| self.file.tensors[tensor as usize].bytes.next_multiple_of(512);
        let persistent = (0..).zip(&self.file.tensors).filter(|(_, tensor)| tensor.alloc < 0);
        let persistent: Vec<u32> = persistent.map(|(index, _)| index).collect();
        let mut held_bytes: u64 = persistent.iter().filter(small).map(bytes).sum();
        let mut most_bytes = held_bytes;
        for (allocated, freed) in self.allocated.iter().zip(&self.freed) {
            held_bytes += allocated.iter().filter(small).map(bytes).sum::<u64>();
            most_bytes = most_bytes.max(held_bytes);
            held_bytes -= freed.iter().filter(small).map(bytes).sum::<u64>();
        }
        most_bytes.next_multiple_of(self.config.granularity_bytes)
    }
}
