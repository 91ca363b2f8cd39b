//! Vector clocks: which work each stream, and the host, knows to be complete.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::types::{EventHandle, StreamHandle};

/// A stream's place in every clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lane(usize);

/// One piece of work: the `number`-th of its lane, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epoch {
    lane: Lane,
    pub(super) number: u64,
}

/// For each lane, up to which piece of its work is complete.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock {
    numbers: SmallVec<[u64; 8]>,
}

impl Clock {
    /// Whether work `epoch` is complete by this clock.
    pub(super) fn covers(&self, epoch: Epoch) -> bool {
        self.get(epoch.lane) >= epoch.number
    }

    fn get(&self, Lane(lane): Lane) -> u64 {
        self.numbers.get(lane).copied().unwrap_or(0)
    }

    fn set(&mut self, Lane(lane): Lane, number: u64) {
        if self.numbers.len() <= lane {
            self.numbers.resize(lane + 1, 0);
        }
        self.numbers[lane] = number;
    }

    fn join(&mut self, other: &Clock) {
        for (lane, &number) in other.numbers.iter().enumerate() {
            if number > self.get(Lane(lane)) {
                self.set(Lane(lane), number);
            }
        }
    }
}

/// The clocks of the host, of every stream, and of what every event stands for.
///
/// All host threads count as one: what one of them waited for, all of them know.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    host: Clock,
    lanes: Vec<Clock>,
    by_stream: BTreeMap<StreamHandle, Lane>,
    /// Lanes of destroyed streams.
    retired: Vec<Lane>,
    events: BTreeMap<EventHandle, Clock>,
}

impl Clocks {
    /// What the host knows.
    pub(super) fn host(&self) -> &Clock {
        &self.host
    }

    /// What work submitted to `lane` now may rely on.
    pub(super) fn of(&self, Lane(lane): Lane) -> &Clock {
        &self.lanes[lane]
    }

    /// The lane of `stream`, which now knows what the host knows.
    ///
    /// A stream that was created elsewhere, as a framework's, gets its lane here.
    pub(super) fn submit(&mut self, stream: StreamHandle) -> Lane {
        let lane = match self.by_stream.get(&stream) {
            Some(&lane) => lane,
            None => self.add_stream(stream),
        };
        self.lanes[lane.0].join(&self.host);
        lane
    }

    /// The work that would be the next of `lane`.
    pub(super) fn next(&self, lane: Lane) -> Epoch {
        Epoch { lane, number: self.of(lane).get(lane) + 1 }
    }

    /// Counts `epoch` as submitted.
    pub(super) fn advance(&mut self, epoch: Epoch) {
        let Epoch { lane, number } = epoch;
        self.lanes[lane.0].set(lane, number);
    }

    pub(super) fn add_stream(&mut self, stream: StreamHandle) -> Lane {
        self.remove_stream(stream);
        // A lane may serve again once the host knows all its work: later work of any stream is
        // ordered after that work anyway.
        let idle = |&lane: &Lane| self.host.get(lane) >= self.of(lane).get(lane);
        let lane = match self.retired.iter().position(idle) {
            Some(index) => {
                // What the old stream waited for last, the host need not know, nor the new one.
                let lane = self.retired.swap_remove(index);
                self.lanes[lane.0] = self.host.clone();
                lane
            }
            None => {
                self.lanes.push(Clock::default());
                Lane(self.lanes.len() - 1)
            }
        };
        self.by_stream.insert(stream, lane);
        lane
    }

    pub(super) fn remove_stream(&mut self, stream: StreamHandle) {
        self.retired.extend(self.by_stream.remove(&stream));
    }

    /// Makes `event` stand for all work of `stream` so far.
    pub(super) fn record(&mut self, event: EventHandle, stream: StreamHandle) {
        let lane = self.submit(stream);
        self.events.insert(event, self.of(lane).clone());
    }

    pub(super) fn remove_event(&mut self, event: EventHandle) {
        self.events.remove(&event);
    }

    /// Orders later work of `stream` after what `event` stands for now.
    pub(super) fn wait(&mut self, stream: StreamHandle, event: EventHandle) {
        let Lane(lane) = self.submit(stream);
        if let Some(clock) = self.events.get(&event) {
            self.lanes[lane].join(clock);
        }
    }

    /// What `event` stands for now.
    pub(super) fn of_event(&self, event: EventHandle) -> Clock {
        self.events.get(&event).cloned().unwrap_or_default()
    }

    /// All work of `stream` so far, and what it waited for.
    pub(super) fn of_stream(&self, stream: StreamHandle) -> Clock {
        self.by_stream.get(&stream).map(|&lane| self.of(lane).clone()).unwrap_or_default()
    }

    /// The host learned that all that `clock` covers is complete.
    pub(super) fn host_learns(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// The host learned that all work so far is complete.
    pub(super) fn host_learns_all(&mut self) {
        for lane in &self.lanes {
            self.host.join(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(clocks: &mut Clocks, stream: u64) -> Epoch {
        let lane = clocks.submit(StreamHandle(stream));
        let epoch = clocks.next(lane);
        clocks.advance(epoch);
        epoch
    }

    #[test]
    fn a_lane_serves_again_only_once_the_host_knows_its_work() {
        let mut clocks = Clocks::default();
        let first = work(&mut clocks, 1);
        clocks.remove_stream(StreamHandle(1));
        let second = work(&mut clocks, 2);
        assert_ne!(first.lane, second.lane, "its work may still run");

        clocks.record(EventHandle(1), StreamHandle(2));
        clocks.remove_stream(StreamHandle(2));
        clocks.host_learns(&clocks.of_event(EventHandle(1)));
        let third = work(&mut clocks, 3);
        assert_eq!(second.lane, third.lane, "its work is known to be complete");
        assert_eq!(third.number, second.number + 1);
        assert!(clocks.host().covers(second) && !clocks.host().covers(third));
        assert_eq!(clocks.lanes.len(), 2);
    }

    #[test]
    fn clocks_stay_as_short_as_the_streams_that_live_at_once() {
        let mut clocks = Clocks::default();
        for stream in 0..1000 {
            work(&mut clocks, stream);
            clocks.host_learns(&clocks.of_stream(StreamHandle(stream)));
            clocks.remove_stream(StreamHandle(stream));
        }
        assert_eq!(clocks.lanes.len(), 1);
    }
}
