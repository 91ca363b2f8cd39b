//! Models of the hand-over: loom runs every interleaving, and fails where a thread waits for ever.

use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex, MutexGuard};
use loom::thread;

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Block {
    Discarded,
    Replaying,
    Resident,
}

/// Two blocks: the second is made from the first.
#[derive(Debug)]
struct State {
    blocks: [Block; 2],
    replays: usize,
}

#[derive(Debug)]
struct Model {
    state: Mutex<State>,
    replayed: Condvar,
    /// The bytes of the blocks, which only a replay writes. Loom notices two at once.
    bytes: [UnsafeCell<u32>; 2],
    /// Replays that fail before one works.
    failures: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Failed;

impl Monitor for Model {
    type State = State;
    type Guard<'a> = MutexGuard<'a, State>;
    type Error = Failed;

    fn lock(&self) -> Result<MutexGuard<'_, State>, Failed> {
        self.state.lock().map_err(|_| Failed)
    }

    fn wait<'a>(&'a self, guard: MutexGuard<'a, State>) -> Result<MutexGuard<'a, State>, Failed> {
        self.replayed.wait(guard).map_err(|_| Failed)
    }

    fn wake(&self) {
        self.replayed.notify_all();
    }
}

impl Model {
    fn new(failures: usize) -> Arc<Model> {
        Arc::new(Model {
            state: Mutex::new(State { blocks: [Block::Discarded; 2], replays: 0 }),
            replayed: Condvar::new(),
            bytes: [UnsafeCell::new(0), UnsafeCell::new(0)],
            failures,
        })
    }

    /// What a touch of the engine does.
    fn touch(&self, block: usize) -> Result<(), Failed> {
        let attempt = |_: &mut (), state: &mut State| {
            Ok(match state.blocks[block] {
                Block::Resident => Attempt::Done(()),
                Block::Discarded => Attempt::Replay(block),
                Block::Replaying => Attempt::Busy,
            })
        };
        until_done(self, &mut (), attempt, |_, block| self.replay(block))
    }

    fn replay(&self, block: usize) -> Result<(), Failed> {
        let begin = |state: &mut State| {
            if state.blocks[block] != Block::Discarded {
                return Ok(None);
            }
            state.blocks[block] = Block::Replaying;
            state.replays += 1;
            Ok(Some(state.replays <= self.failures))
        };
        let run = |_: &mut (), fails: bool| {
            if block == 1 {
                self.touch(0)?;
            }
            self.bytes[block].with_mut(|_| ());
            if fails { Err(Failed) } else { Ok(()) }
        };
        let end = |_: &mut (), state: &mut State, outcome: Result<(), Failed>| {
            let done = outcome.is_ok();
            state.blocks[block] = if done { Block::Resident } else { Block::Discarded };
            outcome
        };
        super::replay(self, &mut (), begin, run, end)?.unwrap_or(Ok(()))
    }
}

/// Threads that touch these blocks, one each; the number that failed, and that of replays.
fn run(failures: usize, touched: &[usize]) -> (usize, usize) {
    let model = Model::new(failures);
    let spawn = |&block: &usize| {
        let model = Arc::clone(&model);
        thread::spawn(move || model.touch(block))
    };
    let others: Vec<_> = touched[1..].iter().map(spawn).collect();
    let mine = model.touch(touched[0]);
    let results = others.into_iter().map(|other| other.join().expect("no panic"));
    let failed = results.chain([mine]).filter(Result::is_err).count();
    let state = model.state.lock().expect("nobody panicked");
    assert!(!state.blocks.contains(&Block::Replaying));
    (failed, state.replays)
}

#[test]
fn one_replays_and_all_others_wait_for_it() {
    loom::model(|| assert_eq!(run(0, &[0, 0]), (0, 1)));
    // Three threads interleave in too many ways to try all.
    let mut few = loom::model::Builder::new();
    few.preemption_bound = Some(2);
    few.check(|| assert_eq!(run(0, &[0, 0, 0]), (0, 1)));
}

#[test]
fn after_a_failed_replay_another_thread_tries() {
    loom::model(|| assert_eq!(run(1, &[0, 0]), (1, 2)));
    loom::model(|| assert_eq!(run(2, &[0, 0]), (2, 2)));
}

#[test]
fn a_replay_waits_for_that_of_its_input() {
    loom::model(|| assert_eq!(run(0, &[1, 0]), (0, 2)));
    loom::model(|| assert_eq!(run(0, &[1, 1]), (0, 2)));
}

/// Ordinary locks, which a panic poisons.
#[derive(Debug, Default)]
struct Ordinary {
    is_replaying: std::sync::Mutex<bool>,
    replayed: std::sync::Condvar,
}

impl Monitor for Ordinary {
    type State = bool;
    type Guard<'a> = std::sync::MutexGuard<'a, bool>;
    type Error = Failed;

    fn lock(&self) -> Result<Self::Guard<'_>, Failed> {
        self.is_replaying.lock().map_err(|_| Failed)
    }

    fn wait<'a>(&'a self, guard: Self::Guard<'a>) -> Result<Self::Guard<'a>, Failed> {
        self.replayed.wait(guard).map_err(|_| Failed)
    }

    fn wake(&self) {
        self.replayed.notify_all();
    }
}

#[test]
fn who_waits_hears_of_a_replay_whose_end_panics() {
    let monitor = Ordinary::default();
    let (tried, has_tried) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let begin = |is_replaying: &mut bool| {
            *is_replaying = true;
            Ok(Some(()))
        };
        let waiter = |is_replaying: &mut bool| {
            assert!(*is_replaying);
            tried.send(()).expect("the replay waits for it");
            Ok(Attempt::<(), ()>::Busy)
        };
        let monitor = &monitor;
        let mut waiting = None;
        let run = |waiting: &mut Option<_>, ()| {
            let wait =
                move || until_done(monitor, &mut (), |_, state| waiter(state), |_, ()| Ok(()));
            *waiting = Some(scope.spawn(wait));
            // From then on it holds the lock until it waits.
            has_tried.recv().expect("it tries");
        };
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let end = |_: &mut Option<_>, _: &mut bool, ()| panic!("a bug");
            super::replay(monitor, &mut waiting, begin, run, end)
        }));
        assert!(panicked.is_err());
        let waited = waiting.expect("it was started").join().expect("no panic");
        assert_eq!(waited, Err(Failed));
    });
}
