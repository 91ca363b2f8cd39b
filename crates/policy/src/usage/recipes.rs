//! Recipes of a trace: which ops can run once more to make which blocks, how long, and until when.

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace, TraceEvent};

use super::apportion::op_times;
use super::{Recipe, Usage};

/// An op that has not ended yet.
struct Open {
    begin: usize,
    /// What it wrote itself. What the ops inside it write is theirs to make again.
    outputs: Vec<BlockIndex>,
}

/// What an op and the ops inside it do to blocks.
struct Effects {
    /// Read, in order of first touch.
    inputs: Vec<u32>,
    /// Allocated or overwritten, in order.
    made: Vec<u32>,
}

impl Usage {
    pub(super) fn find_recipes(&mut self, trace: &Trace) {
        let nested = trace.ops.iter().any(|op| op.replayable && op.depth > 0);
        let shares_us = if nested { op_times(trace) } else { Vec::new() };
        let mut open: Vec<Open> = Vec::new();
        for (position, event) in trace.events.iter().enumerate() {
            match *event {
                TraceEvent::Begin(_) => open.push(Open { begin: position, outputs: Vec::new() }),
                TraceEvent::Touch(block, mode) if mode.writes() => {
                    open.last_mut().expect("touches are inside ops").outputs.push(block);
                }
                TraceEvent::End(op) => {
                    let done = open.pop().expect("ops nest in a well-formed trace");
                    if trace.ops[op.0 as usize].replayable && !done.outputs.is_empty() {
                        let own_us = trace.ops[op.0 as usize].device_us;
                        let device_us = shares_us.get(op.0 as usize).copied().unwrap_or(own_us);
                        self.keep_recipe(trace, op, device_us, done, position);
                    }
                }
                _ => {}
            }
        }
    }

    /// The recipe of a replayable op, for each block that it overwrites itself. It is good until
    /// that block changes, or something that the op or an op inside it reads.
    fn keep_recipe(&mut self, trace: &Trace, op: OpIndex, device_us: f64, open: Open, end: usize) {
        let Open { begin, mut outputs } = open;
        let Some(Effects { inputs, made }) = self.effects(trace, begin, end) else { return };
        let changes = inputs.iter().map(|&input| self.first_write(trace, input, end));
        let until = changes.min().unwrap_or(trace.events.len());
        let outdated_by = trace.ops[op.0 as usize].outdated_by;
        let outdated =
            outdated_by.map_or(trace.events.len(), |by| self.op_begin[by.0 as usize] as usize);
        // What is held may be written where nobody sees it, so the engine makes nothing from it.
        let held = |block: u32| trace.blocks[block as usize].held;
        if inputs.iter().any(|&input| held(input)) {
            return;
        }
        outputs.sort_unstable();
        outputs.dedup();
        for output in outputs.into_iter().filter(|output| !held(output.0)) {
            let others = made.iter().filter(|&&block| block != output.0);
            let until = until.min(self.first_write(trace, output.0, end));
            if outdated < until {
                self.outdated.push((outdated as u32, output.0));
            }
            let recipe = Recipe {
                producer: op,
                slot: self.op_slot[op.0 as usize],
                device_us,
                inputs: inputs.clone(),
                scratch: others.map(|&block| trace.blocks[block as usize].size_bytes).collect(),
                from_event: end as u32,
                until_event: until.min(outdated) as u32,
            };
            self.recipes[output.0 as usize].push(recipe);
        }
    }

    /// What an op and the ops inside it read and make; `None` if they change what they read, as
    /// such an op cannot run twice.
    fn effects(&self, trace: &Trace, begin: usize, end: usize) -> Option<Effects> {
        let (mut inputs, mut made) = (Vec::new(), Vec::new());
        let note = |list: &mut Vec<u32>, block: BlockIndex| {
            if !list.contains(&block.0) {
                list.push(block.0);
            }
        };
        for event in &trace.events[begin..end] {
            match *event {
                TraceEvent::Allocate(block) => note(&mut made, block),
                TraceEvent::Touch(block, mode) => {
                    // What it made itself is no input.
                    let first = self.uses(block.0 as usize)[0].event as usize;
                    let persistent = trace.blocks[block.0 as usize].origin == Origin::Persistent;
                    let own = first > begin && !persistent;
                    match mode {
                        AccessMode::Write => note(&mut made, block),
                        AccessMode::ReadWrite if !own => return None,
                        AccessMode::Read if !own => note(&mut inputs, block),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        let changes = inputs.iter().any(|input| made.contains(input));
        (!changes).then_some(Effects { inputs, made })
    }

    /// The first event after `after` that changes a block, or the number of events.
    fn first_write(&self, trace: &Trace, block: u32, after: usize) -> usize {
        let index = block as usize;
        let next = self.uses(index).partition_point(|use_| use_.event as usize <= after);
        let place = self.uses_start[index] as usize + next;
        let found = next < self.uses(index).len();
        if found { self.next_write[place] as usize } else { trace.events.len() }
    }
}
