//! Lockstep in the order of a virtual clock: a discrete-event simulation.
//!
//! Each stream runs one piece of work at a time, all streams side by side. Copies take turns on
//! the link, in the order in which they became ready. Effects happen when their work is complete;
//! at the same moment, streams go in the order of their creation.

use std::collections::{BTreeMap, VecDeque};

use crate::host::config::HostLink;
use crate::host::effect::{Direction, Effect};
use crate::host::link::{LinkModel, fixed_us};
use crate::host::lockstep::{Queue, Queues, perform};
use crate::host::schedule::Work;
use crate::host::timeline::Journal;

#[derive(Debug)]
pub(super) struct ByTime {
    now_us: f64,
    link: Option<LinkModel>,
    /// Streams whose copy is ready and waits for its direction of the link.
    turns: [VecDeque<u64>; 2],
    running: BTreeMap<u64, Running>,
}

/// Work that has left its queue.
#[derive(Debug)]
struct Running {
    effect: Effect,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Waits for its turn on the link.
    Queued,
    /// On the link, which knows when it ends.
    Linked { direction: Direction, start_us: f64 },
    /// Elsewhere, for a known time.
    Fixed { start_us: f64, end_us: f64 },
}

impl ByTime {
    pub(super) fn new(link: Option<HostLink>) -> ByTime {
        ByTime {
            now_us: 0.0,
            link: link.map(LinkModel::new),
            turns: [VecDeque::new(), VecDeque::new()],
            running: BTreeMap::new(),
        }
    }

    /// Runs all that is complete by `until_us`, and moves the clock there.
    pub(super) fn run_to(&mut self, queues: &mut Queues, until_us: f64, journal: &Journal) {
        self.start_ready(queues);
        while self.next_end().is_some_and(|(end_us, _)| end_us <= until_us) {
            self.run_next(queues, journal);
        }
        self.now_us = self.now_us.max(until_us);
    }

    /// Moves the clock to the next completion. False if nothing is running.
    pub(super) fn run_next(&mut self, queues: &mut Queues, journal: &Journal) -> bool {
        self.start_ready(queues);
        let Some((end_us, stream)) = self.next_end() else { return false };
        self.now_us = self.now_us.max(end_us);
        let Running { effect, stage } = self.running.remove(&stream).expect("it was just found");
        let start_us = match stage {
            Stage::Fixed { start_us, .. } => start_us,
            Stage::Linked { direction, start_us } => {
                self.link.as_mut().expect("it is on the link").stop(direction, self.now_us);
                start_us
            }
            Stage::Queued => unreachable!("queued work has no end yet"),
        };
        perform(journal, stream, effect, start_us, self.now_us);
        let queue = queues.get_mut(&stream).expect("streams with work are not forgotten");
        self.complete(queue);
        self.start_ready(queues);
        true
    }

    /// Starts everything that can start now, and completes what costs nothing.
    fn start_ready(&mut self, queues: &mut Queues) {
        loop {
            let mut moved = false;
            for (&stream, queue) in queues.iter_mut() {
                while !self.running.contains_key(&stream) && self.take_up(stream, queue) {
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        self.give_turns();
    }

    /// Takes the first entry of an idle stream's queue, if it need not wait.
    fn take_up(&mut self, stream: u64, queue: &mut Queue) -> bool {
        match queue.work.front().map(|entry| &entry.work) {
            None => return false,
            Some(Work::Wait(signal)) if !signal.is_complete() => return false,
            Some(_) => {}
        }
        let Some(entry) = queue.work.pop_front() else { return false };
        match entry.work {
            Work::Effect(effect) => self.begin(stream, effect),
            Work::Mark(signal) => {
                signal.complete(self.now_us);
                self.complete(queue);
            }
            Work::Wait(_) => self.complete(queue),
        }
        true
    }

    fn complete(&self, queue: &mut Queue) {
        queue.completed += 1;
        queue.free_us = self.now_us;
    }

    fn begin(&mut self, stream: u64, effect: Effect) {
        let start_us = self.now_us;
        let stage = match (effect.task().transfer(), &self.link) {
            (Some((direction, _)), Some(_)) => {
                self.turns[direction.index()].push_back(stream);
                Stage::Queued
            }
            (Some(_), None) => Stage::Fixed { start_us, end_us: start_us },
            (None, _) => Stage::Fixed { start_us, end_us: start_us + fixed_us(effect.task()) },
        };
        self.running.insert(stream, Running { effect, stage });
    }

    fn give_turns(&mut self) {
        let Some(link) = &mut self.link else { return };
        for direction in [Direction::Out, Direction::In] {
            if link.is_busy(direction) {
                continue;
            }
            let Some(stream) = self.turns[direction.index()].pop_front() else { continue };
            let running = self.running.get_mut(&stream).expect("queued work is running work");
            let (_, size_bytes) = running.effect.task().transfer().expect("only copies queue");
            link.start(direction, size_bytes, self.now_us);
            running.stage = Stage::Linked { direction, start_us: self.now_us };
        }
    }

    /// The next completion: when, and of which stream.
    fn next_end(&self) -> Option<(f64, u64)> {
        let end = |running: &Running| match running.stage {
            Stage::Queued => None,
            Stage::Fixed { end_us, .. } => Some(end_us),
            Stage::Linked { direction, .. } => self.link.as_ref()?.finish_us(direction),
        };
        let ends = self.running.iter().filter_map(|(&stream, run)| Some((end(run)?, stream)));
        ends.min_by(|(a_us, a), (b_us, b)| a_us.total_cmp(b_us).then(a.cmp(b)))
    }
}
