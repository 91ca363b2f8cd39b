//! Promise: a plan is followed by the recorded step that it was made for. Later steps of its kind
//! may have other blocks lying about, which their ops never touch.

use policy::devices::{HostConfig, HostDriver};
use policy::synthetic::TraceBuilder;
use policy::{
    AccessMode, ArenaConfig, BlockId, Compute, Config, Engine, Error, Feedback, GenerateConfig,
    Link, LoopConfig, Machine, OpName, Plan, Planner, PoolConfig, Proposal, Session, Stage, Trace,
    TraceFault, generate,
};

const BLOCK: u64 = 64 << 10;
const LIMIT: u64 = 12 * BLOCK;
const LINK: Link =
    Link { out_bytes_per_us: 1_000.0, in_bytes_per_us: 1_000.0, both_bytes_per_us: 1_000.0 };

/// Offers one plan, made for the first step that it is shown.
#[derive(Debug, Default)]
struct Once {
    has_offered: bool,
}

impl Planner for Once {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        let offers = !std::mem::replace(&mut self.has_offered, true);
        Ok(offers.then(|| Proposal { plan: plan(trace, LIMIT, BLOCK), ..Proposal::default() }))
    }
}

/// A plan of swaps for a step under a limit.
fn plan(trace: &Trace, limit_bytes: u64, min_block_bytes: u64) -> Plan {
    let host_limit_bytes = 64 * limit_bytes;
    let machine = Machine { limit_bytes, host_limit_bytes, link: LINK, copy_submit_us: 0.0 };
    let config = GenerateConfig { min_block_bytes, ..GenerateConfig::default() };
    generate(trace, &machine, &config, &[]).plan
}

/// A step that makes more blocks than the cap holds, reads each again, and leaves one to the pool:
/// as from a pool of images that fills. Blocks that live at its start come before all others, so
/// each of its own has another number than in the step before.
fn step(engine: &Engine, pool: &mut Vec<BlockId>) -> Result<(), Error> {
    let mut ops = engine.op_stack();
    ops.begin(OpName::new("draw"))?;
    let drawn = ops.allocate(BLOCK, "drawn")?;
    ops.touch(drawn, AccessMode::Write)?;
    ops.launch(10.0, |operands| operands.write::<u64>(0).fill(7))?;
    ops.end()?;
    pool.push(drawn);
    let mut blocks = Vec::new();
    for number in 0..16_u64 {
        ops.begin(OpName::new("make"))?;
        let block = ops.allocate(BLOCK, "block")?;
        ops.touch(block, AccessMode::Write)?;
        ops.launch(1_000.0, move |operands| operands.write::<u64>(0).fill(number))?;
        ops.end()?;
        blocks.push((number, block));
    }
    for (number, block) in blocks.into_iter().rev() {
        ops.begin(OpName::new("use"))?;
        ops.touch(block, AccessMode::Read)?;
        ops.launch(1_000.0, move |operands| {
            assert!(operands.read::<u64>(0).iter().all(|&word| word == number));
        })?;
        ops.end()?;
        engine.free(block)?;
    }
    Ok(())
}

#[test]
fn blocks_that_lie_about_lose_no_plan() {
    let device = HostDriver::new(HostConfig::by_time(LIMIT)).expect("opens");
    let config = Config {
        pool: PoolConfig { limit_bytes: LIMIT, swap_threshold_bytes: BLOCK, segment_bytes: BLOCK },
        arena: ArenaConfig::new(64 * LIMIT),
        compute: Compute::Own,
        record: false,
    };
    let engine = Engine::new(device.clone(), config).expect("opens");
    let settings = LoopConfig { limit_bytes: LIMIT, ..LoopConfig::default() };
    let mut session =
        Session::new(engine.clone(), settings, Once::default()).expect("a first step");
    let (mut pool, mut followed, mut last) = (Vec::new(), 0, None);
    for _ in 0..30 {
        step(&engine, &mut pool).expect("memory is found on demand");
        for finished in session.end_step().expect("a step ends") {
            if let Some(plan) = &finished.plan {
                assert_eq!(finished.report.signature, plan.signature, "one kind of step");
                assert!(!plan.actions.is_empty());
                assert!(finished.report.followed(plan), "{:?}", finished.report.drifted_at);
                let made_for = finished.made_for.expect("it was made here");
                assert!(plan.knows(&made_for));
                followed += 1;
            }
            last = session.trace(finished.report.signature).cloned();
        }
    }
    assert!(followed >= 20, "{followed}");
    assert_eq!(session.stage(), Stage::Stable);
    // Else any recorded step would have served.
    let plan = session.plan().expect("it is adopted");
    assert!(!plan.knows(&last.expect("steps were recorded")));
    for block in pool {
        engine.free(block).expect("lives");
    }
    session.drain().expect("the device works");
    drop((session, engine));
    assert!(device.ledger().is_empty(), "{:?}", device.ledger());
}

#[test]
fn a_plan_knows_no_step_whose_blocks_are_others() {
    let made = |scratch_bytes: u64, is_late: bool| {
        let mut step = TraceBuilder::new();
        let weight = step.persistent("weight", 4_000);
        if is_late {
            step.persistent("pool", 1_000);
        }
        step.begin("make", 100.0, false);
        let scratch = step.allocate("scratch", scratch_bytes);
        step.write(scratch);
        step.end();
        step.begin("rest", 100.0, false);
        step.read(weight);
        step.end();
        step.begin("use", 100.0, false);
        step.read(scratch);
        step.end();
        step.free(scratch);
        step.finish()
    };
    let own = made(4_000, false);
    let plan = plan(&own, 4_000, 1);
    assert!(!plan.actions.is_empty());
    assert!(plan.knows(&own));
    for other in [made(5_000, false), made(4_000, true)] {
        assert!(!plan.knows(&other));
    }
}
