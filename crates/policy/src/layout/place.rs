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

/// Places items with the times of their stays at hand, and counts what that takes.
pub(super) struct Placer<'a> {
    items: &'a [Item],
    times: Vec<Times>,
    /// Lots that were looked at for pieces: a measure of time that is the same on every machine.
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

    /// Offsets by item, all lots ending at the ceiling or below; `None` if one finds no room there.
    pub(super) fn place(&self, order: &[u32], fit: Fit, ceiling_bytes: u64) -> Option<Vec<u64>> {
        let mut offsets = vec![0; self.items.len()];
        // By offset.
        let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
        for &item in order {
            let size_bytes = self.items[item as usize].size_bytes;
            let offset_bytes = self.gap(&placed, item as usize, fit);
            let lot = Lot { offset_bytes, size_bytes };
            if lot.end_bytes() > ceiling_bytes {
                return None;
            }
            offsets[item as usize] = offset_bytes;
            Placer::put(&mut placed, item, lot);
        }
        Some(offsets)
    }

    /// By item: its memory, below the ceiling if there is room. The lowest gaps come first. What
    /// finds none that is large enough gets several, and of these the largest, so that its pieces
    /// are few. If these are not enough, it gets what is free for `pressed`, the same items with
    /// shorter stays, as well. Says too who lies above the ceiling for all that.
    pub(super) fn place_in_pieces(
        &mut self,
        pressed: &Placer,
        order: &[u32],
        ceiling_bytes: u64,
    ) -> (Vec<Spots>, Vec<u32>) {
        let mut spots = vec![Spots::new(); self.items.len()];
        let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
        let mut stuck = Vec::new();
        for &item in order {
            let size_bytes = self.items[item as usize].size_bytes;
            self.work += PLACING_WORK + placed.len() as u64;
            let offset_bytes = self.gap(&placed, item as usize, Fit::Lowest);
            let lot = Lot { offset_bytes, size_bytes };
            let found = match lot.end_bytes() <= ceiling_bytes {
                true => Some(vec![lot]),
                false => self.pieces(pressed, &placed, item as usize, ceiling_bytes),
            };
            let found = found.unwrap_or_else(|| {
                stuck.push(item);
                vec![lot]
            });
            found.iter().for_each(|&lot| Placer::put(&mut placed, item, lot));
            spots[item as usize] = found;
        }
        (spots, stuck)
    }

    fn put(placed: &mut Vec<Placed>, item: u32, lot: Lot) {
        let (offset_bytes, end_bytes) = (lot.offset_bytes, lot.end_bytes());
        let rank = placed.partition_point(|other| other.offset_bytes <= offset_bytes);
        placed.insert(rank, Placed { offset_bytes, end_bytes, item });
    }

    /// Whether an item and one that is placed are ever there at the same time.
    fn meets(&self, item: usize, lot: &Placed) -> bool {
        let [times, other] = [item, lot.item as usize].map(|item| self.times[item]);
        if !times.may_meet(other) {
            return false;
        }
        let several = times.several || other.several;
        !several || meet(&self.items[item].stays, &self.items[lot.item as usize].stays)
    }

    /// Gaps below the ceiling that are enough together; `None` if there are none.
    fn pieces(
        &self,
        pressed: &Placer,
        placed: &[Placed],
        item: usize,
        ceiling_bytes: u64,
    ) -> Option<Spots> {
        let missing_bytes = self.items[item].size_bytes;
        let own = self.gaps(placed, item, ceiling_bytes);
        let (mut spots, missing_bytes) = largest(own, missing_bytes);
        if missing_bytes > 0 {
            let all = pressed.gaps(placed, item, ceiling_bytes);
            let others = without(&all, &spots);
            let (more, missing_bytes) = largest(others, missing_bytes);
            if missing_bytes > 0 {
                return None;
            }
            spots.extend(more);
        }
        spots.sort_unstable();
        Some(joined(spots))
    }

    /// All gaps below the ceiling, by offset.
    fn gaps(&self, placed: &[Placed], item: usize, ceiling_bytes: u64) -> Spots {
        let mut gaps = Spots::new();
        let mut top_bytes = 0;
        let mut until = |end_bytes: u64, top_bytes: u64| {
            let size_bytes = end_bytes.saturating_sub(top_bytes);
            if size_bytes > 0 {
                gaps.push(Lot { offset_bytes: top_bytes, size_bytes });
            }
        };
        for lot in placed {
            if lot.end_bytes > top_bytes && self.meets(item, lot) {
                until(lot.offset_bytes.min(ceiling_bytes), top_bytes);
                top_bytes = lot.end_bytes;
            }
        }
        until(ceiling_bytes, top_bytes);
        gaps
    }

    fn gap(&self, placed: &[Placed], item: usize, fit: Fit) -> u64 {
        let wanted = &self.items[item];
        let mut top_bytes = 0;
        let mut best: Option<(u64, u64)> = None;
        for lot in placed {
            if lot.end_bytes <= top_bytes || !self.meets(item, lot) {
                continue;
            }
            let gap_bytes = lot.offset_bytes.saturating_sub(top_bytes);
            if gap_bytes >= wanted.size_bytes {
                if fit == Fit::Lowest || gap_bytes == wanted.size_bytes {
                    return top_bytes;
                }
                if best.is_none_or(|best| gap_bytes < best.0) {
                    best = Some((gap_bytes, top_bytes));
                }
            }
            top_bytes = lot.end_bytes;
        }
        best.map_or(top_bytes, |best| best.1)
    }
}

/// The largest of these gaps until no more bytes are missing, and how many are then.
fn largest(mut gaps: Spots, mut missing_bytes: u64) -> (Spots, u64) {
    gaps.sort_by_key(|gap| Reverse(gap.size_bytes));
    let mut spots = Spots::new();
    for gap in gaps {
        if missing_bytes == 0 {
            break;
        }
        let size_bytes = gap.size_bytes.min(missing_bytes);
        spots.push(Lot { size_bytes, ..gap });
        missing_bytes -= size_bytes;
    }
    (spots, missing_bytes)
}

/// What of these gaps is in none of `taken`, each of which is in one.
fn without(gaps: &[Lot], taken: &[Lot]) -> Spots {
    let mut taken = taken.to_vec();
    taken.sort_unstable();
    let mut left = Spots::new();
    for gap in gaps {
        let mut start = gap.offset_bytes;
        let end = Lot { offset_bytes: gap.end_bytes(), size_bytes: 0 };
        let inside = taken.iter().filter(|lot| !lot.is_apart_from(*gap));
        for lot in inside.chain([&end]) {
            if lot.offset_bytes > start {
                let size_bytes = lot.offset_bytes - start;
                left.push(Lot { offset_bytes: start, size_bytes });
            }
            start = lot.end_bytes();
        }
    }
    left
}

/// Spots that lie side by side made one.
fn joined(spots: Spots) -> Spots {
    let mut joined = Spots::with_capacity(spots.len());
    for spot in spots {
        match joined.last_mut() {
            Some(last) if last.end_bytes() == spot.offset_bytes => {
                last.size_bytes += spot.size_bytes;
            }
            _ => joined.push(spot),
        }
    }
    joined
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
