//! What other caps, and updates that wait, would cost, as JSON.

use std::sync::Arc;

use adaptive::{CapCosts, Machine, Trace, cap_costs, deferral_cost};
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;

/// What the step that reports show would take under other caps, and with more micro-batches. Plans
/// for each, which takes seconds for large steps; training on other threads goes on meanwhile.
pub(crate) fn advise(context: &Context) -> Result<Value, Failure> {
    let (trace, machine, measured_us) = shown(context)?;
    let costs = cap_costs(&trace, &machine, &context.settings.planning);
    Ok(json!(CapCosts { measured_us, ..costs }))
}

/// What that step would take if the optimizer's updates waited, and as it is: `null` where none
/// could wait. Two plans, as above.
pub(crate) fn deferral(context: &Context) -> Result<Value, Failure> {
    let (trace, machine, _) = shown(context)?;
    Ok(json!(deferral_cost(&trace, &machine, &context.settings.planning)))
}

/// The step that reports show, the machine that it runs on, and its measured time in microseconds.
fn shown(context: &Context) -> Result<(Arc<Trace>, Machine, Option<f64>), Failure> {
    let course = context.course();
    let none = || Failure::usage("no step has been recorded yet: run a few steps first");
    let shown = course.shown.as_ref().ok_or_else(none)?;
    let measured_us = shown.measured().map(|measured| measured.step_us);
    Ok((shown.trace(), course.with_link(context.settings.machine), measured_us))
}
