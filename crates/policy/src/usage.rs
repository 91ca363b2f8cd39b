//! Who uses what, and when: the lookups on a trace that simulator and planner share.
//!
//! The unit of planning is the *slot*: an outermost op together with the calls between the op
//! before it and its own begin. Calls after the last op form one more slot that has no op.
//!
//! Memory is counted in *rows*: stretches of a slot in which memory first only grows and then only
//! shrinks, so that what lives at any time of a row and is not freed before it lives at its peak.
//! An op's begin starts a row too, because blocks come back there.

mod apportion;
mod recipes;

pub(crate) use apportion::callers;
use swap_core::{AccessMode, OpIndex, Origin, Trace, TraceEvent};

use crate::check::check_trace;
use crate::host::outermost_us;

/// Marks "no op" and "no block" in packed tables.
pub(crate) const NONE: u32 = u32::MAX;

/// One event that needs a block's bytes or makes the block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Use {
    pub(crate) event: u32,
    pub(crate) slot: u32,
    /// `None` for the allocation.
    pub(crate) mode: Option<AccessMode>,
}

/// How to make a block once more.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recipe {
    /// The op that wrote it.
    pub(crate) producer: OpIndex,
    /// The slot of that op.
    pub(crate) slot: u32,
    /// What the op takes; of a nested one, its share of the time of the ops around it.
    pub(crate) device_us: f64,
    /// What that op reads, in order of first touch.
    pub(crate) inputs: Vec<u32>,
    /// What else it writes, its workspaces included, in bytes: a replay puts all that elsewhere.
    pub(crate) scratch: Vec<u64>,
    /// The first event at which the op has done its work.
    pub(crate) from_event: u32,
    /// The event that changes the block or one that the op reads; the number of events if there is
    /// none. From then on the op would make something else.
    pub(crate) until_event: u32,
}

/// Lookups on one trace.
#[derive(Clone, Debug)]
pub(crate) struct Usage {
    /// Outermost ops in order.
    pub(crate) slots: Vec<OpIndex>,
    /// How long each slot takes with memory for everything, what the device waits for the host
    /// included, in microseconds.
    pub(crate) slot_us: Vec<f64>,
    /// The slot of each event.
    pub(crate) event_slot: Vec<u32>,
    /// The row of each event.
    pub(crate) event_row: Vec<u32>,
    /// The slot of each row.
    pub(crate) row_slot: Vec<u32>,
    /// The first row of each slot, and the number of rows.
    pub(crate) slot_row: Vec<u32>,
    /// The row with which each slot's op begins; the number of rows for the slot without op.
    pub(crate) begin_row: Vec<u32>,
    /// The slot of each op.
    pub(crate) op_slot: Vec<u32>,
    /// The event at which each op begins.
    pub(crate) op_begin: Vec<u32>,
    /// The event at which each op ends.
    pub(crate) op_end: Vec<u32>,
    /// Uses by block, in order.
    uses: Vec<Use>,
    uses_start: Vec<u32>,
    /// By use: the event of the next write from it on, or the number of events.
    next_write: Vec<u32>,
    /// The event that frees each block, or [`NONE`].
    pub(crate) freed: Vec<u32>,
    /// Which block of the next step each block is, or [`NONE`].
    pub(crate) successor: Vec<u32>,
    /// Which block of the last step each block is, or [`NONE`].
    pub(crate) predecessor: Vec<u32>,
    /// Recipes by block, in order of time.
    pub(crate) recipes: Vec<Vec<Recipe>>,
    /// Beginnings of ops that change something small, each with a block whose recipe reads that.
    outdated: Vec<(u32, u32)>,
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
            slot_us: outermost_us(trace),
            event_slot: Vec::with_capacity(trace.events.len()),
            event_row: Vec::with_capacity(trace.events.len()),
            row_slot: Vec::new(),
            slot_row: Vec::new(),
            begin_row: Vec::new(),
            op_slot: vec![0; trace.ops.len()],
            op_begin: vec![0; trace.ops.len()],
            op_end: vec![0; trace.ops.len()],
            uses: Vec::new(),
            uses_start: Vec::new(),
            next_write: Vec::new(),
            freed: vec![NONE; trace.blocks.len()],
            successor: Vec::new(),
            predecessor: Vec::new(),
            recipes: vec![Vec::new(); trace.blocks.len()],
            outdated: Vec::new(),
        };
        usage.find_slots(trace);
        usage.find_rows(trace);
        usage.find_uses(trace);
        usage.find_successors(trace);
        usage.find_recipes(trace);
        usage.outdated.sort_unstable();
        usage
    }

    /// Number of slots, the one after the last op included.
    pub(crate) fn slot_count(&self) -> usize {
        self.slots.len() + 1
    }

    pub(crate) fn uses(&self, block: usize) -> &[Use] {
        &self.uses[self.uses_start[block] as usize..self.uses_start[block + 1] as usize]
    }

    /// The next event from `event` on that touches the block; for blocks that lived at the start
    /// counted on into the next step. `None` if there is none.
    pub(crate) fn next_use(&self, block: usize, event: usize, persistent: bool) -> Option<u64> {
        let uses = self.uses(block);
        let next = uses.partition_point(|use_| (use_.event as usize) < event);
        let later = uses.get(next).map(|use_| u64::from(use_.event));
        let first = || uses.first().filter(|_| persistent);
        later.or_else(|| first().map(|use_| u64::from(use_.event) + self.event_slot.len() as u64))
    }

    /// The recipe that would make the block's present bytes at an event, and its number, if all
    /// that it reads is there.
    pub(crate) fn recipe_at(&self, block: usize, event: usize) -> Option<(usize, &Recipe)> {
        let recipes = &self.recipes[block];
        let after = recipes.partition_point(|recipe| recipe.from_event as usize <= event);
        let number = after.checked_sub(1)?;
        let recipe = &recipes[number];
        ((recipe.until_event as usize) > event).then_some((number, recipe))
    }

    /// The blocks of which a recipe ends with an event, as something small changes there.
    pub(crate) fn outdated_at(&self, event: usize) -> impl Iterator<Item = usize> + '_ {
        let first = self.outdated.partition_point(|&(at, _)| (at as usize) < event);
        let here = self.outdated[first..].iter().take_while(move |&&(at, _)| at as usize == event);
        here.map(|&(_, block)| block as usize)
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
            if let TraceEvent::End(op) = event {
                self.op_end[op.0 as usize] = position as u32;
                depth -= 1;
            }
        }
    }

    fn find_rows(&mut self, trace: &Trace) {
        let mut shrunk = false;
        for (position, event) in trace.events.iter().enumerate() {
            let slot = self.event_slot[position];
            let begins = self
                .slots
                .get(slot as usize)
                .is_some_and(|op| self.op_begin[op.0 as usize] as usize == position);
            let grows = matches!(event, TraceEvent::Allocate(_) | TraceEvent::Segments(_));
            if self.slot_row.len() as u32 <= slot {
                self.slot_row.push(self.row_slot.len() as u32);
                self.row_slot.push(slot);
                shrunk = false;
            } else if begins || (shrunk && grows) {
                self.row_slot.push(slot);
                shrunk = false;
            }
            if begins {
                self.begin_row.push(self.row_slot.len() as u32 - 1);
            }
            shrunk |= matches!(event, TraceEvent::Free(_));
            self.event_row.push(self.row_slot.len() as u32 - 1);
        }
        // The slot after the last op is there even if nothing happens in it.
        if self.slot_row.len() < self.slot_count() {
            self.slot_row.push(self.row_slot.len() as u32);
            self.row_slot.push(self.slots.len() as u32);
        }
        self.slot_row.push(self.row_slot.len() as u32);
        self.begin_row.push(self.row_slot.len() as u32);
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
        self.next_write = vec![trace.events.len() as u32; self.uses.len()];
        for block in 0..trace.blocks.len() {
            let mut next = trace.events.len() as u32;
            for place in (self.uses_start[block]..self.uses_start[block + 1]).rev() {
                let use_ = self.uses[place as usize];
                if use_.mode.is_some_and(AccessMode::writes) {
                    next = use_.event;
                }
                self.next_write[place as usize] = next;
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
}
