//! Random steps get a host that is late for some ops: what several tests begin with.

use policy::synthetic::Numbers;
use policy::{HostCosts, Trace};

/// Gives outermost ops times of the host, each below the longest; so many of a hundred are waits.
pub(crate) fn with_host(
    mut trace: Trace,
    numbers: &mut Numbers,
    longest_us: u64,
    waits_percent: u64,
    host_costs: HostCosts,
) -> Trace {
    for op in trace.ops.iter_mut().filter(|op| op.depth == 0) {
        op.host_us = numbers.below(longest_us) as f64;
        op.host_waits = numbers.chance(waits_percent);
    }
    trace.host_costs = host_costs;
    trace
}
