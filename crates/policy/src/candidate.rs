//! Candidates: every stretch of a step in which a block is not used and could be away.

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace};

use crate::usage::{NONE, Usage, Use};

/// A gap in a block's use, as readers of a plan see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// The block.
    pub block: BlockIndex,
    /// Its physical bytes.
    pub size_bytes: u64,
    /// The outermost op after which it can leave; `None` if no op of the step uses it.
    pub leaves_after: Option<OpIndex>,
    /// The outermost op before which it must be back; `None` if nobody needs it again.
    pub returns_before: Option<OpIndex>,
    /// Whether it comes back in the next step.
    pub next_step: bool,
    /// What it is called when it comes back: in the next step a block may have another place.
    pub returns_as: BlockIndex,
}

/// All gaps of all swappable blocks, by block and then by time.
///
/// A block that an op touches is in use from the op's begin to its end, and what happens inside a
/// nested op belongs to the outermost one around it.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)).
pub fn candidates(trace: &Trace) -> Vec<Candidate> {
    let usage = Usage::new(trace);
    find_gaps(trace, &usage).iter().map(|gap| gap.describe(trace, &usage)).collect()
}

/// A gap in slots. Slots from `slot_count` on are those of the next step.
///
/// It may have more slots than the step: what one step makes for the next, such as a batch that is
/// loaded ahead, can wait until after its like of that step has left. Both are away then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gap {
    pub(crate) block: u32,
    /// What the block is called where it comes back: its successor if that is in the next step.
    pub(crate) again: u32,
    /// The slot of the last use; one before the first slot if there is none in the step.
    pub(crate) from: i64,
    /// The slot that needs it back; without a return, the first slot in which it does not live.
    pub(crate) to: i64,
    pub(crate) returns: bool,
    /// The event that frees it if it does not return; [`NONE`] for the step's end.
    pub(crate) freed: u32,
    /// Gaps of one block with the same version hold the same bytes: one copy to the host serves
    /// them all.
    pub(crate) version: u32,
    /// Never written: the host keeps its copy for ever.
    pub(crate) clean: bool,
    /// It can leave before the op of `from` begins, which only a replay before that op needed.
    pub(crate) early: bool,
}

impl Gap {
    /// The first slot in which it can be away, and the number of such slots.
    pub(crate) fn cover(&self) -> (usize, usize) {
        ((self.from + 1) as usize, (self.to - self.from - 1) as usize)
    }

    /// The rows in which it can be away, as the first one and their number.
    pub(crate) fn rows(&self, usage: &Usage) -> (usize, usize) {
        let (slot_count, row_count) = (usage.slot_count(), usage.row_slot.len());
        let start = match self.early {
            true => usage.begin_row[self.from as usize],
            false => usage.slot_row[(self.from + 1) as usize],
        } as usize;
        let to = self.to as usize;
        let end = if self.returns {
            to / slot_count * row_count + usage.begin_row[to % slot_count] as usize
        } else if self.freed == NONE {
            row_count
        } else {
            let last = usage.event_row[self.freed as usize] as usize;
            (to - 1) / slot_count * row_count + last + 1
        };
        (start, end - start)
    }

    pub(crate) fn describe(&self, trace: &Trace, usage: &Usage) -> Candidate {
        let slot_count = usage.slot_count() as i64;
        let op = |slot: i64| usage.slots.get((slot % slot_count) as usize).copied();
        Candidate {
            block: BlockIndex(self.block),
            size_bytes: trace.blocks[self.block as usize].size_bytes,
            leaves_after: if self.from < 0 { None } else { op(self.from) },
            returns_before: if self.returns { op(self.to) } else { None },
            next_step: self.returns && self.to >= slot_count,
            returns_as: BlockIndex(self.again),
        }
    }
}

pub(crate) fn find_gaps(trace: &Trace, usage: &Usage) -> Vec<Gap> {
    // A block's first version has the block's own number, later ones the numbers after all those.
    let next_version = trace.blocks.len() as u32;
    let mut finder = Finder { usage, gaps: Vec::new(), next_version };
    for (index, block) in trace.blocks.iter().enumerate() {
        finder.gaps_of(index, block.origin);
    }
    let held = |block: u32| trace.blocks[block as usize].held;
    finder.gaps.retain(|gap| !held(gap.block) && !held(gap.again));
    finder.gaps
}

struct Finder<'a> {
    usage: &'a Usage,
    gaps: Vec<Gap>,
    next_version: u32,
}

impl Finder<'_> {
    fn gaps_of(&mut self, index: usize, origin: Origin) {
        let uses = self.usage.uses(index);
        let written =
            |uses: &[Use]| uses.iter().any(|use_| use_.mode.is_none_or(AccessMode::writes));
        let clean = !written(uses) && self.usage.successor[index] == index as u32;
        let mut version = index as u32;
        let mut last: Option<u32> = None;
        // What an op allocates and leaves untouched stays until an op shows that it is a tensor.
        let mut is_shown = !matches!(origin, Origin::Op(_));
        let mut start = 0;
        while start < uses.len() {
            let slot = uses[start].slot;
            if let Some(from) = last.filter(|_| is_shown) {
                self.push(index, i64::from(from), i64::from(slot), true, version, clean);
            }
            let end = start + uses[start..].partition_point(|use_| use_.slot == slot);
            if written(&uses[start..end]) {
                version = self.next_version;
                self.next_version += 1;
            }
            is_shown |= uses[start..end].iter().any(|use_| use_.mode.is_some());
            start = end;
            last = Some(slot);
        }
        self.last_gap(index, last.map_or(-1, i64::from), version, clean);
    }

    /// The gap from the last use to the free, or to the first use in the next step.
    fn last_gap(&mut self, index: usize, from: i64, version: u32, clean: bool) {
        let slot_count = self.usage.slot_count() as i64;
        let freed = self.usage.freed[index];
        if freed != NONE {
            let to = i64::from(self.usage.event_slot[freed as usize]) + 1;
            // Before its first use a block of the last step belongs to that step's last gap.
            if from >= 0 {
                self.push(index, from, to, false, version, clean);
            }
            return;
        }
        let successor = self.usage.successor[index];
        if successor == NONE {
            if from >= 0 {
                self.push(index, from, slot_count, false, version, clean);
            }
            return;
        }
        let again = successor as usize;
        // Bytes that leave this step are the next step's first version of the successor.
        let mut gap = Gap {
            block: index as u32,
            again: successor,
            from,
            to: 0,
            returns: true,
            freed: NONE,
            version: successor,
            clean,
            early: false,
        };
        let freed_again = self.usage.freed[again];
        if let Some(first) = self.usage.uses(again).first() {
            if from >= 0 {
                gap.to = slot_count + i64::from(first.slot);
                self.keep(gap);
            }
        } else if freed_again != NONE {
            gap.to = slot_count + i64::from(self.usage.event_slot[freed_again as usize]) + 1;
            gap.returns = false;
            gap.freed = freed_again;
            if from >= 0 {
                self.keep(gap);
            }
        } else if again == index {
            gap.to = slot_count;
            gap.returns = false;
            self.keep(gap);
        }
    }

    fn push(&mut self, index: usize, from: i64, to: i64, returns: bool, version: u32, clean: bool) {
        let block = index as u32;
        let freed = if returns { NONE } else { self.usage.freed[index] };
        let early = false;
        self.keep(Gap { block, again: block, from, to, returns, freed, version, clean, early });
    }

    /// Keeps a gap that has at least one whole slot.
    fn keep(&mut self, gap: Gap) {
        let whole_slots = gap.to - gap.from - 1;
        // What is made after the last op has no boundary at which it could leave, and a step
        // without ops has none at all.
        let can_leave = gap.from.max(0) < self.usage.slots.len() as i64;
        if can_leave && whole_slots >= 1 {
            self.gaps.push(gap);
        }
    }
}
