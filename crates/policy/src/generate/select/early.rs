//! Copies to the host before they are needed.
//!
//! ```text
//!   written           used                      peak        written
//!      ├── first gap ───┼── gap that lowers it ───┼── gap ─────┤
//!      └ link idle: out here, and back              └ link busy until then
//! ```
//!
//! Bytes that are used several times can go to the host in the first of their gaps, although no
//! row there is too high: later they leave without a copy. That takes more copies back, so it pays
//! only where one direction of the link rests while the step waits for the other.

use super::*;

/// Looks for the first gaps of bytes.
struct FirstGaps<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    /// When each slot starts if nobody waits, in microseconds.
    slot_start_us: &'a [f64],
}

impl FirstGaps<'_> {
    /// By version of some bytes: the first gap with time to copy them out and back, by its place.
    fn of(&self, gaps: &[Gap]) -> BTreeMap<u32, usize> {
        let mut first: BTreeMap<u32, usize> = BTreeMap::new();
        for (place, gap) in gaps.iter().enumerate() {
            if gap.returns && !gap.clean && self.has_time(gap) {
                let best = first.entry(gap.version).or_insert(place);
                if self.since_write(gap) < self.since_write(&gaps[*best]) {
                    *best = place;
                }
            }
        }
        first
    }

    /// Where a gap starts, such that among those of a version the one from the step before is the
    /// first.
    fn since_write(&self, gap: &Gap) -> i64 {
        let slot_count = self.slot_start_us.len() as i64;
        if gap.to >= slot_count { gap.from - slot_count } else { gap.from }
    }

    fn has_time(&self, gap: &Gap) -> bool {
        let slot_count = self.slot_start_us.len() as i64;
        let step_us = self.slot_start_us[slot_count as usize - 1];
        let start_us = |slot: i64| {
            let steps = slot.div_euclid(slot_count) as f64;
            steps * step_us + self.slot_start_us[slot.rem_euclid(slot_count) as usize]
        };
        let size_bytes = self.trace.blocks[gap.block as usize].size_bytes;
        let copies_us = self.machine.out_us(size_bytes) + self.machine.in_us(size_bytes);
        start_us(gap.to) - start_us(gap.from + 1) >= copies_us
    }
}

impl Selector<'_> {
    /// Uses the first gaps of the bytes that are wished to leave early.
    pub(super) fn send_early(&mut self) {
        if !self.taste.has_early() {
            return;
        }
        let Selector { trace, machine, ref slot_start_us, .. } = *self;
        let first = FirstGaps { trace, machine, slot_start_us }.of(&self.gaps);
        let is_first = |item: &Item| {
            let gap = &self.gaps[item.gap as usize];
            let is_swap = item.mode == Mode::Swap && self.taste.is_early(gap.block);
            is_swap && first.get(&gap.version) == Some(&(item.gap as usize))
        };
        let numbered = (0..).zip(&self.items).filter(|(_, item)| is_first(item));
        let numbers: Vec<u32> = numbered.map(|(number, _)| number).collect();
        for number in numbers {
            let gap = self.gap_of(&self.items[number as usize]);
            if self.host_has_room(&gap) {
                let (start, count) = gap.cover();
                self.choose(number, (start + count / 2) % self.usage.slot_count(), 0.0);
            }
        }
    }
}

/// The blocks whose bytes some choices copy to the host later than in their first gap, in order.
pub(in super::super) fn late_blocks(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    config: &GenerateConfig,
    choices: &[Choice],
) -> Vec<u32> {
    let slot_start_us = &starts_us(&usage.slot_us);
    let gaps = movable_gaps(trace, usage, config);
    let finder = FirstGaps { trace, machine, slot_start_us };
    let mut leaves: BTreeMap<u32, i64> = BTreeMap::new();
    for choice in choices.iter().filter(|choice| choice.stands && choice.mode == Mode::Swap) {
        let slot = finder.since_write(&choice.gap);
        let first = leaves.entry(choice.gap.version).or_insert(slot);
        *first = slot.min(*first);
    }
    let is_late = |(version, place): (u32, usize)| {
        let gap = &gaps[place];
        let slot = leaves.get(&version)?;
        (finder.since_write(gap) < *slot).then_some(gap.block)
    };
    let late: BTreeSet<u32> = finder.of(&gaps).into_iter().filter_map(is_late).collect();
    late.into_iter().collect()
}
