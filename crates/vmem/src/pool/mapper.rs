//! Maps ranges ahead of need, on a thread of its own.
//!
//! On some devices giving access to memory waits for a copy to the host that is under way (about
//! a millisecond on GPUs, whatever the size), while all other calls go on. There the thread that
//! runs operators leaves mapping to this one, and waits only for a range that it needs at once.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use npu_sys::{ChunkHandle, Driver, VaRange};

use super::physical::{MapFailure, map_with_access};

/// How soon a range will be needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Its block is on its way back.
    Soon,
    /// Some allocation may use it.
    Perhaps,
}

/// What became of a range that was posted.
#[derive(Debug)]
pub(super) enum Settled {
    /// The chunk is mapped there.
    Mapped,
    /// Its turn had not come; nothing is mapped.
    Untouched,
    /// It was tried.
    Failed(MapFailure),
}

#[derive(Debug)]
enum Job {
    Waiting { range: VaRange, chunk: ChunkHandle },
    Running,
    Done(Result<(), MapFailure>),
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

    /// Asks for a chunk behind a range of which nothing is known here.
    pub(super) fn post(&self, range: VaRange, chunk: ChunkHandle, need: Need) {
        let start = range.start.0;
        let mut board = self.shared.lock();
        let before = board.jobs.insert(start, Job::Waiting { range, chunk });
        assert!(before.is_none(), "a range is posted once and settled before it is used again");
        match need {
            Need::Soon => board.soon.push_back(start),
            Need::Perhaps => board.perhaps.push_back(start),
        }
        drop(board);
        self.shared.posted.notify_one();
    }

    /// Whether settling the range would wait.
    pub(super) fn is_busy(&self, range: VaRange) -> bool {
        self.is_running()
            && matches!(self.shared.lock().jobs.get(&range.start.0), Some(Job::Running))
    }

    /// Whether the range was posted and is not settled.
    pub(super) fn knows(&self, range: VaRange) -> bool {
        self.is_running() && self.shared.lock().jobs.contains_key(&range.start.0)
    }

    /// What became of a range, waiting if it is its turn right now. `None` if it was not posted.
    pub(super) fn settle(&self, range: VaRange) -> Option<Settled> {
        if !self.is_running() {
            return None;
        }
        let start = range.start.0;
        let mut board = self.shared.lock();
        loop {
            match board.jobs.remove(&start)? {
                Job::Waiting { .. } => return Some(Settled::Untouched),
                Job::Done(Ok(())) => return Some(Settled::Mapped),
                Job::Done(Err(failure)) => return Some(Settled::Failed(failure)),
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

    /// The next range to map; `None` when there will be no more.
    fn next(&self) -> Option<(VaRange, ChunkHandle)> {
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
                && let Job::Waiting { range, chunk } = *job
            {
                *job = Job::Running;
                return Some((range, chunk));
            }
        }
    }
}

fn run(driver: &dyn Driver, shared: &Shared) {
    while let Some((range, chunk)) = shared.next() {
        let result = map_with_access(driver, range, chunk);
        shared.lock().jobs.insert(range.start.0, Job::Done(result));
        shared.done.notify_all();
    }
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
