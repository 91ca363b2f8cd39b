//! What is to be known of a finished step before it is judged.

use swap_core::StepReport;

use super::{Measured, Stage};
use crate::ranks::{Figure, Figures};

/// What the loop knows about a finished step beside its report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Another kind of step was expected, so this one ran under a foreign plan.
    pub(super) surprise: bool,
    /// It is of a kind of its own, but near enough to the expected one to count as that.
    pub(super) similar: bool,
    /// As it went by the plan of that, apart from a few ops.
    pub(super) branch: bool,
    /// The step before was of the same kind under the same plan, so every block began where the
    /// plan leaves it.
    pub(super) settled: bool,
    /// It is to be planned for although its kind has not come twice in a row.
    pub(super) roams: bool,
    /// What all ranks together made of it, if there are several.
    pub(super) worst: Option<Figures>,
}

impl Seen {
    /// Whether the others' figures count for a kind of step in `stage`, if there are others.
    pub(super) fn is_common(&self, stage: Stage) -> bool {
        self.worst.is_none_or(|worst| worst.count_in(stage))
    }

    /// What the step is judged by in `stage`.
    pub(super) fn judged(&self, report: &StepReport, stage: Stage) -> Measured {
        let own = Measured::of(report);
        self.worst.map_or(own, |worst| worst.judged(own, stage))
    }

    /// Whether blocks began where the plans leave them, on all ranks that count.
    pub(super) fn is_settled(&self, stage: Stage) -> bool {
        let others = self.worst.filter(|worst| worst.count_in(stage));
        self.settled && others.is_none_or(|worst| !worst.is(Figure::Unsettled))
    }

    /// Whether another rank began it under orders from before.
    pub(super) fn is_void(&self) -> bool {
        self.worst.is_some_and(|worst| worst.is(Figure::Void))
    }

    /// Whether the next step is to be judged instead, as ranks have recorded different blocks.
    pub(super) fn is_put_off(&self) -> bool {
        self.worst.is_some_and(|worst| worst.is(Figure::Again))
    }

    /// Whether a plan that is made beside the training is not there yet on some rank.
    pub(super) fn is_planned_for(&self) -> bool {
        self.worst.is_some_and(|worst| worst.is(Figure::Planning))
    }

    /// Whether some rank ran a plan to see how it does, or will.
    pub(super) fn is_sought(&self) -> bool {
        self.worst.is_some_and(|worst| worst.is(Figure::Seeking))
    }
}
