//! Order between streams: points in their work, the events that mark them, and the waits.
//!
//! Recording an event for every use of every block would cost more than the uses. So a use is
//! only a [`Point`], a stream and a count of the work submitted to it, and an event is recorded
//! when somebody first has to wait. An event recorded late covers more work than asked; streams
//! on which others wait often are [marked](Streams::mark) at every op, which keeps waits short.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use npu_sys::{Driver, DriverError, EventHandle, EventKind, StreamHandle};

use crate::point::{Point, Site, StreamId, Uses};

mod captures;

/// The streams of one device and what is known about their progress.
pub struct Streams {
    driver: Arc<dyn Driver>,
    lanes: Vec<Lane>,
    spare_events: Vec<EventHandle>,
    spare_timers: Vec<EventHandle>,
    stalls: Vec<Stall>,
    vain_questions: u64,
    host_waits: u64,
    /// Captures that go on.
    captures: u64,
    #[cfg(feature = "planted")]
    planted: Option<Site>,
}

/// A wait of a stream for a measured one, between two timing events on the waiting stream.
///
/// Give both events back with [`Streams::recycle_timer`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stall {
    /// What is waited for: the end of a piece of work of the measured stream.
    pub behind: Point,
    /// Recorded before the wait.
    pub start: EventHandle,
    /// Recorded behind it.
    pub end: EventHandle,
}

struct Lane {
    handle: StreamHandle,
    owned: bool,
    /// Its work is done by the host thread that submits it, so its waits are the host's.
    on_host: bool,
    /// Waits for this stream are timed.
    measured: bool,
    /// Pieces of work submitted.
    position: u64,
    /// Pieces of work that the host knows to be complete.
    complete: u64,
    /// Recorded events whose completion the host has not seen, oldest first.
    marks: VecDeque<Mark>,
    /// By stream: the position that this stream already waits for.
    ordered_after: Vec<u64>,
}

#[derive(Clone, Copy)]
struct Mark {
    position: u64,
    event: EventHandle,
}

impl Streams {
    /// No streams yet.
    pub fn new(driver: Arc<dyn Driver>) -> Streams {
        Streams {
            driver,
            lanes: Vec::new(),
            spare_events: Vec::new(),
            spare_timers: Vec::new(),
            stalls: Vec::new(),
            vain_questions: 0,
            host_waits: 0,
            captures: 0,
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// Creates a stream. It is destroyed with `self`.
    ///
    /// # Errors
    /// If the driver cannot.
    pub fn create(&mut self) -> Result<StreamId, DriverError> {
        let handle = self.driver.create_stream()?;
        Ok(self.push(handle, true))
    }

    /// Creates a stream for work that the calling thread does itself: whatever that work must
    /// come after, the thread waits for at once. It is destroyed with `self`.
    ///
    /// # Errors
    /// If the driver cannot.
    pub fn create_for_host_thread(&mut self) -> Result<StreamId, DriverError> {
        let stream = self.create()?;
        self.lane_mut(stream).on_host = true;
        Ok(stream)
    }

    /// Makes a stream of the caller known. It must outlive `self`.
    pub fn adopt(&mut self, handle: StreamHandle) -> StreamId {
        match self.lanes.iter().position(|lane| lane.handle == handle) {
            Some(index) => StreamId(u32::try_from(index).expect("streams are few")),
            None => self.push(handle, false),
        }
    }

    fn push(&mut self, handle: StreamHandle, owned: bool) -> StreamId {
        let id = StreamId(u32::try_from(self.lanes.len()).expect("streams are few"));
        self.lanes.push(Lane {
            handle,
            owned,
            measured: false,
            on_host: false,
            position: 0,
            complete: 0,
            marks: VecDeque::new(),
            ordered_after: Vec::new(),
        });
        id
    }

    /// All streams.
    pub fn ids(&self) -> impl Iterator<Item = StreamId> + use<> {
        (0..u32::try_from(self.lanes.len()).expect("streams are few")).map(StreamId)
    }

    /// The driver's handle.
    pub fn handle(&self, stream: StreamId) -> StreamHandle {
        self.lane(stream).handle
    }

    /// The driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Times that the host waited for the device in [`wait_host`](Streams::wait_host).
    pub fn host_waits(&self) -> u64 {
        self.host_waits
    }

    /// All work submitted to `stream` so far.
    pub fn here(&self, stream: StreamId) -> Point {
        Point { stream, position: self.lane(stream).position }
    }

    /// The piece of work that is being submitted to `stream` and ends with the next
    /// [`advance`](Streams::advance).
    pub fn next(&self, stream: StreamId) -> Point {
        Point { stream, position: self.lane(stream).position + 1 }
    }

    /// Counts one more piece of submitted work and returns its end.
    pub fn advance(&mut self, stream: StreamId) -> Point {
        let lane = self.lane_mut(stream);
        lane.position += 1;
        Point { stream, position: lane.position }
    }

    /// Records an event behind all work of `stream`, so that later waits cover no more than that.
    ///
    /// # Errors
    /// If the driver fails; nothing is recorded then.
    pub fn mark(&mut self, stream: StreamId) -> Result<(), DriverError> {
        self.mark_every(stream, 1)
    }

    /// As [`mark`](Streams::mark), where there is no event behind the last `pieces` of work.
    ///
    /// # Errors
    /// As there.
    pub fn mark_every(&mut self, stream: StreamId, pieces: u64) -> Result<(), DriverError> {
        let position = self.lane(stream).position;
        if position < self.covered(stream) + pieces || self.is_captured(stream)? {
            return Ok(());
        }
        self.record(stream, position).map(|_| ())
    }

    /// Holds later work of `waiter` back until `point` is complete. Free of cost if that is so
    /// already or was asked before.
    ///
    /// # Errors
    /// If the driver fails; nothing is ordered then.
    pub fn order_after(
        &mut self,
        waiter: StreamId,
        point: Point,
        site: Site,
    ) -> Result<(), DriverError> {
        if self.is_ordered(waiter, point) || self.skips(site) {
            return Ok(());
        }
        // A copy that waits for a copy is not a stall: nothing computes there.
        let measured = self.lane(point.stream).measured && !self.lane(waiter).measured;
        if measured && self.has_completed(point)? {
            return Ok(());
        }
        let Some(mark) = self.mark_behind(point)? else { return Ok(()) };
        let waiter_handle = self.lane(waiter).handle;
        let start = if measured { Some(self.record_timer(waiter_handle)?) } else { None };
        let waited = match self.lane(waiter).on_host {
            true => self.driver.synchronize_event(mark.event),
            false => self.driver.wait_event(waiter_handle, mark.event),
        };
        if let Err(error) = waited {
            self.spare_timers.extend(start);
            return Err(error);
        }
        if let Some(start) = start {
            // The wait is in place; without its end it is only not timed.
            match self.record_timer(waiter_handle) {
                Ok(end) => self.stalls.push(Stall { behind: point, start, end }),
                Err(_) => self.spare_timers.push(start),
            }
        }
        let seen = &mut self.lane_mut(waiter).ordered_after;
        let index = point.stream.0 as usize;
        if seen.len() <= index {
            seen.resize(index + 1, 0);
        }
        seen[index] = mark.position;
        Ok(())
    }

    /// Times later waits of other streams for `stream`, for [`take_stalls`](Streams::take_stalls).
    pub fn measure_waits_for(&mut self, stream: StreamId) {
        self.lane_mut(stream).measured = true;
    }

    /// The timed waits since the last call. Their events may not be complete yet.
    pub fn take_stalls(&mut self) -> Vec<Stall> {
        std::mem::take(&mut self.stalls)
    }

    /// Records a timing event behind the work of `stream`.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn timer(&mut self, stream: StreamId) -> Result<EventHandle, DriverError> {
        self.record_timer(self.lane(stream).handle)
    }

    /// Records a timing event of [`timer`](Streams::timer) anew, at a later place.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn record_timer_again(
        &mut self,
        timer: EventHandle,
        stream: StreamId,
    ) -> Result<(), DriverError> {
        self.driver.record_event(timer, self.lane(stream).handle)
    }

    /// Gives a timing event back for reuse.
    pub fn recycle_timer(&mut self, timer: EventHandle) {
        self.spare_timers.push(timer);
    }

    fn record_timer(&mut self, handle: StreamHandle) -> Result<EventHandle, DriverError> {
        let timer = match self.spare_timers.pop() {
            Some(timer) => timer,
            None => self.driver.create_event(EventKind::Timing)?,
        };
        match self.driver.record_event(timer, handle) {
            Ok(()) => Ok(timer),
            Err(error) => {
                self.spare_timers.push(timer);
                Err(error)
            }
        }
    }

    /// Whether later work of `waiter` cannot run before `point` is complete, as far as is known
    /// without asking the device.
    pub fn is_ordered(&self, waiter: StreamId, point: Point) -> bool {
        let seen = self.lane(waiter).ordered_after.get(point.stream.0 as usize);
        waiter == point.stream
            || point.position <= self.lane(point.stream).complete
            || seen.is_some_and(|&position| point.position <= position)
    }

    /// Whether all of `uses` are complete, so that the host may go on at `site`. Never blocks.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn are_complete(&mut self, uses: &Uses, site: Site) -> Result<bool, DriverError> {
        if self.skips(site) {
            return Ok(true);
        }
        self.have_completed(uses)
    }

    /// Whether all of `uses` are complete. Never blocks.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn have_completed(&mut self, uses: &Uses) -> Result<bool, DriverError> {
        for &point in uses.points() {
            if !self.has_completed(point)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether `point` is complete. Never blocks.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn has_completed(&mut self, point: Point) -> Result<bool, DriverError> {
        if point.position <= self.lane(point.stream).complete {
            return Ok(true);
        }
        if self.mark_behind(point)?.is_none() {
            return Ok(true);
        }
        while let Some(&mark) = self.lane(point.stream).marks.front() {
            if point.position <= self.lane(point.stream).complete {
                break;
            }
            if !self.driver.query_event(mark.event)? {
                self.vain_questions += 1;
                return Ok(false);
            }
            self.retire(point.stream);
        }
        Ok(true)
    }

    /// How often the driver was asked for something that was not complete yet. Each question takes
    /// the host some of its time.
    pub fn vain_questions(&self) -> u64 {
        self.vain_questions
    }

    /// Blocks the host until `uses` are complete, and counts it if it had to wait.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn wait_host(&mut self, uses: &Uses, site: Site) -> Result<(), DriverError> {
        if self.are_complete(uses, site)? {
            return Ok(());
        }
        self.host_waits += 1;
        for &point in uses.points() {
            if self.has_completed(point)? {
                continue;
            }
            let Some(mark) = self.mark_behind(point)? else { continue };
            self.driver.synchronize_event(mark.event)?;
            while self.lane(point.stream).complete < mark.position {
                self.retire(point.stream);
            }
        }
        Ok(())
    }

    /// Blocks the host until all work of all streams is complete.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn synchronize(&mut self) -> Result<(), DriverError> {
        for index in 0..self.lanes.len() {
            if self.is_captured(StreamId(u32::try_from(index).expect("streams are few")))? {
                continue;
            }
            self.driver.synchronize_stream(self.lanes[index].handle)?;
            let lane = &mut self.lanes[index];
            lane.complete = lane.position;
            self.spare_events.extend(lane.marks.drain(..).map(|mark| mark.event));
        }
        Ok(())
    }

    /// Leaves out all waits at one place. A test shows that a checker then notices.
    #[cfg(feature = "planted")]
    pub fn plant(&mut self, site: Option<Site>) {
        self.planted = site;
    }

    #[cfg(feature = "planted")]
    fn skips(&self, site: Site) -> bool {
        self.planted == Some(site)
    }

    #[cfg(not(feature = "planted"))]
    fn skips(&self, _site: Site) -> bool {
        false
    }

    /// Whether the host has seen `point` completed.
    pub(crate) fn is_known_complete(&self, point: Point) -> bool {
        point.position <= self.lane(point.stream).complete
    }

    fn lane(&self, stream: StreamId) -> &Lane {
        &self.lanes[stream.0 as usize]
    }

    fn lane_mut(&mut self, stream: StreamId) -> &mut Lane {
        &mut self.lanes[stream.0 as usize]
    }

    /// The last position that a recorded event covers.
    fn covered(&self, stream: StreamId) -> u64 {
        let lane = self.lane(stream);
        lane.marks.back().map_or(lane.complete, |mark| mark.position)
    }

    /// The earliest event behind `point`, recorded now if there is none; `None` if there is nothing
    /// to wait for, as the stream is captured.
    fn mark_behind(&mut self, point: Point) -> Result<Option<Mark>, DriverError> {
        let lane = self.lane(point.stream);
        let index = lane.marks.partition_point(|mark| mark.position < point.position);
        match lane.marks.get(index) {
            Some(&mark) => Ok(Some(mark)),
            None if self.is_captured(point.stream)? => Ok(None),
            None => self.record(point.stream, point.position.max(lane.position)).map(Some),
        }
    }

    fn record(&mut self, stream: StreamId, position: u64) -> Result<Mark, DriverError> {
        let event = match self.spare_events.pop() {
            Some(event) => event,
            None => self.driver.create_event(EventKind::Order)?,
        };
        let handle = self.lane(stream).handle;
        if let Err(error) = self.driver.record_event(event, handle) {
            self.spare_events.push(event);
            return Err(error);
        }
        let mark = Mark { position, event };
        let lane = self.lane_mut(stream);
        // A point can be one ahead: work being submitted inside an op that has not ended.
        lane.position = lane.position.max(position);
        lane.marks.push_back(mark);
        Ok(mark)
    }

    /// Notes that the oldest mark is complete.
    fn retire(&mut self, stream: StreamId) {
        let lane = self.lane_mut(stream);
        let mark = lane.marks.pop_front().expect("the caller saw a mark");
        assert!(mark.position > lane.complete, "marks are in order of position");
        lane.complete = mark.position;
        self.spare_events.push(mark.event);
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        // The device may be gone; nothing below can be mended here and nothing depends on it.
        let _ = self.synchronize();
        for lane in &mut self.lanes {
            self.spare_events.extend(lane.marks.drain(..).map(|mark| mark.event));
        }
        let stalls = self.take_stalls().into_iter().flat_map(|stall| [stall.start, stall.end]);
        self.spare_timers.extend(stalls);
        // A call that failed once may work now.
        for &event in self.spare_events.iter().chain(&self.spare_timers) {
            let destroy = || self.driver.destroy_event(event);
            let _ = destroy().or_else(|_| destroy());
        }
        for lane in self.lanes.iter().filter(|lane| lane.owned) {
            let destroy = || self.driver.destroy_stream(lane.handle);
            let _ = destroy().or_else(|_| destroy());
        }
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let progress: Vec<_> =
            self.lanes.iter().map(|lane| (lane.handle, lane.complete, lane.position)).collect();
        f.debug_struct("Streams").field("lanes", &progress).finish_non_exhaustive()
    }
}
