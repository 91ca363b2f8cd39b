//! Promise: a plan is made for what ops take, not for what the device waited inside of them while
//! the host was late.

use policy::devices::{HostConfig, HostDriver};
use policy::{
    AccessMode, ArenaConfig, Compute, Config, Engine, Error, Feedback, LoopConfig, OpName, Planner,
    PoolConfig, Proposal, Session, Trace, TraceFault,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 4 * BLOCK;
const OPS: usize = 8;
/// What the ops really take.
const LEAST_US: f64 = 10.0;

/// Notes the times that it is to plan for.
#[derive(Debug, Default)]
struct Noting {
    asked: Vec<Vec<f64>>,
}

impl Planner for Noting {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked.push(trace.ops.iter().map(|op| op.device_us).collect());
        Ok(None)
    }
}

/// One step of more than the cap holds. Of its ops, `late` takes ten times as long.
fn step(engine: &Engine, late: usize) -> Result<(), Error> {
    let mut ops = engine.op_stack();
    let mut blocks = Vec::new();
    for number in 0..OPS {
        let device_us = if number == late { 10.0 * LEAST_US } else { LEAST_US };
        ops.begin(OpName::new("make"))?;
        let block = ops.allocate(BLOCK, "block")?;
        ops.touch(block, AccessMode::Write)?;
        ops.launch(device_us, |operands| operands.write::<u64>(0).fill(1))?;
        ops.end()?;
        blocks.push(block);
    }
    blocks.into_iter().try_for_each(|block| engine.free(block))
}

#[test]
fn ops_take_the_least_that_they_took_in_any_recorded_step() {
    let device = HostDriver::new(HostConfig::by_time(LIMIT)).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(4 * LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device, config).expect("opens");
    let settings = LoopConfig { limit_bytes: LIMIT, warmup_steps: 3, ..LoopConfig::default() };
    let mut session =
        Session::new(engine.clone(), settings, Noting::default()).expect("a first step");
    let mut reported = Vec::new();
    for late in 0..4 {
        step(&engine, late).expect("memory is found on demand");
        reported.extend(session.end_step().expect("a step ends"));
    }
    let asked = &session.policy().planner().asked;
    assert_eq!(asked.len(), 1, "a plan was asked for");
    assert_eq!(asked[0].len(), OPS);
    for (op, &device_us) in asked[0].iter().enumerate() {
        assert!((device_us - LEAST_US).abs() < 1e-6, "op {op} takes {device_us} us");
    }
    // The step that was late says so by its own time.
    let slow = reported.iter().filter(|it| it.report.device_us > 9.0 * LEAST_US + 79.0).count();
    assert!(slow >= 3, "the late ops were late: {slow}");
}
