//! Which slots are free, and in what order they are used again.
//!
//! Whoever takes a slot waits for its last users, mostly a copy that was only just submitted. So
//! a slot that was given back is kept whole and waits its turn: memory that nobody used yet comes
//! first, then the slot of the size that was given back longest ago.

use std::collections::{BTreeMap, VecDeque};

use crate::carver::{Carver, EmptyRegion, PieceId};
use crate::point::Uses;

/// Slots of one size that wait their turn before the first of them is used again, where there is
/// other memory: enough that a copy out need not wait for the copy in that was submitted last.
const WAITING: usize = 3;

/// A carved piece, its first address, and its last uses.
pub(super) type Carved = (PieceId, u64, Uses);

/// The slots of all regions.
#[derive(Debug, Default)]
pub(super) struct Slots {
    carver: Carver,
    /// Given back and kept whole, by size, longest ago first.
    spares: BTreeMap<u64, VecDeque<Carved>>,
}

impl Slots {
    /// Makes all of a region free, after `uses`.
    pub(super) fn add_region(&mut self, start: u64, size_bytes: u64, uses: Uses) {
        self.carver.put_back_region(0, start, size_bytes, uses);
    }

    /// A slot from memory in no slot.
    pub(super) fn carve(&mut self, size_bytes: u64) -> Option<Carved> {
        self.carver.carve(0, size_bytes)
    }

    /// A slot that has waited its turn.
    pub(super) fn take_waiting(&mut self, size_bytes: u64) -> Option<Carved> {
        let spares = self.spares.get_mut(&size_bytes)?;
        if spares.len() < WAITING { None } else { spares.pop_front() }
    }

    /// A slot from all that is free, whether it has waited or not.
    pub(super) fn take_any(&mut self, size_bytes: u64) -> Option<Carved> {
        let spare = self.spares.get_mut(&size_bytes).and_then(VecDeque::pop_front);
        spare.or_else(|| {
            self.dissolve(|_| true);
            self.carve(size_bytes)
        })
    }

    /// A slot from the memory of free slots of other sizes.
    pub(super) fn take_of_others(&mut self, size_bytes: u64) -> Option<Carved> {
        self.dissolve(|other| other != size_bytes);
        self.carve(size_bytes)
    }

    /// Makes a slot free, after `uses`.
    pub(super) fn give_back(&mut self, piece: PieceId, start: u64, size_bytes: u64, uses: Uses) {
        self.spares.entry(size_bytes).or_default().push_back((piece, start, uses));
    }

    /// Takes out the regions that hold no slot.
    pub(super) fn remove_empty_regions(&mut self) -> Vec<EmptyRegion> {
        self.dissolve(|_| true);
        self.carver.remove_empty_regions()
    }

    /// Joins free slots with the free memory beside them.
    fn dissolve(&mut self, which: impl Fn(u64) -> bool) {
        for (&size_bytes, spares) in &mut self.spares {
            if which(size_bytes) {
                for (piece, _, uses) in spares.drain(..) {
                    self.carver.give_back(piece, uses);
                }
            }
        }
        self.spares.retain(|_, spares| !spares.is_empty());
    }
}
