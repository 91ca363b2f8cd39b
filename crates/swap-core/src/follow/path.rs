//! The recorded step as a path: what tells each of its ops, and where a piece of it occurs.

use std::ops::Range;

use crate::name::OpName;
use crate::trace::{BlockIndex, OpIndex, Origin, Signature, Trace, TraceEvent};

use super::{CONTEXT_OPS, Fresh, align};

/// Of all places where the same few ops occur, as many as this are looked at on either side.
const CANDIDATES: usize = 8;

/// What tells an op before it has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpKey(u64);

impl OpKey {
    pub(crate) fn new(name_hash: u64, depth: usize) -> OpKey {
        OpKey(Signature(depth as u64).mix(name_hash).0)
    }

    /// What tells its stretch, as long as nothing is allocated in it.
    pub(super) fn stretch(self) -> StretchKey {
        StretchKey(Signature(self.0))
    }
}

/// What tells a *stretch*: an op, and the blocks that are allocated before the next one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StretchKey(Signature);

impl StretchKey {
    #[must_use]
    pub(super) fn allocating(self, size_bytes: u64, expected: Sizes) -> StretchKey {
        match expected {
            Sizes::Same => StretchKey(self.0.mix(size_bytes)),
            Sizes::UpTo => self,
        }
    }
}

/// What tells the last few stretches.
fn context(stretches: impl Iterator<Item = StretchKey>) -> u64 {
    stretches.fold(Signature::default(), |mixed, stretch| mixed.mix(stretch.0.0)).0
}

/// How large the blocks are of steps that follow a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sizes {
    /// As large as the path's: what allocates otherwise is another op.
    Same,
    /// Any: the path's are those of the largest step that it is meant for. Blocks that are large
    /// enough to be swappable in that one may be missing.
    UpTo,
}

/// The ops of a recorded step and the blocks that it allocates, in order.
#[derive(Debug)]
pub(crate) struct Path {
    expects: Sizes,
    ops: Vec<PathOp>,
    /// Physical bytes of its blocks. Those that lived at its start come first.
    sizes: Vec<u64>,
    /// By block: how many of any size came before it since the last op began.
    nths: Vec<u32>,
    persistent: u32,
    /// The ops that come behind a context, by context.
    index: Vec<(u64, u32)>,
}

#[derive(Clone, Copy, Debug)]
struct PathOp {
    key: OpKey,
    stretch: StretchKey,
    /// Where it begins among the events.
    event: u64,
    /// Blocks that the step has when it begins.
    blocks: u32,
}

impl Path {
    /// The path of a recorded step. `None` if it has none: no ops, or blocks out of order.
    pub(crate) fn of(trace: &Trace, expects: Sizes) -> Option<Path> {
        let sizes: Vec<u64> = trace.blocks.iter().map(|block| block.size_bytes).collect();
        let nths = trace.blocks.iter().map(|block| block.nth).collect();
        let is_persistent = |origin: Origin| origin == Origin::Persistent;
        let persistent = trace.blocks.partition_point(|block| is_persistent(block.origin));
        let mut ops: Vec<PathOp> = Vec::with_capacity(trace.ops.len());
        let mut blocks = persistent;
        for (event, at) in trace.events.iter().zip(0..) {
            match *event {
                TraceEvent::Begin(OpIndex(op)) if op as usize == ops.len() => {
                    let begun = trace.ops.get(op as usize)?;
                    let key = OpKey::new(OpName::hash_of(&begun.name), begun.depth as usize);
                    let blocks = u32::try_from(blocks).ok()?;
                    ops.push(PathOp { key, stretch: key.stretch(), event: at, blocks });
                }
                TraceEvent::Allocate(BlockIndex(block)) if block as usize == blocks => {
                    let size_bytes = *sizes.get(blocks)?;
                    if let Some(last) = ops.last_mut() {
                        last.stretch = last.stretch.allocating(size_bytes, expects);
                    }
                    blocks += 1;
                }
                TraceEvent::Begin(_) | TraceEvent::Allocate(_) => return None,
                _ => {}
            }
        }
        if ops.is_empty() || blocks != sizes.len() {
            return None;
        }
        let stretches =
            ops.windows(CONTEXT_OPS).map(|ops| context(ops.iter().map(|op| op.stretch)));
        let mut index: Vec<(u64, u32)> = stretches.zip(CONTEXT_OPS as u32..).collect();
        index.sort_unstable();
        Some(Path { expects, ops, sizes, nths, persistent: persistent as u32, index })
    }

    pub(crate) fn op_count(&self) -> u32 {
        self.ops.len() as u32
    }

    /// Physical bytes of the blocks that live at its start.
    pub(super) fn persistent(&self) -> &[u64] {
        &self.sizes[..self.persistent as usize]
    }

    /// Which of the blocks that live at its start those of a step are. Where sizes vary, so do
    /// those of blocks that the step before has left.
    pub(super) fn align_start(&self, found: &[u64]) -> Vec<Option<u32>> {
        let planned = self.persistent();
        let mut places = align(planned, found);
        if self.expects == Sizes::UpTo && planned.len() == found.len() {
            let mut is_taken = vec![false; planned.len()];
            places.iter().flatten().for_each(|&place| is_taken[place as usize] = true);
            for (at, place) in places.iter_mut().enumerate().filter(|&(at, _)| !is_taken[at]) {
                place.get_or_insert(at as u32);
            }
        }
        places
    }

    pub(crate) fn block_count(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn is_at(&self, op: u32, key: OpKey) -> bool {
        self.ops.get(op as usize).is_some_and(|op| op.key == key)
    }

    /// Where an op begins among the events.
    pub(super) fn event(&self, op: u32) -> u64 {
        self.ops[op as usize].event
    }

    /// Blocks that the step has when this op begins, or at its end.
    pub(super) fn blocks_before(&self, op: u32) -> u32 {
        self.ops.get(op as usize).map_or(self.sizes.len() as u32, |op| op.blocks)
    }

    /// The blocks that are allocated in the step.
    pub(super) fn made(&self) -> Range<u32> {
        self.persistent..self.sizes.len() as u32
    }

    /// The op in whose stretch a block is allocated.
    pub(super) fn op_of(&self, block: u32) -> u32 {
        self.ops.partition_point(|op| op.blocks <= block).saturating_sub(1) as u32
    }

    /// The blocks that are allocated in an op's stretch.
    pub(super) fn blocks_of(&self, op: u32) -> Range<u32> {
        self.blocks_before(op)..self.blocks_before(op + 1)
    }

    pub(crate) fn size_bytes(&self, block: u32) -> u64 {
        self.sizes[block as usize]
    }

    /// How many blocks of any size came before this one since the last op began.
    pub(super) fn nth(&self, block: u32) -> u32 {
        self.nths[block as usize]
    }

    pub(crate) fn expects(&self) -> Sizes {
        self.expects
    }

    /// Which of these blocks, that come next, a fresh one is. Where sizes vary, it is the one that
    /// came as early in its op. One that comes before them all was small there, and a small one
    /// that is not told so is none of them. Else, as where an op makes less at some sizes, what is
    /// too small for those before it was left out, and one that is too large for all is the next.
    pub(super) fn find(&self, blocks: Range<u32>, fresh: Fresh) -> Option<u32> {
        let Fresh { size_bytes, is_small, nth, .. } = fresh;
        let next = blocks.start;
        match self.expects {
            _ if blocks.is_empty() => None,
            Sizes::Same => (!is_small && self.size_bytes(next) == size_bytes).then_some(next),
            Sizes::UpTo => {
                let fits = |block: u32| self.size_bytes(block) >= size_bytes;
                let is_as_early =
                    |&block: &u32| self.nth(block) == nth && (is_small || fits(block));
                let is_other = is_small || nth < self.nth(next);
                let by_size = || blocks.clone().find(|&block| fits(block)).unwrap_or(next);
                let as_early = blocks.clone().find(is_as_early);
                as_early.or_else(|| (!is_other).then(by_size))
            }
        }
    }

    /// What tells an op's stretch up to where the step has this many blocks.
    pub(super) fn stretch_until(&self, op: u32, blocks: u32) -> StretchKey {
        let sizes = &self.sizes[self.blocks_before(op) as usize..blocks as usize];
        let begun = self.ops[op as usize].key.stretch();
        let expects = self.expects;
        sizes.iter().fold(begun, |stretch, &size_bytes| stretch.allocating(size_bytes, expects))
    }

    /// Whether an op's stretch is this one.
    pub(super) fn has_stretch(&self, op: u32, stretch: StretchKey) -> bool {
        self.ops[op as usize].stretch == stretch
    }

    /// The ops that come behind these stretches, those around `near`.
    pub(super) fn behind(
        &self,
        stretches: impl Iterator<Item = StretchKey>,
        near: u32,
    ) -> impl Iterator<Item = u32> {
        let context = context(stretches);
        let start = self.index.partition_point(|&entry| entry < (context, 0));
        let middle = self.index.partition_point(|&entry| entry < (context, near));
        let end = self.index.partition_point(|&entry| entry <= (context, u32::MAX));
        let around = start.max(middle.saturating_sub(CANDIDATES))..end.min(middle + CANDIDATES);
        self.index[around].iter().map(|&(_, op)| op)
    }
}
