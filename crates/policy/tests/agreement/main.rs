//! Promise: the simulator counts what the engine does.
//!
//! Traces are replayed on the engine over the host driver in lockstep, under generated and under
//! random plans. Once both have settled, held and resident peaks, bytes moved, misses, rescues and
//! replays agree exactly, and the step's time within 3 %. A laid-out step asks the driver for no
//! memory, and takes what was said, or up to a tenth less.

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    BlockIndex, Direction, Error, GenerateConfig, LaneComparison, Lanes, Link, Machine, Origin,
    Plan, Preference, RecomputeOption, ReplaySpan, Simulation, Simulator, Trace, TraceEvent,
    compare_lanes, generate, lay_out, predicted_lanes, replayable_blocks,
};

use plans::{random_drops, random_plan};
use replayer::{GRANULARITY_BYTES, Replayer, STEPS};

mod plans;
mod replayer;

/// The trace without segments: small blocks are not replayed.
fn without_segments(mut trace: Trace) -> Trace {
    trace.segment_bytes = 0;
    trace.events.retain(|event| !matches!(event, TraceEvent::Segments(_)));
    trace
}

fn machine(limit_bytes: u64) -> Machine {
    let link =
        Link { out_bytes_per_us: 9_000.0, in_bytes_per_us: 8_000.0, both_bytes_per_us: 6_000.0 };
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 0.0 }
}

/// Which block goes which way, in order of issue.
fn copies_of(lanes: &Lanes) -> Vec<(Option<BlockIndex>, Direction, u64)> {
    lanes.copies.iter().map(|copy| (copy.block, copy.direction, copy.size_bytes)).collect()
}

/// Each op of a measured step is where it is predicted, no copy is later, and compute spends its
/// time on the same things.
fn compare_times(measured: &Lanes, predicted: &Lanes, host_waits: u64, what: &str) {
    let near_us = 0.03 * measured.step_us;
    assert_eq!(measured.ops.len(), predicted.ops.len(), "{what}");
    for (one, other) in measured.ops.iter().zip(&predicted.ops) {
        let is_near = (one.start_us - other.start_us).abs() < near_us;
        assert!(is_near && one.op == other.op, "{what}: {one:?}, predicted {other:?}");
    }
    // The host runs ahead, so copies may come earlier.
    for (one, other) in measured.copies.iter().zip(&predicted.copies) {
        assert!(one.end_us < other.end_us + near_us, "{what}: {one:?}, predicted {other:?}");
    }
    let LaneComparison { predicted, measured, .. } = compare_lanes(predicted, measured);
    let near = |one: f64, other: f64| (one - other).abs() < near_us;
    assert!(near(measured.ops_us, predicted.ops_us), "{what}: {measured:?} {predicted:?}");
    // Where the host has to wait, compute has nothing to do, which is not a wait of an op.
    let found_us = measured.waits_us + if host_waits > 0 { measured.idle_us } else { 0.0 };
    assert!(near(found_us, predicted.waits_us), "{what}: {measured:?} {predicted:?}");
    assert!(host_waits > 0 || measured.idle_us < near_us, "{what}: {measured:?}");
}

fn compare(trace: &Trace, plan: &Plan, machine: &Machine, what: &str) -> Option<Simulation> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    if persistent.map(|block| block.size_bytes).sum::<u64>() > machine.limit_bytes {
        // The engine could not start like the simulator: it allocates them one by one.
        return None;
    }
    let simulated = Simulator::new(trace, *machine).steps(plan, STEPS);
    let simulated = simulated.last().expect("one report a step");
    let mut replayer = Replayer::new(trace, machine);
    let executed = match replayer.run(plan) {
        Ok(reports) => reports.last().expect("one report a step").clone(),
        Err(Error::OutOfMemory(_)) => return None,
        Err(error) => panic!("{what}: {error}"),
    };
    if let Some(shortfall) = simulated.shortfall {
        panic!("{what}: the simulator ran out of memory, the engine did not: {shortfall:?}");
    }
    assert_eq!(executed.drifted_at, None, "{what}");
    let counters = executed.counters;
    let of_engine = [
        executed.held_bytes_peak,
        executed.resident_bytes_peak,
        counters.swapped_out_bytes,
        counters.swapped_in_bytes,
        counters.clean_swap_outs,
        counters.recomputed_ops,
        counters.misses,
        counters.rescues,
    ];
    let of_simulator = [
        simulated.held_bytes_peak,
        simulated.resident_bytes_peak,
        simulated.swapped_out_bytes,
        simulated.swapped_in_bytes,
        simulated.clean_swap_outs,
        simulated.recomputed_ops,
        simulated.misses,
        simulated.rescues,
    ];
    assert_eq!(
        of_engine, of_simulator,
        "{what}: held, resident, out, in, clean, recomputed, misses, rescues"
    );
    let ratio = simulated.step_us / executed.device_us;
    let lanes = executed.lanes.expect("the last step is measured");
    let predicted = predicted_lanes(trace, simulated);
    assert_eq!(copies_of(&lanes), copies_of(&predicted), "{what}");
    if what.starts_with("transformer") {
        assert!((0.97..=1.03).contains(&ratio), "{what}: simulated time is {ratio} of executed");
        compare_times(&lanes, &predicted, counters.host_waits, what);
    }
    Some(simulated.clone())
}

#[test]
fn generated_plans_do_what_the_simulator_says() {
    let (mut swapped, mut compared) = (0, 0);
    for layers in [2, 4, 7] {
        let shape =
            TransformerShape { layers, weight_mib: 1, activation_mib: 2, forward_us: 2_000.0 };
        let trace = without_segments(transformer_trace(&shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        for percent in [100, 90, 80, 70, 60, 50, 40] {
            let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
            let machine = machine(limit_bytes);
            let generated = generate(&trace, &machine, &GenerateConfig::default(), &[]);
            let what = format!("transformer of {layers} layers at {percent} %");
            if let Some(simulation) = compare(&trace, &generated.plan, &machine, &what) {
                compared += 1;
                swapped += u64::from(simulation.swapped_out_bytes > 0);
            }
        }
    }
    assert!(compared >= 15 && swapped >= 10, "{compared} compared, {swapped} with swaps");
}

#[test]
fn a_step_that_is_laid_out_makes_no_calls_and_takes_the_time_that_was_said() {
    let slow =
        Link { out_bytes_per_us: 3_000.0, in_bytes_per_us: 2_000.0, both_bytes_per_us: 1_500.0 };
    let (mut compared, mut waited, mut in_pieces) = (0, 0, 0);
    for layers in [4, 7, 12] {
        let shape =
            TransformerShape { layers, weight_mib: 1, activation_mib: 2, forward_us: 2_000.0 };
        let trace = without_segments(transformer_trace(&shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        for (percent, link) in
            [90, 80, 70, 60, 50].into_iter().zip([machine(0).link, slow].repeat(3))
        {
            let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
            let machine = Machine { link, ..machine(limit_bytes) };
            let made = generate(&trace, &machine, &GenerateConfig::default(), &[]);
            // With hardly any room, with some, and with plenty.
            for more_bytes in [0, limit_bytes / 16, limit_bytes] {
                let machine = machine.with_limit(limit_bytes + more_bytes);
                let layout = lay_out(&trace, &made.plan, &machine);
                if made.infeasible.is_some() || layout.excess_bytes(machine.limit_bytes) > 0 {
                    continue;
                }
                let reports = Replayer::new(&trace, &machine).run_in(&made.plan, layout.clone());
                let reports = reports.expect("it fits");
                let last = reports.last().expect("one report a step");
                let what = format!("{layers} layers at {percent} %, {more_bytes} bytes more");
                assert_eq!(last.counters.memory_calls.total(), 0, "{what}");
                let ratio = layout.step_us / last.device_us;
                // What has no lot may find its memory untouched, which is not foreseen.
                assert!((0.97..=1.1).contains(&ratio), "{what}: said {ratio} of executed");
                compared += 1;
                in_pieces += u32::from(!layout.pieces.is_empty());
                waited += u32::from(layout.step_us > 1.05 * made.unlimited_us);
            }
        }
    }
    println!("{compared} compared, {waited} waited, {in_pieces} in pieces");
    assert!(compared >= 20 && waited >= 5, "{compared} compared, {waited} waited");
}

#[test]
fn random_plans_on_random_traces_agree_to_the_byte() {
    let mut numbers = Numbers::new(7);
    let (mut compared, mut rescues, mut misses, mut moved) = (0, 0, 0, 0);
    for seed in 0..300 {
        let shape = RandomShape { unit_bytes: GRANULARITY_BYTES, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        let percent = 40 + numbers.below(70);
        let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES).max(1 << 20);
        let plan = random_plan(&mut numbers, &trace);
        let what = format!("seed {seed} at {percent} %");
        if let Some(simulation) = compare(&trace, &plan, &machine(limit_bytes), &what) {
            compared += 1;
            rescues += simulation.rescues;
            misses += simulation.misses;
            moved += simulation.swapped_out_bytes;
        }
    }
    assert!(compared >= 150, "only {compared} traces ran");
    assert!(rescues > 100 && misses > 100 && moved > 0, "{rescues} {misses} {moved}");
}

/// When the op has ended behind which a block is freed.
fn freed_us(trace: &Trace, simulation: &Simulation, block: BlockIndex) -> f64 {
    let freed = trace.events.iter().position(|&event| event == TraceEvent::Free(block));
    let before = trace.events[..freed.expect("it is freed")].iter().rev();
    let last = before.into_iter().find_map(|event| match *event {
        TraceEvent::End(op) => Some(op),
        _ => None,
    });
    last.map_or(0.0, |op| simulation.ops[op.0 as usize].end_us)
}

#[test]
fn chains_of_replays_through_freed_blocks_do_what_the_simulator_says() {
    let mut numbers = Numbers::new(5);
    let (mut compared, mut replayed, mut through_freed) = (0, 0, 0);
    for seed in 0..800 {
        let unit_bytes = GRANULARITY_BYTES;
        let shape = RandomShape { unit_bytes, ops: 40, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let limit_bytes = unlimited[1].held_bytes_peak * (50 + numbers.below(70)) / 100;
        let machine = machine(limit_bytes.next_multiple_of(GRANULARITY_BYTES).max(1 << 20));
        let plan = random_drops(&mut numbers, &trace);
        let what = format!("chains, seed {seed}");
        if let Some(simulation) = compare(&trace, &plan, &machine, &what) {
            compared += 1;
            replayed += simulation.recomputed_ops;
            let late = |replay: &&ReplaySpan| {
                replay.span.start_us >= freed_us(&trace, &simulation, replay.block)
            };
            through_freed += simulation.replays.iter().filter(late).count() as u64;
        }
    }
    let seen = [compared, replayed, through_freed];
    assert!(compared >= 600 && replayed >= 800 && through_freed >= 50, "{seen:?}");
}

#[test]
fn replays_of_nested_ops_do_what_the_simulator_says() {
    let (mut compared, mut replayed) = (0, 0);
    let mut numbers = Numbers::new(11);
    for seed in 0..200 {
        let unit_bytes = GRANULARITY_BYTES;
        let shape = RandomShape { unit_bytes, nested_recipes: 90, ops: 40, ..RandomShape::small() };
        let trace = without_segments(random_trace(seed, &shape));
        let nested = replayable_blocks(&trace).into_iter().filter(|one| {
            let op = &trace.ops[one.producer.0 as usize];
            assert!(one.device_us > 0.0, "seed {seed}: {one:?} costs nothing");
            op.depth > 0
        });
        // Cheap, so that they are taken.
        let option = |block| RecomputeOption { block, replay_us: 1.0 };
        let options: Vec<RecomputeOption> = nested.map(|one| option(one.block)).collect();
        let unlimited = Simulator::new(&trace, machine(1 << 40)).steps(&Plan::default(), 2);
        let peak = unlimited[1].held_bytes_peak;
        let percent = 50 + numbers.below(45);
        let limit_bytes = (peak * percent / 100).next_multiple_of(GRANULARITY_BYTES);
        // So slow that what can be made again is not copied.
        let link = Link { out_bytes_per_us: 90.0, in_bytes_per_us: 80.0, both_bytes_per_us: 60.0 };
        let machine = Machine { link, ..machine(limit_bytes) };
        let preference = Preference::RecomputeFirst;
        let config = GenerateConfig { preference, min_block_bytes: 1, ..GenerateConfig::default() };
        let made = generate(&trace, &machine, &config, &options);
        let what = format!("nested, seed {seed} at {percent} %");
        if let Some(simulation) = compare(&trace, &made.plan, &machine, &what) {
            compared += 1;
            replayed += simulation.recomputed_ops;
        }
    }
    assert!(compared >= 60 && replayed >= 50, "{compared} compared, {replayed} replays");
}
