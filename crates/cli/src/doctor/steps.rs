//! What `doctor --device` tries on a device beyond measuring it.

use std::sync::Arc;

use adaptive::devices::{CheckedStep, check_device};
use adaptive::{DeviceName, Driver};
use serde::Serialize;

use crate::args::StressArgs;
use crate::open::Accelerator;
use crate::stress;

/// Memory that a step works on.
const PIECE_BYTES: u64 = 16 << 20;

/// One thing that was tried.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) passed: bool,
    /// What was seen, or what went wrong.
    pub(super) detail: String,
}

impl From<CheckedStep> for Step {
    fn from(CheckedStep { name, outcome }: CheckedStep) -> Step {
        let passed = outcome.is_ok();
        Step { name, passed, detail: outcome.unwrap_or_else(|text| text) }
    }
}

/// Tries all that swapping asks of a device.
pub(super) fn run(
    name: DeviceName,
    driver: &Arc<dyn Driver>,
    accelerator: Option<&Accelerator>,
) -> Vec<Step> {
    let piece_bytes = PIECE_BYTES.next_multiple_of(driver.properties().granularity_bytes);
    let mut steps: Vec<Step> =
        check_device(driver, piece_bytes).into_iter().map(Step::from).collect();
    let outcome = swap(name, accelerator, piece_bytes);
    steps.push(CheckedStep { name: "more data than fits is swapped", outcome }.into());
    steps
}

/// Moves data through the engine, and compares it.
fn swap(
    device: DeviceName,
    accelerator: Option<&Accelerator>,
    block: u64,
) -> Result<String, String> {
    let args =
        StressArgs { device, data: 16 * block, memory: 4 * block, block, rounds: 1, json: false };
    let stress = stress::examine(&args, accelerator).map_err(|error| format!("{error:#}"))?;
    stress.fault().map_or_else(|| Ok(stress.outcome()), Err)
}
