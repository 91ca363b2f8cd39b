//! Replays: an op runs again to bring a discarded block back.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::thread;

use vmem::BlockId;

use super::OpStack;
use super::frame::{Frame, abandon_frame, is_fresh};
use crate::core::Core;
use crate::error::Error;
use crate::hand_over;
use crate::recipe::Replayable;

impl OpStack {
    /// A replay that the plan orders. One that finds no room, or whose recipe fails, is left to the
    /// touch that needs it: this op does not, and it is not its error.
    pub(super) fn replay_ahead(&mut self, block: BlockId) -> Result<(), Error> {
        match self.replay(block) {
            Err(Error::OutOfMemory(_) | Error::Replay { .. }) => Ok(()),
            result => result,
        }
    }

    /// Brings a discarded block back by running its recipe.
    pub(super) fn replay(&mut self, block: BlockId) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        // One inside another is a part of it.
        let is_outermost = self.replays == 0;
        // The outermost op has no work behind its timer yet.
        let core = shared.lock()?;
        let fresh = self.frames.first().is_some_and(|frame| is_fresh(frame, &core));
        let since_us = core.memory.streams.driver().now_us();
        drop(core);
        let number = self.number;
        let replayed = hand_over::replay(
            &*shared,
            self,
            |core| core.try_begin_replay(block, number),
            |ops, replayable| ops.run_recipe(&replayable, block),
            |ops, core, (outcome, mut left_open)| {
                for frame in left_open.drain(..).rev() {
                    abandon_frame(core, &frame);
                }
                ops.spare_frames.push(left_open);
                let ended = core.end_replay(block, matches!(outcome, Ok(Ok(()))));
                let ended = ended.and(ops.restart_timer(core, fresh));
                outcome.map(|result| result.and(ended))
            },
        )?;
        if is_outermost {
            shared.lock()?.count_replay(since_us);
        }
        match replayed {
            Some(Ok(result)) => result,
            Some(Err(payload)) => panic::resume_unwind(payload),
            None => Ok(()),
        }
    }

    /// Runs a recipe, whose owner may panic. Returns the ops too that it left open.
    fn run_recipe(
        &mut self,
        replayable: &Replayable,
        output: BlockId,
    ) -> (thread::Result<Result<(), Error>>, Vec<Frame>) {
        tracing::trace!(op = replayable.op, "replaying");
        self.replays += 1;
        // The ops around it are out of the recipe's reach: it may neither use nor end them.
        let own = self.spare_frames.pop().unwrap_or_default();
        let around = std::mem::replace(&mut self.frames, own);
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| replayable.recipe.run(self, output)));
        let left_open = std::mem::replace(&mut self.frames, around);
        self.replays -= 1;
        (outcome, left_open)
    }

    /// Keeps a replay out of the time of an op that had no work of its own before it.
    fn restart_timer(&mut self, core: &mut Core, fresh: bool) -> Result<(), Error> {
        if fresh && let Some(frame) = self.frames.first_mut() {
            frame.position = core.memory.streams.here(frame.stream).position;
            if let Some(timer) = frame.timer {
                core.memory.streams.record_timer_again(timer, frame.stream)?;
            }
        }
        Ok(())
    }
}
