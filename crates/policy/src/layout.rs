//! Lays a planned step out in memory: each block finds its bytes in the same lot in all its stays
//! on the device, so that nothing has to be mapped while the plan runs.
//!
//! Time is the order of calls. A step follows a step, so a block that outlives one and the block
//! that it is in the next have one lot between them.

use swap_core::{Lot, Origin, Plan, Trace, TraceEvent};

use crate::check::check_trace;
use crate::simulate::{Residency, residency};
use crate::usage::{NONE, Usage};

mod pack;
mod place;
#[cfg(test)]
mod tests;

use pack::{Item, Stay, pack};

/// This part of a cap may be missing.
const TOLERATED_DIVISOR: u64 = 64;

/// Where the blocks of a step lie while its plan runs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// By [`BlockIndex`](swap_core::BlockIndex). Nothing for a block that is always on the device,
    /// or never, and for one whose like of the next step is there beside it: these have their
    /// memory elsewhere.
    pub lots: Vec<Option<Lot>>,
    /// The end of the highest lot.
    pub height_bytes: u64,
    /// The most bytes of blocks with lots that are on the device at once. No layout is lower.
    pub need_bytes: u64,
    /// The most bytes of blocks without lots that are on the device at once, and of segments.
    pub beside_bytes: u64,
}

impl Layout {
    /// What is too much under a cap. A little that is missing costs a few calls a step, as what
    /// lies idle then makes room, and is no excess.
    pub fn excess_bytes(&self, limit_bytes: u64) -> u64 {
        let all_bytes = self.height_bytes + self.beside_bytes;
        if all_bytes <= limit_bytes + limit_bytes / TOLERATED_DIVISOR {
            return 0;
        }
        all_bytes - limit_bytes
    }

    /// Height over need: 1 is perfect.
    pub fn ratio(&self) -> f64 {
        if self.need_bytes == 0 { 1.0 } else { self.height_bytes as f64 / self.need_bytes as f64 }
    }
}

/// Lays a step out for a plan. Depends on nothing but its arguments.
///
/// A trace that is not well formed ([`check_trace`](crate::check_trace)) gets no lots, nor does one
/// whose steps under the plan do not come to start alike.
pub fn lay_out(trace: &Trace, plan: &Plan) -> Layout {
    let mut layout = Layout { lots: vec![None; trace.blocks.len()], ..Layout::default() };
    if check_trace(trace).is_err() {
        return layout;
    }
    let usage = Usage::new(trace);
    let Some(residency) = residency(trace, &usage, plan) else { return layout };
    let (owners, items): (Vec<Vec<usize>>, Vec<Item>) =
        items(trace, &usage, &residency).into_iter().unzip();
    let packing = pack(&items);
    for ((owners, item), &offset_bytes) in owners.iter().zip(&items).zip(&packing.offsets) {
        for &owner in owners {
            layout.lots[owner] = Some(Lot { offset_bytes, size_bytes: item.size_bytes });
        }
    }
    layout.height_bytes = packing.height_bytes;
    layout.need_bytes = packing.need_bytes;
    layout.beside_bytes = beside_bytes(trace, &residency, &layout.lots);
    layout
}

/// What there is beside the lots, at most.
fn beside_bytes(trace: &Trace, residency: &Residency, lots: &[Option<Lot>]) -> u64 {
    let size_bytes = |block: usize| match lots[block] {
        None => trace.blocks[block].size_bytes,
        Some(_) => 0,
    };
    let at_start = residency.at_start.iter().enumerate().filter(|&(_, &resident)| resident);
    let mut now_bytes: u64 = at_start.map(|(block, _)| size_bytes(block)).sum();
    let mut most_bytes = now_bytes;
    for change in &residency.changes {
        let bytes = size_bytes(change.block as usize);
        now_bytes = match change.arrives {
            true => now_bytes + bytes,
            false => now_bytes.saturating_sub(bytes),
        };
        most_bytes = most_bytes.max(now_bytes);
    }
    let grown = trace.events.iter().filter_map(|event| match event {
        TraceEvent::Segments(size_bytes) => Some(*size_bytes),
        _ => None,
    });
    most_bytes + grown.max().unwrap_or(0).max(trace.segment_bytes)
}

/// Blocks that are one and the same in steps that follow each other.
#[derive(Clone, Default)]
struct Family {
    blocks: Vec<usize>,
    stays: Vec<Stay>,
}

/// What is to be packed, each with the blocks that it stands for.
fn items(trace: &Trace, usage: &Usage, residency: &Residency) -> Vec<(Vec<usize>, Item)> {
    let mut families = vec![Family::default(); trace.blocks.len()];
    let ancestors = ancestors(usage);
    for (block, stays) in stays(residency).into_iter().enumerate() {
        let family = &mut families[ancestors[block]];
        family.blocks.push(block);
        family.stays.extend(stays);
    }
    let whole = [(0, residency.changes.len() as u32)];
    let mut items = Vec::new();
    for Family { blocks, mut stays } in families {
        stays.sort_unstable();
        let moves = !stays.is_empty() && stays != whole;
        // What the step makes for the next one may live beside what the last step made.
        let alone = stays.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        if moves && alone && blocks.iter().all(|&block| returns(trace, usage, block)) {
            let size_bytes = trace.blocks[blocks[0]].size_bytes;
            items.push((blocks, Item { size_bytes, stays }));
        }
    }
    items
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
