//! The step cut at some of its slots, and the time between.
//!
//! ```text
//!   piece     0      1      2      3      4   ...   2n - 1
//!          │ op of │ ops │ op of │ ops │ ...      │ ops, round to cut 0 │
//!          │ cut 0 │     │ cut 1 │     │          │                     │
//! ```
//!
//! Waits before an op belong to the piece before that op.

use swap_core::Trace;

use crate::usage::Usage;

/// A slot at which the step is cut.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) slot: usize,
    /// Bytes that must be away while its op runs.
    pub(super) excess_bytes: u64,
}

/// The cuts of a step in order, and the time of its pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    slot_count: usize,
    pub(super) cuts: Vec<Cut>,
    /// By piece: what its ops take with nothing added.
    pub(super) free_us: Vec<f64>,
}

impl Pieces {
    /// The step cut at these slots, of which there is one at least, each with what must be away.
    pub(super) fn new(
        trace: &Trace,
        usage: &Usage,
        excess_bytes: impl Fn(usize) -> u64,
        mut slots: Vec<usize>,
    ) -> Pieces {
        slots.sort_unstable();
        slots.dedup();
        let op_us = |slot: usize| {
            let op = usage.slots.get(slot);
            op.map_or(0.0, |op| trace.ops[op.0 as usize].device_us)
        };
        let slot_count = usage.slot_count();
        let mut free_us = Vec::with_capacity(2 * slots.len());
        for (number, &slot) in slots.iter().enumerate() {
            let next = slots.get(number + 1).copied();
            let round = if next.is_none() { 0..slots[0] } else { 0..0 };
            free_us.push(op_us(slot));
            free_us.push((slot + 1..next.unwrap_or(slot_count)).chain(round).map(op_us).sum());
        }
        let cut = |slot| Cut { slot, excess_bytes: excess_bytes(slot) };
        Pieces { slot_count, cuts: slots.into_iter().map(cut).collect(), free_us }
    }

    /// The number of pieces.
    pub(super) fn count(&self) -> usize {
        self.free_us.len()
    }

    /// The number of cuts up to a slot, that one included. Slots below 0 are those of steps
    /// before, and slots behind the step's last those of later ones.
    pub(super) fn cuts_until(&self, slot: i64) -> i64 {
        let slots = self.slot_count as i64;
        let within = slot.rem_euclid(slots) as usize;
        let own = self.cuts.partition_point(|cut| cut.slot <= within);
        slot.div_euclid(slots) * self.cuts.len() as i64 + own as i64
    }

    /// The cut at or before a slot of the step, going round, and whether it is at the slot.
    pub(super) fn cut_at(&self, slot: usize) -> (usize, bool) {
        let count = self.cuts.len();
        let until = self.cuts.partition_point(|cut| cut.slot <= slot);
        let cut = (until + count - 1) % count;
        (cut, self.cuts[cut].slot == slot)
    }
}

/// The slots above the limit, or where there are more than so many the highest of each stretch.
/// Stretches have about as many slots and bytes that it `turns` as each other, both together.
pub(super) fn highest_slots(excess_bytes: &[u64], turns: &[u64], most: usize) -> Vec<usize> {
    let above: Vec<usize> =
        (0..excess_bytes.len()).filter(|&slot| excess_bytes[slot] > 0).collect();
    if above.len() <= most {
        return above;
    }
    let sum: u64 = above.iter().map(|&slot| turns[slot]).sum();
    let mean_bytes = (sum as f64 / above.len() as f64).max(1.0);
    let weight = |slot: usize| 1.0 + turns[slot] as f64 / mean_bytes;
    let stretch = above.iter().map(|&slot| weight(slot)).sum::<f64>() / most as f64;
    let mut highest: Vec<usize> = Vec::new();
    let (mut seen, mut stretches) = (0.0, 0.0);
    for slot in above {
        if seen >= stretches * stretch {
            stretches = (seen / stretch).floor() + 1.0;
            highest.push(slot);
        }
        let last = highest.len() - 1;
        if excess_bytes[slot] >= excess_bytes[highest[last]] {
            highest[last] = slot;
        }
        seen += weight(slot);
    }
    highest
}
