//! When the blocks of a step get lots: as soon as it has a plan, unless kinds of steps take turns.

use std::sync::Arc;

use swap_core::{Plan, Signature};

use super::Session;
use crate::layout::{Layout, lay_out};
use crate::machine::Machine;
use crate::search::Planner;
use crate::stage::Directive;

/// Steps of a kind go by before it is laid out, once a layout had to go for another kind's sake:
/// moving in costs the calls of many steps.
const PATIENCE_STEPS: u32 = 3;

/// Patience doubles where a layout did not last so long.
const LASTING_STEPS: u32 = 8;

/// It never grows beyond this.
const PATIENCE_STEPS_MAX: u32 = 4096;

/// A sketch is laid out if there is no better plan after so many steps.
const SKETCH_STEPS: u32 = 8;

/// The first steps with a layout map it, which says nothing about its plan: one finds blocks
/// elsewhere, and those behind it map what each turn has of it.
fn moving_in_steps(layout: &Layout) -> u32 {
    1 + layout.turns.len() as u32
}

/// How long a plan has been running, and with which layout.
#[derive(Debug, Default)]
pub(super) struct Layouts {
    patience_steps: u32,
    /// Steps under the present plan.
    steady_steps: u32,
    /// Of the present plan, if it is laid out.
    layout: Option<Arc<Layout>>,
    /// Whether the present plan's layout was asked for.
    is_decided: bool,
    /// Steps whose reports are not judged.
    moving_in_steps: u32,
}

impl Layouts {
    /// Other orders come. Unless they have the same plan, its layout goes.
    pub(super) fn change(&mut self, from: &Directive, to: &Directive) {
        if from.plan == to.plan {
            return;
        }
        let is_other_kind = kind_of(from) != kind_of(to);
        let is_short = self.steady_steps < self.patience_steps.saturating_add(LASTING_STEPS);
        if self.layout.is_some() && is_other_kind && is_short {
            let patience_steps = (self.patience_steps * 2).max(PATIENCE_STEPS);
            self.patience_steps = patience_steps.min(PATIENCE_STEPS_MAX);
        }
        *self = self.afresh();
    }

    /// As before the first step under a plan.
    pub(super) fn afresh(&self) -> Layouts {
        Layouts { patience_steps: self.patience_steps, ..Layouts::default() }
    }

    /// Counts a step that ends. Says whether it was spent on moving in.
    pub(super) fn end_step(&mut self) -> bool {
        self.steady_steps = self.steady_steps.saturating_add(1);
        let was_moving_in = self.moving_in_steps > 0;
        self.moving_in_steps = self.moving_in_steps.saturating_sub(1);
        was_moving_in
    }

    /// Whether the present plan is laid out.
    pub(super) fn are_in_use(&self) -> bool {
        self.layout.is_some()
    }

    /// Whether the step that begins maps a layout.
    pub(super) fn is_moving_in(&self) -> bool {
        self.moving_in_steps > 0
    }

    /// Whether the step that begins is one of those that unmap what is away: one in so many. Those
    /// behind it map it again, so none of them says anything about the plan.
    pub(super) fn unmaps(&mut self, every_steps: u32) -> bool {
        let is_time = self.steady_steps.checked_rem(every_steps) == Some(0);
        let layout = self.layout.as_deref().filter(|_| is_time && !self.is_moving_in());
        self.moving_in_steps = layout.map_or(self.moving_in_steps, moving_in_steps);
        layout.is_some()
    }

    /// Whether this is the time to lay the step out.
    pub(super) fn is_due(&self, has_sketch: bool) -> bool {
        let sketch_steps = if has_sketch { SKETCH_STEPS } else { 0 };
        !self.is_decided && self.steady_steps >= self.patience_steps.max(sketch_steps)
    }
}

/// The kind of step that a directive is for, if it has a plan.
fn kind_of(directive: &Directive) -> Option<Signature> {
    let of_plan = || directive.plan.as_ref().map(|plan| plan.signature);
    directive.sizes.as_ref().map(|sizes| sizes.kind()).or_else(of_plan)
}

impl<P: Planner> Session<P> {
    /// Whether this is the time to lay the step out, if that is wished for.
    pub(super) fn is_layout_due(&self) -> bool {
        self.policy.config().lays_out && self.layouts.is_due(self.policy.has_sketch())
    }

    /// Where the blocks of the coming steps lie under a plan; `None` if they are not laid out.
    pub(super) fn laid_out(&mut self, plan: &Plan) -> Option<Arc<Layout>> {
        if self.is_layout_due() {
            let layout = self.layout_of(plan);
            let limit_bytes = self.policy.config().limit_bytes;
            let useful = layout.filter(|layout| layout.is_useful(limit_bytes));
            let layouts = &mut self.layouts;
            layouts.is_decided = true;
            layouts.moving_in_steps = useful.as_deref().map_or(0, moving_in_steps);
            layouts.layout = useful;
        }
        self.layouts.layout.clone()
    }

    /// The layout of a plan, as its planner made it or made now.
    fn layout_of(&mut self, plan: &Plan) -> Option<Arc<Layout>> {
        let trace = self.step_of(plan).filter(|trace| plan.knows(trace))?;
        let layout = match self.policy.layout() {
            Some(layout) => Arc::clone(layout),
            None => {
                let limit_bytes = self.policy.config().limit_bytes;
                let machine = Machine::of_loop(limit_bytes, self.policy.planner().link());
                Arc::new(lay_out(trace, plan, &machine))
            }
        };
        self.policy.laid_out(plan, &layout);
        Some(layout)
    }
}
