//! When the blocks of a step are there, and which ops use them.

use swap_core::{AccessMode, BlockIndex, OpIndex, Trace, TraceEvent};

/// When each block is there and first used, as positions in the events.
pub(super) struct Lives {
    /// `None` if it was there before.
    pub(super) born: Vec<Option<usize>>,
    /// `None` if it stays.
    pub(super) freed: Vec<Option<usize>>,
    pub(super) touches: Vec<Vec<(usize, AccessMode)>>,
    /// Outermost ops: positions of their begin and end.
    pub(super) ops: Vec<(usize, usize)>,
}

impl Lives {
    pub(super) fn of(trace: &Trace) -> Lives {
        let count = trace.blocks.len();
        let mut lives = Lives {
            born: vec![None; count],
            freed: vec![None; count],
            touches: vec![Vec::new(); count],
            ops: Vec::new(),
        };
        for (at, event) in trace.events.iter().enumerate() {
            match *event {
                TraceEvent::Begin(op) if is_outermost(trace, op) => lives.ops.push((at, at)),
                TraceEvent::End(op) if is_outermost(trace, op) => {
                    lives.ops.last_mut().expect("an op begins before it ends").1 = at;
                }
                TraceEvent::Allocate(block) => lives.born[index(block)] = Some(at),
                TraceEvent::Free(block) => lives.freed[index(block)] = Some(at),
                TraceEvent::Touch(block, mode) => lives.touches[index(block)].push((at, mode)),
                TraceEvent::Begin(_) | TraceEvent::End(_) | TraceEvent::Segments(_) => {}
            }
        }
        lives
    }

    pub(super) fn is_freed_before(&self, block: usize, at: usize) -> bool {
        self.freed[block].is_some_and(|freed| freed < at)
    }

    pub(super) fn is_used_from(&self, block: usize, at: usize) -> bool {
        self.touches[block].last().is_some_and(|&(touched, _)| touched >= at)
    }

    /// Whether the last op that uses a block changes it.
    pub(super) fn is_written_last(&self, block: usize) -> bool {
        self.touches[block].last().is_some_and(|(_, mode)| mode.writes())
    }

    /// Where a block from before the step is first written, if it was read before that.
    fn written(&self, block: usize) -> Option<usize> {
        let touches = &self.touches[block];
        if self.born[block].is_some() || touches.first()?.1 != AccessMode::Read {
            return None;
        }
        touches.iter().find(|(_, mode)| *mode != AccessMode::Read).map(|&(at, _)| at)
    }

    /// The update at the end of a step: from the first op behind the passes that changes a block
    /// which they only read, or which they do not use.
    pub(super) fn update(&self, trace: &Trace) -> Option<Update> {
        let blocks = 0..self.born.len();
        let written = blocks.clone().filter_map(|block| self.written(block)).min()?;
        let (weights, _) = self.ops[self.op_at(written)?];
        let passes_end = self.passes_end(trace, weights)?;
        let first_changes =
            blocks.filter(|&block| self.born[block].is_none()).filter_map(|block| {
                let &(at, _) = self.touches[block].iter().find(|(_, mode)| mode.writes())?;
                (at >= passes_end).then_some(at)
            });
        Some(Update { passes_end, first: self.op_at(first_changes.min()?)?, weights })
    }

    /// The event behind the passes, before an update that begins with an event: behind the last op
    /// that uses something of theirs which is gone by then, and what is freed there.
    pub(super) fn passes_end(&self, trace: &Trace, update: usize) -> Option<usize> {
        let theirs = (0..self.born.len())
            .filter(|&block| self.born[block].is_some() && self.is_freed_before(block, update));
        let used =
            theirs.filter_map(|block| self.touches[block].last()).map(|&(at, _)| at).max()?;
        let (_, end) = self.ops[self.op_at(used)?];
        let behind = &trace.events[end + 1..];
        let freed = behind.iter().take_while(|event| matches!(event, TraceEvent::Free(_)));
        Some(end + 1 + freed.count())
    }

    /// Whether a block from before the step is changed before it is read.
    pub(super) fn is_updated_first(&self, block: usize) -> bool {
        let touches = &self.touches[block];
        let is_read = touches.last().is_some_and(|(_, mode)| !mode.writes());
        self.born[block].is_none() && is_read && touches[0].1.writes()
    }

    /// The outermost op at a position, by its place among them.
    pub(super) fn op_at(&self, at: usize) -> Option<usize> {
        let next = self.ops.partition_point(|&(begin, _)| begin <= at);
        next.checked_sub(1).filter(|&op| at <= self.ops[op].1)
    }

    /// By outermost op, whether it is part of an update that waited: it changes blocks from before
    /// the step and uses no others, or it lies between the uses of one that is not read before it
    /// is changed, a moment, where all that is used besides lives there alone.
    pub(super) fn updates(&self) -> Vec<bool> {
        let uses = self.uses();
        let is_update = |uses: &Uses| uses.writes && uses.born == usize::MAX;
        let mut updates: Vec<bool> = uses.iter().map(is_update).collect();
        for (block, touches) in self.touches.iter().enumerate() {
            let is_moment = touches.first().is_some_and(|(_, mode)| mode.writes());
            if !is_moment || self.born[block].is_some() || self.freed[block].is_some() {
                continue;
            }
            let mut ops = touches.iter().filter_map(|&(at, _)| self.op_at(at));
            let Some(first) = ops.next() else { continue };
            let last = ops.next_back().unwrap_or(first);
            let begin = self.ops[first].0;
            let next = self.ops.get(last + 1).map_or(usize::MAX, |&(begin, _)| begin);
            if uses[first..=last].iter().all(|uses| uses.born >= begin && uses.freed < next) {
                updates[first..=last].fill(true);
            }
        }
        updates
    }

    /// What each outermost op uses.
    fn uses(&self) -> Vec<Uses> {
        let none = Uses { writes: false, born: usize::MAX, freed: 0 };
        let mut uses = vec![none; self.ops.len()];
        for (block, touches) in self.touches.iter().enumerate() {
            for &(at, mode) in touches {
                let Some(op) = self.op_at(at) else { continue };
                uses[op].writes |= mode.writes();
                if let Some(born) = self.born[block] {
                    uses[op].born = uses[op].born.min(born);
                    uses[op].freed = uses[op].freed.max(self.freed[block].unwrap_or(usize::MAX));
                }
            }
        }
        uses
    }
}

/// The update at the end of a step.
#[derive(Clone, Copy)]
pub(super) struct Update {
    /// The event behind the passes before it.
    pub(super) passes_end: usize,
    /// The outermost op with which it begins, by place.
    pub(super) first: usize,
    /// The event with which the op begins that is the first to change a weight.
    pub(super) weights: usize,
}

/// What an op uses.
#[derive(Clone, Copy)]
struct Uses {
    /// Whether it changes anything.
    writes: bool,
    /// When the oldest of the step's own blocks that it uses was made; none is `usize::MAX`.
    born: usize,
    /// When the last of them is freed; none is 0.
    freed: usize,
}

pub(super) fn is_outermost(trace: &Trace, op: OpIndex) -> bool {
    trace.ops[op.0 as usize].depth == 0
}

pub(super) fn index(block: BlockIndex) -> usize {
    block.0 as usize
}
