//! The lower bound against every plan that there is, on steps small enough to try them all: every
//! choice of gaps, each by copies that come back at any op or by a replay.

use policy::synthetic::{RandomShape, random_trace};
use policy::{
    Candidate, GenerateConfig, Generator, Link, Machine, RecomputeOption, candidates, generate,
    replayable_blocks, simulate,
};
use swap_core::{Action, ActionKind, OpIndex, Phase, Plan, Trace};

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

/// What the bound was held against.
struct Judged {
    bound_us: f64,
    /// Whether the best plan makes something again.
    replays: bool,
}

/// Holds the bound of one random step against all of its plans. Nothing if they are too many, or
/// if none fits.
fn judge(seed: u64, nested_recipes: u64) -> Option<Judged> {
    let shape = RandomShape {
        ops: 7,
        persistent: 2,
        size_units: 3,
        nested_recipes,
        ..RandomShape::small()
    };
    let config = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let trace = random_trace(seed, &shape);
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
    Some(Judged { bound_us, replays })
}

#[test]
fn no_plan_of_all_beats_the_bound() {
    let any = |seed| judge(seed, 70 * (seed % 2));
    let judged: Vec<Judged> = (1..).filter_map(any).take(CASES).collect();
    let above = judged.iter().filter(|one| one.bound_us > 0.0).count();
    let replayed = judged.iter().filter(|one| one.replays).count();
    assert!(above > CASES / 20 && replayed > CASES / 50, "{above} bounds, {replayed} with replays");
}

#[test]
fn the_bound_stays_out_of_known_traps() {
    for seed in TRAPS {
        let judged = judge(seed, 0).expect("some plan fits");
        assert!(judged.bound_us > 0.0, "seed {seed} needs no plan");
    }
}
