//! The engine's state, behind one lock: blocks, streams, the running step.

use std::borrow::Cow;

use vmem::{BlockId, Bytes, DeviceMemory, Driver, Lot, MemoryError, Point, Site, StreamId, Uses};

use crate::captures::Captured;
use crate::engine::{Compute, Config};
use crate::entries::Entries;
use crate::entry::{Entry, Hold, Residency, State};
use crate::error::Error;
use crate::executor::Upkeep;
use crate::follow::Fresh;
use crate::holds::Lent;
use crate::launches::Launches;
use crate::orders::StandingOrders;
use crate::placing::Whereabouts;
use crate::recording::Recording;
use crate::step::Step;
use crate::suspend::Suspended;
use crate::trace::{OpIndex, Origin, TraceEvent};
use crate::uses::Watch;

/// Who allocates a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asker {
    /// No op: nobody holds the block.
    Nobody,
    /// An op of the step, which then pins it.
    Op(OpIndex),
    /// An op of a replay, which then pins it.
    Replay,
    /// An op beside the step, which then pins it.
    Aside,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) memory: DeviceMemory,
    pub(crate) streams: StreamRoles,
    pub(crate) entries: Entries,
    pub(crate) step: Step,
    pub(crate) orders: StandingOrders,
    pub(crate) upkeep: Upkeep,
    pub(crate) lent: Lent,
    pub(crate) captured: Captured,
    pub(crate) suspended: Suspended,
    pub(crate) recording: Recording,
    pub(crate) watch: Watch,
    /// Blocks move, so ops are marked to keep waits short.
    pub(crate) moving: bool,
    /// A wrapper of the driver wants to be told what ops use.
    pub(crate) notes_accesses: bool,
    /// Why nothing can be swapped on this device; `None` where it can.
    pub(crate) unswappable: Option<String>,
    /// Everything was given back.
    pub(crate) is_closed: bool,
}

/// What the engine's own streams are for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamRoles {
    /// Where ops run unless they say otherwise.
    pub(crate) compute: StreamId,
    /// Copies to the host.
    pub(crate) copy_out: StreamId,
    /// Copies to the device.
    pub(crate) copy_in: StreamId,
}

/// Why a device without virtual memory swaps nothing, in words for its user.
fn unswappable(driver: &dyn Driver) -> Option<String> {
    let properties = driver.properties();
    if properties.has_virtual_memory {
        return None;
    }
    let reason = driver.reserve(properties.granularity_bytes).err().map(|error| error.text);
    let reason = reason.map(|text| format!(": {text}")).unwrap_or_default();
    let (name, version) = (properties.name, properties.driver_version);
    Some(format!(
        "this driver cannot move memory under an address ({name}, version {version}{reason}): \
         nothing can be swapped"
    ))
}

impl Core {
    pub(crate) fn new(mut memory: DeviceMemory, config: &Config) -> Result<Core, Error> {
        let compute = match config.compute {
            Compute::Stream(handle) => memory.streams.adopt(handle),
            Compute::Own => memory.streams.create()?,
            Compute::HostThread => memory.streams.create_for_host_thread()?,
        };
        let copy_out = memory.streams.create()?;
        let copy_in = memory.streams.create()?;
        memory.streams.measure_waits_for(copy_out);
        memory.streams.measure_waits_for(copy_in);
        let notes_accesses = memory.streams.driver().wants_accesses();
        let unswappable = unswappable(&**memory.streams.driver());
        if let Some(why) = &unswappable {
            tracing::warn!("{why}");
        }
        Ok(Core {
            memory,
            streams: StreamRoles { compute, copy_out, copy_in },
            entries: Entries::default(),
            step: Step::default(),
            orders: StandingOrders::default(),
            upkeep: Upkeep::default(),
            lent: Lent::default(),
            captured: Captured::default(),
            suspended: Suspended::default(),
            recording: Recording::new(config.record),
            watch: Watch::default(),
            moving: false,
            notes_accesses,
            unswappable,
            is_closed: false,
        })
    }

    /// Allocates a block.
    pub(crate) fn allocate(
        &mut self,
        size_bytes: u64,
        name: Cow<'static, str>,
        stream: StreamId,
        asker: Asker,
    ) -> Result<BlockId, Error> {
        let has_place = self.has_place(asker);
        let fresh = if has_place { self.step.fresh(&self.memory.pool, size_bytes) } else { None };
        let id = self.allocate_memory(size_bytes, stream, asker, fresh)?;
        let birth = self.entries.tick();
        let size_bytes = self.memory.pool.size_bytes(id);
        let swappable = self.memory.pool.is_swappable(id);
        let origin = match asker {
            Asker::Op(op) => Origin::Op(op),
            Asker::Nobody | Asker::Replay | Asker::Aside => {
                Origin::Before(OpIndex(self.step.op_count))
            }
        };
        let (mut place, mut planned) = (None, None);
        if has_place {
            if let Some(fresh) = fresh.filter(|_| swappable) {
                let (own, found) = self.place_in_step(id, fresh, origin, &name);
                (place, planned) = (Some(own), found);
            }
            self.step.allocated();
        }
        let launches = Launches::behind(self.memory.streams.next(stream));
        self.entries.insert(Entry {
            pins: u32::from(asker != Asker::Nobody),
            place,
            planned,
            origin,
            born_in: self.step.number,
            ..Entry::new(id, birth, launches, name)
        });
        if swappable {
            self.entries.grow_resident(size_bytes);
        } else {
            self.note_segments();
        }
        self.note_resident_peak();
        Ok(id)
    }

    /// Allocates a block that is not part of the step.
    pub(crate) fn allocate_aside(
        &mut self,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<BlockId, Error> {
        let id = self.allocate(size_bytes, Cow::Borrowed(""), stream, Asker::Aside)?;
        // Nobody's op holds it.
        self.entry_mut(id)?.pins -= 1;
        Ok(id)
    }

    /// Frees a block in whatever state it is.
    pub(crate) fn free(&mut self, id: BlockId) -> Result<(), Error> {
        let entry = self.entry(id)?;
        if entry.free_wanted {
            return Err(Error::Freed);
        }
        if let Some(place) = entry.place {
            self.event(TraceEvent::Free(place));
        }
        self.entry_mut(id)?.free_wanted = true;
        self.memory.pool.disown(id);
        self.free_if_unneeded(id)
    }

    /// Frees a block whose owner freed it, unless it is needed to replay others or a replay is
    /// writing it: then it goes when they are back or freed.
    pub(crate) fn free_if_unneeded(&mut self, id: BlockId) -> Result<(), Error> {
        let entry = self.entry(id)?;
        let replaying = matches!(entry.state, State::Replaying { .. });
        let is_needed = !entry.dependents.is_empty() || entry.awaits_dependents || replaying;
        if !entry.free_wanted || is_needed || self.keeps_for_recipes(id)? {
            return Ok(());
        }
        self.free_now(id)
    }

    pub(crate) fn free_now(&mut self, id: BlockId) -> Result<(), Error> {
        let state = self.entry(id)?.state;
        if state == State::Discarded {
            self.forget_dependent(id)?;
        }
        self.drop_recipe(id)?;
        let entry = self.entry(id)?;
        let is_pinned = entry.pins > 0;
        let is_told_of = match entry.hold {
            Hold::No => true,
            // A workspace of the op that allocated it, while that is open.
            Hold::UntilTouched => is_pinned,
            Hold::Lent | Hold::Always => false,
        };
        if !is_told_of || !self.watch.is_on() {
            self.note_all_uses(id);
        } else if is_pinned {
            self.note_open_uses(id);
        }
        self.note_foreign_uses(id)?;
        let entry = self.entries.remove(id)?;
        let size_bytes = self.memory.pool.size_bytes(id);
        if entry.is_kept {
            self.entries.let_go(size_bytes);
        }
        if let Some(copy) = entry.host_copy {
            self.memory.arena.give_back(copy.slot, copy.uses);
        }
        if self.memory.pool.is_swappable(id) && state == State::Resident {
            self.entries.shrink_resident(size_bytes);
        }
        self.memory.pool.free(id);
        Ok(())
    }

    /// Makes `stream` wait for `point`; the wait counts as a stall if a copy is behind it.
    pub(crate) fn wait(&mut self, stream: StreamId, point: Point, site: Site) -> Result<(), Error> {
        self.memory.streams.order_after(stream, point, site)?;
        Ok(())
    }

    /// Where a block's bytes are.
    pub(crate) fn residency(&mut self, id: BlockId) -> Result<Residency, Error> {
        let entry = self.entry(id)?;
        let (state, arrived) = (entry.state, entry.arrived.clone());
        let copied = entry.host_copy.as_ref().map_or_else(Uses::default, |it| Uses::of(it.copied));
        let mut complete = |uses: &Uses| self.memory.streams.have_completed(uses);
        Ok(match state {
            State::Resident | State::Replaying { .. } if complete(&arrived)? => Residency::Resident,
            State::Resident | State::Replaying { .. } => Residency::Arriving,
            State::Away { .. } if complete(&copied)? => Residency::Away,
            State::Away { .. } => Residency::Leaving,
            State::Discarded => Residency::Discarded,
        })
    }

    /// Counts one more event of the step, and records it if recording is on.
    pub(crate) fn event(&mut self, event: TraceEvent) {
        self.step.event_count += 1;
        if let Some(recorder) = self.recording.recorder_mut() {
            recorder.event(event);
        }
    }

    pub(crate) fn note_segments(&mut self) {
        let segment_bytes = self.memory.pool.fixed_bytes();
        if segment_bytes != self.step.segment_bytes {
            self.step.segment_bytes = segment_bytes;
            self.event(TraceEvent::Segments(segment_bytes));
        }
    }

    pub(crate) fn note_resident_peak(&mut self) {
        let bytes = self.entries.resident_bytes() + self.step.segment_bytes;
        self.step.resident_bytes_peak = self.step.resident_bytes_peak.max(bytes);
    }

    pub(crate) fn entry(&self, id: BlockId) -> Result<&Entry, Error> {
        self.entries.find(id).ok_or(Error::Freed)
    }

    pub(crate) fn entry_mut(&mut self, id: BlockId) -> Result<&mut Entry, Error> {
        self.entries.find_mut(id).ok_or(Error::Freed)
    }

    /// The error for memory that even rescue could not find.
    pub(crate) fn out_of_memory(
        &self,
        requested_bytes: u64,
        missing_bytes: u64,
        host_full: bool,
    ) -> Error {
        let mut report = crate::error::OutOfMemory {
            requested_bytes,
            op: "",
            missing_bytes,
            limit_bytes: self.memory.pool.config().limit_bytes,
            resident_bytes: self.entries.resident_bytes(),
            pinned_bytes: 0,
            unused_bytes: 0,
            held: self.held(),
            away_bytes: 0,
            segment_bytes: self.memory.pool.stats().segment_bytes.current,
            outside_bytes: self.memory.pool.stats().outside_bytes.current,
            largest: Vec::new(),
            host_full,
            unswappable: self.unswappable.clone(),
        };
        for entry in self.entries.iter() {
            let bytes = self.memory.pool.size_bytes(entry.id);
            if !self.memory.pool.is_swappable(entry.id) {
                if self.unswappable.is_some() {
                    report.largest.push((entry.name.to_string(), bytes));
                }
                continue;
            }
            match entry.state {
                State::Resident | State::Replaying { .. } => {
                    report.largest.push((entry.name.to_string(), bytes));
                    if entry.pins > 0 {
                        report.pinned_bytes += bytes;
                    } else if entry.hold == Hold::UntilTouched {
                        report.unused_bytes += bytes;
                    }
                }
                State::Away { .. } | State::Discarded => report.away_bytes += bytes,
            }
        }
        report.largest.sort_by(|left, right| right.1.cmp(&left.1).then(left.0.cmp(&right.0)));
        report.largest.truncate(5);
        tracing::warn!(requested = %Bytes(requested_bytes), "out of device memory");
        Error::OutOfMemory(Box::new(report))
    }

    /// Allocates from the pool; on a full device evicts others until it fits, which is not a rescue
    /// of the step's if it is for somebody beside it.
    fn allocate_memory(
        &mut self,
        size_bytes: u64,
        stream: StreamId,
        asker: Asker,
        fresh: Option<Fresh>,
    ) -> Result<BlockId, Error> {
        let mut counted = asker == Asker::Aside;
        loop {
            let whereabouts = self.whereabouts(size_bytes, asker, fresh);
            let DeviceMemory { pool, streams, .. } = &mut self.memory;
            let allocated = match whereabouts {
                Whereabouts::BySize => pool.allocate(streams, size_bytes, stream),
                Whereabouts::Planned(lot) => {
                    pool.allocate_swappable(streams, size_bytes, stream, lot)
                }
            };
            match allocated {
                Ok(id) => return Ok(id),
                Err(MemoryError::DeviceFull { missing_bytes, .. }) => {
                    self.rescue(size_bytes, missing_bytes, &mut counted)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Where the orders want the block to lie, if it can.
    fn planned_lot(&self, id: BlockId) -> Result<Option<Lot>, Error> {
        let lot = self.entry(id)?.planned.and_then(|place| self.orders.lot(place));
        Ok(lot.filter(|&lot| self.memory.pool.could_lie_in(id, lot)))
    }

    /// Puts the block's lot behind it, if that is free and not what it gave away: who leaves
    /// memory outside the layout comes back into it. Returns whether it did.
    pub(crate) fn move_in(&mut self, id: BlockId) -> Result<Option<vmem::Uses>, Error> {
        let Some(lot) = self.planned_lot(id)? else { return Ok(None) };
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        if pool.left(id, lot) {
            return Ok(None);
        }
        let attached = pool.attach_lot(streams, id, lot)?;
        if attached.is_some() {
            self.note_attached(id);
        }
        Ok(attached)
    }

    /// Counts a block that has memory from here on.
    pub(crate) fn note_attached(&mut self, id: BlockId) {
        self.entries.grow_resident(self.memory.pool.size_bytes(id));
        self.note_resident_peak();
    }

    /// Puts memory behind a block: its lot, if that is free, else a chunk; on a full device evicts
    /// others if `rescue` allows it. Returns whether there was room.
    pub(crate) fn attach(
        &mut self,
        id: BlockId,
        rescue: bool,
    ) -> Result<Option<vmem::Uses>, Error> {
        let mut counted = false;
        let lot = self.planned_lot(id)?;
        loop {
            let DeviceMemory { pool, streams, .. } = &mut self.memory;
            let attached = match lot.map(|lot| pool.attach_lot(streams, id, lot)) {
                Some(Ok(Some(ready))) => Ok(ready),
                // Who has it will go as planned.
                Some(Ok(None)) if !rescue => return Ok(None),
                Some(Ok(None)) | None => pool.attach(streams, id),
                Some(Err(error)) => Err(error),
            };
            match attached {
                Ok(ready) => {
                    self.note_attached(id);
                    return Ok(Some(ready));
                }
                Err(MemoryError::DeviceFull { missing_bytes, .. }) if rescue => {
                    let size_bytes = self.memory.pool.size_bytes(id);
                    self.rescue(size_bytes, missing_bytes, &mut counted)?;
                }
                Err(MemoryError::DeviceFull { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Takes the chunk from behind a resident block.
    pub(crate) fn detach(&mut self, id: BlockId, ready: vmem::Uses) -> vmem::Departure {
        self.entries.shrink_resident(self.memory.pool.size_bytes(id));
        self.memory.pool.detach(id, ready)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // The timers of steps that nobody will hear of go back to be destroyed with the others.
        let mut timers = self.step.take_timers();
        timers.extend(std::mem::take(&mut self.recording).into_timers());
        timers.into_iter().for_each(|timer| self.memory.streams.recycle_timer(timer));
    }
}
