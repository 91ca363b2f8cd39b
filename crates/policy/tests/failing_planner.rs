//! Promise: a planner that fails ends no training. Steps that need more than the cap go on, on
//! demand, with the right bytes, and what was recorded can be saved for a report.

use std::sync::Arc;

use policy::devices::{HostConfig, HostDriver};
use policy::{
    AccessMode, ArenaConfig, Compute, Config, Engine, Error, Feedback, LoopConfig, OpName, Planner,
    PoolConfig, Proposal, RecordedConfig, Session, Stage, Trace, TraceFault, load_trace,
    save_trace,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 8 * BLOCK;

#[derive(Debug)]
struct Panicking;

impl Planner for Panicking {
    fn plan(&mut self, _: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        panic!("no plan today");
    }
}

/// One step that makes more blocks than the cap holds, and reads each again. Calls `middle` in
/// between.
fn step(engine: &Engine, middle: impl FnOnce()) -> Result<(), Error> {
    let mut ops = engine.op_stack();
    let mut blocks = Vec::new();
    for number in 0..12_u64 {
        ops.begin(OpName::new("make"))?;
        let block = ops.allocate(BLOCK, "block")?;
        ops.touch(block, AccessMode::Write)?;
        ops.launch(10.0, move |operands| operands.write::<u64>(0).fill(number))?;
        ops.end()?;
        blocks.push(block);
    }
    middle();
    for (number, block) in (0..12_u64).zip(blocks) {
        ops.begin(OpName::new("use"))?;
        ops.touch(block, AccessMode::Read)?;
        ops.launch(10.0, move |operands| {
            assert!(operands.read::<u64>(0).iter().all(|&word| word == number));
        })?;
        ops.end()?;
        engine.free(block)?;
    }
    Ok(())
}

fn open() -> (Arc<HostDriver>, Engine) {
    let device = HostDriver::new(HostConfig::by_time(LIMIT)).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(4 * LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device.clone(), config).expect("opens");
    (device, engine)
}

#[test]
fn training_goes_on_and_the_step_can_be_saved() {
    let (device, engine) = open();
    let settings = LoopConfig { limit_bytes: LIMIT, ..LoopConfig::default() };
    let mut session = Session::new(engine.clone(), settings, Panicking).expect("a first step");
    let (mut rescues, mut failures, mut kind) = (0, Vec::new(), None);
    for _ in 0..20 {
        step(&engine, || ()).expect("memory is found on demand");
        for finished in session.end_step().expect("a step ends whatever the planner does") {
            rescues += finished.report.counters.rescues;
            kind = Some(finished.report.signature);
        }
        failures.extend(session.take_failures());
    }
    assert!(rescues > 20, "{rescues}");
    assert_eq!((session.stage(), session.plan()), (Stage::Stable, None));
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].contains("no plan today"), "{failures:?}");
    let trace = session.trace(kind.expect("steps have finished")).expect("it was recorded");
    let folder = tempfile::tempdir().expect("a folder for temporary files");
    let path = folder.path().join("trace.json");
    save_trace(&path, trace).expect("the folder can be written");
    let loaded = load_trace(&path, &RecordedConfig::default()).expect("it was just saved");
    assert_eq!(loaded, **trace);
    session.drain().expect("the device works");
    drop((session, engine));
    assert!(device.ledger().is_empty(), "{:?}", device.ledger());
}

/// As somebody does who writes a report when a script ends in the middle of a step.
#[test]
fn reports_that_are_taken_in_the_middle_of_a_step_change_nothing_before_its_end() {
    let (device, engine) = open();
    let settings = LoopConfig { limit_bytes: LIMIT, ..LoopConfig::default() };
    let mut session = Session::new(engine.clone(), settings, Panicking).expect("a first step");
    let (mut in_the_middle, mut stages) = (0, Vec::new());
    for _ in 0..20 {
        let stage = session.stage();
        let middle = || {
            in_the_middle += session.drain().expect("a report in the middle").len();
            assert_eq!(session.stage(), stage, "the running step keeps its stage");
        };
        step(&engine, middle).expect("memory is found on demand");
        stages.push(stage);
        session.end_step().expect("a step ends");
    }
    assert!(in_the_middle > 5, "{in_the_middle}");
    assert_eq!((stages[0], stages[19]), (Stage::WarmUp, Stage::Stable), "{stages:?}");
    drop((session, engine));
    assert!(device.ledger().is_empty(), "{:?}", device.ledger());
}
