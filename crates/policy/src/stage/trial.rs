//! A plan being tried, when its step says enough of it, and when the next is worth a try.

use std::mem;
use std::sync::Arc;

use swap_core::{HostCosts, Plan, StepReport, Trace};

use super::{NumberedPlan, Why};
use crate::machine::Machine;
use crate::search::{Measured, Prediction};
use crate::simulate::simulate;

/// A step whose time is within this factor of what it is simulated to take is explained by that.
const EXPLAINED: f64 = 1.03;

/// What promises no less than this part of the step costs more to try than it brings: blocks have
/// to move to other places, and back if it was in vain.
const WORTH_A_TRY: f64 = 0.99;

/// Steps that differ by less than this are equally long: one step does not tell more.
const ALIKE: f64 = 1.02;

/// A judged step: what it ran under, and what was expected and what came of it.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) numbered: NumberedPlan,
    pub(super) predicted: Prediction,
    pub(super) measured: Measured,
}

impl Outcome {
    /// Whether another plan was as fast as can be told from one step, and promised to be faster: to
    /// go back to this one takes steps, in which blocks move to their old places.
    pub(super) fn is_matched_by(&self, promised: &Prediction, other: &Measured) -> bool {
        let own = &self.measured;
        let promises_more = promised.step_us > 0.0 && promised.step_us < own.step_us;
        let goes_to_plan = other.misses <= own.misses && other.rescues == 0 && !other.drifted;
        promises_more && goes_to_plan && other.step_us <= own.step_us * ALIKE
    }

    /// Whether another plan promises to be faster by a part. If the step is not as it should be
    /// under its own, or is not the one that this was made for, any other may be.
    pub(super) fn may_be_outdone(
        &self,
        plan: Option<&Plan>,
        trace: &Trace,
        machine: &Machine,
    ) -> bool {
        let (Some(own), Some(plan)) = (&self.numbered.plan, plan) else { return true };
        if !own.knows(trace) {
            return true;
        }
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
    /// Why the search is over. It is the best so far, kept while other ranks still search.
    pub(super) holds: Option<Why>,
    /// The next plan to try is still being made, for this recorded step: it is the best so far.
    pub(super) waits: Option<Arc<Trace>>,
    /// What was recorded of a step under it, which takes time of the host: another is judged. Ranks
    /// plan for what all of them recorded of the step that they judge.
    recorded: Option<Arc<Trace>>,
    /// Whether that says how long ops take, as blocks lay in their lots.
    pub(super) is_recorded: bool,
    /// It was made in little time.
    pub(super) is_sketch: bool,
    /// The best of the settled steps under it so far, if another is to be measured.
    best: Option<Measured>,
    /// What the last step asked the driver for.
    memory_calls: u64,
}

impl Try {
    pub(super) fn new(numbered: NumberedPlan, predicted: Prediction, number: u32) -> Try {
        Try {
            numbered,
            predicted,
            number,
            runs: 0,
            holds: None,
            waits: None,
            recorded: None,
            is_recorded: false,
            is_sketch: false,
            best: None,
            memory_calls: u64::MAX,
        }
    }

    /// Keeps what was recorded of a step under it, so that another is judged. While blocks move to
    /// their lots, ops wait for the host: then the next step is recorded as well.
    pub(super) fn keep_recorded(&mut self, trace: Option<&Trace>, measured: &Measured) -> bool {
        let Some(trace) = trace.filter(|_| !self.is_recorded) else { return false };
        self.recorded = Some(Arc::new(trace.clone()));
        self.is_recorded = !self.moves_in(measured);
        true
    }

    /// Whether blocks are on their way to their lots: it maps less than half of what the step
    /// before did, and still more than costs nothing.
    fn moves_in(&mut self, measured: &Measured) -> bool {
        let before = mem::replace(&mut self.memory_calls, measured.memory_calls);
        self.numbered.layout.is_some() && measured.maps() && measured.memory_calls < before / 2
    }

    /// The step to plan for next: what was recorded, with what the engine's own work cost the host
    /// in the step that is judged. Ranks have agreed on that before.
    pub(super) fn known(&self, judged: &StepReport, has_others: bool) -> Option<Arc<Trace>> {
        let trace = match &self.recorded {
            Some(recorded) => Arc::clone(recorded),
            None => Arc::new(judged.trace.clone()?),
        };
        let told = if has_others { HostCosts::default() } else { judged.counters.host_costs() };
        Some(Trace::with_host_costs(&trace, told))
    }

    /// What the settled steps under the plan say of it: the best of them. Nothing yet if one more
    /// is to be measured: while blocks move to their lots, and after a first one that took more
    /// than `slow_ratio` times what was predicted, as it may have been disturbed.
    pub(super) fn judged(&mut self, measured: Measured, slow_ratio: f64) -> Option<Measured> {
        let before = self.best.take();
        let predicted_us = self.predicted.step_us;
        let is_late = predicted_us > 0.0 && measured.step_us > slow_ratio * predicted_us;
        let again = self.moves_in(&measured) || is_late && before.is_none();
        let best = before.filter(|before| before.is_better_than(&measured)).unwrap_or(measured);
        if !again {
            return Some(best);
        }
        self.best = Some(best);
        None
    }
}
