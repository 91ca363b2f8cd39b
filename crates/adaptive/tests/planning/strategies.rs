//! Promises of the joint planner: it is never slower than either pure strategy, nor with more
//! effort, replays only what its producer can make again, keeps the limit, and each strategy does
//! what its name says.

use std::cell::Cell;
use std::path::Path;

use adaptive::{
    Baseline, JointConfig, JointPlanner, Link, Machine, Prefer, RecomputeConfig, Strategy,
    gap_fraction, gap_reason, recompute_options, run_baseline,
};
use policy::synthetic::{
    RandomShape, TraceBuilder, TransformerShape, random_trace, transformer_trace,
};
use policy::{
    ActionKind, Feedback, GenerateConfig, Generated, Plan, Planner, Proposal, RecordedConfig,
    Trace, Treatment, lay_out, load_trace, simulate,
};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

fn machine(link_bytes_per_us: f64) -> Machine {
    Machine {
        limit_bytes: u64::MAX / 8,
        host_limit_bytes: u64::MAX / 8,
        link: Link {
            out_bytes_per_us: link_bytes_per_us,
            in_bytes_per_us: link_bytes_per_us,
            both_bytes_per_us: 0.8 * link_bytes_per_us,
        },
        copy_submit_us: 2.0,
    }
}

fn config(strategy: Strategy) -> JointConfig {
    let generate = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    JointConfig { strategy, generate, ..JointConfig::default() }
}

fn plan(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    JointPlanner::new(*machine, *config).make(trace)
}

/// As the loop plans: whatever of others is taken leaves nothing to demand.
fn plan_in_loop(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    let mut planner = JointPlanner::new(*machine, *config);
    ask(&mut planner, trace, &Feedback::default());
    planner.latest().expect("it was asked").clone()
}

fn under(trace: &Trace, percent: u64, link_bytes_per_us: f64) -> Machine {
    let machine = machine(link_bytes_per_us);
    let peak_bytes = simulate(trace, &Plan::default(), &machine).resident_bytes_peak;
    machine.with_limit(peak_bytes * percent / 100)
}

fn transformer() -> Trace {
    let shape =
        TransformerShape { layers: 16, weight_mib: 24, activation_mib: 64, forward_us: 4_000.0 };
    transformer_trace(&shape)
}

fn kinds(made: &Generated, kind: ActionKind) -> usize {
    made.plan.actions.iter().filter(|action| action.kind == kind).count()
}

#[test]
fn each_strategy_does_what_its_name_says() {
    let trace = transformer();
    let machine = under(&trace, 55, 20_000.0);
    let keep = plan(&trace, &machine, &config(Strategy::Keep));
    assert!(keep.plan.actions.is_empty() && keep.infeasible.is_none());
    assert!(keep.decisions.iter().all(|decision| decision.treatment == Treatment::Keep));
    assert!(keep.simulation.rescues > 0, "on demand only");
    let swap = plan(&trace, &machine, &config(Strategy::Swap));
    assert!(kinds(&swap, ActionKind::SwapOut) > 0 && kinds(&swap, ActionKind::Discard) == 0);
    assert!(swap.simulation.went_to_plan());
    let recompute = plan(&trace, &machine, &config(Strategy::Recompute));
    assert!(kinds(&recompute, ActionKind::Discard) > 0);
    assert!(recompute.simulation.swapped_out_bytes < swap.simulation.swapped_out_bytes);
    assert!(recompute.simulation.went_to_plan());
    let joint = plan(&trace, &machine, &config(Strategy::Joint));
    assert!(joint.simulation.recomputed_ops > 0 && joint.simulation.swapped_out_bytes > 0);
    assert!(joint.simulation.went_to_plan());
    assert!(joint.added_us() < swap.added_us().min(recompute.added_us()));
    assert!(swap.added_us() < keep.added_us());
}

/// Layers that read what the one before made, and their backward pass.
fn chain(layers: usize, layer_bytes: u64) -> Trace {
    let mut builder = TraceBuilder::new();
    let mut made = vec![builder.persistent("batch", layer_bytes)];
    for layer in 0..layers {
        builder.begin("layer", 1_000.0, true);
        builder.read(made[layer]);
        let output = builder.allocate("output", layer_bytes);
        builder.write(output);
        builder.end();
        made.push(output);
    }
    let mut gradient = None;
    for layer in (0..layers).rev() {
        builder.begin("backward", 2_000.0, false);
        builder.read(made[layer]);
        builder.read(made[layer + 1]);
        gradient.into_iter().for_each(|gradient| builder.read(gradient));
        let next = builder.allocate("gradient", layer_bytes);
        builder.write(next);
        builder.end();
        builder.free(made[layer + 1]);
        gradient.into_iter().for_each(|gradient| builder.free(gradient));
        gradient = Some(next);
    }
    gradient.into_iter().for_each(|gradient| builder.free(gradient));
    builder.finish()
}

#[test]
fn recompute_copies_what_it_cannot_do_without() {
    let (mut both, mut lost) = (0, Vec::new());
    for (name, trace) in [("chain", chain(16, 64 << 20)), ("transformer", transformer())] {
        for percent in (20..100).step_by(4) {
            let machine = under(&trace, percent, 50_000.0);
            let fits = |strategy| plan(&trace, &machine, &config(strategy)).infeasible.is_none();
            both += u32::from(fits(Strategy::Joint));
            if fits(Strategy::Joint) && !fits(Strategy::Recompute) {
                lost.push((name, percent));
            }
        }
    }
    assert!(both > 20, "{both}");
    assert_eq!(lost, [], "joint plans reach these budgets");
}

#[test]
fn a_fast_link_leaves_nothing_to_recompute() {
    let trace = transformer();
    let machine = under(&trace, 80, 1e6);
    let joint = plan(&trace, &machine, &config(Strategy::Joint));
    assert!(kinds(&joint, ActionKind::SwapOut) > 0 && kinds(&joint, ActionKind::Discard) == 0);
    assert!(joint.added_us() < 0.001 * joint.unlimited_us);
}

#[test]
fn options_are_what_the_step_can_make_again() {
    let trace = transformer();
    let options = recompute_options(&trace, &RecomputeConfig::default());
    assert!(options.len() > 16);
    for option in &options {
        let name = &trace.blocks[option.block.0 as usize].name;
        let persistent = name.ends_with("weight") || name.contains("moment");
        assert!(!persistent && !name.ends_with("grad") || name == "loss.grad", "{name}");
        assert!(option.replay_us > 5.0);
    }
    let dear = RecomputeConfig { max_us_per_mib: 0.0, ..RecomputeConfig::default() };
    assert!(recompute_options(&trace, &dear).is_empty());
}

fn ask(planner: &mut JointPlanner, trace: &Trace, feedback: &Feedback) -> Option<Proposal> {
    planner.plan(trace, feedback).expect("the trace is well formed")
}

#[test]
fn the_planner_heeds_feedback() {
    let trace = transformer();
    let machine = under(&trace, 60, 20_000.0);
    let mut planner = JointPlanner::new(machine, config(Strategy::Swap));
    let first = ask(&mut planner, &trace, &Feedback::default()).expect("something must move");
    assert!(first.predicted.peak_bytes <= machine.limit_bytes);
    assert!(first.predicted.step_us > 0.0 && first.predicted.link_us > 0.0);
    let margin = Feedback { margin_bytes: machine.limit_bytes / 16, ..Feedback::default() };
    let careful = ask(&mut planner, &trace, &margin).expect("something must move");
    let moves = |plan: &Plan| plan.actions.len();
    assert!(moves(&careful.plan) > moves(&first.plan), "a margin takes more moves");
    let slow = Feedback { link_scale: 0.5, ..Feedback::default() };
    let slow = ask(&mut planner, &trace, &slow).expect("something must move");
    assert!(slow.predicted.link_us > first.predicted.link_us);
    let mut roomy = JointPlanner::new(under(&trace, 100, 20_000.0), config(Strategy::Joint));
    assert!(ask(&mut roomy, &trace, &Feedback::default()).is_none(), "what fits is left alone");
}

#[test]
fn joint_plans_are_sound_and_no_slower_than_pure_ones() {
    let (replays, faster) = (Cell::new(0), Cell::new(0));
    let config_of_cases = ProptestConfig {
        cases: 96,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    };
    let result =
        TestRunner::new(config_of_cases).run(&(any::<u64>(), 40_u64..95), |(seed, percent)| {
            let trace = random_trace(seed, &RandomShape::small());
            let machine = under(&trace, percent, 6_000.0);
            let joint = plan_in_loop(&trace, &machine, &config(Strategy::Joint));
            if joint.infeasible.is_some() {
                return Ok(());
            }
            prop_assert!(joint.simulation.went_to_plan());
            prop_assert!(joint.simulation.held_bytes_peak <= machine.limit_bytes);
            let ignored_us = 0.001 * joint.unlimited_us;
            for strategy in [Strategy::Swap, Strategy::Recompute] {
                let pure = plan_in_loop(&trace, &machine, &config(strategy));
                let slower = joint.simulation.step_us > pure.simulation.step_us + ignored_us;
                // What leaves moves to demand comes after all that does not.
                let is_sure = pure.infeasible.is_none() && pure.simulation.went_to_plan();
                prop_assert!(!is_sure || !slower);
                let gains = joint.simulation.step_us < pure.simulation.step_us;
                faster.set(faster.get() + u32::from(gains));
            }
            // Blocks come back as planned, or with what is made from them; the others nobody needs.
            let discards = kinds(&joint, ActionKind::Discard) as u64;
            let planned = kinds(&joint, ActionKind::Replay) as u64;
            let recomputed = joint.simulation.recomputed_ops;
            prop_assert!(planned <= recomputed && recomputed <= discards);
            replays.set(replays.get() + recomputed);
            Ok(())
        });
    result.expect("the property holds");
    assert!(replays.get() > 20 && faster.get() > 20, "{} {}", replays.get(), faster.get());
}

#[test]
fn more_effort_never_makes_a_worse_plan() {
    let (better, others) = (Cell::new(0_u32), Cell::new(0_u32));
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    });
    let result = runner.run(&(any::<u64>(), 40_u64..95), |(seed, percent)| {
        let trace = random_trace(seed, &RandomShape { ops: 60, ..RandomShape::small() });
        let machine = under(&trace, percent, [2_000.0, 20_000.0][seed as usize % 2]);
        let mut last: Option<Generated> = None;
        for effort in [1, 2, 3, 5, 8, 13, 21] {
            let mut config = config(Strategy::Joint);
            config.generate.effort = effort;
            let made = plan(&trace, &machine, &config);
            if let Some(last) = last {
                // What leaves nothing to demand goes before what is faster.
                let is_surer = made.simulation.went_to_plan() && !last.simulation.went_to_plan();
                prop_assert!(made.cost() <= last.cost() || is_surer, "{percent} % at {effort}");
                better.set(better.get() + u32::from(made.cost() < last.cost()));
                others.set(others.get() + 1);
            }
            last = Some(made);
        }
        Ok(())
    });
    result.expect("the property holds");
    assert!(better.get() > others.get() / 20, "{} of {}", better.get(), others.get());
}

#[test]
fn the_best_plan_is_at_or_below_all_others_and_says_where_it_misses_the_bound() {
    let trace = transformer();
    let mut reasons = 0;
    for (percent, link) in [(80, 20_000.0), (55, 20_000.0), (45, 4_000.0), (40, 1_000.0)] {
        let machine = under(&trace, percent, link);
        for strategy in [Strategy::Swap, Strategy::Joint] {
            for effort in [1, 8] {
                let mut config = config(strategy);
                config.generate.effort = effort;
                let best = plan(&trace, &machine, &config);
                for prefer in [Prefer::Performance, Prefer::Memory] {
                    config.prefer = Some(prefer);
                    let one = plan(&trace, &machine, &config);
                    assert!(one.infeasible.is_some() || best.added_us() <= one.added_us() + 1e-6);
                }
                for baseline in Baseline::ALL {
                    let run = run_baseline(&trace, &machine, baseline);
                    let theirs = *run.trace == trace && run.simulation.shortfall.is_none();
                    let swaps = run.simulation.recomputed_ops == 0 || strategy == Strategy::Joint;
                    let slower = best.simulation.step_us <= run.simulation.step_us + 1e-6;
                    assert!(!theirs || !swaps || slower, "{baseline} {percent} {effort}");
                }
                assert!(best.added_us() + 1e-6 >= best.windows_us);
                let bound_us = JointPlanner::new(machine, config).bound_us(&trace);
                assert!(best.added_us() + 1e-6 >= bound_us);
                let reason = gap_reason(&trace, &best, bound_us);
                assert_eq!(reason.is_some(), gap_fraction(&best, bound_us) > 0.03, "{reason:?}");
                let said = |text: &String| text.contains(" waits ") || text.contains("made again");
                assert!(reason.as_ref().is_none_or(said), "{reason:?}");
                reasons += usize::from(reason.is_some());
            }
        }
    }
    assert!(reasons > 0, "no plan misses the bound by enough to say why");
}

#[test]
fn settings_hold_for_the_plans_of_others_too() {
    let trace = transformer();
    let machine = under(&trace, 60, 2_000.0);
    let mut config = config(Strategy::Swap);
    config.generate.min_block_bytes = 32 << 20;
    config.prefer = Some(Prefer::Performance);
    let best = plan(&trace, &machine, &config);
    assert!(!best.plan.actions.is_empty());
    for action in &best.plan.actions {
        let block = &trace.blocks[action.block.0 as usize];
        assert!(block.size_bytes >= 32 << 20, "{}", block.name);
        assert_ne!(block.origin, policy::Origin::Persistent, "{}", block.name);
        assert!(matches!(action.kind, ActionKind::SwapOut | ActionKind::SwapIn));
    }
}

/// A step of a public script, recorded on an H200: the memory that one op takes by itself leaves
/// hardly any room for replays. Where they get into each other's way, others are swapped instead.
/// Beside what cannot move that op needs 5,548 MiB.
#[test]
fn just_above_the_least_memory_a_little_more_is_no_cliff() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/data/nanogpt.json.gz");
    let trace = load_trace(&trace, &RecordedConfig::default()).expect("it loads");
    let generate = GenerateConfig { effort: 2, ..GenerateConfig::default() };
    let config = JointConfig { generate, ..JointConfig::default() };
    let link = Link { both_bytes_per_us: 48_800.0, ..machine(55_000.0).link };
    let made = [5_550, 5_650, 5_750, 5_900, 6_100].map(|limit_mib: u64| {
        let machine = Machine { link, ..machine(55_000.0) }.with_limit(limit_mib << 20);
        plan(&trace, &machine, &config)
    });
    let times_us = made.each_ref().map(|made| made.simulation.step_us);
    println!("{times_us:.0?} us, with all of the memory {:.0}", made[0].unlimited_us);
    for made in &made {
        assert!(made.infeasible.is_none() && made.simulation.went_to_plan());
        assert!(made.simulation.step_us < 1.8 * made.unlimited_us);
        assert!(kinds(made, ActionKind::Discard) > 100);
    }
    for (less, more) in times_us.iter().zip(&times_us[1..]) {
        assert!(*more < 1.05 * less, "{times_us:?}");
    }
}

/// The plan that the loop gets for a recorded step, with so much memory.
fn proposal(trace: &Trace, machine: Machine, fits_layout: bool) -> Proposal {
    let generate = GenerateConfig { effort: 2, ..GenerateConfig::default() };
    let config = JointConfig { generate, fits_layout, ..JointConfig::default() };
    let mut planner = JointPlanner::new(machine, config);
    let proposal = Planner::plan(&mut planner, trace, &Feedback::default()).expect("well formed");
    proposal.expect("the step does not fit as it is")
}

#[test]
fn of_plans_that_are_laid_out_the_fastest_there_is_taken_and_its_time_is_what_is_said() {
    let trace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/data/nanogpt.json.gz");
    let trace = load_trace(&trace, &RecordedConfig::default()).expect("it loads");
    let mut gained = 0;
    for limit_mib in [6_100_u64, 6_387] {
        let machine = machine(55_000.0).with_limit(limit_mib << 20);
        let ours = proposal(&trace, machine, true);
        let layout = ours.layout.expect("it is laid out");
        assert_eq!(layout.excess_bytes(machine.limit_bytes), 0, "{limit_mib} MiB");
        assert_eq!(ours.predicted.step_us, layout.step_us);
        // Against the plan that is fastest where nobody has to lie anywhere, with what is left of
        // the memory if a fiftieth is left to others.
        let machine = machine.with_limit(machine.limit_bytes - machine.limit_bytes / 50);
        let other = proposal(&trace, machine, false);
        let there = lay_out(&trace, &other.plan, &machine);
        let fits = there.excess_bytes(machine.limit_bytes) == 0;
        let step_us = [layout.step_us, there.step_us];
        println!("{limit_mib} MiB: {step_us:.0?} us, the other fits: {fits}");
        assert!(!fits || step_us[0] <= step_us[1], "{limit_mib} MiB: {step_us:.0?} us");
        gained += u32::from(!fits || step_us[0] < 0.99 * step_us[1]);
    }
    assert!(gained > 0, "the other plan would have done as well everywhere");
}
