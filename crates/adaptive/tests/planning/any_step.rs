//! Planning ends well for whatever is a step: any mixture of lifetimes, held blocks, blocks carried
//! over the step's end, times, limits, links and settings, under every strategy.

use std::cell::Cell;

use adaptive::{JointConfig, JointPlanner, Link, Machine, Prefer, RecomputeConfig, Strategy};
use policy::synthetic::{Numbers, RandomShape, random_trace};
use policy::{
    Baseline, Feedback, GenerateConfig, Generated, Plan, Planner, Trace, TraceEvent, check_trace,
    run_baseline, simulate,
};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

const CASES: u32 = 10_000;
const STRATEGIES: [Strategy; 5] =
    [Strategy::Keep, Strategy::Swap, Strategy::Recompute, Strategy::Joint, Strategy::SmartSwap];

fn pick<T: Copy>(numbers: &mut Numbers, from: &[T]) -> T {
    from[numbers.below(from.len() as u64) as usize]
}

/// A step that need not be a steady one.
fn step(numbers: &mut Numbers) -> Trace {
    let shape = RandomShape {
        ops: numbers.below(14) as u32,
        persistent: numbers.below(7) as u32,
        size_units: 1 + numbers.below(4),
        unit_bytes: pick(numbers, &[1, 3 << 20, 32 << 20, 1 << 40]),
        op_us: pick(numbers, &[1, 400, 1_000_000]),
        nested_recipes: pick(numbers, &[0, 50, 90]),
        carried: pick(numbers, &[0, 1, 3]),
    };
    let mut trace = random_trace(numbers.below(u64::MAX), &shape);
    let (held, idle, unfreed) =
        (pick(numbers, &[0, 0, 20]), pick(numbers, &[0, 30, 100]), pick(numbers, &[0, 0, 30]));
    for block in &mut trace.blocks {
        block.held = numbers.chance(held);
    }
    for op in &mut trace.ops {
        op.device_us = if numbers.chance(idle) { 0.0 } else { op.device_us };
    }
    trace.events.retain(|event| !matches!(event, TraceEvent::Free(_)) || !numbers.chance(unfreed));
    assert_eq!(check_trace(&trace), Ok(()));
    trace
}

fn machine(numbers: &mut Numbers, peak_bytes: u64) -> Machine {
    let share = |numbers: &mut Numbers, percent: u64| {
        (u128::from(peak_bytes) * u128::from(numbers.below(percent)) / 100) as u64
    };
    let rates = [1e-3, 30.0, 6_000.0, 50_000.0, 1e9];
    let [out_bytes_per_us, in_bytes_per_us]: [f64; 2] = [(); 2].map(|()| pick(numbers, &rates));
    let slower = out_bytes_per_us.min(in_bytes_per_us);
    Machine {
        limit_bytes: share(numbers, 120),
        host_limit_bytes: match numbers.below(4) {
            0 => 0,
            1 => share(numbers, 100),
            _ => u64::MAX,
        },
        link: Link {
            out_bytes_per_us,
            in_bytes_per_us,
            both_bytes_per_us: slower * pick(numbers, &[1.0, 0.6]),
        },
        copy_submit_us: pick(numbers, &[0.0, 2.0, 1e4]),
    }
}

fn config(numbers: &mut Numbers, strategy: Strategy, peak_bytes: u64) -> JointConfig {
    let generate = GenerateConfig {
        min_block_bytes: pick(numbers, &[0, 1, 6 << 20]),
        swap_bytes_max: pick(numbers, &[u64::MAX, u64::MAX, peak_bytes / 2, 0]),
        reserve_bytes: pick(numbers, &[0, 0, peak_bytes / 8, u64::MAX]),
        effort: pick(numbers, &[0, 1, 2, 9]),
        ..GenerateConfig::default()
    };
    let launch_us = pick(numbers, &[0.0, 5.0]);
    let recompute = RecomputeConfig { launch_us, ..RecomputeConfig::default() };
    let prefer = pick(numbers, &[None, Some(Prefer::Memory), Some(Prefer::Performance)]);
    JointConfig { strategy, prefer, generate, recompute, ..JointConfig::default() }
}

/// Whether a plan keeps what every plan does, whoever made it.
fn check(
    trace: &Trace,
    made: &Generated,
    machine: &Machine,
    bound_us: f64,
) -> Result<(), TestCaseError> {
    let simulation = &made.simulation;
    prop_assert!(simulation.step_us.is_finite() && bound_us.is_finite());
    if simulation.shortfall.is_some() {
        return Ok(());
    }
    prop_assert!(simulation.held_bytes_peak <= machine.limit_bytes);
    // Blocks that are held leave on demand in the simulation, which no plan may count on. And on
    // so slow a link the clock has no microseconds any more.
    let counts = !trace.blocks.iter().any(|block| block.held)
        && machine.link.both_bytes_per_us > 1.0
        && simulation.went_to_plan();
    let least_us = bound_us.max(made.windows_us);
    let at_least = least_us <= made.added_us() + 1e-6 * (1.0 + simulation.step_us);
    prop_assert!(!counts || at_least, "{} is below {least_us}", made.added_us());
    Ok(())
}

#[test]
fn every_strategy_plans_every_step() {
    let (planned, carried, replayed) = (Cell::new(0_u32), Cell::new(0_u32), Cell::new(0_u32));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        // A smaller seed is no simpler step.
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    });
    let result = runner.run(&any::<u64>(), |seed| {
        let mut numbers = Numbers::new(seed);
        let trace = step(&mut numbers);
        let roomy = machine(&mut numbers, 0).with_limit(u64::MAX / 2);
        let peak_bytes = simulate(&trace, &Plan::default(), &roomy).resident_bytes_peak;
        let machine = machine(&mut numbers, peak_bytes);
        let config = config(&mut numbers, STRATEGIES[seed as usize % STRATEGIES.len()], peak_bytes);
        let feedback = Feedback {
            margin_bytes: pick(&mut numbers, &[0, peak_bytes / 32, u64::MAX]),
            link_scale: pick(&mut numbers, &[1.0, 0.05]),
            ..Feedback::default()
        };
        let mut planner = JointPlanner::new(machine, config);
        let proposal = planner.plan(&trace, &feedback).expect("a well-formed trace");
        // What the link was scaled by can only make it slower.
        let bound_us = planner.bound_us(&trace);
        check(&trace, planner.latest().expect("it was asked"), &machine, bound_us)?;
        if let Some(proposal) = &proposal {
            planned.set(planned.get() + 1);
            let named = |name: &str| {
                let blocks = proposal.plan.actions.iter();
                blocks.filter(|a| trace.blocks[a.block.0 as usize].name.starts_with(name)).count()
            };
            carried.set(carried.get() + u32::from(named("ahead") > 0));
            let again = planner.latest().is_some_and(|made| made.simulation.recomputed_ops > 0);
            replayed.set(replayed.get() + u32::from(again));
        }
        match seed % 3 {
            0 => {
                let made = JointPlanner::new(machine, config).make(&trace);
                check(&trace, &made, &machine, bound_us)?;
            }
            1 => {
                for baseline in Baseline::ALL {
                    run_baseline(&trace, &machine, baseline);
                }
            }
            _ => {}
        }
        Ok(())
    });
    result.expect("the property holds");
    let counts = [planned, carried, replayed].map(Cell::into_inner);
    println!("{counts:?}");
    assert!(counts[0] > CASES / 5 && counts[1] > CASES / 20 && counts[2] > CASES / 50);
}
