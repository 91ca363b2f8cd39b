//! The op stack: how operators tell the engine what they touch.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;
use vmem::{
    Access, AccessMode, BlockId, DevicePtr, DriverError, HostFunction, Operands, StreamHandle,
    StreamId,
};

use crate::core::{Asker, Core};
use crate::engine::{Engine, Shared};
use crate::entry::Allocation;
use crate::error::Error;
use crate::follow::OpKey;
use crate::hand_over::{self, Attempt};
use crate::name::OpName;
use crate::recipe::{Recipe, RecipeUse};
use crate::trace::{OpIndex, TraceEvent};

use frame::{Frame, abandon_frame, accesses, close_frame, is_fresh};

pub(crate) use frame::Within;

mod frame;
mod replays;

/// The open ops of one thread, innermost last.
///
/// Ops of the step are those of one stack at a time: one that begins while another thread has some
/// open is beside the step, as with [`begin_aside`](OpStack::begin_aside).
///
/// Each operator is `begin`, a `touch` for each block it uses, its work, `end`. A touched block is
/// resident, ordered before the op's work, and stays until the op ends. Dropping the stack in the
/// middle of ops, as an exception does, lets their blocks go.
pub struct OpStack {
    shared: Arc<Shared>,
    frames: Vec<Frame>,
    /// Room for the frames of replays, one for each that the thread was in at once.
    spare_frames: Vec<Vec<Frame>>,
    /// Tells this stack's replays from those of others.
    number: u64,
    /// Replays that this thread is in.
    replays: u32,
}

impl OpStack {
    pub(crate) fn new(shared: Arc<Shared>) -> OpStack {
        let number = shared.next_stack();
        OpStack { shared, frames: Vec::new(), spare_frames: Vec::new(), number, replays: 0 }
    }

    /// Begins an op on the engine's compute stream.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn begin(&mut self, name: OpName) -> Result<(), Error> {
        self.begin_on(name, self.shared.compute)
    }

    /// Begins an op whose work runs on `stream`.
    ///
    /// # Errors
    /// As for [`begin`](OpStack::begin).
    pub fn begin_on(&mut self, name: OpName, stream: StreamId) -> Result<(), Error> {
        self.open(name, stream, Within::Step)
    }

    /// Begins an op that is not part of the step, such as one of an evaluation between two steps:
    /// its blocks are resident and ordered as ever, but it is neither counted nor recorded, and no
    /// plan acts at it. Ops inside it are the same.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn begin_aside(&mut self, name: OpName, stream: StreamId) -> Result<(), Error> {
        self.open(name, stream, Within::Aside)
    }

    fn open(&mut self, name: OpName, stream: StreamId, within: Within) -> Result<(), Error> {
        let within = match self.frames.last() {
            _ if self.replays > 0 => Within::Replay(self.number),
            Some(Frame { within: Within::Aside, .. }) => Within::Aside,
            _ => within,
        };
        let mut core = self.shared.lock()?;
        let host_start_us = core.host_us();
        if !within.is_replay() {
            core.housekeeping()?;
        }
        let mut within = self.admitted(&core, within);
        let key = OpKey::new(name.hash(), self.frames.len());
        while within == Within::Step
            && let Some(block) = core.before_op(key)?
        {
            drop(core);
            self.replay_ahead(block)?;
            core = self.shared.lock()?;
            within = self.admitted(&core, within);
        }
        self.leave_out_host(&mut core, host_start_us);
        let mut frame = self.open_frame(&mut core, (name, key), stream, within)?;
        drop(core);
        frame.host_start_us = host_start_us;
        self.frames.push(frame);
        Ok(())
    }

    /// What an op is a part of that asks to be `within`: beside the step where ops of another
    /// thread are open, or where the step ended inside the op around it.
    fn admitted(&self, core: &Core, within: Within) -> Within {
        let is_late = self.frames.last().is_some_and(|outer| outer.step != core.step.number);
        match within {
            Within::Step if is_late || !core.step.admits(self.number) => Within::Aside,
            _ => within,
        }
    }

    fn open_frame(
        &self,
        core: &mut Core,
        (name, key): (OpName, OpKey),
        stream: StreamId,
        within: Within,
    ) -> Result<Frame, Error> {
        core.check_stream(stream)?;
        let op = OpIndex(core.step.op_count);
        let mut timer = None;
        let mut planned = None;
        let mut recipe_use = RecipeUse::None;
        if within == Within::Step {
            planned = core.step.op_begins(key);
            recipe_use = core.recipe_use(planned);
            core.start_clock()?;
            if self.frames.is_empty() {
                timer = core.begin_timing(op, stream)?;
            }
            core.step.op_count += 1;
            core.step.signature = core.step.signature.mix(name.hash());
            core.step.family = core.step.family.mix(name.hash());
            if let Some(recorder) = core.recording.recorder_mut() {
                recorder.op(name.text(), self.frames.len());
            }
            core.event(TraceEvent::Begin(op));
            core.step.op_opened(op, self.number);
        } else if within.is_replay() && self.frames.is_empty() {
            timer = core.replay_timer(stream);
        }
        core.op_began_on(stream);
        Ok(Frame {
            name,
            op,
            planned,
            stream,
            within,
            step: core.step.number,
            touched: SmallVec::new(),
            allocated: SmallVec::new(),
            recipe: None,
            recipe_use,
            launched: false,
            timer,
            host_start_us: None,
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
        self.touch_all(&[(block, mode)])?;
        let touched = self.frames.last().and_then(|frame| frame.touched.last());
        Ok(touched.expect("it was just touched").2)
    }

    /// Touches each of these, in their order, which costs less than one by one.
    ///
    /// # Errors
    /// As for [`touch`](OpStack::touch), at the first that fails.
    pub fn touch_all(&mut self, uses: &[(BlockId, AccessMode)]) -> Result<(), Error> {
        let mut rest = uses.iter();
        loop {
            let OpStack { shared, frames, .. } = self;
            let frame = frames.last_mut().ok_or(NO_OP)?;
            let mut core = shared.lock()?;
            let unready = rest.find(|&&(block, mode)| {
                let resident = core.touch_resident(block, mode, frame.stream, frame.within);
                frame.touched.extend(resident.map(|address| (block, mode, address)));
                resident.is_none()
            });
            drop(core);
            let Some(&(block, mode)) = unready else { return Ok(()) };
            self.touch_slowly(block, mode)?;
        }
    }

    /// A touch that moves memory or waits for it.
    #[cold]
    fn touch_slowly(&mut self, block: BlockId, mode: AccessMode) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let since_us = shared.lock()?.host_us();
        let attempt = |ops: &mut OpStack, core: &mut Core| ops.attempt(core, block, mode);
        let touched = hand_over::until_done(&*shared, self, attempt, OpStack::replay);
        self.leave_out_host(&mut *shared.lock()?, since_us);
        let name = || self.frames.last().map_or("", |frame| frame.name.text());
        touched.map(drop).map_err(|error| error.within(name()))
    }

    fn attempt(
        &mut self,
        core: &mut Core,
        block: BlockId,
        mode: AccessMode,
    ) -> Result<Attempt<DevicePtr, BlockId>, Error> {
        let frame = self.frames.last().ok_or(NO_OP)?;
        let within = frame.within;
        let attempt = core.touch(block, mode, frame.stream, within)?;
        match attempt {
            Attempt::Done(address) => {
                if let Err(error) = self.exclude_waits(core) {
                    core.entry_mut(block)?.pins -= 1;
                    return Err(error);
                }
                self.frames.last_mut().ok_or(NO_OP)?.touched.push((block, mode, address));
            }
            Attempt::Replay(_) if within == Within::Step => core.step.counters.misses += 1,
            Attempt::Replay(_) | Attempt::Busy => {}
        }
        Ok(attempt)
    }

    /// Allocates an output of the innermost op; it stays resident until the op ends. `name` is
    /// for reports and may be empty.
    ///
    /// # Errors
    /// As for [`touch`](OpStack::touch).
    pub fn allocate(&mut self, size_bytes: u64, name: &str) -> Result<BlockId, Error> {
        let name = Cow::Owned(name.to_owned());
        self.allocate_named(size_bytes, name, false).map(|allocation| allocation.block)
    }

    /// As [`allocate`](OpStack::allocate), for a block that may never be an operator's tensor: it
    /// stays until an op touches it. It has the op's name.
    ///
    /// # Errors
    /// As for [`touch`](OpStack::touch).
    pub fn allocate_unshown(&mut self, size_bytes: u64) -> Result<Allocation, Error> {
        let name = self.frames.last().ok_or(NO_OP)?.name.text();
        self.allocate_named(size_bytes, Cow::Borrowed(name), true)
    }

    fn allocate_named(
        &mut self,
        size_bytes: u64,
        name: Cow<'static, str>,
        unshown: bool,
    ) -> Result<Allocation, Error> {
        let mut core = self.shared.lock()?;
        let frame = self.frames.last().ok_or(NO_OP)?;
        let asker = match frame.within {
            Within::Step => Asker::Op(frame.op),
            Within::Aside => Asker::Aside,
            Within::Replay(_) => Asker::Replay,
        };
        let since_us = core.host_us();
        let allocated = core.allocate(size_bytes, name, frame.stream, asker);
        self.leave_out_host(&mut core, since_us);
        let frame = self.frames.last().ok_or(NO_OP)?;
        let block = allocated.map_err(|error| error.within(frame.name.text()))?;
        if let Err(error) = self.exclude_waits(&mut core) {
            core.free(block)?;
            return Err(error);
        }
        self.frames.last_mut().ok_or(NO_OP)?.allocated.push(block);
        if unshown { core.show_later(block) } else { Ok(core.allocation(block)) }
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
    /// It comes behind what was launched or submitted before on the same blocks in conflict, on
    /// any stream.
    ///
    /// # Errors
    /// [`Error::Usage`] outside an op; [`Error::Freed`] if a touched block was freed since.
    pub fn launch(
        &mut self,
        cost_us: f64,
        body: impl FnOnce(&Operands<'_>) + Send + 'static,
    ) -> Result<(), Error> {
        let OpStack { shared, frames, .. } = self;
        let mut core = shared.lock()?;
        let frame = frames.last_mut().ok_or(NO_OP)?;
        let accesses = accesses(&core, &frame.touched)?;
        core.order_launch(frame.stream, frame.uses())?;
        let name = frame.name.text();
        let function = HostFunction { name, accesses, cost_us, body: Box::new(body) };
        let stream = core.memory.streams.handle(frame.stream);
        // SAFETY: `touch` made each block resident, mapped its whole range and ordered the stream
        // behind its copies; the frame's pins keep it so until `end`, where the use is noted and
        // from then on holds every unmap and reuse back. Blocks are disjoint, and `accesses` names
        // each once. `order_launch` put it behind the launches of other streams in conflict.
        unsafe { core.memory.streams.driver().launch_host(function, stream) }?;
        frame.launched = true;
        core.note_launch(frame.stream, frame.uses())
    }

    /// Submits work of the caller's own for the innermost op: `work` gets the op's stream and the
    /// blocks that it has touched, by first touch, and must give the stream nothing that uses
    /// others. It is ordered as with [`launch`](OpStack::launch).
    ///
    /// # Errors
    /// What `work` returns; [`Error::Usage`] outside an op; [`Error::Freed`] if a touched block
    /// was freed since.
    pub fn submit(
        &mut self,
        work: impl FnOnce(StreamHandle, &[Access]) -> Result<(), DriverError>,
    ) -> Result<(), Error> {
        let OpStack { shared, frames, .. } = self;
        let mut core = shared.lock()?;
        let frame = frames.last_mut().ok_or(NO_OP)?;
        let accesses = accesses(&core, &frame.touched)?;
        core.order_launch(frame.stream, frame.uses())?;
        let streams = &core.memory.streams;
        let stream = streams.handle(frame.stream);
        if core.notes_accesses {
            streams.driver().note_access(stream, &accesses)?;
        }
        frame.launched = true;
        // Work that failed may have begun.
        let submitted = work(stream, &accesses);
        core.note_launch(frame.stream, frame.uses())?;
        Ok(submitted?)
    }

    /// Lets the engine run the innermost op again to bring its outputs back, one at a time.
    /// Outputs are the blocks that it touches as [`Write`](AccessMode::Write).
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
        let mut frame = self.frames.pop().ok_or(NO_OP)?;
        let (op, planned, within) = (frame.op, frame.planned, frame.within);
        let mut core = self.shared.lock()?;
        let same_step = frame.step == core.step.number;
        let since_us = core.host_us();
        close_frame(&mut core, &mut frame)?;
        if within.is_replay() {
            return Ok(());
        }
        core.housekeeping()?;
        // An op that began in an earlier step has no place in this one's plan.
        while let Some(op) = planned.filter(|_| same_step)
            && let Some(block) = core.after_op(op)?
        {
            drop(core);
            self.replay_ahead(block)?;
            core = self.shared.lock()?;
        }
        self.leave_out_host(&mut core, since_us);
        if same_step && within == Within::Step && self.frames.is_empty() {
            core.host_is_done(op);
        }
        Ok(())
    }

    /// What the engine has done since then is no time of the host for an op of the step. Replays
    /// are a part of what they are for.
    fn leave_out_host(&self, core: &mut Core, since_us: Option<f64>) {
        if self.replays == 0 {
            core.leave_out_host(since_us);
        }
    }

    /// Number of open ops; in a recipe, those that it began.
    pub fn depth(&self) -> usize {
        self.frames.len()
    }

    /// While ops are timed: keeps what the op waited for out of the op's own time.
    fn exclude_waits(&self, core: &mut Core) -> Result<(), Error> {
        if core.recording.recorder().is_none() && core.recording.lanes().is_none() {
            return Ok(());
        }
        let in_step = self.frames.first().filter(|frame| frame.within == Within::Step);
        let Some((frame, timer)) = in_step.and_then(|frame| Some((frame, frame.timer?))) else {
            return Ok(());
        };
        let is_fresh = is_fresh(frame, core);
        if is_fresh {
            core.memory.streams.record_timer_again(timer, frame.stream)?;
        }
        core.collect_stalls(Some(frame.op), !is_fresh);
        Ok(())
    }
}

const NO_OP: Error = Error::Usage("no op is open on this thread: call begin first");

impl Drop for OpStack {
    fn drop(&mut self) {
        // A poisoned engine keeps its pins; nothing runs on it any more.
        if let Ok(mut core) = self.shared.lock() {
            for frame in self.frames.drain(..).rev() {
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
