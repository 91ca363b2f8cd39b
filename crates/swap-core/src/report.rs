//! What happened in one step, counted by the engine.

use vmem::MemoryCalls;

use crate::lanes::Lanes;
use crate::plan::Plan;
use crate::trace::{BlockIndex, HostCosts, OpIndex, Signature, Trace};

/// Counts of one step.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct StepCounters {
    /// Bytes copied to the host.
    pub swapped_out_bytes: u64,
    /// Bytes copied back.
    pub swapped_in_bytes: u64,
    /// Blocks that left without a copy because the host had their bytes.
    pub clean_swap_outs: u64,
    /// Ops replayed to bring discarded blocks back.
    pub recomputed_ops: u64,
    /// Touches by the step's ops of a block that was not resident and had not been asked for.
    pub misses: u64,
    /// Allocations and touches of the step that evicted somebody on the spot.
    pub rescues: u64,
    /// Lent blocks that left before the step's end.
    pub recalls: u64,
    /// Times that the host waited for the device.
    pub host_waits: u64,
    /// What the driver was asked for.
    pub memory_calls: MemoryCalls,
    /// Device time that compute spent waiting for copies, in microseconds.
    pub stall_us: f64,
    /// Blocks that the plan sent away or asked for.
    pub planned_moves: u64,
    /// Time of the host for these, in microseconds.
    pub planned_moves_us: f64,
    /// Time of the host for ops that ran again, in microseconds.
    pub replays_us: f64,
}

/// So few calls of the driver for memory in a step cost next to nothing.
pub const MEMORY_CALLS_IGNORED: u64 = 16;

impl StepCounters {
    /// What the engine's own work cost the host, one by one. A step that had memory mapped does not
    /// tell: that took most of it.
    pub fn host_costs(&self) -> HostCosts {
        if self.memory_calls.total() > MEMORY_CALLS_IGNORED {
            return HostCosts::default();
        }
        let each = |us: f64, count: u64| if count > 0 { us / count as f64 } else { 0.0 };
        HostCosts {
            replay_us: each(self.replays_us, self.recomputed_ops),
            move_us: each(self.planned_moves_us, self.planned_moves),
        }
    }
}

/// One copy of swapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// What the block's owner calls it.
    pub name: String,
    /// Whether it went to the host or came back.
    pub direction: Direction,
    /// Its physical bytes.
    pub size_bytes: u64,
}

/// Which way a copy of swapping goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Direction {
    /// Device to host.
    Out,
    /// Host to device.
    In,
}

/// One finished step.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// Number of the step, from 0.
    pub step: u64,
    /// Its fingerprint.
    pub signature: Signature,
    /// The fingerprint of its ops alone, which steps share that differ in sizes only.
    pub family: Signature,
    /// The blocks whose sizes its orders told to look at, with these, in the order in which they
    /// came.
    pub probes: Vec<(BlockIndex, u64)>,
    /// Number of ops, nested ones and without replays.
    pub op_count: u32,
    /// Counts.
    pub counters: StepCounters,
    /// Device time from the step's first op to its end, in microseconds.
    pub device_us: f64,
    /// The most physical bytes held at any moment of the step: blocks, caches and segments.
    pub held_bytes_peak: u64,
    /// The most bytes of resident blocks and segments at any moment of the step.
    pub resident_bytes_peak: u64,
    /// The op of the plan at which the step left it, if more than a quarter of the plan's ops were
    /// left out, or of the blocks that they allocate. What was left out, and what came instead, ran
    /// on demand.
    pub drifted_at: Option<OpIndex>,
    /// Ops that were none of the plan's, or not the one that was to come.
    pub strayed_ops: u32,
    /// The copies in order of issue, which is their order on each copy stream; empty unless
    /// [`log_moves`](crate::Engine::log_moves) asked for them.
    pub moves: Vec<Move>,
    /// What was recorded, if recording was on.
    pub trace: Option<Trace>,
    /// What was measured, if [`measure_lanes`](crate::Engine::measure_lanes) asked for it.
    pub lanes: Option<Lanes>,
}

impl StepReport {
    /// Whether the step went by the plan, apart from ops that the plan does not know or that were
    /// left out.
    pub fn followed(&self, plan: &Plan) -> bool {
        let is_known = self.signature == plan.signature || self.strayed_ops > 0;
        is_known && self.drifted_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_had_memory_mapped_does_not_tell_what_moves_cost() {
        let costs_after = |mapped: u64| {
            let memory_calls = MemoryCalls { mapped, ..MemoryCalls::default() };
            let moved =
                StepCounters { planned_moves: 4, planned_moves_us: 40.0, ..Default::default() };
            StepCounters { recomputed_ops: 2, replays_us: 100.0, memory_calls, ..moved }
                .host_costs()
        };
        assert_eq!(costs_after(MEMORY_CALLS_IGNORED), HostCosts { replay_us: 50.0, move_us: 10.0 });
        assert_eq!(costs_after(MEMORY_CALLS_IGNORED + 1), HostCosts::default());
    }
}
