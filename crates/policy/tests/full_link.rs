//! Promise: where memory is full all the time and each step waits for the link, the first plan
//! already copies beside compute: what leaves does so at once, not when the link of a step in which
//! nobody waits would be free.

use policy::synthetic::TraceBuilder;
use policy::{GenerateConfig, Link, Machine, Plan, Trace, generate, simulate};

const LAYERS: u32 = 24;
const STATE_BYTES: u64 = 128 << 20;
const ACTIVATION_BYTES: u64 = 48 << 20;
const FORWARD_US: f64 = 500.0;
const BYTES_PER_US: f64 = 50_000.0;
/// So much of the compute has copies beside it, at least.
const SHARE_BESIDE: f64 = 0.3;

/// A step whose updates wait until forward uses their weights: where gradients go, activations
/// come, and the other way round in backward.
fn step() -> Trace {
    let mut builder = TraceBuilder::new();
    let mut persistent = |name, size_bytes| -> Vec<_> {
        (0..LAYERS).map(|_| builder.persistent(name, size_bytes)).collect()
    };
    let (states, gradients) =
        (persistent("state", STATE_BYTES), persistent("gradient", ACTIVATION_BYTES));
    let mut activations = Vec::new();
    for (state, gradient) in states.into_iter().zip(gradients) {
        builder.begin("update", 0.2 * FORWARD_US, false);
        builder.update(state);
        builder.read(gradient);
        builder.end();
        builder.free(gradient);
        builder.begin("forward", FORWARD_US, false);
        activations.push(builder.allocate("activation", ACTIVATION_BYTES));
        builder.end();
    }
    for activation in activations.into_iter().rev() {
        builder.begin("backward", 2.0 * FORWARD_US, false);
        builder.read(activation);
        builder.allocate("gradient", ACTIVATION_BYTES);
        builder.end();
        builder.free(activation);
    }
    builder.finish()
}

#[test]
fn a_first_plan_copies_beside_compute_where_memory_is_always_full() {
    let trace = step();
    let rate = BYTES_PER_US;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let endless = u64::MAX / 8;
    let machine =
        Machine { limit_bytes: endless, host_limit_bytes: endless, link, copy_submit_us: 2.0 };
    let unlimited = simulate(&trace, &Plan::default(), &machine);
    for percent in [50, 60, 70] {
        let capped = machine.with_limit(unlimited.resident_bytes_peak * percent / 100);
        let config = GenerateConfig { effort: 1, ..GenerateConfig::default() };
        let made = generate(&trace, &capped, &config, &[]).simulation;
        assert!(made.went_to_plan(), "{made:?}");
        let copied_bytes = made.swapped_out_bytes + made.swapped_in_bytes;
        assert!(copied_bytes > u64::from(LAYERS) * STATE_BYTES / 2, "{copied_bytes}");
        let one_by_one_us = unlimited.step_us + copied_bytes as f64 / BYTES_PER_US;
        let beside_us = one_by_one_us - made.step_us;
        assert!(beside_us > SHARE_BESIDE * unlimited.step_us, "{percent} %: {beside_us} us");
    }
}
