//! The residency machine: swap out, swap in, discard, and what a touch does.

use std::sync::Arc;

use vmem::{AccessMode, BlockId, DeviceMemory, DevicePtr, MemoryError, Site, StreamId, Uses};

use crate::core::Core;
use crate::entry::{Entry, Hold, HostCopy, State};
use crate::error::Error;
use crate::hand_over::Attempt;
use crate::ops::Within;
use crate::recipe::Replayable;
use crate::trace::TraceEvent;

impl Core {
    /// The touch of a block that is resident, mapped and waited for, which is the usual case.
    /// `None` if there is more to do, as where a replay writes.
    pub(crate) fn touch_resident(
        &mut self,
        id: BlockId,
        mode: AccessMode,
        stream: StreamId,
        within: Within,
    ) -> Option<DevicePtr> {
        let address = self.memory.pool.mapped_address(id)?;
        let now = self.entries.tick();
        let entry = self.entries.find_mut(id)?;
        let writes = mode.writes();
        let streams = &self.memory.streams;
        let ready = entry.state == State::Resident
            && entry.arrived.points().iter().all(|&point| streams.is_ordered(stream, point))
            && if within.is_replay() {
                !writes
            } else {
                !entry.free_wanted
                    && (!writes || (entry.host_copy.is_none() && entry.dependents.is_empty()))
            };
        if !ready {
            return None;
        }
        entry.pins += 1;
        entry.last_touch = now;
        if within.is_replay() {
            return Some(address);
        }
        let (place, hold) = (entry.place, entry.hold);
        if writes {
            entry.change();
            self.note_change(id);
            self.drop_recipe(id).ok()?;
        }
        if hold == Hold::UntilTouched {
            self.hold(id, Hold::No, "").ok()?;
        }
        if within == Within::Step
            && let Some(place) = place
        {
            self.event(TraceEvent::Touch(place, mode));
        }
        Some(address)
    }

    /// Touches a block for an op on `stream`, and pins it.
    ///
    /// The touches of a replay are not part of the step, and what they write is what was there
    /// before.
    pub(crate) fn touch(
        &mut self,
        id: BlockId,
        mode: AccessMode,
        stream: StreamId,
        within: Within,
    ) -> Result<Attempt<DevicePtr, BlockId>, Error> {
        let rescues = self.step.counters.rescues;
        let ready = self.make_ready(id, mode, stream, within);
        if within == Within::Aside {
            self.step.counters.rescues = rescues;
        }
        if let Some(wait) = ready? {
            return Ok(wait);
        }
        if let Some(address) = self.touch_resident(id, mode, stream, within) {
            return Ok(Attempt::Done(address));
        }
        // This is a replay, or the wait for its arrival was left out.
        let now = self.entries.tick();
        let entry = self.entry_mut(id)?;
        entry.pins += 1;
        entry.last_touch = now;
        let place = entry.place;
        if !within.is_replay() {
            if mode.writes() {
                self.drop_recipe(id)?;
            }
            if within == Within::Step
                && let Some(place) = place
            {
                self.event(TraceEvent::Touch(place, mode));
            }
        }
        Ok(Attempt::Done(self.memory.pool.address(id)))
    }

    /// A recorded step has no small blocks, so it is told what their changes put out of date.
    fn note_change(&mut self, id: BlockId) {
        if let Some(recorder) = self.recording.recorder_mut() {
            recorder.changes(id);
        }
    }

    /// The slow part of a touch.
    fn make_ready(
        &mut self,
        id: BlockId,
        mode: AccessMode,
        stream: StreamId,
        within: Within,
    ) -> Result<Option<Attempt<DevicePtr, BlockId>>, Error> {
        if !within.is_replay() && self.entry(id)?.free_wanted {
            return Err(Error::Freed);
        }
        if mode.writes() && !within.is_replay() {
            // The old bytes are about to go, so nobody may come to depend on them any more: a
            // rescue below must not discard what they would bring back.
            self.entry_mut(id)?.change();
            self.note_change(id);
            if let Some(&dependent) = self.entry(id)?.dependents.first() {
                return Ok(Some(match self.entry(dependent)?.state {
                    State::Replaying { .. } => Attempt::Busy,
                    _ => Attempt::Replay(dependent),
                }));
            }
        }
        let state = self.entry(id)?.state;
        match state {
            State::Resident => {}
            State::Away { .. } => {
                if within == Within::Step && !self.entry(id)?.asked_for {
                    self.step.counters.misses += 1;
                }
                self.swap_in(id, true)?;
            }
            State::Discarded => return Ok(Some(Attempt::Replay(id))),
            State::Replaying { by } if within == Within::Replay(by) => {}
            State::Replaying { .. } => return Ok(Some(Attempt::Busy)),
        }
        let is_new = matches!(state, State::Replaying { .. });
        if within.is_replay() && (mode.writes() || is_new) {
            // The owner of the work ordered the first run after other uses. It knows of no replay.
            let entry = self.entry(id)?;
            if entry.pins > u32::from(entry.state != State::Resident) {
                self.note_open_uses(id);
            }
            for &point in self.memory.pool.uses(id).clone().points() {
                self.wait(stream, point, Site::ReplayAfterRelease)?;
            }
        }
        for &point in self.entry(id)?.arrived.clone().points() {
            self.wait(stream, point, Site::TouchAfterArrival)?;
        }
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.map_block(streams, id)?;
        if mode.writes() && !within.is_replay() {
            self.drop_host_copy(id)?;
        }
        Ok(None)
    }

    /// Whether a block can leave the device now. While ops run that nobody tells of, none can,
    /// whatever a plan says.
    pub(crate) fn can_leave(&self, id: BlockId) -> bool {
        let free = |entry: &Entry| {
            entry.state == State::Resident && entry.pins == 0 && entry.hold == Hold::No
        };
        self.watch.is_on() && self.entry(id).is_ok_and(free) && self.memory.pool.is_swappable(id)
    }

    /// Copies a resident block to the host and gives its chunk away. Returns whether it did: the
    /// host arena may be full.
    pub(crate) fn swap_out(&mut self, id: BlockId) -> Result<bool, Error> {
        assert!(self.can_leave(id), "only resident, unpinned blocks leave");
        self.note_foreign_uses(id)?;
        let copied = match &self.entry(id)?.host_copy {
            Some(_) => {
                self.step.counters.clean_swap_outs += 1;
                None
            }
            None => {
                let Some((slot, slot_uses)) = self.take_slot(id)? else { return Ok(false) };
                match self.copy_out(id, slot.start(), &slot_uses) {
                    Ok(copied) => {
                        let uses = Uses::of(copied);
                        self.entry_mut(id)?.host_copy = Some(HostCopy { slot, copied, uses });
                        Some(copied)
                    }
                    Err(error) => {
                        self.memory.arena.give_back(slot, slot_uses);
                        return Err(error);
                    }
                }
            }
        };
        let ready = match copied {
            Some(copied) => Uses::of(copied),
            None => self.memory.pool.uses(id).clone(),
        };
        let departure = self.detach(id, ready);
        let entry = self.entry_mut(id)?;
        entry.state = State::Away { departure: Some(departure) };
        // Whoever takes the chunk back waits for this: the copy out, or what was under way before.
        if let Some(copied) = copied {
            entry.arrived = Uses::of(copied);
        }
        if copied.is_some() {
            self.memory.streams.mark(self.streams.copy_out)?;
        }
        Ok(true)
    }

    /// A slot for the block. Makes room by dropping host copies of resident blocks.
    fn take_slot(&mut self, id: BlockId) -> Result<Option<(vmem::Slot, Uses)>, Error> {
        let size_bytes = self.memory.pool.size_bytes(id);
        loop {
            match self.memory.arena.take(size_bytes) {
                Ok(slot) => return Ok(Some(slot)),
                Err(MemoryError::HostFull { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let clean = self
                .entries
                .iter()
                .filter(|entry| entry.state == State::Resident && entry.host_copy.is_some())
                .min_by_key(|entry| entry.last_touch);
            match clean {
                Some(entry) => {
                    let id = entry.id;
                    self.drop_host_copy(id)?;
                }
                None => return Ok(None),
            }
        }
    }

    pub(crate) fn drop_host_copy(&mut self, id: BlockId) -> Result<(), Error> {
        if let Some(copy) = self.entry_mut(id)?.host_copy.take() {
            self.memory.arena.give_back(copy.slot, copy.uses);
        }
        Ok(())
    }

    /// Brings a block back from the host. Returns whether there was room; with `rescue` others
    /// are evicted for it.
    pub(crate) fn swap_in(&mut self, id: BlockId, rescue: bool) -> Result<bool, Error> {
        let entry = self.entry(id)?;
        let State::Away { departure } = entry.state else {
            unreachable!("the caller saw that the block is away")
        };
        let left = entry.arrived.clone();
        let moved_in = self.move_in(id)?;
        if moved_in.is_none()
            && let Some(departure) = departure
            && self.memory.pool.retake(id, departure)
        {
            self.note_attached(id);
            self.arrive(id, left)?;
            return Ok(true);
        }
        let ready = match moved_in {
            Some(ready) => Some(ready),
            None => self.attach(id, rescue)?,
        };
        let Some(ready) = ready else { return Ok(false) };
        match self.copy_in_block(id, &ready) {
            Ok(arrived) => {
                let copy = self.entry_mut(id)?.host_copy.as_mut().expect("seen above");
                copy.uses.add(arrived);
                self.arrive(id, Uses::of(arrived))?;
                self.memory.streams.mark(self.streams.copy_in)?;
                Ok(true)
            }
            Err(error) => {
                let uses = self.memory.pool.uses(id).clone();
                self.detach(id, uses);
                Err(error)
            }
        }
    }

    fn arrive(&mut self, id: BlockId, arrived: Uses) -> Result<(), Error> {
        let entry = self.entry_mut(id)?;
        entry.state = State::Resident;
        entry.arrived = arrived;
        entry.asked_for = false;
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        pool.poll_block(streams, id)?;
        Ok(())
    }

    /// Drops a resident block's bytes; its recipe brings them back.
    pub(crate) fn discard(&mut self, id: BlockId) -> Result<(), Error> {
        assert!(self.can_leave(id) && self.can_replay(id), "the caller checked both");
        self.drop_host_copy(id)?;
        self.note_foreign_uses(id)?;
        let ready = self.memory.pool.uses(id).clone();
        self.detach(id, ready);
        let entry = self.entry_mut(id)?;
        entry.state = State::Discarded;
        let replayable = entry.replayable.clone().expect("can_replay saw it");
        for &(input, _) in &replayable.inputs {
            let input = self.entry_mut(input)?;
            input.dependents.push(id);
            input.awaits_dependents = false;
        }
        Ok(())
    }

    /// Prepares a discarded block to be written by its replay. `None` if it is not discarded.
    pub(crate) fn try_begin_replay(
        &mut self,
        id: BlockId,
        by: u64,
    ) -> Result<Option<Arc<Replayable>>, Error> {
        if self.entry(id)?.state != State::Discarded {
            return Ok(None);
        }
        let replayable = self.entry(id)?.replayable.clone().expect("discarded blocks have one");
        self.attach(id, true)?.expect("with rescue there is room or an error");
        let entry = self.entry_mut(id)?;
        entry.state = State::Replaying { by };
        entry.awaits_dependents = false;
        entry.arrived = Uses::default();
        entry.pins += 1;
        Ok(Some(replayable))
    }

    /// Counts what a replay cost the host that began it then.
    pub(crate) fn count_replay(&mut self, since_us: f64) {
        self.step.counters.replays_us += self.memory.streams.driver().now_us() - since_us;
    }

    /// Ends a replay. A failed one leaves the block discarded.
    pub(crate) fn end_replay(&mut self, id: BlockId, done: bool) -> Result<(), Error> {
        let entry = self.entry_mut(id)?;
        entry.pins -= 1;
        let touched = !entry.arrived.points().is_empty();
        let op = entry.replayable.as_ref().map_or("", |replayable| replayable.op);
        if done && touched {
            self.step.counters.recomputed_ops += 1;
            self.entry_mut(id)?.state = State::Resident;
            self.forget_dependent(id)?;
            return self.free_if_unneeded(id);
        }
        let uses = self.memory.pool.uses(id).clone();
        self.detach(id, uses);
        self.entry_mut(id)?.state = State::Discarded;
        self.free_if_unneeded(id)?;
        if done {
            let text = "its recipe left out a block that it had written".to_owned();
            return Err(Error::Replay { op: op.to_owned(), text });
        }
        Ok(())
    }
}
