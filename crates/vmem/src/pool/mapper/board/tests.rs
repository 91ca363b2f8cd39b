//! All orders in which the thread that runs operators and the mapping thread can come, for all
//! short programs: nobody sleeps for ever, nobody touches a range that is the other's, and what a
//! range is said to be it is.

use std::collections::{BTreeMap, BTreeSet};

use npu_sys::DevicePtr;

use super::*;

/// Calls of a program before it closes the board.
const CALLS: u32 = 5;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    /// Maps the range, or unmaps it where it is mapped.
    Post(u64, Need),
    Take(u64),
    Close,
    /// Waits for the end of the mapping thread.
    Join,
}

const CALLED: [Call; 4] =
    [Call::Post(1, Need::Soon), Call::Take(1), Call::Post(2, Need::Perhaps), Call::Take(2)];

/// Where the mapping thread is. It holds no lock between two of these.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mapper {
    Looks,
    Sleeps,
    Performs(VaRange, Task),
    Finishes(VaRange, Task),
    Wakes(Wake),
    Ended,
}

/// Both threads, the board between them, and the device.
#[derive(Clone, Debug)]
struct World {
    board: Board,
    mapper: Mapper,
    calls: Vec<Call>,
    /// The other thread sleeps until the turn of the range that it takes is over.
    sleeps: bool,
    wakes: Option<Wake>,
    /// By range that is not posted: whether it is mapped.
    known: BTreeMap<u64, bool>,
    mapped: BTreeSet<u64>,
    /// Wakes of this kind are lost: the bug that the model must see.
    lost: Option<Wake>,
}

fn range(number: u64) -> VaRange {
    VaRange { start: DevicePtr(number), size_bytes: 1 }
}

impl World {
    /// Calls from the last to the first.
    fn new(calls: Vec<Call>, lost: Option<Wake>) -> World {
        World {
            board: Board::default(),
            mapper: Mapper::Looks,
            calls,
            sleeps: false,
            wakes: None,
            known: BTreeMap::from([(1, false), (2, false)]),
            mapped: BTreeSet::new(),
            lost,
        }
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            lost if Some(lost) == self.lost => {}
            Wake::Mapper if self.mapper == Mapper::Sleeps => self.mapper = Mapper::Looks,
            Wake::Mapper => {}
            Wake::Waiters => self.sleeps = false,
        }
    }

    /// One step of the mapping thread; `None` if it can make none.
    fn step_mapper(&self) -> Option<World> {
        let mut world = self.clone();
        world.mapper = match self.mapper {
            Mapper::Sleeps | Mapper::Ended => return None,
            Mapper::Looks => match world.board.next() {
                Next::Run(range, task) => Mapper::Performs(range, task),
                Next::Wait => Mapper::Sleeps,
                Next::End => Mapper::Ended,
            },
            Mapper::Performs(range, task) => {
                let start = range.start.0;
                assert!(!world.known.contains_key(&start), "the range is the other thread's");
                let fits = match task {
                    Task::Map(_) => world.mapped.insert(start),
                    Task::Unmap => world.mapped.remove(&start),
                };
                assert!(fits, "mapped twice, or unmapped twice");
                Mapper::Finishes(range, task)
            }
            Mapper::Finishes(range, task) => {
                let is_mapped = matches!(task, Task::Map(_));
                let state = if is_mapped { RangeState::Mapped } else { RangeState::Unmapped };
                Mapper::Wakes(world.board.finish(range, state))
            }
            Mapper::Wakes(wake) => {
                world.wake(wake);
                Mapper::Looks
            }
        };
        Some(world)
    }

    /// One step of the other thread; `None` if it can make none.
    fn step_caller(&self) -> Option<World> {
        let mut world = self.clone();
        if let Some(wake) = world.wakes.take() {
            world.wake(wake);
            return Some(world);
        }
        if self.sleeps {
            return None;
        }
        match world.calls.pop()? {
            Call::Post(number, need) => {
                // One that is posted already is left alone.
                if let Some(is_mapped) = world.known.remove(&number) {
                    let task = if is_mapped { Task::Unmap } else { Task::Map(ChunkHandle(number)) };
                    world.wakes = Some(world.board.post(range(number), task, need));
                }
            }
            Call::Take(number) => match world.board.take(range(number)) {
                Ok(None) => assert!(world.known.contains_key(&number), "a post was forgotten"),
                Ok(Some(state)) => {
                    let is_mapped = matches!(state, RangeState::Mapped);
                    assert_eq!(is_mapped, world.mapped.contains(&number), "as it is said to be");
                    let before = world.known.insert(number, is_mapped);
                    assert_eq!(before, None, "taken twice");
                }
                Err(Busy) => {
                    world.calls.push(Call::Take(number));
                    world.sleeps = true;
                }
            },
            Call::Close => world.wakes = Some(world.board.close()),
            Call::Join if self.mapper == Mapper::Ended => {}
            Call::Join => return None,
        }
        Some(world)
    }

    fn is_over(&self) -> bool {
        self.mapper == Mapper::Ended && self.calls.is_empty() && self.wakes.is_none()
    }
}

/// What a walk came by.
#[derive(Default, Debug)]
struct Walk {
    seen: BTreeSet<String>,
    ends: u64,
    /// Worlds in which nobody can make a step, and which are not over.
    stuck: u64,
    slept: u64,
}

impl Walk {
    fn from(first: World) -> Walk {
        let mut walk = Walk::default();
        let mut open = vec![first];
        while let Some(world) = open.pop() {
            if !walk.seen.insert(format!("{world:?}")) {
                continue;
            }
            walk.slept += u64::from(world.sleeps);
            let steps = [world.step_mapper(), world.step_caller()];
            match steps.iter().flatten().count() {
                0 if world.is_over() => walk.ends += 1,
                0 => walk.stuck += 1,
                _ => open.extend(steps.into_iter().flatten()),
            }
        }
        walk
    }
}

/// All programs of so many calls.
fn programs() -> impl Iterator<Item = Vec<Call>> {
    let kinds = CALLED.len();
    (0..kinds.pow(CALLS)).map(move |number| {
        let digits = (0..CALLS).map(|place| number / kinds.pow(place) % kinds);
        [Call::Join, Call::Close].into_iter().chain(digits.map(|digit| CALLED[digit])).collect()
    })
}

#[test]
fn in_no_order_of_steps_is_a_range_touched_by_two_or_a_thread_left_asleep() {
    let (mut worlds, mut slept) = (0, 0);
    for program in programs() {
        let walk = Walk::from(World::new(program.clone(), None));
        assert!(walk.stuck == 0 && walk.ends > 0, "{program:?}");
        worlds += walk.seen.len();
        slept += walk.slept;
    }
    println!("{worlds} worlds, {slept} with a caller asleep");
    assert!(worlds > 10_000 && slept > 1000, "{worlds} worlds, {slept} with a caller asleep");
}

#[test]
fn a_wake_that_is_lost_leaves_a_thread_asleep_in_some_order() {
    for lost in [Wake::Mapper, Wake::Waiters] {
        let stuck = |program| Walk::from(World::new(program, Some(lost))).stuck;
        assert!(programs().any(|program| stuck(program) > 0), "{lost:?}");
    }
}
