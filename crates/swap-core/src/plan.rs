//! What to move, and when: the planner's answer and the executor's orders.

use crate::trace::{BlockIndex, OpIndex, Origin, Signature, Trace};

/// Actions for one kind of step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Plan {
    /// The step it was made for.
    pub signature: Signature,
    /// Number of ops of that step.
    pub op_count: u32,
    /// The blocks that actions name, to check that the step still is what it was.
    /// Sorted by index.
    pub blocks: Vec<PlanBlock>,
    /// In order of execution: by op, then phase, then position here.
    pub actions: Vec<Action>,
}

impl Plan {
    /// Whether it means blocks as `trace` has them. Steps of one kind can differ in that: a kind is
    /// told by what its ops do, and what lies about untouched counts among the blocks as well.
    pub fn knows(&self, trace: &Trace) -> bool {
        let is_there = |block: &PlanBlock| {
            trace.blocks.get(block.index.0 as usize).is_some_and(|found| {
                (found.size_bytes, found.origin) == (block.size_bytes, block.origin)
            })
        };
        let is_named = |action: &Action| {
            self.blocks.binary_search_by_key(&action.block, |block| block.index).is_ok()
        };
        self.blocks.iter().all(is_there) && self.actions.iter().all(is_named)
    }
}

/// What a planned block must look like when it turns up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanBlock {
    /// Its place in the step.
    pub index: BlockIndex,
    /// Its physical bytes.
    pub size_bytes: u64,
    /// Its producer.
    pub origin: Origin,
}

/// One move of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Action {
    /// The op at which it is issued.
    pub op: OpIndex,
    /// Before the op begins or after it ends.
    pub phase: Phase,
    /// What to do.
    pub kind: ActionKind,
    /// The block.
    pub block: BlockIndex,
    /// The op by whose begin (coming back) or end (going away) it should be done; a wish that
    /// reports and timelines show, nothing breaks when it is late.
    /// For moves that wrap around the step's end it may lie before `op`.
    ///
    /// A discard is due at its own op; at another one if the block is dropped for others that are
    /// made from it, dropped later, and back by then. It then stays to be replayed although its
    /// owner may free it before they are dropped.
    pub due: OpIndex,
}

/// When, relative to its op, an action is issued.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Before the op begins.
    Begin,
    /// After the op has ended.
    End,
}

/// What an action does. An action that finds its block already there, or pinned, does nothing.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ActionKind {
    /// Copy to host memory and give the chunk away. No copy if the host has the bytes already.
    SwapOut,
    /// Take a chunk and copy the bytes back.
    SwapIn,
    /// Drop the bytes; they come back by replaying their producer. On a block without a valid
    /// recipe it does nothing.
    Discard,
    /// Replay the producer now, ahead of the touch that needs it.
    Replay,
}
