//! Counts over all steps of the process.

use adaptive::{FinishedStep, MemoryCalls, MemoryStats, Peak, Stage};

/// Sums of what steps reported, and peaks that outlive steps.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Totals {
    /// Steps ended in WarmUp, in SearchPolicy and in Stable.
    pub(crate) steps_by_stage: [u64; 3],
    /// Steps that reported, each after those before it.
    pub(crate) reported_steps: u64,
    /// Steps that followed a plan although they differ from its step.
    pub(crate) branches: u64,
    pub(crate) swapped_out_bytes: u64,
    pub(crate) swapped_in_bytes: u64,
    pub(crate) recomputed_ops: u64,
    pub(crate) misses: u64,
    pub(crate) rescues: u64,
    pub(crate) recalls: u64,
    pub(crate) host_waits: u64,
    /// Of the last step that reported.
    pub(crate) last_calls: MemoryCalls,
    pub(crate) stall_us: f64,
    pub(crate) last_step_us: f64,
    /// Its ops, nested ones as well.
    pub(crate) last_op_count: u32,
    /// The most that was resident in the last step that reported.
    pub(crate) last_resident_bytes: u64,
    /// Steps in a row, up to the last that reported, that no plan came of and nothing moved in:
    /// no two are alike, and each had room.
    pub(crate) roaming_steps: u32,
    /// The highest since they were reset, up to the last step's end.
    peaks: [u64; 4],
}

impl Totals {
    /// Steps ended.
    pub(crate) fn steps(&self) -> u64 {
        self.steps_by_stage.iter().sum()
    }

    pub(crate) fn add(&mut self, finished: &FinishedStep) {
        let counters = &finished.report.counters;
        self.reported_steps += 1;
        self.branches += u64::from(is_branch(finished));
        self.swapped_out_bytes += counters.swapped_out_bytes;
        self.swapped_in_bytes += counters.swapped_in_bytes;
        self.recomputed_ops += counters.recomputed_ops;
        self.misses += counters.misses;
        self.rescues += counters.rescues;
        self.recalls += counters.recalls;
        self.host_waits += counters.host_waits;
        self.stall_us += counters.stall_us;
        self.last_calls = counters.memory_calls;
        self.last_step_us = finished.report.device_us;
        self.last_op_count = finished.report.op_count;
        self.last_resident_bytes = finished.report.resident_bytes_peak;
        let moved =
            counters.swapped_out_bytes + counters.swapped_in_bytes + counters.recomputed_ops;
        let roams = finished.stage == Stage::WarmUp && finished.plan.is_none() && moved == 0;
        self.roaming_steps = if roams { self.roaming_steps + 1 } else { 0 };
    }

    /// Keeps the peaks of a step that ends: the engine starts them anew.
    pub(crate) fn keep_peaks(&mut self, stats: &MemoryStats) {
        for (kept, counter) in self.peaks.iter_mut().zip(counters(stats)) {
            *kept = (*kept).max(counter.peak);
        }
    }

    pub(crate) fn reset_peaks(&mut self) {
        self.peaks = [0; 4];
    }

    /// Requested, allocated, active and reserved bytes, with peaks over steps.
    pub(crate) fn with_peaks(&self, stats: &MemoryStats) -> [Peak; 4] {
        let mut result = counters(stats);
        for (counter, kept) in result.iter_mut().zip(self.peaks) {
            counter.peak = counter.peak.max(kept);
        }
        result
    }
}

fn is_branch(finished: &FinishedStep) -> bool {
    let report = &finished.report;
    let plan = finished.plan.as_ref().filter(|plan| report.followed(plan));
    plan.is_some_and(|plan| plan.signature != report.signature)
}

fn counters(stats: &MemoryStats) -> [Peak; 4] {
    [stats.requested_bytes, stats.allocated_bytes, stats.active_bytes, stats.reserved_bytes]
}
