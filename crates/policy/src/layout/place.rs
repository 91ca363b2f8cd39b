//! Gives lots to items one after the other.

use super::pack::Item;

/// Which of the gaps that are large enough an item gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    /// The lowest.
    Lowest,
    /// The smallest, and of those the lowest.
    Best,
}

/// The item that found no room below the ceiling, by its position in the order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stuck(pub(super) usize);

/// Places items with the times of their stays at hand, and counts what that takes.
pub(super) struct Placer<'a> {
    items: &'a [Item],
    /// By item: a bit for each of 64 parts of the step in which it stays.
    parts: Vec<u64>,
    /// Lots that were looked at: a measure of time that is the same on every machine.
    pub(super) work: u64,
}

struct Placed {
    offset_bytes: u64,
    end_bytes: u64,
    parts: u64,
    item: u32,
}

impl<'a> Placer<'a> {
    pub(super) fn new(items: &'a [Item]) -> Placer<'a> {
        let ends = items.iter().filter_map(|item| item.stays.last());
        let end = u64::from(ends.map(|stay| stay.1).max().unwrap_or(0)).max(1);
        let part = |time: u32| (u64::from(time) * 64 / end) as u32;
        let parts = |item: &Item| {
            let bits = |&(start, stop): &(u32, u32)| {
                let (first, last) = (part(start), part(stop - 1));
                (u64::MAX << first) & (u64::MAX >> (63 - last))
            };
            item.stays.iter().map(bits).fold(0, |all, bits| all | bits)
        };
        Placer { items, parts: items.iter().map(parts).collect(), work: 0 }
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
        for (position, &item) in order.iter().enumerate() {
            let size_bytes = self.items[item as usize].size_bytes;
            let offset_bytes = self.gap(&placed, item as usize, fit);
            let end_bytes = offset_bytes.saturating_add(size_bytes);
            if end_bytes > ceiling_bytes {
                return Err(Stuck(position));
            }
            offsets[item as usize] = offset_bytes;
            let rank = placed.partition_point(|lot| lot.offset_bytes <= offset_bytes);
            let parts = self.parts[item as usize];
            placed.insert(rank, Placed { offset_bytes, end_bytes, parts, item });
        }
        Ok(offsets)
    }

    fn gap(&mut self, placed: &[Placed], item: usize, fit: Fit) -> u64 {
        let (wanted, parts) = (&self.items[item], self.parts[item]);
        let mut top_bytes = 0;
        let mut best: Option<(u64, u64)> = None;
        for (seen, lot) in placed.iter().enumerate() {
            let may_meet = lot.parts & parts != 0 && lot.end_bytes > top_bytes;
            if !may_meet || !meet(&wanted.stays, &self.items[lot.item as usize].stays) {
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

/// Whether two items are ever there at the same time. Stays are in order.
fn meet(one: &[(u32, u32)], other: &[(u32, u32)]) -> bool {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    while let (Some(left), Some(right)) = (one.peek(), other.peek()) {
        if left.1 <= right.0 {
            one.next();
        } else if right.1 <= left.0 {
            other.next();
        } else {
            return true;
        }
    }
    false
}
