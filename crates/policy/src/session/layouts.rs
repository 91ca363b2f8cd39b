//! When the blocks of a step get lots: as soon as it has a plan, unless kinds of steps take turns.

use swap_core::{Lot, Plan};

use super::Session;
use crate::layout::lay_out;
use crate::search::Planner;

/// Steps of a kind go by before it is laid out, once a layout had to go for another kind's sake:
/// moving in costs the calls of many steps.
const PATIENCE_STEPS: u32 = 3;

/// Patience doubles where a layout did not last so long.
const LASTING_STEPS: u32 = 8;

/// It never grows beyond this.
const PATIENCE_STEPS_MAX: u32 = 4096;

/// The first steps with a layout map it, which says nothing about its plan: so many for sure, and
/// more as long as they make many memory calls, each of which the device or the host waits for.
const MOVING_IN_STEPS: u32 = 2;
const MOVING_IN_STEPS_MAX: u32 = 6;
const SETTLED_MEMORY_CALLS: u64 = 32;

/// How long a plan has been running, and with which layout.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    patience_steps: u32,
    /// Steps under the present plan.
    steady_steps: u32,
    /// Of the present plan, if it is laid out.
    lots: Option<Vec<Option<Lot>>>,
    /// Steps since it has been.
    laid_out_steps: u32,
}

/// How many steps have ended with their layout, this one included; 0 without one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaidOut(u32);

impl LaidOut {
    /// Whether a step that made so many memory calls was spent on moving in.
    pub(super) fn is_moving_in(self, memory_calls: u64) -> bool {
        let may = (1..=MOVING_IN_STEPS_MAX).contains(&self.0);
        may && (self.0 <= MOVING_IN_STEPS || memory_calls > SETTLED_MEMORY_CALLS)
    }
}

impl Layouts {
    /// Other orders come. Unless they have the same plan, its layout goes.
    pub(super) fn change(&mut self, from: Option<&Plan>, to: Option<&Plan>) {
        if from == to {
            return;
        }
        let is_other_kind = from.map(|plan| plan.signature) != to.map(|plan| plan.signature);
        let is_short = self.steady_steps < self.patience_steps.saturating_add(LASTING_STEPS);
        if self.lots.is_some() && is_other_kind && is_short {
            let patience_steps = (self.patience_steps * 2).max(PATIENCE_STEPS);
            self.patience_steps = patience_steps.min(PATIENCE_STEPS_MAX);
        }
        *self = Layouts { patience_steps: self.patience_steps, ..Layouts::default() };
    }

    /// Counts a step that ends.
    pub(super) fn end_step(&mut self) -> LaidOut {
        self.steady_steps = self.steady_steps.saturating_add(1);
        self.laid_out_steps = self.laid_out_steps.saturating_add(u32::from(self.lots.is_some()));
        LaidOut(self.laid_out_steps)
    }

    /// Whether this is the time to lay the step out.
    pub(super) fn is_due(&self) -> bool {
        self.lots.is_none() && self.steady_steps == self.patience_steps
    }
}

impl<P: Planner> Session<P> {
    /// Where the blocks of the coming steps lie under a plan; `None` if they are not laid out.
    pub(super) fn lots_of(&mut self, plan: &Plan) -> Option<Vec<Option<Lot>>> {
        let may = self.policy.config().lays_out && self.shared.is_none();
        if may && self.layouts.is_due() {
            self.layouts.lots = self.new_lots(plan);
        }
        self.layouts.lots.clone()
    }

    /// The lots of a plan, if all of them fit.
    fn new_lots(&self, plan: &Plan) -> Option<Vec<Option<Lot>>> {
        let (_, trace) = self.traces.get(&plan.signature)?;
        let layout = match self.policy.layout() {
            Some(layout) => (**layout).clone(),
            None => lay_out(trace, plan),
        };
        tracing::debug!(
            height = layout.height_bytes,
            ratio = layout.ratio(),
            beside = layout.beside_bytes,
            "laid the step out"
        );
        let fits = layout.excess_bytes(self.policy.config().limit_bytes) == 0;
        (layout.height_bytes > 0 && fits).then_some(layout.lots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_in_takes_two_steps_or_until_memory_calls_are_few_but_not_for_ever() {
        let busy = SETTLED_MEMORY_CALLS + 1;
        let judged = |memory_calls: [u64; 8]| -> Vec<bool> {
            let mut layouts = Layouts { lots: Some(Vec::new()), ..Layouts::default() };
            let is_moving_in = |calls| layouts.end_step().is_moving_in(calls);
            memory_calls.map(is_moving_in).iter().map(|moving_in| !moving_in).collect()
        };
        assert_eq!(judged([0; 8]).iter().position(|&is| is), Some(2));
        assert_eq!(judged([busy, busy, busy, 0, 0, 0, 0, 0]).iter().position(|&is| is), Some(3));
        assert_eq!(judged([busy; 8]).iter().position(|&is| is), Some(6));
        assert!(!Layouts::default().end_step().is_moving_in(busy), "it has no layout");
    }
}
