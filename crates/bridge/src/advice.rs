//! What other caps would cost, as JSON.

use adaptive::{CapCosts, cap_costs};
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;

/// What the step that reports show would take under other caps, and with more micro-batches. Plans
/// for each, which takes seconds for large steps; training on other threads goes on meanwhile.
pub(crate) fn advise(context: &Context) -> Result<Value, Failure> {
    let config = &context.settings.planning;
    let (trace, machine, measured) = {
        let course = context.course();
        let none = || Failure::usage("no step has been recorded yet: run a few steps first");
        let shown = course.shown.as_ref().ok_or_else(none)?;
        let machine = course.with_link(context.settings.machine);
        (shown.trace(), machine, shown.measured())
    };
    let measured_us = measured.map(|measured| measured.step_us);
    Ok(json!(CapCosts { measured_us, ..cap_costs(&trace, &machine, config) }))
}
