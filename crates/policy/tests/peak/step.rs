//! A weight makes room for something as large: what several tests of its way out and back begin
//! with.

use policy::synthetic::TraceBuilder;
use policy::{BlockIndex, Link, Machine};

pub(crate) const WEIGHT_BYTES: u64 = 100 << 20;
/// What moving the weight takes, either way.
pub(crate) const COPY_US: f64 = 1_000.0;

/// A weight is used and has to make room. The step goes on where the caller likes.
pub(crate) fn begin_step() -> (TraceBuilder, BlockIndex) {
    let mut builder = TraceBuilder::new();
    let weight = builder.persistent("weight", WEIGHT_BYTES);
    builder.begin("forward", 100.0, false);
    builder.read(weight);
    builder.end();
    builder.begin("peak", 100.0, false);
    let large = builder.allocate("large", WEIGHT_BYTES);
    builder.write(large);
    builder.end();
    builder.free(large);
    (builder, weight)
}

/// Has room for one and a half of the two, and a link as fast both ways at once as one way.
pub(crate) fn machine() -> Machine {
    let rate = WEIGHT_BYTES as f64 / COPY_US;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let limit_bytes = WEIGHT_BYTES * 3 / 2;
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 0.0 }
}
