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
        let mut victims = self.victims();
        self.prefer_size(&mut victims, requested_bytes);
        for id in victims {
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
        victims.sort_by_cached_key(|entry| match self.next_use(entry) {
            Some(position) => {
                (Reverse(position), entry.place.map_or(u64::MAX, |place| u64::from(place.0)))
            }
            None => (Reverse(0), entry.last_touch),
        });
        victims.into_iter().map(|entry| entry.id).collect()
    }

    /// When the orders say that a block is used next. `None` if they do not know the step.
    fn next_use(&self, entry: &Entry) -> Option<u64> {
        let position = self.step.follower.position(self.step.event_count)?;
        self.orders.current()?.next_use(entry.planned, position, entry.origin)
    }

    /// Puts a victim of the size that is wanted first, if its last use is at least half as long
    /// ago as that of the best one: its chunk serves as it is. One of another size would have to
    /// be released, once its copy has ended, and a new one made.
    ///
    /// Where the orders know the step nothing changes, as plans were simulated so.
    fn prefer_size(&self, victims: &mut [BlockId], requested_bytes: u64) {
        let pool = &self.memory.pool;
        let oldest = victims.first().and_then(|&id| self.entries.find(id));
        let (Some(oldest), Ok(wanted_bytes)) = (oldest, pool.swappable_bytes(requested_bytes))
        else {
            return;
        };
        if self.next_use(oldest).is_some() {
            return;
        }
        let now = self.entries.now();
        let latest = now - (now - oldest.last_touch) / 2;
        let serves = |&id: &BlockId| {
            pool.size_bytes(id) == wanted_bytes
                && self.entries.find(id).is_some_and(|entry| entry.last_touch <= latest)
        };
        if let Some(found) = victims.iter().position(serves) {
            victims[..=found].rotate_right(1);
        }
    }
}
