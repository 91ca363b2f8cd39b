//! Maps and unmaps ranges ahead of need, on a thread of its own.
//!
//! On some devices giving access to memory waits for a copy to the host that is under way (about
//! a millisecond on GPUs, whatever the size), and other calls on mappings wait for it in turn,
//! while all the rest goes on. There the thread that runs operators leaves mappings to this one,
//! and waits only for a range that it needs at once.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use npu_sys::{ChunkHandle, Driver, VaRange};

use super::physical::{MapFailure, map_with_access, unmap_unused};

/// How soon a range will be needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Its block is on its way back.
    Soon,
    /// Some allocation may use it.
    Perhaps,
}

/// What to do with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// Put this chunk behind it; nothing is there.
    Map(ChunkHandle),
    /// Take away what is there.
    Unmap,
}

/// How far a range is that was posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// Its turn has not come.
    Waiting,
    /// It is its turn.
    Running,
    /// It is over.
    Done,
}

/// What is behind a range that was posted.
#[derive(Debug)]
pub(super) enum Settled {
    /// Something is mapped there: what was to be, or still what was before.
    Mapped,
    /// Nothing is mapped there.
    Unmapped,
    /// It was tried.
    Failed(MapFailure),
}

#[derive(Debug)]
enum Job {
    Waiting { range: VaRange, task: Task },
    Running,
    Done(Settled),
}

#[derive(Debug, Default)]
struct Board {
    /// By first address of the range.
    jobs: BTreeMap<u64, Job>,
    soon: VecDeque<u64>,
    perhaps: VecDeque<u64>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    posted: Condvar,
    done: Condvar,
}

/// The thread that maps, and what it was given to do.
pub(super) struct Mapper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mapper {
    /// Starts the thread if the device needs one. Without it nothing is posted.
    pub(super) fn new(driver: &Arc<dyn Driver>) -> Mapper {
        let shared = Arc::new(Shared::default());
        let mut thread = None;
        if driver.properties().map_waits_for_copies {
            let (driver, shared) = (Arc::clone(driver), Arc::clone(&shared));
            let work = move || run(&*driver, &shared);
            // A system without another thread maps when it must.
            thread = thread::Builder::new().name("smartswap map".to_owned()).spawn(work).ok();
        }
        Mapper { shared, thread }
    }

    /// Whether ranges can be posted.
    pub(super) fn is_running(&self) -> bool {
        self.thread.is_some()
    }

    /// Asks for something to be done with a range of which nothing is known here.
    pub(super) fn post(&self, range: VaRange, task: Task, need: Need) {
        let start = range.start.0;
        let mut board = self.shared.lock();
        let before = board.jobs.insert(start, Job::Waiting { range, task });
        assert!(before.is_none(), "a range is posted once and settled before it is used again");
        match need {
            Need::Soon => board.soon.push_back(start),
            Need::Perhaps => board.perhaps.push_back(start),
        }
        drop(board);
        self.shared.posted.notify_one();
    }

    /// How far a range is; `None` if it was not posted, or settled since.
    pub(super) fn progress(&self, range: VaRange) -> Option<Progress> {
        if !self.is_running() {
            return None;
        }
        Some(match self.shared.lock().jobs.get(&range.start.0)? {
            Job::Waiting { .. } => Progress::Waiting,
            Job::Running => Progress::Running,
            Job::Done(_) => Progress::Done,
        })
    }

    /// What is behind a range, waiting if it is its turn right now. A range whose turn has not come
    /// is left as it is. `None` if it was not posted.
    pub(super) fn settle(&self, range: VaRange) -> Option<Settled> {
        if !self.is_running() {
            return None;
        }
        let start = range.start.0;
        let mut board = self.shared.lock();
        loop {
            match board.jobs.remove(&start)? {
                Job::Waiting { task: Task::Unmap, .. } => return Some(Settled::Mapped),
                Job::Waiting { task: Task::Map(_), .. } => return Some(Settled::Unmapped),
                Job::Done(settled) => return Some(settled),
                Job::Running => {
                    board.jobs.insert(start, Job::Running);
                    board = self.shared.done.wait(board).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

impl Shared {
    /// Locks. No value on the board is left half-changed by a panic.
    fn lock(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next range; `None` when there will be no more.
    fn next(&self) -> Option<(VaRange, Task)> {
        let mut board = self.lock();
        loop {
            if board.closed {
                return None;
            }
            let next = board.soon.pop_front().or_else(|| board.perhaps.pop_front());
            let Some(start) = next else {
                board = self.posted.wait(board).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // It may have been settled, and even posted and done again, since.
            if let Some(job) = board.jobs.get_mut(&start)
                && let Job::Waiting { range, task } = *job
            {
                *job = Job::Running;
                return Some((range, task));
            }
        }
    }
}

fn run(driver: &dyn Driver, shared: &Shared) {
    while let Some((range, task)) = shared.next() {
        let settled = perform(driver, range, task);
        shared.lock().jobs.insert(range.start.0, Job::Done(settled));
        shared.done.notify_all();
    }
}

fn perform(driver: &dyn Driver, range: VaRange, task: Task) -> Settled {
    let (done, result) = match task {
        Task::Map(chunk) => (Settled::Mapped, map_with_access(driver, range, chunk)),
        Task::Unmap => {
            let result = unmap_unused(driver, range);
            let failed = |error| MapFailure { error, still_mapped: true };
            (Settled::Unmapped, result.map_err(failed))
        }
    };
    result.map_or_else(Settled::Failed, |()| done)
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.posted.notify_all();
        if let Some(thread) = self.thread.take() {
            // It only passes on what the driver says; there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Mapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let posted = self.shared.lock().jobs.len();
        f.debug_struct("Mapper")
            .field("is_running", &self.is_running())
            .field("posted", &posted)
            .finish()
    }
}
