//! A layout's answer: where in planned memory a block has its bytes.

use std::iter;

/// Part of memory that was laid out for a whole step. A block finds its bytes in the same lot in
/// each of its stays on the device, and in each step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lot {
    /// From the start of the memory; a multiple of the granularity.
    pub offset_bytes: u64,
    /// A multiple of the granularity, and not 0.
    pub size_bytes: u64,
}

impl Lot {
    /// Where it ends, if memory went so far.
    pub fn end_bytes(self) -> u64 {
        self.offset_bytes.saturating_add(self.size_bytes)
    }

    /// Whether two of them have no byte in common.
    pub fn is_apart_from(self, other: Lot) -> bool {
        self.end_bytes() <= other.offset_bytes || other.end_bytes() <= self.offset_bytes
    }

    /// The memory of a lot: that of its pieces, or itself if it has none. `pieces` are in the order
    /// of where they are shown.
    pub fn memory(self, pieces: &[LotPiece]) -> impl Iterator<Item = Lot> + '_ {
        let first = pieces.partition_point(|piece| piece.shown_at_bytes < self.offset_bytes);
        let is_own = move |piece: &&LotPiece| piece.shown_at_bytes < self.end_bytes();
        let mut own = pieces[first..].iter().take_while(is_own).map(|piece| piece.memory);
        let one = own.next().unwrap_or(self);
        iter::once(one).chain(own)
    }
}

/// Part of a lot for which there is no room in one place. Such a lot lies beyond all memory, where
/// each of its pieces shows memory that is elsewhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct LotPiece {
    /// Where it is shown, as an offset of a lot.
    pub shown_at_bytes: u64,
    /// The memory that is shown there.
    pub memory: Lot,
}

impl LotPiece {
    /// Where it is shown.
    pub(crate) fn shown(self) -> Lot {
        Lot { offset_bytes: self.shown_at_bytes, size_bytes: self.memory.size_bytes }
    }
}
