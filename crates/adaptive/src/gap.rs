//! Why a plan misses the bound, in one line.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use policy::{Bytes, Direction, Generated, OpIndex, Simulation, Trace};

/// Above this share of the step, a gap to the bound calls for a reason.
const GAP_SHARE: f64 = 0.03;

/// The share of the step by which a plan misses a bound on what any adds.
pub fn gap_fraction(made: &Generated, bound_us: f64) -> f64 {
    let gap_us = (made.added_us() - bound_us).max(0.0);
    if made.simulation.step_us > 0.0 { gap_us / made.simulation.step_us } else { 0.0 }
}

/// What makes a plan slower than the bound says: the op that waits most, for what, and what
/// replays take. `None` if the gap is no more than 3 % of the step.
///
/// # Examples
/// ```
/// # use adaptive::synthetic::{TransformerShape, transformer_trace};
/// # use adaptive::{JointConfig, JointPlanner, Link, Machine, gap_fraction, gap_reason};
/// # let shape =
/// #     TransformerShape { layers: 4, weight_mib: 24, activation_mib: 64, forward_us: 4_000.0 };
/// # let trace = transformer_trace(&shape);
/// # let rate = 25_000.0;
/// # let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
/// # let machine =
/// #     Machine { limit_bytes: 1 << 30, host_limit_bytes: 64 << 30, link, copy_submit_us: 8.0 };
/// let planner = JointPlanner::new(machine, JointConfig::default());
/// let (made, bound_us) = (planner.make(&trace), planner.bound_us(&trace));
/// let reason = gap_reason(&trace, &made, bound_us);
/// assert_eq!(reason.is_some(), gap_fraction(&made, bound_us) > 0.03);
/// ```
pub fn gap_reason(trace: &Trace, made: &Generated, bound_us: f64) -> Option<String> {
    let gap = gap_fraction(made, bound_us);
    let simulation = &made.simulation;
    if gap <= GAP_SHARE || made.infeasible.is_some() {
        return None;
    }
    let mut text = format!("gap {:.1} %: ", 100.0 * gap);
    let waits = waits(trace, simulation);
    let longest = waits.iter().max_by(|one, other| one.wait_us.total_cmp(&other.wait_us));
    // Writing to a text cannot fail.
    if let Some(wait) = longest {
        let name = &trace.ops[wait.op.0 as usize].name;
        let _ = write!(text, "op {} `{name}` waits {:.1} ms", wait.op.0, wait.wait_us / 1e3);
        match busy(simulation, wait.until_us) {
            Some((Direction::In, bytes)) => {
                let _ = write!(text, " for {} that must come back through the link", Bytes(bytes));
            }
            Some((Direction::Out, bytes)) => {
                let _ = write!(text, " for {} that must leave through the link", Bytes(bytes));
            }
            None => {}
        }
        if waits.len() > 1 {
            let total_us: f64 = waits.iter().map(|wait| wait.wait_us).sum();
            let others = waits.len() - 1;
            let _ = write!(text, "; with {others} others {:.1} ms", total_us / 1e3);
        }
    }
    if simulation.recomputed_us > 0.0 {
        let also = if longest.is_some() { "; " } else { "" };
        let replays_ms = simulation.recomputed_us / 1e3;
        let _ = write!(text, "{also}blocks made again take {replays_ms:.1} ms");
    }
    Some(text)
}

/// What the outermost ops of each name wait for copies in all, in microseconds; the longest first.
pub fn waits_by_name<'trace>(
    trace: &'trace Trace,
    simulation: &Simulation,
) -> Vec<(&'trace str, f64)> {
    let mut by_name: BTreeMap<&str, f64> = BTreeMap::new();
    for wait in waits(trace, simulation) {
        *by_name.entry(&trace.ops[wait.op.0 as usize].name).or_default() += wait.wait_us;
    }
    let mut longest_first: Vec<_> = by_name.into_iter().collect();
    longest_first.sort_by(|one, other| other.1.total_cmp(&one.1));
    longest_first
}

/// An outermost op that starts later than it could.
struct Wait {
    op: OpIndex,
    wait_us: f64,
    until_us: f64,
}

fn waits(trace: &Trace, simulation: &Simulation) -> Vec<Wait> {
    let lanes = policy::predicted_lanes(trace, simulation);
    let of_op = lanes.waits.chunk_by(|one, other| one.op == other.op).map(|waits| Wait {
        op: waits[0].op,
        wait_us: waits.iter().map(|wait| wait.end_us - wait.start_us).sum(),
        until_us: waits[waits.len() - 1].end_us,
    });
    // Less is rounding.
    of_op.filter(|wait| wait.wait_us > 1e-3).collect()
}

/// The way of the link that somebody waited for until some time, and the bytes of the copies that
/// ran there one after the other until then.
fn busy(simulation: &Simulation, until_us: f64) -> Option<(Direction, u64)> {
    let ends = |copy: &&policy::CopySpan| (copy.span.end_us - until_us).abs() < 1.0;
    let last = simulation.copies.iter().find(ends)?;
    let mut copies: Vec<_> =
        simulation.copies.iter().filter(|copy| copy.direction == last.direction).collect();
    copies.sort_by(|one, other| other.span.end_us.total_cmp(&one.span.end_us));
    let (mut bytes, mut start_us) = (0, until_us);
    for copy in copies.into_iter().filter(|copy| copy.span.end_us <= until_us + 1.0) {
        if copy.span.end_us < start_us - 1.0 {
            break;
        }
        bytes += copy.size_bytes;
        start_us = copy.span.start_us;
    }
    Some((last.direction, bytes))
}
