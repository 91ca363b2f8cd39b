//! Who uses what, and when: the lookups on a trace that simulator and planner share.
//!
//! The unit of planning is the *slot*: an outermost op together with the calls between the op
//! before it and its own begin. Calls after the last op form one more slot that has no op.

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace, TraceEvent};

use crate::check::check_trace;

/// Marks "no op" and "no block" in packed tables.
pub(crate) const NONE: u32 = u32::MAX;

/// One event that needs a block's bytes or makes the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    pub(crate) event: u32,
    pub(crate) slot: u32,
    /// Nothing for the allocation.
    pub(crate) mode: Option<AccessMode>,
}

/// How to make a block once more.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// The op that wrote it.
    pub(crate) producer: OpIndex,
    /// The slot of that op.
    pub(crate) slot: u32,
    /// What that op read, in order of index.
    pub(crate) inputs: Vec<BlockIndex>,
    /// The first event at which the op has done its work.
    pub(crate) from_event: u32,
    /// The event that changes or frees an input or changes the block; the number of events if
    /// there is none. From then on the op would make something else.
    pub(crate) until_event: u32,
}

/// Lookups on one trace.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// Outermost ops in order.
    pub(crate) slots: Vec<OpIndex>,
    /// The slot of each event.
    pub(crate) event_slot: Vec<u32>,
    /// The slot of each op.
    pub(crate) op_slot: Vec<u32>,
    /// The event at which each op begins.
    pub(crate) op_begin: Vec<u32>,
    /// Uses by block, in order.
    uses: Vec<Use>,
    uses_start: Vec<u32>,
    /// The event that frees each block, or [`NONE`].
    pub(crate) freed: Vec<u32>,
    /// Which block of the next step each block is, or [`NONE`].
    pub(crate) successor: Vec<u32>,
    /// Which block of the last step each block is, or [`NONE`].
    pub(crate) predecessor: Vec<u32>,
    /// Recipe by block.
    pub(crate) recipes: Vec<Option<Recipe>>,
    /// Blocks whose recipe reads a block.
    pub(crate) dependents: Vec<Vec<BlockIndex>>,
}

impl Usage {
    /// # Panics
    /// If the trace is not well formed.
    pub(crate) fn new(trace: &Trace) -> Usage {
        if let Err(fault) = check_trace(trace) {
            panic!("the trace is not well formed: {fault}");
        }
        let mut usage = Usage {
            slots: Vec::new(),
            event_slot: Vec::with_capacity(trace.events.len()),
            op_slot: vec![0; trace.ops.len()],
            op_begin: vec![0; trace.ops.len()],
            uses: Vec::new(),
            uses_start: Vec::new(),
            freed: vec![NONE; trace.blocks.len()],
            successor: Vec::new(),
            predecessor: Vec::new(),
            recipes: Vec::new(),
            dependents: vec![Vec::new(); trace.blocks.len()],
        };
        usage.find_slots(trace);
        usage.find_uses(trace);
        usage.find_successors(trace);
        usage.find_recipes(trace);
        usage
    }

    /// Number of slots, the one after the last op included.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len() + 1
    }

    pub(crate) fn uses(&self, block: usize) -> &[Use] {
        &self.uses[self.uses_start[block] as usize..self.uses_start[block + 1] as usize]
    }

    /// The next event after `event` that uses the block, counted on into the next step; nothing
    /// if there is none.
    pub(crate) fn next_use(&self, block: usize, event: usize) -> Option<u64> {
        let uses = self.uses(block);
        let next = uses.partition_point(|use_| use_.event as usize <= event);
        if let Some(use_) = uses.get(next) {
            return Some(u64::from(use_.event));
        }
        if self.freed[block] != NONE {
            return None;
        }
        let again = self.successor[block];
        if again == NONE {
            return None;
        }
        let first = self.uses(again as usize).first()?;
        Some(u64::from(first.event) + self.event_slot.len() as u64)
    }

    /// What happens inside an op belongs to it, what happens between two ops to the later one.
    fn find_slots(&mut self, trace: &Trace) {
        let mut depth = 0;
        for (position, &event) in trace.events.iter().enumerate() {
            if let TraceEvent::Begin(op) = event {
                self.op_begin[op.0 as usize] = position as u32;
                if depth == 0 {
                    self.slots.push(op);
                }
                depth += 1;
                self.op_slot[op.0 as usize] = self.slots.len() as u32 - 1;
            }
            let inside = u32::from(depth > 0);
            self.event_slot.push(self.slots.len() as u32 - inside);
            if let TraceEvent::End(_) = event {
                depth -= 1;
            }
        }
    }

    fn find_uses(&mut self, trace: &Trace) {
        let mut counts = vec![0_u32; trace.blocks.len() + 1];
        let block_of = |event: &TraceEvent| match *event {
            TraceEvent::Touch(block, mode) => Some((block, Some(mode))),
            TraceEvent::Allocate(block) => Some((block, None)),
            _ => None,
        };
        for (position, event) in trace.events.iter().enumerate() {
            if let Some((block, _)) = block_of(event) {
                counts[block.0 as usize + 1] += 1;
            }
            if let TraceEvent::Free(block) = event {
                self.freed[block.0 as usize] = position as u32;
            }
        }
        for index in 1..counts.len() {
            counts[index] += counts[index - 1];
        }
        self.uses_start.clone_from(&counts);
        let blank = Use { event: 0, slot: 0, mode: None };
        self.uses = vec![blank; *counts.last().expect("one more than the blocks") as usize];
        for (position, event) in trace.events.iter().enumerate() {
            if let Some((block, mode)) = block_of(event) {
                let place = &mut counts[block.0 as usize];
                let slot = self.event_slot[position];
                self.uses[*place as usize] = Use { event: position as u32, slot, mode };
                *place += 1;
            }
        }
    }

    /// The blocks alive at the step's end are the next step's persistent ones, in order. Where
    /// their sizes do not match, the step was no steady one: then blocks stay themselves.
    fn find_successors(&mut self, trace: &Trace) {
        let count = trace.blocks.len();
        let persistent = |index: &usize| trace.blocks[*index].origin == Origin::Persistent;
        let first: Vec<usize> = (0..count).filter(persistent).collect();
        let last: Vec<usize> = (0..count).filter(|&index| self.freed[index] == NONE).collect();
        let size = |&index: &usize| trace.blocks[index].size_bytes;
        let steady = first.iter().map(size).eq(last.iter().map(size));
        self.successor = vec![NONE; count];
        self.predecessor = vec![NONE; count];
        if steady {
            for (&from, &to) in last.iter().zip(&first) {
                self.successor[from] = to as u32;
                self.predecessor[to] = from as u32;
            }
        } else {
            for index in last.into_iter().filter(persistent) {
                self.successor[index] = index as u32;
                self.predecessor[index] = index as u32;
            }
        }
    }

    fn find_recipes(&mut self, trace: &Trace) {
        let ends = op_ends(trace);
        let mut recipes = vec![None; trace.blocks.len()];
        let mut position = 0;
        while position < trace.events.len() {
            let TraceEvent::Begin(op) = trace.events[position] else {
                position += 1;
                continue;
            };
            let end = ends[op.0 as usize];
            if trace.ops[op.0 as usize].replayable {
                if let Some((block, recipe)) = self.recipe_of(trace, op, position, end) {
                    recipes[block.0 as usize] = Some(recipe);
                }
                position = end;
            }
            position += 1;
        }
        self.recipes = recipes;
        for (index, recipe) in self.recipes.iter().enumerate() {
            for input in recipe.iter().flat_map(|recipe| &recipe.inputs) {
                self.dependents[input.0 as usize].push(BlockIndex(index as u32));
            }
        }
    }

    /// The recipe of a replayable op: it must write just one swappable block, one of this step
    /// that nobody used before, and change nothing else.
    fn recipe_of(
        &self,
        trace: &Trace,
        op: OpIndex,
        begin: usize,
        end: usize,
    ) -> Option<(BlockIndex, Recipe)> {
        let mut inputs = Vec::new();
        let mut output = None;
        for event in &trace.events[begin..end] {
            let TraceEvent::Touch(block, mode) = *event else {
                if let TraceEvent::Allocate(block) = *event {
                    if output.is_some_and(|other| other != block) {
                        return None;
                    }
                    output = Some(block);
                }
                continue;
            };
            if mode.writes() {
                if output.is_some_and(|other| other != block) {
                    return None;
                }
                output = Some(block);
            } else {
                inputs.push(block);
            }
        }
        let output = output?;
        inputs.sort_unstable();
        inputs.dedup();
        inputs.retain(|&input| input != output);
        let uses = self.uses(output.0 as usize);
        let fresh = uses
            .iter()
            .take_while(|use_| (use_.event as usize) < end)
            .find(|use_| use_.mode.is_some())
            .is_none_or(|first| {
                let inside = (uses[0].event as usize) > begin;
                (first.event as usize) > begin && (inside || first.mode == Some(AccessMode::Write))
            });
        if trace.blocks[output.0 as usize].origin == Origin::Persistent || !fresh {
            return None;
        }
        let spoiled = |block: BlockIndex, after: usize| self.first_change(trace, block, after);
        let until = inputs.iter().map(|&input| spoiled(input, begin)).min();
        let own = uses
            .iter()
            .find(|use_| use_.event as usize > end && use_.mode.is_some_and(AccessMode::writes));
        let own = own.map_or(trace.events.len(), |use_| use_.event as usize);
        Some((
            output,
            Recipe {
                producer: op,
                slot: self.op_slot[op.0 as usize],
                inputs,
                from_event: end as u32,
                until_event: until.unwrap_or(trace.events.len()).min(own) as u32,
            },
        ))
    }

    fn first_change(&self, trace: &Trace, block: BlockIndex, after: usize) -> usize {
        let index = block.0 as usize;
        let write = self
            .uses(index)
            .iter()
            .find(|use_| use_.event as usize > after && use_.mode.is_some_and(AccessMode::writes));
        let write = write.map_or(trace.events.len(), |use_| use_.event as usize);
        let freed = self.freed[index];
        if freed == NONE { write } else { write.min(freed as usize) }
    }
}

fn op_ends(trace: &Trace) -> Vec<usize> {
    let mut ends = vec![0; trace.ops.len()];
    for (position, event) in trace.events.iter().enumerate() {
        if let TraceEvent::End(op) = event {
            ends[op.0 as usize] = position;
        }
    }
    ends
}
