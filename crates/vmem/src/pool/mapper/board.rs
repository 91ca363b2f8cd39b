//! What the mapping thread was given to do, and how far it is: a state machine without threads.
//!
//! Each method is what happens under one lock. It says whom to wake afterwards, so that the tests
//! can walk through all orders in which two threads can come.

use std::collections::{BTreeMap, VecDeque};

use npu_sys::{ChunkHandle, VaRange};

use super::super::physical::MapFailure;

/// How soon a range will be needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Need {
    /// Its block is on its way back.
    Soon,
    /// Some allocation may use it.
    Perhaps,
}

/// What to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(in crate::pool) enum Task {
    /// Put this chunk behind it; nothing is there.
    Map(ChunkHandle),
    /// Take away what is there.
    Unmap,
}

/// How far a range is that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::pool) enum Progress {
    /// Its turn has not come.
    Waiting,
    /// It is its turn.
    Running,
    /// It is over.
    Done,
}

/// What is behind a range that was posted.
#[derive(Clone, Debug)]
pub(in crate::pool) enum RangeState {
    /// Something is mapped there: what was to be, or still what was before.
    Mapped,
    /// Nothing is mapped there.
    Unmapped,
    /// It was tried.
    Failed(MapFailure),
}

/// Who has to look at the board again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(super) enum Wake {
    /// The mapping thread, if it waits for something to do.
    Mapper,
    /// All that wait for a range whose turn it is.
    Waiters,
}

/// What the mapping thread does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    Run(VaRange, Task),
    /// Wait until it is woken.
    Wait,
    End,
}

/// It is the range's turn right now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Busy;

#[derive(Clone, Debug)]
enum Job {
    Waiting { range: VaRange, task: Task },
    Running,
    Done(RangeState),
}

/// The ranges that were posted and not taken yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Board {
    /// By first address of the range.
    jobs: BTreeMap<u64, Job>,
    soon: VecDeque<u64>,
    perhaps: VecDeque<u64>,
    closed: bool,
}

impl Board {
    /// Asks for something to be done with a range of which nothing is known here.
    pub(super) fn post(&mut self, range: VaRange, task: Task, need: Need) -> Wake {
        let start = range.start.0;
        let before = self.jobs.insert(start, Job::Waiting { range, task });
        assert!(before.is_none(), "a range is posted once and taken before it is used again");
        match need {
            Need::Soon => self.soon.push_back(start),
            Need::Perhaps => self.perhaps.push_back(start),
        }
        Wake::Mapper
    }

    /// How far a range is; `None` if it was not posted, or taken since.
    pub(super) fn progress(&self, range: VaRange) -> Option<Progress> {
        Some(match self.jobs.get(&range.start.0)? {
            Job::Waiting { .. } => Progress::Waiting,
            Job::Running => Progress::Running,
            Job::Done(_) => Progress::Done,
        })
    }

    /// Takes a range off the board, as it is. `None` if it was not posted.
    pub(super) fn take(&mut self, range: VaRange) -> Result<Option<RangeState>, Busy> {
        let start = range.start.0;
        if let Some(Job::Running) = self.jobs.get(&start) {
            return Err(Busy);
        }
        Ok(self.jobs.remove(&start).map(|job| match job {
            Job::Waiting { task: Task::Unmap, .. } => RangeState::Mapped,
            Job::Waiting { task: Task::Map(_), .. } => RangeState::Unmapped,
            Job::Done(state) => state,
            Job::Running => unreachable!("seen above"),
        }))
    }

    /// The next range for the mapping thread, whose turn begins.
    pub(super) fn next(&mut self) -> Next {
        while !self.closed {
            let next = self.soon.pop_front().or_else(|| self.perhaps.pop_front());
            let Some(start) = next else { return Next::Wait };
            // It may have been taken, and even posted and done again, since.
            if let Some(job) = self.jobs.get_mut(&start)
                && let Job::Waiting { range, task } = *job
            {
                *job = Job::Running;
                return Next::Run(range, task);
            }
        }
        Next::End
    }

    /// Ends a range's turn.
    pub(super) fn finish(&mut self, range: VaRange, state: RangeState) -> Wake {
        self.jobs.insert(range.start.0, Job::Done(state));
        Wake::Waiters
    }

    /// Lets the mapping thread end.
    pub(super) fn close(&mut self) -> Wake {
        self.closed = true;
        Wake::Mapper
    }

    /// The number of ranges on the board.
    pub(super) fn count(&self) -> usize {
        self.jobs.len()
    }
}

#[cfg(test)]
mod tests;
