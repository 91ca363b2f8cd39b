//! Maps and unmaps ranges ahead of need, on a thread of its own.
//!
//! On some devices giving access to memory waits for a copy to the host that is under way (about
//! a millisecond on GPUs, whatever the size), and other calls on mappings wait for it in turn,
//! while all the rest goes on. There the thread that runs operators leaves mappings to this one,
//! and waits only for a range that it needs at once.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use npu_sys::VaRange;

use super::caller::Caller;
use super::physical::{MapFailure, map_with_access, unmap_unused};

use self::board::{Board, Busy, Next, Wake};

pub(super) use self::board::{Need, Progress, RangeState, Task};

mod board;

#[derive(Debug, Default)]
struct Shared {
    board: Mutex<Board>,
    /// The mapping thread waits here.
    posted: Condvar,
    /// All others wait here.
    done: Condvar,
}

/// The thread that maps, and what it was given to do.
pub(super) struct Mapper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Mapper {
    /// Starts the thread if the device needs one. Without it nothing is posted.
    pub(super) fn new(driver: &Arc<Caller>) -> Mapper {
        let shared = Arc::new(Shared::default());
        let mut thread = None;
        if driver.properties().map_waits_for_copies {
            let (driver, shared) = (Arc::clone(driver), Arc::clone(&shared));
            let work = move || run(&driver, &shared);
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
        self.shared.change(|board| board.post(range, task, need));
    }

    /// How far a range is; `None` if it was not posted, or taken since.
    pub(super) fn progress(&self, range: VaRange) -> Option<Progress> {
        if !self.is_running() {
            return None;
        }
        self.shared.lock().progress(range)
    }

    /// What is behind a range, waiting if it is its turn right now. A range whose turn has not come
    /// is left as it is. `None` if it was not posted.
    pub(super) fn take(&self, range: VaRange) -> Option<RangeState> {
        if !self.is_running() {
            return None;
        }
        let mut board = self.shared.lock();
        loop {
            match board.take(range) {
                Ok(state) => return state,
                Err(Busy) => {
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

    /// Changes the board and wakes those that the change concerns.
    fn change(&self, change: impl FnOnce(&mut Board) -> Wake) {
        let wake = change(&mut self.lock());
        match wake {
            Wake::Mapper => self.posted.notify_one(),
            Wake::Waiters => self.done.notify_all(),
        }
    }

    /// The next range; `None` when there will be no more.
    fn next(&self) -> Option<(VaRange, Task)> {
        let mut board = self.lock();
        loop {
            match board.next() {
                Next::Run(range, task) => return Some((range, task)),
                Next::End => return None,
                Next::Wait => {
                    board = self.posted.wait(board).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

fn run(driver: &Caller, shared: &Shared) {
    while let Some((range, task)) = shared.next() {
        let state = perform(driver, range, task);
        shared.change(|board| board.finish(range, state));
    }
}

fn perform(driver: &Caller, range: VaRange, task: Task) -> RangeState {
    let (done, result) = match task {
        Task::Map(chunk) => (RangeState::Mapped, map_with_access(driver, range, chunk)),
        Task::Unmap => {
            // SAFETY: a range is posted to be unmapped once its uses were seen to be complete.
            let result = unsafe { unmap_unused(driver, range) };
            let failed = |error| MapFailure { error, still_mapped: true };
            (RangeState::Unmapped, result.map_err(failed))
        }
    };
    result.map_or_else(RangeState::Failed, |()| done)
}

impl Drop for Mapper {
    fn drop(&mut self) {
        self.shared.change(Board::close);
        if let Some(thread) = self.thread.take() {
            // It only passes on what the driver says; there is nothing to learn from its end.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Mapper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let posted = self.shared.lock().count();
        f.debug_struct("Mapper")
            .field("is_running", &self.is_running())
            .field("posted", &posted)
            .finish()
    }
}
