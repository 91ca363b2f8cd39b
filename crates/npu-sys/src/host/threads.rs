//! Streams on threads, in real time.
//!
//! One lock guards all queues. A worker sleeps on its own condition variable while its queue is
//! empty; everybody who waits for something to complete sleeps on `progress`.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::DriverError;
use crate::host::config::HostLink;
use crate::host::effect::Effect;
use crate::host::failure::{failed, unsupported};
use crate::host::schedule::{Schedule, Work, unknown_stream};
use crate::host::signal::Signal;
use crate::host::threads::clock::Clock;
use crate::host::threads::gate::Gate;
use crate::host::timeline::Journal;
use crate::sync::lock;
use crate::types::StreamHandle;

mod clock;
mod gate;

#[derive(Debug)]
pub(super) struct Threads {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    gate: Option<Gate>,
    journal: Arc<Journal>,
    queue_depth: usize,
    state: Mutex<State>,
    progress: Condvar,
}

#[derive(Debug, Default)]
struct State {
    stream_count_ever: u64,
    queues: BTreeMap<u64, Queue>,
    /// Threads that sleep on `progress`, so that nobody is woken in vain.
    sleepers: usize,
    /// The driver is going away: work not yet begun is dropped.
    discarded: bool,
}

#[derive(Debug, Default)]
struct Queue {
    work: VecDeque<Entry>,
    submitted: u64,
    completed: u64,
    /// The worker sleeps on `wake`.
    idle: bool,
    wake: Arc<Condvar>,
    closed: bool,
}

#[derive(Debug)]
struct Entry {
    work: Work,
    submitted_us: f64,
}

impl Threads {
    pub(super) fn new(
        link: Option<HostLink>,
        queue_depth: usize,
        journal: Arc<Journal>,
    ) -> Threads {
        let shared = Shared {
            clock: Clock::start(),
            gate: link.map(Gate::new),
            journal,
            queue_depth,
            state: Mutex::new(State::default()),
            progress: Condvar::new(),
        };
        Threads { shared: Arc::new(shared), workers: Mutex::new(Vec::new()) }
    }
}

impl Schedule for Threads {
    fn open(&self) -> Result<StreamHandle, DriverError> {
        let mut workers = lock(&self.workers);
        workers.retain(|worker| !worker.is_finished());
        let mut state = lock(&self.shared.state);
        let stream = StreamHandle(state.stream_count_ever + 1);
        let shared = Arc::clone(&self.shared);
        let worker = thread::Builder::new()
            .name(format!("stream {}", stream.0))
            .spawn(move || shared.serve(stream))
            .map_err(|error| failed("create_stream", error.to_string()))?;
        state.stream_count_ever += 1;
        state.queues.insert(stream.0, Queue::default());
        workers.push(worker);
        Ok(stream)
    }

    fn close(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = lock(&self.shared.state);
        let queue = state.open_queue("destroy_stream", stream)?;
        queue.closed = true;
        queue.wake.notify_one();
        Ok(())
    }

    fn check(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError> {
        lock(&self.shared.state).open_queue(call, stream).map(drop)
    }

    fn streams(&self) -> Vec<StreamHandle> {
        let state = lock(&self.shared.state);
        let open = state.queues.iter().filter(|(_, queue)| !queue.closed);
        open.map(|(&stream, _)| StreamHandle(stream)).collect()
    }

    fn submit(
        &self,
        call: &'static str,
        stream: StreamHandle,
        work: Work,
    ) -> Result<(), DriverError> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        while state.open_queue(call, stream)?.work.len() >= shared.queue_depth {
            state = shared.sleep(state);
        }
        let now_us = shared.clock.now_us();
        let queue = state.open_queue(call, stream)?;
        if queue.submitted == queue.completed {
            // Nothing is before it: a mark or a fulfilled wait need not wake the worker.
            match &work {
                Work::Mark(signal) => {
                    signal.complete(now_us);
                    return Ok(());
                }
                Work::Wait(signal) if signal.is_complete() => return Ok(()),
                Work::Wait(_) | Work::Effect(_) => {}
            }
        }
        queue.work.push_back(Entry { work, submitted_us: now_us });
        queue.submitted += 1;
        if queue.idle {
            queue.wake.notify_one();
        }
        Ok(())
    }

    fn drain(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError> {
        let mut state = lock(&self.shared.state);
        let target = state.open_queue(call, stream)?.submitted;
        // The queue is gone once it is closed and empty.
        while state.queues.get(&stream.0).is_some_and(|queue| queue.completed < target) {
            state = self.shared.sleep(state);
        }
        Ok(())
    }

    fn wait(&self, _call: &'static str, signal: &Signal) -> Result<(), DriverError> {
        let mut state = lock(&self.shared.state);
        while !signal.is_complete() {
            state = self.shared.sleep(state);
        }
        Ok(())
    }

    fn is_complete(&self, signal: &Signal) -> bool {
        signal.is_complete()
    }

    fn tick(&self) {}

    fn now_us(&self) -> f64 {
        self.shared.clock.now_us()
    }

    fn advance(&self, _us: f64) -> Result<(), DriverError> {
        Err(unsupported("advance", "real time passes by itself"))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        let dropped = {
            let mut state = lock(&self.shared.state);
            state.discarded = true;
            let mut dropped = Vec::new();
            for queue in state.queues.values_mut() {
                dropped.extend(queue.work.drain(..));
                queue.wake.notify_one();
            }
            self.shared.progress.notify_all();
            dropped
        };
        // Outside the lock: the functions own values whose drop may do anything.
        drop(dropped);
        let own = thread::current().id();
        for worker in lock(&self.workers).drain(..) {
            // A host function may have held the last handle of the driver. That worker ends by
            // itself. Workers do not panic: functions are caught.
            if worker.thread().id() != own {
                worker.join().expect("workers do not panic");
            }
        }
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
}

impl Shared {
    /// Sleeps until anything has completed.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.sleepers += 1;
        let mut state = self.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleepers -= 1;
        state
    }

    /// The life of a worker: runs the stream's work in order until the stream is closed.
    fn serve(&self, stream: StreamHandle) {
        // When the work could have begun: by the link's model, not by when this thread woke, so
        // that late wake-ups of copies in a row do not add up.
        let mut ready_us: f64 = 0.0;
        while let Some((effect, released_us)) = self.next(stream) {
            ready_us = self.run(stream, effect, ready_us.max(released_us));
            let mut state = lock(&self.state);
            if let Some(queue) = state.queues.get_mut(&stream.0) {
                queue.completed += 1;
            }
            self.report(&state);
        }
    }

    /// Waits for the stream's next effect; completes the marks on the way. With it comes when it
    /// was submitted or, if later, released by the last wait before it.
    fn next(&self, stream: StreamHandle) -> Option<(Effect, f64)> {
        let mut released_us: f64 = 0.0;
        let mut state = lock(&self.state);
        loop {
            if state.discarded {
                return None;
            }
            let queue = state.queues.get_mut(&stream.0)?;
            match queue.work.front() {
                Some(Entry { work: Work::Wait(signal), .. }) if !signal.is_complete() => {
                    state = self.sleep(state);
                    continue;
                }
                Some(_) => {}
                None if queue.closed => {
                    state.queues.remove(&stream.0);
                    return None;
                }
                None => {
                    queue.idle = true;
                    let wake = Arc::clone(&queue.wake);
                    state = wake.wait(state).unwrap_or_else(PoisonError::into_inner);
                    if let Some(queue) = state.queues.get_mut(&stream.0) {
                        queue.idle = false;
                    }
                    continue;
                }
            }
            let Entry { work, submitted_us } = queue.work.pop_front()?;
            match work {
                Work::Effect(effect) => {
                    // Its place in the queue is free.
                    self.report(&state);
                    return Some((effect, released_us.max(submitted_us)));
                }
                Work::Mark(signal) => signal.complete(self.clock.now_us()),
                Work::Wait(signal) => released_us = released_us.max(signal.at_us().unwrap_or(0.0)),
            }
            queue.completed += 1;
            self.report(&state);
        }
    }

    fn report(&self, state: &State) {
        if state.sleepers > 0 {
            self.progress.notify_all();
        }
    }

    /// Runs one effect, which could have begun at `ready_us`, and returns when it was complete.
    fn run(&self, stream: StreamHandle, effect: Effect, ready_us: f64) -> f64 {
        let mut span = effect.task().span(stream, self.clock.now_us(), 0.0);
        let transfer = effect.task().transfer();
        let outcome = match (&self.gate, transfer) {
            (Some(gate), Some((direction, size_bytes))) => {
                let mut outcome = Ok(());
                let work = || outcome = effect.run();
                (span.start_us, span.end_us) =
                    gate.pass(&self.clock, direction, size_bytes, ready_us, work);
                outcome
            }
            _ => {
                let outcome = effect.run();
                span.end_us = self.clock.now_us();
                outcome
            }
        };
        self.journal.note(span, outcome);
        span.end_us
    }
}
