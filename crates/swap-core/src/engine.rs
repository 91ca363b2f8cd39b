//! The engine: what everything above holds on to.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use vmem::{
    ArenaConfig, BlockId, DeviceMemory, DevicePtr, Driver, MemoryStats, Peak, PoolConfig,
    StreamHandle, StreamId, SwappedBlock, Uses,
};

use crate::core::{Asker, Core};
use crate::entry::{Allocation, Residency};
use crate::error::Error;
use crate::hand_over::Monitor;
use crate::orders::Orders;
use crate::report::StepReport;

/// Settings of an [`Engine`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// The device pool: cap, swap threshold, segment size.
    pub pool: PoolConfig,
    /// The pinned host arena: cap, region size.
    pub arena: ArenaConfig,
    /// Where ops run by default.
    pub compute: Compute,
    /// Whether the first step is recorded.
    pub record: bool,
}

/// Where ops run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compute {
    /// On a stream that the engine creates.
    Own,
    /// On a stream of the caller, which must outlive the engine.
    Stream(StreamHandle),
    /// On the calling thread, as soon as a touch or an allocation returns: what the device must
    /// finish before is waited for there.
    HostThread,
}

/// Counters of the pinned host arena.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct HostStats {
    /// Bytes pinned.
    pub pinned_bytes: Peak,
    /// Bytes of them in slots of blocks.
    pub used_bytes: Peak,
}

/// Owns a device's memory and moves it. Clones share one engine.
///
/// When the last clone and the last [`OpStack`](crate::OpStack) are gone, it waits for the device
/// and gives everything back.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    core: Mutex<Core>,
    replayed: Condvar,
    pub(crate) compute: StreamId,
    stacks: AtomicU64,
}

impl Shared {
    /// A number that no other op stack has.
    pub(crate) fn next_stack(&self) -> u64 {
        self.stacks.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, Core>, Error> {
        opened(self.core.lock().map_err(|_| Error::Poisoned)?)
    }
}

impl Monitor for Shared {
    type State = Core;
    type Guard<'a> = MutexGuard<'a, Core>;
    type Error = Error;

    fn lock(&self) -> Result<MutexGuard<'_, Core>, Error> {
        Shared::lock(self)
    }

    fn wait<'a>(&'a self, core: MutexGuard<'a, Core>) -> Result<MutexGuard<'a, Core>, Error> {
        opened(self.replayed.wait(core).map_err(|_| Error::Poisoned)?)
    }

    fn wake(&self) {
        self.replayed.notify_all();
    }
}

/// The engine's state, unless its memory is gone.
fn opened(core: MutexGuard<'_, Core>) -> Result<MutexGuard<'_, Core>, Error> {
    if core.is_closed {
        return Err(Error::Usage("the engine was closed"));
    }
    Ok(core)
}

impl Engine {
    /// Opens an engine on a device. Nothing of the device's memory is taken yet.
    ///
    /// # Errors
    /// If the settings contradict each other, or the driver fails.
    pub fn new(driver: Arc<dyn Driver>, config: Config) -> Result<Engine, Error> {
        let memory = DeviceMemory::new(driver, config.pool, config.arena)?;
        let core = Core::new(memory, &config)?;
        let compute = core.streams.compute;
        let shared = Shared {
            core: Mutex::new(core),
            replayed: Condvar::new(),
            compute,
            stacks: AtomicU64::new(0),
        };
        Ok(Engine { shared: Arc::new(shared) })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The stream on which ops run by default.
    pub fn compute_stream(&self) -> StreamId {
        self.shared.compute
    }

    /// Makes a stream of the caller known, to begin ops on it. It must outlive the engine.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn adopt_stream(&self, handle: StreamHandle) -> Result<StreamId, Error> {
        Ok(self.shared.lock()?.memory.streams.adopt(handle))
    }

    /// The driver's handles of the compute, copy-out and copy-in streams.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn stream_handles(&self) -> Result<[StreamHandle; 3], Error> {
        let core = self.shared.lock()?;
        let handle = |stream| core.memory.streams.handle(stream);
        Ok([
            handle(core.streams.compute),
            handle(core.streams.copy_out),
            handle(core.streams.copy_in),
        ])
    }

    /// Allocates outside any op, for use on the compute stream. `name` is for reports and may be
    /// empty.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if it does not fit beside the blocks that open ops hold.
    pub fn allocate(&self, size_bytes: u64, name: &str) -> Result<BlockId, Error> {
        self.allocate_on(size_bytes, name, self.shared.compute)
    }

    /// Allocates outside any op, for use on `stream`.
    ///
    /// # Errors
    /// As for [`allocate`](Engine::allocate).
    pub fn allocate_on(
        &self,
        size_bytes: u64,
        name: &str,
        stream: StreamId,
    ) -> Result<BlockId, Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        core.allocate(size_bytes, Cow::Owned(name.to_owned()), stream, Asker::Nobody)
    }

    /// Allocates for use on `stream` by somebody who may never show it to an op, such as a
    /// library that wants a workspace: it stays until an op touches it. With `aside` it is no
    /// part of the running step.
    ///
    /// # Errors
    /// As for [`allocate`](Engine::allocate).
    pub fn allocate_unshown(
        &self,
        size_bytes: u64,
        stream: StreamId,
        aside: bool,
    ) -> Result<Allocation, Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        let block = if aside {
            core.allocate_aside(size_bytes, stream)?
        } else {
            core.allocate(size_bytes, Cow::Borrowed(""), stream, Asker::Nobody)?
        };
        core.show_later(block)
    }

    /// Allocates for use on `stream` what is not part of the running step, and may leave as soon as
    /// no op holds it. Returns its address too.
    ///
    /// # Errors
    /// As for [`allocate`](Engine::allocate).
    pub fn allocate_aside(&self, size_bytes: u64, stream: StreamId) -> Result<Allocation, Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        let block = core.allocate_aside(size_bytes, stream)?;
        Ok(core.allocation(block))
    }

    /// Takes host memory that the device addresses directly, for use on `stream`. It is none of
    /// the cap's and never moves.
    ///
    /// # Errors
    /// [`Error::Memory`] if the host has no room for it, or the device cannot address it.
    pub fn allocate_swapped(
        &self,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<SwappedBlock, Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        Ok(core.memory.allocate_swapped(size_bytes, stream)?)
    }

    /// Gives it back. It is reused only after what `stream` was given until now.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn free_swapped(&self, block: SwappedBlock, stream: StreamId) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        let uses = Uses::of(core.memory.streams.advance(stream));
        core.memory.free_swapped(block, uses);
        Ok(())
    }

    /// As [`free_swapped`](Engine::free_swapped), for memory that any stream may have been given.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn free_swapped_everywhere(&self, block: SwappedBlock) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        let uses = core.all_until_now();
        core.memory.free_swapped(block, uses);
        Ok(())
    }

    /// Whether every op is told of from here on. Where not, ops may use and write any block, so
    /// nothing leaves: bring back what is away before, and let an allocation that finds no memory
    /// fail. Once they are told of again, and the others have been submitted to their streams, all
    /// blocks count as used and written by them.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn set_watched(&self, watched: bool) -> Result<(), Error> {
        self.shared.lock()?.set_watched(watched)
    }

    /// Makes known that work on `stream` uses the block besides its ops: when it leaves or is
    /// freed, what `stream` was given by then must be complete before its memory is used again.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn use_on(&self, block: BlockId, stream: StreamId) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        core.check_stream(stream)?;
        let streams = &mut core.entry_mut(block)?.streams;
        if !streams.contains(&stream) {
            streams.push(stream);
        }
        Ok(())
    }

    /// Frees a block. Legal in every state; work already submitted still sees it.
    ///
    /// # Errors
    /// [`Error::Freed`] if it was freed before.
    pub fn free(&self, block: BlockId) -> Result<(), Error> {
        self.shared.lock()?.free(block)
    }

    /// Drops a block's bytes now, if a recipe can bring them back. Says whether it did.
    ///
    /// # Errors
    /// [`Error::Freed`], or if the driver fails.
    pub fn discard(&self, block: BlockId) -> Result<bool, Error> {
        let mut core = self.shared.lock()?;
        core.entry(block)?;
        let can = core.can_leave(block) && core.can_replay(block);
        if can {
            core.discard(block)?;
        }
        Ok(can)
    }

    /// The block's address, the same from allocate to free. There is memory behind it only while
    /// an op touches it.
    ///
    /// # Errors
    /// [`Error::Freed`].
    pub fn address(&self, block: BlockId) -> Result<DevicePtr, Error> {
        let core = self.shared.lock()?;
        core.entry(block)?;
        Ok(core.memory.pool.address(block))
    }

    /// Where the block's bytes are.
    ///
    /// # Errors
    /// [`Error::Freed`], or if the driver fails.
    pub fn residency(&self, block: BlockId) -> Result<Residency, Error> {
        self.shared.lock()?.residency(block)
    }

    /// Sets what later steps run under: whether they are recorded, and the plan. Call it between
    /// steps.
    ///
    /// # Errors
    /// [`Error::Usage`] in the middle of a step.
    pub fn set_orders(&self, record: bool, orders: Option<Arc<Orders>>) -> Result<(), Error> {
        self.shared.lock()?.set_orders(record, orders)
    }

    /// Whether the running step has begun: ops, allocations or frees are in it already.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn is_inside_step(&self) -> Result<bool, Error> {
        Ok(self.shared.lock()?.step.event_count > 0)
    }

    /// Ends the step and returns the reports that have become complete, oldest first.
    ///
    /// A recorded step waits for the device and reports at once. Any other reports when its work
    /// is complete, with a later call.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn end_step(&self) -> Result<Vec<StepReport>, Error> {
        let mut core = self.shared.lock()?;
        core.end_step()?;
        let wait = core.owes_trace();
        core.finished(wait)
    }

    /// Ends a step of whose ops nobody told: all that is known is what memory it took.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn end_unwatched_step(&self) -> Result<(), Error> {
        self.shared.lock().map(|mut core| core.end_step_of_memory())
    }

    /// Waits for the device and returns the reports that are still owed, oldest first.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn drain_reports(&self) -> Result<Vec<StepReport>, Error> {
        self.shared.lock()?.finished(true)
    }

    /// Waits until all work of the engine's streams is complete.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn synchronize(&self) -> Result<(), Error> {
        Ok(self.shared.lock()?.memory.streams.synchronize()?)
    }

    /// Gives caches back to the driver, waiting for the device where it must.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn trim(&self) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        let DeviceMemory { pool, arena, streams, .. } = &mut core.memory;
        pool.trim(streams)?;
        arena.trim(streams)?;
        core.note_segments();
        Ok(())
    }

    /// Holds little more than the last steps needed from here on, while the cap is far. For a cap
    /// that nobody asked for: the rest of the device is for others, too.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn hold_by_need(&self) -> Result<(), Error> {
        self.shared.lock().map(|mut core| core.memory.pool.hold_by_need())
    }

    /// Whether reports name each copy of their step.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn log_moves(&self, on: bool) -> Result<(), Error> {
        self.shared.lock()?.recording.logs_moves = on;
        Ok(())
    }

    /// To the end of the running step the addresses of what is away show nothing, wherever blocks
    /// lie, so that a use that nobody told of fails. It takes the memory calls of a step that is
    /// not laid out; so does the next step.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn hide_away(&self) -> Result<(), Error> {
        self.shared.lock()?.memory.pool.hide_away(true);
        Ok(())
    }

    /// Measures the running step, which has not begun and is not recorded: its report then has
    /// [`lanes`](StepReport::lanes). Two events for each outermost op and each copy. Says whether
    /// it does.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn measure_lanes(&self) -> Result<bool, Error> {
        Ok(self.shared.lock()?.measure_lanes())
    }

    /// Memory counters.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn memory_stats(&self) -> Result<MemoryStats, Error> {
        Ok(self.shared.lock()?.memory.pool.stats())
    }

    /// Bytes of small blocks that were freed, and stay because recipes read them.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn kept_bytes(&self) -> Result<u64, Error> {
        Ok(self.shared.lock()?.entries.kept_bytes())
    }

    /// Starts the peaks of [`memory_stats`](Engine::memory_stats) anew. Reports keep theirs.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn reset_peaks(&self) -> Result<(), Error> {
        let mut core = self.shared.lock()?;
        let held_bytes = core.memory.pool.stats().reserved_bytes.peak;
        core.step.held_bytes_peak = core.step.held_bytes_peak.max(held_bytes);
        core.memory.pool.reset_peaks();
        Ok(())
    }

    /// Waits for the device and gives everything back, although clones and op stacks live on:
    /// all they can do is fail. Blocks that are live are lost.
    ///
    /// # Errors
    /// As [`DeviceMemory::close`].
    pub fn close(&self) -> Result<(), Error> {
        let mut core = self.shared.core.lock().map_err(|_| Error::Poisoned)?;
        core.is_closed = true;
        Ok(core.memory.close()?)
    }

    /// Counters of pinned host memory.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn host_stats(&self) -> Result<HostStats, Error> {
        let core = self.shared.lock()?;
        let arena = &core.memory.arena;
        Ok(HostStats { pinned_bytes: arena.pinned_bytes(), used_bytes: arena.used_bytes() })
    }

    /// Leaves out all waits at one place. A test shows that a checker then notices.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[cfg(feature = "planted")]
    pub fn plant(&self, site: Option<vmem::Site>) -> Result<(), Error> {
        self.shared.lock()?.memory.streams.plant(site);
        Ok(())
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("compute", &self.shared.compute).finish_non_exhaustive()
    }
}
