//! Promises of what caps, and updates that wait, are said to cost: more memory never costs more,
//! and each cap that is told of has a plan.

use adaptive::{
    Burden, GenerateConfig, JointConfig, JointPlanner, Link, Machine, Plan, Strategy, cap_costs,
    deferral_cost, simulate,
};
use policy::deferred;
use policy::synthetic::{RandomShape, TransformerShape, random_trace, transformer_trace};

fn machine(limit_bytes: u64, rate: f64) -> Machine {
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    Machine { limit_bytes, host_limit_bytes: u64::MAX / 8, link, copy_submit_us: 2.0 }
}

fn config(strategy: Strategy) -> JointConfig {
    let generate = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    JointConfig { strategy, generate, ..JointConfig::default() }
}

#[test]
fn more_memory_never_costs_more_and_each_cap_has_a_plan() {
    let (mut reached, mut costly, mut left_out) = (0, 0, 0);
    for seed in 0..20 {
        let trace = random_trace(seed, &RandomShape::small());
        let endless = machine(u64::MAX / 8, 20_000.0);
        let unlimited = simulate(&trace, &Plan::default(), &endless);
        let own = endless.with_limit(unlimited.resident_bytes_peak * 55 / 100);
        let costs = cap_costs(&trace, &own, &config(Strategy::Joint));
        assert_eq!(costs.unlimited_us, unlimited.step_us);
        assert_eq!(costs.peak_bytes, unlimited.resident_bytes_peak);
        let first = costs.caps.first().expect("the peak itself needs no plan");
        assert_eq!((first.limit_bytes, first.step_us), (costs.peak_bytes, costs.unlimited_us));
        assert_eq!(first.burden, Burden::None);
        for pair in costs.caps.windows(2) {
            assert!(pair[0].limit_bytes > pair[1].limit_bytes, "{seed}");
            assert!(pair[0].step_us <= pair[1].step_us, "{seed}");
        }
        for cap in &costs.caps {
            // As good as a plan that is made for it with little effort.
            let mut hasty = config(Strategy::Joint);
            hasty.generate.effort = 1;
            let made = JointPlanner::new(own.with_limit(cap.limit_bytes), hasty).make(&trace);
            assert!(made.infeasible.is_none(), "{seed}");
            let least_us = unlimited.step_us;
            assert!(cap.step_us <= made.simulation.step_us.max(least_us), "{seed}");
            reached += 1;
            costly += u32::from(cap.burden != Burden::None);
        }
        let is_told = costs.caps.iter().any(|cap| cap.limit_bytes == own.limit_bytes);
        left_out += u32::from(!is_told);
    }
    assert!(reached > 40 && costly > 10 && left_out < 20, "{reached} {costly} {left_out}");
}

#[test]
fn what_a_cap_costs_is_said_of_the_link_or_of_what_runs_again() {
    let shape =
        TransformerShape { layers: 8, weight_mib: 24, activation_mib: 64, forward_us: 4_000.0 };
    let trace = transformer_trace(&shape);
    let burden = |strategy, rate| {
        let costs = cap_costs(&trace, &machine(1 << 60, rate), &config(strategy));
        let first = costs.caps.iter().find(|cap| cap.burden != Burden::None);
        first.expect("small caps cost something").burden
    };
    assert_eq!(burden(Strategy::Swap, 2_000.0), Burden::Link);
    assert_eq!(burden(Strategy::Recompute, 2_000.0), Burden::Recompute);
}

#[test]
fn late_updates_save_what_plans_for_both_steps_differ_by() {
    let shape =
        TransformerShape { layers: 12, weight_mib: 64, activation_mib: 16, forward_us: 4_000.0 };
    let trace = transformer_trace(&shape);
    let own = machine(2 << 30, 20_000.0);
    let late = deferred(&trace, own.limit_bytes).expect("it ends with updates");
    let mut little = config(Strategy::Joint);
    little.generate.effort = 2;
    let step_us = |trace| JointPlanner::new(own, little).make(trace).simulation.step_us;
    let cost = deferral_cost(&trace, &own, &config(Strategy::Joint)).expect("both can be planned");
    assert_eq!((cost.recorded_us, cost.deferred_us), (step_us(&trace), step_us(&late)));
    // The state of a layer comes and goes while the layer before computes.
    assert!(cost.deferred_us < 0.9 * cost.recorded_us, "{cost:?}");
    // Where all of it fits, or nothing does, there is nothing to save.
    let fits = deferral_cost(&trace, &own.with_limit(1 << 40), &config(Strategy::Joint));
    assert!(fits.is_some_and(|cost| (cost.recorded_us - cost.deferred_us).abs() < 1.0), "{fits:?}");
    assert_eq!(deferral_cost(&trace, &own.with_limit(1 << 20), &config(Strategy::Joint)), None);
    // Without an update at its end there is none to wait.
    assert_eq!(deferral_cost(&late, &own, &config(Strategy::Joint)), None);
}
