//! A lower bound on the time that any plan adds to a step.
//!
//! In the slot that needs the most, the bytes above the limit must be away. Those that are needed
//! again must all come back by the step's next use of them, and those that change must leave
//! first; the link has a rate. Both take time of their own, one before that slot and one after it.
//! Dropping blocks saves link time for replay time.

use swap_core::{Origin, Trace, TraceEvent};

mod replays;

use replays::{Replays, Way};

use crate::candidate::{Gap, find_gaps};
use crate::generate::RecomputeOption;
use crate::machine::{Link, Machine};
use crate::usage::{NONE, Usage};

/// The bound for the worst slot, in microseconds.
pub(crate) fn bound_us(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    options: &[RecomputeOption],
) -> f64 {
    let Some((peak, forced_bytes)) = forced(trace, usage) else { return 0.0 };
    let excess_bytes = forced_bytes.saturating_sub(machine.limit_bytes);
    if excess_bytes == 0 {
        return 0.0;
    }
    let slot_count = usage.slot_count();
    let gaps = find_gaps(trace, usage);
    let first = first_leaves(&gaps, slot_count);
    let over: Vec<Gap> = gaps.into_iter().filter(|gap| gap.covers(peak, slot_count)).collect();
    let window = Window {
        trace,
        link: machine.link,
        replays: Replays::new(trace, usage, options, &over),
        excess_bytes,
        peak,
        times_us: slot_starts(trace, usage),
    };
    window.both_us(&window.ways_back(&over), &window.ways_out(&over, &first))
}

/// By version of a block's bytes: the slot after which they could leave for the first time. A copy
/// to the host serves all gaps with the same version.
fn first_leaves(gaps: &[Gap], slot_count: usize) -> Vec<i64> {
    let versions = gaps.iter().map(|gap| gap.version as usize + 1).max().unwrap_or(0);
    let mut first = vec![i64::MAX; versions];
    for gap in gaps {
        let earliest = &mut first[gap.version as usize];
        *earliest = position(gap, slot_count).min(*earliest);
    }
    first
}

/// Where a gap starts, seen from the step in which it ends.
fn position(gap: &Gap, slot_count: usize) -> i64 {
    let next_step = gap.to > slot_count as i64;
    gap.from - if next_step { slot_count as i64 } else { 0 }
}

/// The slot with the most bytes that cannot but be there or in a gap, and how many these are.
///
/// That is less than all live bytes: a block that a slot uses may be away in other parts of it.
fn forced(trace: &Trace, usage: &Usage) -> Option<(usize, u64)> {
    let segments = trace.events.iter().filter_map(|event| match *event {
        TraceEvent::Segments(bytes) => Some(bytes),
        _ => None,
    });
    let segment_bytes = segments.fold(trace.segment_bytes, u64::max);
    let mut forced = Forced {
        trace,
        live: trace.blocks.iter().map(|block| block.origin == Origin::Persistent).collect(),
        pins: vec![0; trace.blocks.len()],
        used_in: vec![NONE; trace.blocks.len()],
        open: Vec::new(),
        forced_bytes: 0,
    };
    for index in 0..trace.blocks.len() {
        forced.forced_bytes += if forced.live[index] { trace.blocks[index].size_bytes } else { 0 };
    }
    let mut most = None;
    let mut start = 0;
    while start < trace.events.len() {
        let slot = usage.event_slot[start];
        let end = start + usage.event_slot[start..].partition_point(|&other| other == slot);
        forced.enter(slot, &trace.events[start..end]);
        for &event in &trace.events[start..end] {
            forced.step(slot, event);
            let bytes = forced.forced_bytes + segment_bytes;
            if most.is_none_or(|(_, least)| bytes > least) {
                most = Some((slot as usize, bytes));
            }
        }
        forced.leave(slot, &trace.events[start..end]);
        start = end;
    }
    most
}

/// Counts live blocks that are pinned or not used in the present slot.
struct Forced<'a> {
    trace: &'a Trace,
    live: Vec<bool>,
    pins: Vec<u32>,
    used_in: Vec<u32>,
    open: Vec<Vec<usize>>,
    forced_bytes: u64,
}

impl Forced<'_> {
    fn counts(&self, index: usize, slot: u32) -> bool {
        self.live[index] && (self.pins[index] > 0 || self.used_in[index] != slot)
    }

    fn change(&mut self, index: usize, slot: u32, change: impl FnOnce(&mut Self)) {
        let size_bytes = self.trace.blocks[index].size_bytes;
        let before = self.counts(index, slot);
        change(self);
        match (before, self.counts(index, slot)) {
            (true, false) => self.forced_bytes -= size_bytes,
            (false, true) => self.forced_bytes += size_bytes,
            _ => {}
        }
    }

    fn enter(&mut self, slot: u32, events: &[TraceEvent]) {
        for event in events {
            if let TraceEvent::Touch(block, _) | TraceEvent::Allocate(block) = *event {
                let index = block.0 as usize;
                self.change(index, slot, |state| state.used_in[index] = slot);
            }
        }
    }

    fn leave(&mut self, slot: u32, events: &[TraceEvent]) {
        for event in events {
            if let TraceEvent::Touch(block, _) | TraceEvent::Allocate(block) = *event {
                let index = block.0 as usize;
                self.change(index, slot, |state| state.used_in[index] = NONE);
            }
        }
    }

    fn step(&mut self, slot: u32, event: TraceEvent) {
        match event {
            TraceEvent::Begin(_) => self.open.push(Vec::new()),
            TraceEvent::End(_) => {
                for index in self.open.pop().expect("ops nest in a well-formed trace") {
                    self.change(index, slot, |state| state.pins[index] -= 1);
                }
            }
            TraceEvent::Touch(block, _) | TraceEvent::Allocate(block) => {
                let index = block.0 as usize;
                let pinned = !self.open.is_empty();
                self.change(index, slot, |state| {
                    state.live[index] = true;
                    state.pins[index] += u32::from(pinned);
                });
                if let Some(pinned) = self.open.last_mut() {
                    pinned.push(index);
                }
            }
            TraceEvent::Free(block) => {
                let index = block.0 as usize;
                self.change(index, slot, |state| state.live[index] = false);
            }
            TraceEvent::Segments(_) => {}
        }
    }
}

struct Window<'a> {
    trace: &'a Trace,
    link: Link,
    replays: Replays,
    excess_bytes: u64,
    peak: usize,
    /// When each slot of this step and the next starts.
    times_us: Vec<f64>,
}

/// Bytes that must be moved or made again in a stretch of the step beside its peak.
struct Part {
    /// Its length in slots.
    distance: usize,
    bytes: f64,
    /// Its length in time, with nothing added.
    window_us: f64,
}

impl Window<'_> {
    /// What must be added so that the bytes of both ways are moved or made again.
    fn added_us(&self, out: Option<&Part>, back: Option<&Part>) -> f64 {
        let way = |part: Option<&Part>, bytes_per_us: f64| {
            let part = part.filter(|part| part.bytes > 0.0)?;
            Some(Way { bytes: part.bytes, bytes_per_us, window_us: part.window_us })
        };
        let out_way = way(out, self.link.out_bytes_per_us);
        let back_way = way(back, self.link.in_bytes_per_us);
        // Replays come between the peak and the step's end. A way out that starts there has their
        // time, too.
        if out_way.is_some() && out.is_some_and(|part| part.distance > self.peak) {
            return self.replays.added_around_us(out_way, back_way);
        }
        self.replays.added_us(out_way, back_way)
    }

    /// The most that must be added on the way out and on the way back, in parts of the step that
    /// do not overlap. Each list has the nearest parts first.
    fn both_us(&self, back: &[Part], out: &[Part]) -> f64 {
        let slot_count = self.times_us.len() / 2;
        let mut bound_us: f64 = 0.0;
        // The worst part of the way out among the first so many.
        let mut worst: Vec<usize> = Vec::with_capacity(out.len());
        let mut worst_us = f64::NEG_INFINITY;
        for (index, part) in out.iter().enumerate() {
            let added_us = self.added_us(Some(part), None);
            bound_us = bound_us.max(added_us);
            let last = worst.last().copied().filter(|_| worst_us >= added_us);
            worst_us = worst_us.max(added_us);
            worst.push(last.unwrap_or(index));
        }
        for part in back {
            let apart = out.partition_point(|other| other.distance + part.distance <= slot_count);
            let other = apart.checked_sub(1).map(|last| &out[worst[last]]);
            bound_us = bound_us.max(self.added_us(other, Some(part)));
        }
        bound_us
    }

    /// The way back: of what is away in the peak slot, all but what is needed later than some
    /// slot must be back by then.
    fn ways_back(&self, gaps: &[Gap]) -> Vec<Part> {
        let slot_count = self.times_us.len() / 2;
        let (back, never): (Vec<&Gap>, Vec<&Gap>) = gaps.iter().partition(|gap| gap.returns);
        let ahead = |gap: &Gap| (gap.to as usize + slot_count - self.peak) % slot_count;
        let mut later_bytes = self.total_bytes(&back) + self.total_bytes(&never);
        let step = |(distance, size_bytes): (usize, u64)| {
            later_bytes -= size_bytes;
            let bytes = self.excess_bytes.saturating_sub(later_bytes);
            // The copies can start when the peak slot does.
            let window_us = self.times_us[self.peak + distance] - self.times_us[self.peak];
            Part { distance, bytes: bytes as f64, window_us }
        };
        self.by_distance(&back, ahead).into_iter().map(step).collect()
    }

    /// The way out: of what is away in the peak slot, all but what was free to leave before some
    /// slot must leave between that slot and the peak.
    fn ways_out(&self, gaps: &[Gap], first: &[i64]) -> Vec<Part> {
        let slot_count = self.times_us.len() / 2;
        let late = |gap: &&Gap| !gap.clean && gap.from >= 0;
        let (left, free): (Vec<&Gap>, Vec<&Gap>) = gaps.iter().partition(late);
        let behind = |gap: &Gap| {
            let own = (self.peak + slot_count - gap.from as usize) % slot_count;
            let earlier = position(gap, slot_count) - first[gap.version as usize];
            (own + earlier as usize).min(slot_count)
        };
        let mut earlier_bytes = self.total_bytes(&left) + self.total_bytes(&free);
        let peak = self.peak + slot_count;
        let step = |(distance, size_bytes): (usize, u64)| {
            earlier_bytes -= size_bytes;
            let bytes = self.excess_bytes.saturating_sub(earlier_bytes);
            let window_us = self.times_us[peak] - self.times_us[peak - distance];
            Part { distance, bytes: bytes as f64, window_us }
        };
        self.by_distance(&left, behind).into_iter().map(step).collect()
    }

    /// Sizes by distance from the peak within a step, nearest first.
    fn by_distance(&self, gaps: &[&Gap], slots: impl Fn(&Gap) -> usize) -> Vec<(usize, u64)> {
        let size_bytes = |gap: &Gap| self.trace.blocks[gap.block as usize].size_bytes;
        let mut sorted: Vec<(usize, u64)> =
            gaps.iter().map(|gap| (slots(gap), size_bytes(gap))).collect();
        sorted.sort_unstable();
        sorted
    }

    fn total_bytes(&self, gaps: &[&Gap]) -> u64 {
        gaps.iter().map(|gap| self.trace.blocks[gap.block as usize].size_bytes).sum()
    }
}

/// When each slot starts with nothing added, over this step and the next.
fn slot_starts(trace: &Trace, usage: &Usage) -> Vec<f64> {
    let mut times_us = Vec::new();
    let mut now_us = 0.0;
    for _ in 0..2 {
        for op in &usage.slots {
            times_us.push(now_us);
            now_us += trace.ops[op.0 as usize].device_us;
        }
        times_us.push(now_us);
    }
    times_us
}
