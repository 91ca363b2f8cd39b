//! What copies to the host make others wait if they are early.
//!
//! ```text
//!   written      used         used                 peak
//!      ├──────────┼────────────┼──────── gap ────────┤
//!           copied early              copied late
//! ```
//!
//! A copy waits for the use before it, and the next use for the copy. So a copy that is made before
//! a block's last use lies between two uses of it, all of it, and the later one waits if the ops
//! between them take less time. The shortest such wait is what an early copy costs at least.

use swap_core::Trace;

use crate::candidate::Gap;
use crate::machine::Machine;
use crate::usage::{NONE, Usage, Use};

/// Stretches between uses that are looked at for one gap, at most. Of more nothing is said.
const STRETCHES_MAX: usize = 64;
/// Waits that are told apart, at most.
const LEVELS: usize = 12;
/// In a step of more gaps one block's wait is nothing beside what windows lack.
pub(super) const GAPS_MAX: usize = 200;

/// Waits to tell early copies apart by: some of those that there are, the longest first.
pub(super) fn levels(early_us: &[f64]) -> Vec<f64> {
    let mut waits_us: Vec<f64> =
        early_us.iter().copied().filter(|&us| us > 0.0 && us.is_finite()).collect();
    waits_us.sort_unstable_by(|one, other| other.total_cmp(one));
    waits_us.dedup();
    let apart = waits_us.len().div_ceil(LEVELS).max(1);
    waits_us.chunks(apart).filter_map(|part| part.last().copied()).collect()
}

/// What early copies are judged by.
pub(super) struct Early<'a> {
    pub(super) trace: &'a Trace,
    pub(super) usage: &'a Usage,
    pub(super) machine: &'a Machine,
    /// When each slot of two steps starts with nothing added.
    pub(super) times_us: &'a [f64],
}

impl Early<'_> {
    /// How long others wait at least, in microseconds, if a gap's bytes are copied before it
    /// starts. They were written so many slots `earlier`.
    pub(super) fn wait_us(&self, gap: &Gap, earlier: usize) -> f64 {
        if earlier == 0 {
            return f64::INFINITY;
        }
        let copy_us = self.machine.out_us(self.trace.blocks[gap.block as usize].size_bytes);
        let written = gap.from - earlier as i64;
        let mut least_us = copy_us;
        let mut later: Option<i64> = None;
        let mut stretches = 0;
        for (slot, in_op) in self.uses_before(gap) {
            if later == Some(slot) {
                continue;
            }
            // What is used outside of ops waits for nothing.
            if !in_op || stretches == STRETCHES_MAX {
                return 0.0;
            }
            if let Some(later) = later {
                least_us = least_us.min(copy_us - self.between_us(slot, later));
            }
            if slot <= written {
                return least_us.max(0.0);
            }
            later = Some(slot);
            stretches += 1;
        }
        0.0
    }

    /// The slots up to a gap that use its block, the last use first, and whether their ops do.
    /// Those of the step before are below 0.
    fn uses_before(&self, gap: &Gap) -> impl Iterator<Item = (i64, bool)> {
        let usage = self.usage;
        let slots = usage.slot_count() as i64;
        let before = match usage.predecessor[gap.block as usize] {
            NONE => &[][..],
            block => usage.uses(block as usize),
        };
        let placed = move |use_: &Use| {
            let op = usage.slots.get(use_.slot as usize);
            let in_op = op.is_some_and(|op| usage.op_begin[op.0 as usize] <= use_.event);
            (i64::from(use_.slot), in_op)
        };
        let own = usage.uses(gap.block as usize).iter().rev().map(placed);
        let own = own.skip_while(|&(slot, _)| slot > gap.from);
        let earlier = before.iter().rev().map(placed);
        own.chain(earlier.map(move |(slot, in_op)| (slot - slots, in_op)))
    }

    /// What the ops between two slots take.
    fn between_us(&self, slot: i64, later: i64) -> f64 {
        let start_us = |slot: i64| self.times_us[(slot + self.usage.slot_count() as i64) as usize];
        (start_us(later) - start_us(slot + 1)).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::window::slot_starts;
    use super::{Early, levels};
    use crate::candidate::find_gaps;
    use crate::machine::{Link, Machine};
    use crate::synthetic::TraceBuilder;
    use crate::usage::Usage;

    /// A block that ops of 1,000, 500 and 200 us do not use, between those that do.
    #[test]
    fn an_early_copy_lies_between_two_uses() {
        let mut builder = TraceBuilder::new();
        builder.begin("make", 300.0, false);
        let block = builder.allocate("block", 10_000);
        builder.write(block);
        builder.end();
        for idle_us in [1_000.0, 500.0, 200.0] {
            builder.begin("idle", idle_us, false);
            builder.end();
            builder.begin("use", 5_000.0, false);
            builder.read(block);
            builder.end();
        }
        let trace = builder.finish();
        let usage = Usage::new(&trace);
        let gaps = find_gaps(&trace, &usage);
        let link = Link { out_bytes_per_us: 4.0, in_bytes_per_us: 4.0, both_bytes_per_us: 4.0 };
        let machine =
            Machine { limit_bytes: 1 << 20, host_limit_bytes: 1 << 20, link, copy_submit_us: 8.0 };
        let times_us = slot_starts(&trace, &usage);
        let early = Early { trace: &trace, usage: &usage, machine: &machine, times_us: &times_us };
        // The copy takes 2,508 us.
        let waits: Vec<f64> =
            gaps.iter().map(|gap| early.wait_us(gap, gap.from as usize)).collect();
        assert_eq!(waits[..3], [f64::INFINITY, 1_508.0, 1_508.0]);
        assert_eq!(levels(&waits), [1_508.0]);
    }
}
