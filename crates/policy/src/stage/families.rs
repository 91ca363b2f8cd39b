//! Steps of one family in the loop: a plan for the ordinary ones, and others in hand for those that
//! are larger.
//!
//! ```text
//!   probe    |-- recorded --|
//!            0    x  x x    x|      |           |            |
//!                            ^      ^           ^            ^
//!                       ordinary   larger, by predicted members alone
//! ```
//!
//! A *level* is a size of the probe, the member that has it, as the family predicts it, and a plan
//! for that. It serves all steps up to its size. Steps begin under the lowest level, whose plan
//! alone is laid out; one that turns out larger goes on under the next that is large enough. So
//! ordinary steps make no memory calls whatever their sizes, and an outlier is planned for before
//! it comes.

use std::collections::BTreeMap;
use std::sync::Arc;

use swap_core::{Signature, StepReport, Trace};

use super::guarded::Guarded;
use super::{Event, LoopConfig, NumberedPlan, Stage};
use crate::search::Planner;

mod known;
mod level;

use known::Known;
pub use level::{LevelSummary, Sizes};

/// Families that are remembered; the least recent one is forgotten first.
const FAMILIES_MAX: usize = 8;

/// What is known of steps that differ in their sizes, and in hand for them.
#[derive(Clone, PartialEq, Debug)]
pub struct FamilySummary {
    /// What they count as.
    pub kind: Signature,
    /// The sizes that were recorded, of the block that tells how large a step is.
    pub recorded_bytes: Vec<u64>,
    /// The same of the last steps, in order.
    pub recent_bytes: Vec<u64>,
    /// In order of their sizes.
    pub levels: Vec<LevelSummary>,
}

/// All families that were met, by the fingerprint of their ops.
#[derive(Debug, Default)]
pub(super) struct Families {
    known: BTreeMap<Signature, Known>,
    /// Numbers of [`Sizes`].
    given: u64,
}

impl Families {
    /// Takes in a recorded step.
    pub(super) fn learn(&mut self, report: &StepReport, step: u64) {
        let Some(trace) = report.trace.as_ref().filter(|_| report.drifted_at.is_none()) else {
            return;
        };
        let new = || Known::new(kind_of(report.family));
        self.known.entry(report.family).or_insert_with(new).learn(trace, step);
        while self.known.len() > FAMILIES_MAX {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.seen_at());
            let oldest = *oldest.expect("more than some are kept").0;
            self.known.remove(&oldest);
        }
    }

    /// The kind that steps of this family count as, once it is known that they differ.
    pub(super) fn kind(&self, family: Signature) -> Option<Signature> {
        let varies = self.known.get(&family).is_some_and(Known::varies);
        varies.then(|| kind_of(family))
    }

    fn of_kind(&self, kind: Signature) -> Option<&Known> {
        self.known.values().find(|known| known.kind() == kind)
    }

    /// What the next step of this kind runs under, if it is a family's.
    pub(super) fn numbered_plan(&self, kind: Signature) -> Option<&NumberedPlan> {
        self.of_kind(kind).map(Known::numbered_plan)
    }

    /// Those that are known to vary, the latest first.
    pub(super) fn summaries(&self) -> Vec<FamilySummary> {
        let mut known: Vec<&Known> = self.known.values().filter(|known| known.varies()).collect();
        known.sort_by_key(|known| std::cmp::Reverse(known.seen_at()));
        known.into_iter().map(Known::summary).collect()
    }

    /// What was recorded of the family that was met last.
    pub(super) fn recorded(&self) -> &[Arc<Trace>] {
        let varying = self.known.values().filter(|known| known.varies());
        varying.max_by_key(|known| known.seen_at()).map_or(&[], Known::recorded)
    }

    /// Where a family stands.
    pub(super) fn stage(&self, kind: Signature) -> Option<Stage> {
        self.of_kind(kind).map(Known::stage)
    }

    /// Whether some of its last steps went on under a plan for larger ones.
    pub(super) fn has_outgrown(&self, kind: Signature) -> bool {
        self.of_kind(kind).is_some_and(Known::has_outgrown)
    }

    /// Notes the size of a step that is not observed.
    pub(super) fn note_size(&mut self, report: &StepReport) {
        if let Some(known) = self.known.get_mut(&report.family) {
            known.note_size(report);
        }
    }

    /// Whether its next step is to be recorded.
    pub(super) fn records(&self, kind: Signature) -> Option<bool> {
        self.of_kind(kind).map(Known::records)
    }

    /// Takes in a branch that went by the plans for this kind.
    pub(super) fn branched(&mut self, kind: Signature, probe_bytes: u64) {
        if let Some(known) = self.known.values_mut().find(|known| known.kind() == kind) {
            known.branched(probe_bytes);
        }
    }

    /// Takes in a finished step of a family that is known to vary, with its number and whether the
    /// one before was of the same family. Says what was done.
    pub(super) fn observe(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        (step, follows_its_like): (u64, bool),
    ) -> Vec<Event> {
        let known = self.known.get_mut(&report.family);
        known.map_or_else(Vec::new, |known| {
            known.observe(config, planner, report, (step, follows_its_like), &mut self.given)
        })
    }
}

/// The kind that the steps of a family count as: none of a step's own.
fn kind_of(family: Signature) -> Signature {
    family.mix(u64::MAX)
}
