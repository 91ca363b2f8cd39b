//! Blocks that stay although no open op uses them: held for good, or lent until the step ends.

use vmem::{BlockId, DeviceMemory};

use crate::core::Core;
use crate::engine::Engine;
use crate::entry::{Allocation, Hold};
use crate::error::Error;
use crate::trace::BlockIndex;

/// Blocks that are kept on the device for one reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// Who asked for it.
    pub by: &'static str,
    /// Whether they may leave again when the step ends; the others stay until they are freed.
    pub is_lent: bool,
    /// How many there are.
    pub blocks: u64,
    /// Their physical bytes.
    pub size_bytes: u64,
}

impl Engine {
    /// Keeps a resident block on the device for its whole life, because somebody uses it where the
    /// engine does not see it: through a raw pointer, or in work that outlives its op. `by` says
    /// who, for reports.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn hold(&self, block: BlockId, by: &'static str) -> Result<(), Error> {
        self.shared().lock()?.hold(block, Hold::Always, by)
    }

    /// Keeps a block, which an open op touches as [`ReadWrite`](vmem::AccessMode::ReadWrite), on
    /// the device until the step ends: somebody has its raw pointer, and may use it on any stream
    /// of the engine's where no op says so. Where memory runs out with everything else away, what
    /// was lent the longest leaves earlier, and a use of it faults.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn lend(&self, block: BlockId, by: &'static str) -> Result<(), Error> {
        self.shared().lock()?.lend(block, by)
    }

    /// What is held and lent, and by whom, most bytes first.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn held(&self) -> Result<Vec<Held>, Error> {
        Ok(self.shared().lock()?.held())
    }

    /// Keeps a fresh block on the device until an op touches it. For allocations that may never
    /// be an operator's tensor, such as workspaces.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn hold_until_touched(&self, block: BlockId) -> Result<(), Error> {
        self.shared().lock()?.hold(block, Hold::UntilTouched, "")
    }

    /// Whether a block is on the device and stays there although no op uses it. A touch of one that
    /// is held until then ends that, so whoever brings blocks back for others asks first.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn is_held(&self, block: BlockId) -> Result<bool, Error> {
        Ok(self.shared().lock()?.entry(block)?.hold != Hold::No)
    }

    /// Whether a block is on the device and stays there until it is freed.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn is_held_for_good(&self, block: BlockId) -> Result<bool, Error> {
        Ok(self.shared().lock()?.entry(block)?.hold == Hold::Always)
    }
}

/// Blocks that are lent, oldest first. Some may be free by now, or back.
#[derive(Debug, Default)]
pub(crate) struct Lent(Vec<BlockId>);

impl Core {
    /// Keeps a block on the device, until it is touched or for its whole life.
    pub(crate) fn hold(&mut self, id: BlockId, hold: Hold, by: &'static str) -> Result<(), Error> {
        let entry = self.entry_mut(id)?;
        entry.hold = hold;
        entry.held_by = by;
        let place = entry.place;
        self.record_held(place, hold != Hold::No);
        Ok(())
    }

    /// Keeps a fresh block until it is touched.
    pub(crate) fn show_later(&mut self, id: BlockId) -> Result<Allocation, Error> {
        let allocation = self.allocation(id);
        if allocation.is_swappable {
            self.hold(id, Hold::UntilTouched, "")?;
        }
        Ok(allocation)
    }

    pub(crate) fn allocation(&self, block: BlockId) -> Allocation {
        let pool = &self.memory.pool;
        let (address, is_swappable) = (pool.address(block), pool.is_swappable(block));
        Allocation { block, address, is_swappable }
    }

    /// Keeps a block, which an open op holds, until the step ends.
    pub(crate) fn lend(&mut self, id: BlockId, by: &'static str) -> Result<(), Error> {
        let entry = self.entry_mut(id)?;
        match entry.hold {
            Hold::Always => return Ok(()),
            // The latest is the last to be taken back.
            Hold::Lent => self.lent.0.retain(|lent| *lent != id),
            Hold::No | Hold::UntilTouched => {
                entry.hold = Hold::Lent;
                entry.held_by = by;
                let place = entry.place;
                // What was lent before the step began is not part of it.
                if self.step.event_count > 0 {
                    self.record_held(place, true);
                }
            }
        }
        self.lent.0.push(id);
        Ok(())
    }

    /// The step ends, and with it all that was lent in it or before it.
    pub(crate) fn take_all_back(&mut self) -> Result<(), Error> {
        for id in std::mem::take(&mut self.lent.0) {
            self.take_back(id)?;
        }
        Ok(())
    }

    /// Sends the block away that was lent the longest, of those that can leave. Returns whether
    /// there was one. Nobody knows of the uses, so the device must be done with all that it was
    /// given; then the address is unmapped, and faults.
    pub(crate) fn recall_one(&mut self) -> Result<bool, Error> {
        let may_go = |&id: &BlockId| {
            self.entry(id).is_ok_and(|entry| entry.pins == 0) && self.memory.pool.is_swappable(id)
        };
        let Some(index) = self.lent.0.iter().position(may_go) else { return Ok(false) };
        let id = self.lent.0.remove(index);
        self.take_back(id)?;
        if !self.can_leave(id) || !self.swap_out(id)? {
            return Ok(false);
        }
        self.step.counters.recalls += 1;
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        streams.synchronize()?;
        pool.poll(streams)?;
        Ok(true)
    }

    /// Whoever had its pointer may have used and written it by work that nobody told of.
    fn take_back(&mut self, id: BlockId) -> Result<(), Error> {
        if !self.entry(id).is_ok_and(|entry| entry.hold == Hold::Lent) {
            return Ok(());
        }
        self.note_all_uses(id);
        self.drop_host_copy(id)?;
        let entry = self.entry_mut(id)?;
        entry.hold = Hold::No;
        entry.change();
        self.drop_recipe(id)
    }

    /// What is held and lent, most bytes first.
    pub(crate) fn held(&self) -> Vec<Held> {
        let mut all: Vec<Held> = Vec::new();
        for entry in self.entries.iter() {
            let is_lent = entry.hold == Hold::Lent;
            if !is_lent && entry.hold != Hold::Always || !self.memory.pool.is_swappable(entry.id) {
                continue;
            }
            let size_bytes = self.memory.pool.size_bytes(entry.id);
            match all.iter_mut().find(|held| held.by == entry.held_by && held.is_lent == is_lent) {
                Some(held) => {
                    held.blocks += 1;
                    held.size_bytes += size_bytes;
                }
                None => all.push(Held { by: entry.held_by, is_lent, blocks: 1, size_bytes }),
            }
        }
        all.sort_by(|left, right| {
            right.size_bytes.cmp(&left.size_bytes).then(left.by.cmp(right.by))
        });
        all
    }

    fn record_held(&mut self, place: Option<BlockIndex>, held: bool) {
        if let (Some(recorder), Some(place)) = (self.recording.recorder_mut(), place) {
            recorder.set_held(place, held);
        }
    }
}
