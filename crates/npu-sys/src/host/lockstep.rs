//! Streams without threads: work runs inside the driver calls, on a virtual clock.
//!
//! Both orders share the queues. [`by_time`] is a discrete-event simulation, [`seeded`] draws
//! the next work at random.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::error::DriverError;
use crate::host::config::{HostLink, Order};
use crate::host::effect::{self, Effect};
use crate::host::failure::{failed, invalid};
use crate::host::lockstep::by_time::ByTime;
use crate::host::lockstep::seeded::Seeded;
use crate::host::schedule::{Schedule, Work, unknown_stream};
use crate::host::signal::Signal;
use crate::host::timeline::Journal;
use crate::sync::lock;
use crate::types::StreamHandle;

mod by_time;
mod seeded;

#[derive(Debug)]
pub(super) struct Lockstep {
    state: Mutex<State>,
    /// The host's clock as the bits of microseconds. It changes only under the lock; host
    /// functions, which run under the lock, may look at it.
    host_us_bits: AtomicU64,
}

#[derive(Debug)]
struct State {
    stream_count_ever: u64,
    queues: Queues,
    device: Device,
    journal: Arc<Journal>,
}

/// What executes the queues.
#[derive(Debug)]
enum Device {
    ByTime(ByTime),
    Seeded(Seeded),
}

/// All streams by handle, in the order of their creation.
type Queues = BTreeMap<u64, Queue>;

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Entry>,
    submitted: u64,
    completed: u64,
    closed: bool,
    /// When the stream's last work was complete.
    free_us: f64,
}

#[derive(Debug)]
struct Entry {
    work: Work,
    submitted_us: f64,
}

impl Lockstep {
    pub(super) fn new(order: Order, link: Option<HostLink>, journal: Arc<Journal>) -> Lockstep {
        let device = match order {
            Order::ByTime => Device::ByTime(ByTime::new(link)),
            Order::Seeded(seed) => Device::Seeded(Seeded::new(link, seed)),
        };
        let state = State { stream_count_ever: 0, queues: Queues::new(), device, journal };
        Lockstep { state: Mutex::new(state), host_us_bits: AtomicU64::new(0.0_f64.to_bits()) }
    }

    /// Moves the host's clock to a completion that the host has seen.
    fn see(&self, at_us: f64) {
        let host_us = self.now_us().max(at_us);
        self.host_us_bits.store(host_us.to_bits(), Ordering::Relaxed);
    }
}

impl Schedule for Lockstep {
    fn open(&self) -> Result<StreamHandle, DriverError> {
        let mut state = lock(&self.state);
        state.stream_count_ever += 1;
        let stream = StreamHandle(state.stream_count_ever);
        state.queues.insert(stream.0, Queue::default());
        Ok(stream)
    }

    fn close(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = lock(&self.state);
        state.open_queue("destroy_stream", stream)?.closed = true;
        state.forget_closed();
        Ok(())
    }

    fn check(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError> {
        lock(&self.state).open_queue(call, stream).map(drop)
    }

    fn streams(&self) -> Vec<StreamHandle> {
        let state = lock(&self.state);
        let open = state.queues.iter().filter(|(_, queue)| !queue.closed);
        open.map(|(&stream, _)| StreamHandle(stream)).collect()
    }

    fn submit(
        &self,
        call: &'static str,
        stream: StreamHandle,
        work: Work,
    ) -> Result<(), DriverError> {
        let mut state = lock(&self.state);
        let submitted_us = self.now_us();
        let queue = state.open_queue(call, stream)?;
        queue.work.push_back(Entry { work, submitted_us });
        queue.submitted += 1;
        // Work on an idle virtual stream begins at once, and without a cost it ends at once.
        state.catch_up(self.now_us());
        Ok(())
    }

    fn drain(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = lock(&self.state);
        let target = state.open_queue(call, stream)?.submitted;
        state.run_until(call, |queues| queues[&stream.0].completed >= target)?;
        self.see(state.queues[&stream.0].free_us);
        Ok(())
    }

    fn wait(&self, call: &'static str, signal: &Signal) -> Result<(), DriverError> {
        let mut state = lock(&self.state);
        state.run_until(call, |_| signal.is_complete())?;
        self.see(signal.at_us().expect("run until complete"));
        Ok(())
    }

    fn is_complete(&self, signal: &Signal) -> bool {
        let _state = lock(&self.state);
        let Some(at_us) = signal.at_us() else { return false };
        // What the host has seen lies in its past. Only a seeded device can be ahead of it.
        self.see(at_us);
        true
    }

    fn tick(&self) {
        // A host function's values may call the driver when they are dropped, in here.
        if effect::in_host_function() {
            return;
        }
        let mut state = lock(&self.state);
        state.catch_up(self.now_us());
        if let State { queues, device: Device::Seeded(device), journal, .. } = &mut *state {
            device.run_some(queues, journal);
        }
        state.forget_closed();
    }

    fn now_us(&self) -> f64 {
        f64::from_bits(self.host_us_bits.load(Ordering::Relaxed))
    }

    fn advance(&self, us: f64) -> Result<(), DriverError> {
        if !us.is_finite() || us < 0.0 {
            return Err(invalid("advance", format!("{us} microseconds cannot pass")));
        }
        let mut state = lock(&self.state);
        self.see(self.now_us() + us);
        state.catch_up(self.now_us());
        Ok(())
    }
}

impl State {
    fn open_queue(
        &mut self,
        call: &'static str,
        stream: StreamHandle,
    ) -> Result<&mut Queue, DriverError> {
        let queue = self.queues.get_mut(&stream.0).filter(|queue| !queue.closed);
        queue.ok_or_else(|| unknown_stream(call, stream))
    }

    /// Brings the device up to the host's clock. A seeded device knows no such duty.
    fn catch_up(&mut self, host_us: f64) {
        let State { queues, device, journal, .. } = self;
        if let Device::ByTime(device) = device {
            device.run_to(queues, host_us, journal);
        }
    }

    /// Runs the device until `done`.
    fn run_until(
        &mut self,
        call: &'static str,
        done: impl Fn(&Queues) -> bool,
    ) -> Result<(), DriverError> {
        let State { queues, device, journal, .. } = self;
        while !done(queues) {
            let went_on = match device {
                Device::ByTime(device) => device.run_next(queues, journal),
                Device::Seeded(device) => device.run_one(queues, journal),
            };
            if !went_on {
                return Err(failed(call, "nothing can run: the wait would never end"));
            }
        }
        Ok(())
    }

    fn forget_closed(&mut self) {
        self.queues.retain(|_, queue| !queue.closed || queue.completed < queue.submitted);
    }
}

/// Runs an effect that took from `start_us` to `end_us` and notes it.
fn perform(journal: &Journal, stream: u64, effect: Effect, start_us: f64, end_us: f64) {
    let span = effect.task().span(StreamHandle(stream), start_us, end_us);
    journal.note(span, effect.run());
}
