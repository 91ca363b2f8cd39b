//! What belongs to one thread: its op stack, and the op that is open on it.

use std::cell::{Cell, RefCell};
use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use adaptive::{AccessMode, BlockId, Error, OpStack, Recipe, RecipeUse, StreamId};
use smallvec::SmallVec;

use crate::blocks::{Kind, Live};
use crate::context::{self, Context};
use crate::failure::Failure;
use crate::names::NameCache;

/// A thread's part of the engine.
#[derive(Debug)]
pub(crate) struct Local {
    /// Which engine of the process `stack` is of.
    generation: u64,
    pub(crate) context: Arc<Context>,
    stack: OpStack,
    /// Ops begun and not ended. Only the outermost one is the engine's.
    depth: u32,
    /// The outermost op: its name, and the stream that it runs on.
    name: &'static str,
    stream: Option<StreamId>,
    /// The outermost op's number in the process.
    op: u64,
    /// The stream that the thread used last: by the driver's handle, and by the engine's name.
    last_stream: Option<(u64, StreamId)>,
}

/// How a caller says that an op uses a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Use {
    Known(AccessMode),
    /// Written if it is fresh, else both.
    Unknown,
    /// Written if it is fresh, else not used.
    Output,
}

impl Use {
    /// What it means to the engine for an op of this number. `None` if it need not know.
    fn mode(self, live: &Live, op: u64) -> Option<AccessMode> {
        // Whatever ops inside the op do with what it makes, as a whole it writes that.
        let mode = match self {
            _ if live.is_fresh(op) => AccessMode::Write,
            Use::Known(mode) => mode,
            Use::Unknown => AccessMode::ReadWrite,
            Use::Output => return None,
        };
        let matters = match live.kind {
            Kind::Swappable => true,
            Kind::Small => false,
            Kind::Input => mode.writes(),
        };
        matters.then_some(mode)
    }
}

/// A caller's way to run an op again.
pub(crate) trait Replay: Send + Sync + 'static {
    /// Submits the op's work, for the output at this address. Says why if it could not.
    fn run(&self, output: u64) -> Result<(), String>;

    /// Whether it would be offered where its operands are of other sizes, too.
    fn is_at_any_size(&self) -> bool;
}

thread_local! {
    /// Inside a replay: the thread's part of the engine is in use.
    static REPLAYING: Cell<bool> = const { Cell::new(false) };
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
    static NAMES: RefCell<NameCache> = RefCell::default();
}

/// Runs `body` with the open engine. Unlike [`with`], also on a thread that is ending.
pub(crate) fn with_context<T>(
    body: impl FnOnce(&Context) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let own = LOCAL.try_with(|cell| {
        let cell = cell.try_borrow().ok()?;
        let local = cell.as_ref().filter(|local| local.generation == context::generation())?;
        Some(Arc::clone(&local.context))
    });
    match own.ok().flatten() {
        Some(context) => body(&context),
        None => body(&*context::current()?),
    }
}

/// Allocates for use on the caller's stream, inside the open op if there is one.
pub(crate) fn allocate(size_bytes: u64, stream: u64) -> Result<u64, Failure> {
    if REPLAYING.get() {
        return with_context(|context| context.allocate_beside(size_bytes, stream));
    }
    with(|local| local.allocate(size_bytes, stream))
}

/// Keeps a block on the device for `by` until it is freed. A replay may ask for its workspaces.
pub(crate) fn hold(address: u64, stream: u64, by: &str) -> Result<(), Failure> {
    let by = NAMES.with_borrow_mut(|names| names.find(by));
    with_context(|context| context.hold(address, stream, by))
}

/// As [`with`], for what says how ops use memory. Inside a replay all of that has been said.
pub(crate) fn with_op(body: impl FnOnce(&mut Local) -> Result<(), Failure>) -> Result<(), Failure> {
    if REPLAYING.get() { Ok(()) } else { with(body) }
}

/// Runs `body` with the thread's part of the open engine.
pub(crate) fn with<T>(body: impl FnOnce(&mut Local) -> Result<T, Failure>) -> Result<T, Failure> {
    let ended = || Failure::usage("this thread is ending and can no longer use the engine");
    LOCAL
        .try_with(|cell| {
            let mut cell = cell.try_borrow_mut().map_err(|_| {
                Failure::usage("the engine was called from inside one of its own calls")
            })?;
            let generation = context::generation();
            if cell.as_ref().is_none_or(|local| local.generation != generation) {
                *cell = Some(Local::new(context::current()?, generation));
            }
            body(cell.as_mut().expect("set above"))
        })
        .map_err(|_| ended())?
}

impl Local {
    fn new(context: Arc<Context>, generation: u64) -> Local {
        let stack = context.engine.op_stack();
        Local {
            generation,
            context,
            stack,
            depth: 0,
            name: "",
            stream: None,
            op: 0,
            last_stream: None,
        }
    }

    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    /// The engine's name of a driver's stream.
    pub(crate) fn stream(&mut self, handle: u64) -> Result<StreamId, Failure> {
        if let Some((last, id)) = self.last_stream
            && last == handle
        {
            return Ok(id);
        }
        let id = self.context.stream(handle)?;
        self.last_stream = Some((handle, id));
        Ok(id)
    }

    pub(crate) fn begin(&mut self, name: &str, stream: u64, aside: bool) -> Result<(), Failure> {
        if self.depth > 0 {
            self.depth += 1;
            return Ok(());
        }
        let stream = self.stream(stream)?;
        let name = NAMES.with_borrow_mut(|names| names.find(name));
        // A sleeping engine counts no ops.
        if aside || self.context.is_asleep() {
            self.stack.begin_aside(name, stream)?;
        } else {
            self.stack.begin_on(name, stream)?;
            self.context.step_has_begun.store(true, Ordering::Relaxed);
        }
        self.depth = 1;
        self.name = name.text();
        self.stream = Some(stream);
        self.op = self.context.next_op();
        Ok(())
    }

    /// Makes memory usable until the op ends. Of what does not move only writers matter, and only
    /// where recipes read it.
    pub(crate) fn touch(
        &mut self,
        uses: impl Iterator<Item = (u64, Use)> + Clone,
    ) -> Result<(), Failure> {
        if self.depth == 0 {
            return Err(Failure::usage("no op is open on this thread: call begin first"));
        }
        let mut unknown: SmallVec<[(BlockId, AccessMode); 8]> = SmallVec::new();
        let mut tables = self.context.blocks.lock();
        for (address, how) in uses.clone() {
            let Some(live) = tables.around(address) else { continue };
            let Some(mode) = how.mode(live, self.op) else { continue };
            if live.kind != Kind::Swappable {
                unknown.push((live.id, AccessMode::ReadWrite));
            } else if live.note_use(self.op, mode) {
                unknown.push((live.id, mode));
            }
        }
        drop(tables);
        if unknown.is_empty() {
            return Ok(());
        }
        let touched = self.stack.touch_all(&unknown);
        if touched.is_err() {
            // Some were not: it is as if none had been told of.
            let mut tables = self.context.blocks.lock();
            for (address, _) in uses {
                if let Some(live) = tables.around(address) {
                    live.forget_uses();
                }
            }
        }
        Ok(touched?)
    }

    /// Somebody takes the address of a block and may use it where no op says so. The open op keeps
    /// it while it runs; without one it is kept for `by` until the step ends, and nothing is made
    /// again from it, even if it is small.
    pub(crate) fn lend(&mut self, address: u64, stream: u64, by: &str) -> Result<(), Failure> {
        let Some(live) = self.context.blocks.find(address) else { return Ok(()) };
        if self.depth > 0 {
            let is_used = live.kind != Kind::Swappable
                || self.stack.touched().any(|(block, _)| block == live.id)
                || live.is_fresh(self.op);
            let how = Use::Known(AccessMode::ReadWrite);
            return if is_used { Ok(()) } else { self.touch(iter::once((address, how))) };
        }
        let stream = self.stream(stream)?;
        let by = NAMES.with_borrow_mut(|names| names.find(by));
        self.context.lend(live, stream, by)
    }

    /// What use the engine has for a replay of the open op.
    pub(crate) fn replay_use(&self) -> Result<RecipeUse, Failure> {
        Ok(if self.depth == 1 { self.stack.recipe_use()? } else { RecipeUse::None })
    }

    /// Lets the engine run the open op again, whose outputs and small inputs are at these
    /// addresses. Ops inside an op have no replays of their own.
    pub(crate) fn offer_replay(
        &mut self,
        replay: impl Replay,
        outputs: &[u64],
        inputs: &[u64],
    ) -> Result<(), Failure> {
        let (Some(stream), 1) = (self.stream, self.depth) else {
            return Err(Failure::usage("offer a replay inside an outermost op, before it ends"));
        };
        let blocks = &self.context.blocks;
        let outputs: SmallVec<[(BlockId, u64); 2]> = outputs
            .iter()
            .filter_map(|&address| blocks.find_swappable(address))
            .map(|live| (live.id, live.start))
            .collect();
        let known: SmallVec<[BlockId; 2]> = outputs.iter().map(|output| output.0).collect();
        if !self.stack.writes_only(&known)? {
            return Err(Failure::usage("the op writes memory that is not among the outputs"));
        }
        for &address in inputs {
            let none = || Failure::usage("an input is not a small block of this engine");
            let live = blocks.note_input(address).ok_or_else(none)?;
            self.stack.touch(live.id, AccessMode::Read)?;
        }
        let reads = |&(_, mode): &(BlockId, AccessMode)| mode == AccessMode::Read;
        let reads: SmallVec<[_; 8]> = self.stack.touched().filter(reads).collect();
        let name = self.name;
        let op = NAMES.with_borrow_mut(|names| names.find(name));
        let at_any_size = replay.is_at_any_size();
        let recipe = Recipe::new(move |ops, block| {
            ops.begin_on(op, stream)?;
            ops.touch_all(&reads)?;
            ops.touch(block, AccessMode::Write)?;
            let start = outputs.iter().find(|output| output.0 == block).map(|output| output.1);
            let run = |start| replay.run(start);
            REPLAYING.set(true);
            let ran = start.map_or_else(|| Err("it has no such output".to_owned()), run);
            REPLAYING.set(false);
            ran.map_err(|text| Error::Replay { op: name.to_owned(), text })?;
            ops.end()
        });
        Ok(self.stack.recipe(recipe.at_any_size(at_any_size))?)
    }

    pub(crate) fn end(&mut self) -> Result<(), Failure> {
        match self.depth {
            0 => Err(Failure::usage("no op is open on this thread: end without begin")),
            1 => {
                self.depth = 0;
                self.stream = None;
                Ok(self.stack.end()?)
            }
            _ => {
                self.depth -= 1;
                Ok(())
            }
        }
    }

    /// Inside the open op if its work runs on the same stream.
    fn allocate(&mut self, size_bytes: u64, stream: u64) -> Result<u64, Failure> {
        let stream = self.stream(stream)?;
        let inside = self.stream == Some(stream);
        let context = &self.context;
        let allocated = if inside {
            self.stack.allocate_unshown(size_bytes)
        } else if context.misses_ops() {
            // Nobody will show it: the op that wants it was not told of.
            context.engine.allocate_aside(size_bytes, stream)
        } else {
            context.engine.allocate_unshown(size_bytes, stream, false)
        };
        let allocation = match allocated {
            // What is here may be in use by ops that nobody told of, so nothing can make room.
            Err(error @ Error::OutOfMemory(_)) if context.misses_ops() => {
                return context.allocate_swapped(size_bytes, stream).map_err(|_| error.into());
            }
            allocated => allocated?,
        };
        let (start, live) = (allocation.address.0, Live::new(allocation, size_bytes));
        context.blocks.insert(if inside { live.made_in(self.op) } else { live });
        Ok(start)
    }
}
