//! Promise: one in so many Stable steps unmaps what is away, so that a use that nobody told of
//! fails however seldom it comes; all others make no memory calls, and no step is judged for it.
//!
//! The judges are the counts of calls to the driver, and a child process that must die.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

use adaptive::devices::{HostConfig, HostDriver, HostLink};
use adaptive::{
    AccessMode, ArenaConfig, BlockId, Compute, Config, Engine, FinishedStep, GenerateConfig,
    JointConfig, JointPlanner, Link, LoopConfig, Machine, OpName, OpStack, PoolConfig, Residency,
    Session, Stage,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 10 * BLOCK;
const BLOCKS: u64 = 16;
const MAKE: OpName = OpName::new("make");
const CHECK: OpName = OpName::new("check");
const BESIDE: OpName = OpName::new("beside");

fn session(unmap_every_steps: u32) -> Session<JointPlanner> {
    let bytes_per_s = 1 << 30;
    let rate = bytes_per_s as f64 / 1e6;
    let device =
        HostConfig { link: Some(HostLink::duplex(bytes_per_s)), ..HostConfig::by_time(2 * LIMIT) };
    let device = HostDriver::new(device).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(4 * LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device, config).expect("opens");
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let machine =
        Machine { limit_bytes: LIMIT, host_limit_bytes: 4 * LIMIT, link, copy_submit_us: 0.0 };
    let settings = LoopConfig { limit_bytes: LIMIT, unmap_every_steps, ..LoopConfig::default() };
    let generate = GenerateConfig { min_block_bytes: BLOCK, ..GenerateConfig::default() };
    let config = JointConfig { generate, fits_layout: true, ..JointConfig::default() };
    let planner = JointPlanner::new(machine, config);
    Session::new(engine, settings, planner).expect("a first step")
}

/// Makes blocks of more than fits, and reads them. In the middle `look` sees those that are away.
fn step(ops: &mut OpStack, engine: &Engine, mut look: impl FnMut(u64, BlockId)) {
    let mut blocks = Vec::new();
    for tag in 1..=BLOCKS {
        ops.begin(MAKE).expect("begins");
        let block = ops.allocate(BLOCK, "block").expect("it fits");
        ops.touch(block, AccessMode::Write).expect("it is there");
        ops.launch(200.0, move |operands| operands.write::<u64>(0).fill(tag)).expect("runs");
        ops.end().expect("ends");
        blocks.push((tag, block));
    }
    engine.synchronize().expect("works");
    // The device is done with what has left, which is seen at the next ops.
    for _ in 0..2 * BLOCKS {
        ops.begin_aside(BESIDE, engine.compute_stream()).expect("begins");
        ops.end().expect("ends");
    }
    for &(tag, block) in &blocks {
        if engine.residency(block).expect("lives") == Residency::Away {
            look(tag, block);
        }
    }
    for (tag, block) in blocks.into_iter().rev() {
        ops.begin(CHECK).expect("begins");
        ops.touch(block, AccessMode::Read).expect("it fits");
        let check = move |operands: &adaptive::Operands<'_>| {
            assert!(operands.read::<u64>(0).iter().all(|&found| found == tag));
        };
        ops.launch(200.0, check).expect("runs");
        ops.end().expect("ends");
        ops.free(block).expect("lives");
    }
}

/// So many steps. `look` sees the blocks that are away in the middle of the Stable ones.
fn train(
    session: &mut Session<JointPlanner>,
    steps: usize,
    mut look: impl FnMut(&Engine, u64, BlockId),
) -> Vec<FinishedStep> {
    let engine = session.engine().clone();
    let mut ops = engine.op_stack();
    let mut finished = Vec::new();
    for _ in 0..steps {
        let is_stable = session.stage() == Stage::Stable;
        step(&mut ops, &engine, |tag, block| {
            if is_stable {
                look(&engine, tag, block);
            }
        });
        finished.extend(session.end_step().expect("ends"));
    }
    finished.extend(session.drain().expect("works"));
    finished
}

#[test]
fn one_step_in_so_many_unmaps_and_the_next_maps_again() {
    const EVERY: u64 = 7;
    let mut session = session(EVERY as u32);
    let finished = train(&mut session, 80, |_, _, _| {});
    let stable: Vec<&FinishedStep> =
        finished.iter().filter(|step| step.stage == Stage::Stable).collect();
    assert!(stable.len() >= 60, "{} were Stable", stable.len());
    let is_run = stable.windows(2).all(|pair| pair[0].report.step + 1 == pair[1].report.step);
    assert!(is_run, "an unmapping step was taken for a slow one");
    let calls = |step: &FinishedStep| step.report.counters.memory_calls;
    let unmapping: Vec<u64> = stable
        .iter()
        .skip(2)
        .filter(|step| calls(step).unmapped > 0)
        .map(|step| step.report.step)
        .collect();
    assert!(unmapping.len() >= 7, "{unmapping:?}");
    assert!(unmapping.windows(2).all(|pair| pair[1] - pair[0] == EVERY), "{unmapping:?}");
    for step in stable.iter().skip(2) {
        let (number, calls) = (step.report.step, calls(step));
        let may_map = unmapping.iter().any(|&first| (first..first + 2).contains(&number));
        assert!(may_map || calls.total() == 0, "step {number}: {calls:?}");
        assert_eq!((calls.created, calls.released), (0, 0), "step {number}");
    }
}

#[test]
fn with_no_turn_no_stable_step_unmaps() {
    let mut session = session(0);
    let finished = train(&mut session, 60, |_, _, _| {});
    let stable = finished.iter().filter(|step| step.stage == Stage::Stable).skip(2);
    let calls: Vec<u64> = stable.map(|step| step.report.counters.memory_calls.total()).collect();
    assert!(calls.len() >= 40 && calls.iter().all(|&calls| calls == 0), "{calls:?}");
}

const CHILD: &str = "ADAPTIVE_LOOKS_AT_WHAT_IS_AWAY";

/// Reads each block that is away, which no op tells of.
fn look_behind_the_engines_back(unmap_every_steps: u32) {
    let mut session = session(unmap_every_steps);
    let (mut right, mut wrong) = (0, 0);
    train(&mut session, 60, |engine, tag, block| {
        let address = engine.address(block).expect("lives").0;
        let start = std::ptr::with_exposed_provenance::<u64>(address as usize);
        // SAFETY: a process of its own, and nothing writes there: the device is idle. Where
        // nothing is mapped the fault ends the process, which is what is to be shown.
        let found = unsafe { start.read_volatile() };
        *if found == tag { &mut right } else { &mut wrong } += 1;
    });
    println!("{right} right, {wrong} wrong");
}

#[test]
fn a_use_that_nobody_told_of_fails_in_the_step_that_unmaps() {
    if let Ok(every) = std::env::var(CHILD) {
        look_behind_the_engines_back(every.parse().expect("a number"));
        return;
    }
    let run = |every: u32| -> Output {
        let test = "a_use_that_nobody_told_of_fails_in_the_step_that_unmaps";
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, every.to_string())
            .output()
            .expect("it runs")
    };
    // Without such steps the use reads what others have there.
    let unseen = run(0);
    let said = String::from_utf8_lossy(&unseen.stdout);
    assert!(unseen.status.success(), "{unseen:?}");
    assert!(said.contains(" wrong") && !said.contains(" 0 wrong"), "{said}");
    // A segment or a bus error.
    let found = run(9);
    assert!(matches!(found.status.signal(), Some(11 | 7)), "{found:?}");
}
