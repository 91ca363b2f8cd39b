//! Stretches of a step in which the link must carry a number of bytes.

use swap_core::{Direction, Trace};

use super::late::{self, Early};
use super::lives::written_slot;
use super::sums::Sums;
use crate::candidate::{Gap, find_gaps};
use crate::machine::Machine;
use crate::usage::{NONE, Usage};

/// A longer window of the same peak must lack more than a shorter one by this factor.
const MORE: f64 = 1.05;
/// Or carry more by this one.
const MORE_LADEN: f64 = 1.2;

/// The stretch between an op that needs memory and a slot that it must be carried by or from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) direction: Direction,
    /// The slot whose op needs the memory.
    pub(super) peak: usize,
    /// The slot at whose begin the window starts, in this step.
    pub(super) start: usize,
    /// Its length in slots, at most a step.
    pub(super) slots: usize,
    /// In how many of them, counted from the peak, its bytes are carried. The others are there for
    /// what early copies make others wait.
    pub(super) carried_slots: usize,
    /// Blocks whose early copies make others wait as long are taken to be copied late.
    pub(super) late_us: f64,
    /// The most that it can lack: what the early copy of one of those blocks makes others wait.
    pub(super) most_us: f64,
    /// Bytes to carry if nothing is made again.
    pub(super) bytes: u64,
    /// What moving a byte takes at least.
    pub(super) move_us: f64,
    /// What submitting its copies takes at least, by the byte.
    pub(super) submit_us: f64,
    /// Its time with nothing added.
    pub(super) free_us: f64,
    /// What it is chosen by: the time that it was taken to lack, or that its bytes take to move.
    pub(super) worth_us: f64,
}

impl Window {
    /// What a byte takes at least.
    pub(super) fn us_per_byte(&self) -> f64 {
        self.move_us + self.submit_us
    }

    /// What moving its bytes takes beyond its own time.
    pub(super) fn lacks_us(&self) -> f64 {
        (self.bytes as f64 * self.us_per_byte() - self.free_us).min(self.most_us)
    }
}

/// Windows that say something, by what they are good for.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Those that lack time.
    pub(super) lacking: Vec<Window>,
    /// Those that keep one direction busy, and so slow the other.
    pub(super) laden: Vec<Window>,
}

/// A slot to look at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peak {
    pub(super) slot: usize,
    /// Bytes that must be away while its op runs.
    pub(super) excess_bytes: u64,
}

/// All that windows are made of, for any limit.
pub(super) struct Windows<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    pub(super) slot_count: usize,
    pub(super) gaps: Vec<Gap>,
    /// By gap: the slot after which its bytes can leave first, going round; [`NONE`] if they need
    /// not be copied.
    release: Vec<u32>,
    /// By gap: how much earlier than its own start that is.
    earlier: Vec<usize>,
    /// By gap: what an early copy makes others wait, if that was looked at.
    early_us: Vec<f64>,
    /// Waits that early copies are told apart by.
    levels_us: Vec<f64>,
    /// By gap: the slots after which it begins and with which it ends, going round.
    ends: Vec<[usize; 2]>,
    /// Gaps that end with a return, by its slot within the step.
    by_return: Vec<u32>,
    /// Gaps that begin with a copy, by the slot after which it can start.
    by_release: Vec<u32>,
    /// By slot: bytes that can be away while its op runs.
    total_bytes: Vec<u64>,
    /// By slot: bytes whose gaps begin or end with it.
    pub(super) turns: Vec<u64>,
    /// All sizes are multiples of it.
    pub(super) unit_bytes: u64,
    /// When each slot of this step and the next starts.
    times_us: Vec<f64>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(trace: &'a Trace, usage: &Usage, machine: &'a Machine) -> Windows<'a> {
        let slot_count = usage.slot_count();
        let gaps = find_gaps(trace, usage);
        let (mut release, mut earlier) = (Vec::new(), Vec::new());
        for gap in &gaps {
            let written = if gap.clean { None } else { written_slot(usage, gap) };
            let slots = written.map(|slot| (gap.from - slot) as usize);
            earlier.push(slots.unwrap_or(0));
            let slot = slots.map(|slots| (gap.from - slots as i64).rem_euclid(slot_count as i64));
            release.push(slot.map_or(NONE, |slot| slot as u32));
        }
        let round = |slot: i64| slot.rem_euclid(slot_count as i64) as usize;
        let ends: Vec<[usize; 2]> =
            gaps.iter().map(|gap| [round(gap.from), round(gap.to)]).collect();
        let mut by_return: Vec<u32> = (0..gaps.len() as u32).collect();
        by_return.retain(|&gap| gaps[gap as usize].returns);
        by_return.sort_by_key(|&gap| ends[gap as usize][1]);
        let mut by_release: Vec<u32> = (0..gaps.len() as u32).collect();
        by_release.retain(|&gap| release[gap as usize] != NONE);
        by_release.sort_by_key(|&gap| release[gap as usize]);
        let times_us = slot_starts(trace, usage);
        let size = |gap: &Gap| trace.blocks[gap.block as usize].size_bytes;
        let unit_bytes = Sums::unit_bytes(gaps.iter().map(size));
        let early = Early { trace, usage, machine, times_us: &times_us };
        let wait_us = |(gap, &slots)| early.wait_us(gap, slots);
        let early_us: Vec<f64> = match gaps.len() {
            0..=late::GAPS_MAX => gaps.iter().zip(&earlier).map(wait_us).collect(),
            _ => vec![0.0; gaps.len()],
        };
        let levels_us = late::levels(&early_us);
        let total_bytes = total_bytes(trace, &gaps, slot_count);
        let mut turns = vec![0; slot_count];
        for (gap, ends) in gaps.iter().zip(&ends) {
            ends.iter().for_each(|&slot| turns[slot] += size(gap));
        }
        Windows {
            trace,
            machine,
            slot_count,
            gaps,
            release,
            earlier,
            early_us,
            levels_us,
            ends,
            by_return,
            by_release,
            total_bytes,
            turns,
            unit_bytes,
            times_us,
        }
    }

    /// The windows of some peaks that say something, by way to choose what needs no link: in each,
    /// these are the gaps that `dropped_from` has no higher.
    pub(super) fn all(&self, peaks: &[Peak], dropped_from: &[u8], ways: usize) -> Vec<Found> {
        let mut found: Vec<Found> = (0..ways).map(|_| Found::default()).collect();
        for peak in peaks {
            self.ways_back(peak, dropped_from, &mut found);
            self.ways_out(peak, dropped_from, &mut found);
            for &late_us in &self.levels_us {
                self.ways_late(peak, late_us, dropped_from, &mut found);
            }
        }
        found
    }

    /// Bytes that can be away while a slot's op runs. Of a gap that is over it twice, one block
    /// leaves nearer than a step before it and the other comes back nearer than a step behind it:
    /// each way, one of them needs no window.
    pub(super) fn total_bytes(&self, slot: usize) -> u64 {
        self.total_bytes[slot]
    }

    /// What the blocks that a window must carry can come to, and the bytes of all others that can
    /// be away at its peak.
    pub(super) fn sums_in(&self, window: &Window) -> (Sums, u64) {
        let mut sums = Sums::new(self.unit_bytes);
        let mut other_bytes = self.total_bytes[window.peak];
        for gap in (0..self.gaps.len()).filter(|&gap| self.carries(window, gap)) {
            sums.add(self.size_bytes(gap));
            other_bytes -= self.size_bytes(gap);
        }
        (sums, other_bytes)
    }

    /// What some slots from one on take with nothing added, at most a step.
    pub(super) fn time_us(&self, start: usize, slots: usize) -> f64 {
        self.times_us[start + slots] - self.times_us[start]
    }

    /// Whether a block can be away over a gap while a slot's op runs.
    pub(super) fn is_over(&self, gap: usize, slot: usize) -> bool {
        self.times_over(gap, slot) > 0
    }

    /// How often a gap is over a slot's op: twice if the block that this step leaves for the next
    /// can be away then beside the one that the last step left.
    fn times_over(&self, gap: usize, slot: usize) -> u64 {
        let (from, end) = (self.gaps[gap].from, end_of(&self.gaps[gap]));
        let inside = |slot: usize| u64::from(from < slot as i64 && (slot as i64) < end);
        inside(slot) + inside(slot + self.slot_count)
    }

    /// Whether a window must carry a gap's block if it is away at the window's peak.
    pub(super) fn carries(&self, window: &Window, gap: usize) -> bool {
        self.is_over(gap, window.peak)
            && match window.direction {
                Direction::In => {
                    self.gaps[gap].returns && self.ahead(gap, window.peak) <= window.slots + 1
                }
                Direction::Out => {
                    self.release[gap] != NONE
                        && self.leaves_behind(gap, window.peak, window.late_us)
                            <= window.carried_slots + 1
                }
            }
    }

    /// Slots from a peak to where a gap ends.
    pub(super) fn ahead(&self, gap: usize, peak: usize) -> usize {
        let end = self.ends[gap][1];
        if end > peak { end - peak } else { end + self.slot_count - peak }
    }

    /// Slots from where a gap's bytes can leave to a peak.
    fn behind(&self, gap: usize, peak: usize) -> usize {
        let from = self.ends[gap][0];
        let own = if peak > from { peak - from } else { peak + self.slot_count - from };
        own + self.earlier[gap]
    }

    /// The same, if no copy is early that makes others wait as long. Only what a step has room for
    /// is known not to be.
    fn leaves_behind(&self, gap: usize, peak: usize, late_us: f64) -> usize {
        let behind = self.behind(gap, peak);
        let is_late = self.early_us[gap] >= late_us && behind <= self.slot_count;
        if is_late { behind - self.earlier[gap] } else { behind }
    }

    /// What blocks that can be away while a slot's op runs can come to.
    pub(super) fn sums_at(&self, slot: usize) -> Sums {
        let mut sums = Sums::new(self.unit_bytes);
        for gap in 0..self.gaps.len() {
            for _ in 0..self.times_over(gap, slot) {
                sums.add(self.size_bytes(gap));
            }
            if sums.is_unknown() {
                break;
            }
        }
        sums
    }

    fn size_bytes(&self, gap: usize) -> u64 {
        self.trace.blocks[self.gaps[gap].block as usize].size_bytes
    }

    /// The way back: of what is away while the peak's op runs, all but what is needed later than
    /// some slot must be back by then.
    fn ways_back(&self, at: &Peak, dropped_from: &[u8], found: &mut [Found]) {
        let peak = at.slot;
        let start = self.by_return.partition_point(|&gap| self.ends[gap as usize][1] <= peak);
        let order = self.by_return[start..].iter().chain(&self.by_return[..start]);
        let mut carry = Carry::new(self, at, Direction::In, found.len());
        let mut parts = order.copied().filter(|&gap| self.is_over(gap as usize, peak)).peekable();
        while let Some(gap) = parts.next() {
            let gap = gap as usize;
            carry.add(self.size_bytes(gap), dropped_from[gap]);
            let ahead = self.ahead(gap, peak);
            if parts.peek().is_some_and(|&next| self.ahead(next as usize, peak) == ahead) {
                continue;
            }
            let free_us = self.times_us[peak + ahead] - self.times_us[peak + 1];
            let start = (peak + 1) % self.slot_count;
            carry.keep([start, ahead - 1], ahead - 1, free_us, found);
        }
    }

    /// The way out: of what is away while the peak's op runs, all but what was free to leave
    /// before some slot must leave between that slot and the peak.
    fn ways_out(&self, at: &Peak, dropped_from: &[u8], found: &mut [Found]) {
        let peak = at.slot;
        let count = self.slot_count;
        let start =
            self.by_release.partition_point(|&gap| (self.release[gap as usize] as usize) < peak);
        let order = self.by_release[..start].iter().rev();
        let order = order.chain(self.by_release[start..].iter().rev()).copied();
        let mut carry = Carry::new(self, at, Direction::Out, found.len());
        let near = |gap: &u32| {
            self.is_over(*gap as usize, peak) && self.behind(*gap as usize, peak) <= count
        };
        let mut parts = order.filter(near).peekable();
        while let Some(gap) = parts.next() {
            let gap = gap as usize;
            carry.add(self.size_bytes(gap), dropped_from[gap]);
            let behind = self.behind(gap, peak);
            if parts.peek().is_some_and(|&next| self.behind(next as usize, peak) == behind) {
                continue;
            }
            let slots = behind - 1;
            let free_us = self.times_us[peak + count] - self.times_us[peak + count - slots];
            carry.keep([(peak + count - slots) % count, slots], slots, free_us, found);
        }
    }

    /// The way out if no block is copied early whose copy makes others wait so long: either it
    /// must leave behind its last use, or they wait.
    fn ways_late(&self, at: &Peak, late_us: f64, dropped_from: &[u8], found: &mut [Found]) {
        let (peak, count) = (at.slot, self.slot_count);
        let leaves = |&gap: &u32| (self.leaves_behind(gap as usize, peak, late_us), gap);
        let over = self.by_release.iter().filter(|&&gap| self.is_over(gap as usize, peak));
        let mut order: Vec<(usize, u32)> =
            over.map(leaves).filter(|&(behind, _)| behind <= count).collect();
        order.sort_unstable();
        let mut carry = Carry::new(self, at, Direction::Out, found.len());
        carry.late_us = late_us;
        let mut span_slots = 0;
        let mut parts = order.into_iter().peekable();
        while let Some((behind, gap)) = parts.next() {
            let gap = gap as usize;
            carry.add(self.size_bytes(gap), dropped_from[gap]);
            if self.early_us[gap] >= late_us {
                carry.most_us = self.early_us[gap].min(carry.most_us);
            }
            span_slots = span_slots.max(self.behind(gap, peak) - 1);
            if parts.peek().is_some_and(|&(next, _)| next == behind) {
                continue;
            }
            let slots = behind - 1;
            let free_us = self.times_us[peak + count] - self.times_us[peak + count - slots];
            let start = (peak + count - span_slots) % count;
            carry.keep([start, span_slots], slots, free_us, found);
        }
    }
}

/// The slot up to which a block can be away.
fn end_of(gap: &Gap) -> i64 {
    // In the slot that frees it, a block may be gone before the op runs.
    gap.to - i64::from(!gap.returns && gap.freed != NONE)
}

/// By slot: bytes that can be away while its op runs, by where gaps begin and end in this step and
/// in the next.
fn total_bytes(trace: &Trace, gaps: &[Gap], slot_count: usize) -> Vec<u64> {
    let mut changes = vec![0_i64; slot_count + 1];
    for gap in gaps {
        let size_bytes = trace.blocks[gap.block as usize].size_bytes as i64;
        for shift in [0, slot_count as i64] {
            let within = |slot: i64| (slot - shift).clamp(0, slot_count as i64);
            let (first, end) = (within(gap.from + 1), within(end_of(gap)));
            if first < end {
                changes[first as usize] += size_bytes;
                changes[end as usize] -= size_bytes;
            }
        }
    }
    let add = |sum: &mut i64, change: i64| {
        *sum += change;
        Some(*sum as u64)
    };
    changes.into_iter().take(slot_count).scan(0, add).collect()
}

/// What a window that gets longer and longer must carry.
struct Carry {
    direction: Direction,
    peak: usize,
    bytes_per_us: f64,
    copy_submit_us: f64,
    /// Bytes that need not be carried in it.
    other_bytes: u64,
    excess_bytes: u64,
    /// What those that must be carried in it can come to.
    sums: Sums,
    largest_bytes: u64,
    late_us: f64,
    most_us: f64,
    ways: Vec<Dropped>,
}

/// What needs no link in one way to choose, and the most that windows said so far.
#[derive(Clone, Default)]
struct Dropped {
    bytes: u64,
    most_lacked_us: f64,
    most_laden_us: f64,
}

impl Carry {
    fn new(windows: &Windows<'_>, at: &Peak, direction: Direction, ways: usize) -> Carry {
        let Machine { link, copy_submit_us, .. } = *windows.machine;
        Carry {
            direction,
            peak: at.slot,
            bytes_per_us: link.rate(direction == Direction::Out, false),
            copy_submit_us,
            other_bytes: windows.total_bytes[at.slot],
            excess_bytes: at.excess_bytes,
            sums: Sums::new(windows.unit_bytes),
            largest_bytes: 0,
            late_us: f64::INFINITY,
            most_us: f64::INFINITY,
            ways: vec![Dropped::default(); ways],
        }
    }

    fn add(&mut self, size_bytes: u64, dropped_from: u8) {
        self.other_bytes -= size_bytes;
        self.sums.add(size_bytes);
        for way in self.ways.iter_mut().skip(usize::from(dropped_from)) {
            way.bytes += size_bytes;
        }
        self.largest_bytes = self.largest_bytes.max(size_bytes);
    }

    /// Keeps the window as it is now, if it says more than any shorter one.
    fn keep(
        &mut self,
        [start, slots]: [usize; 2],
        carried_slots: usize,
        free_us: f64,
        found: &mut [Found],
    ) {
        // Blocks move whole.
        let bytes = self.sums.at_least(self.excess_bytes.saturating_sub(self.other_bytes));
        if bytes == 0 {
            return;
        }
        let window = Window {
            direction: self.direction,
            peak: self.peak,
            start,
            slots,
            carried_slots,
            late_us: self.late_us,
            most_us: self.most_us,
            bytes,
            move_us: 1.0 / self.bytes_per_us,
            // The larger the blocks, the fewer copies.
            submit_us: self.copy_submit_us / self.largest_bytes.max(1) as f64,
            free_us,
            worth_us: 0.0,
        };
        for (way, found) in self.ways.iter_mut().zip(found) {
            let left_bytes = bytes.saturating_sub(way.bytes) as f64;
            let lacks_us = (left_bytes * window.us_per_byte() - free_us).min(self.most_us);
            if lacks_us > MORE * way.most_lacked_us {
                way.most_lacked_us = lacks_us;
                found.lacking.push(Window { worth_us: lacks_us, ..window });
            }
            let laden_us = left_bytes * window.move_us;
            if laden_us > MORE_LADEN * way.most_laden_us && self.most_us.is_infinite() {
                way.most_laden_us = laden_us;
                found.laden.push(Window { worth_us: laden_us, ..window });
            }
        }
    }
}

/// When each slot starts with nothing added, over this step and the next.
pub(super) fn slot_starts(trace: &Trace, usage: &Usage) -> Vec<f64> {
    let mut times_us = Vec::new();
    let mut now_us = 0.0;
    for _ in 0..2 {
        for op in &usage.slots {
            times_us.push(now_us);
            now_us += trace.ops[op.0 as usize].device_us;
        }
        times_us.push(now_us);
    }
    times_us.push(now_us);
    times_us
}
