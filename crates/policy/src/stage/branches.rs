//! Steps that go by the plan of another kind, apart from a few ops: one that logs, or evaluates.

use std::collections::BTreeSet;
use std::sync::Arc;

use swap_core::{MEMORY_CALLS_IGNORED, Plan, Signature, StepReport};

use super::track::Track;
use super::{Event, Loop, Measured, Seen, Stage};
use crate::search::Planner;

/// After so many in a row that differ from each other they are the rule.
const ROW_STEPS: u32 = 8;

/// After so many in a row that are alike they get a plan of their own, those that the plan serves
/// too: they may move more than they have to. What it does not serve counts for more, and one that
/// waited for copies as if it had no plan is enough.
const ALIKE_STEPS: u32 = 32;
const ALIKE_UNSERVED: u32 = 8;

/// After so many in a row that took long the plan no longer serves: as a pool fills, it has less
/// memory, say. Or that made memory calls: part of what they do has never been planned for, such
/// as the updates of a layer that trains from some step on. Each plan that is given up doubles it.
const UNSERVED_STEPS: u32 = 16;

/// Kinds that are remembered, so that each is told of once.
const TOLD_MAX: usize = 256;

/// What is known of such steps.
#[derive(Debug)]
pub(super) struct Branches {
    /// How many came since the last step that was none.
    row: u32,
    /// How many of the last of those took long, or made memory calls.
    unserved: u32,
    /// How many there have to be for the plan to be given up.
    unserved_least: u32,
    /// The last one, and what those like it that came in a row count for.
    last: Option<(Signature, u32)>,
    told: BTreeSet<Signature>,
}

impl Default for Branches {
    fn default() -> Branches {
        Branches {
            row: 0,
            unserved: 0,
            unserved_least: UNSERVED_STEPS,
            last: None,
            told: BTreeSet::new(),
        }
    }
}

impl Branches {
    /// Whether a step of this kind is an exception.
    pub(super) fn are_rare(&self, kind: Signature) -> bool {
        self.last.is_none_or(|(last, count)| last != kind || count < ALIKE_STEPS)
    }

    /// Whether all that has come of late are such steps.
    pub(super) fn are_the_rule(&self) -> bool {
        self.row >= ROW_STEPS
    }

    /// Whether the plan has not served for long, and no step of its own came that would tell.
    pub(super) fn are_unserved(&self) -> bool {
        self.unserved >= self.unserved_least
    }

    /// The plan is given up.
    pub(super) fn give_up(&mut self) {
        self.unserved_least = self.unserved_least.saturating_mul(2);
        self.end_row();
    }

    /// Counts one, which waited longer than the plan's own steps take in all or did not, and which
    /// the plan served or did not. Says whether it is the first of its kind.
    pub(super) fn came(&mut self, kind: Signature, waited_long: bool, is_served: bool) -> bool {
        let count = self.last.filter(|&(last, _)| last == kind).map_or(0, |(_, count)| count);
        let more = match (waited_long, is_served) {
            (true, _) => ALIKE_STEPS,
            (false, false) => ALIKE_UNSERVED,
            (false, true) => 1,
        };
        self.last = Some((kind, count + more));
        self.row += 1;
        self.unserved = if is_served { 0 } else { self.unserved + 1 };
        if self.told.len() == TOLD_MAX {
            self.told.clear();
        }
        self.told.insert(kind)
    }

    /// Another step came.
    pub(super) fn end_row(&mut self) {
        (self.row, self.unserved, self.last) = (0, 0, None);
    }
}

impl<P: Planner> Loop<P> {
    /// Whether a step went by the plan of the last directive.
    pub(super) fn has_followed(&self, report: &StepReport) -> bool {
        self.running.plan.as_ref().is_some_and(|plan| report.followed(plan))
    }

    /// Whether a step of a family went by the plan of another one, which does more: it is a branch
    /// of that. Two families would take each other's layout down.
    pub(super) fn leaves_out(&self, family: Signature, report: &StepReport) -> bool {
        let is_under = |plan: &Arc<Plan>| report.op_count < plan.op_count;
        let is_others = self.running.sizes.as_ref().is_some_and(|sizes| sizes.kind() != family);
        is_others && self.running.plan.as_ref().is_some_and(is_under) && self.has_followed(report)
    }

    /// Whether a branch says nothing of its kind's plan. It tells of those that are new.
    pub(super) fn passes_by(&mut self, report: &StepReport, seen: Seen) -> bool {
        // Ranks wait differently long, and are to choose alike.
        let waited_long = seen.worst.is_none() && self.waited_long(report);
        let is_served = seen.worst.is_some() || self.is_served(report);
        if self.branches.came(report.signature, waited_long, is_served) {
            let event = Event::Branches { strayed_ops: report.strayed_ops };
            self.tell(report.signature, report.op_count, vec![event]);
        }
        // A search has to end, also where no step is like another.
        let is_rule = self.stage() == Stage::SearchPolicy && self.branches.are_the_rule();
        let is_own = seen.worst.is_none() || self.running.sizes.is_some();
        is_own && !is_rule
    }

    /// Takes in a branch of a kind that says nothing of its plan by itself. Many in a row do.
    pub(super) fn take_in_branch(&mut self, kind: Signature, report: &StepReport) {
        if let Some(track) = self.tracks.get_mut(&kind) {
            track.branched(self.steps);
            if self.branches.are_unserved() {
                track.outlived_its_plan(&self.config, Measured::of(report));
                self.branches.give_up();
                self.roaming.plans_soon();
            }
            let events = track.take_events();
            self.tell(kind, report.op_count, events);
        }
        if let (Some(sizes), Some(&(_, bytes))) = (&self.running.sizes, report.probes.first()) {
            self.families.branched(sizes.kind(), bytes);
        }
    }

    /// Whether a step waited for copies longer than those that it was to be like take in all.
    fn waited_long(&self, report: &StepReport) -> bool {
        self.usual().is_some_and(|usual| report.counters.stall_us > usual.step_us)
    }

    /// Whether a step took hardly longer than those that it was to be like, and made hardly more
    /// memory calls.
    fn is_served(&self, report: &StepReport) -> bool {
        self.usual().is_none_or(|usual| {
            let calls = report.counters.memory_calls.total();
            report.device_us <= self.config.slow_ratio * usual.step_us
                && calls <= usual.memory_calls + MEMORY_CALLS_IGNORED
        })
    }

    /// What steps of the expected kind come to.
    fn usual(&self) -> Option<&Measured> {
        let track = self.expected.and_then(|kind| self.tracks.get(&kind));
        track.and_then(Track::best).map(|(measured, _)| measured)
    }
}
