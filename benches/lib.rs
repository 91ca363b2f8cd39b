//! What the benchmarks share.

pub mod optima;

use std::time::Duration;

use adaptive::Trace;
use adaptive::synthetic::{TransformerShape, transformer_trace};

/// The trace of a transformer's step with at least `op_count` ops, and few more.
pub fn transformer_of(op_count: usize) -> Trace {
    let with_layers = |layers| {
        transformer_trace(&TransformerShape {
            layers,
            weight_mib: 8,
            activation_mib: 64,
            forward_us: 4_000.0,
        })
    };
    let per_layer = with_layers(2).ops.len() - with_layers(1).ops.len();
    let layers = u32::try_from(op_count / per_layer + 1).expect("a few thousand layers at most");
    with_layers(layers)
}

/// Runs `count` repetitions in batches of at most `batch_max` and adds up what each took.
pub fn time_in_batches(
    count: u64,
    batch_max: usize,
    mut run: impl FnMut(usize) -> Duration,
) -> Duration {
    let mut left = count;
    let mut total = Duration::ZERO;
    while left > 0 {
        let batch = usize::try_from(left).map_or(batch_max, |left| left.min(batch_max));
        total += run(batch);
        left -= batch as u64;
    }
    total
}
