//! How much memory a step needs where, with everything resident.

use swap_core::{Origin, Trace, TraceEvent};

use crate::candidate::Gap;
use crate::curve::Curve;
use crate::usage::Usage;

/// Bytes by row when everything stays resident.
pub(crate) fn need_curve(trace: &Trace, usage: &Usage) -> Vec<u64> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut live_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let mut segment_bytes = trace.segment_bytes;
    let mut curve = vec![0; usage.row_slot.len()];
    let mut started = 0;
    for (position, event) in trace.events.iter().enumerate() {
        let row = usage.event_row[position] as usize;
        // A row holds at least what the one before it left.
        for row in &mut curve[started..=row] {
            *row = live_bytes.max(*row);
        }
        started = row;
        match *event {
            TraceEvent::Allocate(block) => live_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => live_bytes -= trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Segments(bytes) => segment_bytes = segment_bytes.max(bytes),
            _ => {}
        }
        curve[row] = curve[row].max(live_bytes);
    }
    for row in &mut curve[started..] {
        *row = live_bytes.max(*row);
    }
    // What segments hold differs little from step to step: as if they were at their largest all the
    // time.
    curve.iter().map(|bytes| bytes + segment_bytes).collect()
}

/// The most bytes in each slot, of bytes by row.
pub(crate) fn by_slot(usage: &Usage, rows: &[u64]) -> Vec<u64> {
    let mut slots = vec![0; usage.slot_count()];
    for (bytes, &slot) in rows.iter().zip(&usage.row_slot) {
        let most = &mut slots[slot as usize];
        *most = (*bytes).max(*most);
    }
    slots
}

/// What each slot counts when the worth of a gap is weighed, and what no choice goes below.
pub(super) struct Scale {
    /// The weight of the slots before each one, as a share of all.
    sums: Vec<f64>,
    /// Bytes by row when every gap is used.
    pub(super) least: Vec<i64>,
    /// By slot: how much of its op's memory is not in use yet before it begins.
    pub(super) unused_bytes: Vec<u64>,
}

impl Scale {
    /// Slots count by their time and by how far they are above what can be reached at all.
    pub(super) fn new(
        trace: &Trace,
        usage: &Usage,
        need: &[u64],
        gaps: &[Gap],
        slot_us: &[f64],
    ) -> Scale {
        let mut least = Curve::new(need);
        for gap in gaps {
            let (start, count) = gap.rows(usage);
            least.add(start, count, -(trace.blocks[gap.block as usize].size_bytes as i64));
        }
        let unused_bytes = unused_bytes(trace, usage, need);
        let base = least.peak().1.max(0) as f64;
        let need = by_slot(usage, need);
        let peak = need.iter().copied().max().unwrap_or(0) as f64;
        let mean_us = slot_us.iter().sum::<f64>() / slot_us.len() as f64;
        let mut sums = vec![0.0];
        let mut sum = 0.0;
        for (bytes, us) in need.iter().zip(slot_us) {
            let height = ((*bytes as f64 - base) / (peak - base).max(1.0)).clamp(0.01, 1.0);
            sum += height * (us + 0.1 * mean_us + 1e-3);
            sums.push(sum);
        }
        let sums = sums.iter().map(|weight| weight / sum).collect();
        Scale { sums, least: least.values(), unused_bytes }
    }

    /// The part of the step's weight in `count` slots from `start` on, which may go round.
    pub(super) fn weight_of(&self, start: usize, count: usize) -> f64 {
        let slots = self.sums.len() - 1;
        let (start, end) = (start % slots, start % slots + count);
        let rounds = (end / slots) as f64;
        (rounds - self.sums[start] + self.sums[end % slots]).max(1e-9)
    }
}

/// By slot: the most bytes while its op runs, less those before it begins.
fn unused_bytes(trace: &Trace, usage: &Usage, need: &[u64]) -> Vec<u64> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut live_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let segments = trace.events.iter().filter_map(|event| match *event {
        TraceEvent::Segments(bytes) => Some(bytes),
        _ => None,
    });
    let segment_bytes = segments.fold(trace.segment_bytes, u64::max);
    let mut unused = vec![0; usage.slot_count()];
    for (position, event) in trace.events.iter().enumerate() {
        let slot = usage.event_slot[position] as usize;
        match *event {
            TraceEvent::Allocate(block) => live_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => live_bytes -= trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Begin(op) if usage.slots[slot] == op => {
                let most_bytes = need[usage.begin_row[slot] as usize];
                unused[slot] = most_bytes - live_bytes - segment_bytes;
            }
            _ => {}
        }
    }
    unused
}
