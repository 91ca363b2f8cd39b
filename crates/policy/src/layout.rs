//! Lays a planned step out in memory: each block finds its bytes in the same lot in all its stays
//! on the device, so that nothing has to be mapped while the plan runs.
//!
//! Time is the order of calls. A step follows a step, so a block that outlives one and the block
//! that it is in the next have one lot between them.

use swap_core::{Lot, LotPiece, Origin, Plan, Trace, TraceEvent};

use crate::check::check_trace;
use crate::machine::Machine;
use crate::simulate::{Change, Residency, laid_out_us, residency};
use crate::usage::{NONE, Usage};

mod meeting;
mod nested;
mod pack;
mod place;
#[cfg(test)]
mod tests;

pub use nested::nested;
use pack::pack_pressed;
pub use pack::{Item, Packing, Stay, pack};

/// This part of a cap may be missing.
const TOLERATED_DIVISOR: u64 = 32;

/// Where the blocks of a step lie while its plan runs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Layout {
    /// By [`BlockIndex`](swap_core::BlockIndex). Nothing for a block that is always on the device,
    /// or never, and for one whose like of the next step is there beside it: these have their
    /// memory elsewhere.
    pub lots: Vec<Option<Lot>>,
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
    let none = || Layout { lots: vec![None; trace.blocks.len()], ..Layout::default() };
    if check_trace(trace).is_err() {
        return none();
    }
    let usage = Usage::new(trace);
    let Some(residency) = residency(trace, &usage, plan, machine) else { return none() };
    let lineages = lineages(trace, &usage, &residency);
    let has_lot = has_lot(trace, &lineages);
    let [need_bytes, beside_bytes] = most_bytes(trace, &residency, &has_lot);
    let items = |left_alone: bool| -> Vec<Item> {
        let cleared = cleared(&residency, left_alone);
        lineages.iter().map(|lineage| lineage.item(trace, &cleared)).collect()
    };
    let enough_bytes = machine.limit_bytes.saturating_sub(beside_bytes);
    let packing = pack_pressed(&items(true), &items(false), enough_bytes);
    let layout = Layout { need_bytes, beside_bytes, ..in_lots(trace, &lineages, packing) };
    let step_us = laid_out_us(trace, &usage, plan, machine, &layout);
    Layout { step_us, ..layout }
}

/// Lots for all blocks of these lineages, those in pieces beyond the others.
fn in_lots(trace: &Trace, lineages: &[Lineage], packing: Packing) -> Layout {
    let Packing { spots, height_bytes, .. } = packing;
    let lots = vec![None; trace.blocks.len()];
    let mut layout = Layout { lots, height_bytes, ..Layout::default() };
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
        lineage.blocks.iter().for_each(|&owner| layout.lots[owner] = Some(lot));
    }
    layout
}

/// By block.
fn has_lot(trace: &Trace, lineages: &[Lineage]) -> Vec<bool> {
    let mut has_lot = vec![false; trace.blocks.len()];
    for &block in lineages.iter().flat_map(|lineage| &lineage.blocks) {
        has_lot[block] = true;
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

/// Blocks that are one and the same in steps that follow each other.
#[derive(Clone, Default)]
struct Lineage {
    blocks: Vec<usize>,
    stays: Vec<Stay>,
}

impl Lineage {
    /// What is to be packed. Each stay goes on until its bytes are cleared, or the next begins;
    /// the last one into the next step.
    fn item(&self, trace: &Trace, cleared: &[u32]) -> Item {
        let count = cleared.len() as u32;
        let first = self.stays[0].0;
        let until = |end: u32| cleared.get(end as usize).map_or(end, |&until| until.max(end));
        let starts = self.stays[1..].iter().map(|stay| stay.0).chain([count + first]);
        let ends = self.stays.iter().zip(starts).map(|(stay, next)| until(stay.1).min(next));
        let ends: Vec<u32> = ends.collect();
        let beyond = ends[ends.len() - 1].saturating_sub(count);
        let last_step = (beyond > 0).then_some((0, beyond));
        let stays = self.stays.iter().zip(&ends).map(|(stay, &end)| (stay.0, end.min(count)));
        Item {
            size_bytes: trace.blocks[self.blocks[0]].size_bytes,
            stays: last_step.into_iter().chain(stays).collect(),
        }
    }
}

/// What has a lot.
fn lineages(trace: &Trace, usage: &Usage, residency: &Residency) -> Vec<Lineage> {
    let mut lineages = vec![Lineage::default(); trace.blocks.len()];
    let ancestors = ancestors(usage);
    for (block, stays) in stays(residency).into_iter().enumerate() {
        let lineage = &mut lineages[ancestors[block]];
        lineage.blocks.push(block);
        lineage.stays.extend(stays);
    }
    let whole = [(0, residency.changes.len() as u32)];
    lineages.retain_mut(|Lineage { blocks, stays }| {
        stays.sort_unstable();
        let moves = !stays.is_empty() && *stays != whole;
        // What the step makes for the next one may live beside what the last step made.
        let alone = stays.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        moves && alone && blocks.iter().all(|&block| returns(trace, usage, block))
    });
    lineages
}

/// By block: the first of those that are one block in steps that follow each other.
fn ancestors(usage: &Usage) -> Vec<usize> {
    let mut ancestors: Vec<usize> = (0..usage.successor.len()).collect();
    // Survivors close up, so nobody's successor comes after it.
    for block in (0..ancestors.len()).rev() {
        let successor = usage.successor[block];
        if successor != NONE {
            ancestors[successor as usize] = ancestors[block];
        }
    }
    ancestors
}

/// Whether what a step finds of a block is what the last step left of one.
fn returns(trace: &Trace, usage: &Usage, block: usize) -> bool {
    let persistent = trace.blocks[block].origin == Origin::Persistent;
    let found = !persistent || usage.predecessor[block] != NONE;
    let left = usage.freed[block] != NONE || usage.successor[block] != NONE;
    found && left
}

/// By block: from which change to which it is on the device.
fn stays(residency: &Residency) -> Vec<Vec<Stay>> {
    let mut stays = vec![Vec::new(); residency.at_start.len()];
    let mut since: Vec<Option<u32>> =
        residency.at_start.iter().map(|&resident| resident.then_some(0)).collect();
    for (now, change) in (0..).zip(&residency.changes) {
        let block = change.block as usize;
        match since[block].take() {
            _ if change.arrives => since[block] = Some(now),
            Some(start) if start < now => stays[block].push((start, now)),
            _ => {}
        }
    }
    let end = residency.changes.len() as u32;
    for (block, since) in since.into_iter().enumerate() {
        stays[block].extend(since.filter(|&start| start < end).map(|start| (start, end)));
    }
    stays
}
