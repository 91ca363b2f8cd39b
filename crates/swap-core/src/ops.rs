//! The op stack: how operators tell the engine what they touch.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::{Access, AccessMode, BlockId, DevicePtr, EventHandle, HostFunction, Operands, StreamId};

use crate::core::{Asker, Core};
use crate::engine::{Engine, Shared};
use crate::error::Error;
use crate::name::OpName;
use crate::recipe::{Recipe, Replayable};
use crate::recorder::Timing;
use crate::residency::Touched;
use crate::trace::{OpIndex, TraceEvent};

/// The open ops of one thread, innermost last.
///
/// Each operator is `begin`, a `touch` for each block it uses, its work, `end`. A touched block is
/// resident, ordered before the op's work, and stays until the op ends. Dropping the stack in the
/// middle of ops, as an exception does, lets their blocks go.
pub struct OpStack {
    shared: Arc<Shared>,
    frames: Vec<Frame>,
    /// Tells this stack's replays from those of others.
    number: u64,
    /// Replays that this thread is in.
    replays: u32,
}

#[derive(Debug)]
struct Frame {
    name: OpName,
    op: OpIndex,
    stream: StreamId,
    /// The stack's number if the op is part of a replay.
    replay: Option<u64>,
    /// The step that it began in.
    step: u64,
    touched: SmallVec<[(BlockId, AccessMode, DevicePtr); 8]>,
    allocated: SmallVec<[BlockId; 4]>,
    recipe: Option<Recipe>,
    launched: bool,
    /// Recorded before the op's work, when its time is measured.
    timer: Option<EventHandle>,
    /// The stream's position when `timer` was recorded.
    position: u64,
}

impl OpStack {
    pub(crate) fn new(shared: Arc<Shared>) -> OpStack {
        let number = shared.next_stack();
        OpStack { shared, frames: Vec::new(), number, replays: 0 }
    }

    /// Begins an op on the engine's compute stream.
    ///
    /// # Errors
    /// If the driver fails, or a replay that the plan orders here does.
    pub fn begin(&mut self, name: OpName) -> Result<(), Error> {
        self.begin_on(name, self.shared.compute)
    }

    /// Begins an op whose work runs on `stream`.
    ///
    /// # Errors
    /// As for [`begin`](OpStack::begin).
    pub fn begin_on(&mut self, name: OpName, stream: StreamId) -> Result<(), Error> {
        let replay = (self.replays > 0).then_some(self.number);
        let mut core = self.shared.lock()?;
        if replay.is_none() {
            core.housekeeping()?;
            while let Some(block) = core.before_op()? {
                drop(core);
                self.replay_ahead(block)?;
                core = self.shared.lock()?;
            }
        }
        let frame = self.open_frame(&mut core, name, stream, replay)?;
        drop(core);
        self.frames.push(frame);
        Ok(())
    }

    fn open_frame(
        &self,
        core: &mut Core,
        name: OpName,
        stream: StreamId,
        replay: Option<u64>,
    ) -> Result<Frame, Error> {
        let op = OpIndex(core.step.op_count);
        let mut timer = None;
        if replay.is_none() {
            if core.step.start.is_none() {
                core.step.start = Some(core.memory.streams.timer(core.compute)?);
            }
            if core.recorder.is_some() && self.frames.is_empty() {
                timer = Some(core.memory.streams.timer(stream)?);
            }
            core.step.op_count += 1;
            core.step.signature = core.step.signature.mix(name.hash());
            if let Some(recorder) = &mut core.recorder {
                recorder.op(name.text(), self.frames.len());
            }
            core.event(TraceEvent::Begin(op));
        }
        Ok(Frame {
            name,
            op,
            stream,
            replay,
            step: core.step.number,
            touched: SmallVec::new(),
            allocated: SmallVec::new(),
            recipe: None,
            launched: false,
            timer,
            position: core.memory.streams.here(stream).position,
        })
    }

    /// Makes a block resident for the innermost op and keeps it so until the op ends. Returns its
    /// address, the same from allocate to free.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it does not fit beside the blocks that open ops hold;
    /// [`Error::Freed`]; [`Error::Usage`] outside an op.
    pub fn touch(&mut self, block: BlockId, mode: AccessMode) -> Result<DevicePtr, Error> {
        let OpStack { shared, frames, .. } = self;
        let frame = frames.last_mut().ok_or(NO_OP)?;
        let mut core = shared.lock()?;
        if let Some(address) = core.touch_resident(block, mode, frame.replay) {
            frame.touched.push((block, mode, address));
            return Ok(address);
        }
        drop(core);
        self.touch_slowly(block, mode)
    }

    /// A touch that moves memory or waits for it.
    #[cold]
    fn touch_slowly(&mut self, block: BlockId, mode: AccessMode) -> Result<DevicePtr, Error> {
        let shared = Arc::clone(&self.shared);
        let mut core = shared.lock()?;
        loop {
            let frame = self.frames.last().ok_or(NO_OP)?;
            let (stream, replay) = (frame.stream, frame.replay);
            match core.touch(block, mode, stream, replay)? {
                Touched::Ready(address) => {
                    if let Err(error) = self.settle(&mut core) {
                        core.entry_mut(block)?.pins -= 1;
                        return Err(error);
                    }
                    let frame = self.frames.last_mut().ok_or(NO_OP)?;
                    frame.touched.push((block, mode, address));
                    return Ok(address);
                }
                Touched::Replay(block) => {
                    if replay.is_none() {
                        core.step.counters.misses += 1;
                    }
                    drop(core);
                    self.replay(block)?;
                    core = shared.lock()?;
                }
                Touched::Busy => core = shared.wait_for_replay(core)?,
            }
        }
    }

    /// Allocates an output of the innermost op; it stays resident until the op ends. `name` is
    /// for reports and may be empty.
    ///
    /// # Errors
    /// As for [`touch`](OpStack::touch).
    pub fn allocate(&mut self, size_bytes: u64, name: &str) -> Result<BlockId, Error> {
        let mut core = self.shared.lock()?;
        let frame = self.frames.last().ok_or(NO_OP)?;
        let asker = if frame.replay.is_some() { Asker::Replay } else { Asker::Op(frame.op) };
        let block = core.allocate(size_bytes, name, frame.stream, asker)?;
        if let Err(error) = self.settle(&mut core) {
            core.free(block)?;
            return Err(error);
        }
        self.frames.last_mut().ok_or(NO_OP)?.allocated.push(block);
        Ok(block)
    }

    /// Frees a block. Legal in every state; work already submitted still sees it.
    ///
    /// # Errors
    /// [`Error::Freed`] if it was freed before.
    pub fn free(&mut self, block: BlockId) -> Result<(), Error> {
        self.shared.lock()?.free(block)
    }

    /// Runs a host function over the blocks that the innermost op has touched, numbered by their
    /// first touch. A block touched in several modes is one operand that is read and written.
    /// `cost_us` is its time on a device with a virtual clock.
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op; [`Error::Freed`] if a touched block was freed since.
    pub fn launch(
        &mut self,
        cost_us: f64,
        body: impl FnOnce(&Operands<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        let OpStack { shared, frames, .. } = self;
        let core = shared.lock()?;
        let frame = frames.last_mut().ok_or(NO_OP)?;
        let accesses = accesses(&core, &frame.touched)?;
        let name = frame.name.text();
        let function = HostFunction { name, accesses, cost_us, body: Box::new(body) };
        let stream = core.memory.streams.handle(frame.stream);
        // SAFETY: `touch` made each block resident, mapped its whole range and ordered the stream
        // behind its copies; the frame's pins keep it so until `end`, where the use is noted and
        // from then on holds every unmap and reuse back. Blocks are disjoint, and `accesses` names
        // each once.
        unsafe { core.memory.streams.driver().launch_host(function, stream) }?;
        frame.launched = true;
        Ok(())
    }

    /// Lets the engine run the innermost op again to bring its outputs back. Outputs are the
    /// blocks that it touches as [`Write`](AccessMode::Write).
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op.
    pub fn recipe(&mut self, recipe: Recipe) -> Result<(), Error> {
        self.frames.last_mut().ok_or(NO_OP)?.recipe = Some(recipe);
        Ok(())
    }

    /// Ends the innermost op: its blocks may move again, and what the plan orders here happens.
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op; otherwise as for [`begin`](OpStack::begin).
    pub fn end(&mut self) -> Result<(), Error> {
        let frame = self.frames.pop().ok_or(NO_OP)?;
        let (op, replay) = (frame.op, frame.replay);
        let mut core = self.shared.lock()?;
        let same_step = frame.step == core.step.number;
        close_frame(&mut core, frame)?;
        if replay.is_some() {
            return Ok(());
        }
        core.housekeeping()?;
        // An op that began in an earlier step has no place in this one's plan.
        while same_step && let Some(block) = core.after_op(op)? {
            drop(core);
            self.replay_ahead(block)?;
            core = self.shared.lock()?;
        }
        Ok(())
    }

    /// Number of open ops.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// A replay that the plan orders. One that finds no room is left to the touch that needs it.
    fn replay_ahead(&mut self, block: BlockId) -> Result<(), Error> {
        match self.replay(block) {
            Err(Error::OutOfMemory(_)) => Ok(()),
            result => result,
        }
    }

    /// Brings a discarded block back by running its recipe.
    fn replay(&mut self, block: BlockId) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let fresh = self.is_fresh()?;
        let depth = self.frames.len();
        let begun = shared.lock()?.try_begin_replay(block, self.number)?;
        let Some(replayable) = begun else { return Ok(()) };
        tracing::trace!(op = replayable.op, "replaying");
        self.replays += 1;
        // The recipe's owner may panic. Others may wait for this replay, so it ends in any case.
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| replayable.recipe.run(self)));
        self.replays -= 1;
        let done = matches!(outcome, Ok(Ok(())));
        let ended = shared.lock().and_then(|mut core| {
            for frame in self.frames.drain(depth..) {
                abandon_frame(&mut core, &frame);
            }
            core.end_replay(block, done)?;
            self.restart_timer(&mut core, fresh)
        });
        shared.replayed.notify_all();
        match outcome {
            Ok(result) => result.and(ended),
            Err(payload) => panic::resume_unwind(payload),
        }
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

    /// Whether the outermost op has no work behind its timer yet.
    fn is_fresh(&self) -> Result<bool, Error> {
        let core = self.shared.lock()?;
        Ok(self.frames.first().is_some_and(|frame| is_fresh(frame, &core)))
    }

    /// While recording: keeps what the op waited for out of the op's own time.
    fn settle(&self, core: &mut Core) -> Result<(), Error> {
        if core.recorder.is_none() {
            return Ok(());
        }
        let Some(frame) = self.frames.first().filter(|frame| frame.replay.is_none()) else {
            return Ok(());
        };
        let Some(timer) = frame.timer else { return Ok(()) };
        if is_fresh(frame, core) {
            core.memory.streams.record_timer_again(timer, frame.stream)?;
            core.collect_stalls(None);
        } else {
            core.collect_stalls(Some(frame.op));
        }
        Ok(())
    }
}

const NO_OP: Error = Error::Usage("no op is open on this thread: call begin first");

fn is_fresh(frame: &Frame, core: &Core) -> bool {
    !frame.launched && core.memory.streams.here(frame.stream).position == frame.position
}

/// Each touched block once, by first touch.
fn accesses(
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
fn close_frame(core: &mut Core, mut frame: Frame) -> Result<(), Error> {
    let noted =
        if !frame.launched && core.notes_accesses { note_accesses(core, &frame) } else { Ok(()) };
    let timer = frame.timer.take();
    abandon_frame(core, &frame);
    if frame.replay.is_some() {
        return noted;
    }
    let recipe = frame.recipe.take();
    keep_recipe(core, &frame, recipe)?;
    if frame.step == core.step.number {
        core.event(TraceEvent::End(frame.op));
    }
    let timed = keep_timing(core, &frame, timer);
    let marked = if core.moving { core.memory.streams.mark(frame.stream) } else { Ok(()) };
    noted.and(timed).and(marked.map_err(Error::from))
}

/// Times the op from `start` to here, if its step is still being recorded.
fn keep_timing(core: &mut Core, frame: &Frame, start: Option<EventHandle>) -> Result<(), Error> {
    let Some(start) = start else { return Ok(()) };
    if core.recorder.is_none() || frame.step != core.step.number {
        core.memory.streams.recycle_timer(start);
        return Ok(());
    }
    match core.memory.streams.timer(frame.stream) {
        Ok(end) => {
            let recorder = core.recorder.as_mut().expect("checked above");
            recorder.timing(Timing { op: frame.op, start, end });
            Ok(())
        }
        Err(error) => {
            core.memory.streams.recycle_timer(start);
            Err(error.into())
        }
    }
}

fn keep_recipe(core: &mut Core, frame: &Frame, recipe: Option<Recipe>) -> Result<(), Error> {
    let Some(recipe) = recipe else { return Ok(()) };
    let (touched, op) = (&frame.touched, frame.name.text());
    // An op that changes its input cannot run twice.
    let is_input =
        |block| touched.iter().any(|&(other, mode, _)| other == block && mode != AccessMode::Write);
    if touched.iter().any(|&(block, mode, _)| mode.writes() && is_input(block)) {
        return Ok(());
    }
    let mut replayable =
        Replayable { op, recipe, blocks: SmallVec::new(), inputs: SmallVec::new() };
    for &(block, mode, _) in touched.iter() {
        let Ok(entry) = core.entry(block) else { return Ok(()) };
        replayable.blocks.push((block, entry.version));
        if mode == AccessMode::Read {
            replayable.inputs.push(block);
        }
    }
    let replayable = Arc::new(replayable);
    for &(block, mode, _) in touched.iter() {
        if mode == AccessMode::Write && core.memory.pool.is_swappable(block) {
            core.entry_mut(block)?.replayable = Some(Arc::clone(&replayable));
        }
    }
    if let Some(recorder) = &mut core.recorder
        && frame.step == core.step.number
    {
        recorder.replayable(frame.op);
    }
    Ok(())
}

fn note_accesses(core: &Core, frame: &Frame) -> Result<(), Error> {
    let live = |touch: &&(BlockId, AccessMode, DevicePtr)| core.entry(touch.0).is_ok();
    let touched: SmallVec<[_; 8]> = frame.touched.iter().filter(live).copied().collect();
    let streams = &core.memory.streams;
    streams.driver().note_access(streams.handle(frame.stream), &accesses(core, &touched)?)?;
    Ok(())
}

/// Notes the op's uses and lets its blocks go, whether or not it came to its end.
fn abandon_frame(core: &mut Core, frame: &Frame) {
    let point = core.memory.streams.advance(frame.stream);
    let touched = frame.touched.iter().map(|&(block, _, _)| block);
    for block in touched.chain(frame.allocated.iter().copied()) {
        if let Ok(entry) = core.entry_mut(block) {
            entry.pins -= 1;
            if frame.replay.is_some() {
                // Nobody but the engine can order others after work that only it knows of.
                entry.arrived = Some(point);
            }
            core.memory.pool.note_use(block, point);
        }
    }
    if let Some(timer) = frame.timer {
        core.memory.streams.recycle_timer(timer);
    }
}

impl Drop for OpStack {
    fn drop(&mut self) {
        // A poisoned engine keeps its pins; nothing runs on it any more.
        if let Ok(mut core) = self.shared.lock() {
            for frame in self.frames.drain(..) {
                abandon_frame(&mut core, &frame);
            }
        }
    }
}

impl fmt::Debug for OpStack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.frames.iter().map(|frame| frame.name.text())).finish()
    }
}

impl Engine {
    /// A new, empty op stack; each thread that runs ops has its own.
    pub fn op_stack(&self) -> OpStack {
        OpStack::new(Arc::clone(self.shared()))
    }
}
