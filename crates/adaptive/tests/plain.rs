//! The loop on a device without virtual memory: there is nothing to plan, and steps go on.

use adaptive::devices::{HostConfig, HostDriver};
use adaptive::{
    AccessMode, ArenaConfig, Compute, Config, Engine, Error, JointConfig, JointPlanner, Link,
    LoopConfig, Machine, OpName, PoolConfig, Session, Stage,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 8 * BLOCK;

/// One step that keeps `count` blocks at a time.
fn step(session: &Session<JointPlanner>, count: usize) -> Result<(), Error> {
    let mut ops = session.engine().op_stack();
    let mut blocks = Vec::new();
    for _ in 0..count {
        ops.begin(OpName::new("make"))?;
        let block = ops.allocate(BLOCK, "block")?;
        ops.touch(block, AccessMode::Write)?;
        ops.launch(10.0, |operands| operands.write::<u64>(0).fill(7))?;
        ops.end()?;
        blocks.push(block);
    }
    for block in blocks {
        ops.begin(OpName::new("use"))?;
        ops.touch(block, AccessMode::Read)?;
        ops.launch(10.0, |operands| assert!(operands.read::<u64>(0).iter().all(|&x| x == 7)))?;
        ops.end()?;
        session.engine().free(block)?;
    }
    Ok(())
}

#[test]
fn the_loop_comes_to_rest_without_a_plan() {
    let config = HostConfig { has_virtual_memory: false, ..HostConfig::by_time(2 * LIMIT) };
    let device = HostDriver::new(config).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device.clone(), config).expect("opens");
    let link = Link { out_bytes_per_us: 1e4, in_bytes_per_us: 1e4, both_bytes_per_us: 1e4 };
    let machine =
        Machine { limit_bytes: LIMIT, host_limit_bytes: LIMIT, link, copy_submit_us: 1.0 };
    let planner = JointPlanner::new(machine, JointConfig::default());
    let settings = LoopConfig { limit_bytes: LIMIT, ..LoopConfig::default() };
    let mut session = Session::new(engine, settings, planner).expect("no step has begun");

    // All of the cap is used, so the loop looks for a plan, and finds none.
    for _ in 0..12 {
        step(&session, 8).expect("it fits");
        for finished in session.end_step().expect("the step ends") {
            let counters = finished.report.counters;
            assert_eq!((counters.swapped_out_bytes, counters.rescues), (0, 0));
            assert_eq!(finished.report.held_bytes_peak, LIMIT);
        }
    }
    assert_eq!(session.stage(), Stage::Stable);
    assert!(session.plan().is_none_or(|plan| plan.actions.is_empty()));

    let error = step(&session, 9).expect_err("one more than the cap holds");
    assert!(matches!(error, Error::OutOfMemory(_)), "{error}");
    assert!(error.to_string().contains("nothing can be swapped"), "{error}");
    assert!(device.ledger().chunk_bytes_peak <= LIMIT);
    drop(session);
    assert!(device.ledger().is_empty(), "{:?}", device.ledger());
}
