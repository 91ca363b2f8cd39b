//! Promise: ranks ask each other only for what is due. Times are told once, for the step that all
//! agreed on.

use policy::devices::{HostConfig, HostDriver};
use policy::{
    AccessMode, ArenaConfig, Compute, Config, Engine, Error, Feedback, LoopConfig, OpName, Planner,
    PoolConfig, Proposal, Round, Session, Trace, TraceFault,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 8 * BLOCK;

#[derive(Debug)]
struct Nothing;

impl Planner for Nothing {
    fn plan(&mut self, _: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        Ok(None)
    }
}

fn step(engine: &Engine) -> Result<(), Error> {
    let mut ops = engine.op_stack();
    ops.begin(OpName::new("make"))?;
    let block = ops.allocate(BLOCK, "block")?;
    ops.touch(block, AccessMode::Write)?;
    ops.end()?;
    engine.free(block)
}

#[test]
fn times_are_asked_for_once_for_each_step() {
    let device = HostDriver::new(HostConfig::by_time(LIMIT)).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device, config).expect("opens");
    let settings = LoopConfig { limit_bytes: LIMIT, warmup_steps: 9, ..LoopConfig::default() };
    let mut session = Session::new(engine.clone(), settings, Nothing).expect("a first step");
    session.share(true).expect("the device works");
    for _ in 0..2 {
        step(&engine).expect("it fits");
        session.end_step().expect("the device works");
        assert!(session.times().is_err(), "nobody asked yet");
        let worst = session.figures().expect("it shares");
        let Round::Times(count) = session.agree(&worst).expect("a step waits") else {
            panic!("the step was recorded");
        };
        let times = session.times().expect("they were asked for");
        assert_eq!(times.len(), count);
        assert!(session.agree_times(&times[1..]).is_err(), "one is missing");
        session.agree_times(&times).expect("as many as were asked for");
        assert!(session.times().is_err(), "they were told");
        assert!(session.agree_times(&times).is_err(), "they were agreed on");
    }
}
