//! A plan made ready for execution, with the next uses that rescues ask for.

use vmem::Lot;

use crate::plan::{Action, ActionKind, Phase, Plan, PlanBlock};
use crate::trace::{BlockIndex, OpIndex, Origin, Trace, TraceEvent};

/// A plan and what the recorded step tells beyond it.
#[derive(Debug)]
pub struct Orders {
    /// By op, then phase.
    actions: Vec<Action>,
    blocks: Vec<PlanBlock>,
    uses: Vec<Vec<u64>>,
    event_count: u64,
    /// Ops whose outputs are dropped, in order.
    droppers: Vec<OpIndex>,
    /// Blocks are dropped that no op of the step allocated: any op may have written them.
    drops_others: bool,
    /// Where blocks lie, by their place in the step.
    lots: Vec<Option<Lot>>,
}

impl Orders {
    /// Orders without next uses: rescues choose by least recent use.
    pub fn new(plan: &Plan) -> Orders {
        let mut actions = plan.actions.clone();
        actions.sort_by_key(|action| (action.op, action.phase));
        let mut blocks = plan.blocks.clone();
        blocks.sort_by_key(|block| block.index);
        let mut droppers = Vec::new();
        let mut drops_others = false;
        for action in actions.iter().filter(|action| action.kind == ActionKind::Discard) {
            let found = blocks.binary_search_by_key(&action.block, |block| block.index);
            match found.map(|found| blocks[found].origin) {
                Ok(Origin::Op(op)) => droppers.push(op),
                _ => drops_others = true,
            }
        }
        droppers.sort_unstable();
        Orders {
            actions,
            blocks,
            uses: Vec::new(),
            event_count: 0,
            droppers,
            drops_others,
            lots: Vec::new(),
        }
    }

    /// Whether the plan may drop what this op writes.
    pub(crate) fn drops_output_of(&self, op: OpIndex) -> bool {
        self.drops_others || self.droppers.binary_search(&op).is_ok()
    }

    /// Orders for steps like `trace`: rescues choose by farthest next use.
    pub fn with_trace(plan: &Plan, trace: &Trace) -> Orders {
        let mut uses = vec![Vec::new(); trace.blocks.len()];
        for (position, event) in (0..).zip(&trace.events) {
            if let TraceEvent::Touch(block, _) = event {
                uses[block.0 as usize].push(position);
            }
        }
        let event_count = trace.events.len() as u64;
        Orders { uses, event_count, ..Orders::new(plan) }
    }

    /// Orders under which blocks lie in lots, by their place in the step. Those without one have
    /// chunks of their own.
    pub fn with_lots(self, lots: Vec<Option<Lot>>) -> Orders {
        Orders { lots, ..self }
    }

    /// All lots.
    pub(crate) fn lots(&self) -> Vec<Lot> {
        self.lots.iter().copied().flatten().collect()
    }

    /// Where a block lies.
    pub(crate) fn lot(&self, index: BlockIndex) -> Option<Lot> {
        *self.lots.get(index.0 as usize)?
    }

    /// The actions of one op boundary, in their order. Not all that sort before them are over: an
    /// op ends after the ops inside it have begun.
    pub(crate) fn actions_at(&self, op: OpIndex, phase: Phase) -> &[Action] {
        let start = self.actions.partition_point(|action| (action.op, action.phase) < (op, phase));
        let actions = &self.actions[start..];
        let count = actions.partition_point(|action| (action.op, action.phase) == (op, phase));
        &actions[..count]
    }

    /// Whether the plan knows the block by this size and origin.
    pub(crate) fn matches(&self, index: BlockIndex, size_bytes: u64, origin: Origin) -> bool {
        self.blocks.binary_search_by_key(&index, |block| block.index).is_ok_and(|found| {
            let block = &self.blocks[found];
            block.size_bytes == size_bytes && block.origin == origin
        })
    }

    /// The position of the event that next touches the block, from `position` on; past the end
    /// for blocks of the next step, [`u64::MAX`] for never. `None` if the trace is not known.
    pub(crate) fn next_use(&self, block: BlockIndex, position: u64, origin: Origin) -> Option<u64> {
        if self.event_count == 0 {
            return None;
        }
        let Some(uses) = self.uses.get(block.0 as usize) else { return Some(u64::MAX) };
        let next = uses.partition_point(|&used| used < position);
        let wrapped = || match origin {
            Origin::Persistent => uses.first().map(|first| first + self.event_count),
            _ => None,
        };
        Some(uses.get(next).copied().or_else(wrapped).unwrap_or(u64::MAX))
    }
}
