//! Planning: a step of ten thousand ops, from trace to plan.

use std::time::Duration;

use adaptive::{
    GenerateConfig, JointConfig, Link, Machine, Plan, Strategy, Trace, plan_jointly, simulate,
};
use benches::transformer_of;
use criterion::{Criterion, criterion_group, criterion_main};

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
    let config = JointConfig {
        strategy: Strategy::Joint,
        generate: GenerateConfig::default(),
        ..JointConfig::default()
    };
    bench.bench_function("plan_10k_ops", |bencher| {
        bencher.iter(|| {
            let generated = plan_jointly(&trace, &machine, &config);
            assert!(generated.infeasible.is_none() && !generated.plan.actions.is_empty());
            generated
        });
    });
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
    targets = plan_10k_ops
}
criterion_main!(planning);
