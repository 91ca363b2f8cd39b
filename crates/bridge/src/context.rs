//! The engine of the process: one at a time, with its loop, its blocks and its streams.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adaptive::{
    AccessMode, BlockId, Bytes, Engine, Error, FinishedStep, JointPlanner, Machine, OpName, Plan,
    Planner, Session, StreamId, Trace, save_trace,
};

use crate::blocks::{Blocks, Live};
use crate::device::Device;
use crate::failure::{Failure, warn};
use crate::graphs::Graphs;
use crate::settings::{Settings, Wishes};
use crate::shown::ShownStep;
use crate::sleep::Sleep;
use crate::totals::Totals;

/// The engine of the process.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) engine: Engine,
    pub(crate) blocks: Blocks,
    pub(crate) settings: Settings,
    /// The driver's handle of the stream that the engine was opened with.
    pub(crate) compute_stream: u64,
    /// Whether an op of the running step has begun.
    pub(crate) step_has_begun: AtomicBool,
    /// Outermost ops so far, of all threads.
    ops: AtomicU64,
    course: Mutex<Course>,
    /// By the driver's handle.
    streams: Mutex<BTreeMap<u64, StreamId>>,
    pub(crate) sleep: Sleep,
    pub(crate) graphs: Graphs,
}

/// What changes from step to step.
#[derive(Debug)]
pub(crate) struct Course {
    pub(crate) session: Session<JointPlanner>,
    pub(crate) totals: Totals,
    /// The last step that was recorded.
    pub(crate) trace: Option<Arc<Trace>>,
    /// The step that reports show.
    pub(crate) shown: Option<ShownStep>,
    /// A recorded step could not be saved, which was said.
    record_failed: bool,
}

static CURRENT: Mutex<Option<Arc<Context>>> = Mutex::new(None);
/// The process that opened the engine; 0 while none is open. In a forked child the tables above
/// may be locked for ever, and the engine's threads are not there.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Changes whenever [`CURRENT`] does.
static GENERATION: AtomicU64 = AtomicU64::new(0);

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// Fails in forked children of the engine's process.
fn check_process() -> Result<(), Failure> {
    match OWNER.load(Ordering::Acquire) {
        0 => Ok(()),
        owner if owner == std::process::id() => Ok(()),
        owner => Err(Failure::usage(format!(
            "the engine belongs to process {owner}, of which this one is a fork: use it there, or \
             start a process of its own"
        ))),
    }
}

pub(crate) fn current() -> Result<Arc<Context>, Failure> {
    check_process()?;
    let none = || Failure::usage("the engine is not open: call smartswap_open first");
    lock(&CURRENT).clone().ok_or_else(none)
}

pub(crate) fn is_open() -> bool {
    OWNER.load(Ordering::Acquire) == std::process::id()
}

/// Opens the engine of the process.
pub(crate) fn open(wishes: &Wishes) -> Result<(), Failure> {
    check_process()?;
    let mut current = lock(&CURRENT);
    if current.is_some() {
        let text = "an engine is open already: a process has one, close it first";
        return Err(Failure::usage(text));
    }
    let settings = Settings::new(wishes)?;
    let engine = Engine::new(settings.driver(), settings.engine)?;
    if settings.holds_by_need {
        engine.hold_by_need()?;
    }
    let planner = JointPlanner::new(settings.machine, settings.planning);
    let planner = match settings.device {
        // It computes on the cores that planning would take, and its steps should be repeatable.
        Device::Host(_) => planner,
        Device::Cuda(_) | Device::Acl(_) => planner.beside_training(),
    };
    let session = Session::new(engine.clone(), settings.policy, planner)?;
    let course = Course {
        session,
        totals: Totals::default(),
        trace: None,
        shown: None,
        record_failed: false,
    };
    *current = Some(Arc::new(Context {
        engine,
        blocks: Blocks::default(),
        settings,
        compute_stream: wishes.compute_stream,
        step_has_begun: AtomicBool::new(false),
        ops: AtomicU64::new(0),
        course: Mutex::new(course),
        streams: Mutex::default(),
        sleep: Sleep::default(),
        graphs: Graphs::default(),
    }));
    GENERATION.fetch_add(1, Ordering::Release);
    OWNER.store(std::process::id(), Ordering::Release);
    Ok(())
}

/// Closes the engine, unless blocks are live.
pub(crate) fn close() -> Result<(), Failure> {
    check_process()?;
    let mut current = lock(&CURRENT);
    let Some(context) = current.as_ref() else { return Ok(()) };
    let (count, size_bytes) = context.blocks.count();
    if count > 0 {
        return Err(Failure::usage(format!(
            "{count} allocations of {} in all are still in use: free them first",
            Bytes(size_bytes)
        )));
    }
    context.engine.close()?;
    OWNER.store(0, Ordering::Release);
    *current = None;
    GENERATION.fetch_add(1, Ordering::Release);
    Ok(())
}

/// The block that moves and has `address` in it, if nobody is changing the tables.
pub(crate) fn try_find(address: u64) -> Option<Live> {
    if !is_open() {
        return None;
    }
    let context = Arc::clone(CURRENT.try_lock().ok()?.as_ref()?);
    context.blocks.try_find_swappable(address)
}

fn unknown(address: u64) -> Failure {
    Failure::usage(format!("{address:#x} lies in no live allocation of the engine"))
}

impl Context {
    pub(crate) fn course(&self) -> MutexGuard<'_, Course> {
        lock(&self.course)
    }

    /// A number for an outermost op that no other has; never 0.
    pub(crate) fn next_op(&self) -> u64 {
        self.ops.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The engine's name of a driver's stream.
    pub(crate) fn stream(&self, handle: u64) -> Result<StreamId, Failure> {
        let mut streams = lock(&self.streams);
        if let Some(&id) = streams.get(&handle) {
            return Ok(id);
        }
        let id = match self.settings.device.adopt(handle)? {
            Some(adopted) => self.engine.adopt_stream(adopted)?,
            None => self.engine.compute_stream(),
        };
        streams.insert(handle, id);
        Ok(id)
    }

    /// Allocates what has no place in the running step.
    pub(crate) fn allocate_beside(&self, size_bytes: u64, stream: u64) -> Result<u64, Failure> {
        let stream = self.stream(stream)?;
        let allocation = self.engine.allocate_unshown(size_bytes, stream, true)?;
        // No op notes what uses it.
        self.engine.use_on(allocation.block, stream)?;
        self.blocks.insert(Live::new(allocation, size_bytes));
        Ok(allocation.address.0)
    }

    /// Allocates host memory that the device addresses.
    pub(crate) fn allocate_swapped(
        &self,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<u64, Failure> {
        if !self.settings.device.has_swapped_memory() {
            return Err(Failure::usage("the device has no host memory that copies can use"));
        }
        let block = self.engine.allocate_swapped(size_bytes, stream)?;
        let start = block.address().0;
        self.blocks.insert_swapped(block);
        Ok(start)
    }

    pub(crate) fn free(&self, start: u64) -> Result<(), Failure> {
        if let Some(live) = self.blocks.remove(start) {
            return Ok(self.engine.free(live.id)?);
        }
        let none = || Failure::usage(format!("{start:#x} is not a live allocation of the engine"));
        let swapped = self.blocks.remove_swapped(start).ok_or_else(none)?;
        Ok(self.engine.free_swapped_everywhere(swapped)?)
    }

    /// Notes that work on `stream` uses an allocation besides its ops.
    pub(crate) fn use_on(&self, address: u64, stream: u64) -> Result<(), Failure> {
        let stream = self.stream(stream)?;
        match self.blocks.find(address) {
            Some(live) => Ok(self.engine.use_on(live.id, stream)?),
            // It stays where it is, and is freed after what all streams were given.
            None if self.blocks.find_swapped(address).is_some() => Ok(()),
            None => Err(unknown(address)),
        }
    }

    /// The start and the size in bytes of the allocation around `address`.
    pub(crate) fn extent(&self, address: u64) -> Result<(u64, u64), Failure> {
        let live = self.blocks.find(address).map(|live| (live.start, live.size_bytes));
        live.or_else(|| self.blocks.find_swapped(address)).ok_or_else(|| unknown(address))
    }

    /// Brings a block back if it is away, and keeps it there for `by`. Nothing is made again from
    /// a small one either.
    pub(crate) fn hold(&self, address: u64, stream: u64, by: OpName) -> Result<(), Failure> {
        let Some(live) = self.blocks.find(address) else { return Ok(()) };
        self.keep(&[live], self.stream(stream)?, |block| self.engine.hold(block, by.text()))
    }

    /// Brings a block back if it is away, and keeps it there for `by` until the step ends.
    pub(crate) fn lend(&self, block: Live, stream: StreamId, by: OpName) -> Result<(), Failure> {
        self.keep(&[block], stream, |block| self.engine.lend(block, by.text()))
    }

    /// Brings all blocks back and keeps them there.
    pub(crate) fn bring_home(&self) -> Result<(), Failure> {
        let stream = self.engine.compute_stream();
        self.keep(&self.blocks.swappable(), stream, |block| self.engine.hold(block, "smartswap"))
    }

    /// Whoever a block is kept for may write it.
    fn keep(
        &self,
        blocks: &[Live],
        stream: StreamId,
        keep: impl Fn(BlockId) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        const KEEP: OpName = OpName::new("smartswap::keep");
        let mut ops = self.engine.op_stack();
        ops.begin_aside(KEEP, stream)?;
        for live in blocks {
            ops.touch(live.id, AccessMode::ReadWrite)?;
        }
        // All fit at once, so all can stay.
        for live in blocks {
            keep(live.id)?;
        }
        Ok(ops.end()?)
    }

    /// Ends the step.
    pub(crate) fn step(&self) -> Result<(), Failure> {
        let mut course = self.course();
        course.totals.keep_peaks(&self.engine.memory_stats()?);
        let stage = self.stage(&course);
        course.totals.steps_by_stage[stage as usize] += 1;
        self.step_has_begun.store(false, Ordering::Relaxed);
        let finished = if self.is_asleep() {
            course.session.end_step_asleep()?
        } else {
            course.session.end_step()?
        };
        self.note(&mut course, &finished);
        Ok(())
    }

    /// Judges steps together with other ranks from now on; this one may lead them.
    pub(crate) fn share(&self, leads: bool) -> Result<(), Failure> {
        let mut course = self.course();
        let finished = course.session.share(leads)?;
        self.note(&mut course, &finished);
        Ok(())
    }

    /// Judges steps alone again.
    pub(crate) fn part(&self) -> Result<(), Failure> {
        Ok(self.course().session.part()?)
    }

    /// Keeps what is known of steps. What goes wrong in that is told and ends no training.
    fn note(&self, course: &mut Course, finished: &[FinishedStep]) {
        for step in finished {
            course.totals.add(step);
            let trace = course.session.trace(step.report.signature).cloned();
            course.shown = ShownStep::after(course.shown.take(), step, trace.as_ref());
            if step.report.trace.is_some() {
                course.trace = trace;
                if let (Some(path), Some(trace)) = (&self.settings.record_file, &course.trace)
                    && let Err(error) = save_trace(path, trace)
                    && !std::mem::replace(&mut course.record_failed, true)
                {
                    warn(&format!("a recorded step is not saved, and training goes on: {error}"));
                }
            }
        }
        for text in course.session.take_failures() {
            warn(&format!("{text}; to report it, save the step with save_trace"));
        }
    }

    /// Waits for the device and takes in what steps still owe.
    pub(crate) fn drain(&self) -> Result<(), Failure> {
        let mut course = self.course();
        let finished = course.session.drain()?;
        self.note(&mut course, &finished);
        Ok(())
    }
}

impl Course {
    /// The plan that steps run under.
    pub(crate) fn plan(&self) -> Option<&Arc<Plan>> {
        self.session.plan()
    }

    /// A machine with the link as plans are made for it by now.
    pub(crate) fn with_link(&self, machine: Machine) -> Machine {
        let link = self.session.policy().planner().link().unwrap_or(machine.link);
        Machine { link, ..machine }
    }
}
