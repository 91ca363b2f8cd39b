//! The live blocks of the process by address.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adaptive::{BlockId, SwappedBlock};

/// A live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Live {
    pub(crate) id: BlockId,
    pub(crate) start: u64,
    /// As asked for.
    pub(crate) size_bytes: u64,
}

/// Live allocations, found by any address inside them.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    /// Those that move: few, and looked for at each touch.
    large: BTreeMap<u64, Live>,
    small: BTreeMap<u64, Live>,
    /// Small ones that recipes read: the engine is told who writes them.
    inputs: BTreeMap<u64, Live>,
    swapped: BTreeMap<u64, SwappedBlock>,
}

fn around(table: &BTreeMap<u64, Live>, address: u64) -> Option<Live> {
    let (_, live) = table.range(..=address).next_back()?;
    (address - live.start < live.size_bytes.max(1)).then_some(*live)
}

impl Blocks {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic leaves no table half-changed.
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn insert(&self, live: Live, is_large: bool) {
        let mut tables = self.lock();
        let table = if is_large { &mut tables.large } else { &mut tables.small };
        table.insert(live.start, live);
    }

    /// Takes out the block that starts at `start`.
    pub(crate) fn remove(&self, start: u64) -> Option<Live> {
        let mut tables = self.lock();
        tables.inputs.remove(&start);
        tables.small.remove(&start).or_else(|| tables.large.remove(&start))
    }

    /// The block that moves and has `address` in it.
    pub(crate) fn find_large(&self, address: u64) -> Option<Live> {
        around(&self.lock().large, address)
    }

    /// As [`find_large`](Blocks::find_large), unless the tables are in use.
    pub(crate) fn try_find_large(&self, address: u64) -> Option<Live> {
        around(&self.tables.try_lock().ok()?.large, address)
    }

    /// The small block that recipes read and has `address` in it.
    pub(crate) fn find_input(&self, address: u64) -> Option<Live> {
        around(&self.lock().inputs, address)
    }

    /// The small block that has `address` in it, from now on known as one that recipes read.
    pub(crate) fn note_input(&self, address: u64) -> Option<Live> {
        let tables = &mut *self.lock();
        let live = around(&tables.small, address)?;
        tables.inputs.insert(live.start, live);
        Some(live)
    }

    /// The block that has `address` in it.
    pub(crate) fn find(&self, address: u64) -> Option<Live> {
        let tables = self.lock();
        around(&tables.large, address).or_else(|| around(&tables.small, address))
    }

    /// All blocks that move.
    pub(crate) fn large(&self) -> Vec<Live> {
        self.lock().large.values().copied().collect()
    }

    /// The start, the size in bytes and, of those that the engine knows as blocks, the name of
    /// each allocation, by address.
    pub(crate) fn all(&self) -> Vec<(u64, u64, Option<BlockId>)> {
        let tables = self.lock();
        let live = tables.large.values().chain(tables.small.values());
        let swapped = tables.swapped.iter();
        let mut all: Vec<_> = live
            .map(|live| (live.start, live.size_bytes, Some(live.id)))
            .chain(swapped.map(|(&start, block)| (start, block.requested_bytes(), None)))
            .collect();
        all.sort_unstable_by_key(|&(start, _, _)| start);
        all
    }

    /// Number and bytes of all live blocks.
    pub(crate) fn count(&self) -> (usize, u64) {
        let Tables { large, small, swapped, .. } = &*self.lock();
        let moving = large.values().chain(small.values()).map(|live| live.size_bytes);
        let fixed = swapped.values().map(SwappedBlock::requested_bytes);
        (large.len() + small.len() + swapped.len(), moving.chain(fixed).sum())
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
