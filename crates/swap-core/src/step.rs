//! The running step, and its end: reports, renumbering, the next step's orders.

use std::sync::Arc;

use smallvec::SmallVec;
use vmem::{BlockId, DeviceMemory, EventHandle, MemoryCalls, Pool, Stall, Uses};

use crate::core::Core;
use crate::entry::{Entry, Hold};
use crate::error::Error;
use crate::follow::{Follower, Fresh, OpKey};
use crate::lanes::LaneRecorder;
use crate::orders::Orders;
use crate::plan::Phase;
use crate::recorder::Recorder;
use crate::report::{Direction, Move, StepCounters, StepReport};
use crate::trace::{BlockIndex, OpIndex, Origin, Signature, TraceEvent};

/// State that starts anew with each step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    pub(crate) number: u64,
    pub(crate) op_count: u32,
    pub(crate) event_count: u64,
    pub(crate) signature: Signature,
    /// The same of its ops alone.
    pub(crate) family: Signature,
    /// The blocks whose sizes its orders told to look at, with these.
    pub(crate) probes: Vec<(BlockIndex, u64)>,
    pub(crate) counters: StepCounters,
    /// Blocks that have a place in the step.
    block_count: u32,
    /// Blocks, small ones too, that have a place since the last op began.
    nth: u32,
    /// Where it stands on the step that the plan is for.
    pub(crate) follower: Follower,
    /// The op boundary that runs, and how many of its actions are over.
    pub(crate) boundary: Option<(OpIndex, Phase)>,
    pub(crate) actions_done: usize,
    pub(crate) segment_bytes: u64,
    pub(crate) resident_bytes_peak: u64,
    /// The most bytes held before the pool's peaks were last reset.
    pub(crate) held_bytes_peak: u64,
    /// Recorded before the step's first op.
    pub(crate) start: Option<EventHandle>,
    /// Waits for copies.
    pub(crate) stalls: Vec<Stall>,
    pub(crate) host_waits_before: u64,
    pub(crate) calls_before: MemoryCalls,
    pub(crate) moves: Vec<Move>,
    /// Ops of the step that are open, innermost last, and the op stack that they are on.
    open: SmallVec<[OpIndex; 4]>,
    open_on: u64,
}

impl Step {
    /// The place of one more block of the step.
    pub(crate) fn next_place(&mut self) -> BlockIndex {
        self.block_count += 1;
        BlockIndex(self.block_count - 1)
    }

    /// A block that is about to be allocated in the step.
    pub(crate) fn fresh(&self, pool: &Pool, requested_bytes: u64) -> Option<Fresh> {
        let size_bytes = pool.swappable_bytes(requested_bytes).ok()?;
        let is_small = !pool.is_swappable_size(requested_bytes);
        Some(Fresh { requested_bytes, size_bytes, is_small, nth: self.nth })
    }

    /// It was.
    pub(crate) fn allocated(&mut self) {
        self.nth += 1;
    }

    /// An op of the step begins. Says which one of the plan's it is.
    pub(crate) fn op_begins(&mut self, key: OpKey) -> Option<OpIndex> {
        self.nth = 0;
        // The op of a boundary may come again.
        self.boundary = None;
        self.follower.begun(key, self.event_count)
    }

    /// Whether ops are open, so that what comes from elsewhere has no place in the step now.
    pub(crate) fn is_inside_op(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether an op on this stack can be one of the step. Ops of two threads at once do not nest.
    pub(crate) fn admits(&self, stack: u64) -> bool {
        self.open.is_empty() || self.open_on == stack
    }

    pub(crate) fn op_opened(&mut self, op: OpIndex, stack: u64) {
        self.open.push(op);
        self.open_on = stack;
    }

    pub(crate) fn take_timers(&mut self) -> Vec<EventHandle> {
        let stalls = self.stalls.drain(..).flat_map(|stall| [stall.start, stall.end]);
        stalls.chain(self.start.take()).collect()
    }
}

/// A finished step whose device work may still be running.
#[derive(Debug)]
pub(crate) struct PendingReport {
    report: StepReport,
    start: Option<EventHandle>,
    end: Option<EventHandle>,
    stalls: Vec<Stall>,
    recorder: Option<Recorder>,
    lanes: Option<LaneRecorder>,
    /// The ends of the step's work: timers are on all streams that compute.
    behind: Uses,
}

impl PendingReport {
    /// Fills in what the timers say.
    fn measure<E>(
        &self,
        report: &mut StepReport,
        elapsed_us: impl Fn(EventHandle, EventHandle) -> Result<f64, E>,
    ) -> Result<(), E> {
        if let (Some(start), Some(end)) = (self.start, self.end) {
            report.device_us = elapsed_us(start, end)?;
        }
        for stall in &self.stalls {
            report.counters.stall_us += elapsed_us(stall.start, stall.end)?;
        }
        if let Some(recorder) = &self.recorder {
            let costs = report.counters.host_costs();
            let (kind, step_us) = (report.signature, report.device_us);
            report.trace = Some(recorder.trace(kind, step_us, costs, &elapsed_us)?);
        }
        if let (Some(lanes), Some(start)) = (&self.lanes, self.start) {
            let at_us = |event| elapsed_us(start, event);
            report.lanes = Some(lanes.lanes(report.device_us, at_us)?);
        }
        Ok(())
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    pub(crate) fn into_timers(self) -> Vec<EventHandle> {
        let stalls = self.stalls.into_iter().flat_map(|stall| [stall.start, stall.end]);
        let recorded = self.recorder.into_iter().flat_map(Recorder::into_timers);
        let measured = self.lanes.into_iter().flat_map(LaneRecorder::into_timers);
        stalls.chain(self.start).chain(self.end).chain(recorded).chain(measured).collect()
    }
}

impl Core {
    /// The innermost open op of the step ends.
    pub(crate) fn op_closed(&mut self) {
        if let Some(op) = self.step.open.pop() {
            self.event(TraceEvent::End(op));
        }
    }

    /// Ends the step. Its report comes from [`finished`](Core::finished).
    pub(crate) fn end_step(&mut self) -> Result<(), Error> {
        let host_end_us = self.memory.streams.driver().now_us();
        // Another thread may be inside an op.
        while self.step.is_inside_op() {
            self.op_closed();
        }
        self.take_all_back()?;
        self.free_dropped()?;
        let end = match self.step.start {
            Some(_) => Some(self.memory.streams.timer(self.streams.compute)?),
            None => None,
        };
        let start = self.step.start.take();
        let mut behind = self.all_until_now();
        if self.recording.lanes().is_some() {
            // Copies may end behind the step.
            for stream in [self.streams.copy_out, self.streams.copy_in] {
                behind.add(self.memory.streams.here(stream));
            }
        }
        self.collect_stalls(None, false);
        let stats = self.memory.pool.stats();
        let step = std::mem::take(&mut self.step);
        let mut counters = step.counters;
        counters.host_waits = self.memory.streams.host_waits() - step.host_waits_before;
        counters.memory_calls = stats.calls.since(step.calls_before);
        let report = StepReport {
            step: step.number,
            signature: step.signature,
            family: step.family,
            probes: step.probes,
            op_count: step.op_count,
            counters,
            device_us: 0.0,
            held_bytes_peak: stats.reserved_bytes.peak.max(step.held_bytes_peak),
            resident_bytes_peak: step.resident_bytes_peak,
            drifted_at: step.follower.drifted_at(),
            strayed_ops: step.follower.strayed_ops(),
            moves: step.moves,
            trace: None,
            lanes: None,
        };
        let (mut recorder, lanes) = self.recording.end_step();
        if let Some(recorder) = &mut recorder {
            recorder.host_end_us = host_end_us;
        }
        let stalls = step.stalls;
        let pending = PendingReport { report, start, end, stalls, recorder, lanes, behind };
        self.recording.owe(pending);
        self.memory.pool.hide_away(false);
        self.end_step_of_memory();
        self.begin_step(step.number + 1);
        Ok(())
    }

    /// What is held from here on depends on the step that ends.
    pub(crate) fn end_step_of_memory(&mut self) {
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        // What could not be given back stays counted, and is tried again.
        let _ = pool.end_step(streams);
    }

    fn begin_step(&mut self, number: u64) {
        self.memory.pool.reset_peaks();
        self.step.number = number;
        self.step.host_waits_before = self.memory.streams.host_waits();
        self.step.calls_before = self.memory.pool.stats().calls;
        self.step.segment_bytes = self.memory.pool.fixed_bytes();
        self.recording.begin_step();
        self.orders.begin_step();
        // What stays for replays alone is not part of the step.
        for entry in self.entries.iter_mut().filter(|entry| entry.free_wanted) {
            entry.place = None;
        }
        let mut live: Vec<(u64, BlockId)> = self
            .entries
            .iter()
            .filter(|entry| self.memory.pool.is_swappable(entry.id) && !entry.free_wanted)
            .map(|entry| (entry.birth, entry.id))
            .collect();
        live.sort_unstable();
        for (_, id) in live {
            let place = self.step.next_place();
            let size_bytes = self.memory.pool.size_bytes(id);
            let entry = self.entry_mut(id).expect("it is in the table");
            entry.place = Some(place);
            entry.origin = Origin::Persistent;
            let (name, held) = (entry.name.clone(), entry.hold != Hold::No);
            let born_in = entry.born_in;
            if let Some(recorder) = self.recording.recorder_mut() {
                recorder.persistent(size_bytes, &name, held, born_in);
            }
        }
        if let Some(recorder) = self.recording.recorder_mut() {
            recorder.trace.segment_bytes = self.step.segment_bytes;
        }
        self.start_following();
        self.note_resident_peak();
    }

    /// Finds the blocks that live at the step's start on the step that the plan is for.
    fn start_following(&mut self) {
        let in_place = |entry: &&Entry| entry.place.is_some();
        let mut live: Vec<&Entry> = self.entries.iter().filter(in_place).collect();
        live.sort_unstable_by_key(|entry| entry.place);
        let sized = |entry: &&Entry| (entry.id, self.memory.pool.size_bytes(entry.id));
        let live: Vec<(BlockId, u64)> = live.iter().map(sized).collect();
        let path = self.orders.current().and_then(|orders| orders.path()).cloned();
        let (follower, places) = Follower::new(path, &live);
        for (&(id, _), place) in live.iter().zip(places) {
            self.entry_mut(id).expect("it is in the table").planned = place;
        }
        self.step.follower = follower;
        self.orders.take_turn(self.turn_of(&live));
    }

    /// The turn in which the most bytes of these blocks are to lie where they are.
    fn turn_of(&self, live: &[(BlockId, u64)]) -> usize {
        let Some(orders) = self.orders.current().filter(|orders| orders.turn_count() > 1) else {
            return 0;
        };
        let lies_there = |id: BlockId, turn: usize| {
            let place = self.entry(id).ok().and_then(|entry| entry.planned);
            let lot = place.and_then(|place| orders.lot(place, turn));
            lot.is_some_and(|lot| self.memory.pool.is_of(id, lot))
        };
        let bytes = |turn: usize| -> u64 {
            let there = live.iter().filter(|(id, _)| lies_there(*id, turn));
            there.map(|(_, size_bytes)| size_bytes).sum()
        };
        // Of several alike the first.
        (0..orders.turn_count()).rev().max_by_key(|&turn| bytes(turn)).unwrap_or(0)
    }

    /// A block of the plan has this size. Where that is more than the plan knows, the orders for
    /// larger steps take over. Once a probe has told, no other block does: on a branch one may be
    /// taken for another.
    pub(crate) fn measure_up(&mut self, place: BlockIndex, size_bytes: u64) {
        let Some(orders) = self.orders.current() else { return };
        let was_told = !self.step.probes.is_empty();
        if orders.is_probe(place) {
            self.step.probes.push((place, size_bytes));
        }
        if was_told {
            return;
        }
        let Some(larger) = orders.outgrown_by(place, size_bytes).cloned() else { return };
        if let Some(path) = larger.path() {
            self.step.follower.change_path(path);
            self.orders.outgrow(larger);
        }
    }

    /// Notes a copy of swapping in the running step.
    pub(crate) fn note_move(&mut self, id: BlockId, direction: Direction) -> Result<(), Error> {
        let size_bytes = self.memory.pool.size_bytes(id);
        match direction {
            Direction::Out => self.step.counters.swapped_out_bytes += size_bytes,
            Direction::In => self.step.counters.swapped_in_bytes += size_bytes,
        }
        if self.recording.logs_moves {
            let name = self.entry(id)?.name.to_string();
            self.step.moves.push(Move { name, direction, size_bytes });
        }
        Ok(())
    }

    /// What later steps run under. Takes effect at once, so call it between steps.
    pub(crate) fn set_orders(
        &mut self,
        record: bool,
        orders: Option<Arc<Orders>>,
    ) -> Result<(), Error> {
        if self.step.event_count > 0 {
            return Err(Error::Usage("orders change only between steps"));
        }
        self.moving |= orders.is_some();
        let lots = orders.as_ref().map_or_else(Vec::new, |orders| orders.lots());
        let pieces = orders.as_ref().map_or(&[][..], |orders| orders.pieces());
        self.memory.pool.lay_out(&lots, pieces)?;
        self.orders.set(orders);
        if self.recording.set(record) {
            self.drop_lanes();
            let mut step = std::mem::take(&mut self.step);
            for timer in step.take_timers() {
                self.memory.streams.recycle_timer(timer);
            }
            self.begin_step(step.number);
            self.step.host_waits_before = step.host_waits_before;
            self.step.calls_before = step.calls_before;
        } else {
            self.start_following();
        }
        Ok(())
    }

    /// Notes timed waits: to the step, and to the running op. They are in its time where it has
    /// work before them.
    pub(crate) fn collect_stalls(&mut self, op: Option<OpIndex>, are_inside: bool) {
        let stalls = self.memory.streams.take_stalls();
        if let Some(op) = op {
            self.op_waited(op, &stalls);
            if let Some(recorder) = self.recording.recorder_mut().filter(|_| are_inside) {
                recorder.stalls(op, &stalls);
            }
        }
        self.step.stalls.extend(stalls);
    }

    /// The reports of steps whose device work is complete, oldest first. With `wait`, all.
    pub(crate) fn finished(&mut self, wait: bool) -> Result<Vec<StepReport>, Error> {
        let mut finished = Vec::new();
        while let Some(pending) = self.recording.oldest_owed() {
            let complete = if wait {
                self.memory.streams.synchronize().map(|()| true)
            } else {
                let behind = pending.behind.clone();
                self.memory.streams.have_completed(&behind)
            };
            let measured = match complete {
                Ok(true) => self.measure_oldest(),
                Ok(false) => break,
                Err(error) => Err(error.into()),
            };
            match measured {
                Ok(report) => finished.push(report),
                // What is owed stays owed; the next call tries again.
                Err(error) if finished.is_empty() => return Err(error),
                Err(_) => break,
            }
        }
        Ok(finished)
    }

    /// Whether the oldest unreported step was recorded, so that its times are needed now.
    pub(crate) fn owes_trace(&self) -> bool {
        self.recording.owes_trace()
    }

    fn measure_oldest(&mut self) -> Result<StepReport, Error> {
        let pending = self.recording.oldest_owed().expect("the caller saw it");
        let mut report = pending.report.clone();
        let driver = self.memory.streams.driver();
        pending.measure(&mut report, |start, end| driver.elapsed_us(start, end))?;
        let pending = self.recording.pop_oldest().expect("seen above");
        for timer in pending.into_timers() {
            self.memory.streams.recycle_timer(timer);
        }
        Ok(report)
    }
}
