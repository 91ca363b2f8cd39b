//! What a recorded step costs under one cap after another, and what it would if it were another.

use policy::{Machine, Plan, Trace, accumulated, both, check_trace, deferred, simulate};
use serde::{Deserialize, Serialize};

use crate::joint::JointConfig;
use crate::planner::JointPlanner;

/// Caps that are tried, in percent of the step's peak.
const PERCENTS: [u64; 9] = [100, 90, 80, 70, 60, 50, 40, 30, 20];
/// How many times as many micro-batches a step is tried with.
const ACCUMULATIONS: [u32; 2] = [2, 4];
/// Larger steps take too long to plan for.
const ACCUMULATED_OPS_MAX: usize = 60_000;
/// Less effort tells steps of much model state apart wrongly, whose updates may wait: by 14 % of a
/// step of 2.9 billion weights at 27 GiB.
const DEFERRAL_EFFORT: u32 = 2;
/// More memory than any step has.
const ENDLESS_BYTES: u64 = u64::MAX / 8;
/// A step that is longer by less than this share of it is not said to wait for anything.
const NOTHING: f64 = 0.01;

/// What most of the time goes to that a cap adds to a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Burden {
    /// It adds next to none.
    None,
    /// Operators wait for copies.
    Link,
    /// Operators run again.
    Recompute,
}

/// What a step takes under one cap, as simulated.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CapCost {
    /// The cap on device memory.
    pub limit_bytes: u64,
    /// The step, in microseconds.
    pub step_us: f64,
    /// Copied to the host in a step.
    pub out_bytes: u64,
    /// Copied back in a step.
    pub in_bytes: u64,
    /// Spent on running operators again, in microseconds.
    pub recomputed_us: f64,
    /// What the added time goes to.
    pub burden: Burden,
}

/// What a step takes under the machine's own cap if it accumulates more micro-batches.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct AccumulationCost {
    /// How many times as many micro-batches it has.
    pub times: u32,
    /// The most that it needs with memory for everything.
    pub peak_bytes: u64,
    /// The step with memory for everything, in microseconds.
    pub unlimited_us: f64,
    /// The step under the cap, in microseconds.
    pub step_us: f64,
}

/// What a step takes under the machine's own cap where the optimizer's updates run when it steps,
/// as recorded, and where they wait until their weights are used.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct DeferralCost {
    /// As recorded, in microseconds.
    pub recorded_us: f64,
    /// Where they wait, in microseconds.
    pub deferred_us: f64,
}

/// A step with memory for everything, and what it costs under smaller caps: a report's `caps.json`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CapCosts {
    /// The machine's own cap.
    pub limit_bytes: u64,
    /// The most that the step needs with memory for everything.
    pub peak_bytes: u64,
    /// The step with memory for everything, in microseconds.
    pub unlimited_us: f64,
    /// The median Stable step under the machine's own cap, in microseconds, where one ran.
    pub measured_us: Option<f64>,
    /// From the largest cap to the smallest. Caps that no plan reaches are left out.
    pub caps: Vec<CapCost>,
    /// From the fewest micro-batches to the most; none where the step fits, has no update at its
    /// end ([`accumulated`]) or would be too long to plan for.
    #[serde(default)]
    pub accumulations: Vec<AccumulationCost>,
}

impl CapCosts {
    /// How many times as long as with memory for everything a step takes.
    pub fn ratio(&self, step_us: f64) -> f64 {
        step_us / self.unlimited_us
    }
}

/// What a step costs at the machine's cap and at 100 to 20 percent of the step's peak, and with two
/// and four times as many micro-batches, each with a plan that is made with little effort. No
/// smaller cap is said to be faster than a larger one. What was measured is for the caller to add.
///
/// # Panics
/// As [`JointPlanner::make`].
///
/// # Examples
/// ```
/// # use adaptive::synthetic::{TransformerShape, transformer_trace};
/// # use adaptive::{JointConfig, Link, Machine, cap_costs};
/// # let shape =
/// #     TransformerShape { layers: 4, weight_mib: 24, activation_mib: 64, forward_us: 4_000.0 };
/// # let trace = transformer_trace(&shape);
/// # let rate = 25_000.0;
/// # let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
/// # let machine =
/// #     Machine { limit_bytes: 1 << 30, host_limit_bytes: 64 << 30, link, copy_submit_us: 8.0 };
/// let costs = cap_costs(&trace, &machine, &JointConfig::default());
/// assert_eq!(costs.caps[0].limit_bytes, costs.peak_bytes);
/// assert!(costs.caps.iter().all(|cap| cap.step_us >= costs.unlimited_us));
/// ```
pub fn cap_costs(trace: &Trace, machine: &Machine, config: &JointConfig) -> CapCosts {
    let endless = machine.with_limit(ENDLESS_BYTES);
    let unlimited = simulate(trace, &Plan::default(), &endless);
    let peak_bytes = unlimited.resident_bytes_peak;
    let mut limits: Vec<u64> = PERCENTS.iter().map(|percent| peak_bytes * percent / 100).collect();
    if machine.limit_bytes < peak_bytes {
        limits.push(machine.limit_bytes);
    }
    limits.sort_unstable_by_key(|&limit| std::cmp::Reverse(limit));
    limits.dedup();
    let mut config = *config;
    config.generate.effort = 1;
    let reached = limits.into_iter().map_while(|limit_bytes| {
        cost(trace, &machine.with_limit(limit_bytes), config, unlimited.step_us)
    });
    let mut caps: Vec<CapCost> = reached.collect();
    // A plan for less memory fits into more.
    for index in (1..caps.len()).rev() {
        if caps[index].step_us < caps[index - 1].step_us {
            caps[index - 1] = CapCost { limit_bytes: caps[index - 1].limit_bytes, ..caps[index] };
        }
    }
    CapCosts {
        limit_bytes: machine.limit_bytes,
        peak_bytes,
        unlimited_us: unlimited.step_us,
        measured_us: None,
        caps,
        accumulations: match machine.limit_bytes < peak_bytes {
            true => accumulations(trace, machine, config),
            false => Vec::new(),
        },
    }
}

/// What it would save that updates wait, each with a plan that is made with little effort. `None`
/// where no update could wait, and where no plan reaches the cap.
///
/// # Panics
/// As [`JointPlanner::make`].
pub fn deferral_cost(
    trace: &Trace,
    machine: &Machine,
    config: &JointConfig,
) -> Option<DeferralCost> {
    let deferred = deferred(trace, machine.limit_bytes).filter(|late| check_trace(late).is_ok())?;
    let mut config = *config;
    config.generate.effort = config.generate.effort.min(DEFERRAL_EFFORT);
    let step_us = |trace: &Trace| Some(cost(trace, machine, config, 0.0)?.step_us);
    let (recorded_us, deferred_us) = both(|| step_us(trace), || step_us(&deferred));
    Some(DeferralCost { recorded_us: recorded_us?, deferred_us: deferred_us? })
}

/// Those that a plan is found for.
fn accumulations(trace: &Trace, machine: &Machine, config: JointConfig) -> Vec<AccumulationCost> {
    let is_short = |times: &u32| trace.ops.len() * *times as usize <= ACCUMULATED_OPS_MAX;
    let longer = ACCUMULATIONS.into_iter().filter(is_short).map_while(|times| {
        let longer = accumulated(trace, times).filter(|longer| check_trace(longer).is_ok())?;
        let unlimited = simulate(&longer, &Plan::default(), &machine.with_limit(ENDLESS_BYTES));
        let cost = cost(&longer, machine, config, unlimited.step_us)?;
        Some(AccumulationCost {
            times,
            peak_bytes: unlimited.resident_bytes_peak,
            unlimited_us: unlimited.step_us,
            step_us: cost.step_us,
        })
    });
    longer.collect()
}

/// `None` where no plan reaches the cap.
fn cost(
    trace: &Trace,
    machine: &Machine,
    config: JointConfig,
    unlimited_us: f64,
) -> Option<CapCost> {
    let made = JointPlanner::new(*machine, config).make(trace);
    if made.infeasible.is_some() {
        return None;
    }
    let simulation = &made.simulation;
    let added_us = simulation.step_us - unlimited_us;
    let burden = if added_us <= NOTHING * unlimited_us {
        Burden::None
    } else if 2.0 * simulation.recomputed_us > added_us {
        Burden::Recompute
    } else {
        Burden::Link
    };
    Some(CapCost {
        limit_bytes: machine.limit_bytes,
        step_us: simulation.step_us.max(unlimited_us),
        out_bytes: simulation.swapped_out_bytes,
        in_bytes: simulation.swapped_in_bytes,
        recomputed_us: simulation.recomputed_us,
        burden,
    })
}
