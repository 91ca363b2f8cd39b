//! Random work under random orders for several sizes: whatever sizes come, no op sees a wrong byte,
//! the cap holds, everything is ordered, and memory runs out only where it may.
//!
//! Orders know the recorded step, and larger ones of the same ops. Steps come as recorded, smaller,
//! so that some blocks are too small to be swappable by themselves, and larger than they were.

use swap_core::{BlockIndex, Plan, Trace};

use super::lots::random_lots;
use super::random_plans::{Case, run_all};
use super::script::{Random, random_plan, resized};
use super::world::{GRANULARITY, Tally, World};

/// How much larger the steps are that orders know beside the recorded one.
const LARGER: [u64; 2] = [2, 4];

/// Plans for the recorded step and for larger ones.
fn random_plans(trace: &Trace, random: &mut Random, illegal: bool) -> Vec<(Plan, Trace)> {
    let larger = |times: &u64| {
        let mut larger = trace.clone();
        larger.blocks.iter_mut().for_each(|block| block.size_bytes *= times);
        larger
    };
    let traces = [1].iter().chain(&LARGER[..random.below(3) as usize]).map(larger);
    let traces: Vec<Trace> = traces.collect();
    let plan = |trace: Trace| (random_plan(&trace, random, illegal), trace);
    traces.into_iter().map(plan).collect()
}

fn run(case: &Case) -> Result<Tally, String> {
    let mut world = World::new(case.setup(GRANULARITY)?);
    if !case.open(&mut world)? {
        return world.close();
    }
    let mut random = Random(case.plan_seed);
    let step = &case.script.step;
    world.step(step)?;
    for round in 0..3 {
        // Blocks that outlive steps come first, so most probes are others.
        let trace = world.trace.clone().filter(|trace| !trace.blocks.is_empty());
        if let Some(trace) = trace {
            let planned = random_plans(&trace, &mut random, case.illegal);
            let probe = BlockIndex(random.below(trace.blocks.len() as u64) as u32);
            world.lots = random_lots(&trace, &mut random, GRANULARITY);
            let set = world.set_sized_orders(round == 1, &planned, probe);
            set.map_err(|stop| format!("{stop:?}"))?;
        }
        world.step(step)?;
        for _ in 0..2 {
            world.step(&resized(step, &mut random))?;
            world.step(step)?;
        }
    }
    world.read_all()?;
    world.close()
}

#[test]
fn no_size_breaks_a_promise() {
    let cases = std::env::var("ENGINE_CASES").ok().and_then(|text| text.parse().ok());
    let tally = run_all(cases.unwrap_or(1000), run);
    println!("{tally:#?}");
    let counters = &tally.counters;
    assert!(counters.swapped_out_bytes > 0 && counters.swapped_in_bytes > 0);
    assert!(counters.recomputed_ops > 0 && counters.misses > 0 && counters.rescues > 0);
    assert!(tally.words_checked > 0 && tally.out_of_memory > 0 && tally.drifted > 0);
    assert!(tally.probed > 1000, "{} steps told their size", tally.probed);
    assert!(tally.small_swappable > 1000, "{} small blocks", tally.small_swappable);
}
