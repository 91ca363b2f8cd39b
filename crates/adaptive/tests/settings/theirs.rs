//! The keys of SmartSwap for Ascend: each changes the loop or the generators as it does there.

use adaptive::{
    ActionKind, Budget, Feedback, Generated, JointConfig, Loop, LoopConfig, Plan, Planner, Prefer,
    PrintLevel, Proposal, Signature, Stage, StepCounters, StepReport, Trace, TraceFault, Treatment,
};

use crate::{parse, persistent, plan};

/// What the policy is called in these tests; the limit is that of the fabricated steps.
const LIMIT_BYTES: u64 = 64 << 30;

/// Offers plans without end, and keeps the margins that it was asked for.
#[derive(Debug, Default)]
struct Counting {
    margins: Vec<u64>,
}

impl Planner for Counting {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.margins.push(feedback.margin_bytes);
        let op_count = self.margins.len() as u32;
        let plan = Plan { signature: trace.signature, op_count, ..Plan::default() };
        Ok(Some(Proposal { plan, ..Proposal::default() }))
    }
}

/// The loop of a file.
fn looping(text: &str) -> Loop<Counting> {
    let base = LoopConfig { limit_bytes: LIMIT_BYTES, ..LoopConfig::default() };
    Loop::new(parse(text).loop_config(base), Counting::default())
}

/// A step of so many ops that needed a rescue.
fn rescued(kind: u64, op_count: u32) -> StepReport {
    let signature = Signature(kind);
    StepReport {
        step: 0,
        signature,
        family: Signature::default(),
        probes: Vec::new(),
        op_count,
        counters: StepCounters { rescues: 1, ..StepCounters::default() },
        device_us: 100.0,
        held_bytes_peak: LIMIT_BYTES,
        resident_bytes_peak: LIMIT_BYTES,
        drifted_at: None,
        strayed_ops: 0,
        moves: Vec::new(),
        trace: Some(Trace { signature, ..Trace::default() }),
        lanes: None,
    }
}

/// Sizes of what leaves in a plan.
fn sizes(made: &Generated) -> Vec<u64> {
    let away = made.decisions.iter().filter(|one| one.treatment == Treatment::Swap);
    away.map(|one| one.size_bytes).collect()
}

fn v1(text: &str, percent: u64) -> Generated {
    plan(&format!("strategy = \"smartswap\"\n[smartswap]\npolicy_v2 = false\n{text}"), percent)
}

fn v2(text: &str) -> Generated {
    plan(&format!("strategy = \"smartswap\"\n[smartswap]\n{text}"), 60)
}

#[test]
fn warmup_step_is_how_long_it_warms_up() {
    for steps in [1, 2, 5] {
        let mut under_test = looping(&format!("[smartswap]\nwarmup_step = {steps}"));
        let warm = (1..=steps + 3)
            .take_while(|_| under_test.observe(&rescued(1, 10)).stage == Stage::WarmUp);
        assert_eq!(warm.count(), steps - 1);
    }
}

#[test]
fn stable_step_is_when_the_search_ends() {
    let tries = |text: &str| {
        let mut under_test = looping(&format!("[smartswap]\n{text}"));
        while under_test.stage() != Stage::Stable {
            under_test.observe(&rescued(1, 10));
        }
        under_test.planner().margins.len()
    };
    assert_eq!([tries("stable_step = 3"), tries("stable_step = 4")], [1, 2]);
    assert_eq!(tries("warmup_step = 5\nstable_step = 9"), 4);
    assert_eq!(tries(""), 3);
}

#[test]
fn op_diff_thresh_is_how_much_alike_steps_are() {
    let stage = |text: &str| {
        let mut under_test = looping(&format!("[smartswap]\n{text}"));
        under_test.observe(&rescued(1, 100));
        under_test.observe(&rescued(2, 104)).stage
    };
    assert_eq!(stage(""), Stage::WarmUp);
    assert_eq!(stage("op_diff_thresh = 0.03"), Stage::WarmUp);
    assert_eq!(stage("op_diff_thresh = 0.05"), Stage::SearchPolicy);
}

#[test]
fn redundant_and_adjust_memory_lower_the_target_after_rescues() {
    let margins = |text: &str| {
        let mut under_test = looping(&format!("[smartswap]\n{text}"));
        for _ in 0..5 {
            under_test.observe(&rescued(1, 10));
        }
        under_test.planner().margins.iter().map(|bytes| bytes >> 20).collect::<Vec<_>>()
    };
    assert_eq!(margins(""), [0, 2048]);
    assert_eq!(margins("redundant_memory = \"3GiB\""), [3072, 6144]);
    assert_eq!(margins("adjust_memory = \"300MiB\""), [0, 300]);
    let both = "redundant_memory = \"2GiB\"\nadjust_memory = \"300MiB\"";
    assert_eq!(margins(both), [2348, 2648]);
    // The generators of theirs try again by themselves; see the tests of `policy`.
    let config = parse(&format!("[smartswap]\n{both}")).smartswap_config();
    assert_eq!((config.redundant_bytes, config.adjust_bytes), (2 << 30, 300 << 20));
}

#[test]
fn tensor_size_filter_is_the_least_size_that_moves() {
    let filter = "tensor_size_filter = \"65MiB\"";
    let small = |made: Generated| sizes(&made).iter().filter(|&&bytes| bytes < 65 << 20).count();
    for (without, with) in [(v1("", 60), v1(filter, 60)), (v2(""), v2(filter))] {
        assert!(small(without) > 0);
        assert!(!sizes(&with).is_empty() && small(with) == 0);
    }
    let ours = |text: &str| plan(&format!("strategy = \"swap\"\n[smartswap]\n{text}"), 80);
    assert!(small(ours("")) > 0 && small(ours(filter)) == 0);
    let both = format!("min_size = 5\n[smartswap]\n{filter}");
    let config = parse(&both).joint_config(JointConfig::default());
    assert_eq!(config.generate.min_block_bytes, 5, "ours goes before theirs");
}

#[test]
fn the_target_is_the_budget() {
    let budget = |text: &str| parse(&format!("[smartswap]\n{text}")).budget();
    let gib = 1 << 30;
    assert_eq!(budget(""), None);
    assert_eq!(budget("target_mode = true"), Some(Budget::Bytes(40 * gib)));
    let both = "target_memory = \"7GiB\"\nreduction_memory = \"2GiB\"";
    assert_eq!(budget(&format!("target_mode = true\n{both}")), Some(Budget::Bytes(7 * gib)));
    assert_eq!(budget(&format!("target_mode = false\n{both}")), Some(Budget::BelowPeak(2 * gib)));
    assert_eq!(budget("target_mode = false"), Some(Budget::BelowPeak(3 * gib)));
    assert_eq!(budget("reduction_memory = \"2GiB\""), Some(Budget::BelowPeak(2 * gib)));
    assert_eq!(Budget::BelowPeak(2 * gib).of_peak(5 * gib), 3 * gib);
    assert_eq!(Budget::BelowPeak(5 * gib).of_peak(5 * gib), 0);
}

#[test]
fn size_coverage_weight_weighs_size_in_the_first_generator() {
    let mean = |weight: &str| {
        let sizes = sizes(&v1(&format!("size_coverage_weight = {weight}"), 90));
        sizes.iter().sum::<u64>() / sizes.len() as u64
    };
    assert!(mean("100") > mean("0"));
}

#[test]
fn policy_v2_chooses_the_generator() {
    // The second knows no limit.
    let moved = |text: &str, percent: u64| {
        let text = format!("strategy = \"smartswap\"\n[smartswap]\n{text}");
        sizes(&plan(&text, percent)).iter().sum::<u64>()
    };
    assert_eq!(moved("policy_v2 = true", 110), moved("policy_v2 = true", 80));
    assert_eq!(moved("policy_v2 = true", 80), moved("", 80));
    assert_eq!(moved("policy_v2 = false", 110), 0);
    assert!(moved("policy_v2 = false", 80) > 0);
}

#[test]
fn policy_pref_takes_both_spellings() {
    let prefer = |value: &str| parse(&format!("[smartswap]\npolicy_pref = \"{value}\"")).prefer();
    for value in ["BETTER_MEMORY_SAVING", "memory"] {
        assert_eq!(prefer(value), Some(Prefer::Memory));
    }
    for value in ["BETTER_PERFORMANCE", "performance"] {
        assert_eq!(prefer(value), Some(Prefer::Performance));
    }
    let [first, all] = ["BETTER_PERFORMANCE", "BETTER_MEMORY_SAVING"].map(|value| {
        let text = |strategy: &str| {
            let rest = "min_size = \"300MiB\"\n[smartswap]\npolicy_pref";
            format!("strategy = \"{strategy}\"\n{rest} = \"{value}\"")
        };
        // At 110 % there is nothing to do, which `smartswap-v2` does not know.
        [persistent(&text("smartswap"), 110), persistent(&text("swap"), 95)]
    });
    assert_eq!(first[0], 0);
    assert!(all[0] > 0 && all[1] > 0, "{all:?}");
    let ours = "strategy = \"swap\"\n[smartswap]\npolicy_pref = \"BETTER_PERFORMANCE\"";
    assert_eq!(persistent(ours, 99), 0);
}

#[test]
fn swap_bucket_size_bounds_a_stage_of_the_second_generator() {
    let moved = |value: &str| {
        let made = v2(&format!("swap_bucket_size = {value}"));
        sizes(&made).iter().sum::<u64>()
    };
    assert_eq!(moved("0"), 0);
    assert_eq!(moved("-1"), moved("\"1TiB\""));
    let some = moved("136314880");
    assert!(0 < some && some < moved("-1"), "{some}");
}

#[test]
fn num_attn_layers_per_stage_makes_larger_stages() {
    let returns = |layers: u32| {
        let made = v2(&format!("num_attn_layers_per_stage = {layers}"));
        let actions = made.plan.actions.iter();
        let back = actions.filter(|action| action.kind == ActionKind::SwapIn);
        let mut ops: Vec<u32> = back.map(|action| action.op.0).collect();
        ops.dedup();
        ops.len()
    };
    assert!(returns(3) < returns(1));
    assert_eq!(returns(12), 0);
}

#[test]
fn save_policy_and_print_level_are_passed_on() {
    assert!(!parse("").save_policy() && parse("smartswap.save_policy = true").save_policy());
    let level = |value: &str| parse(&format!("smartswap.print_level = {value}")).print_level();
    assert_eq!(
        [level("0"), level("1"), level("2")],
        [PrintLevel::Debug, PrintLevel::Info, PrintLevel::None]
    );
    assert_eq!([level("\"DEBUG\""), level("\"NONE\"")], [PrintLevel::Debug, PrintLevel::None]);
    assert_eq!(parse("").print_level(), PrintLevel::Info);
}

#[test]
fn a_plan_of_theirs_is_told_like_ours() {
    for (made, limited) in [(v1("", 60), true), (v2(""), false)] {
        assert!(made.infeasible.is_none() && made.added_us() + 1e-6 >= made.windows_us);
        assert_eq!(made.simulation.shortfall, None);
        let out = made.plan.actions.iter().filter(|one| one.kind == ActionKind::SwapOut).count();
        assert_eq!(sizes(&made).len(), out, "limited: {limited}");
        let blocks: std::collections::BTreeSet<_> =
            made.decisions.iter().map(|one| one.block).collect();
        assert_eq!(blocks.len(), crate::transformer().blocks.len(), "each has its decision");
    }
}
