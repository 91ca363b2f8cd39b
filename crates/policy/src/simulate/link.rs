//! The two copy engines of the simulator: one copy at a time each way, in order of issue, and
//! slower while both run.

use swap_core::Direction;

use super::Span;
use crate::machine::Machine;
use crate::usage::NONE;

/// A copy's number, in order of issue.
pub(super) type CopyId = u32;

#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub(super) direction: Direction,
    pub(super) block: u32,
    pub(super) size_bytes: u64,
    pub(super) called_us: f64,
    /// It does not start before this.
    floor_us: f64,
    /// Nor before these copies are done; [`NONE`] for none.
    after: [CopyId; 2],
    pub(super) start_us: f64,
    pub(super) end_us: f64,
}

/// Copies in flight and done. Time moves forward only as far as somebody must know it, so that
/// copies issued later still share the link with those under way.
#[derive(Clone, Debug)]
pub(super) struct Engines {
    machine: Machine,
    pub(super) copies: Vec<Copy>,
    lanes: [Lane; 2],
    clock_us: f64,
}

#[derive(Clone, Debug, Default)]
struct Lane {
    /// Issued copies of this direction, and how many of them are done.
    queue: Vec<CopyId>,
    done: usize,
    /// Bytes that the copy under way still has to move; nothing while the lane is idle.
    left_bytes: Option<f64>,
}

impl Engines {
    pub(super) fn new(machine: Machine) -> Engines {
        Engines { machine, copies: Vec::new(), lanes: Default::default(), clock_us: 0.0 }
    }

    /// Issues a copy at one time that starts after another, and after two other copies.
    pub(super) fn issue(
        &mut self,
        direction: Direction,
        block: u32,
        size_bytes: u64,
        [called_us, floor_us]: [f64; 2],
        after: [CopyId; 2],
    ) -> CopyId {
        let id = self.copies.len() as CopyId;
        let (start_us, end_us) = (f64::NAN, f64::NAN);
        self.copies.push(Copy {
            direction,
            block,
            size_bytes,
            called_us,
            floor_us,
            after,
            start_us,
            end_us,
        });
        self.lanes[direction as usize].queue.push(id);
        id
    }

    /// Moves a copy's earliest start up, if it has not started.
    pub(super) fn delay(&mut self, id: CopyId, floor_us: f64) {
        let copy = &mut self.copies[id as usize];
        copy.floor_us = copy.floor_us.max(floor_us);
    }

    /// When a copy is done, in microseconds.
    pub(super) fn finish(&mut self, id: CopyId) -> f64 {
        while self.copies[id as usize].end_us.is_nan() {
            self.advance();
        }
        self.copies[id as usize].end_us
    }

    /// When a finished copy ran; nothing for [`NONE`].
    pub(super) fn span(&self, id: CopyId) -> Option<Span> {
        let copy = self.copies.get(id as usize)?;
        Some(Span { start_us: copy.start_us, end_us: copy.end_us })
    }

    pub(super) fn finish_all(&mut self) {
        if let Some(&last) = self.lanes[0].queue.last() {
            self.finish(last);
        }
        if let Some(&last) = self.lanes[1].queue.last() {
            self.finish(last);
        }
    }

    /// Moves time to the next start or end of a copy.
    fn advance(&mut self) {
        let busy = [self.lanes[0].left_bytes.is_some(), self.lanes[1].left_bytes.is_some()];
        let rates = [self.rate(0, busy), self.rate(1, busy)];
        let event_us = [0, 1].map(|index| match self.lanes[index].left_bytes {
            Some(left) => self.clock_us + left / rates[index],
            None => self.ready_us(&self.lanes[index]) + self.machine.copy_submit_us,
        });
        let next_us = event_us[0].min(event_us[1]);
        assert!(next_us.is_finite(), "a copy waits for one that was never issued");
        let next_us = next_us.max(self.clock_us);
        for index in 0..2 {
            if event_us[index] <= next_us {
                self.turn(index, next_us);
            } else if let Some(left) = &mut self.lanes[index].left_bytes {
                *left -= (next_us - self.clock_us) * rates[index];
            }
        }
        self.clock_us = next_us;
    }

    /// The lane's next copy starts to move bytes, or the one under way ends.
    fn turn(&mut self, index: usize, now_us: f64) {
        let lane = &mut self.lanes[index];
        let copy = &mut self.copies[lane.queue[lane.done] as usize];
        if lane.left_bytes.take().is_some() {
            copy.end_us = now_us;
            lane.done += 1;
        } else {
            copy.start_us = now_us - self.machine.copy_submit_us;
            lane.left_bytes = Some(copy.size_bytes as f64);
        }
    }

    fn rate(&self, index: usize, busy: [bool; 2]) -> f64 {
        self.machine.link.rate(index == 0, busy[1 - index])
    }

    /// When the lane's next copy may start; infinite if that is not known yet.
    fn ready_us(&self, lane: &Lane) -> f64 {
        let Some(&id) = lane.queue.get(lane.done) else { return f64::INFINITY };
        let copy = &self.copies[id as usize];
        let before = lane.done.checked_sub(1).map_or(NONE, |last| lane.queue[last]);
        let mut ready_us = copy.floor_us;
        for other in [copy.after[0], copy.after[1], before] {
            if other != NONE {
                let end_us = self.copies[other as usize].end_us;
                ready_us = if end_us.is_nan() { f64::INFINITY } else { ready_us.max(end_us) };
            }
        }
        ready_us
    }
}
