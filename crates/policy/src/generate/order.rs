//! The orders of a plan: what is chosen, and when its moves are issued, as actions.

use std::collections::BTreeMap;

use swap_core::{Action, ActionKind, BlockIndex, OpIndex, Phase, Plan, Trace};

use super::select::{Choice, Mode, Selection, gap_recipe};
use crate::assemble::assemble;
use crate::usage::Usage;

/// The begin or the end of a slot's op. Slots of the next step come after those of this one; the
/// slot before the first one stands for the step's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Moment(i64);

impl Moment {
    pub(super) fn begin_of(slot: i64) -> Moment {
        Moment(2 * slot)
    }

    pub(super) fn end_of(slot: i64) -> Moment {
        Moment(2 * slot + 1)
    }

    pub(super) fn moved(self, count: i64) -> Moment {
        Moment(self.0 + count)
    }

    pub(super) fn slot(self) -> i64 {
        self.0.div_euclid(2)
    }

    pub(super) fn is_begin(self) -> bool {
        self.0 % 2 == 0
    }
}

/// When the moves of a swap are issued.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Times {
    /// When the block leaves.
    pub(super) leave: Moment,
    /// The slot by whose begin it should have left.
    pub(super) due: i64,
    /// The slot at whose begin it is called back, if it returns.
    pub(super) back: i64,
}

/// An action, and its place among those of the same moment.
type Order = ((u8, u64), Action);

/// The plan of what is chosen and when it is issued, by choice.
pub(super) fn plan_of(
    trace: &Trace,
    usage: &Usage,
    selection: &Selection,
    times: &[Times],
) -> Plan {
    let orderer = Orderer { usage, selection };
    let mut orders = Vec::new();
    for (choice, times) in selection.choices.iter().zip(times) {
        if choice.stands && choice.mode == Mode::Swap {
            orders.push(orderer.leave(choice, times));
            orders.extend(choice.gap.returns.then(|| orderer.back(choice, times)));
        }
    }
    orderer.replays(&mut orders);
    orders.sort_by_key(|&(key, action)| (action.op, action.phase, key, action.block));
    assemble(trace, orders.into_iter().map(|(_, action)| action).collect())
}

struct Orderer<'a> {
    usage: &'a Usage,
    selection: &'a Selection,
}

impl Orderer<'_> {
    fn back(&self, choice: &Choice, times: &Times) -> Order {
        let gap = &choice.gap;
        // Until the step's end the block has the name that it had when it left.
        let next_step = times.back >= self.usage.slot_count() as i64;
        let block = BlockIndex(if next_step { gap.again } else { gap.block });
        let (op, due) = (self.op(times.back), self.op(gap.to));
        let action = Action { op, phase: Phase::Begin, kind: ActionKind::SwapIn, block, due };
        ((1, gap.to as u64), action)
    }

    fn leave(&self, choice: &Choice, times: &Times) -> Order {
        let gap = &choice.gap;
        // Behind the step's end it has its next name.
        let slot = times.leave.slot();
        let next_step = slot >= self.usage.slot_count() as i64;
        let block = BlockIndex(if next_step { gap.again } else { gap.block });
        // A block that no op uses leaves at the start.
        let at_begin = times.leave.is_begin() || slot < 0;
        let phase = if at_begin { Phase::Begin } else { Phase::End };
        let (op, due) = (self.op(slot.max(0)), self.op(times.due));
        let action = Action { op, phase, kind: ActionKind::SwapOut, block, due };
        ((0, 1 + gap.from.max(0) as u64), action)
    }

    /// What is dropped and replayed. Freed blocks of chains come back with what is made from them.
    fn replays(&self, orders: &mut Vec<Order>) {
        let links = self.selection.links.iter();
        // By block and where it is dropped: where it is back.
        let mut drops: BTreeMap<(i64, u32, Phase), i64> =
            links.map(|(&(slot, block), &back)| ((slot, block, Phase::End), back)).collect();
        let replayed = |choice: &&Choice| choice.stands && choice.mode == Mode::Recompute;
        for choice in self.selection.choices.iter().filter(replayed) {
            let gap = &choice.gap;
            // The last time that a freed block of a chain is dropped, it is for others.
            let back = drops.remove(&(gap.from, gap.block, Phase::End)).unwrap_or(gap.from);
            let phase = if gap.early { Phase::Begin } else { Phase::End };
            drops.insert((gap.from, gap.block, phase), back);
            if gap.returns {
                let recipe = gap_recipe(self.usage, gap);
                let producer = recipe.expect("replays were chosen by recipe").producer;
                let (op, block) = (self.op(gap.to), BlockIndex(gap.block));
                let (phase, kind) = (Phase::Begin, ActionKind::Replay);
                let replay = Action { op, phase, kind, block, due: op };
                orders.push(((2, u64::from(producer.0)), replay));
            }
        }
        for ((slot, block, phase), back) in drops {
            let (op, block) = (self.op(slot), BlockIndex(block));
            // Before an op, behind the replays that need it.
            let rank = if phase == Phase::Begin { 3 } else { 0 };
            let kind = ActionKind::Discard;
            let due = self.op(back);
            orders.push(((rank, 0), Action { op, phase, kind, block, due }));
        }
    }

    /// The op of a slot of this step or the next.
    fn op(&self, slot: i64) -> OpIndex {
        let slot = (slot % self.usage.slot_count() as i64) as usize;
        self.usage.slots[slot.min(self.usage.slots.len() - 1)]
    }
}
