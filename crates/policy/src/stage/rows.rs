//! Kinds of steps as they come, in rows.

use swap_core::Signature;

/// A kind that came so often in a row is expected again behind a single step of another, as the
/// last one of an epoch is.
const LONG_ROW: u32 = 8;

/// The kind that came last, and the one before it if that came in a long row.
#[derive(Debug, Default)]
pub(super) struct Rows {
    last: Option<(Signature, u32)>,
    interrupted: Option<Signature>,
}

impl Rows {
    /// The kind of the last step.
    pub(super) fn last(&self) -> Option<Signature> {
        self.last.map(|(kind, _)| kind)
    }

    /// The kind whose long row the last step interrupts, if it is the only one so far.
    pub(super) fn interrupted(&self) -> Option<Signature> {
        self.interrupted
    }

    /// Counts a step.
    pub(super) fn came(&mut self, kind: Signature) {
        let goes_on = self.interrupted.take() == Some(kind);
        self.last = match self.last {
            Some((last, steps)) if last == kind => Some((kind, steps.saturating_add(1))),
            Some((last, steps)) => {
                self.interrupted = Some(last).filter(|_| steps >= LONG_ROW);
                Some((kind, if goes_on { LONG_ROW } else { 1 }))
            }
            None => Some((kind, 1)),
        };
    }
}
