//! Steps that differ from each other in a few ops: each takes another number of images from a pool,
//! say.
//!
//! Kinds of steps are planned for when they come twice in a row. Where none does, a plan for any of
//! them is far better than none, as the others follow it by context.

use swap_core::Signature;

/// After so many steps in a row without a plan, each of another kind than the one before, the last
/// one is planned for.
const ROW_STEPS: u32 = 6;

/// What is known of such steps.
#[derive(Debug)]
pub(super) struct Roaming {
    /// Such steps in a row.
    row: u32,
    /// How many there have to be. Each plan doubles it: training waits for one, which may be of no
    /// use to the steps to come.
    row_least: u32,
    /// The kind of the last step, and what it has in common with steps of other sizes.
    last: Option<(Signature, Signature)>,
    /// Whether that kind has not come twice in a row.
    is_alone: bool,
    /// The kind that was planned for, for all of them.
    planned: Option<Signature>,
}

impl Default for Roaming {
    fn default() -> Roaming {
        Roaming { row: 0, row_least: ROW_STEPS, last: None, is_alone: true, planned: None }
    }
}

impl Roaming {
    /// Counts a step, of a kind with a plan or without. Whether it is to be planned for although
    /// its kind does not come again and again.
    pub(super) fn came(&mut self, kind: Signature, is_planned: bool, family: Signature) -> bool {
        let last = self.last.replace((kind, family));
        self.is_alone = last.is_none_or(|(last, _)| last != kind);
        // Steps that differ in their sizes alone are planned for together.
        let is_other = last.is_none_or(|(_, last)| last != family);
        let roams = !is_planned && self.is_alone && is_other;
        self.row = if roams { self.row + 1 } else { 0 };
        self.row >= self.row_least
    }

    /// A kind was planned for, as it was to be.
    pub(super) fn plans_for(&mut self, kind: Signature) {
        self.planned = Some(kind);
        self.row = 0;
        self.row_least = self.row_least.saturating_mul(2);
    }

    /// The plan of such steps was given up. That they differ is known, and without one each is
    /// served on demand: the second from here on is planned for, as the first brings all home.
    pub(super) fn plans_soon(&mut self) {
        self.row = self.row_least.saturating_sub(2);
    }

    /// The kind whose plan serves the next step, where the last one did not follow it.
    pub(super) fn serves(&self) -> Option<Signature> {
        self.planned.filter(|_| self.is_alone)
    }
}
