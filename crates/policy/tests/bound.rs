//! The lower bound against every plan that there is, on steps small enough to try them all: every
//! choice of gaps, each by copies that come back at any op or by a replay.

use policy::synthetic::{Numbers, RandomShape, random_trace};
use policy::{
    Candidate, GenerateConfig, Generator, HostCosts, Link, Machine, RecomputeOption, candidates,
    generate, replayable_blocks, simulate,
};
use swap_core::{Action, ActionKind, OpIndex, Phase, Plan, Trace};

#[path = "late/host.rs"]
mod late;
#[path = "peak/step.rs"]
mod peak;

const CASES: usize = 400;
/// Seeds of steps that once had a bound above the truth: bytes whose host copy was made in an
/// earlier gap, and two windows that end and start with the same op.
const TRAPS: [u64; 2] = [25_136, 169_893];

fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: u64::MAX / 8,
        link: Link {
            out_bytes_per_us: 9_000.0,
            in_bytes_per_us: 8_000.0,
            both_bytes_per_us: 7_000.0,
        },
        copy_submit_us: 2.0,
    }
}

/// All that can be done with a block over one gap, as actions.
fn ways(trace: &Trace, candidate: &Candidate, replayable: bool) -> Vec<Vec<Action>> {
    let act = |op, phase, kind, block| Action { op, phase, kind, block, due: op };
    let block = candidate.block;
    let leave = |kind| match candidate.leaves_after {
        Some(op) => act(op, Phase::End, kind, block),
        None => act(OpIndex(0), Phase::Begin, kind, block),
    };
    let out = leave(ActionKind::SwapOut);
    let mut ways = vec![vec![]];
    let Some(back) = candidate.returns_before else {
        ways.push(vec![out]);
        if replayable {
            ways.push(vec![leave(ActionKind::Discard)]);
        }
        return ways;
    };
    let last = if candidate.next_step { trace.ops.len() as u32 } else { back.0 };
    for op in (out.op.0 + 1..last).chain([back.0]).map(OpIndex) {
        let next_step = candidate.next_step && op == back;
        let name = if next_step { candidate.returns_as } else { block };
        ways.push(vec![out, act(op, Phase::Begin, ActionKind::SwapIn, name)]);
    }
    if replayable && !candidate.next_step {
        let replay = act(back, Phase::Begin, ActionKind::Replay, block);
        ways.push(vec![leave(ActionKind::Discard), replay]);
    }
    ways
}

/// The fastest step of all plans that go to plan, and whether it makes something again.
fn fastest(ways: &[Vec<Vec<Action>>], trace: &Trace, machine: &Machine) -> Option<(f64, bool)> {
    let mut best: Option<(f64, bool)> = None;
    let mut pick = vec![0; ways.len()];
    loop {
        let actions = pick.iter().zip(ways).flat_map(|(&way, ways)| ways[way].clone()).collect();
        let simulation = simulate(trace, &Plan { actions, ..Plan::default() }, machine);
        let faster = best.is_none_or(|(best_us, _)| simulation.step_us < best_us);
        if simulation.went_to_plan() && faster {
            best = Some((simulation.step_us, simulation.recomputed_ops > 0));
        }
        let Some(next) = (0..pick.len()).find(|&index| pick[index] + 1 < ways[index].len()) else {
            return best;
        };
        pick[..next].fill(0);
        pick[next] += 1;
    }
}

/// A host that waits for the device behind many ops. Plans differ in their waits alone.
fn with_late_host(trace: Trace, seed: u64) -> Trace {
    let longest_us = (trace.ops_us() as u64 * 2 / trace.ops.len() as u64).max(1);
    let costs = HostCosts { replay_us: 1e-3, move_us: 1e-3 };
    late::with_host(trace, &mut Numbers::new(seed), longest_us, 25, costs)
}

/// What the bound was held against.
struct Judged {
    bound_us: f64,
    /// What the device waits for the host with memory for everything.
    idle_us: f64,
    /// Whether the best plan makes something again.
    replays: bool,
}

/// Holds the bound of one random step against all of its plans. Nothing if they are too many, or
/// if none fits.
fn judge(seed: u64, nested_recipes: u64, has_host: bool) -> Option<Judged> {
    let shape = RandomShape {
        ops: 7,
        persistent: 2,
        size_units: 3,
        nested_recipes,
        ..RandomShape::small()
    };
    let config = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let trace = random_trace(seed, &shape);
    let trace = if has_host { with_late_host(trace, seed) } else { trace };
    let all = candidates(&trace);
    if !(1..=4).contains(&all.len()) {
        return None;
    }
    let options: Vec<RecomputeOption> = replayable_blocks(&trace)
        .into_iter()
        .map(|one| RecomputeOption { block: one.block, replay_us: one.device_us })
        .collect();
    let can = |candidate: &Candidate| options.iter().any(|one| one.block == candidate.block);
    let ways: Vec<_> = all.iter().map(|one| ways(&trace, one, can(one))).collect();
    let peak_bytes = simulate(&trace, &Plan::default(), &machine(1 << 40)).resident_bytes_peak;
    let machine = machine(peak_bytes * (50 + seed % 45) / 100);
    let (best_us, replays) = fastest(&ways, &trace, &machine)?;
    let made = generate(&trace, &machine, &config, &options);
    let added_us = best_us - made.unlimited_us;
    let bound_us = Generator::new(&trace, &machine).bound_us(&options);
    for least_us in [bound_us, made.windows_us] {
        assert!(least_us <= added_us + 1e-6, "seed {seed}: {least_us} {added_us}");
    }
    let idle_us = made.unlimited_us - trace.ops_us();
    Some(Judged { bound_us, idle_us, replays })
}

#[test]
fn no_plan_of_all_beats_the_bound() {
    let any = |seed| judge(seed, 70 * (seed % 2), false);
    let judged: Vec<Judged> = (1..).filter_map(any).take(CASES).collect();
    let above = judged.iter().filter(|one| one.bound_us > 0.0).count();
    let replayed = judged.iter().filter(|one| one.replays).count();
    assert!(above > CASES / 20 && replayed > CASES / 50, "{above} bounds, {replayed} with replays");
}

#[test]
fn waits_for_the_host_hide_no_more_than_the_bound_says() {
    let any = |seed| judge(seed, 70 * (seed % 2), true);
    let judged: Vec<Judged> = (1..).filter_map(any).take(CASES).collect();
    let idle = judged.iter().filter(|one| one.bound_us > 0.0 && one.idle_us > 0.0).count();
    assert!(idle > CASES / 40, "{idle} bounds");
}

/// Two copies of 1,000 us have to be made while the device is busy for 200 us, and then it waits
/// 5,000 us for its host, which has seen the device's end or has not.
#[test]
fn a_wait_hides_where_the_host_is_late_unless_they_met_before() {
    let bound_us = |host_waits: bool| {
        let (mut builder, weight) = peak::begin_step();
        builder.begin("update", 100.0, false);
        builder.update(weight);
        builder.end();
        for _ in 0..5 {
            builder.begin("late", 1.0, false);
            builder.end();
        }
        let mut trace = builder.finish();
        trace.ops[2].host_waits = host_waits;
        trace.ops.iter_mut().skip(3).for_each(|op| op.host_us = 1_000.0);
        Generator::new(&trace, &peak::machine()).bound_us(&[])
    };
    assert_eq!(bound_us(false), 0.0);
    let met_us = bound_us(true);
    assert!((0.9 * peak::COPY_US..=2.0 * peak::COPY_US).contains(&met_us), "{met_us}");
}

#[test]
fn the_bound_stays_out_of_known_traps() {
    for seed in TRAPS {
        let judged = judge(seed, 0, false).expect("some plan fits");
        assert!(judged.bound_us > 0.0, "seed {seed} needs no plan");
    }
}
