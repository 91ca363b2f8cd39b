//! Stretches of a step in which the link must carry a number of bytes.

use swap_core::{AccessMode, Direction, Trace};

use crate::candidate::{Gap, find_gaps};
use crate::machine::Machine;
use crate::usage::{NONE, Usage};

/// Gaps looked at for all windows together, at most.
const LOOKS_MAX: usize = 2_000_000;
/// Peaks looked at, at least.
const PEAKS_MIN: usize = 8;
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
struct Peak {
    slot: usize,
    /// Bytes that must be away while its op runs.
    excess_bytes: u64,
    /// Bytes that can be.
    total_bytes: u64,
}

/// All that windows are made of.
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
    /// Gaps that end with a return, by its slot within the step.
    by_return: Vec<u32>,
    /// Gaps that begin with a copy, by the slot after which it can start.
    by_release: Vec<u32>,
    peaks: Vec<Peak>,
    /// When each slot of this step and the next starts.
    times_us: Vec<f64>,
}

impl<'a> Windows<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        usage: &Usage,
        machine: &'a Machine,
        excess_bytes: &[u64],
    ) -> Windows<'a> {
        let slot_count = usage.slot_count();
        let gaps = find_gaps(trace, usage);
        let (mut release, mut earlier) = (Vec::new(), Vec::new());
        for gap in &gaps {
            let slots = if gap.clean { None } else { slots_since_write(usage, gap) };
            earlier.push(slots.unwrap_or(0));
            let slot = slots.map(|slots| (gap.from - slots as i64).rem_euclid(slot_count as i64));
            release.push(slot.map_or(NONE, |slot| slot as u32));
        }
        let mut by_return: Vec<u32> = (0..gaps.len() as u32).collect();
        by_return.retain(|&gap| gaps[gap as usize].returns);
        by_return.sort_by_key(|&gap| gaps[gap as usize].to as usize % slot_count);
        let mut by_release: Vec<u32> = (0..gaps.len() as u32).collect();
        by_release.retain(|&gap| release[gap as usize] != NONE);
        by_release.sort_by_key(|&gap| release[gap as usize]);
        let peaks_max = (LOOKS_MAX / gaps.len().max(1)).max(PEAKS_MIN);
        let times_us = slot_starts(trace, usage);
        let mut windows = Windows {
            trace,
            machine,
            slot_count,
            gaps,
            release,
            earlier,
            by_return,
            by_release,
            peaks: Vec::new(),
            times_us,
        };
        let peak = |(slot, excess_bytes)| {
            let total_bytes = windows.total_bytes(slot);
            Peak { slot, excess_bytes, total_bytes }
        };
        windows.peaks = find_peaks(excess_bytes, peaks_max).into_iter().map(peak).collect();
        windows
    }

    /// The windows that say something if the dropped gaps need no link.
    pub(super) fn all(&self, dropped: &[bool]) -> Found {
        let mut found = Found::default();
        for peak in &self.peaks {
            self.ways_back(peak, dropped, &mut found);
            self.ways_out(peak, dropped, &mut found);
        }
        found
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
        let Gap { from, to, returns, freed, .. } = self.gaps[gap];
        // In the slot that frees it, a block may be gone before the op runs.
        let end = to - i64::from(!returns && freed != NONE);
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
                    self.release[gap] != NONE && self.behind(gap, window.peak) <= window.slots + 1
                }
            }
    }

    /// Slots from a peak to where a gap ends.
    fn ahead(&self, gap: usize, peak: usize) -> usize {
        let slots = (self.gaps[gap].to as usize + self.slot_count - peak) % self.slot_count;
        if slots == 0 { self.slot_count } else { slots }
    }

    /// Slots from where a gap's bytes can leave to a peak.
    fn behind(&self, gap: usize, peak: usize) -> usize {
        let from = self.gaps[gap].from.rem_euclid(self.slot_count as i64) as usize;
        let own = (peak + self.slot_count - from) % self.slot_count;
        let own = if own == 0 { self.slot_count } else { own };
        own + self.earlier[gap]
    }

    fn size_bytes(&self, gap: usize) -> u64 {
        self.trace.blocks[self.gaps[gap].block as usize].size_bytes
    }

    /// The way back: of what is away while the peak's op runs, all but what is needed later than
    /// some slot must be back by then.
    fn ways_back(&self, at: &Peak, dropped: &[bool], found: &mut Found) {
        let peak = at.slot;
        let slot = |gap: u32| self.gaps[gap as usize].to as usize % self.slot_count;
        let start = self.by_return.partition_point(|&gap| slot(gap) <= peak);
        let order = self.by_return[start..].iter().chain(&self.by_return[..start]);
        let mut carry = Carry::new(at, Direction::In, self.machine);
        let mut parts = order.copied().filter(|&gap| self.is_over(gap as usize, peak)).peekable();
        while let Some(gap) = parts.next() {
            let gap = gap as usize;
            carry.add(self.size_bytes(gap), dropped[gap]);
            let ahead = self.ahead(gap, peak);
            if parts.peek().is_some_and(|&next| self.ahead(next as usize, peak) == ahead) {
                continue;
            }
            let free_us = self.times_us[peak + ahead] - self.times_us[peak + 1];
            let start = (peak + 1) % self.slot_count;
            carry.keep(start, ahead - 1, free_us, found);
        }
    }

    /// The way out: of what is away while the peak's op runs, all but what was free to leave
    /// before some slot must leave between that slot and the peak.
    fn ways_out(&self, at: &Peak, dropped: &[bool], found: &mut Found) {
        let peak = at.slot;
        let count = self.slot_count;
        let start =
            self.by_release.partition_point(|&gap| (self.release[gap as usize] as usize) < peak);
        let order = self.by_release[..start].iter().rev();
        let order = order.chain(self.by_release[start..].iter().rev()).copied();
        let mut carry = Carry::new(at, Direction::Out, self.machine);
        let near = |gap: &u32| {
            self.is_over(*gap as usize, peak) && self.behind(*gap as usize, peak) <= count
        };
        let mut parts = order.filter(near).peekable();
        while let Some(gap) = parts.next() {
            let gap = gap as usize;
            carry.add(self.size_bytes(gap), dropped[gap]);
            let behind = self.behind(gap, peak);
            if parts.peek().is_some_and(|&next| self.behind(next as usize, peak) == behind) {
                continue;
            }
            let slots = behind - 1;
            let free_us = self.times_us[peak + count] - self.times_us[peak + count - slots];
            carry.keep((peak + count - slots) % count, slots, free_us, found);
        }
    }

    /// Bytes that can be away while a slot's op runs. Of a gap that is over it twice, one block
    /// leaves nearer than a step before it and the other comes back nearer than a step behind it:
    /// each way, one of them needs no window.
    fn total_bytes(&self, slot: usize) -> u64 {
        let bytes = |gap: usize| self.times_over(gap, slot) * self.size_bytes(gap);
        (0..self.gaps.len()).map(bytes).sum()
    }
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
    dropped_bytes: u64,
    largest_bytes: u64,
    most_lacked_us: f64,
    most_laden_us: f64,
}

impl Carry {
    fn new(at: &Peak, direction: Direction, machine: &Machine) -> Carry {
        let link = &machine.link;
        Carry {
            direction,
            peak: at.slot,
            bytes_per_us: link.rate(direction == Direction::Out, false),
            copy_submit_us: machine.copy_submit_us,
            other_bytes: at.total_bytes,
            excess_bytes: at.excess_bytes,
            dropped_bytes: 0,
            largest_bytes: 0,
            most_lacked_us: 0.0,
            most_laden_us: 0.0,
        }
    }

    fn add(&mut self, size_bytes: u64, dropped: bool) {
        self.other_bytes -= size_bytes;
        self.dropped_bytes += if dropped { size_bytes } else { 0 };
        self.largest_bytes = self.largest_bytes.max(size_bytes);
    }

    /// Keeps the window as it is now, if it says more than any shorter one.
    fn keep(&mut self, start: usize, slots: usize, free_us: f64, found: &mut Found) {
        let bytes = self.excess_bytes.saturating_sub(self.other_bytes);
        let window = Window {
            direction: self.direction,
            peak: self.peak,
            start,
            slots,
            bytes,
            move_us: 1.0 / self.bytes_per_us,
            // The larger the blocks, the fewer copies.
            submit_us: self.copy_submit_us / self.largest_bytes.max(1) as f64,
            free_us,
            worth_us: 0.0,
        };
        let left_bytes = bytes.saturating_sub(self.dropped_bytes) as f64;
        let lacks_us = left_bytes * window.us_per_byte() - free_us;
        if lacks_us > MORE * self.most_lacked_us {
            self.most_lacked_us = lacks_us;
            found.lacking.push(Window { worth_us: lacks_us, ..window });
        }
        let laden_us = left_bytes * window.move_us;
        if laden_us > MORE_LADEN * self.most_laden_us {
            self.most_laden_us = laden_us;
            found.laden.push(Window { worth_us: laden_us, ..window });
        }
    }
}

/// Slots from the last write of a block to the start of a gap. A copy to the host may start after
/// that write, even if the block is used in between. Nothing if its bytes are those of two steps
/// ago: then the host may have had them all along.
fn slots_since_write(usage: &Usage, gap: &Gap) -> Option<usize> {
    let last_write = |block: usize, until: i64| {
        let uses = usage.uses(block).iter().rev();
        let mut before = uses.skip_while(|use_| i64::from(use_.slot) > until);
        before.find(|use_| use_.mode.is_none_or(AccessMode::writes)).map(|use_| use_.slot)
    };
    if let Some(slot) = last_write(gap.block as usize, gap.from) {
        return Some((gap.from - i64::from(slot)) as usize);
    }
    let before = usage.predecessor[gap.block as usize];
    if before == NONE {
        return None;
    }
    let slot = last_write(before as usize, i64::MAX)?;
    Some((gap.from + usage.slot_count() as i64 - i64::from(slot)) as usize)
}

/// The slots above the limit, or where there are too many the highest of each stretch.
fn find_peaks(excess_bytes: &[u64], most: usize) -> Vec<(usize, u64)> {
    let above: Vec<(usize, u64)> =
        excess_bytes.iter().copied().enumerate().filter(|&(_, bytes)| bytes > 0).collect();
    let stretch = above.len().div_ceil(most).max(1);
    let highest = |part: &[(usize, u64)]| part.iter().copied().max_by_key(|&(_, bytes)| bytes);
    above.chunks(stretch).filter_map(highest).collect()
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
    times_us.push(now_us);
    times_us
}
