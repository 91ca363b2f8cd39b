//! Lays a planned step out in memory: each block finds its bytes in the same lot in all its stays
//! on the device, so that nothing has to be mapped while the plan runs.
//!
//! Time is the order of calls. A step follows a step, so a block that outlives one and the block
//! that it is in the next have one lot between them. What is kept until the next step has made its
//! like, as a loop keeps its last loss and logits, needs two lots, and steps take turns: what lies
//! in one of them in a step, lies in the other in the step behind it.
//!
//! ```text
//!   turn 0   A ___#######     turn 1   A ####_____     turn 0   A ___#######
//!            B ####______              B ___######              B ####______
//! ```
//!
//! Others lie where these are not, in each turn in another place.

use swap_core::{Lot, LotPiece, Plan, Trace, TraceEvent};

use crate::check::check_trace;
use crate::machine::Machine;
use crate::simulate::{Change, Residency, laid_out_us, residency};
use crate::usage::Usage;

mod lineage;
mod meeting;
mod nested;
mod pack;
mod place;
#[cfg(test)]
mod tests;

use lineage::{Lineage, lineages};
pub use nested::nested;
use pack::pack_pressed;
pub use pack::{Item, Packing, Stay, pack};

/// This part of a cap may be missing.
const TOLERATED_DIVISOR: u64 = 32;

/// Where something gets a lot by that, steps take turns if a step would take more than so many
/// times what it takes where nobody waits for a lot.
const WAITED_FOR: f64 = 1.001;

/// Where the blocks of a step lie while its plan runs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Layout {
    /// By turn, then by [`BlockIndex`](swap_core::BlockIndex): steps take one or two turns. Nothing
    /// for a block that is always on the device, or never, and for one of which more than two are
    /// there at once: these have their memory elsewhere.
    pub turns: Vec<Vec<Option<Lot>>>,
    /// What lots above `height_bytes` show, in the order of where: they are in pieces, as there
    /// was no room for them in one place.
    pub pieces: Vec<LotPiece>,
    /// The end of the highest memory.
    pub height_bytes: u64,
    /// The most bytes of blocks with lots that are on the device at once. No layout is lower.
    pub need_bytes: u64,
    /// The most bytes of blocks without lots that are on the device at once, and of segments.
    pub beside_bytes: u64,
    /// What the step takes where its blocks lie so, in microseconds: a block waits until what was
    /// in its lot is copied.
    pub step_us: f64,
}

impl Layout {
    /// What the step holds where its blocks lie so, at most.
    pub fn total_bytes(&self) -> u64 {
        self.height_bytes + self.beside_bytes
    }

    /// What is too much under a cap. Each step takes it from idle lots, and makes and maps it again
    /// for those that share it.
    pub fn excess_bytes(&self, limit_bytes: u64) -> u64 {
        self.total_bytes().saturating_sub(limit_bytes)
    }

    /// Whether it saves calls under a cap, though a little may be too much.
    pub fn is_useful(&self, limit_bytes: u64) -> bool {
        let tolerated_bytes = limit_bytes / TOLERATED_DIVISOR;
        self.height_bytes > 0 && self.excess_bytes(limit_bytes) <= tolerated_bytes
    }

    /// Height over need: 1 is perfect.
    pub fn ratio(&self) -> f64 {
        if self.need_bytes == 0 { 1.0 } else { self.height_bytes as f64 / self.need_bytes as f64 }
    }
}

/// Lays a step out for a plan on a machine. Depends on nothing but its arguments.
///
/// Where there is room, the lot of a block that leaves is not given to others before the block is
/// copied: they would wait for that.
///
/// A trace that is not well formed ([`check_trace`](crate::check_trace)) gets no lots, nor does one
/// whose steps under the plan do not come to start alike.
pub fn lay_out(trace: &Trace, plan: &Plan, machine: &Machine) -> Layout {
    let none = || Layout { turns: vec![vec![None; trace.blocks.len()]], ..Layout::default() };
    if check_trace(trace).is_err() {
        return none();
    }
    let usage = Usage::new(trace);
    let Some(residency) = residency(trace, &usage, plan, machine) else { return none() };
    let laid_out = |lineages: &[Lineage], turns: u32| {
        let layout = packed(trace, &residency, lineages, turns, machine.limit_bytes);
        let step_us = laid_out_us(trace, &usage, plan, machine, &layout);
        Layout { step_us, ..layout }
    };
    let lineages = |turns: u32| lineages(trace, &usage, &residency, turns);
    let alone = lineages(1);
    let one = laid_out(&alone, 1);
    let rank = |layout: &Layout| (layout.excess_bytes(machine.limit_bytes), layout.step_us);
    if rank(&one) <= (0, residency.step_us * WAITED_FOR) {
        return one;
    }
    // Each turn has addresses of its own to map, and packing twice as much takes twice as long.
    let by_turns = lineages(2);
    if has_lot(trace, &by_turns) == has_lot(trace, &alone) {
        return one;
    }
    let two = laid_out(&by_turns, 2);
    if rank(&two) < rank(&one) { two } else { one }
}

/// Lots that are low enough under a cap, if that is found.
fn packed(
    trace: &Trace,
    residency: &Residency,
    lineages: &[Lineage],
    turns: u32,
    limit_bytes: u64,
) -> Layout {
    let [need_bytes, beside_bytes] = most_bytes(trace, residency, &has_lot(trace, lineages));
    let items = |left_alone: bool| -> Vec<Item> {
        let cleared = cleared(residency, left_alone);
        lineages.iter().map(|lineage| lineage.item(trace, &cleared, turns)).collect()
    };
    let enough_bytes = limit_bytes.saturating_sub(beside_bytes);
    let packing = pack_pressed(&items(true), &items(false), enough_bytes);
    Layout { need_bytes, beside_bytes, ..in_lots(trace, lineages, turns, packing) }
}

/// Lots for all blocks of these lineages, those in pieces beyond the others.
fn in_lots(trace: &Trace, lineages: &[Lineage], turns: u32, packing: Packing) -> Layout {
    let Packing { spots, height_bytes, .. } = packing;
    let turns = vec![vec![None; trace.blocks.len()]; turns as usize];
    let mut layout = Layout { turns, height_bytes, ..Layout::default() };
    let mut beyond_bytes = height_bytes;
    for (lineage, spots) in lineages.iter().zip(&spots) {
        let lot = match spots[..] {
            [lot] => lot,
            _ => {
                let start_bytes = beyond_bytes;
                for &memory in spots {
                    layout.pieces.push(LotPiece { shown_at_bytes: beyond_bytes, memory });
                    beyond_bytes += memory.size_bytes;
                }
                Lot { offset_bytes: start_bytes, size_bytes: beyond_bytes - start_bytes }
            }
        };
        lineage.members.iter().for_each(|it| layout.turns[it.turn][it.block] = Some(lot));
    }
    layout
}

/// By block.
fn has_lot(trace: &Trace, lineages: &[Lineage]) -> Vec<bool> {
    let mut has_lot = vec![false; trace.blocks.len()];
    for member in lineages.iter().flat_map(|lineage| &lineage.members) {
        has_lot[member.block] = true;
    }
    has_lot
}

/// By change: before which one the bytes of a block that leaves are not to be given to another,
/// which would wait for its copy. Changes of the next step come behind those of this one.
fn cleared(residency: &Residency, left_alone: bool) -> Vec<u32> {
    let changes = &residency.changes;
    let cleared = |at: usize| {
        let leaves = &changes[at];
        let until_us = if left_alone { leaves.bytes_us } else { leaves.called_us };
        let next = changes[..at].iter().map(|change| (change, residency.step_us));
        let later = changes[at..].iter().map(|change| (change, 0.0)).chain(next);
        let meanwhile =
            later.take_while(|(change, after_us)| change.called_us + after_us < until_us);
        let waits = |&(change, after_us): &(&Change, f64)| {
            change.arrives && change.bytes_us + after_us < until_us
        };
        let waiting = meanwhile.zip(at + 1..).filter(|(change, _)| waits(change));
        waiting.last().map_or(at, |(_, next)| next)
    };
    (0..changes.len()).map(|at| cleared(at) as u32).collect()
}

/// What there is in lots and beside them, at most.
fn most_bytes(trace: &Trace, residency: &Residency, has_lot: &[bool]) -> [u64; 2] {
    let (mut now_bytes, mut most_bytes) = ([0_u64; 2], [0_u64; 2]);
    let mut change = |block: usize, arrives: bool| {
        let beside = usize::from(!has_lot[block]);
        let size_bytes = trace.blocks[block].size_bytes;
        now_bytes[beside] = match arrives {
            true => now_bytes[beside] + size_bytes,
            false => now_bytes[beside].saturating_sub(size_bytes),
        };
        most_bytes[beside] = most_bytes[beside].max(now_bytes[beside]);
    };
    let at_start = residency.at_start.iter().enumerate().filter(|&(_, &resident)| resident);
    at_start.for_each(|(block, _)| change(block, true));
    for it in &residency.changes {
        change(it.block as usize, it.arrives);
    }
    let grown = trace.events.iter().filter_map(|event| match event {
        TraceEvent::Segments(size_bytes) => Some(*size_bytes),
        _ => None,
    });
    most_bytes[1] += grown.max().unwrap_or(0).max(trace.segment_bytes);
    most_bytes
}
