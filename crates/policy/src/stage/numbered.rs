//! What a step runs under, told apart from other such.

use std::sync::Arc;

use swap_core::{Plan, Trace};

use super::Loop;
use super::families::Sizes;
use crate::generate::Generated;
use crate::layout::Layout;
use crate::search::{Planner, fingerprint};

/// A plan, or none, with the number that tells it from others.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberedPlan {
    pub(super) print: u64,
    pub(super) plan: Option<Arc<Plan>>,
    /// The recorded step that it was made for, unless it came from elsewhere.
    pub(super) trace: Option<Arc<Trace>>,
    /// What its planner knows of it.
    pub(super) made: Option<Arc<Generated>>,
    /// Where its blocks lie, if its planner laid it out.
    pub(super) layout: Option<Arc<Layout>>,
    /// Whether there will be a better one soon.
    pub(super) is_sketch: bool,
    /// What other sizes run under, if it is for those too.
    pub(super) sizes: Option<Arc<Sizes>>,
}

impl NumberedPlan {
    pub(crate) fn of(plan: Arc<Plan>) -> NumberedPlan {
        let print = fingerprint(&plan);
        NumberedPlan { print, plan: Some(plan), ..NumberedPlan::default() }
    }

    pub(super) fn made_for(trace: &Arc<Trace>, plan: Plan) -> NumberedPlan {
        NumberedPlan { trace: Some(Arc::clone(trace)), ..NumberedPlan::of(Arc::new(plan)) }
    }

    /// Whether it moves nothing, and only says where all lies.
    pub(super) fn only_lays_out(&self) -> bool {
        self.layout.is_some() && self.plan.as_ref().is_some_and(|plan| plan.actions.is_empty())
    }
}

/// What the last directive orders.
impl<P: Planner> Loop<P> {
    /// What its planner knows of the plan that the last directive orders, if it said.
    pub fn made(&self) -> Option<&Arc<Generated>> {
        self.running.made.as_ref()
    }

    /// The recorded step that it was made for, unless it came from elsewhere.
    pub fn trace(&self) -> Option<&Arc<Trace>> {
        self.running.trace.as_ref()
    }

    /// Where the blocks of that plan lie, if its planner said.
    pub(crate) fn layout(&self) -> Option<&Arc<Layout>> {
        self.running.layout.as_ref()
    }

    /// Whether there will soon be a better plan than the one that the last directive orders.
    pub(crate) fn has_sketch(&self) -> bool {
        self.running.is_sketch
    }
}
