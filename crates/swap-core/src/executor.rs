//! Runs the plan: at each op boundary, the actions that are due there.

use std::collections::VecDeque;

use vmem::{BlockId, DeviceMemory};

use crate::core::Core;
use crate::entry::State;
use crate::error::Error;
use crate::follow::{OpKey, Rejoined};
use crate::plan::{Action, ActionKind, Phase};
use crate::trace::OpIndex;

/// After the device was asked in vain whether it is done with something, so many op boundaries go
/// by without a question. The host of a step of short ops has no time for two of them an op.
const QUIET_BOUNDARIES: u32 = 7;

/// What is done at each op boundary beside the plan.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// Blocks whose ordered swap-in found no room yet, oldest first. Those that are not
    /// [`asked_for`](crate::entry::Entry::asked_for) any more came back by a touch, or are freed.
    put_off: VecDeque<BlockId>,
    /// Op boundaries left at which the device is not asked what it is done with.
    quiet_boundaries: u32,
}

impl Core {
    /// What is due before the next op begins. Stops at a block that must be replayed and returns
    /// it; call again after the replay.
    pub(crate) fn before_op(&mut self, key: OpKey) -> Result<Option<BlockId>, Error> {
        let Some(op) = self.step.follower.coming_op(key) else { return Ok(None) };
        if let Some(rejoined) = self.step.follower.take_rejoined() {
            self.catch_up(&rejoined)?;
        }
        self.boundary(op, Phase::Begin)
    }

    /// As [`before_op`](Core::before_op), after an op has ended that is `op` of the plan's step.
    pub(crate) fn after_op(&mut self, op: OpIndex) -> Result<Option<BlockId>, Error> {
        self.boundary(op, Phase::End)
    }

    /// Does what the plan orders where the step did not follow it.
    fn catch_up(&mut self, rejoined: &Rejoined) -> Result<(), Error> {
        let released = rejoined.released.iter().map(|&id| (None, id));
        let bound = rejoined.bound.iter().map(|&(place, id)| (Some(place), id));
        for (place, id) in released.chain(bound) {
            if let Ok(entry) = self.entry_mut(id) {
                entry.planned = place;
            }
        }
        let orders = self.orders.current();
        let moves = orders.map_or_else(Vec::new, |orders| orders.last_moves(&rejoined.skipped));
        for action in moves {
            if let Some(id) = self.planned_block(action) {
                self.perform(action, id)?;
            }
        }
        Ok(())
    }

    fn boundary(&mut self, op: OpIndex, phase: Phase) -> Result<Option<BlockId>, Error> {
        while let Some(action) = self.next_action(op, phase) {
            let Some(id) = self.planned_block(action) else {
                if self.step.follower.has_path() {
                    continue;
                }
                self.step.follower.give_up(op);
                return Ok(None);
            };
            if let Some(replay) = self.perform_timed(action, id)? {
                return Ok(Some(replay));
            }
        }
        Ok(None)
    }

    /// Tries ordered swap-ins that found no room, and unmaps what the device no longer uses.
    pub(crate) fn housekeeping(&mut self) -> Result<(), Error> {
        for _ in 0..self.upkeep.put_off.len() {
            let Some(id) = self.upkeep.put_off.pop_front() else { break };
            let asked_for = self.entry(id).is_ok_and(|entry| entry.asked_for);
            if asked_for && !self.swap_in(id, false)? {
                self.upkeep.put_off.push_back(id);
            }
        }
        if self.upkeep.quiet_boundaries > 0 {
            self.upkeep.quiet_boundaries -= 1;
            return Ok(());
        }
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        let before = streams.vain_questions();
        pool.poll(streams)?;
        if streams.vain_questions() > before {
            self.upkeep.quiet_boundaries = QUIET_BOUNDARIES;
        }
        Ok(())
    }

    /// The first action of this boundary that was not run yet.
    fn next_action(&mut self, op: OpIndex, phase: Phase) -> Option<Action> {
        let orders = self.orders.current().filter(|_| self.step.follower.acts())?;
        if self.step.boundary != Some((op, phase)) {
            self.step.boundary = Some((op, phase));
            self.step.actions_done = 0;
        }
        let action = *orders.actions_at(op, phase).get(self.step.actions_done)?;
        self.step.actions_done += 1;
        Some(action)
    }

    /// The block that the plan means, if it still is what the plan knew.
    fn planned_block(&self, action: Action) -> Option<BlockId> {
        let orders = self.orders.current()?;
        let id = self.step.follower.block(action.block)?;
        let entry = self.entry(id).ok()?;
        if self.step.follower.has_path() {
            return Some(id);
        }
        let size_bytes = self.memory.pool.size_bytes(id);
        orders.matches(action.block, size_bytes, entry.origin).then_some(id)
    }

    /// One action, and what it costs the host.
    fn perform_timed(&mut self, action: Action, id: BlockId) -> Result<Option<BlockId>, Error> {
        if !matches!(action.kind, ActionKind::SwapOut | ActionKind::SwapIn) {
            return self.perform(action, id);
        }
        let since_us = self.memory.streams.driver().now_us();
        let performed = self.perform(action, id);
        let took_us = self.memory.streams.driver().now_us() - since_us;
        self.step.counters.planned_moves += 1;
        self.step.counters.planned_moves_us += took_us;
        performed
    }

    /// One action. A block that is already where it should be, or cannot move, is left alone.
    fn perform(&mut self, action: Action, id: BlockId) -> Result<Option<BlockId>, Error> {
        let state = self.entry(id)?.state;
        match action.kind {
            ActionKind::SwapOut => {
                if self.can_leave(id) {
                    self.swap_out(id)?;
                }
            }
            ActionKind::SwapIn => {
                if matches!(state, State::Away { .. })
                    && !self.entry(id)?.asked_for
                    && !self.swap_in(id, false)?
                {
                    self.entry_mut(id)?.asked_for = true;
                    self.upkeep.put_off.push_back(id);
                }
            }
            ActionKind::Discard => {
                if self.can_leave(id) && self.can_replay(id) {
                    self.discard(id)?;
                    let entry = self.entry_mut(id)?;
                    let for_others = action.due != action.op;
                    entry.awaits_dependents = for_others && entry.dependents.is_empty();
                }
            }
            ActionKind::Replay => {
                if state == State::Discarded {
                    return Ok(Some(id));
                }
            }
        }
        Ok(None)
    }
}
