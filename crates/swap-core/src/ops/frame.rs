//! One open op: what it holds, and how it ends.

use std::sync::Arc;

use smallvec::SmallVec;
use vmem::{Access, AccessMode, BlockId, DevicePtr, EventHandle, StreamId};

use crate::core::Core;
use crate::error::Error;
use crate::name::OpName;
use crate::recipe::{Recipe, RecipeUse, Replayable};
use crate::recorder::Timing;
use crate::trace::OpIndex;

use super::{NO_OP, OpStack};

/// What an op is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Within {
    /// The step: counted, recorded, planned for.
    Step,
    /// Nothing that a plan knows, such as an evaluation between two steps.
    Aside,
    /// A replay, on the op stack of this number.
    Replay(u64),
}

impl Within {
    pub(crate) fn is_replay(self) -> bool {
        matches!(self, Within::Replay(_))
    }
}

#[derive(Debug)]
pub(super) struct Frame {
    pub(super) name: OpName,
    pub(super) op: OpIndex,
    /// The op that it is in the step that the plan is for.
    pub(super) planned: Option<OpIndex>,
    pub(super) stream: StreamId,
    pub(super) within: Within,
    /// The step that it began in.
    pub(super) step: u64,
    pub(super) touched: SmallVec<[(BlockId, AccessMode, DevicePtr); 8]>,
    pub(super) allocated: SmallVec<[BlockId; 4]>,
    pub(super) recipe: Option<Recipe>,
    pub(super) recipe_use: RecipeUse,
    pub(super) launched: bool,
    /// Recorded before the op's work, when its time is measured.
    pub(super) timer: Option<EventHandle>,
    /// The host's clock when it began, where the step is measured.
    pub(super) host_start_us: Option<f64>,
    /// The stream's position when `timer` was recorded.
    pub(super) position: u64,
}

impl Frame {
    /// What it has touched so far, and how.
    pub(super) fn uses(&self) -> impl Iterator<Item = (BlockId, AccessMode)> {
        self.touched.iter().map(|&(block, mode, _)| (block, mode))
    }
}

impl OpStack {
    /// What the innermost op has touched so far, and how. Nothing outside an op.
    pub fn touched(&self) -> impl Iterator<Item = (BlockId, AccessMode)> {
        self.frames.last().into_iter().flat_map(Frame::uses)
    }

    /// What use the engine has for a recipe of the innermost op.
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op.
    pub fn recipe_use(&self) -> Result<RecipeUse, Error> {
        Ok(self.frames.last().ok_or(NO_OP)?.recipe_use)
    }

    /// Whether all swappable blocks that the innermost op has written so far are among `outputs`,
    /// but for those that were freed since.
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op.
    pub fn writes_only(&self, outputs: &[BlockId]) -> Result<bool, Error> {
        let core = self.shared.lock()?;
        let mut uses = self.frames.last().ok_or(NO_OP)?.uses();
        let is_other = |block| {
            let lives = core.entry(block).is_ok();
            lives && core.memory.pool.is_swappable(block) && !outputs.contains(&block)
        };
        Ok(!uses.any(|(block, mode)| mode.writes() && is_other(block)))
    }
}

pub(super) fn is_fresh(frame: &Frame, core: &Core) -> bool {
    !frame.launched && core.memory.streams.here(frame.stream).position == frame.position
}

/// An event costs the host two calls. What waits for the last use of a block waits for the next
/// event behind it, so a block that is sent away on demand may wait for so many ops more.
const OPS_PER_MARK: u64 = 8;

/// Each touched block once, by first touch.
pub(super) fn accesses(
    core: &Core,
    touched: &[(BlockId, AccessMode, DevicePtr)],
) -> Result<Vec<Access>, Error> {
    let mut accesses: Vec<Access> = Vec::with_capacity(touched.len());
    for &(block, mode, start) in touched {
        core.entry(block)?;
        match accesses.iter_mut().find(|access| access.start == start) {
            Some(access) if access.mode != mode => access.mode = AccessMode::ReadWrite,
            Some(_) => {}
            None => {
                let size_bytes = core.memory.pool.requested_bytes(block);
                accesses.push(Access { start, size_bytes, mode });
            }
        }
    }
    Ok(accesses)
}

/// Notes the op's uses, lets its blocks go, and keeps its recipe.
pub(super) fn close_frame(core: &mut Core, frame: &mut Frame) -> Result<(), Error> {
    let noted =
        if !frame.launched && core.notes_accesses { note_accesses(core, frame) } else { Ok(()) };
    let timer = frame.timer.take();
    abandon_frame(core, frame);
    if frame.within != Within::Step {
        if let Some(start) = timer {
            core.replay_timed(frame.name.text(), start, frame.stream);
        }
        return noted;
    }
    let recipe = frame.recipe.take();
    keep_recipe(core, frame, recipe)?;
    let timed = keep_timing(core, frame, timer);
    let marked = match core.moving {
        true => core.memory.streams.mark_every(frame.stream, OPS_PER_MARK),
        false => Ok(()),
    };
    noted.and(timed).and(marked.map_err(Error::from))
}

/// Times the op from `start` to here, if its step is still recorded or measured.
fn keep_timing(core: &mut Core, frame: &Frame, start: Option<EventHandle>) -> Result<(), Error> {
    let Some(start) = start else { return Ok(()) };
    if frame.step != core.step.number {
        core.memory.streams.recycle_timer(start);
        return Ok(());
    }
    if core.recording.recorder().is_none() {
        core.op_timed(frame.op, start, frame.stream, frame.host_start_us);
        return Ok(());
    }
    match core.memory.streams.timer(frame.stream) {
        Ok(end) => {
            let recorder = core.recording.recorder_mut().expect("checked above");
            recorder.timing(Timing { op: frame.op, start, end });
            Ok(())
        }
        Err(error) => {
            core.memory.streams.recycle_timer(start);
            Err(error.into())
        }
    }
}

/// Lets each block that the op wrote as a whole be made again by its recipe.
fn keep_recipe(core: &mut Core, frame: &Frame, recipe: Option<Recipe>) -> Result<(), Error> {
    let Some(recipe) = recipe else { return Ok(()) };
    let (touched, op) = (&frame.touched, frame.name.text());
    let mut inputs: SmallVec<[(BlockId, u32); 4]> = SmallVec::new();
    for &(block, mode, _) in touched.iter().filter(|touch| touch.1 != AccessMode::Write) {
        // An op that changes its input cannot run twice.
        let is_written =
            |&(other, mode, _): &(BlockId, AccessMode, _)| other == block && mode.writes();
        let (false, Ok(entry)) = (touched.iter().any(is_written), core.entry(block)) else {
            return Ok(());
        };
        if mode == AccessMode::Read && !inputs.iter().any(|&(known, _)| known == block) {
            inputs.push((block, entry.version));
        }
    }
    let at_any_size = recipe.is_at_any_size();
    let replayable = Arc::new(Replayable { op, recipe, inputs });
    let mut offered = false;
    for &(block, mode, _) in touched.iter() {
        // What the op freed itself was a workspace.
        let is_output = mode == AccessMode::Write && core.entry(block).is_ok();
        if is_output && core.memory.pool.is_swappable(block) {
            core.keep_recipe(block, &replayable)?;
            offered = true;
        }
    }
    if let Some(recorder) = core.recording.recorder_mut()
        && offered
        && frame.step == core.step.number
    {
        let pool = &core.memory.pool;
        let inputs = replayable.inputs.iter().map(|&(input, _)| input);
        let small = inputs.filter(|&input| !pool.is_swappable(input));
        recorder.replayable(frame.op, at_any_size, small);
    }
    Ok(())
}

fn note_accesses(core: &Core, frame: &Frame) -> Result<(), Error> {
    let live = |touch: &&(BlockId, AccessMode, DevicePtr)| core.entry(touch.0).is_ok();
    let touched: SmallVec<[_; 8]> = frame.touched.iter().filter(live).copied().collect();
    let streams = &core.memory.streams;
    let accesses = accesses(core, &touched)?;
    let noted = streams.driver().note_access(streams.handle(frame.stream), &accesses);
    noted.map_err(|mut error| {
        error.text = format!("{}: {}", frame.name.text(), error.text).into();
        error.into()
    })
}

/// Notes the op's uses and lets its blocks go, whether or not it came to its end.
pub(super) fn abandon_frame(core: &mut Core, frame: &Frame) {
    let point = core.memory.streams.advance(frame.stream);
    let touched = frame.touched.iter().map(|&(block, _, _)| block);
    for block in touched.chain(frame.allocated.iter().copied()) {
        if let Ok(entry) = core.entry_mut(block) {
            entry.pins -= 1;
            if frame.within.is_replay() {
                // Nobody but the engine can order others after work that only it knows of.
                entry.arrived.add(point);
            }
            core.memory.pool.note_use(block, point);
        }
    }
    core.op_ended_on(frame.stream);
    if let Some(timer) = frame.timer {
        core.memory.streams.recycle_timer(timer);
    }
    if frame.within == Within::Step && frame.step == core.step.number {
        core.op_closed();
    }
}
