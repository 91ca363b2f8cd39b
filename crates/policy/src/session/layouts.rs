//! When the blocks of a step get lots: once its plan has run undisturbed for a while.

use super::*;
use crate::layout::lay_out;

/// So many Stable steps go by before the first layout: moving in costs the calls of many steps.
const PATIENCE_STEPS: u32 = 3;

/// Patience doubles where a layout did not last so long.
const LASTING_STEPS: u32 = 8;

/// It never grows beyond this.
const PATIENCE_STEPS_MAX: u32 = 4096;

/// The first steps with a layout map it, which says nothing about its plan.
const MOVING_IN_STEPS: u32 = 2;

/// How long a plan has been running, and with which layout.
#[derive(Debug)]
pub(super) struct Layouts {
    patience_steps: u32,
    /// Steps under the present directive.
    steady_steps: u32,
    is_laid_out: bool,
    /// Steps whose reports are not judged.
    moving_in_steps: u32,
}

impl Default for Layouts {
    fn default() -> Layouts {
        Layouts {
            patience_steps: PATIENCE_STEPS,
            steady_steps: 0,
            is_laid_out: false,
            moving_in_steps: 0,
        }
    }
}

impl Layouts {
    /// The orders change, and the layout goes with them.
    pub(super) fn leave(&mut self) {
        let is_short = self.steady_steps < self.patience_steps.saturating_add(LASTING_STEPS);
        if self.is_laid_out && is_short {
            self.patience_steps = (self.patience_steps * 2).min(PATIENCE_STEPS_MAX);
        }
        *self = Layouts { patience_steps: self.patience_steps, ..Layouts::default() };
    }

    /// Whether the step that ends now is to be judged.
    pub(super) fn end_step(&mut self) -> bool {
        self.steady_steps = self.steady_steps.saturating_add(1);
        let was_moving_in = self.moving_in_steps > 0;
        self.moving_in_steps = self.moving_in_steps.saturating_sub(1);
        !was_moving_in
    }

    fn is_due(&self) -> bool {
        !self.is_laid_out && self.steady_steps == self.patience_steps
    }
}

impl<P: Planner> Session<P> {
    /// Lays the step out, if its plan has lasted and all of it fits.
    pub(super) fn lay_out_if_due(&mut self) -> Result<(), Error> {
        let may = self.policy.config().lays_out && self.shared.is_none();
        if !may || self.current.stage != Stage::Stable || !self.layouts.is_due() {
            return Ok(());
        }
        if self.engine.is_inside_step()? {
            return Ok(());
        }
        let Some(plan) = &self.current.plan else { return Ok(()) };
        let Some((_, trace)) = self.traces.get(&plan.signature) else { return Ok(()) };
        let layout = lay_out(trace, plan);
        let limit_bytes = self.policy.config().limit_bytes;
        tracing::debug!(
            height = layout.height_bytes,
            ratio = layout.ratio(),
            beside = layout.beside_bytes,
            "laid the step out"
        );
        if layout.height_bytes == 0 || layout.excess_bytes(limit_bytes) > 0 {
            return Ok(());
        }
        let orders = Orders::with_trace(plan, trace).with_lots(layout.lots);
        self.engine.set_orders(self.current.record, Some(Arc::new(orders)))?;
        self.layouts.is_laid_out = true;
        self.layouts.moving_in_steps = MOVING_IN_STEPS;
        Ok(())
    }
}
