//! Where a running step stands on the recorded one, and which of its blocks are those of the plan.
//!
//! Steps are seldom all alike: some log, evaluate or leave a layer out. So a step follows the
//! recorded one by its context. It is *on* the path while each op is the next one of the path and
//! allocates what that did; else it is *off*, and no plan acts, until a few ops in a row are found
//! on the path. It then goes on there, forwards or backwards from where it left.
//!
//! ```text
//!   recorded   a b c d e f g h i j k
//!   running    a b c . . . d e f . j k        off at the points; d is where it had left
//! ```
//!
//! Off the path, other ops may do what those of the path were to do: attention by another kernel, a
//! loss by another formula. A block that they make *stands in* for the one of the path that was to
//! come, if its size agrees: it may lie there, and if the path goes on behind that one, it is that
//! one.
//!
//! Where steps differ in their sizes alone, the path is that of the largest: blocks may be smaller
//! than the path's then, or missing.
//!
//! Nothing relies on it: what it says is a wish where to move what.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::BlockId;

use crate::trace::{BlockIndex, OpIndex};

use path::StretchKey;

pub(crate) use align::align;
pub(crate) use path::{OpKey, Path, Sizes};

mod align;
mod path;

#[cfg(test)]
mod tests;

/// So many ops in a row tell a place near where the path was left.
const CONTEXT_OPS: usize = 3;
/// So many tell any place.
const FAR_CONTEXT_OPS: usize = 8;
/// What counts as near.
const NEAR_OPS: u32 = 64;
/// Blocks of so many ops that were to come may be stood in for, by as many others.
const STAND_IN_OPS: u32 = 16;
/// Where sizes vary, one stands in for a block that is at most so many times as large.
const STAND_IN_RATIO: u64 = 8;
/// After so many others the op that was to come says nothing by its name alone.
const RESUME_OPS: u32 = 64;
/// A step that leaves out more than this part of the recorded ops, or of the blocks that they
/// allocate, has not followed it.
const LEFT_OUT_DIVISOR: u64 = 4;

/// How far a step has followed its path.
///
/// Without a path, each op and each block is taken for the one that the plan has at its place.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    path: Option<Arc<Path>>,
    is_off: bool,
    /// The op that comes next; off the path, the one that was to come.
    cursor: u32,
    /// On the path: the block that comes next.
    next_block: u32,
    /// Blocks of the step by their place on the path.
    blocks: Vec<Option<BlockId>>,
    /// On the path: the op since which all were followed.
    since: u32,
    /// It went on by the name of one op, which must still prove right.
    in_doubt: bool,
    /// Off the path: the op that was to come may do so now.
    may_resume: bool,
    /// Ops since the path was left for certain.
    adrift_ops: u32,
    /// Off the path: the last stretches, of which the last has no end yet.
    recent: VecDeque<Stretch>,
    /// Off the path: the next block that may be stood in for, and those that are.
    next_stand_in: u32,
    stand_ins: SmallVec<[(BlockIndex, BlockId); 2]>,
    /// What was left out of the path until here.
    left_out: Vec<Range<u32>>,
    rejoined: Option<Box<Rejoined>>,
    strayed_ops: u32,
    /// Events of the path, and of the step, when the last op of the path began.
    events: (u64, u64),
}

/// A block that is allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fresh {
    pub(crate) requested_bytes: u64,
    /// Physical bytes, as a swappable block.
    pub(crate) size_bytes: u64,
    /// It is swappable only if the path has it so.
    pub(crate) is_small: bool,
    /// How many were allocated before it since the last op began.
    pub(crate) nth: u32,
}

/// An op of the step and what was allocated in it.
#[derive(Debug)]
struct Stretch {
    key: StretchKey,
    /// Swappable blocks, and how many of any size came before each.
    blocks: SmallVec<[(u32, BlockId); 2]>,
}

/// What comes of finding the path again.
#[derive(Debug, PartialEq)]
pub(crate) struct Rejoined {
    /// Ops of the path that were left out.
    pub(crate) skipped: Range<u32>,
    /// Blocks that turned out to be the path's.
    pub(crate) bound: Vec<(BlockIndex, BlockId)>,
    /// Blocks that stood in for others, and are none of the path's.
    pub(crate) released: Vec<BlockId>,
}

impl Follower {
    /// At the start of a step in which these blocks live, with their physical bytes. Says too
    /// which blocks of the path they are.
    pub(crate) fn new(
        path: Option<Arc<Path>>,
        live: &[(BlockId, u64)],
    ) -> (Follower, Vec<Option<BlockIndex>>) {
        let mut blocks = Vec::new();
        let (places, next_block): (Vec<Option<u32>>, u32) = match &path {
            Some(path) => {
                blocks.resize(path.block_count(), None);
                let sizes: Vec<u64> = live.iter().map(|&(_, size_bytes)| size_bytes).collect();
                (path.align_start(&sizes), path.persistent().len() as u32)
            }
            None => {
                blocks.resize(live.len(), None);
                ((0..live.len() as u32).map(Some).collect(), live.len() as u32)
            }
        };
        for (&(id, _), place) in live.iter().zip(&places) {
            if let Some(place) = *place {
                blocks[place as usize] = Some(id);
            }
        }
        let places = places.into_iter().map(|place| place.map(BlockIndex)).collect();
        (Follower { path, blocks, next_block, ..Follower::default() }, places)
    }

    /// Whether it knows the recorded step.
    pub(crate) fn has_path(&self) -> bool {
        self.path.is_some()
    }

    /// The op of the path that an op is which is about to begin.
    pub(crate) fn coming_op(&mut self, key: OpKey) -> Option<OpIndex> {
        let Some(path) = &self.path else {
            return (!self.is_off).then_some(OpIndex(self.cursor));
        };
        if !self.is_off && path.is_at(self.cursor, key) && self.has_all_blocks(path) {
            return Some(OpIndex(self.cursor));
        }
        self.look(&Arc::clone(path), key)
    }

    /// Whether what the path allocates before the next op was allocated.
    fn has_all_blocks(&self, path: &Path) -> bool {
        path.expects() == Sizes::UpTo || self.next_block == path.blocks_before(self.cursor)
    }

    /// As above, for an op that is not the next one.
    #[cold]
    fn look(&mut self, path: &Path, key: OpKey) -> Option<OpIndex> {
        let leaves = !self.is_off;
        if leaves {
            let other_blocks = !self.has_all_blocks(path);
            self.leave(path, !other_blocks);
        }
        if let Some((op, agreeing)) = self.find(path, key) {
            // Found at once, it is elsewhere on the path all the same.
            self.strayed_ops += u32::from(leaves);
            self.rejoin(path, op, agreeing);
        } else if self.may_resume && self.adrift_ops <= RESUME_OPS && path.is_at(self.cursor, key) {
            self.resume(path);
        } else {
            return None;
        }
        Some(OpIndex(self.cursor))
    }

    /// The op that [`coming_op`](Follower::coming_op) was asked about has begun.
    pub(crate) fn begun(&mut self, key: OpKey, event_count: u64) -> Option<OpIndex> {
        if self.is_off {
            self.strayed_ops += 1;
            self.adrift_ops = self.adrift_ops.saturating_add(1);
            self.note(Stretch { key: key.stretch(), blocks: SmallVec::new() });
            return None;
        }
        let op = self.cursor;
        self.cursor += 1;
        if let Some(path) = &self.path {
            self.next_block = path.blocks_before(op);
            self.events = (path.event(op), event_count);
        }
        Some(OpIndex(op))
    }

    /// The block of the path that comes next, if it is this one.
    pub(crate) fn coming_block(&self, fresh: Fresh) -> Option<BlockIndex> {
        let next = self.next_block;
        let coming = |path: &Arc<Path>| path.find(next..path.blocks_before(self.cursor), fresh);
        // Without a path blocks are told by their number, and small ones have none.
        let coming = || self.path.as_ref().map_or((!fresh.is_small).then_some(next), coming);
        (!self.is_off).then(coming).flatten().map(BlockIndex)
    }

    /// A swappable block was allocated. Says which one of the path it is.
    pub(crate) fn allocated(&mut self, id: BlockId, fresh: Fresh) -> Option<BlockIndex> {
        if let Some(place) = self.coming_block(fresh) {
            self.next_block = place.0 + 1;
            self.bind(place, id);
            return Some(place);
        }
        let path = Arc::clone(self.path.as_ref()?);
        if !self.is_off {
            if path.expects() == Sizes::UpTo {
                return None;
            }
            self.leave(&path, false);
        }
        if let Some(last) = self.recent.back_mut() {
            last.key = last.key.allocating(fresh.size_bytes, path.expects());
            last.blocks.push((fresh.nth, id));
        }
        None
    }

    /// Off the path: the block that this one would stand in for.
    pub(crate) fn coming_stand_in(&self, fresh: Fresh) -> Option<BlockIndex> {
        let Fresh { requested_bytes, size_bytes, is_small, nth } = fresh;
        let path = self.path.as_ref().filter(|_| self.is_off)?;
        if self.adrift_ops > STAND_IN_OPS {
            return None;
        }
        let end = path.blocks_before(self.cursor.saturating_add(STAND_IN_OPS).min(path.op_count()));
        let agrees = |&block: &u32| match path.expects() {
            Sizes::Same => !is_small && path.size_bytes(block) == size_bytes,
            Sizes::UpTo => {
                let most_bytes = requested_bytes.saturating_mul(STAND_IN_RATIO);
                let is_like = !is_small || path.nth(block) == nth;
                is_like && (size_bytes..=most_bytes).contains(&path.size_bytes(block))
            }
        };
        (self.next_stand_in..end).find(agrees).map(BlockIndex)
    }

    /// A block was allocated that is none of the path's. Says which one it stands in for.
    pub(crate) fn stand_in(&mut self, id: BlockId, fresh: Fresh) -> Option<BlockIndex> {
        let place = self.coming_stand_in(fresh)?;
        self.next_stand_in = place.0 + 1;
        self.stand_ins.push((place, id));
        self.bind(place, id);
        Some(place)
    }

    /// The path goes on at `op`: what stood in for blocks before it stays, unless it is about to be
    /// `bound` as another. Says which blocks stood in for nothing.
    fn judge_stand_ins(
        &mut self,
        path: &Path,
        op: u32,
        bound: &[(BlockIndex, BlockId)],
    ) -> Vec<BlockId> {
        let mut released = Vec::new();
        for (place, id) in std::mem::take(&mut self.stand_ins) {
            let is_own = bound.iter().any(|&(_, own)| own == id);
            if !is_own && place.0 < path.blocks_before(op) {
                continue;
            }
            self.blocks[place.0 as usize] = None;
            if !is_own {
                released.push(id);
            }
        }
        released
    }

    /// The block at a place of the path.
    pub(crate) fn block(&self, place: BlockIndex) -> Option<BlockId> {
        *self.blocks.get(place.0 as usize)?
    }

    fn bind(&mut self, place: BlockIndex, id: BlockId) {
        let at = place.0 as usize;
        if self.blocks.len() <= at {
            self.blocks.resize(at + 1, None);
        }
        self.blocks[at] = Some(id);
    }

    /// The step goes on by another path of the same ops and blocks, as if it had been that from
    /// its start.
    pub(crate) fn change_path(&mut self, path: &Arc<Path>) {
        self.path = Some(Arc::clone(path));
        if !self.is_off {
            let (bound, released) = (Vec::new(), Vec::new());
            self.rejoined = Some(Box::new(Rejoined { skipped: 0..self.cursor, bound, released }));
        }
    }

    /// Where the step stands among the events of the path.
    pub(crate) fn position(&self, event_count: u64) -> Option<u64> {
        let (path, step) = self.events;
        (!self.is_off).then_some(path + (event_count - step))
    }

    /// What is to be done about the path that was found again.
    pub(crate) fn take_rejoined(&mut self) -> Option<Box<Rejoined>> {
        self.rejoined.take()
    }

    /// Without a path: at `op` the step turns out to be another.
    pub(crate) fn give_up(&mut self, op: OpIndex) {
        (self.is_off, self.cursor) = (true, op.0);
    }

    /// Whether plans act at the ends of ops of the path.
    pub(crate) fn acts(&self) -> bool {
        self.has_path() || !self.is_off
    }

    /// Ops that were none of the path's.
    pub(crate) fn strayed_ops(&self) -> u32 {
        self.strayed_ops
    }

    /// At the step's end: where it left the path, if it has not followed it.
    pub(crate) fn drifted_at(&self) -> Option<OpIndex> {
        let Some(path) = &self.path else {
            return self.is_off.then_some(OpIndex(self.cursor));
        };
        let rest = self.cursor..path.op_count();
        let left_out = || self.left_out.iter().chain([&rest]).filter(|ops| !ops.is_empty());
        let ops: u64 = left_out().map(|ops| ops.len() as u64).sum();
        // Where sizes vary, what is too small to be swappable is missing.
        let made = || path.made().filter(|_| path.expects() == Sizes::Same);
        let unmade = || made().filter(|&block| self.blocks[block as usize].is_none());
        let blocks = unmade().count() as u64;
        let is_much = |part: u64, whole: u64| part * LEFT_OUT_DIVISOR > whole;
        let is_other =
            is_much(ops, u64::from(path.op_count())) || is_much(blocks, path.made().len() as u64);
        let first = left_out().map(|ops| ops.start).next();
        let first_made = unmade().map(|block| path.op_of(block)).next();
        first.into_iter().chain(first_made).min().map(OpIndex).filter(|_| is_other)
    }

    /// Leaves the path. What comes behind others may be resumed; what allocates otherwise is
    /// another op by the same name.
    fn leave(&mut self, path: &Path, may_resume: bool) {
        let followed = self.cursor - self.since;
        (self.is_off, self.may_resume) = (true, may_resume);
        self.next_stand_in = self.next_block;
        let last = self.cursor.checked_sub(1).filter(|_| followed > 0);
        for op in self.since.max(self.cursor.saturating_sub(FAR_CONTEXT_OPS as u32))..self.cursor {
            let Range { start, end } = path.blocks_of(op);
            let end = if Some(op) == last { self.next_block } else { end };
            let bound = |place: u32| Some((path.nth(place), self.blocks[place as usize]?));
            let blocks = (start..end).filter_map(bound).collect();
            let stretch = Stretch { key: path.stretch_until(op, end), blocks };
            self.note(stretch);
        }
        if self.in_doubt && followed < CONTEXT_OPS as u32 {
            // It only looked like the op that was to come, which may come yet.
            self.cursor = self.since;
            self.next_stand_in = path.blocks_before(self.cursor);
            self.may_resume = true;
        } else {
            self.adrift_ops = 0;
        }
        tracing::trace!(op = self.cursor, "left the plan");
    }

    fn note(&mut self, stretch: Stretch) {
        if self.recent.len() == FAR_CONTEXT_OPS {
            self.recent.pop_front();
        }
        self.recent.push_back(stretch);
    }

    /// Goes on where the path was left: all else was put in between.
    fn resume(&mut self, path: &Path) {
        (self.is_off, self.in_doubt) = (false, true);
        self.since = self.cursor;
        self.next_block = path.blocks_before(self.cursor);
        self.recent.clear();
        let released = self.judge_stand_ins(path, self.cursor, &[]);
        if !released.is_empty() {
            let (skipped, bound) = (self.cursor..self.cursor, Vec::new());
            self.rejoined = Some(Box::new(Rejoined { skipped, bound, released }));
        }
    }

    /// The op of the path that this one is, by what came before it, and how much of that agrees.
    /// Where there are several, as few ops as can be were put in or left out.
    fn find(&self, path: &Path, key: OpKey) -> Option<(u32, u32)> {
        let last = self.recent.len().checked_sub(CONTEXT_OPS)?;
        let context = self.recent.range(last..).map(|stretch| stretch.key);
        let agreeing = |op: u32| {
            let before = (0..op).rev().zip(self.recent.iter().rev());
            before.take_while(|(op, stretch)| path.has_stretch(*op, stretch.key)).count() as u32
        };
        let candidates = path.behind(context, self.cursor).filter(|&op| path.is_at(op, key));
        let found = candidates.map(|op| (op, agreeing(op))).filter(|&(op, agreeing)| {
            let is_near = op.abs_diff(self.cursor) <= NEAR_OPS;
            agreeing as usize >= if is_near { CONTEXT_OPS } else { FAR_CONTEXT_OPS }
        });
        found.min_by_key(|&(op, agreeing)| {
            let skipped = op.saturating_sub(self.cursor);
            let same = agreeing.min(skipped).min(self.adrift_ops);
            let again = self.cursor.saturating_sub(op);
            (self.adrift_ops - same) + (skipped - same) + again
        })
    }

    /// Goes on at `op`, behind so many stretches that are the path's.
    fn rejoin(&mut self, path: &Path, op: u32, agreeing: u32) {
        let mut bound = Vec::new();
        let stretches = std::mem::take(&mut self.recent);
        for (op, stretch) in (0..op).rev().zip(stretches.iter().rev()).take(agreeing as usize) {
            let places = path.blocks_of(op);
            let has_all = places.len() == stretch.blocks.len();
            for (at, place) in places.enumerate() {
                // Where sizes vary, it may lack some.
                let found = match has_all {
                    true => stretch.blocks.get(at),
                    false => stretch.blocks.iter().find(|(nth, _)| *nth == path.nth(place)),
                };
                bound.extend(found.map(|&(_, id)| (BlockIndex(place), id)));
            }
        }
        let released = self.judge_stand_ins(path, op, &bound);
        for &(place, id) in &bound {
            self.bind(place, id);
        }
        let left = self.cursor;
        // What is gone through once more is not left out.
        self.left_out.retain_mut(|ops| {
            ops.end = ops.end.min(op);
            ops.start < ops.end
        });
        if left < op {
            self.left_out.push(left..op);
        }
        (self.is_off, self.in_doubt) = (false, false);
        (self.cursor, self.since) = (op, op - agreeing);
        self.next_block = path.blocks_before(op);
        self.adrift_ops = 0;
        self.rejoined = Some(Box::new(Rejoined { skipped: left..left.max(op), bound, released }));
        tracing::trace!(left, op, "found the plan again");
    }
}
