//! Lockstep in an order drawn from a seed: any order that streams and events allow.
//!
//! The order is not fair, so that a missing event wait shows quickly. The device stalls or races
//! for a while, and a stream that is drawn as the favourite runs far ahead while others starve.

use crate::host::config::HostLink;
use crate::host::link::{alone_us, fixed_us};
use crate::host::lockstep::{Queue, Queues, perform};
use crate::host::schedule::Work;
use crate::host::timeline::Journal;
use crate::pattern::Numbers;

#[derive(Debug)]
pub(super) struct Seeded {
    link: Option<HostLink>,
    /// When each direction of the link is free again.
    link_free_us: [f64; 2],
    random: Numbers,
    /// This number, modulo the number of ready streams, is the stream that goes first.
    favourite: u64,
    /// How likely one more piece of work runs now, in sixteenths.
    pace: u64,
}

/// From a standstill to nearly all that is ready.
const PACES: [u64; 6] = [0, 1, 3, 6, 10, 15];

impl Seeded {
    pub(super) fn new(link: Option<HostLink>, seed: u64) -> Seeded {
        Seeded { link, link_free_us: [0.0; 2], random: Numbers::new(seed), favourite: 0, pace: 6 }
    }

    /// Runs a random amount of ready work. Sooner or later it runs some.
    pub(super) fn run_some(&mut self, queues: &mut Queues, journal: &Journal) {
        if queues.values().all(|queue| queue.work.is_empty()) {
            return;
        }
        if self.random.below(16) == 0 {
            let drawn = self.random.below(PACES.len() as u64);
            self.pace = PACES[usize::try_from(drawn).expect("an index")];
        }
        while self.random.below(16) < self.pace && self.run_one(queues, journal) {}
    }

    /// Runs one piece of ready work. False if there is none.
    pub(super) fn run_one(&mut self, queues: &mut Queues, journal: &Journal) -> bool {
        let ready = queues.iter().filter(|(_, queue)| is_ready(queue)).map(|(&stream, _)| stream);
        let ready: Vec<u64> = ready.collect();
        if ready.is_empty() {
            return false;
        }
        if self.random.below(16) == 0 {
            self.favourite = self.random.draw();
        }
        let draw = if self.random.below(4) > 0 { self.favourite } else { self.random.draw() };
        let count = ready.len() as u64;
        let chosen = usize::try_from(draw % count).expect("less than the number of streams");
        let stream = ready[chosen];
        let queue = queues.get_mut(&stream).expect("it was just found");
        self.run_front(stream, queue, journal);
        true
    }

    fn run_front(&mut self, stream: u64, queue: &mut Queue, journal: &Journal) {
        let entry = queue.work.pop_front().expect("ready streams have work");
        let mut start_us = queue.free_us.max(entry.submitted_us);
        let mut end_us = start_us;
        match entry.work {
            Work::Mark(signal) => signal.complete(end_us),
            Work::Wait(signal) => {
                end_us = end_us.max(signal.at_us().expect("ready waits are complete"));
            }
            Work::Effect(effect) => {
                match effect.task().transfer() {
                    Some((direction, size_bytes)) => {
                        let free_us = &mut self.link_free_us[direction.index()];
                        start_us = start_us.max(*free_us);
                        end_us = start_us + alone_us(self.link, direction, size_bytes);
                        *free_us = end_us;
                    }
                    None => end_us = start_us + fixed_us(effect.task()),
                }
                perform(journal, stream, effect, start_us, end_us);
            }
        }
        queue.free_us = end_us;
        queue.completed += 1;
    }
}

fn is_ready(queue: &Queue) -> bool {
    match queue.work.front().map(|entry| &entry.work) {
        None => false,
        Some(Work::Wait(signal)) => signal.is_complete(),
        Some(Work::Mark(_) | Work::Effect(_)) => true,
    }
}
