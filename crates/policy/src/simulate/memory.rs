//! The simulator's memory: where each block is, the allocation ladder, rescue and host slots.

use std::cmp::Reverse;

use swap_core::{AccessMode, Direction, Fit, Origin, Room};

use super::residency::Change;
use super::state::{BlockState, Moment, NEVER, Ready, State};
use crate::usage::NONE;

/// What an allocation may do when there is no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pressure {
    /// Give up.
    PutOff,
    /// Evict others.
    Rescue,
}

impl State<'_> {
    pub(super) fn touch(&mut self, block: u32, mode: AccessMode) -> Result<(), u64> {
        let index = block as usize;
        while mode.writes() && !self.dependents[index].is_empty() {
            self.counts.misses += 1;
            self.bring_back(self.dependents[index][0] as usize, Pressure::Rescue)?;
        }
        let block = &self.blocks[index];
        let missed = block.state == BlockState::Away && !block.put_off;
        self.counts.misses += u64::from(missed || block.state == BlockState::Discarded);
        self.reach(index)?;
        self.use_now(index, Some(mode));
        self.pin(index);
        Ok(())
    }

    /// Makes a block resident for work that is about to be issued.
    fn reach(&mut self, index: usize) -> Result<(), u64> {
        match self.blocks[index].state {
            BlockState::Resident => {}
            BlockState::Away | BlockState::Discarded => {
                self.bring_back(index, Pressure::Rescue)?;
            }
            BlockState::Absent => unreachable!("only live blocks are used in a well-formed trace"),
        }
        self.need(self.blocks[index].arrival);
        Ok(())
    }

    pub(super) fn allocate(&mut self, block: u32) -> Result<(), u64> {
        let index = block as usize;
        let ready = self.acquire_for(index, Pressure::Rescue)?;
        self.need(ready.copy);
        self.make_resident(index);
        self.rank += 1;
        self.blocks[index].identity = self.rank;
        self.blocks[index].arrival = NONE;
        self.use_now(index, None);
        if !self.pinned.is_empty() {
            self.pin(index);
        }
        Ok(())
    }

    /// Frees a block, unless it is needed to replay others: then it goes when they are back.
    pub(super) fn free(&mut self, block: u32) {
        let index = block as usize;
        self.blocks[index].free_wanted = true;
        self.free_if_unneeded(index);
    }

    fn free_if_unneeded(&mut self, index: usize) {
        let block = self.blocks[index];
        let is_needed = !self.dependents[index].is_empty() || block.awaits_dependents;
        if block.free_wanted && !is_needed {
            self.end_life(index);
        }
    }

    /// Dropped blocks that their owners freed wait for what is made from them to be dropped too,
    /// but not beyond the step.
    pub(super) fn free_dropped(&mut self) {
        for index in 0..self.blocks.len() {
            if self.blocks[index].free_wanted && self.blocks[index].awaits_dependents {
                self.end_life(index);
            }
        }
    }

    fn end_life(&mut self, index: usize) {
        if self.blocks[index].state == BlockState::Discarded {
            self.forget_dependent(index);
        }
        self.release(index);
    }

    /// Ends a block's life, wherever it is.
    pub(super) fn release(&mut self, index: usize) {
        if self.blocks[index].state == BlockState::Resident {
            let ready = Ready { freed: true, owner: 0, ..self.after_last_use(index) };
            self.vacate(index, ready);
        }
        self.drop_slot(index);
        self.forget_wish(index);
        self.blocks[index].state = BlockState::Absent;
        self.blocks[index].free_wanted = false;
        self.blocks[index].awaits_dependents = false;
    }

    /// Takes a block that is no longer discarded off the lists of its recipe's blocks.
    fn forget_dependent(&mut self, index: usize) {
        let recipe = &self.usage.recipes[index][self.blocks[index].recipe];
        for &input in &recipe.inputs {
            self.dependents[input as usize].retain(|&dependent| dependent as usize != index);
            self.free_if_unneeded(input as usize);
        }
    }

    pub(super) fn grow_segments(&mut self, size_bytes: u64) -> Result<(), u64> {
        let growth_bytes = size_bytes.saturating_sub(self.segment_bytes);
        if growth_bytes > 0 {
            let ready = self.make_room(growth_bytes, Pressure::Rescue, false)?;
            self.need(ready.copy);
            self.segment_bytes = size_bytes;
            self.resident_bytes += growth_bytes;
            self.note_peak();
        }
        Ok(())
    }

    /// Whether no open op pins it and it may move at all.
    fn can_leave(&self, index: usize) -> bool {
        self.blocks[index].pins == 0 && !self.trace.blocks[index].held
    }

    pub(super) fn swap_out(&mut self, index: usize) {
        if self.can_leave(index) {
            self.host.moves();
            self.evict(index);
        }
    }

    /// Drops a block, perhaps for others that are made from it and dropped later.
    pub(super) fn discard(&mut self, index: usize, for_others: bool) {
        if self.can_leave(index) && self.try_discard(index) {
            let awaits = for_others && self.dependents[index].is_empty();
            self.blocks[index].awaits_dependents = awaits;
        }
    }

    /// Drops a resident block that a recipe can bring back. Says whether it did.
    fn try_discard(&mut self, index: usize) -> bool {
        let usage = self.usage;
        let Some((number, recipe)) = usage.recipe_at(index, self.event) else { return false };
        // What its owner freed is not kept for more, unless that takes no memory.
        let is_there = |&input: &u32| {
            let block = &self.blocks[input as usize];
            block.state == BlockState::Discarded
                || block.state != BlockState::Absent && !block.free_wanted
        };
        if !recipe.inputs.iter().all(is_there) {
            return false;
        }
        self.drop_slot(index);
        let ready = self.after_last_use(index);
        self.vacate(index, ready);
        self.blocks[index].state = BlockState::Discarded;
        self.blocks[index].recipe = number;
        for &input in &recipe.inputs {
            self.dependents[input as usize].push(index as u32);
            self.blocks[input as usize].awaits_dependents = false;
        }
        true
    }

    /// Replays a dropped block's producer.
    pub(super) fn bring_dropped_back(&mut self, index: usize) -> Result<(), u64> {
        self.bring_back(index, Pressure::Rescue).map(|_| ())
    }

    /// Brings a block back if there is room, else later.
    pub(super) fn ask_for(&mut self, index: usize) -> Result<(), u64> {
        if self.blocks[index].put_off {
            return Ok(());
        }
        self.host.moves();
        if !self.bring_back(index, Pressure::PutOff)? {
            self.blocks[index].put_off = true;
            self.put_off.push_back(index as u32);
        }
        Ok(())
    }

    pub(super) fn retry_put_off(&mut self) -> Result<(), u64> {
        for _ in 0..self.put_off.len() {
            let Some(block) = self.put_off.pop_front() else { break };
            let index = block as usize;
            self.blocks[index].put_off = false;
            if !self.bring_back(index, Pressure::PutOff)? {
                self.blocks[index].put_off = true;
                self.put_off.push_back(block);
            }
        }
        Ok(())
    }

    /// Copies a block back or replays its producer. Says whether it is resident now.
    fn bring_back(&mut self, index: usize, pressure: Pressure) -> Result<bool, u64> {
        let size_bytes = self.trace.blocks[index].size_bytes;
        let discarded = self.blocks[index].state == BlockState::Discarded;
        if !discarded && self.take_back(index) {
            return Ok(true);
        }
        let ready = match self.acquire_for(index, pressure) {
            Ok(ready) => ready,
            Err(_) if pressure == Pressure::PutOff => return Ok(false),
            Err(missing_bytes) => return Err(missing_bytes),
        };
        self.forget_wish(index);
        self.make_resident(index);
        if discarded {
            self.blocks[index].awaits_dependents = false;
            self.need(ready.copy);
            self.blocks[index].arrival = NONE;
            self.replay(index)?;
        } else {
            let after = [self.blocks[index].departure, ready.copy];
            let arrival = self.issue(Direction::In, index, ready.last_use, after);
            self.blocks[index].arrival = arrival;
            self.changes.last_mut().expect("it has just become resident").copied_by(arrival);
            self.counts.swapped_in_bytes += size_bytes;
        }
        Ok(true)
    }

    /// Takes a block's own chunk back if nobody has it yet: the bytes are still there.
    fn take_back(&mut self, index: usize) -> bool {
        let size_bytes = self.trace.blocks[index].size_bytes;
        let owner = self.blocks[index].identity;
        let is_there = match &mut self.lots {
            Some(lots) => lots.take_back(owner),
            None => {
                let is_own = |ready: &Ready| ready.owner == owner;
                self.cache.take_if(Fit::exact(size_bytes), is_own).is_some()
            }
        };
        if !is_there {
            return false;
        }
        if self.lots.is_some() {
            self.cache.charge(Fit::exact(size_bytes));
        }
        self.forget_wish(index);
        self.make_resident(index);
        true
    }

    /// Runs the producer of a block that has its chunk already; its inputs are used first, and
    /// what else it makes goes to scratch.
    fn replay(&mut self, index: usize) -> Result<(), u64> {
        let recipe = &self.usage.recipes[index][self.blocks[index].recipe];
        self.pinned.push(Vec::new());
        self.pin(index);
        for &input in &recipe.inputs {
            let input = input as usize;
            self.reach(input)?;
            self.use_now(input, Some(AccessMode::Read));
            self.pin(input);
        }
        for &size_bytes in &recipe.scratch {
            let ready = self.acquire(size_bytes, Pressure::Rescue)?;
            self.need(ready.copy);
            self.resident_bytes += size_bytes;
            self.note_peak();
        }
        self.use_now(index, Some(AccessMode::Write));
        let ready = Ready { last_use: self.current(), copy: NONE, freed: true, owner: 0 };
        for &size_bytes in &recipe.scratch {
            self.vacate_bytes(size_bytes, ready);
        }
        self.run_producer(index, recipe.producer, recipe.device_us);
        self.unpin_innermost();
        self.forget_dependent(index);
        self.free_if_unneeded(index);
        Ok(())
    }

    /// Memory for a block, in its lot if it has one.
    fn acquire_for(&mut self, index: usize, pressure: Pressure) -> Result<Ready, u64> {
        let ready = self.acquire(self.trace.blocks[index].size_bytes, pressure)?;
        Ok(match &mut self.lots {
            Some(lots) => Ready { copy: lots.enter(index), ..ready },
            None => ready,
        })
    }

    /// The allocation ladder. An error holds the missing bytes.
    fn acquire(&mut self, size_bytes: u64, pressure: Pressure) -> Result<Ready, u64> {
        if let Some(ready) = self.take(size_bytes) {
            return Ok(ready);
        }
        let ready = self.make_room(size_bytes, pressure, true)?;
        Ok(ready)
    }

    /// A cached chunk: one that was freed, as it is ready in compute's own order, else the one
    /// that was cached first, as its copy is the likeliest to be over.
    fn take(&mut self, size_bytes: u64) -> Option<Ready> {
        if self.lots.is_some() {
            return None;
        }
        self.cache.serve(Fit::exact(size_bytes), |ready| ready.freed)
    }

    /// New memory, after giving back cached chunks and evicting as `pressure` allows. With
    /// `exact`, an evicted chunk of the very size serves at once.
    fn make_room(
        &mut self,
        size_bytes: u64,
        pressure: Pressure,
        exact: bool,
    ) -> Result<Ready, u64> {
        let mut victims = None;
        loop {
            let free_bytes = self.machine.limit_bytes - self.cache.held_bytes();
            let missing_bytes = match self.cache.make_room(size_bytes) {
                Room::After(given_back) => {
                    self.cache.charge(Fit::exact(size_bytes));
                    self.counts.new_chunks += u64::from(exact);
                    return Ok(self.owed.take(size_bytes, given_back, free_bytes));
                }
                Room::Short(missing_bytes) => missing_bytes,
            };
            if pressure == Pressure::PutOff {
                return Err(missing_bytes);
            }
            let first = victims.is_none();
            let queue = victims.get_or_insert_with(|| self.victims());
            loop {
                let victim = queue.pop().ok_or(missing_bytes)?;
                if self.evict(victim) || self.try_discard(victim) {
                    break;
                }
            }
            self.counts.rescues += u64::from(first);
            if exact && let Some(ready) = self.take(size_bytes) {
                return Ok(ready);
            }
        }
    }

    /// Resident blocks that may be evicted, the best victim last: farthest next use under a
    /// plan, else least recent use; ties go to the lower index.
    fn victims(&self) -> Vec<usize> {
        let free_to_go = |index: &usize| {
            self.blocks[*index].state == BlockState::Resident && self.can_leave(*index)
        };
        let mut victims: Vec<(u64, usize)> = (0..self.blocks.len())
            .filter(free_to_go)
            .map(|index| {
                let key = if self.by_next_use {
                    self.next_use(index)
                } else {
                    u64::MAX - self.blocks[index].last_rank
                };
                (key, index)
            })
            .collect();
        victims.sort_unstable_by_key(|&(key, index)| (key, Reverse(index)));
        victims.into_iter().map(|(_, index)| index).collect()
    }

    fn next_use(&self, index: usize) -> u64 {
        let persistent = self.trace.blocks[index].origin == Origin::Persistent;
        self.usage.next_use(index, self.event, persistent).unwrap_or(u64::MAX)
    }

    /// Sends a resident block away. Does nothing if the host has no room for it.
    fn evict(&mut self, index: usize) -> bool {
        let size_bytes = self.trace.blocks[index].size_bytes;
        let mut ready = self.after_last_use(index);
        if self.blocks[index].slot {
            self.counts.clean_swap_outs += 1;
        } else {
            if !self.make_host_room(size_bytes) {
                return false;
            }
            self.blocks[index].slot = true;
            self.host_bytes += size_bytes;
            self.counts.host_bytes_peak = self.counts.host_bytes_peak.max(self.host_bytes);
            let arrival = self.blocks[index].arrival;
            let copy = self.issue(Direction::Out, index, ready.last_use, [arrival, NONE]);
            self.blocks[index].departure = copy;
            // Whoever takes the chunk back waits for this, or for what was under way before.
            self.blocks[index].arrival = copy;
            self.counts.swapped_out_bytes += size_bytes;
            ready.copy = copy;
        }
        self.vacate(index, ready);
        self.blocks[index].state = BlockState::Away;
        true
    }

    /// Drops host copies of clean resident blocks until there is room: least recently used first.
    fn make_host_room(&mut self, size_bytes: u64) -> bool {
        while self.host_bytes.saturating_add(size_bytes) > self.machine.host_limit_bytes {
            let clean = |&index: &usize| {
                let block = &self.blocks[index];
                block.state == BlockState::Resident && block.slot
            };
            let oldest =
                (0..self.blocks.len()).filter(clean).min_by_key(|&index| self.blocks[index].slot);
            match oldest {
                Some(index) => self.drop_slot(index),
                None => return false,
            }
        }
        true
    }

    /// Gives a resident block's chunk to the cache.
    fn vacate(&mut self, index: usize, ready: Ready) {
        self.vacate_bytes(self.trace.blocks[index].size_bytes, ready);
        self.changes.push(Change::new(index, false, self.now_us(), ready.copy));
        if let Some(lots) = &mut self.lots {
            lots.leave(index, ready);
        }
    }

    fn vacate_bytes(&mut self, size_bytes: u64, ready: Ready) {
        self.cache.put(Fit::exact(size_bytes), ready);
        self.resident_bytes -= size_bytes;
    }

    /// Counts a block that has just got a chunk.
    fn make_resident(&mut self, index: usize) {
        self.blocks[index].state = BlockState::Resident;
        self.resident_bytes += self.trace.blocks[index].size_bytes;
        self.changes.push(Change::new(index, true, self.now_us(), NONE));
        self.note_peak();
    }

    fn note_peak(&mut self) {
        let peak = &mut self.counts.resident_bytes_peak;
        *peak = (*peak).max(self.resident_bytes);
    }

    fn after_last_use(&self, index: usize) -> Ready {
        let block = &self.blocks[index];
        let owner = block.identity;
        Ready { last_use: block.last_use, copy: block.arrival, freed: false, owner }
    }

    fn pin(&mut self, index: usize) {
        self.blocks[index].pins += 1;
        self.pinned.last_mut().expect("an op or replay is under way").push(index as u32);
    }

    pub(super) fn drop_slot(&mut self, index: usize) {
        if self.blocks[index].slot {
            self.blocks[index].slot = false;
            self.host_bytes -= self.trace.blocks[index].size_bytes;
        }
    }

    fn forget_wish(&mut self, index: usize) {
        if std::mem::take(&mut self.blocks[index].put_off) {
            self.put_off.retain(|&block| block as usize != index);
        }
    }
}

/// A chunk in place of several: ready when all of them are.
pub(super) fn latest(chunks: impl Iterator<Item = Ready>) -> Ready {
    let nothing = Ready { last_use: NEVER, copy: NONE, freed: true, owner: 0 };
    chunks.fold(nothing, |latest, chunk| Ready {
        last_use: Moment {
            floor_us: latest.last_use.floor_us.max(chunk.last_use.floor_us),
            op: later(latest.last_use.op, chunk.last_use.op),
        },
        copy: later(latest.copy, chunk.copy),
        freed: true,
        owner: 0,
    })
}

/// The higher of two numbers that may be missing.
pub(super) fn later(one: u32, other: u32) -> u32 {
    if one == NONE || (other != NONE && other > one) { other } else { one }
}
