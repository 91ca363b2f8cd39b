//! What the engine knows of its live blocks, and their bytes in all.

use vmem::BlockId;

use crate::entry::Entry;
use crate::error::Error;

/// Bytes of small blocks that their owners freed and recipes still need. Above it they go, and
/// the recipes with them.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// The entries of live blocks.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// By [`BlockId::index`].
    entries: Vec<Option<Entry>>,
    /// Orders touches and allocations over all steps.
    clock: u64,
    /// Of swappable blocks with memory behind them.
    resident_bytes: u64,
    /// Of small blocks that their owners freed and recipes still need.
    kept_bytes: u64,
}

impl Entries {
    /// The entry, unless the block was freed.
    pub(crate) fn find(&self, id: BlockId) -> Option<&Entry> {
        self.entries.get(id.index())?.as_ref().filter(|entry| entry.id == id)
    }

    /// As [`find`](Entries::find).
    pub(crate) fn find_mut(&mut self, id: BlockId) -> Option<&mut Entry> {
        self.entries.get_mut(id.index())?.as_mut().filter(|entry| entry.id == id)
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        let index = entry.id.index();
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        self.entries[index] = Some(entry);
    }

    pub(crate) fn remove(&mut self, id: BlockId) -> Result<Entry, Error> {
        let slot = self.entries.get_mut(id.index()).ok_or(Error::Freed)?;
        slot.take_if(|entry| entry.id == id).ok_or(Error::Freed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().flatten()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().flatten()
    }

    /// The time of a touch or an allocation: later than all before.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_bytes
    }

    /// A swappable block has memory from here on.
    pub(crate) fn grow_resident(&mut self, size_bytes: u64) {
        self.resident_bytes += size_bytes;
    }

    /// A swappable block has given its memory away.
    pub(crate) fn shrink_resident(&mut self, size_bytes: u64) {
        self.resident_bytes -= size_bytes;
    }

    pub(crate) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Counts a small block that is to stay for recipes, if there is room for it.
    pub(crate) fn keep(&mut self, size_bytes: u64) -> bool {
        let has_room = self.kept_bytes + size_bytes <= KEPT_BYTES_MAX;
        self.kept_bytes += if has_room { size_bytes } else { 0 };
        has_room
    }

    /// A block that was kept is gone.
    pub(crate) fn let_go(&mut self, size_bytes: u64) {
        self.kept_bytes -= size_bytes;
    }
}
