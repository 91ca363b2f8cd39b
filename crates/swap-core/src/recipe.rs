//! Recipes: how an op's owner lets the engine run the op once more.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::BlockId;

use crate::core::Core;
use crate::entry::{Entry, Hold, State};
use crate::error::Error;
use crate::ops::OpStack;
use crate::trace::OpIndex;

/// Runs an op again, to bring back one of the blocks that it wrote.
///
/// Its owner promises: run on the same input bytes it writes the same bytes to that block, it
/// reads the same blocks as the first time, it writes no other block that was there before, and it
/// begins and ends its own ops.
#[derive(Clone)]
pub struct Recipe {
    run: Arc<RunOp>,
    at_any_size: bool,
}

type RunOp = dyn Fn(&mut OpStack, BlockId) -> Result<(), Error> + Send + Sync;

impl Recipe {
    /// Wraps the function that runs the op for one of its outputs.
    pub fn new(
        run: impl Fn(&mut OpStack, BlockId) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Recipe {
        Recipe { run: Arc::new(run), at_any_size: false }
    }

    /// There would be one too where the operands are of other sizes.
    #[must_use]
    pub fn at_any_size(self, at_any_size: bool) -> Recipe {
        Recipe { at_any_size, ..self }
    }

    pub(crate) fn is_at_any_size(&self) -> bool {
        self.at_any_size
    }

    pub(crate) fn run(&self, ops: &mut OpStack, output: BlockId) -> Result<(), Error> {
        (self.run)(ops, output)
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recipe")
    }
}

/// A recipe with the blocks that it reads, as they were when the op ended.
#[derive(Debug)]
pub(crate) struct Replayable {
    pub(crate) op: &'static str,
    pub(crate) recipe: Recipe,
    /// The blocks that the op reads, and their versions behind it.
    pub(crate) inputs: SmallVec<[(BlockId, u32); 4]>,
}

/// What use the engine has for a recipe of an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecipeUse {
    /// None: the plan drops nothing that the op writes.
    None,
    /// The plan may drop what the op writes.
    Planned,
    /// The step is recorded, and the cap may be short: planning wants to know what can be made
    /// again.
    Recorded,
    /// The same, for steps of other sizes: of no use is what only makes these sizes again.
    RecordedForSizes,
}

impl Core {
    /// Lets a block be made again by a recipe. Small inputs then stay until nobody needs them:
    /// no plan knows when their owners free them.
    pub(crate) fn keep_recipe(
        &mut self,
        id: BlockId,
        replayable: &Arc<Replayable>,
    ) -> Result<(), Error> {
        self.drop_recipe(id)?;
        for &(input, _) in &replayable.inputs {
            if !self.memory.pool.is_swappable(input) {
                self.entry_mut(input)?.recipes += 1;
            }
        }
        self.entry_mut(id)?.replayable = Some(Arc::clone(replayable));
        Ok(())
    }

    /// The block's recipe would not make its present bytes any more.
    pub(crate) fn drop_recipe(&mut self, id: BlockId) -> Result<(), Error> {
        let Some(replayable) = self.entry_mut(id)?.replayable.take() else { return Ok(()) };
        for &(input, version) in &replayable.inputs {
            let Ok(entry) = self.entry_mut(input) else { continue };
            if entry.recipes > 0 && entry.version == version {
                entry.recipes -= 1;
                self.free_if_unneeded(input)?;
            }
        }
        Ok(())
    }

    /// Whether a small block that its owner has freed stays, as recipes need it.
    pub(crate) fn keeps_for_recipes(&mut self, id: BlockId) -> Result<bool, Error> {
        let size_bytes = self.memory.pool.size_bytes(id);
        let entry = self.entry(id)?;
        if entry.recipes == 0 || entry.is_kept {
            return Ok(entry.recipes > 0);
        }
        let is_kept = self.entries.keep(size_bytes);
        self.entry_mut(id)?.is_kept = is_kept;
        Ok(is_kept)
    }

    /// What use there is for a recipe of an op of this step, which is `op` of the plan's. Where
    /// memory is plenty no plan will drop anything.
    pub(crate) fn recipe_use(&self, op: Option<OpIndex>) -> RecipeUse {
        if self.recording.recorder().is_some() && !self.memory.pool.is_cap_far() {
            let for_sizes = self.orders.current().is_some_and(|orders| orders.are_for_sizes());
            return if for_sizes { RecipeUse::RecordedForSizes } else { RecipeUse::Recorded };
        }
        let planned = self.orders.current().is_some_and(|orders| orders.drops_output_of(op));
        if planned { RecipeUse::Planned } else { RecipeUse::None }
    }

    /// Dropped blocks that their owners freed wait for what is made from them to be dropped too,
    /// but not beyond the step.
    pub(crate) fn free_dropped(&mut self) -> Result<(), Error> {
        let is_waiting = |entry: &&Entry| entry.free_wanted && entry.awaits_dependents;
        loop {
            let waiting = self.entries.iter().find(is_waiting).map(|entry| entry.id);
            let Some(id) = waiting else { return Ok(()) };
            self.free_now(id)?;
        }
    }

    /// Takes a block that is no longer discarded off the lists of its recipe's inputs.
    pub(crate) fn forget_dependent(&mut self, id: BlockId) -> Result<(), Error> {
        let Some(replayable) = self.entry(id)?.replayable.clone() else { return Ok(()) };
        for &(input, _) in &replayable.inputs {
            let Ok(entry) = self.entry_mut(input) else { continue };
            entry.dependents.retain(|dependent| *dependent != id);
            self.free_if_unneeded(input)?;
        }
        Ok(())
    }

    /// Whether the block's recipe would write the very bytes that it holds: it and all blocks that
    /// the op reads are what they were. Of those that their owners freed, the dropped ones count.
    pub(crate) fn can_replay(&self, id: BlockId) -> bool {
        // What is held may have been written where nobody saw it.
        let is_seen = |entry: &Entry| matches!(entry.hold, Hold::No | Hold::UntilTouched);
        let is_same = |&(input, version): &(BlockId, u32)| {
            self.entry(input).is_ok_and(|entry| {
                let is_dropped = entry.state == State::Discarded;
                let is_there = !entry.free_wanted || entry.is_kept || is_dropped;
                entry.version == version && is_there && is_seen(entry)
            })
        };
        let Ok(entry) = self.entry(id) else { return false };
        let replayable = entry.replayable.as_ref();
        is_seen(entry) && replayable.is_some_and(|recipe| recipe.inputs.iter().all(is_same))
    }
}
