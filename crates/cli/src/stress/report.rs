//! What `stress` shows: one table, or one JSON object.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use adaptive::devices::CallCost;
use adaptive::{Bytes, StepCounters};
use serde::Serialize;

/// Driver calls that a swapped block makes, beside those of the caller's own work.
const SWAP_CALLS: [&str; 8] = [
    "map",
    "set_access",
    "unmap",
    "create_event",
    "record_event",
    "wait_event",
    "query_event",
    "copy",
];

/// Host memory for the bytes that are away.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Pinned {
    pub(super) asked_bytes: u64,
    /// At the highest.
    pub(super) held_bytes: u64,
    /// From asking to having all of it.
    pub(super) ready_us: f64,
}

/// One pass over the blocks.
#[derive(Clone, Debug)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// Ops, one a block.
    pub(super) op_count: u64,
    pub(super) counters: StepCounters,
    /// From the first op to the last, on the device.
    pub(super) device_us: f64,
    /// The same on the host, with the wait for the device.
    pub(super) wall_us: f64,
    /// Host time until all ops were submitted.
    pub(super) submit_us: f64,
    /// The engine's own count.
    pub(super) held_bytes_peak: u64,
    /// Device memory that has gone since the start, by the driver's count.
    pub(super) taken_bytes: u64,
    /// Wrong words so far.
    pub(super) mismatches: u64,
    /// Host time in driver calls, of the thread that runs the ops.
    pub(super) costs: BTreeMap<&'static str, CallCost>,
    /// Of the engine's other threads.
    pub(super) costs_elsewhere: BTreeMap<&'static str, CallCost>,
}

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Stress {
    pub(super) device: String,
    pub(super) driver_version: String,
    pub(super) data_bytes: u64,
    pub(super) block_bytes: u64,
    pub(super) block_count: u64,
    pub(super) limit_bytes: u64,
    pub(super) pinned: Pinned,
    pub(super) phases: Vec<Phase>,
}

impl Phase {
    /// Decimal gigabytes a second to the host.
    fn out_gb_per_s(&self) -> f64 {
        self.counters.swapped_out_bytes as f64 / self.device_us / 1e3
    }

    /// Decimal gigabytes a second to the device.
    fn in_gb_per_s(&self) -> f64 {
        self.counters.swapped_in_bytes as f64 / self.device_us / 1e3
    }

    /// Host time of the driver calls for swapping, for each block that left or came, on the thread
    /// that runs the ops.
    fn host_us_per_block(&self) -> f64 {
        let spent = SWAP_CALLS.iter().filter_map(|name| self.costs.get(name));
        spent.map(|cost| cost.total_us).sum::<f64>() / self.op_count as f64
    }
}

impl Stress {
    fn mismatches(&self) -> u64 {
        self.phases.last().map_or(0, |phase| phase.mismatches)
    }

    fn host_waits(&self) -> u64 {
        self.phases.iter().map(|phase| phase.counters.host_waits).sum()
    }

    fn held_bytes_peak(&self) -> u64 {
        self.phases.iter().map(|phase| phase.held_bytes_peak).max().unwrap_or(0)
    }

    /// Words that were compared.
    fn compared_words(&self) -> u64 {
        let compared = self.phases.iter().filter(|phase| !matches!(phase.name, "fill" | "out"));
        compared.map(|phase| phase.op_count).sum::<u64>() * self.block_bytes / 8
    }

    /// What came of it, in one line.
    pub(crate) fn outcome(&self) -> String {
        format!(
            "{} words compared, {} wrong; at most {} held of {}; the host waited {} times",
            self.compared_words(),
            self.mismatches(),
            Bytes(self.held_bytes_peak()),
            Bytes(self.limit_bytes),
            self.host_waits()
        )
    }

    /// What went wrong, if anything did.
    pub(crate) fn fault(&self) -> Option<String> {
        let held_bytes = self.held_bytes_peak();
        if self.mismatches() > 0 {
            let (wrong, all) = (self.mismatches(), self.compared_words());
            return Some(format!("{wrong} of {all} words came back wrong"));
        }
        (held_bytes > self.limit_bytes).then(|| {
            format!("{} were held under a cap of {}", Bytes(held_bytes), Bytes(self.limit_bytes))
        })
    }
}

/// The table, ending with a line break.
pub(super) fn table(stress: &Stress) -> String {
    let mut text = format!(
        "{} (driver {}): {} in {} blocks of {} under a cap of {}\n",
        stress.device,
        stress.driver_version,
        Bytes(stress.data_bytes),
        stress.block_count,
        Bytes(stress.block_bytes),
        Bytes(stress.limit_bytes)
    );
    let Pinned { asked_bytes, held_bytes, ready_us } = stress.pinned;
    let _ = writeln!(
        text,
        "pinned host memory: {} ready in {:.2} s, held {:.3}x of what was asked\n",
        Bytes(asked_bytes),
        ready_us / 1e6,
        held_bytes as f64 / asked_bytes as f64
    );
    let _ = writeln!(
        text,
        "{:<12} {:>7} {:>11} {:>11} {:>9} {:>9} {:>14} {:>7} {:>11} {:>12}",
        "pass",
        "blocks",
        "out",
        "in",
        "out GB/s",
        "in GB/s",
        "host us/block",
        "misses",
        "host waits",
        "wrong words"
    );
    for phase in &stress.phases {
        let _ = writeln!(
            text,
            "{:<12} {:>7} {:>11} {:>11} {:>9.1} {:>9.1} {:>14.1} {:>7} {:>11} {:>12}",
            phase.name,
            phase.op_count,
            Bytes(phase.counters.swapped_out_bytes).to_string(),
            Bytes(phase.counters.swapped_in_bytes).to_string(),
            phase.out_gb_per_s(),
            phase.in_gb_per_s(),
            phase.host_us_per_block(),
            phase.counters.misses + phase.counters.rescues,
            phase.counters.host_waits,
            phase.mismatches
        );
    }
    text.push_str(&calls(stress));
    let _ = writeln!(text, "\n{}", stress.outcome());
    text
}

/// What each call cost in the pass that goes both ways.
fn calls(stress: &Stress) -> String {
    let mut text = String::new();
    if let Some(phase) = stress.phases.iter().find(|phase| phase.name == "out and in") {
        let list = |costs: &BTreeMap<&'static str, CallCost>| {
            let calls = costs.iter().map(|(name, cost)| {
                let count = cost.count as f64 / phase.op_count as f64;
                format!("{name} {count:.1} x {:.1}", cost.total_us / cost.count as f64)
            });
            calls.collect::<Vec<String>>().join(", ")
        };
        let _ =
            writeln!(text, "\ncalls for a block out and in, and their us: {}", list(&phase.costs));
        if !phase.costs_elsewhere.is_empty() {
            let _ = writeln!(text, "on other threads: {}", list(&phase.costs_elsewhere));
        }
    }
    text
}

#[derive(Serialize)]
struct JsonCall {
    count: u64,
    total_us: f64,
}

#[derive(Serialize)]
struct JsonPhase {
    name: &'static str,
    blocks: u64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    out_gb_per_s: f64,
    in_gb_per_s: f64,
    device_us: f64,
    wall_us: f64,
    submit_us: f64,
    stall_us: f64,
    host_us_per_block: f64,
    misses: u64,
    rescues: u64,
    host_waits: u64,
    held_bytes_peak: u64,
    taken_bytes: u64,
    wrong_words: u64,
    calls: BTreeMap<&'static str, JsonCall>,
    calls_of_other_threads: BTreeMap<&'static str, JsonCall>,
}

#[derive(Serialize)]
struct JsonStress<'a> {
    device: &'a str,
    driver_version: &'a str,
    data_bytes: u64,
    block_bytes: u64,
    limit_bytes: u64,
    pinned: Pinned,
    compared_words: u64,
    wrong_words: u64,
    host_waits: u64,
    held_bytes_peak: u64,
    phases: Vec<JsonPhase>,
}

fn json_calls(costs: &BTreeMap<&'static str, CallCost>) -> BTreeMap<&'static str, JsonCall> {
    let call = |cost: &CallCost| JsonCall { count: cost.count, total_us: cost.total_us };
    costs.iter().map(|(&name, cost)| (name, call(cost))).collect()
}

/// One JSON object.
pub(super) fn json(stress: &Stress) -> serde_json::Result<String> {
    let phases = stress.phases.iter().map(|phase| JsonPhase {
        name: phase.name,
        blocks: phase.op_count,
        swapped_out_bytes: phase.counters.swapped_out_bytes,
        swapped_in_bytes: phase.counters.swapped_in_bytes,
        out_gb_per_s: phase.out_gb_per_s(),
        in_gb_per_s: phase.in_gb_per_s(),
        device_us: phase.device_us,
        wall_us: phase.wall_us,
        submit_us: phase.submit_us,
        stall_us: phase.counters.stall_us,
        host_us_per_block: phase.host_us_per_block(),
        misses: phase.counters.misses,
        rescues: phase.counters.rescues,
        host_waits: phase.counters.host_waits,
        held_bytes_peak: phase.held_bytes_peak,
        taken_bytes: phase.taken_bytes,
        wrong_words: phase.mismatches,
        calls: json_calls(&phase.costs),
        calls_of_other_threads: json_calls(&phase.costs_elsewhere),
    });
    serde_json::to_string_pretty(&JsonStress {
        device: &stress.device,
        driver_version: &stress.driver_version,
        data_bytes: stress.data_bytes,
        block_bytes: stress.block_bytes,
        limit_bytes: stress.limit_bytes,
        pinned: stress.pinned,
        compared_words: stress.compared_words(),
        wrong_words: stress.mismatches(),
        host_waits: stress.host_waits(),
        held_bytes_peak: stress.held_bytes_peak(),
        phases: phases.collect(),
    })
}
