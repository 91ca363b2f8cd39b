//! A plan made ready for execution, with the next uses that rescues ask for.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use vmem::{AccessMode, Lot, LotPiece};

use crate::follow::{Path, Sizes};
use crate::plan::{Action, ActionKind, Phase, Plan, PlanBlock};
use crate::trace::{BlockIndex, OpIndex, Origin, Trace, TraceEvent};

/// A block that is larger than it was planned by more than this part tells of a larger step.
const TOLERATED_DIVISOR: u64 = 8;

/// A plan and what the recorded step tells beyond it.
#[derive(Debug)]
pub struct Orders {
    /// By op, then phase.
    actions: Vec<Action>,
    /// The boundary of each of them, for a search that looks at little memory.
    boundaries: Vec<u64>,
    blocks: Vec<PlanBlock>,
    uses: Vec<Vec<u64>>,
    event_count: u64,
    /// Ops whose outputs are dropped, in order.
    droppers: Vec<OpIndex>,
    /// Blocks are dropped that no op of the step allocated: any op may have written them.
    drops_others: bool,
    /// Where blocks lie, by turn, then by their place in the step.
    turns: Vec<Vec<Option<Lot>>>,
    pieces: Vec<LotPiece>,
    /// The recorded step, if the plan is for it.
    path: Option<Arc<Path>>,
    /// Blocks whose sizes tell how large a step is.
    probes: Vec<BlockIndex>,
    /// For steps that outgrow this one.
    larger: Option<Arc<Orders>>,
}

/// The orders of the running step, and of those that begin.
#[derive(Debug, Default)]
pub(crate) struct StandingOrders {
    current: Option<Arc<Orders>>,
    /// What steps begin under: a large one may go on under the orders for larger ones.
    at_begin: Option<Arc<Orders>>,
    /// Whose turn it is, where steps of the plan lie now here and now there.
    turn: usize,
}

impl StandingOrders {
    pub(crate) fn current(&self) -> Option<&Arc<Orders>> {
        self.current.as_ref()
    }

    /// A step begins.
    pub(crate) fn begin_step(&mut self) {
        self.current = self.at_begin.clone();
    }

    /// It is the turn of these lots.
    pub(crate) fn take_turn(&mut self, turn: usize) {
        self.turn = turn;
    }

    /// Where a block lies in the running step.
    pub(crate) fn lot(&self, index: BlockIndex) -> Option<Lot> {
        self.current()?.lot(index, self.turn)
    }

    /// The same for one of this size: a lot is larger only where steps may be smaller than the one
    /// that they were laid out for, as what is left of it serves nobody.
    pub(crate) fn lot_of_size(&self, index: BlockIndex, size_bytes: u64) -> Option<Lot> {
        let path = self.current()?.path();
        let varies = path.is_some_and(|path| path.expects() == Sizes::UpTo);
        let fits = |lot: &Lot| match varies {
            true => lot.size_bytes >= size_bytes,
            false => lot.size_bytes == size_bytes,
        };
        self.lot(index).filter(fits)
    }

    /// The running step goes on under the orders for larger ones.
    pub(crate) fn outgrow(&mut self, larger: Arc<Orders>) {
        self.current = Some(larger);
    }

    /// Other orders, for the running step as well.
    pub(crate) fn set(&mut self, orders: Option<Arc<Orders>>) {
        self.current.clone_from(&orders);
        self.at_begin = orders;
    }
}

/// An op boundary as a number: in the order of ops, then of phases.
fn boundary(op: OpIndex, phase: Phase) -> u64 {
    u64::from(op.0) << 1 | phase as u64
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
            boundaries: actions.iter().map(|action| boundary(action.op, action.phase)).collect(),
            actions,
            blocks,
            uses: Vec::new(),
            event_count: 0,
            droppers,
            drops_others,
            turns: Vec::new(),
            pieces: Vec::new(),
            path: None,
            probes: Vec::new(),
            larger: None,
        }
    }

    /// Whether the plan may drop what an op writes, which is this one of the plan's if any.
    pub(crate) fn drops_output_of(&self, op: Option<OpIndex>) -> bool {
        self.drops_others || op.is_some_and(|op| self.droppers.binary_search(&op).is_ok())
    }

    /// Orders for steps like `trace`, also where they differ in part: the plan acts as far as they
    /// follow it. Rescues choose by farthest next use.
    pub fn with_trace(plan: &Plan, trace: &Trace) -> Orders {
        Orders::following(plan, trace, Sizes::Same)
    }

    /// As [`with_trace`](Orders::with_trace), for steps whose blocks may be smaller than those of
    /// `trace`, or missing. Reports say how large each of the blocks `probes` was; the first that
    /// comes tells for the step that runs.
    pub fn for_sizes_up_to(plan: &Plan, trace: &Trace, probes: &[BlockIndex]) -> Orders {
        Orders { probes: probes.to_vec(), ..Orders::following(plan, trace, Sizes::UpTo) }
    }

    /// From the first block on that is larger than the one that this plan knows, a step runs under
    /// those of these orders that know one as large, or under the last. They are for steps of the
    /// same ops and blocks: others are left out.
    #[must_use]
    pub fn or_larger(self, larger: impl DoubleEndedIterator<Item = Orders>) -> Orders {
        let joined = larger.rev().chain([self]).reduce(|larger, orders| {
            let is_alike = orders.path.is_some() && orders.shape() == larger.shape();
            Orders { larger: is_alike.then(|| Arc::new(larger)), ..orders }
        });
        joined.expect("there is this one")
    }

    fn shape(&self) -> Option<(u32, usize)> {
        self.path.as_ref().map(|path| (path.op_count(), path.block_count()))
    }

    /// The orders that take over where this block is larger than these know it. Of the probe any
    /// byte tells; the sizes of others are guessed from it, so that they may be a little larger.
    pub(crate) fn outgrown_by(&self, block: BlockIndex, size_bytes: u64) -> Option<&Arc<Orders>> {
        let is_probe = self.is_probe(block);
        let knows = |orders: &Orders| {
            orders.path.as_ref().is_none_or(|path| {
                let known_bytes = path.size_bytes(block.0);
                let more_bytes = if is_probe { 0 } else { known_bytes / TOLERATED_DIVISOR };
                known_bytes.saturating_add(more_bytes) >= size_bytes
            })
        };
        if knows(self) {
            return None;
        }
        let mut larger = self.larger.as_ref()?;
        while let Some(next) = larger.larger.as_ref().filter(|_| !knows(larger)) {
            larger = next;
        }
        Some(larger)
    }

    /// Whether they are for steps of other sizes too.
    pub(crate) fn are_for_sizes(&self) -> bool {
        !self.probes.is_empty()
    }

    /// Whether the size of this block tells how large a step is.
    pub(crate) fn is_probe(&self, block: BlockIndex) -> bool {
        self.probes.contains(&block)
    }

    fn following(plan: &Plan, trace: &Trace, sizes: Sizes) -> Orders {
        let mut uses = vec![Vec::new(); trace.blocks.len()];
        for (position, event) in (0..).zip(&trace.events) {
            if let TraceEvent::Touch(block, _) = event {
                uses[block.0 as usize].push(position);
            }
        }
        let event_count = trace.events.len() as u64;
        let orders = Orders::new(plan);
        // A plan for another step is held against each block that it means.
        if !plan.knows(trace) {
            return Orders { uses, event_count, ..orders };
        }
        let path = Path::of(trace, sizes).map(Arc::new);
        let (droppers, drops_others) = orders.writers_of_dropped(trace);
        Orders { uses, event_count, path, droppers, drops_others, ..orders }
    }

    /// The ops that wrote what the plan drops, in order: not always those that allocated it, as
    /// with outputs that an op is given. And whether some of it was written before the step.
    fn writers_of_dropped(&self, trace: &Trace) -> (Vec<OpIndex>, bool) {
        let mut open = Vec::new();
        let mut writers: Vec<Option<OpIndex>> = vec![None; trace.blocks.len()];
        let (mut droppers, mut drops_others) = (Vec::new(), false);
        for &event in &trace.events {
            let (op, phase) = match event {
                TraceEvent::Touch(block, AccessMode::Write) => {
                    writers[block.0 as usize] = open.last().copied();
                    continue;
                }
                TraceEvent::Begin(op) => {
                    open.push(op);
                    (op, Phase::Begin)
                }
                TraceEvent::End(op) => {
                    open.pop();
                    (op, Phase::End)
                }
                _ => continue,
            };
            let drops = self.actions_at(op, phase).iter();
            for drop in drops.filter(|action| action.kind == ActionKind::Discard) {
                let block = drop.block.0 as usize;
                match (writers[block], trace.blocks[block].origin) {
                    (Some(op), _) | (None, Origin::Op(op)) => droppers.push(op),
                    (None, _) => drops_others = true,
                }
            }
        }
        droppers.sort_unstable();
        (droppers, drops_others)
    }

    /// The recorded step, to be followed by its context.
    pub(crate) fn path(&self) -> Option<&Arc<Path>> {
        self.path.as_ref()
    }

    /// Orders under which blocks lie in lots, by their place in the step. Those without one have
    /// chunks of their own. Where there are several `turns`, a step takes that in which the most
    /// bytes are to lie where they are when it begins.
    #[must_use]
    pub fn with_lots(self, turns: Vec<Vec<Option<Lot>>>) -> Orders {
        Orders { turns, ..self }
    }

    /// Lots beyond all memory are in these pieces.
    #[must_use]
    pub fn with_pieces(self, pieces: Vec<LotPiece>) -> Orders {
        Orders { pieces, ..self }
    }

    /// What lots are in pieces.
    pub(crate) fn pieces(&self) -> &[LotPiece] {
        &self.pieces
    }

    /// All lots.
    pub(crate) fn lots(&self) -> Vec<Lot> {
        self.turns.iter().flatten().copied().flatten().collect()
    }

    /// How many turns steps take; 0 if nothing is laid out.
    pub(crate) fn turn_count(&self) -> usize {
        self.turns.len()
    }

    /// Where a block lies in a step of this turn.
    pub(crate) fn lot(&self, index: BlockIndex, turn: usize) -> Option<Lot> {
        *self.turns.get(turn)?.get(index.0 as usize)?
    }

    /// The actions of one op boundary, in their order. Not all that sort before them are over: an
    /// op ends after the ops inside it have begun.
    pub(crate) fn actions_at(&self, op: OpIndex, phase: Phase) -> &[Action] {
        let wanted = boundary(op, phase);
        let start = self.boundaries.partition_point(|&other| other < wanted);
        let count = self.boundaries[start..].iter().take_while(|&&other| other == wanted).count();
        &self.actions[start..start + count]
    }

    /// What these ops order in the end, in their order: each block's last move. Replays are left
    /// to the touches that need them.
    pub(crate) fn last_moves(&self, ops: &Range<u32>) -> Vec<Action> {
        let at = |op: u32| self.actions.partition_point(|action| action.op < OpIndex(op));
        let mut moved = BTreeSet::new();
        let actions = self.actions[at(ops.start)..at(ops.end)].iter().rev();
        let mut last: Vec<Action> =
            actions.filter(|action| moved.insert(action.block)).copied().collect();
        last.retain(|action| action.kind != ActionKind::Replay);
        last.reverse();
        last
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
    pub(crate) fn next_use(
        &self,
        block: Option<BlockIndex>,
        position: u64,
        origin: Origin,
    ) -> Option<u64> {
        if self.event_count == 0 {
            return None;
        }
        let uses = block.and_then(|block| self.uses.get(block.0 as usize));
        let Some(uses) = uses else { return Some(u64::MAX) };
        let next = uses.partition_point(|&used| used < position);
        let wrapped = || match origin {
            Origin::Persistent => uses.first().map(|first| first + self.event_count),
            _ => None,
        };
        Some(uses.get(next).copied().or_else(wrapped).unwrap_or(u64::MAX))
    }
}
