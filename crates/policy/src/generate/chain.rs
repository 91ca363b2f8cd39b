//! Chains: what it takes to drop a block whose recipe reads blocks that are gone by the time it is
//! made again.
//!
//! ```text
//!   op      1     2     3     4    ...   20    21    22
//!   a     make· read· · · · · · · · · · · · · ·read           lives: is used before 21
//!   b           make·read free ─ ─ ─ ─ ─ ─ ─ made             dropped behind 3, made for c
//!   c                 make·read━━━━━━━━━━━━━━━━made·read       the gap: from 4 to 21
//! ```
//!
//! Its owner frees `b` long before `c` is dropped. Dropped itself just before, it takes no memory,
//! and the engine keeps it as long as the plan may make `c` from it. Where `b` cannot be made again
//! but is freed only after `c` is dropped, it stays on the device until `c` is back.

use std::collections::BTreeMap;

use swap_core::Trace;

use super::RecomputeOption;
use crate::candidate::Gap;
use crate::usage::{NONE, Usage};

/// Links of one chain, at most.
const LINKS_MAX: usize = 24;

/// A freed block that is made again for another.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChainLink {
    pub(super) block: u32,
    /// The slots behind which it is dropped are this one and those of replays that use it later.
    pub(super) last_slot: i64,
    /// What making it again takes.
    pub(super) replay_us: f64,
}

/// What else happens if a block is dropped over a gap.
#[derive(Clone, Debug, Default)]
pub(super) struct Chain {
    /// Freed before the gap ends, and made again with the block.
    pub(super) links: Vec<ChainLink>,
    /// Freed in the gap; they stay on the device until its end.
    pub(super) kept: Vec<u32>,
    /// Alive at the gap's end, where they are used.
    pub(super) inputs: Vec<u32>,
    /// The time of the block's own replay; 0 if it does not come back.
    pub(super) own_us: f64,
    /// The most memory that the replays need beside the block and its inputs.
    pub(super) scratch_bytes: u64,
    /// What comes back for it before the op of the gap's end, once it is chosen.
    pub(super) forced_bytes: u64,
}

/// Finds chains.
pub(super) struct Chains<'a> {
    pub(super) trace: &'a Trace,
    pub(super) usage: &'a Usage,
    /// By block: the time of its replay; nothing if it may not be dropped.
    replay_us: Vec<Option<f64>>,
    min_block_bytes: u64,
}

/// One chain in the making.
struct Search<'a> {
    chains: &'a Chains<'a>,
    /// The event at which the block must be back, or is freed.
    end: u32,
    chain: Chain,
}

impl<'a> Chains<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        usage: &'a Usage,
        options: &[RecomputeOption],
        min_block_bytes: u64,
    ) -> Chains<'a> {
        let mut replay_us = vec![None; trace.blocks.len()];
        for option in options {
            replay_us[option.block.0 as usize] = Some(option.replay_us);
        }
        Chains { trace, usage, replay_us, min_block_bytes }
    }

    /// What dropping the block over a gap takes; nothing if that cannot be.
    pub(super) fn over(&self, gap: &Gap) -> Option<Chain> {
        let own_us = self.replay_us[gap.block as usize]?;
        let end = self.end_of(gap)?;
        let op = self.usage.slots.get(usize::try_from(gap.from).ok()?)?;
        let ops = if gap.early { &self.usage.op_begin } else { &self.usage.op_end };
        let left = ops[op.0 as usize];
        let chain = Chain { own_us: if gap.returns { own_us } else { 0.0 }, ..Chain::default() };
        let mut search = Search { chains: self, end, chain };
        let scratch_bytes = search.visit(gap.block, left)?;
        let returns = gap.returns;
        Some(Chain { scratch_bytes: if returns { scratch_bytes } else { 0 }, ..search.chain })
    }

    /// The event at which a gap ends, if that is in this step.
    fn end_of(&self, gap: &Gap) -> Option<u32> {
        if gap.returns {
            let op = self.usage.slots.get(gap.to as usize)?;
            return Some(self.usage.op_begin[op.0 as usize]);
        }
        (gap.freed != NONE && gap.again == gap.block).then_some(gap.freed)
    }

    /// The event with which a slot's op ends.
    pub(super) fn end_of_op(&self, slot: i64) -> Option<u32> {
        let op = self.usage.slots.get(usize::try_from(slot).ok()?)?;
        Some(self.usage.op_end[op.0 as usize])
    }

    /// The time of a block's replay; nothing if it may not be dropped.
    pub(super) fn replay_us(&self, block: u32) -> Option<f64> {
        self.replay_us[block as usize]
    }

    fn size_bytes(&self, block: u32) -> u64 {
        self.trace.blocks[block as usize].size_bytes
    }
}

impl Search<'_> {
    /// Adds what the recipe of a block reads that is dropped at an event. Returns the memory that
    /// the replay needs beside the block and what lives.
    fn visit(&mut self, block: u32, dropped: u32) -> Option<u64> {
        let usage = self.chains.usage;
        let (_, recipe) = usage.recipe_at(block as usize, dropped as usize)?;
        // The engine would bring it back before the write.
        if recipe.until_event <= self.end {
            return None;
        }
        let mut deepest_bytes = 0;
        for &input in &recipe.inputs {
            let freed = usage.freed[input as usize];
            if freed > self.end {
                if !self.chain.inputs.contains(&input) {
                    self.chain.inputs.push(input);
                }
            } else if !self.knows(input) {
                let before = self.chain.clone();
                if let Some(bytes) = self.link(input, freed) {
                    deepest_bytes = bytes.max(deepest_bytes);
                } else {
                    self.chain = before;
                    if freed <= dropped {
                        return None;
                    }
                    self.chain.kept.push(input);
                }
            }
        }
        Some(deepest_bytes + recipe.scratch.iter().sum::<u64>())
    }

    fn knows(&self, block: u32) -> bool {
        self.chain.kept.contains(&block) || self.chain.links.iter().any(|link| link.block == block)
    }

    /// Adds a block that is freed at an event to those that are dropped before.
    fn link(&mut self, block: u32, freed: u32) -> Option<u64> {
        let chains = self.chains;
        let size_bytes = chains.size_bytes(block);
        let replay_us = chains.replay_us[block as usize]?;
        let last_slot = i64::from(chains.usage.uses(block as usize).last()?.slot);
        let dropped = chains.end_of_op(last_slot).filter(|&end| end < freed)?;
        if self.chain.links.len() >= LINKS_MAX || size_bytes < chains.min_block_bytes {
            return None;
        }
        self.chain.links.push(ChainLink { block, last_slot, replay_us });
        Some(self.visit(block, dropped)? + size_bytes)
    }
}

/// A choice's need of a freed block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Need {
    pub(super) choice: u32,
    /// The row in which it is over.
    pub(super) row: usize,
    /// Whether the block is made again for it then.
    pub(super) replays: bool,
}

/// Freed blocks that chosen chains need: each is on the device from the first that makes it again
/// to the last that needs it.
#[derive(Debug, Default)]
pub(super) struct Needs(BTreeMap<u32, Vec<Need>>);

impl Needs {
    /// The rows in which a block is on the device for some needs and perhaps one more: the first,
    /// and the one behind the last. One that stays is so from the row in which it is freed.
    pub(super) fn stay(
        &self,
        block: u32,
        freed_row: Option<usize>,
        more: Option<Need>,
    ) -> Option<(usize, usize)> {
        let needs = || self.0.get(&block).into_iter().flatten().copied().chain(more);
        let last = needs().map(|need| need.row).max()?;
        let made = needs().filter(|need| need.replays).map(|need| need.row).min();
        let first = freed_row.map_or(made, |row| Some(row.min(last)))?;
        Some((first, last))
    }

    /// Whether a block is made again for somebody already.
    pub(super) fn is_made(&self, block: u32) -> bool {
        self.0.get(&block).is_some_and(|needs| needs.iter().any(|need| need.replays))
    }

    pub(super) fn add(&mut self, block: u32, need: Need) {
        self.0.entry(block).or_default().push(need);
    }

    pub(super) fn remove(&mut self, block: u32, choice: u32) {
        if let Some(needs) = self.0.get_mut(&block) {
            needs.retain(|need| need.choice != choice);
        }
    }
}
