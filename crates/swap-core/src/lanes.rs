//! Measures what compute, both copy streams and the host do in a step, on one axis of time.
//!
//! Everything is an event behind work that is submitted anyway, so nobody waits. What cannot be
//! measured is left out: a step is never worse off for being looked at.

use vmem::{BlockId, EventHandle, Point, Stall, StreamId};

use crate::core::Core;
use crate::error::Error;
use crate::report::Direction;
use crate::trace::{BlockIndex, OpIndex, Trace};

/// What happened when in one step, as measured or predicted. Times are in microseconds since the
/// device began the step.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Lanes {
    /// How long the step took.
    pub step_us: f64,
    /// Outermost ops, in order.
    pub ops: Vec<LaneOp>,
    /// Ops that ran again, in order.
    pub replays: Vec<LaneReplay>,
    /// Copies that were submitted in the step, in order. They may end behind it, and if measured
    /// begin before its first op.
    pub copies: Vec<LaneCopy>,
    /// Waits of ops for copies, in order.
    pub waits: Vec<LaneWait>,
}

impl Lanes {
    /// The lanes of a step like the recorded one. What an earlier step had left may have differed,
    /// so copies name no block that the recorded one does not have.
    #[must_use]
    pub fn named_by(mut self, trace: &Trace) -> Lanes {
        for copy in self.copies.iter_mut().filter(|copy| !copy.is_of(trace)) {
            copy.block = None;
        }
        self
    }
}

/// An outermost op.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneOp {
    /// Which.
    pub op: OpIndex,
    /// When the host began it, and when the host was done with it, or went on to the next if
    /// predicted; `None` if that is not known.
    ///
    /// The clocks of host and device have no moment in common that is known without waiting. So
    /// these are the latest times at which no op began before the host asked for it.
    pub host_us: Option<(f64, f64)>,
    /// When its stream began it, behind what it waited for first.
    pub start_us: f64,
    /// When its stream was done with it.
    pub end_us: f64,
}

/// An op that ran once more.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneReplay {
    /// What it is called.
    pub name: String,
    /// When it began.
    pub start_us: f64,
    /// When it was over.
    pub end_us: f64,
}

/// A copy of swapping.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneCopy {
    /// The block's place in the step, if it has one.
    pub block: Option<BlockIndex>,
    /// Which way.
    pub direction: Direction,
    /// How much.
    pub size_bytes: u64,
    /// When it could begin.
    pub start_us: f64,
    /// When it was over.
    pub end_us: f64,
}

impl LaneCopy {
    /// Whether the step has the block that the copy names, if any, and of that size.
    pub fn is_of(&self, trace: &Trace) -> bool {
        let block = self.block.map(|block| trace.blocks.get(block.0 as usize));
        block.is_none_or(|block| block.is_some_and(|block| block.size_bytes == self.size_bytes))
    }
}

/// Time that an op spent waiting for a copy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LaneWait {
    /// The outermost op.
    pub op: OpIndex,
    /// Which copy, as a place in [`Lanes::copies`]; `None` for one of an earlier step.
    pub copy: Option<usize>,
    /// From when.
    pub start_us: f64,
    /// Until when.
    pub end_us: f64,
}

/// The events of a step that is being measured.
#[derive(Debug, Default)]
pub(crate) struct LaneRecorder {
    ops: Vec<(OpIndex, Timer, HostTimes)>,
    replays: Vec<(&'static str, Timer)>,
    copies: Vec<TimedCopy>,
    /// Their events belong to the step.
    waits: Vec<(OpIndex, Stall)>,
    /// The host's clock when the step began.
    began_us: Option<f64>,
}

/// Events around something.
#[derive(Clone, Copy, Debug)]
struct Timer {
    start: EventHandle,
    end: EventHandle,
}

/// By the host's clock.
#[derive(Clone, Copy, Debug)]
struct HostTimes {
    start_us: f64,
    end_us: f64,
}

#[derive(Debug)]
struct TimedCopy {
    block: Option<BlockIndex>,
    direction: Direction,
    size_bytes: u64,
    timer: Timer,
    end: Point,
}

impl LaneRecorder {
    /// What the events say. `at_us` is when one happened, since the step's start.
    pub(crate) fn lanes<E>(
        &self,
        step_us: f64,
        at_us: impl Fn(EventHandle) -> Result<f64, E>,
    ) -> Result<Lanes, E> {
        let mut lanes = Lanes { step_us, ..Lanes::default() };
        let span = |timer: Timer| Ok((at_us(timer.start)?, at_us(timer.end)?));
        for &(op, timer, host) in &self.ops {
            let (start_us, end_us) = span(timer)?;
            let began_us = self.began_us.unwrap_or(host.start_us);
            let host_us = Some((host.start_us - began_us, host.end_us - began_us));
            lanes.ops.push(LaneOp { op, host_us, start_us, end_us });
        }
        put_host_first(&mut lanes.ops);
        for &(name, timer) in &self.replays {
            let (start_us, end_us) = span(timer)?;
            lanes.replays.push(LaneReplay { name: name.to_owned(), start_us, end_us });
        }
        for copy in &self.copies {
            let (start_us, end_us) = span(copy.timer)?;
            let TimedCopy { block, direction, size_bytes, .. } = *copy;
            lanes.copies.push(LaneCopy { block, direction, size_bytes, start_us, end_us });
        }
        for &(op, stall) in &self.waits {
            let copy = self.copies.iter().position(|copy| copy.end == stall.behind);
            let (start_us, end_us) = span(Timer { start: stall.start, end: stall.end })?;
            lanes.waits.push(LaneWait { op, copy, start_us, end_us });
        }
        Ok(lanes)
    }

    pub(crate) fn into_timers(self) -> impl Iterator<Item = EventHandle> {
        let ops = self.ops.into_iter().map(|(_, timer, _)| timer);
        let replays = self.replays.into_iter().map(|(_, timer)| timer);
        let copies = self.copies.into_iter().map(|copy| copy.timer);
        ops.chain(replays).chain(copies).flat_map(|timer| [timer.start, timer.end])
    }
}

/// Moves the host's times so that no op began before the host asked for it, and no further.
fn put_host_first(ops: &mut [LaneOp]) {
    let host_us = |op: &LaneOp| op.host_us.map(|(start_us, _)| start_us - op.start_us);
    let late_us = ops.iter().filter_map(host_us).fold(0.0, f64::max);
    for (start_us, end_us) in ops.iter_mut().filter_map(|op| op.host_us.as_mut()) {
        *start_us -= late_us;
        *end_us -= late_us;
    }
}

impl Core {
    /// Measures the running step, which has not begun and is not recorded. Says whether it does.
    pub(crate) fn measure_lanes(&mut self) -> bool {
        self.step.event_count == 0 && self.recording.measure()
    }

    /// Gives up measuring the running step.
    pub(crate) fn drop_lanes(&mut self) {
        let timers = self.recording.stop_measuring();
        timers.for_each(|timer| self.memory.streams.recycle_timer(timer));
    }

    /// The host's clock, if the running step is recorded or measured.
    pub(crate) fn host_us(&self) -> Option<f64> {
        let looks = self.recording.recorder().is_some() || self.recording.lanes().is_some();
        looks.then(|| self.memory.streams.driver().now_us())
    }

    /// What the engine has done since then is no time of the host for an op.
    pub(crate) fn leave_out_host(&mut self, since_us: Option<f64>) {
        let now_us = self.host_us();
        if let (Some(recorder), Some(since_us), Some(now_us)) =
            (self.recording.recorder_mut(), since_us, now_us)
        {
            recorder.host.leave_out(now_us - since_us);
        }
    }

    /// Records the step's start before its first op.
    pub(crate) fn start_clock(&mut self) -> Result<(), Error> {
        if self.step.start.is_none() {
            let now_us = self.host_us();
            self.step.start = Some(self.memory.streams.timer(self.streams.compute)?);
            if let Some(lanes) = self.recording.lanes_mut() {
                lanes.began_us = now_us;
            }
        }
        Ok(())
    }

    /// An event behind the stream's work so far, if the running step is measured.
    fn lane_timer(&mut self, stream: StreamId) -> Option<EventHandle> {
        self.recording.lanes()?;
        let timer = self.memory.streams.timer(stream);
        if timer.is_err() {
            self.drop_lanes();
        }
        timer.ok()
    }

    /// The host begins an outermost op of the step. Returns an event before its work, if its time
    /// is measured.
    pub(crate) fn begin_timing(
        &mut self,
        op: OpIndex,
        stream: StreamId,
    ) -> Result<Option<EventHandle>, Error> {
        let now_us = self.host_us();
        let timer = self.op_timer(stream)?;
        if let (Some(recorder), Some(now_us)) = (self.recording.recorder_mut(), now_us) {
            recorder.host.begins(op, now_us);
        }
        self.leave_out_host(now_us);
        Ok(timer)
    }

    fn op_timer(&mut self, stream: StreamId) -> Result<Option<EventHandle>, Error> {
        match self.recording.recorder() {
            Some(_) => Ok(Some(self.memory.streams.timer(stream)?)),
            None => Ok(self.lane_timer(stream)),
        }
    }

    /// An event before a replay's op, if the running step is measured.
    pub(crate) fn replay_timer(&mut self, stream: StreamId) -> Option<EventHandle> {
        self.lane_timer(stream)
    }

    /// An event before a copy's work, if the running step is measured.
    pub(crate) fn copy_timer(&mut self, stream: StreamId) -> Option<EventHandle> {
        self.lane_timer(stream)
    }

    /// Times what began at `start` up to here. Without a step to measure, the event goes back.
    fn timer_until_here(&mut self, start: EventHandle, stream: StreamId) -> Option<Timer> {
        let end = self.lane_timer(stream);
        if end.is_none() {
            self.memory.streams.recycle_timer(start);
        }
        end.map(|end| Timer { start, end })
    }

    /// An outermost op of the step is over that the host began at `host_start_us`.
    pub(crate) fn op_timed(
        &mut self,
        op: OpIndex,
        start: EventHandle,
        stream: StreamId,
        host_start_us: Option<f64>,
    ) {
        let Some(timer) = self.timer_until_here(start, stream) else { return };
        let now_us = self.memory.streams.driver().now_us();
        if let Some(lanes) = self.recording.lanes_mut() {
            let start_us = host_start_us.unwrap_or(now_us);
            lanes.ops.push((op, timer, HostTimes { start_us, end_us: now_us }));
        }
    }

    /// The host is done with an outermost op, and with what the plan ordered behind it.
    pub(crate) fn host_is_done(&mut self, op: OpIndex) {
        let Some(now_us) = self.host_us() else { return };
        let last = self.recording.lanes_mut().and_then(|lanes| lanes.ops.last_mut());
        if let Some((_, _, host)) = last.filter(|(last, ..)| *last == op) {
            host.end_us = now_us;
        }
    }

    /// An op of a replay is over.
    pub(crate) fn replay_timed(
        &mut self,
        name: &'static str,
        start: EventHandle,
        stream: StreamId,
    ) {
        let timer = self.timer_until_here(start, stream);
        if let (Some(timer), Some(lanes)) = (timer, self.recording.lanes_mut()) {
            lanes.replays.push((name, timer));
        }
    }

    /// A copy was submitted that ends at `end`.
    pub(crate) fn copy_timed(
        &mut self,
        id: BlockId,
        start: Option<EventHandle>,
        direction: Direction,
        end: Point,
    ) {
        let timer = start.and_then(|start| self.timer_until_here(start, end.stream));
        let block = self.entry(id).ok().and_then(|entry| entry.place);
        let size_bytes = self.memory.pool.size_bytes(id);
        if let (Some(timer), Some(lanes)) = (timer, self.recording.lanes_mut()) {
            lanes.copies.push(TimedCopy { block, direction, size_bytes, timer, end });
        }
    }

    /// Waits of the step's op for copies.
    pub(crate) fn op_waited(&mut self, op: OpIndex, stalls: &[Stall]) {
        if let Some(lanes) = self.recording.lanes_mut() {
            lanes.waits.extend(stalls.iter().map(|&stall| (op, stall)));
        }
    }
}
