//! Gives lots to items one after the other.

use std::cmp::Reverse;

use swap_core::Lot;

use super::pack::{Item, Stay};

/// The memory of one item, in the order in which it is shown.
pub(super) type Spots = Vec<Lot>;

/// Which of the gaps that are large enough an item gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The lowest.
    Lowest,
    /// The smallest, and of those the lowest.
    Best,
}

/// Who found no room below the ceiling, by position in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stuck {
    pub(super) first: usize,
    pub(super) largest: usize,
}

/// Places items with the times of their stays at hand, and counts what that takes.
pub(super) struct Placer<'a> {
    items: &'a [Item],
    times: Vec<Times>,
    /// Lots that were looked at: a measure of time that is the same on every machine.
    pub(super) work: u64,
}

/// What placing an item takes beside looking at lots, in lots looked at.
const PLACING_WORK: u64 = 16;

/// When an item is there, to see at a glance whom it does not meet.
#[derive(Clone, Copy)]
struct Times {
    /// A bit for each of 64 parts of the step.
    parts: u64,
    first: u32,
    last: u32,
    /// Whether it is away in between.
    several: bool,
}

struct Placed {
    offset_bytes: u64,
    end_bytes: u64,
    times: Times,
    item: u32,
}

impl<'a> Placer<'a> {
    pub(super) fn new(items: &'a [Item]) -> Placer<'a> {
        let ends = items.iter().filter_map(|item| item.stays.last());
        let end = u64::from(ends.map(|stay| stay.1).max().unwrap_or(0)).max(1);
        let part = |time: u32| (u64::from(time) * 64 / end) as u32;
        let parts =
            |&(start, stop): &Stay| (u64::MAX << part(start)) & (u64::MAX >> (63 - part(stop - 1)));
        let times = |item: &Item| Times {
            parts: item.stays.iter().map(parts).fold(0, |all, parts| all | parts),
            first: item.stays.first().map_or(0, |stay| stay.0),
            last: item.stays.last().map_or(0, |stay| stay.1),
            several: item.stays.len() > 1,
        };
        Placer { items, times: items.iter().map(times).collect(), work: 0 }
    }

    /// Offsets by item, all lots ending at the ceiling or below.
    pub(super) fn place(
        &mut self,
        order: &[u32],
        fit: Fit,
        ceiling_bytes: u64,
    ) -> Result<Vec<u64>, Stuck> {
        let mut offsets = vec![0; self.items.len()];
        // By offset.
        let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
        let mut stuck: Option<Stuck> = None;
        for (position, &item) in order.iter().enumerate() {
            let size_bytes = self.items[item as usize].size_bytes;
            self.work += PLACING_WORK;
            let offset_bytes = self.gap(&placed, item as usize, fit);
            let lot = Lot { offset_bytes, size_bytes };
            if lot.end_bytes() > ceiling_bytes {
                // Placing goes on without it, to see who else finds none.
                stuck = Some(self.stuck_too(stuck, order, position));
                continue;
            }
            offsets[item as usize] = offset_bytes;
            self.put(&mut placed, item, lot);
        }
        stuck.map_or(Ok(offsets), Err)
    }

    /// As [`place`](Placer::place), the lowest gaps first. What finds none that is large enough
    /// gets several, and of these the largest, so that its pieces are few.
    pub(super) fn place_in_pieces(
        &mut self,
        order: &[u32],
        ceiling_bytes: u64,
    ) -> Result<Vec<Spots>, Stuck> {
        let mut spots = vec![Spots::new(); self.items.len()];
        let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
        let mut stuck: Option<Stuck> = None;
        for (position, &item) in order.iter().enumerate() {
            let size_bytes = self.items[item as usize].size_bytes;
            self.work += PLACING_WORK;
            let offset_bytes = self.gap(&placed, item as usize, Fit::Lowest);
            let lot = Lot { offset_bytes, size_bytes };
            let found = match lot.end_bytes() <= ceiling_bytes {
                true => Some(vec![lot]),
                false => self.gaps(&placed, item as usize, ceiling_bytes),
            };
            let Some(found) = found else {
                stuck = Some(self.stuck_too(stuck, order, position));
                continue;
            };
            found.iter().for_each(|&lot| self.put(&mut placed, item, lot));
            spots[item as usize] = found;
        }
        stuck.map_or(Ok(spots), Err)
    }

    fn stuck_too(&self, others: Option<Stuck>, order: &[u32], position: usize) -> Stuck {
        let mut stuck = others.unwrap_or(Stuck { first: position, largest: position });
        let size_bytes = |position: usize| self.items[order[position] as usize].size_bytes;
        if size_bytes(position) > size_bytes(stuck.largest) {
            stuck.largest = position;
        }
        stuck
    }

    fn put(&self, placed: &mut Vec<Placed>, item: u32, lot: Lot) {
        let (offset_bytes, end_bytes) = (lot.offset_bytes, lot.end_bytes());
        let rank = placed.partition_point(|other| other.offset_bytes <= offset_bytes);
        let times = self.times[item as usize];
        placed.insert(rank, Placed { offset_bytes, end_bytes, times, item });
    }

    /// Whether an item and one that is placed are ever there at the same time.
    fn meets(&self, item: usize, lot: &Placed) -> bool {
        let times = self.times[item];
        if !times.may_meet(lot.times) {
            return false;
        }
        let several = times.several || lot.times.several;
        !several || meet(&self.items[item].stays, &self.items[lot.item as usize].stays)
    }

    /// Gaps below the ceiling that are enough together; `None` if there are not.
    fn gaps(&mut self, placed: &[Placed], item: usize, ceiling_bytes: u64) -> Option<Spots> {
        self.work += placed.len() as u64;
        let mut gaps: Vec<Lot> = Vec::new();
        let mut top_bytes = 0;
        let mut until = |end_bytes: u64, top_bytes: u64| {
            let size_bytes = end_bytes.saturating_sub(top_bytes);
            if size_bytes > 0 {
                gaps.push(Lot { offset_bytes: top_bytes, size_bytes });
            }
        };
        for lot in placed {
            if lot.end_bytes > top_bytes && self.meets(item, lot) {
                until(lot.offset_bytes, top_bytes);
                top_bytes = lot.end_bytes;
            }
        }
        until(ceiling_bytes, top_bytes);
        gaps.sort_by_key(|gap| Reverse(gap.size_bytes));
        let mut missing_bytes = self.items[item].size_bytes;
        let mut spots = Spots::new();
        for gap in gaps {
            if missing_bytes == 0 {
                break;
            }
            let size_bytes = gap.size_bytes.min(missing_bytes);
            spots.push(Lot { size_bytes, ..gap });
            missing_bytes -= size_bytes;
        }
        spots.sort_unstable();
        (missing_bytes == 0).then_some(spots)
    }

    fn gap(&mut self, placed: &[Placed], item: usize, fit: Fit) -> u64 {
        let wanted = &self.items[item];
        let mut top_bytes = 0;
        let mut best: Option<(u64, u64)> = None;
        for (seen, lot) in placed.iter().enumerate() {
            if lot.end_bytes <= top_bytes || !self.meets(item, lot) {
                continue;
            }
            let gap_bytes = lot.offset_bytes.saturating_sub(top_bytes);
            if gap_bytes >= wanted.size_bytes {
                if fit == Fit::Lowest || gap_bytes == wanted.size_bytes {
                    self.work += seen as u64;
                    return top_bytes;
                }
                if best.is_none_or(|best| gap_bytes < best.0) {
                    best = Some((gap_bytes, top_bytes));
                }
            }
            top_bytes = lot.end_bytes;
        }
        self.work += placed.len() as u64;
        best.map_or(top_bytes, |best| best.1)
    }
}

impl Times {
    /// Whether two items meet; if either is away in between, whether they could.
    fn may_meet(self, other: Times) -> bool {
        self.first < other.last && other.first < self.last && self.parts & other.parts != 0
    }
}

/// Whether two items are ever there at the same time. Stays are in order.
pub(super) fn meet(one: &[Stay], other: &[Stay]) -> bool {
    let (mut left, mut right) = (0, 0);
    while left < one.len() && right < other.len() {
        if one[left].1 <= other[right].0 {
            left += 1;
        } else if other[right].1 <= one[left].0 {
            right += 1;
        } else {
            return true;
        }
    }
    false
}
