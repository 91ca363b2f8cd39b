//! The object that `--json` prints.

use serde::Serialize;

use super::run::{Mode, Run};
use super::summary::Figures;

/// The run in figures. Bytes and counts per step are medians over the Stable steps, and misses
/// and rescues are those of all Stable steps together; a run that never became Stable gives the
/// figures of all its steps instead.
#[derive(Serialize)]
struct Object {
    mode_by_step: Vec<&'static str>,
    /// `null` where unknown. Printed so that reading it back as f32 gives the same bits.
    losses: Vec<Option<f32>>,
    /// `null` when not compared.
    bit_identical: Option<bool>,
    memory_limit_bytes: u64,
    peak_device_bytes: u64,
    peak_uncapped_bytes: Option<u64>,
    swapped_out_bytes_per_step: u64,
    swapped_in_bytes_per_step: u64,
    recomputed_ops_per_step: u64,
    misses: u64,
    rescues: u64,
    step_ms: StepMs,
    step_ms_uncapped: Option<f64>,
}

/// Median wall time of the steps of each mode, in milliseconds; `null` without steps.
#[derive(Serialize)]
struct StepMs {
    #[serde(rename = "WarmUp")]
    warm_up: Option<f64>,
    #[serde(rename = "SearchPolicy")]
    search_policy: Option<f64>,
    #[serde(rename = "Stable")]
    stable: Option<f64>,
}

/// The object's text, on several lines, without a line break at its end.
///
/// # Errors
///
/// When the text cannot be made.
pub(crate) fn text(run: &Run) -> serde_json::Result<String> {
    let typical = Figures::typical(run);
    let step_ms = |mode| Figures::of_mode(run, mode).step_us.map(|us| us / 1e3);
    serde_json::to_string_pretty(&Object {
        mode_by_step: run.steps.iter().map(|step| step.mode.name()).collect(),
        losses: run.steps.iter().map(|step| step.loss).collect(),
        bit_identical: run.bit_identical,
        memory_limit_bytes: run.memory_limit_bytes,
        peak_device_bytes: run.peak_device_bytes,
        peak_uncapped_bytes: run.peak_uncapped_bytes,
        swapped_out_bytes_per_step: typical.swapped_out_bytes,
        swapped_in_bytes_per_step: typical.swapped_in_bytes,
        recomputed_ops_per_step: typical.recomputed_ops,
        misses: typical.misses,
        rescues: typical.rescues,
        step_ms: StepMs {
            warm_up: step_ms(Mode::WarmUp),
            search_policy: step_ms(Mode::SearchPolicy),
            stable: step_ms(Mode::Stable),
        },
        step_ms_uncapped: run.step_us_uncapped.map(|us| us / 1e3),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::text;
    use crate::report::sample;

    #[test]
    fn the_object_has_exactly_its_fields_and_golden_figures() {
        let run = sample::swapping();
        let mut value: Value = serde_json::from_str(&text(&run).unwrap()).unwrap();
        let fields = value.as_object_mut().unwrap();
        let modes = fields.remove("mode_by_step").unwrap();
        assert_eq!(modes.as_array().unwrap().len(), 24);
        assert_eq!(
            (&modes[0], &modes[3], &modes[23]),
            (&json!("WarmUp"), &json!("SearchPolicy"), &json!("Stable"))
        );
        let losses = fields.remove("losses").unwrap();
        for (step, loss) in run.steps.iter().zip(losses.as_array().unwrap()) {
            let read = loss.as_f64().unwrap() as f32;
            assert_eq!(read.to_bits(), step.loss.unwrap().to_bits());
        }
        assert_eq!(
            value,
            json!({
                "bit_identical": true,
                "memory_limit_bytes": 450_887_680,
                "peak_device_bytes": 432_013_312,
                "peak_uncapped_bytes": 900_726_784,
                "swapped_out_bytes_per_step": 214_958_080,
                "swapped_in_bytes_per_step": 214_958_080,
                "recomputed_ops_per_step": 12,
                "misses": 0,
                "rescues": 0,
                "step_ms": { "WarmUp": 131.0, "SearchPolicy": 97.6, "Stable": 84.2 },
                "step_ms_uncapped": 79.4,
            })
        );
    }

    #[test]
    fn unknown_figures_are_null() {
        let mut run = sample::swapping();
        run.bit_identical = None;
        run.peak_uncapped_bytes = None;
        run.step_us_uncapped = None;
        run.steps.truncate(1);
        run.steps[0].loss = Some(f32::NAN);
        run.steps[0].step_us = f64::INFINITY;
        let value: Value = serde_json::from_str(&text(&run).unwrap()).unwrap();
        for field in ["bit_identical", "peak_uncapped_bytes", "step_ms_uncapped"] {
            assert!(value[field].is_null(), "{field}");
        }
        assert_eq!(value["losses"], json!([null]));
        assert!(value["step_ms"].as_object().unwrap().values().all(Value::is_null));
        assert_eq!(value["rescues"], 10);
    }
}
