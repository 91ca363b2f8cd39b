//! Why a block is no candidate for leaving, in words that a table can show.

use std::fmt;

use swap_core::{Origin, Trace};

use crate::candidate::{Gap, find_gaps};
use crate::generate::{GenerateConfig, Movable};
use crate::machine::Machine;
use crate::usage::{NONE, Usage};

/// Why letting a block go cannot help, or would cost more than it should.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Exclusion {
    /// Smaller than the least size that moves.
    TooSmall,
    /// It is used where the engine does not see it.
    Held,
    /// It lives from step to step, and only what the step makes may move.
    Persistent,
    /// Every op of its life uses it.
    PinnedThroughout,
    /// It does not live across a whole op without being used.
    NoGap,
    /// None of its gaps is over an op that needs more than the limit.
    NotOverPeak,
    /// In none of its gaps over such an op is there time to copy it out and back.
    GapTooShort,
}

impl fmt::Display for Exclusion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Exclusion::TooSmall => "smaller than the least size that moves",
            Exclusion::Held => "it is used where the engine does not see it",
            Exclusion::Persistent => "lives from step to step, and only activations move",
            Exclusion::PinnedThroughout => "every op of its life uses it",
            Exclusion::NoGap => "it never waits through a whole op",
            Exclusion::NotOverPeak => "in use wherever memory is short",
            Exclusion::GapTooShort => "too little time between its uses to copy it out and back",
        })
    }
}

/// By block: why it is not a good candidate; `None` for those that are.
pub(crate) fn exclusion(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    config: &GenerateConfig,
    need: &[u64],
) -> Vec<Option<Exclusion>> {
    let mut gaps: Vec<Vec<Gap>> = vec![Vec::new(); trace.blocks.len()];
    for gap in find_gaps(trace, usage) {
        gaps[gap.block as usize].push(gap);
    }
    let over = sums(need.iter().map(|&bytes| f64::from(u8::from(bytes > machine.limit_bytes))));
    let time_us = sums(usage.slot_us.iter().copied());
    let judge = |index: usize| {
        let size_bytes = trace.blocks[index].size_bytes;
        if size_bytes < config.min_block_bytes {
            return Some(Exclusion::TooSmall);
        }
        if trace.blocks[index].held {
            return Some(Exclusion::Held);
        }
        let persistent = trace.blocks[index].origin == Origin::Persistent;
        if persistent && config.movable == Movable::Activations {
            return Some(Exclusion::Persistent);
        }
        if gaps[index].is_empty() {
            let always = used_in_every_slot(usage, index);
            return Some(if always { Exclusion::PinnedThroughout } else { Exclusion::NoGap });
        }
        let over_peak = |gap: &&Gap| range_sum(&over, gap) > 0.0;
        if !gaps[index].iter().any(|gap| over_peak(&gap)) {
            return Some(Exclusion::NotOverPeak);
        }
        let round_trip_us = |gap: &Gap| {
            let out_us = if gap.clean { 0.0 } else { machine.out_us(size_bytes) };
            out_us + if gap.returns { machine.in_us(size_bytes) } else { 0.0 }
        };
        let long = |gap: &Gap| range_sum(&time_us, gap) >= round_trip_us(gap);
        let good = gaps[index].iter().filter(over_peak).any(long);
        (!good).then_some(Exclusion::GapTooShort)
    };
    (0..trace.blocks.len()).map(judge).collect()
}

fn used_in_every_slot(usage: &Usage, index: usize) -> bool {
    let uses = usage.uses(index);
    let (Some(first), Some(last)) = (uses.first(), uses.last()) else { return false };
    let mut slots: Vec<u32> = uses.iter().map(|use_| use_.slot).collect();
    slots.dedup();
    let freed = usage.freed[index];
    let end = if freed == NONE { last.slot } else { usage.event_slot[freed as usize] };
    slots.len() as u32 > end.saturating_sub(first.slot)
}

fn sums(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut sums = vec![0.0];
    let mut sum = 0.0;
    for value in values {
        sum += value;
        sums.push(sum);
    }
    sums
}

/// The sum over the slots of a gap, those that it covers twice counted once.
fn range_sum(sums: &[f64], gap: &Gap) -> f64 {
    let slots = sums.len() - 1;
    let (start, count) = gap.cover();
    let (start, count) = (start % slots, count.min(slots));
    let end = start + count;
    if end <= slots {
        sums[end] - sums[start]
    } else {
        sums[slots] - sums[start] + sums[end - slots]
    }
}
