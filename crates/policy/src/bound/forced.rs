//! How many bytes cannot but be away while each slot's op runs.

use swap_core::{Origin, Trace, TraceEvent};

use crate::usage::{NONE, Usage};

/// By slot: the most bytes that are on the device or in a gap while its op runs, whatever moves.
///
/// That is less than all live bytes: a block that a slot uses may be away in other parts of it,
/// and one that a slot frees may be gone when its op runs.
pub(super) fn forced_bytes(trace: &Trace, usage: &Usage) -> Vec<u64> {
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
    let mut most = vec![0; usage.slot_count()];
    let mut start = 0;
    while start < trace.events.len() {
        let slot = usage.event_slot[start];
        let end = start + usage.event_slot[start..].partition_point(|&other| other == slot);
        forced.enter(slot, &trace.events[start..end]);
        let most = &mut most[slot as usize];
        for &event in &trace.events[start..end] {
            forced.step(slot, event);
            *most = (forced.forced_bytes + segment_bytes).max(*most);
        }
        forced.leave(slot, &trace.events[start..end]);
        start = end;
    }
    most
}

/// The block that an event uses or frees.
fn block_of(event: TraceEvent) -> Option<usize> {
    match event {
        TraceEvent::Touch(block, _) | TraceEvent::Allocate(block) | TraceEvent::Free(block) => {
            Some(block.0 as usize)
        }
        _ => None,
    }
}

/// Counts live blocks that are pinned or have nothing to do with the present slot.
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
        for index in events.iter().copied().filter_map(block_of) {
            self.change(index, slot, |state| state.used_in[index] = slot);
        }
    }

    fn leave(&mut self, slot: u32, events: &[TraceEvent]) {
        for index in events.iter().copied().filter_map(block_of) {
            self.change(index, slot, |state| state.used_in[index] = NONE);
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
