//! Promise: a planner that fails ends no training. Steps that need more than the cap go on, on
//! demand, with the right bytes, and what was recorded can be saved for a report.

use policy::{
    AccessMode, ArenaConfig, Compute, Config, Engine, Error, Feedback, HostConfig, HostDriver,
    LoopConfig, OpName, Planner, PoolConfig, Proposal, RecordedConfig, Session, Stage, Trace,
    TraceFault, load_trace, save_trace,
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

/// One step that makes more blocks than the cap holds, and reads each again.
fn step(engine: &Engine) -> Result<(), Error> {
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

#[test]
fn training_goes_on_and_the_step_can_be_saved() {
    let device = HostDriver::new(HostConfig::by_time(LIMIT)).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(4 * LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device.clone(), config).expect("opens");
    let settings = LoopConfig { limit_bytes: LIMIT, ..LoopConfig::default() };
    let mut session = Session::new(engine.clone(), settings, Panicking).expect("a first step");
    let (mut rescues, mut failures, mut kind) = (0, Vec::new(), None);
    for _ in 0..20 {
        step(&engine).expect("memory is found on demand");
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
