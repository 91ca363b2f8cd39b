//! Each strategy shows what it is known for, on a small transformer.

use swap_core::{ActionKind, OpIndex, Trace, TraceEvent};

use super::stages::{Part, Stages};
use super::{Baseline, run_baseline};
use crate::check::check_trace;
use crate::machine::{Link, Machine};
use crate::simulate::simulate;
use crate::synthetic::{RandomShape, TransformerShape, random_trace, transformer_trace};
use crate::usage::Usage;

mod smartswap;

const LAYERS: u32 = 6;

fn transformer() -> Trace {
    transformer_trace(&TransformerShape {
        layers: LAYERS,
        weight_mib: 24,
        activation_mib: 64,
        forward_us: 9_000.0,
    })
}

/// A machine that has so many hundredths of what a step needs.
fn machine(trace: &Trace, percent: u64, rate: f64) -> Machine {
    let roomy = Machine {
        limit_bytes: 1 << 50,
        host_limit_bytes: 1 << 50,
        link: Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate },
        copy_submit_us: 8.0,
    };
    let need = simulate(trace, &Default::default(), &roomy).resident_bytes_peak;
    roomy.with_limit(need * percent / 100)
}

#[test]
fn layers_are_found_by_name() {
    let trace = transformer();
    let usage = Usage::new(&trace);
    let stages = Stages::by_layer(&trace, &usage);
    assert_eq!(stages.layers.len(), LAYERS as usize);
    let name = |slot: usize| trace.ops[usage.slots[slot].0 as usize].name.as_str();
    for &(first, end) in &stages.layers {
        let names: Vec<&str> = (first..end).map(name).collect();
        assert_eq!(names.iter().filter(|name| **name == "attention").count(), 1, "{names:?}");
    }
    let part_of = |stage: &usize| stages.part[stages.start[*stage] as usize];
    let count = |part: Part| (0..stages.count()).filter(|stage| part_of(stage) == part).count();
    assert_eq!(count(Part::Forward), LAYERS as usize);
    assert_eq!(count(Part::Backward), LAYERS as usize);
    assert_eq!(count(Part::Optimizer), 1);
    assert_eq!(stages.stage.len(), usage.slots.len());
    assert_eq!(stages.even(12).count(), 25);
}

#[test]
fn every_strategy_gives_a_plan_that_runs_and_is_repeatable() {
    let mut moved = 0;
    for seed in 0..40 {
        let mut trace =
            if seed == 0 { transformer() } else { random_trace(seed, &RandomShape::small()) };
        let last = OpIndex(trace.ops.len() as u32 - 1);
        trace.ops.iter_mut().step_by(3).for_each(|op| op.outdated_by = Some(last));
        let machine = machine(&trace, 70, 20_000.0);
        for baseline in Baseline::ALL {
            let run = run_baseline(&trace, &machine, baseline);
            assert_eq!(check_trace(&run.trace), Ok(()), "{baseline} {seed}");
            assert_eq!(run, run_baseline(&trace, &machine, baseline), "{baseline} {seed}");
            for action in &run.plan.actions {
                let index = run.plan.blocks.binary_search_by_key(&action.block, |b| b.index);
                assert!(index.is_ok(), "{baseline} {seed}: each moved block is described");
            }
            let sorted = run.plan.actions.is_sorted_by_key(|action| (action.op, action.phase));
            assert!(sorted, "{baseline} {seed}");
            moved += run.plan.actions.len();
        }
    }
    assert!(moved > 500, "{moved}");
}

#[test]
fn keep_moves_nothing_that_fits_and_rescues_what_does_not() {
    let trace = transformer();
    let roomy = run_baseline(&trace, &machine(&trace, 110, 50_000.0), Baseline::Keep);
    assert_eq!((roomy.simulation.swapped_out_bytes, roomy.simulation.rescues), (0, 0));
    let tight = run_baseline(&trace, &machine(&trace, 60, 50_000.0), Baseline::Keep);
    assert!(tight.plan.actions.is_empty() && tight.simulation.rescues > 0);
    assert!(tight.simulation.step_us > roomy.simulation.step_us);
}

#[test]
fn vdnn_moves_all_activations_however_much_memory_there_is() {
    let trace = transformer();
    let [roomy, tight] = [200, 60]
        .map(|percent| run_baseline(&trace, &machine(&trace, percent, 50_000.0), Baseline::Vdnn));
    assert_eq!(roomy.plan, tight.plan);
    let out = roomy.plan.actions.iter().filter(|a| a.kind == ActionKind::SwapOut).count();
    // Its last layer's blocks come back at once or not at all; every other layer has five.
    assert!(out >= 5 * (LAYERS as usize - 1), "{out}");
    // They come back one layer ahead: at the first op of the layer before.
    let usage = Usage::new(&trace);
    let stages = Stages::by_layer(&trace, &usage);
    for action in roomy.plan.actions.iter().filter(|a| a.kind == ActionKind::SwapIn) {
        let slot = |op: swap_core::OpIndex| usage.op_slot[op.0 as usize] as usize;
        let (back, due) = (slot(action.op), slot(action.due));
        assert!(stages.stage[back] + 1 >= stages.stage[due], "{action:?}");
    }
}

#[test]
fn capuchin_moves_only_what_is_missing_and_hides_it() {
    let trace = transformer();
    let roomy = run_baseline(&trace, &machine(&trace, 110, 50_000.0), Baseline::Capuchin);
    assert!(roomy.plan.actions.is_empty());
    let tight = run_baseline(&trace, &machine(&trace, 80, 50_000.0), Baseline::Capuchin);
    let vdnn = run_baseline(&trace, &machine(&trace, 80, 50_000.0), Baseline::Vdnn);
    assert!(tight.simulation.swapped_out_bytes > 0);
    assert!(tight.simulation.step_us <= vdnn.simulation.step_us);
    assert_eq!(tight.simulation.recomputed_ops, 0, "a fast link hides the copies");
    // Where the link is slow, making blocks again is cheaper.
    let slow = run_baseline(&trace, &machine(&trace, 60, 2_000.0), Baseline::Capuchin);
    assert!(slow.simulation.recomputed_ops > 0);
}

#[test]
fn the_first_generator_fills_stages_and_takes_more_for_a_lower_limit() {
    let trace = transformer();
    let copies = |percent, baseline| {
        let run = run_baseline(&trace, &machine(&trace, percent, 50_000.0), baseline);
        run.plan.actions.iter().filter(|action| action.kind == ActionKind::SwapOut).count()
    };
    for baseline in [Baseline::SmartSwapV1, Baseline::SmartSwapV1Measured] {
        assert_eq!(copies(110, baseline), 0);
        assert!(0 < copies(90, baseline) && copies(90, baseline) < copies(60, baseline));
    }
}

#[test]
fn the_second_generator_does_not_ask_for_the_limit() {
    let trace = transformer();
    let run = |percent, rate, baseline| {
        run_baseline(&trace, &machine(&trace, percent, rate), baseline).plan
    };
    let [v2, measured] = [Baseline::SmartSwapV2, Baseline::SmartSwapV2Measured];
    assert_eq!(run(200, 50_000.0, v2), run(60, 50_000.0, v2));
    // Layers next to the turn are left out, so it moves less than everything.
    let all = run(60, 50_000.0, Baseline::Vdnn);
    assert!(!run(60, 50_000.0, v2).actions.is_empty());
    assert!(run(60, 50_000.0, v2).actions.len() < all.actions.len());
    // A bucket of what a slow link moves in a layer's time holds less.
    assert!(run(60, 10_000.0, measured).actions.len() < run(60, 10_000.0, v2).actions.len());
}

#[test]
fn full_recompute_runs_each_layer_once_more_and_copies_nothing() {
    let trace = transformer();
    let run = run_baseline(&trace, &machine(&trace, 110, 50_000.0), Baseline::FullRecompute);
    let simulation = &run.simulation;
    let own_us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
    assert_eq!(simulation.swapped_out_bytes, 0);
    assert!((simulation.step_us - own_us - simulation.recomputed_us).abs() < 1e-3);
    // All but the ops behind the last block that is needed.
    let share = simulation.recomputed_us / (9_000.0 * f64::from(LAYERS));
    assert!(0.5 < share && share <= 1.0, "{share}");
    let roomy = machine(&trace, 110, 50_000.0);
    let kept = simulate(&trace, &Default::default(), &roomy);
    assert!(simulation.resident_bytes_peak < kept.resident_bytes_peak * 3 / 4);
    // Backward reads what the second run wrote, never what was freed.
    let writes = run
        .trace
        .events
        .iter()
        .filter(|event| matches!(event, TraceEvent::Touch(_, mode) if mode.writes()));
    let before = trace
        .events
        .iter()
        .filter(|event| matches!(event, TraceEvent::Touch(_, mode) if mode.writes()));
    assert!(writes.count() > before.count());
}
