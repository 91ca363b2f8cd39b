//! What other caps would cost, as JSON.

use std::sync::Arc;

use adaptive::{CapCost, cap_costs};
use serde_json::{Value, json};

use crate::context::Context;
use crate::failure::Failure;

/// What the step that reports show would take under other caps. Plans for each, which takes
/// seconds for large steps; training on other threads goes on meanwhile.
pub(crate) fn advise(context: &Context) -> Result<Value, Failure> {
    let config = &context.settings.planning;
    let (trace, machine, measured) = {
        let course = context.course();
        let none = || Failure::usage("no step has been recorded yet: run a few steps first");
        let shown = course.shown.as_ref().ok_or_else(none)?;
        let machine = course.with_link(context.settings.machine);
        (Arc::clone(&shown.trace), machine, shown.measured())
    };
    let costs = cap_costs(&trace, &machine, config);
    let cap = |cap: &CapCost| {
        json!({
            "limit_bytes": cap.limit_bytes,
            "step_us": cap.step_us,
            "out_bytes": cap.out_bytes,
            "in_bytes": cap.in_bytes,
            "recomputed_us": cap.recomputed_us,
            "burden": cap.burden.name(),
        })
    };
    Ok(json!({
        "limit_bytes": machine.limit_bytes,
        "peak_bytes": costs.peak_bytes,
        "unlimited_us": costs.unlimited_us,
        "measured_us": measured.map(|measured| measured.step_us),
        "caps": costs.caps.iter().map(cap).collect::<Vec<_>>(),
    }))
}
