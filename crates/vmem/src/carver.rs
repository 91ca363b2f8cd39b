//! Cuts pieces out of large regions: best fit, with coalescing. It knows addresses, not memory.
//!
//! The device pool carves segments for small blocks with it and the host arena carves slots.
//! A free piece remembers its last uses, so that whoever gets it next can wait for them.

use std::collections::BTreeSet;

use crate::point::Uses;

/// A piece in use.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct PieceId(u32);

/// A region that holds no piece in use, taken out.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct EmptyRegion {
    pub(crate) group: u32,
    pub(crate) start: u64,
    pub(crate) size_bytes: u64,
    /// Of its pieces.
    pub(crate) uses: Uses,
}

/// Regions and the pieces they are cut into. Regions belong to a group; a request is served
/// from regions of its own group only.
#[derive(Debug, Default)]
pub(crate) struct Carver {
    pieces: Vec<Piece>,
    unused: Vec<u32>,
    free: BTreeSet<FreeKey>,
    /// Bytes of regions that hold no piece in use.
    empty_bytes: u64,
}

/// Best fit is the first key at or behind (group, wanted size, 0, 0).
type FreeKey = (u32, u64, u64, u32);

#[derive(Debug)]
struct Piece {
    group: u32,
    start: u64,
    size_bytes: u64,
    free: bool,
    uses: Uses,
    previous: Option<u32>,
    next: Option<u32>,
}

impl Carver {
    /// Adds a free region.
    pub(crate) fn add_region(&mut self, group: u32, start: u64, size_bytes: u64) {
        self.put_back_region(group, start, size_bytes, Uses::default());
    }

    /// Adds a free region that is still in use.
    pub(crate) fn put_back_region(&mut self, group: u32, start: u64, size_bytes: u64, uses: Uses) {
        let piece =
            Piece { group, start, size_bytes, free: true, uses, previous: None, next: None };
        let index = self.insert(piece);
        self.free.insert(self.key(index));
        self.empty_bytes += size_bytes;
    }

    /// Bytes of regions that hold no piece in use.
    pub(crate) fn empty_bytes(&self) -> u64 {
        self.empty_bytes
    }

    /// Cuts a piece of `size_bytes`; returns it, its start and its earlier uses.
    pub(crate) fn carve(&mut self, group: u32, size_bytes: u64) -> Option<(PieceId, u64, Uses)> {
        assert!(size_bytes > 0, "an empty piece has no place");
        let key = *self.free.range((group, size_bytes, 0, 0)..).next()?;
        if key.0 != group {
            return None;
        }
        self.free.remove(&key);
        let index = key.3;
        if self.is_region(index) {
            self.empty_bytes -= self.pieces[index as usize].size_bytes;
        }
        let rest_bytes = self.pieces[index as usize].size_bytes - size_bytes;
        if rest_bytes > 0 {
            self.split(index, size_bytes);
        }
        let piece = &mut self.pieces[index as usize];
        piece.free = false;
        Some((PieceId(index), piece.start, std::mem::take(&mut piece.uses)))
    }

    /// Gives a piece back, to be reused after `uses`.
    pub(crate) fn give_back(&mut self, id: PieceId, uses: Uses) {
        let mut index = id.0;
        let piece = &mut self.pieces[index as usize];
        assert!(!piece.free, "a piece was given back twice");
        piece.free = true;
        piece.uses = uses;
        if let Some(next) = piece.next
            && self.pieces[next as usize].free
        {
            self.free.remove(&self.key(next));
            self.absorb_next(index);
        }
        if let Some(previous) = self.pieces[index as usize].previous
            && self.pieces[previous as usize].free
        {
            self.free.remove(&self.key(previous));
            self.absorb_next(previous);
            index = previous;
        }
        self.free.insert(self.key(index));
        if self.is_region(index) {
            self.empty_bytes += self.pieces[index as usize].size_bytes;
        }
    }

    /// Takes out a region that holds no piece in use, if there is one.
    pub(crate) fn remove_empty_region(&mut self) -> Option<EmptyRegion> {
        let key = *self.free.iter().find(|key| self.is_region(key.3))?;
        Some(self.remove_region(key))
    }

    /// Takes out the regions that hold no piece in use.
    pub(crate) fn remove_empty_regions(&mut self) -> Vec<EmptyRegion> {
        let empty = self.free.iter().filter(|key| self.is_region(key.3));
        let empty: Vec<FreeKey> = empty.copied().collect();
        empty.into_iter().map(|key| self.remove_region(key)).collect()
    }

    fn remove_region(&mut self, key: FreeKey) -> EmptyRegion {
        self.free.remove(&key);
        self.unused.push(key.3);
        let piece = &mut self.pieces[key.3 as usize];
        self.empty_bytes -= piece.size_bytes;
        let uses = std::mem::take(&mut piece.uses);
        let Piece { group, start, size_bytes, .. } = *piece;
        EmptyRegion { group, start, size_bytes, uses }
    }

    /// Whether a piece is a whole region.
    fn is_region(&self, index: u32) -> bool {
        let piece = &self.pieces[index as usize];
        piece.previous.is_none() && piece.next.is_none()
    }

    fn key(&self, index: u32) -> FreeKey {
        let piece = &self.pieces[index as usize];
        (piece.group, piece.size_bytes, piece.start, index)
    }

    fn insert(&mut self, piece: Piece) -> u32 {
        match self.unused.pop() {
            Some(index) => {
                self.pieces[index as usize] = piece;
                index
            }
            None => {
                self.pieces.push(piece);
                u32::try_from(self.pieces.len() - 1).expect("fewer than 2^32 pieces")
            }
        }
    }

    /// Leaves `size_bytes` in the piece and makes a free one of the rest.
    fn split(&mut self, index: u32, size_bytes: u64) {
        let piece = &self.pieces[index as usize];
        let rest = Piece {
            group: piece.group,
            start: piece.start + size_bytes,
            size_bytes: piece.size_bytes - size_bytes,
            free: true,
            uses: piece.uses.clone(),
            previous: Some(index),
            next: piece.next,
        };
        let next = rest.next;
        let rest_index = self.insert(rest);
        if let Some(next) = next {
            self.pieces[next as usize].previous = Some(rest_index);
        }
        let piece = &mut self.pieces[index as usize];
        piece.size_bytes = size_bytes;
        piece.next = Some(rest_index);
        self.free.insert(self.key(rest_index));
    }

    /// Merges the free piece behind `index` into it.
    fn absorb_next(&mut self, index: u32) {
        let next_index = self.pieces[index as usize].next.expect("the caller saw it");
        let next = &mut self.pieces[next_index as usize];
        let (size_bytes, after) = (next.size_bytes, next.next);
        let uses = std::mem::take(&mut next.uses);
        self.unused.push(next_index);
        if let Some(after) = after {
            self.pieces[after as usize].previous = Some(index);
        }
        let piece = &mut self.pieces[index as usize];
        piece.size_bytes += size_bytes;
        piece.next = after;
        piece.uses.merge(&uses);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::point::{Point, StreamId};
    use proptest::prelude::*;

    fn used(position: u64) -> Uses {
        Uses::of(Point { stream: StreamId(0), position })
    }

    #[test]
    fn the_smallest_piece_that_fits_serves_and_neighbours_coalesce() {
        let mut carver = Carver::default();
        carver.add_region(0, 1000, 100);
        carver.add_region(0, 5000, 40);
        let (small, start, _) = carver.carve(0, 30).expect("fits");
        assert_eq!(start, 5000);
        let (left, left_start, _) = carver.carve(0, 50).expect("fits");
        let (right, right_start, _) = carver.carve(0, 50).expect("fits");
        assert_eq!((left_start, right_start), (1000, 1050));
        assert!(carver.carve(0, 20).is_none());
        assert!(carver.carve(1, 1).is_none(), "another group has no region");
        carver.give_back(left, used(3));
        carver.give_back(right, used(7));
        let (_, start, uses) = carver.carve(0, 100).expect("both halves are one again");
        assert_eq!((start, uses), (1000, used(7)));
        assert_eq!(carver.empty_bytes(), 0);
        carver.give_back(small, used(1));
        assert_eq!(carver.empty_bytes(), 40);
        let uses = used(1);
        let empty = EmptyRegion { group: 0, start: 5000, size_bytes: 40, uses };
        assert_eq!(carver.remove_empty_regions(), vec![empty]);
        assert_eq!(carver.empty_bytes(), 0);
        assert!(carver.carve(0, 1).is_none());
    }

    proptest! {
        #[test]
        fn pieces_never_overlap_and_all_comes_back(
            calls in prop::collection::vec(
                (any::<bool>(), 1_u64..200, any::<prop::sample::Index>()),
                1..200,
            )
        ) {
            let mut carver = Carver::default();
            carver.add_region(0, 0, 1000);
            carver.add_region(0, 1000, 1000);
            let mut live: Vec<(PieceId, u64, u64)> = Vec::new();
            for (allocate, size, pick) in calls {
                if allocate || live.is_empty() {
                    if let Some((id, start, _)) = carver.carve(0, size) {
                        prop_assert!(start / 1000 == (start + size - 1) / 1000, "crosses regions");
                        for &(_, other, other_size) in &live {
                            prop_assert!(start + size <= other || other + other_size <= start);
                        }
                        live.push((id, start, size));
                    }
                } else {
                    let (id, _, _) = live.swap_remove(pick.index(live.len()));
                    carver.give_back(id, Uses::default());
                }
                let is_empty = |region: &u64| !live.iter().any(|piece| piece.1 / 1000 == *region);
                let empty = (0..2).filter(is_empty).count() as u64;
                prop_assert_eq!(carver.empty_bytes(), 1000 * empty);
            }
            for (id, _, _) in live {
                carver.give_back(id, Uses::default());
            }
            let mut regions = carver.remove_empty_regions();
            regions.sort_by_key(|region| region.start);
            let whole = |start| {
                EmptyRegion { group: 0, start, size_bytes: 1000, uses: Uses::default() }
            };
            prop_assert_eq!(regions, vec![whole(0), whole(1000)]);
        }
    }
}
