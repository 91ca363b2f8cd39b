//! Rescue: making room for an allocation that found none.

use std::cmp::Reverse;

use vmem::BlockId;

use crate::core::Core;
use crate::entry::Entry;
use crate::error::Error;

impl Core {
    /// Sends one block away to make room for `requested_bytes`. Counts a rescue the first time
    /// for an allocation (`counted` is false then).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if nobody can leave.
    pub(crate) fn rescue(
        &mut self,
        requested_bytes: u64,
        missing_bytes: u64,
        counted: &mut bool,
    ) -> Result<(), Error> {
        let mut host_full = false;
        for id in self.victims() {
            let left = self.swap_out(id)?;
            host_full |= !left;
            let left = left || self.discard_instead(id)?;
            if left {
                self.note_rescue(counted);
                return Ok(());
            }
        }
        if self.watch.is_on() && self.recall_one()? {
            self.note_rescue(counted);
            return Ok(());
        }
        Err(self.out_of_memory(requested_bytes, missing_bytes, host_full))
    }

    fn note_rescue(&mut self, counted: &mut bool) {
        self.moving = true;
        if !std::mem::replace(counted, true) {
            self.step.counters.rescues += 1;
        }
    }

    /// Where the host has no room, a block with a recipe can still be dropped.
    fn discard_instead(&mut self, id: BlockId) -> Result<bool, Error> {
        if !self.can_replay(id) {
            return Ok(false);
        }
        self.discard(id)?;
        Ok(true)
    }

    /// The blocks that may leave, best victim first: farthest next use when the orders know the
    /// step, else least recent use.
    pub(crate) fn victims(&self) -> Vec<BlockId> {
        let free_to_go = |entry: &&Entry| self.can_leave(entry.id);
        let mut victims: Vec<&Entry> = self.entries.iter().filter(free_to_go).collect();
        let next_use = |entry: &Entry| {
            let position = self.step.follower.position(self.step.event_count)?;
            self.orders.current()?.next_use(entry.planned, position, entry.origin)
        };
        victims.sort_by_cached_key(|entry| match next_use(entry) {
            Some(position) => {
                (Reverse(position), entry.place.map_or(u64::MAX, |place| u64::from(place.0)))
            }
            None => (Reverse(0), entry.last_touch),
        });
        victims.into_iter().map(|entry| entry.id).collect()
    }
}
