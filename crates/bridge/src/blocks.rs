//! The live blocks of the process by address.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adaptive::{AccessMode, Allocation, BlockId, SwappedBlock};

use crate::starts::{Located, Starts};

/// A live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) id: BlockId,
    pub(crate) start: u64,
    /// As asked for.
    pub(crate) size_bytes: u64,
    pub(crate) kind: Kind,
    /// The outermost op that allocated or used it last; 0 for none.
    op: u64,
    /// What that op did: a bit for each mode, and [`MADE`].
    did: u8,
}

/// It allocated the block.
const MADE: u8 = 1 << 7;

/// What the engine does with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// It has a chunk of its own, and moves.
    Swappable,
    /// It stays where it is.
    Small,
    /// A small one that recipes read: the engine is told who writes it.
    Input,
}

impl Live {
    pub(crate) fn new(allocation: Allocation, size_bytes: u64) -> Live {
        let kind = if allocation.is_swappable { Kind::Swappable } else { Kind::Small };
        let (id, start) = (allocation.block, allocation.address.0);
        Live { id, start, size_bytes, kind, op: 0, did: 0 }
    }

    /// It, as allocated in the op of this number.
    pub(crate) fn made_in(self, op: u64) -> Live {
        Live { op, did: MADE, ..self }
    }

    /// Whether it moves, and the op of this number has allocated it.
    pub(crate) fn is_fresh(&self, op: u64) -> bool {
        self.op == op && self.did & MADE != 0 && self.kind == Kind::Swappable
    }

    /// Notes that an op uses it. Returns whether that was not known; an op of another thread in
    /// between makes it forgotten.
    pub(crate) fn note_use(&mut self, op: u64, mode: AccessMode) -> bool {
        let known = if self.op == op { self.did } else { 0 };
        (self.op, self.did) = (op, known | 1 << mode as u8);
        self.did != known
    }

    /// Forgets how it was used.
    pub(crate) fn forget_uses(&mut self) {
        self.did &= MADE;
    }
}

impl Located for Live {
    fn start(&self) -> u64 {
        self.start
    }
}

/// Live allocations, found by any address inside them.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
pub(crate) struct Tables {
    live: Starts<Live>,
    /// Where they begin, in order, for addresses inside them.
    ordered: BTreeSet<u64>,
    swapped: BTreeMap<u64, SwappedBlock>,
}

impl Tables {
    /// The block that has `address` in it.
    pub(crate) fn around(&mut self, address: u64) -> Option<&mut Live> {
        let start = match self.live.get(address) {
            Some(_) => address,
            None => *self.ordered.range(..address).next_back()?,
        };
        self.live.get_mut(start).filter(|live| address - start < live.size_bytes.max(1))
    }

    fn all(&self) -> impl Iterator<Item = &Live> {
        self.ordered.iter().filter_map(|&start| self.live.get(start))
    }
}

impl Blocks {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic leaves no table half-changed.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, live: Live) {
        let mut tables = self.lock();
        tables.ordered.insert(live.start);
        tables.live.insert(live);
    }

    /// Takes out the block that starts at `start`.
    pub(crate) fn remove(&self, start: u64) -> Option<Live> {
        let mut tables = self.lock();
        tables.ordered.remove(&start);
        tables.live.remove(start)
    }

    /// The block that moves and has `address` in it.
    pub(crate) fn find_swappable(&self, address: u64) -> Option<Live> {
        self.find(address).filter(|live| live.kind == Kind::Swappable)
    }

    /// As [`find_swappable`](Blocks::find_swappable), unless the tables are in use.
    pub(crate) fn try_find_swappable(&self, address: u64) -> Option<Live> {
        let mut tables = self.tables.try_lock().ok()?;
        tables.around(address).copied().filter(|live| live.kind == Kind::Swappable)
    }

    /// The small block that has `address` in it, from now on known as one that recipes read.
    pub(crate) fn note_input(&self, address: u64) -> Option<Live> {
        let mut tables = self.lock();
        let live = tables.around(address).filter(|live| live.kind != Kind::Swappable)?;
        live.kind = Kind::Input;
        Some(*live)
    }

    /// The block that has `address` in it.
    pub(crate) fn find(&self, address: u64) -> Option<Live> {
        self.lock().around(address).copied()
    }

    /// All blocks that move.
    pub(crate) fn swappable(&self) -> Vec<Live> {
        self.lock().all().filter(|live| live.kind == Kind::Swappable).copied().collect()
    }

    /// The start, the size in bytes and, of those that the engine knows as blocks, the name of
    /// each allocation, by address.
    pub(crate) fn all(&self) -> Vec<(u64, u64, Option<BlockId>)> {
        let tables = self.lock();
        let swapped = tables.swapped.iter();
        let mut all: Vec<_> = tables
            .all()
            .map(|live| (live.start, live.size_bytes, Some(live.id)))
            .chain(swapped.map(|(&start, block)| (start, block.requested_bytes(), None)))
            .collect();
        all.sort_unstable_by_key(|&(start, _, _)| start);
        all
    }

    /// Number and bytes of all live blocks.
    pub(crate) fn count(&self) -> (usize, u64) {
        let tables = self.lock();
        let moving = tables.all().map(|live| live.size_bytes);
        let fixed = tables.swapped.values().map(SwappedBlock::requested_bytes);
        (tables.live.len() + tables.swapped.len(), moving.chain(fixed).sum())
    }

    pub(crate) fn insert_swapped(&self, block: SwappedBlock) {
        self.lock().swapped.insert(block.address().0, block);
    }

    pub(crate) fn remove_swapped(&self, start: u64) -> Option<SwappedBlock> {
        self.lock().swapped.remove(&start)
    }

    /// The start and size in bytes of the swapped block that has `address` in it.
    pub(crate) fn find_swapped(&self, address: u64) -> Option<(u64, u64)> {
        let tables = self.lock();
        let (&start, block) = tables.swapped.range(..=address).next_back()?;
        (address - start < block.size_bytes()).then(|| (start, block.requested_bytes()))
    }
}
