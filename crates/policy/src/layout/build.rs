//! Builds a packing below a ceiling from the ground up, and goes back where that leads nowhere.
//!
//! Any packing can be pressed down until each item lies on another or on the ground, and can then
//! be built in order of offsets. So only such packings are looked at: an item starts at its floor,
//! never below the one before it, and never so high that another fits below it. One that was passed
//! over waits until something that it meets raises its floor. A branch ends where a section of time
//! has no room for what is still to come. Items that no section joins any more are built apart.

use super::pack::Item;
use super::sections::Sections;

/// One attempt ended before all of it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spent;

/// Bytes in units of what divides all sizes.
type Units = u32;

/// Sums of two heights are below what [`Units`] hold.
const CEILING_MAX: u64 = 1 << 30;

/// With more items than that, steps back are too few for this to lead anywhere.
const ITEMS_MAX: usize = 1024;

/// What an item, and going on to another one, cost beside looking at sections, in sections.
const ITEM_WORK: u64 = 8;
const NODE_WORK: u64 = 200;

/// Where an attempt is given up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// How often it may go on to another item.
    pub(super) nodes: u64,
    /// How many sections it may look at.
    pub(super) work: u64,
}

/// Attempts at the same items.
pub(super) struct Builder {
    unit_bytes: u64,
    sizes: Vec<Units>,
    sections: Sections,
    /// By item: whom it meets.
    meets: Vec<Vec<u32>>,
    /// By section: all that is in it.
    totals: Vec<Units>,
    /// Sections looked at: a measure of time that is the same on every machine.
    pub(super) work: u64,
}

/// What is undone when the search goes back.
enum Change {
    Placed { item: u32 },
    Raised { item: u32, from: Units },
    Barred { item: u32, before: Option<Units> },
}

/// One attempt.
struct Site<'a> {
    builder: &'a Builder,
    ceiling: Units,
    /// By item: who of those that are alike otherwise is tried first.
    ranks: Vec<u32>,
    limits: Limits,
    nodes: u64,
    work: u64,
    offsets: Vec<Units>,
    is_placed: Vec<bool>,
    /// By item: the highest end of those that it meets and that are placed.
    floors: Vec<Units>,
    /// By item: the floor on which it was tried already.
    barred: Vec<Option<Units>>,
    /// By section: what is not placed yet.
    rests: Vec<Units>,
    /// By section: the least height of what is in it, for the items looked at last.
    heights: Vec<Units>,
    changes: Vec<Change>,
}

impl Builder {
    /// `None` if there are too many items, or their sizes have no unit.
    pub(super) fn new(items: &[Item], need_bytes: u64) -> Option<Builder> {
        let unit_bytes = items.iter().fold(0, |unit, item| divisor(unit, item.size_bytes));
        if items.len() > ITEMS_MAX || unit_bytes == 0 || need_bytes / unit_bytes > CEILING_MAX {
            return None;
        }
        let sizes = items.iter().map(|item| (item.size_bytes / unit_bytes) as Units);
        let sizes: Vec<Units> = sizes.collect();
        let sections = Sections::new(items);
        let meets = sections.meets();
        let totals = sections.totals(&sizes);
        Some(Builder { unit_bytes, sizes, sections, meets, totals, work: 0 })
    }

    /// By item: in how many sections of time it is.
    pub(super) fn lifetimes(&self) -> Vec<u64> {
        self.sections.lifetimes()
    }

    /// Offsets by item, all lots ending at the ceiling or below; `None` if there are none. Of the
    /// items that start lowest the one in the fullest section is tried first, then by `order`.
    pub(super) fn build(
        &mut self,
        order: &[u32],
        ceiling_bytes: u64,
        limits: Limits,
    ) -> Result<Option<Vec<u64>>, Spent> {
        let count = self.sizes.len();
        let ceiling = (ceiling_bytes / self.unit_bytes).min(CEILING_MAX) as Units;
        let mut ranks = vec![0; count];
        (0..).zip(order).for_each(|(rank, &item)| ranks[item as usize] = rank);
        let mut site = Site {
            builder: self,
            ceiling,
            ranks,
            limits,
            nodes: 0,
            work: 0,
            offsets: vec![0; count],
            is_placed: vec![false; count],
            floors: vec![0; count],
            barred: vec![None; count],
            rests: self.totals.clone(),
            heights: vec![0; self.totals.len()],
            changes: Vec::new(),
        };
        let built = site.finish_all(order, 0);
        let Site { offsets, work, .. } = site;
        self.work += work;
        let bytes = |offset: Units| u64::from(offset) * self.unit_bytes;
        built.map(|built| built.then(|| offsets.into_iter().map(bytes).collect()))
    }
}

impl Site<'_> {
    /// Places all of these, none below `from`, each group of them by itself. Says whether that can
    /// be done; if not, some may be placed.
    fn finish_all(&mut self, items: &[u32], from: Units) -> Result<bool, Spent> {
        for group in self.builder.sections.groups(items) {
            if !self.finish(&group, from)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn finish(&mut self, group: &[u32], from: Units) -> Result<bool, Spent> {
        if self.nodes >= self.limits.nodes || self.work >= self.limits.work {
            return Err(Spent);
        }
        self.nodes += 1;
        self.work += NODE_WORK;
        let Some(starts) = self.starts(group, from) else { return Ok(false) };
        if !self.has_room(&starts) {
            return Ok(false);
        }
        let before = self.changes.len();
        for item in self.next(&starts, from) {
            let (offset, mark) = (self.floors[item as usize], self.changes.len());
            self.place(item, offset);
            let others = starts.iter().map(|&(_, other)| other).filter(|&other| other != item);
            let others: Vec<u32> = others.collect();
            if self.finish_all(&others, offset)? {
                return Ok(true);
            }
            self.undo(mark);
            self.bar(item, offset);
        }
        self.undo(before);
        Ok(false)
    }

    /// Whether it may start at its floor.
    fn is_ready(&self, item: u32, from: Units) -> bool {
        let floor = self.floors[item as usize];
        floor > from || floor == from && self.barred[item as usize] != Some(from)
    }

    /// The least offset of each item, lowest first. `None` if one has no room, or was passed over
    /// and meets nobody any more.
    fn starts(&mut self, group: &[u32], from: Units) -> Option<Vec<(Units, u32)>> {
        let size = |item: u32| self.builder.sizes[item as usize];
        let end = |&item: &u32| self.floors[item as usize].max(from) + size(item);
        let mut starts = Vec::with_capacity(group.len());
        for &item in group {
            let start = if self.is_ready(item, from) {
                self.floors[item as usize]
            } else {
                let meets = &self.builder.meets[item as usize];
                self.work += meets.len() as u64;
                let others = meets.iter().filter(|&&other| !self.is_placed[other as usize]);
                others.map(end).min()?
            };
            if start + size(item) > self.ceiling {
                return None;
            }
            starts.push((start, item));
        }
        starts.sort_unstable();
        Some(starts)
    }

    /// Whether each section has room for all that is to come in it, were nothing in the way in
    /// others. Whoever starts first goes first: no order is lower.
    fn has_room(&mut self, starts: &[(Units, u32)]) -> bool {
        let Site { builder, heights, .. } = self;
        let hull = builder.sections.hull(starts.iter().map(|start| start.1));
        heights[hull.clone()].fill(0);
        for &(start, item) in starts {
            let size = builder.sizes[item as usize];
            for span in builder.sections.of(item) {
                self.work += span.range().len() as u64 + ITEM_WORK;
                let heights = &mut heights[span.range()];
                heights.iter_mut().for_each(|height| *height = start.max(*height) + size);
            }
        }
        heights[hull].iter().all(|&height| height <= self.ceiling)
    }

    /// Who can come next, in the order of trying.
    fn next(&self, starts: &[(Units, u32)], from: Units) -> Vec<u32> {
        let Site { builder, heights, rests, .. } = self;
        // A later one would leave no room in a section.
        let rests = &rests[builder.sections.hull(starts.iter().map(|start| start.1))];
        let latest = self.ceiling - rests.iter().copied().max().unwrap_or(0);
        // Below a later one another would fit.
        let ends = starts.iter().map(|&(start, item)| start + builder.sizes[item as usize]);
        let lowest_end = ends.min().unwrap_or(0);
        let can = |&&(start, item): &&(Units, u32)| {
            self.is_ready(item, from) && start < lowest_end && start <= latest
        };
        let key = |&(start, item): &(Units, u32)| {
            let spans = builder.sections.of(item).iter();
            let fullest = spans.flat_map(|span| &heights[span.range()]).max();
            (start, Units::MAX - fullest.copied().unwrap_or(0), self.ranks[item as usize], item)
        };
        let mut next: Vec<_> = starts.iter().filter(can).map(key).collect();
        next.sort_unstable();
        next.into_iter().map(|(.., item)| item).collect()
    }

    fn place(&mut self, item: u32, offset: Units) {
        let Site { builder, .. } = *self;
        let size = builder.sizes[item as usize];
        self.changes.push(Change::Placed { item });
        self.is_placed[item as usize] = true;
        self.offsets[item as usize] = offset;
        for span in builder.sections.of(item) {
            self.rests[span.range()].iter_mut().for_each(|rest| *rest -= size);
        }
        for &other in &builder.meets[item as usize] {
            let floor = &mut self.floors[other as usize];
            if !self.is_placed[other as usize] && *floor < offset + size {
                self.changes.push(Change::Raised { item: other, from: *floor });
                *floor = offset + size;
            }
        }
    }

    /// It was tried on this floor: others that go there first come to nothing new with it.
    fn bar(&mut self, item: u32, floor: Units) {
        let before = self.barred[item as usize].replace(floor);
        self.changes.push(Change::Barred { item, before });
    }

    fn undo(&mut self, mark: usize) {
        let Site { builder, .. } = *self;
        for change in self.changes.drain(mark..).rev() {
            match change {
                Change::Raised { item, from } => self.floors[item as usize] = from,
                Change::Barred { item, before } => self.barred[item as usize] = before,
                Change::Placed { item } => {
                    self.is_placed[item as usize] = false;
                    let size = builder.sizes[item as usize];
                    for span in builder.sections.of(item) {
                        self.rests[span.range()].iter_mut().for_each(|rest| *rest += size);
                    }
                }
            }
        }
    }
}

/// The greatest number that divides both.
pub(super) fn divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}
