//! A step whose updates wait: each runs before the first op that uses what it changes.
//!
//! An optimizer steps when nothing else computes, so what it needs comes and goes beside an idle
//! device. What it would gain to let its updates wait is found out by planning for such a step,
//! made of the recorded one:
//!
//! ```text
//!   recorded   forward of layers 1, 2, 3     backward   updates of layers 1, 2, 3
//!   deferred   update 1, forward 1, update 2, forward 2, update 3, forward 3   backward
//! ```
//!
//! The gradients of a step then live until the next one uses their weights. What reads weights and
//! changes only what nothing else uses, such as an average of them, runs behind their update.

use std::collections::BTreeMap;

use swap_core::{BlockIndex, Origin, Trace, TraceBlock, TraceEvent};

use super::lives::{Lives, index, is_outermost};
use super::rewritten::Rewritten;
use super::updates::{Group, Updates};
use crate::parts::{in_parts, slice_bytes};

/// Distinguishes the step's signature from that of the recorded one.
const DEFERRED: u64 = 0xdefe_44ed;

/// The step as it would be if the updates at its end waited until something uses what they change,
/// operators over lists in as small parts as they have under this memory limit. `None` where no
/// update could wait: where the step ends without one, or already begins with those that waited.
///
/// # Panics
/// If the trace is not well formed, it may.
pub fn deferred(trace: &Trace, limit_bytes: u64) -> Option<Trace> {
    let in_slices = in_parts(trace, slice_bytes(limit_bytes));
    let trace = in_slices.as_ref().map_or(trace, |in_slices| &in_slices.trace);
    let lives = Lives::of(trace);
    let updates = Updates::of(trace, &lives)?;
    Some(Writer::new(trace, &lives, &updates).write())
}

/// Writes the step, with other numbers of ops and blocks.
struct Writer<'a> {
    recorded: &'a Trace,
    lives: &'a Lives,
    updates: &'a Updates,
    /// By outermost op, whether it waits.
    waits: Vec<bool>,
    /// Blocks that are allocated and freed where a group runs, or freed behind it alone.
    own: Vec<bool>,
    /// What stands for a gradient of the step before, and the group that uses it last.
    earlier: BTreeMap<usize, (BlockIndex, usize)>,
    written: Rewritten<'a>,
}

impl<'a> Writer<'a> {
    fn new(recorded: &'a Trace, lives: &'a Lives, updates: &'a Updates) -> Writer<'a> {
        let mut written = Rewritten::of(recorded);
        written.trace.signature = recorded.signature.mix(DEFERRED);
        let mut writer = Writer {
            recorded,
            lives,
            updates,
            waits: vec![false; lives.ops.len()],
            own: vec![false; recorded.blocks.len()],
            earlier: BTreeMap::new(),
            written,
        };
        writer.take_out();
        writer
    }

    /// Notes what is not written where it was recorded, and what lives on from step to step.
    fn take_out(&mut self) {
        let updates = self.updates;
        let mut left = Left::by(self.lives, updates.begin, self.recorded);
        for (number, group) in updates.groups.iter().enumerate() {
            for unit in &group.units {
                self.waits[unit.first..=unit.last].fill(true);
                unit.own.iter().for_each(|&block| self.own[block] = true);
            }
            for &gradient in &group.gradients {
                if let Some((_, last)) = self.earlier.get_mut(&gradient) {
                    if updates.groups[*last].before < group.before {
                        *last = number;
                    }
                    continue;
                }
                let block = &self.recorded.blocks[gradient];
                let earlier = match self.lives.freed[gradient] {
                    None => left.take(block),
                    Some(_) => None,
                };
                let earlier = earlier.map(|earlier| {
                    self.own[earlier] = true;
                    BlockIndex(earlier as u32)
                });
                let stands = earlier.unwrap_or_else(|| {
                    let new = BlockIndex(self.written.trace.blocks.len() as u32);
                    let origin = Origin::Persistent;
                    self.written.trace.blocks.push(TraceBlock { origin, ..block.clone() });
                    new
                });
                self.own[gradient] = true;
                self.earlier.insert(gradient, (stands, number));
            }
        }
    }

    fn write(mut self) -> Trace {
        let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (number, group) in self.updates.groups.iter().enumerate() {
            before.entry(group.before).or_default().push(number);
        }
        for (at, &event) in self.recorded.events.iter().enumerate() {
            let place = self.lives.op_at(at);
            if let TraceEvent::Begin(op) = event
                && is_outermost(self.recorded, op)
            {
                for &number in place.and_then(|place| before.get(&place)).into_iter().flatten() {
                    self.write_group(number);
                }
            }
            let waits = place.is_some_and(|place| self.waits[place]);
            let is_left_out = match event {
                TraceEvent::Free(block) => self.own[index(block)],
                TraceEvent::Allocate(block) => {
                    self.own[index(block)] && !self.earlier.contains_key(&index(block))
                }
                TraceEvent::Segments(_) => false,
                TraceEvent::Begin(_) | TraceEvent::Touch(..) | TraceEvent::End(_) => waits,
            };
            if !is_left_out {
                self.written.write(event);
            }
        }
        self.written.finish()
    }

    fn write_group(&mut self, number: usize) {
        let group: &Group = &self.updates.groups[number];
        for (at, unit) in group.units.iter().enumerate() {
            let (begin, end) = (self.lives.ops[unit.first].0, self.lives.ops[unit.last].1);
            for &block in unit.own.iter().filter(|&&block| self.lives.born[block] < Some(begin)) {
                self.write_late(TraceEvent::Allocate(BlockIndex(block as u32)));
            }
            for &event in &self.recorded.events[begin..=end] {
                let is_theirs = match event {
                    TraceEvent::Allocate(block) | TraceEvent::Free(block) => {
                        unit.own.contains(&index(block))
                    }
                    TraceEvent::Segments(_) => false,
                    TraceEvent::Begin(_) | TraceEvent::Touch(..) | TraceEvent::End(_) => true,
                };
                if is_theirs {
                    self.write_late(event);
                }
            }
            for &block in unit.own.iter().filter(|&&block| self.lives.freed[block] > Some(end)) {
                self.write_late(TraceEvent::Free(BlockIndex(block as u32)));
            }
            if at + 1 == group.update_count {
                self.free_gradients(number);
            }
        }
    }

    /// Frees those of the step before that no other group uses later.
    fn free_gradients(&mut self, number: usize) {
        for gradient in &self.updates.groups[number].gradients {
            let (earlier, last) = self.earlier[gradient];
            if last == number {
                self.written.trace.events.push(TraceEvent::Free(earlier));
            }
        }
    }

    /// Writes an event of an update that waited: its gradients are those of the step before.
    fn write_late(&mut self, event: TraceEvent) {
        match event {
            TraceEvent::Touch(block, mode) if self.earlier.contains_key(&index(block)) => {
                let (earlier, _) = self.earlier[&index(block)];
                self.written.trace.events.push(TraceEvent::Touch(earlier, mode));
            }
            _ => self.written.write(event),
        }
    }
}

/// Blocks from before the step that are freed before the update, and that nothing uses: gradients
/// that were left, by size and name.
struct Left<'a>(BTreeMap<(u64, &'a str), Vec<usize>>);

impl<'a> Left<'a> {
    fn by(lives: &Lives, begin: usize, recorded: &'a Trace) -> Left<'a> {
        let mut left: BTreeMap<(u64, &str), Vec<usize>> = BTreeMap::new();
        for (block, record) in recorded.blocks.iter().enumerate() {
            let is_left = lives.born[block].is_none() && lives.is_freed_before(block, begin);
            if is_left && lives.touches[block].is_empty() {
                left.entry((record.size_bytes, &record.name)).or_default().push(block);
            }
        }
        Left(left)
    }

    fn take(&mut self, gradient: &'a TraceBlock) -> Option<usize> {
        self.0.get_mut(&(gradient.size_bytes, gradient.name.as_str()))?.pop()
    }
}
