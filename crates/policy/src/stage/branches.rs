//! Steps that go by the plan of another kind, apart from a few ops: one that logs, or evaluates.

use std::collections::BTreeSet;

use swap_core::Signature;

/// After so many in a row that differ from each other they are the rule.
const ROW_STEPS: u32 = 8;

/// After so many in a row that are alike they get a plan of their own. After one already, if it
/// waited for copies as if it had no plan.
const ALIKE_STEPS: u32 = 4;

/// Kinds that are remembered, so that each is told of once.
const TOLD_MAX: usize = 256;

/// What is known of such steps.
#[derive(Debug, Default)]
pub(super) struct Branches {
    /// How many came since the last step that was none.
    row: u32,
    /// The last one, and how many like it came in a row.
    last: Option<(Signature, u32)>,
    told: BTreeSet<Signature>,
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

    /// Counts one, which waited longer than the plan's own steps take in all or did not. Says
    /// whether it is the first of its kind.
    pub(super) fn came(&mut self, kind: Signature, waited_long: bool) -> bool {
        let count = self.last.filter(|&(last, _)| last == kind).map_or(0, |(_, count)| count);
        self.last = Some((kind, if waited_long { ALIKE_STEPS } else { count + 1 }));
        self.row += 1;
        if self.told.len() == TOLD_MAX {
            self.told.clear();
        }
        self.told.insert(kind)
    }

    /// Another step came.
    pub(super) fn end_row(&mut self) {
        (self.row, self.last) = (0, None);
    }
}
