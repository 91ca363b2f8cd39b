//! Planning, from trace to plan: a step of ten thousand ops, and how the time grows with them.

use std::time::Duration;

use adaptive::synthetic::{LargeShape, large_trace};
use adaptive::{GenerateConfig, JointConfig, JointPlanner, Link, Machine, Plan, Trace, simulate};
use benches::transformer_of;
use criterion::{Criterion, SamplingMode, criterion_group, criterion_main};

fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: 1 << 42,
        link: Link {
            out_bytes_per_us: 55_300.0,
            in_bytes_per_us: 55_300.0,
            both_bytes_per_us: 49_500.0,
        },
        copy_submit_us: 8.0,
    }
}

fn half_the_peak(trace: &Trace) -> Machine {
    let unlimited = simulate(trace, &Plan::default(), &machine(1 << 42));
    machine(unlimited.held_bytes_peak / 2)
}

fn plan_10k_ops(bench: &mut Criterion) {
    let trace = transformer_of(10_000);
    let machine = half_the_peak(&trace);
    let planner = JointPlanner::new(machine, JointConfig::default());
    bench.bench_function("plan_10k_ops", |bencher| {
        bencher.iter(|| {
            let generated = planner.make(&trace);
            assert!(generated.infeasible.is_none() && !generated.plan.actions.is_empty());
            generated
        });
    });
}

/// Layers, micro-batches and experts of uneven sizes at 60 % of their peak, with the least effort.
fn plan_large(bench: &mut Criterion) {
    let generate = GenerateConfig { effort: 1, ..GenerateConfig::default() };
    let config = JointConfig { generate, ..JointConfig::default() };
    let mut group = bench.benchmark_group("plan_large");
    group.sampling_mode(SamplingMode::Flat);
    for (name, op_count) in [("10k_ops", 10_000), ("100k_ops", 100_000), ("1m_ops", 1_000_000)] {
        let trace = large_trace(&LargeShape::with_ops(op_count));
        let unlimited = simulate(&trace, &Plan::default(), &machine(1 << 50));
        let machine = machine(unlimited.resident_bytes_peak / 10 * 6);
        let planner = JointPlanner::new(machine, config);
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let generated = planner.make(&trace);
                assert!(generated.infeasible.is_none() && !generated.plan.actions.is_empty());
                generated
            });
        });
    }
    group.finish();
}

fn configured() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(8))
        .sample_size(10)
}

criterion_group! {
    name = planning;
    config = configured();
    targets = plan_10k_ops, plan_large
}
criterion_main!(planning);
