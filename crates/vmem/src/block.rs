//! A block: an address from allocate to free, and at most one chunk behind it.

use npu_sys::{ChunkHandle, DevicePtr, VaRange};

use crate::carver::PieceId;
use crate::chunk_cache::Fit;
use crate::lot::Lot;
use crate::point::Uses;

/// Names a block from allocate to free. The generation makes a stale name harmless.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl BlockId {
    /// A dense number, reused after the block is freed.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// Physical memory, mapped for its whole life at a home address of its own.
///
/// Copies run at the home address, so they need no mapping at the block's address.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) handle: ChunkHandle,
    pub(crate) home: VaRange,
}

/// A lot of the layout of that number: planned memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PlannedLot {
    pub(crate) layout: u32,
    pub(crate) lot: Lot,
}

/// The physical memory behind a block.
#[derive(Debug)]
pub(crate) enum Backing {
    /// Given away: the block is on the host, or dropped.
    Nothing,
    /// A chunk of its own.
    Chunk(Chunk),
    /// Planned memory, and where in the home addresses of its layout.
    Lot { lot: PlannedLot, home: VaRange },
}

/// A cached chunk.
#[derive(Debug)]
pub(crate) struct Spare {
    pub(crate) chunk: Chunk,
    /// Addresses at which it is mapped, or will soon be: of a freed block, or made ahead of need.
    pub(crate) range: Option<VaRange>,
    /// Its next user waits for these.
    pub(crate) ready: Uses,
    /// How it was given away, if it was: it is ready only when that copy is over. Without, its
    /// block was freed, and compute finds it ready in its own order.
    pub(crate) departure: Option<Departure>,
}

/// One giving away of a block's chunk. While the cache has it, the block's bytes are in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Departure(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) generation: u32,
    pub(crate) requested_bytes: u64,
    pub(crate) size_bytes: u64,
    /// Its owner has freed it.
    pub(crate) is_disowned: bool,
    pub(crate) uses: Uses,
    pub(crate) memory: BlockMemory,
}

impl Block {
    /// What the block asks for, and the chunk that its addresses are made for.
    ///
    /// # Panics
    /// If it is a piece of a segment.
    pub(crate) fn fit(&self) -> Fit {
        let BlockMemory::Swappable { range, .. } = &self.memory else {
            unreachable!("pieces of segments have no chunk")
        };
        Fit { wanted_bytes: self.size_bytes, chunk_bytes: range.size_bytes }
    }
}

/// What a block's bytes are in.
#[derive(Debug)]
pub(crate) enum BlockMemory {
    /// The block was freed.
    Freed,
    /// A piece of a segment.
    Piece { piece: PieceId, start: DevicePtr },
    /// A range of its own, as long as what is behind it.
    Swappable { range: VaRange, backing: Backing, mapping: Mapping },
}

/// What is mapped at a swappable block's range.
#[derive(Debug, PartialEq)]
pub(crate) enum Mapping {
    /// Nothing: a touch faults.
    Unmapped,
    /// What is behind the block.
    Mapped,
    /// The block's chunk, as soon as another thread has mapped it.
    Coming,
    /// A chunk that the block gave away, or one that was mapped but not given access to. It is
    /// unmapped once `uses` are complete.
    Stale { chunk: ChunkHandle, uses: Uses, is_whole: bool },
    /// A lot that the block gave away, and will find again. Before anything else comes here, it is
    /// unmapped once `uses` are complete.
    Kept { lot: PlannedLot, uses: Uses },
}
