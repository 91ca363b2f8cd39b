//! Promise: where the host is what a step waits for, plans count what they cost the host. The judge
//! is the simulated step, and a plan made without knowing the host's times.

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    ActionKind, GenerateConfig, Generated, Generator, HostCosts, Link, Machine, Plan,
    RecomputeOption, Trace, compare_lanes, generate, predicted_lanes, replay_us, replayable_blocks,
    simulate, unlimited_us,
};

#[path = "late/host.rs"]
mod late;

use late::with_host;

const COSTS: HostCosts = HostCosts { replay_us: 30.0, move_us: 2.0 };

fn machine(trace: &Trace, percent: u64) -> Machine {
    let link =
        Link { out_bytes_per_us: 9_000.0, in_bytes_per_us: 8_000.0, both_bytes_per_us: 6_000.0 };
    let endless =
        Machine { limit_bytes: 1 << 50, host_limit_bytes: 1 << 50, link, copy_submit_us: 3.0 };
    let peak_bytes = simulate(trace, &Plan::default(), &endless).held_bytes_peak;
    endless.with_limit(peak_bytes * percent / 100)
}

fn options(trace: &Trace) -> Vec<RecomputeOption> {
    let adds_us = replay_us(trace);
    let blocks = replayable_blocks(trace).into_iter();
    let option = |one: policy::Replayable| RecomputeOption {
        block: one.block,
        replay_us: adds_us(one.device_us),
    };
    let mut options: Vec<RecomputeOption> = blocks.map(option).collect();
    options.dedup_by_key(|option| option.block);
    options
}

fn plan(trace: &Trace, machine: &Machine) -> Generated {
    let config = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    generate(trace, machine, &config, &options(trace))
}

#[test]
fn no_step_is_faster_than_the_host_or_than_the_bound() {
    let (mut late, mut bound_counts) = (0, 0);
    for seed in 0..150 {
        let mut numbers = Numbers::new(seed);
        let most_us = [20, 200, 1000][(seed % 3) as usize];
        let trace = random_trace(seed, &RandomShape::small());
        let trace = with_host(trace, &mut numbers, most_us, 5, COSTS);
        let machine = machine(&trace, 60);
        let made = plan(&trace, &machine);
        if made.infeasible.is_some() {
            continue;
        }
        let least_us = unlimited_us(&trace);
        let host_us: f64 = trace.ops.iter().map(|op| op.host_us).sum();
        assert!(least_us >= trace.ops_us().max(host_us) - 1e-6, "seed {seed}");
        assert_eq!(made.unlimited_us, least_us);
        let bound_us = Generator::new(&trace, &machine).bound_us(&options(&trace));
        let added_us = made.added_us();
        assert!(added_us >= bound_us - 1e-6, "seed {seed}: {added_us} below {bound_us}");
        let (simulation, lanes) = (&made.simulation, predicted_lanes(&trace, &made.simulation));
        let shares = compare_lanes(&lanes, &lanes).predicted;
        let close = |one: f64, other: f64| (one - other).abs() <= 1e-6 * other.max(1.0);
        assert!(close(shares.total_us(), simulation.step_us), "seed {seed}: {shares:?}");
        for (op, host) in trace.ops.iter().zip(&simulation.hosts).filter(|it| it.0.depth == 0) {
            assert!(host.end_us - host.start_us >= op.host_us - 1e-6, "seed {seed}: {op:?}");
        }
        late += u32::from(shares.idle_us > 0.0);
        bound_counts += u32::from(bound_us > 0.0);
    }
    assert!(late >= 60 && bound_counts >= 8, "{late} late, {bound_counts} bounds");
}

#[test]
fn with_memory_for_everything_a_step_takes_what_it_takes() {
    for seed in 0..60 {
        let trace = random_trace(seed, &RandomShape::small());
        let trace = with_host(trace, &mut Numbers::new(seed), 300, 5, COSTS);
        let roomy = machine(&trace, 100).with_limit(1 << 50);
        let step_us = simulate(&trace, &Plan::default(), &roomy).step_us;
        let expect_us = unlimited_us(&trace);
        assert!((step_us - expect_us).abs() <= 1e-6 * expect_us, "seed {seed}: {step_us}");
    }
}

/// Ops that are short for the device and long for the host: each that runs again takes the host as
/// long as many of them, while the link has all the time that it needs.
#[test]
fn a_late_host_is_spared_ops_that_run_again() {
    let shape = TransformerShape { layers: 6, weight_mib: 1, activation_mib: 4, forward_us: 60.0 };
    let ignorant = transformer_trace(&shape);
    let mut trace = ignorant.clone();
    trace.ops.iter_mut().filter(|op| op.depth == 0).for_each(|op| op.host_us = 900.0);
    trace.host_costs = HostCosts { replay_us: 4_000.0, move_us: 20.0 };
    let machine = machine(&trace, 50);
    let (aware, unaware) = (plan(&trace, &machine), plan(&ignorant, &machine));
    let replays = |made: &Generated| {
        made.plan.actions.iter().filter(|action| action.kind == ActionKind::Replay).count()
    };
    assert!(replays(&unaware) > 0, "the link is too slow for these ops");
    assert_eq!(replays(&aware), 0);
    let under = |made: &Generated| simulate(&trace, &made.plan, &machine).step_us;
    assert!(under(&aware) < 0.98 * under(&unaware), "{} {}", under(&aware), under(&unaware));
    assert!(under(&aware) <= 1.02 * unlimited_us(&trace), "all copies are hidden");
}
