//! Recipes of a trace: which ops can run once more to make which blocks, how long, and until when.

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace, TraceEvent};

use super::apportion::op_times;
use super::{NONE, Recipe, Usage};

/// An op that has not ended yet.
struct Open {
    begin: usize,
    /// What it wrote itself. What the ops inside it write is theirs to make again.
    outputs: Vec<BlockIndex>,
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
    /// one of the blocks of the op, or of an op inside it, changes or is freed.
    fn keep_recipe(&mut self, trace: &Trace, op: OpIndex, device_us: f64, open: Open, end: usize) {
        let Open { begin, mut outputs } = open;
        let mut touches = Vec::new();
        let mut until = trace.events.len();
        for event in &trace.events[begin..end] {
            if let TraceEvent::Touch(block, mode) = *event {
                // An op that changes its input cannot run twice; but what it made itself is none.
                let own = self.uses(block.0 as usize)[0].event as usize > begin;
                let own = own && trace.blocks[block.0 as usize].origin != Origin::Persistent;
                if mode == AccessMode::ReadWrite && !own {
                    return;
                }
                until = until.min(self.first_change(trace, block, end));
                touches.push((block, if mode.writes() { AccessMode::Write } else { mode }));
            }
        }
        let recipe = Recipe {
            producer: op,
            slot: self.op_slot[op.0 as usize],
            device_us,
            touches,
            from_event: end as u32,
            until_event: until as u32,
        };
        outputs.sort_unstable();
        outputs.dedup();
        for output in outputs {
            self.recipes[output.0 as usize].push(recipe.clone());
        }
    }

    /// The first event after `after` that changes or frees a block.
    fn first_change(&self, trace: &Trace, block: BlockIndex, after: usize) -> usize {
        let index = block.0 as usize;
        let next = self.uses(index).partition_point(|use_| use_.event as usize <= after);
        let place = self.uses_start[index] as usize + next;
        let found = next < self.uses(index).len();
        let write = if found { self.next_write[place] as usize } else { trace.events.len() };
        let freed = self.freed[index];
        // A block may be freed by the very op that touches it.
        if freed == NONE { write } else { write.min(freed as usize) }
    }
}
