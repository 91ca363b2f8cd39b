//! Steps that differ from each other in a few ops: each takes another number of images from a pool,
//! say.
//!
//! Kinds of steps are planned for when they come twice in a row. Where none does, a plan for any of
//! them is far better than none, as the others follow it by context.

use swap_core::{Signature, StepReport};

/// After so many steps in a row without a plan, each of another kind than the one before, the next
/// one is planned for that has as many ops as any before: what a step leaves out is passed over,
/// but what is put in has no place. After twice as many, any is.
const ROW_STEPS: u32 = 6;

/// Of the last 32 steps under a plan, as many as this that put ops in and made memory calls say
/// that another one is to be planned for, which has those. Each time it takes twice as many.
const OUTGROWING_STEPS: u32 = 6;

/// So long a plan for smaller steps waits for one that has the most ops.
const WAITING_STEPS: u32 = 32;

/// What is known of such steps.
#[derive(Debug)]
pub(super) struct Roaming {
    /// Such steps in a row.
    row: u32,
    /// How many there have to be. Each plan doubles it: training waits for one, which may be of no
    /// use to the steps to come.
    row_least: u32,
    /// The most ops that one of them had.
    op_count_max: u32,
    /// The kind of the last step, and what it has in common with steps of other sizes.
    last: Option<(Signature, Signature)>,
    /// Whether that kind has not come twice in a row.
    is_alone: bool,
    /// The kind that was planned for, for all of them.
    planned: Option<Signature>,
    /// Which of the last steps outgrew their plan: the last one in the lowest bit.
    outgrowing: u32,
    /// Ops of the last one that did.
    op_count_outgrowing: u32,
    outgrowing_least: u32,
    /// Steps left in which one with the most ops is waited for, if it is.
    waiting: u32,
}

impl Default for Roaming {
    fn default() -> Roaming {
        Roaming {
            row: 0,
            row_least: ROW_STEPS,
            op_count_max: 0,
            last: None,
            is_alone: true,
            planned: None,
            outgrowing: 0,
            op_count_outgrowing: 0,
            outgrowing_least: OUTGROWING_STEPS,
            waiting: 0,
        }
    }
}

impl Roaming {
    /// Counts a step, of a kind with a plan or without. Whether it is to be planned for although
    /// its kind does not come again and again.
    pub(super) fn came(&mut self, report: &StepReport, kind: Signature, is_planned: bool) -> bool {
        let StepReport { family, op_count, .. } = *report;
        let last = self.last.replace((kind, family));
        self.is_alone = last.is_none_or(|(last, _)| last != kind);
        // Steps that differ in their sizes alone are planned for together.
        let is_other = last.is_none_or(|(_, last)| last != family);
        let roams = !is_planned && self.is_alone && is_other;
        if let Some(left) = self.waiting.checked_sub(1) {
            self.waiting = left;
            // The first one behind the plan that was given up brings all home.
            let is_home = left + 1 < WAITING_STEPS;
            return is_home && !is_planned && self.awaits(op_count);
        }
        (self.row, self.op_count_max) =
            if roams { (self.row + 1, self.op_count_max.max(op_count)) } else { (0, 0) };
        let is_largest = op_count == self.op_count_max;
        self.row >= self.row_least && (is_largest || self.row >= self.row_least.saturating_mul(2))
    }

    /// Whether the next step to be planned for is to be one of the largest.
    pub(super) fn waits(&self) -> bool {
        self.waiting > 0
    }

    /// Whether that is one of so many ops.
    pub(super) fn awaits(&self, op_count: u32) -> bool {
        self.waits() && op_count >= self.op_count_outgrowing
    }

    /// Counts a step, and if it put ops in for which its plan had no memory, how many it had.
    pub(super) fn note(&mut self, outgrowing: Option<u32>) {
        self.op_count_outgrowing = outgrowing.unwrap_or(self.op_count_outgrowing);
        self.outgrowing = self.outgrowing << 1 | u32::from(outgrowing.is_some());
    }

    /// Whether such steps are so many that another one is to be planned for.
    pub(super) fn is_outgrown(&self) -> bool {
        self.outgrowing.count_ones() >= self.outgrowing_least
    }

    /// A plan was given up for one that has the most ops.
    pub(super) fn plans_for_more(&mut self) {
        (self.outgrowing, self.waiting) = (0, WAITING_STEPS);
        self.outgrowing_least = self.outgrowing_least.saturating_mul(2);
    }

    /// A kind was planned for, as it was to be.
    pub(super) fn plans_for(&mut self, kind: Signature) {
        self.planned = Some(kind);
        (self.row, self.op_count_max, self.waiting) = (0, 0, 0);
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
