//! Activation checkpointing: each layer keeps its inputs and outputs alone, and backward runs the
//! layer's forward once more before its own first op. That changes the calls of the step, so this
//! is no plan but another step: what the framework would run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use swap_core::{BlockIndex, OpIndex, Origin, Trace, TraceBlock, TraceEvent, TraceOp};

use super::stages::{Part, Stages};
use super::{BaselineRun, judge};
use crate::assemble::assemble;
use crate::host::unlimited_us;
use crate::machine::Machine;
use crate::simulate::ReplaySpan;
use crate::usage::{NONE, Usage};

pub(super) fn run<'a>(trace: &'a Trace, machine: &Machine) -> BaselineRun<'a> {
    let usage = Usage::new(trace);
    let stages = Stages::by_layer(trace, &usage);
    let layers = layers(trace, &usage, &stages);
    if layers.is_empty() {
        return judge(Cow::Borrowed(trace), &usage, assemble(trace, Vec::new()), machine);
    }
    let mut writer = Writer::new(trace, &usage, &layers);
    writer.write();
    let Writer { made, again, .. } = writer;
    let usage = Usage::new(&made);
    let plan = assemble(&made, Vec::new());
    let mut run = judge(Cow::Owned(made), &usage, plan, machine);
    let simulation = &mut run.simulation;
    for (op, block) in again {
        simulation.recomputed_ops += 1;
        simulation.recomputed_us += run.trace.ops[op.0 as usize].device_us;
        let span = simulation.ops[op.0 as usize];
        simulation.replays.push(ReplaySpan { block, op, span });
    }
    run
}

/// A layer that keeps little.
#[derive(Clone, Debug)]
struct Layer {
    /// Its events.
    from: usize,
    to: usize,
    /// The event before which it runs again.
    again: usize,
    /// Blocks that it drops, each with the event behind which it does.
    dropped: BTreeMap<u32, usize>,
}

fn layers(trace: &Trace, usage: &Usage, stages: &Stages) -> Vec<Layer> {
    let first_event =
        |slot: usize| usage.event_slot.partition_point(|&found| (found as usize) < slot);
    let mut layers = Vec::new();
    for &(first, end) in &stages.layers {
        let (from, to) = (first_event(first), first_event(end));
        let mut dropped = BTreeMap::new();
        let mut again_slot = usize::MAX;
        for event in &trace.events[from..to] {
            let TraceEvent::Allocate(block) = *event else { continue };
            if let Some((last, back)) = waits(usage, stages, block.0, end) {
                let op = usage.slots[last as usize];
                dropped.insert(block.0, usage.op_end[op.0 as usize] as usize);
                again_slot = again_slot.min(back as usize);
            }
        }
        if !dropped.is_empty() {
            layers.push(Layer { from, to, again: first_event(again_slot), dropped });
        }
    }
    layers
}

/// If forward uses a block last within its layer and then backward needs it: the slots of both.
fn waits(usage: &Usage, stages: &Stages, block: u32, end: usize) -> Option<(u32, u32)> {
    let uses = usage.uses(block as usize);
    let after = uses.partition_point(|use_| (use_.slot as usize) < end);
    let (last, next) = (uses[..after].last()?, uses.get(after)?);
    let backward = stages.part.get(next.slot as usize) == Some(&Part::Backward);
    backward.then_some((last.slot, next.slot))
}

/// Writes the step anew.
struct Writer<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    layers: &'a [Layer],
    made: Trace,
    /// What each op and block of the old step is called now.
    ops: Vec<OpIndex>,
    blocks: Vec<BlockIndex>,
    /// By block: the event up to which it must live to run a layer again.
    needed_until: Vec<usize>,
    /// Frees that were put off, by the event before which they come.
    late: BTreeMap<usize, Vec<u32>>,
    /// Ops that run again, each with a block of its layer.
    again: Vec<(OpIndex, BlockIndex)>,
}

impl<'a> Writer<'a> {
    fn new(trace: &'a Trace, usage: &'a Usage, layers: &'a [Layer]) -> Writer<'a> {
        let made = Trace {
            signature: trace.signature,
            segment_bytes: trace.segment_bytes,
            host_costs: trace.host_costs,
            ..Trace::default()
        };
        let unknown = BlockIndex(NONE);
        let mut writer = Writer {
            trace,
            usage,
            layers,
            made,
            ops: vec![OpIndex(NONE); trace.ops.len()],
            blocks: vec![unknown; trace.blocks.len()],
            needed_until: vec![0; trace.blocks.len()],
            late: BTreeMap::new(),
            again: Vec::new(),
        };
        for layer in layers {
            for event in &trace.events[layer.from..layer.to] {
                if let TraceEvent::Touch(block, _) = *event
                    && writer.born(block) < layer.from
                {
                    let until = &mut writer.needed_until[block.0 as usize];
                    *until = layer.again.max(*until);
                }
            }
        }
        writer
    }

    /// The event that makes a block; 0 for those that lived before.
    fn born(&self, block: BlockIndex) -> usize {
        let persistent = self.trace.blocks[block.0 as usize].origin == Origin::Persistent;
        let first = self.usage.uses(block.0 as usize).first();
        if persistent { 0 } else { first.map_or(0, |use_| use_.event as usize) }
    }

    fn write(&mut self) {
        for (index, block) in self.trace.blocks.iter().enumerate() {
            if block.origin == Origin::Persistent {
                self.blocks[index] = self.add_block(index, Origin::Persistent);
            }
        }
        let mut drops: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        for layer in self.layers {
            for (&block, &event) in &layer.dropped {
                drops.entry(event).or_default().push(block);
            }
        }
        let mut open = 0;
        for event in 0..self.trace.events.len() {
            for layer in self.layers.iter().filter(|layer| layer.again == event) {
                self.run_again(layer);
            }
            for block in self.late.remove(&event).unwrap_or_default() {
                self.free(block);
            }
            self.copy(event, &mut open);
            for block in drops.remove(&event).unwrap_or_default() {
                self.free(block);
            }
        }
        self.made.renumber_outdated(&self.ops);
        self.made.step_us = unlimited_us(&self.made);
    }

    fn copy(&mut self, event: usize, open: &mut u32) {
        if let TraceEvent::Free(block) = self.trace.events[event] {
            let until = self.needed_until[block.0 as usize];
            if until > event {
                self.late.entry(until).or_default().push(block.0);
                return;
            }
        }
        self.push(self.trace.events[event], open);
    }

    /// Runs a layer's forward as far as it makes what was dropped, and frees the rest of it.
    fn run_again(&mut self, layer: &Layer) {
        let made_here = |block: &BlockIndex| layer.from <= self.born(*block);
        let events = layer.from..self.last_needed(layer);
        let mut alive: Vec<u32> = Vec::new();
        let inner: Vec<TraceEvent> = self.trace.events[events].to_vec();
        let kept: Vec<(usize, BlockIndex)> = inner
            .iter()
            .filter_map(|event| match event {
                TraceEvent::Allocate(block) if made_here(block) => Some(block.0 as usize),
                _ => None,
            })
            .filter(|&block| !layer.dropped.contains_key(&(block as u32)))
            .map(|block| (block, self.blocks[block]))
            .collect();
        let mut open = 0;
        for event in inner {
            match event {
                TraceEvent::Segments(_) => continue,
                TraceEvent::Free(block) => {
                    // What older layers made is freed where it was before.
                    let Some(place) = alive.iter().position(|&found| found == block.0) else {
                        continue;
                    };
                    alive.remove(place);
                }
                TraceEvent::Allocate(block) => alive.push(block.0),
                TraceEvent::Begin(_) if open == 0 => {
                    let block = *layer.dropped.keys().next().expect("a layer drops something");
                    let op = OpIndex(self.made.ops.len() as u32);
                    self.again.push((op, BlockIndex(block)));
                }
                _ => {}
            }
            self.push(event, &mut open);
        }
        for block in alive.into_iter().filter(|block| !layer.dropped.contains_key(block)) {
            self.free(block);
        }
        // The outputs that the layer kept are still those of the first run.
        for (block, index) in kept {
            self.blocks[block] = index;
        }
    }

    /// The event behind the outermost op that makes the last dropped block of a layer.
    fn last_needed(&self, layer: &Layer) -> usize {
        let uses = layer.dropped.keys().flat_map(|&block| self.usage.uses(block as usize));
        let writes = uses.filter(|use_| {
            (use_.event as usize) < layer.to && use_.mode.is_none_or(swap_core::AccessMode::writes)
        });
        let slot = writes.map(|use_| use_.slot).max().unwrap_or(0);
        self.usage.op_end[self.usage.slots[slot as usize].0 as usize] as usize + 1
    }

    fn free(&mut self, block: u32) {
        self.made.events.push(TraceEvent::Free(self.blocks[block as usize]));
    }

    fn add_block(&mut self, index: usize, origin: Origin) -> BlockIndex {
        let old = &self.trace.blocks[index];
        let block = TraceBlock { origin, ..old.clone() };
        self.made.blocks.push(block);
        BlockIndex(self.made.blocks.len() as u32 - 1)
    }

    /// Adds one event of the old step under its new names.
    fn push(&mut self, event: TraceEvent, open: &mut u32) {
        let event = match event {
            TraceEvent::Begin(op) => {
                let old = &self.trace.ops[op.0 as usize];
                let new = OpIndex(self.made.ops.len() as u32);
                self.ops[op.0 as usize] = new;
                self.made.ops.push(TraceOp { depth: *open, ..old.clone() });
                *open += 1;
                TraceEvent::Begin(new)
            }
            TraceEvent::End(op) => {
                *open -= 1;
                TraceEvent::End(self.ops[op.0 as usize])
            }
            TraceEvent::Allocate(block) => {
                let index = block.0 as usize;
                let origin = match self.trace.blocks[index].origin {
                    Origin::Op(op) => Origin::Op(self.ops[op.0 as usize]),
                    Origin::Before(_) => Origin::Before(OpIndex(self.made.ops.len() as u32)),
                    Origin::Persistent => Origin::Persistent,
                };
                self.blocks[index] = self.add_block(index, origin);
                TraceEvent::Allocate(self.blocks[index])
            }
            TraceEvent::Free(block) => TraceEvent::Free(self.blocks[block.0 as usize]),
            TraceEvent::Touch(block, mode) => {
                TraceEvent::Touch(self.blocks[block.0 as usize], mode)
            }
            TraceEvent::Segments(bytes) => TraceEvent::Segments(bytes),
        };
        self.made.events.push(event);
    }
}
