//! Pieces of an address space that do not overlap, found by any of their bytes.

use std::collections::BTreeMap;

/// One piece, and what is known of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Extent<T> {
    pub(crate) size_bytes: u64,
    pub(crate) held: T,
}

/// Pieces by where they start.
#[derive(Debug)]
pub(crate) struct Extents<T> {
    by_start: BTreeMap<u64, Extent<T>>,
}

impl<T> Default for Extents<T> {
    fn default() -> Extents<T> {
        Extents { by_start: BTreeMap::new() }
    }
}

impl<T> Extents<T> {
    /// Takes in a piece that overlaps no other.
    pub(crate) fn insert(&mut self, start: u64, size_bytes: u64, held: T) {
        self.by_start.insert(start, Extent { size_bytes, held });
    }

    pub(crate) fn remove(&mut self, start: u64) -> Option<Extent<T>> {
        self.by_start.remove(&start)
    }

    /// The piece that starts there.
    pub(crate) fn get(&self, start: u64) -> Option<&Extent<T>> {
        self.by_start.get(&start)
    }

    pub(crate) fn get_mut(&mut self, start: u64) -> Option<&mut Extent<T>> {
        self.by_start.get_mut(&start)
    }

    /// The piece that starts last before an address.
    pub(crate) fn before(&self, address: u64) -> Option<(u64, &Extent<T>)> {
        self.by_start.range(..address).next_back().map(|(&start, extent)| (start, extent))
    }

    /// The piece that holds all of the bytes, and where it starts.
    pub(crate) fn holder(&self, start: u64, size_bytes: u64) -> Option<(u64, &Extent<T>)> {
        let (&first, extent) = self.by_start.range(..=start).next_back()?;
        let offset_bytes = start - first;
        let is_inside =
            size_bytes <= extent.size_bytes && offset_bytes <= extent.size_bytes - size_bytes;
        is_inside.then_some((first, extent))
    }

    /// Where the last piece starts that has any of the bytes.
    pub(crate) fn overlap(&self, start: u64, size_bytes: u64) -> Option<u64> {
        let (first, extent) = self.before(start.saturating_add(size_bytes))?;
        (first.saturating_add(extent.size_bytes) > start).then_some(first)
    }

    /// Whether each of the bytes, at least one, is in a piece that is `right`.
    pub(crate) fn covers(&self, start: u64, size_bytes: u64, right: impl Fn(&T) -> bool) -> bool {
        let Some(end) = start.checked_add(size_bytes) else { return false };
        let mut at = start;
        loop {
            match self.holder(at, 1) {
                Some((first, extent)) if right(&extent.held) => at = first + extent.size_bytes,
                _ => return false,
            }
            if at >= end {
                return true;
            }
        }
    }

    /// Whether the bytes are whole pieces, without a gap.
    pub(crate) fn is_whole(&self, start: u64, size_bytes: u64) -> bool {
        let (mut at, mut left_bytes) = (start, size_bytes);
        while left_bytes > 0 {
            match self.get(at) {
                Some(extent) if extent.size_bytes <= left_bytes => {
                    at += extent.size_bytes;
                    left_bytes -= extent.size_bytes;
                }
                _ => return false,
            }
        }
        true
    }

    /// The pieces that start at any of the bytes.
    pub(crate) fn starting_in(
        &self,
        start: u64,
        size_bytes: u64,
    ) -> impl Iterator<Item = (u64, &Extent<T>)> {
        let inside = self.by_start.range(start..start.saturating_add(size_bytes));
        inside.map(|(&start, extent)| (start, extent))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Extent<T>)> {
        self.by_start.iter().map(|(&start, extent)| (start, extent))
    }

    pub(crate) fn count(&self) -> u64 {
        self.by_start.len() as u64
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.by_start.values().map(|extent| extent.size_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern::pattern_word;

    /// Each byte's piece, by where it starts.
    type Bytes = [Option<u64>; 32];

    /// All questions about all bytes, answered byte by byte.
    fn compare(extents: &Extents<bool>, bytes: &Bytes, held: impl Fn(u64) -> bool) -> [u64; 4] {
        let mut seen = [0; 4];
        for start in 0..bytes.len() {
            for end in start + 1..=bytes.len() {
                let (part, address) = (&bytes[start..end], start as u64);
                let size_bytes = part.len() as u64;
                let one = part[0].filter(|_| part.iter().all(|piece| *piece == part[0]));
                let found = extents.holder(address, size_bytes).map(|(first, _)| first);
                assert_eq!(found, one);
                let last = part.iter().rev().find_map(|piece| *piece);
                assert_eq!(extents.overlap(address, size_bytes), last);
                let is_covered = part.iter().all(|piece| piece.is_some_and(&held));
                assert_eq!(extents.covers(address, size_bytes, |&held| held), is_covered);
                let begins = start == 0 || bytes[start - 1] != part[0];
                let ends = bytes.get(end).is_none_or(|next| *next != part[part.len() - 1]);
                let is_whole = begins && ends && part.iter().all(Option::is_some);
                assert_eq!(extents.is_whole(address, size_bytes), is_whole);
                let starting = extents.starting_in(address, size_bytes).map(|(first, _)| first);
                let first = |at: &u64| bytes[*at as usize] == Some(*at);
                assert!(starting.eq((address..end as u64).filter(first)));
                let answers = [one.is_some(), last.is_some(), is_covered, is_whole];
                (0..4).for_each(|index| seen[index] += u64::from(answers[index]));
            }
        }
        seen
    }

    #[test]
    fn answers_are_those_of_a_map_of_bytes() {
        let (mut seen, mut count) = ([0; 4], 0);
        for seed in 0..50 {
            let mut extents = Extents::default();
            let mut bytes: Bytes = [None; 32];
            for step in 0..40 {
                let word = pattern_word(seed, step);
                let (start, size_bytes) = (word % 32, 1 + word / 32 % 6);
                if let Some(piece) = bytes[start as usize] {
                    assert!(extents.remove(piece).is_some());
                    bytes.iter_mut().filter(|it| **it == Some(piece)).for_each(|it| *it = None);
                } else if extents.overlap(start, size_bytes).is_none() && start + size_bytes <= 32 {
                    extents.insert(start, size_bytes, start % 5 > 0);
                    bytes[start as usize..(start + size_bytes) as usize].fill(Some(start));
                }
            }
            let answers = compare(&extents, &bytes, |start| start % 5 > 0);
            (0..4).for_each(|index| seen[index] += answers[index]);
            count += 32 * 33 / 2;
            assert_eq!(extents.total_bytes(), bytes.iter().flatten().count() as u64);
        }
        assert!(seen.iter().all(|&yes| yes > 300 && count - yes > 300), "{seen:?} of {count}");
    }

    #[test]
    fn bytes_behind_all_addresses_are_nowhere() {
        let mut extents = Extents::default();
        extents.insert(u64::MAX - 8, 8, ());
        assert!(extents.holder(u64::MAX - 4, 4).is_some());
        assert_eq!(extents.holder(u64::MAX - 4, u64::MAX), None);
        assert_eq!(extents.overlap(u64::MAX - 4, u64::MAX), Some(u64::MAX - 8));
        assert!(!extents.covers(u64::MAX - 4, 6, |()| true));
        assert!(!extents.is_whole(u64::MAX - 8, 9));
    }
}
