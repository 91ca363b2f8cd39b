//! A plan being tried, when its step says enough of it, and when the next is worth a try.

use std::sync::Arc;

use swap_core::{Plan, StepReport, Trace};

use super::NumberedPlan;
use crate::machine::Machine;
use crate::search::{Measured, Prediction};
use crate::simulate::simulate;

/// A step whose time is within this factor of what it is simulated to take is explained by that.
const EXPLAINED: f64 = 1.03;

/// What promises no less than this part of the step costs more to try than it brings: blocks have
/// to move to other places, and back if it was in vain.
const WORTH_A_TRY: f64 = 0.99;

/// A judged step: what it ran under, and what was expected and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) numbered: NumberedPlan,
    pub(super) predicted: Prediction,
    pub(super) measured: Measured,
}

impl Outcome {
    /// Whether another plan promises to be faster by a part. If the step is not as it should be
    /// under its own, any other may be.
    pub(super) fn may_be_outdone(
        &self,
        plan: Option<&Plan>,
        trace: &Trace,
        machine: &Machine,
    ) -> bool {
        let (Some(own), Some(plan)) = (&self.numbered.plan, plan) else { return true };
        let step_us = |plan: &Plan| simulate(trace, plan, machine).step_us;
        let own_us = step_us(own);
        let near_us = own_us / EXPLAINED..=own_us * EXPLAINED;
        let is_explained = self.measured.is_clean() && near_us.contains(&self.measured.step_us);
        !is_explained || step_us(plan) < WORTH_A_TRY * own_us
    }
}

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
    /// The best of the settled steps under it so far, if another is to be measured.
    best: Option<Measured>,
    /// What the last of those asked the driver for.
    last_memory_calls: u64,
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
            best: None,
            last_memory_calls: 0,
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

    /// The step to plan for next: what was recorded, with what the engine's own work cost the host
    /// in the step that is judged. Ranks have agreed on that before.
    pub(super) fn known(&self, judged: &StepReport, has_others: bool) -> Option<Arc<Trace>> {
        let mut trace = match &self.recorded {
            Some(recorded) => Arc::clone(recorded),
            None => Arc::new(judged.trace.clone()?),
        };
        if !has_others {
            let costs = judged.counters.host_costs().or(trace.host_costs);
            Arc::make_mut(&mut trace).host_costs = costs;
        }
        Some(trace)
    }

    /// What the settled steps under the plan say of it: the best of them. Nothing yet if one more
    /// is to be measured. A first one may have been disturbed if it took more than `slow_ratio`
    /// times what was predicted; and as long as each maps less than half of what the one before
    /// did, blocks are on their way to their lots.
    pub(super) fn judged(&mut self, measured: Measured, slow_ratio: f64) -> Option<Measured> {
        let before = self.best.take();
        let predicted_us = self.predicted.step_us;
        let is_late = predicted_us > 0.0 && measured.step_us > slow_ratio * predicted_us;
        let maps = self.numbered.layout.is_some() && measured.maps();
        let moves_in = maps && measured.memory_calls < self.last_memory_calls / 2;
        let again = if before.is_none() { is_late || maps } else { moves_in };
        let best = before.filter(|before| before.is_better_than(&measured)).unwrap_or(measured);
        if !again || self.holds {
            return Some(best);
        }
        (self.best, self.last_memory_calls) = (Some(best), measured.memory_calls);
        None
    }
}
