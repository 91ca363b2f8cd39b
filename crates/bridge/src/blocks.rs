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
    /// Those that move: few, and looked for at each touch.
    large: Mutex<BTreeMap<u64, Live>>,
    small: Mutex<BTreeMap<u64, Live>>,
    swapped: Mutex<BTreeMap<u64, SwappedBlock>>,
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic leaves no table half-changed.
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

fn around(table: &BTreeMap<u64, Live>, address: u64) -> Option<Live> {
    let (_, live) = table.range(..=address).next_back()?;
    (address - live.start < live.size_bytes.max(1)).then_some(*live)
}

impl Blocks {
    pub(crate) fn insert(&self, live: Live, is_large: bool) {
        let table = if is_large { &self.large } else { &self.small };
        lock(table).insert(live.start, live);
    }

    /// Takes out the block that starts at `start`.
    pub(crate) fn remove(&self, start: u64) -> Option<Live> {
        let large = lock(&self.large).remove(&start);
        large.or_else(|| lock(&self.small).remove(&start))
    }

    /// The block that moves and has `address` in it.
    pub(crate) fn find_large(&self, address: u64) -> Option<Live> {
        around(&lock(&self.large), address)
    }

    /// The block that has `address` in it.
    pub(crate) fn find(&self, address: u64) -> Option<Live> {
        self.find_large(address).or_else(|| around(&lock(&self.small), address))
    }

    /// All blocks that move.
    pub(crate) fn large(&self) -> Vec<Live> {
        lock(&self.large).values().copied().collect()
    }

    /// Number and bytes of all live blocks.
    pub(crate) fn count(&self) -> (usize, u64) {
        let sum = |table: &BTreeMap<u64, Live>| {
            (table.len(), table.values().map(|live| live.size_bytes).sum::<u64>())
        };
        let ((large, large_bytes), (small, small_bytes)) =
            (sum(&lock(&self.large)), sum(&lock(&self.small)));
        let swapped = lock(&self.swapped);
        let swapped_bytes: u64 = swapped.values().map(SwappedBlock::requested_bytes).sum();
        (large + small + swapped.len(), large_bytes + small_bytes + swapped_bytes)
    }

    pub(crate) fn insert_swapped(&self, block: SwappedBlock) {
        lock(&self.swapped).insert(block.address().0, block);
    }

    pub(crate) fn remove_swapped(&self, start: u64) -> Option<SwappedBlock> {
        lock(&self.swapped).remove(&start)
    }

    pub(crate) fn is_swapped(&self, address: u64) -> bool {
        let swapped = lock(&self.swapped);
        let block = swapped.range(..=address).next_back();
        block.is_some_and(|(start, block)| address - start < block.size_bytes())
    }
}
