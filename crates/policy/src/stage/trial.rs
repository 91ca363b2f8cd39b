//! A plan being tried, and when its step says enough of it.

use std::sync::Arc;

use swap_core::Trace;

use super::NumberedPlan;
use crate::search::{Measured, Prediction};

/// A plan being tried.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) numbered: NumberedPlan,
    pub(super) predicted: Prediction,
    /// Which try of this search it is, from 1. 0 is the best plan so far, measured once more and
    /// recorded, to learn what has changed.
    pub(super) number: u32,
    /// Steps that ran under it.
    pub(super) runs: u32,
    /// There was no new plan to try: it is the best so far, kept while other ranks still search.
    pub(super) holds: bool,
    /// The next plan to try is still being made, for this recorded step: it is the best so far.
    pub(super) waits: Option<Arc<Trace>>,
    /// Recording takes time of the host, so only the first step under it is recorded and another
    /// one judged. Ranks plan for what all of them recorded of the step that they judge.
    pub(super) recorded: Option<Arc<Trace>>,
    /// It was made in little time.
    pub(super) is_sketch: bool,
    /// A settled step under it that took far longer than predicted: it may have been disturbed.
    late: Option<Measured>,
}

impl Try {
    pub(super) fn new(numbered: NumberedPlan, predicted: Prediction, number: u32) -> Try {
        Try {
            numbered,
            predicted,
            number,
            runs: 0,
            holds: false,
            waits: None,
            recorded: None,
            is_sketch: false,
            late: None,
        }
    }

    /// Keeps what was recorded of a step under it. Says whether that was the first.
    pub(super) fn keep_recorded(&mut self, trace: Option<&Trace>) -> bool {
        let is_first = self.recorded.is_none() && trace.is_some();
        if let Some(trace) = trace {
            self.recorded = Some(Arc::new(trace.clone()));
        }
        is_first
    }

    /// What the step says of the plan; nothing yet if it should be measured once more, as it took
    /// more than `slow_ratio` times what was predicted.
    pub(super) fn judged(&mut self, measured: Measured, slow_ratio: f64) -> Option<Measured> {
        let predicted_us = self.predicted.step_us;
        let is_late = predicted_us > 0.0 && measured.step_us > slow_ratio * predicted_us;
        match self.late.take() {
            Some(late) if late.is_better_than(&measured) => Some(late),
            None if is_late && !self.holds => {
                self.late = Some(measured);
                None
            }
            _ => Some(measured),
        }
    }
}
