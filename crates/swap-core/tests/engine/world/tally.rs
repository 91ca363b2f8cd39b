//! Sums over many runs, to show that they did something.

use std::collections::BTreeMap;

use swap_core::{Residency, StepCounters, StepReport};

/// Sums over many runs, to show that they did something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    pub(crate) steps: u64,
    pub(crate) ops: u64,
    pub(crate) kernels: u64,
    pub(crate) words_checked: u64,
    pub(crate) counters: StepCounters,
    pub(crate) drifted: u64,
    /// Steps that left their plan and found it again.
    pub(crate) rejoined: u64,
    pub(crate) strayed_ops: u64,
    /// Steps whose orders told of their size.
    pub(crate) probed: u64,
    /// Blocks below the threshold that were swappable all the same.
    pub(crate) small_swappable: u64,
    pub(crate) out_of_memory: u64,
    pub(crate) host_full: u64,
    pub(crate) retakes: u64,
    pub(crate) put_off: u64,
    pub(crate) abandoned: u64,
    pub(crate) suspended: u64,
    pub(crate) measured_copies: u64,
    pub(crate) measured_ops: u64,
    pub(crate) side_ops: u64,
    pub(crate) nested_ops: u64,
    pub(crate) ordered: u64,
    pub(crate) replays: u64,
    pub(crate) accesses_checked: u64,
    /// By what [`Residency`] said before: frees, touches.
    pub(crate) frees: BTreeMap<&'static str, u64>,
    pub(crate) touches: BTreeMap<&'static str, u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Tally) {
        self.runs += other.runs;
        self.steps += other.steps;
        self.ops += other.ops;
        self.kernels += other.kernels;
        self.words_checked += other.words_checked;
        self.counters.swapped_out_bytes += other.counters.swapped_out_bytes;
        self.counters.swapped_in_bytes += other.counters.swapped_in_bytes;
        self.counters.clean_swap_outs += other.counters.clean_swap_outs;
        self.counters.recomputed_ops += other.counters.recomputed_ops;
        self.counters.misses += other.counters.misses;
        self.counters.rescues += other.counters.rescues;
        self.counters.host_waits += other.counters.host_waits;
        self.counters.stall_us += other.counters.stall_us;
        self.drifted += other.drifted;
        self.rejoined += other.rejoined;
        self.strayed_ops += other.strayed_ops;
        self.probed += other.probed;
        self.small_swappable += other.small_swappable;
        self.out_of_memory += other.out_of_memory;
        self.host_full += other.host_full;
        self.retakes += other.retakes;
        self.put_off += other.put_off;
        self.abandoned += other.abandoned;
        self.suspended += other.suspended;
        self.measured_copies += other.measured_copies;
        self.measured_ops += other.measured_ops;
        self.side_ops += other.side_ops;
        self.nested_ops += other.nested_ops;
        self.ordered += other.ordered;
        self.replays += other.replays;
        self.accesses_checked += other.accesses_checked;
        for (from, to) in [(&other.frees, &mut self.frees), (&other.touches, &mut self.touches)] {
            for (name, count) in from {
                *to.entry(name).or_default() += count;
            }
        }
    }

    pub(super) fn report(&mut self, report: &StepReport) {
        self.steps += 1;
        let counters = report.counters;
        let once = Tally { counters, ..Tally::default() };
        let drifted = report.drifted_at.is_some();
        self.drifted += u64::from(drifted);
        self.probed += u64::from(!report.probes.is_empty());
        self.rejoined += u64::from(!drifted && report.strayed_ops > 0);
        self.strayed_ops += u64::from(report.strayed_ops);
        if let Some(lanes) = &report.lanes {
            self.measured_copies += lanes.copies.len() as u64;
            self.measured_ops += lanes.ops.len() as u64;
        }
        self.add(&once);
    }
}

pub(crate) fn state_name(residency: Residency) -> &'static str {
    match residency {
        Residency::Resident => "resident",
        Residency::Leaving => "leaving",
        Residency::Away => "away",
        Residency::Arriving => "arriving",
        Residency::Discarded => "discarded",
    }
}
