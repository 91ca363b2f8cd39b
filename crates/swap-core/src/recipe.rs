//! Recipes: how an op's owner lets the engine run the op once more.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::BlockId;

use crate::error::Error;
use crate::ops::OpStack;

/// Runs an op again, on the same blocks.
///
/// Its owner promises: run on the same input bytes it writes the same output bytes, it touches
/// the same blocks as the first time, and it begins and ends its own ops.
#[derive(Clone)]
pub struct Recipe(Arc<RunOp>);

type RunOp = dyn Fn(&mut OpStack) -> Result<(), Error> + Send + Sync;

impl Recipe {
    /// Wraps the function that runs the op.
    pub fn new(run: impl Fn(&mut OpStack) -> Result<(), Error> + Send + Sync + 'static) -> Recipe {
        Recipe(Arc::new(run))
    }

    pub(crate) fn run(&self, ops: &mut OpStack) -> Result<(), Error> {
        (self.0)(ops)
    }
}

impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recipe")
    }
}

/// A recipe with the blocks it was registered for, as they were when the op ended.
#[derive(Debug)]
pub(crate) struct Replayable {
    pub(crate) op: &'static str,
    pub(crate) recipe: Recipe,
    /// All blocks of the op and their versions behind it.
    pub(crate) blocks: SmallVec<[(BlockId, u32); 4]>,
    /// Those of them that it only reads.
    pub(crate) inputs: SmallVec<[BlockId; 4]>,
}
