//! Each key of SmartSwap's configuration changes its generators as it says.

use swap_core::{ActionKind, Origin, Plan};

use super::{LAYERS, machine, transformer};
use crate::baseline::{Baseline, BaselineRun, SmartSwapConfig, run_baseline, run_baseline_with};
use crate::synthetic::{TransformerShape, transformer_trace};

/// The run of a generator at so many hundredths of the peak, and what leaves in it.
fn run_with(percent: u64, baseline: Baseline, config: SmartSwapConfig) -> (u64, Plan) {
    let trace = transformer();
    let run = run_baseline_with(&trace, &machine(&trace, percent, 50_000.0), baseline, &config);
    (out_bytes(&run), run.plan)
}

fn out_bytes(run: &BaselineRun<'_>) -> u64 {
    sizes_out(run).iter().sum()
}

fn sizes_out(run: &BaselineRun<'_>) -> Vec<u64> {
    let out = run.plan.actions.iter().filter(|action| action.kind == ActionKind::SwapOut);
    out.map(|action| run.trace.blocks[action.block.0 as usize].size_bytes).collect()
}

const BASE: fn() -> SmartSwapConfig = SmartSwapConfig::default;

#[test]
fn without_settings_they_run_as_documented() {
    let trace = transformer();
    let machine = machine(&trace, 70, 20_000.0);
    for baseline in Baseline::ALL {
        let with = run_baseline_with(&trace, &machine, baseline, &SmartSwapConfig::default());
        assert_eq!(run_baseline(&trace, &machine, baseline), with, "{baseline}");
    }
}

#[test]
fn smaller_blocks_than_the_filter_stay() {
    let trace = transformer();
    let sizes = |baseline: Baseline, block_bytes_min: u64| {
        let config = SmartSwapConfig { block_bytes_min, ..BASE() };
        sizes_out(&run_baseline_with(&trace, &machine(&trace, 40, 50_000.0), baseline, &config))
    };
    for baseline in [Baseline::SmartSwapV1, Baseline::SmartSwapV2] {
        let all = sizes(baseline, 1);
        let (&least, &most) = (all.iter().min().unwrap(), all.iter().max().unwrap());
        assert!(least < most, "{baseline}: there are several sizes");
        let large = sizes(baseline, least + 1);
        assert!(!large.is_empty() && large.iter().all(|&size| size > least), "{baseline}");
    }
    // The first takes blocks of this very size, the second only larger ones.
    let most = *sizes(Baseline::SmartSwapV2, 1).iter().max().unwrap();
    assert!(sizes(Baseline::SmartSwapV2, most).is_empty());
    assert!(sizes(Baseline::SmartSwapV1, most).contains(&most));
}

#[test]
fn size_counts_as_much_as_its_weight() {
    let mean_bytes = |size_weight: f64| {
        let config = SmartSwapConfig { size_weight, ..BASE() };
        let trace = transformer();
        let machine = machine(&trace, 90, 50_000.0);
        let sizes = sizes_out(&run_baseline_with(&trace, &machine, Baseline::SmartSwapV1, &config));
        sizes.iter().sum::<u64>() / sizes.len() as u64
    };
    assert!(mean_bytes(100.0) > mean_bytes(0.0), "the largest first");
}

#[test]
fn targets_fall_after_policies_that_needed_rescues() {
    let (limit, gib) = (10 << 30, 1 << 30);
    let config = SmartSwapConfig { redundant_bytes: 2 * gib, adjust_bytes: gib, ..BASE() };
    assert_eq!(
        [0, 1, 2].map(|tries| config.target_bytes(limit, tries)),
        [10, 7, 6].map(|n| n * gib)
    );
    assert_eq!(config.target_bytes(gib, 5), 0);
    let reserve = SmartSwapConfig { reserve_bytes: gib, ..BASE() };
    assert_eq!(reserve.target_bytes(limit, 0), 9 * gib);
    // In a run: with the first target the policy needs a rescue, with a lower one it does not.
    let shape =
        TransformerShape { layers: 24, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
    let trace = transformer_trace(&shape);
    let tried = |redundant_bytes, adjust_bytes, search_steps| {
        let config = SmartSwapConfig { redundant_bytes, adjust_bytes, search_steps, ..BASE() };
        let machine = machine(&trace, 60, 50_000.0);
        let run = run_baseline_with(&trace, &machine, Baseline::SmartSwapV1, &config);
        (out_bytes(&run), run.simulation.rescues)
    };
    let lower = 200 << 20;
    let once = tried(0, 0, 1);
    assert!(once.1 > 0, "{once:?}");
    for (redundant_bytes, adjust_bytes) in [(lower, 0), (0, lower)] {
        let again = tried(redundant_bytes, adjust_bytes, 2);
        assert!(again.0 > once.0 && again.1 == 0, "{again:?}");
        assert_eq!(tried(redundant_bytes, adjust_bytes, 1), once, "there is no second try");
    }
    // What the reserve leaves unused has to leave at once.
    let moved = |reserve_bytes| {
        run_with(90, Baseline::SmartSwapV1, SmartSwapConfig { reserve_bytes, ..BASE() }).0
    };
    assert!(moved(400 << 20) > moved(0));
}

#[test]
fn buckets_hold_what_leaves_with_one_stage() {
    let moved = |bucket_bytes| {
        run_with(60, Baseline::SmartSwapV2, SmartSwapConfig { bucket_bytes, ..BASE() }).0
    };
    assert_eq!(moved(Some(0)), 0);
    assert_eq!(moved(Some(u64::MAX)), moved(None));
    let some = moved(Some(130 << 20));
    assert!(0 < some && some < moved(None), "{some}");
    // Each layer but those at the turn sends at most its bucket.
    assert!(some <= u64::from(LAYERS) * (130 << 20), "{some}");
}

#[test]
fn stages_hold_as_many_layers_as_asked_for() {
    let shape =
        TransformerShape { layers: 12, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
    let trace = transformer_trace(&shape);
    let run = |layers_per_stage: u32| {
        let config = SmartSwapConfig { layers_per_stage, ..BASE() };
        let machine = machine(&trace, 60, 50_000.0);
        run_baseline_with(&trace, &machine, Baseline::SmartSwapV2, &config).plan
    };
    let returns = |plan: &Plan| {
        let back = plan.actions.iter().filter(|action| action.kind == ActionKind::SwapIn);
        let mut ops: Vec<u32> = back.map(|action| action.op.0).collect();
        ops.dedup();
        ops.len()
    };
    // Copies back are ordered once a stage, so larger stages order them at fewer ops.
    let [one, three, all] = [1, 3, 12].map(run);
    assert!(returns(&three) < returns(&one), "{} {}", returns(&three), returns(&one));
    assert!(all.actions.is_empty(), "one stage each way is next to itself");
}

#[test]
fn optimizer_state_leaves_if_memory_comes_first() {
    let trace = transformer();
    let persistent = |optimizer_state| {
        let config = SmartSwapConfig { optimizer_state, ..BASE() };
        let machine = machine(&trace, 60, 50_000.0);
        let run = run_baseline_with(&trace, &machine, Baseline::SmartSwapV2, &config);
        let blocks = run.plan.blocks.iter();
        blocks.filter(|block| block.origin == Origin::Persistent).count()
    };
    assert_eq!(persistent(false), 0);
    assert!(persistent(true) > 0);
}
