//! The figures of a whole run: medians per mode, totals, and the headline in words.

use super::run::{Mode, Run, Step};
use super::units;

/// Figures of the steps of one mode.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(super) struct Figures {
    /// Number of steps.
    pub(super) steps: u64,
    /// Median wall time, in microseconds; `None` without steps.
    pub(super) step_us: Option<f64>,
    /// Median bytes copied out in a step.
    pub(super) swapped_out_bytes: u64,
    /// Median bytes copied in in a step.
    pub(super) swapped_in_bytes: u64,
    /// Median ops recomputed in a step.
    pub(super) recomputed_ops: u64,
    /// Median time that compute waited in a step, in microseconds.
    pub(super) stall_us: f64,
    /// All misses.
    pub(super) misses: u64,
    /// All rescues.
    pub(super) rescues: u64,
    /// The most bytes held in any of the steps.
    pub(super) held_bytes_peak: u64,
}

impl Figures {
    /// Figures of the steps that `wanted` picks.
    fn of(run: &Run, wanted: impl Fn(&Step) -> bool) -> Figures {
        let steps: Vec<&Step> = run.steps.iter().filter(|step| wanted(step)).collect();
        let count = |pick: fn(&Step) -> u64| median_count(steps.iter().map(|step| pick(step)));
        Figures {
            steps: steps.len() as u64,
            step_us: median(steps.iter().map(|step| step.step_us)),
            swapped_out_bytes: count(|step| step.swapped_out_bytes),
            swapped_in_bytes: count(|step| step.swapped_in_bytes),
            recomputed_ops: count(|step| step.recomputed_ops),
            stall_us: median(steps.iter().map(|step| step.stall_us)).unwrap_or(0.0),
            misses: steps.iter().map(|step| step.misses).sum(),
            rescues: steps.iter().map(|step| step.rescues).sum(),
            held_bytes_peak: steps.iter().map(|step| step.held_bytes_peak).max().unwrap_or(0),
        }
    }

    /// Figures of one mode.
    pub(super) fn of_mode(run: &Run, mode: Mode) -> Figures {
        Figures::of(run, |step| step.mode == mode)
    }

    /// Figures of the Stable steps, or of all steps when the run never became Stable: what a
    /// longer run would go on doing.
    pub(super) fn typical(run: &Run) -> Figures {
        let stable = is_stable(run);
        Figures::of(run, |step| !stable || step.mode == Mode::Stable)
    }
}

/// Whether the run reached the Stable mode.
pub(super) fn is_stable(run: &Run) -> bool {
    run.steps.iter().any(|step| step.mode == Mode::Stable)
}

/// Median of the finite values; the mean of the middle two when their number is even.
pub(super) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    Some(f64::midpoint(sorted[(sorted.len() - 1) / 2], upper))
}

/// Lower median: always one of the values, and 0 of none.
fn median_count(values: impl Iterator<Item = u64>) -> u64 {
    let mut sorted: Vec<u64> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0)
}

/// How many times longer a settled step takes than an uncapped one, when both are known.
pub(super) fn slowdown(run: &Run) -> Option<f64> {
    let ratio = Figures::typical(run).step_us? / run.step_us_uncapped?;
    ratio.is_finite().then_some(ratio)
}

/// Whether the run took noticeably less memory than without a cap.
pub(super) fn is_smaller(run: &Run) -> bool {
    // Half a per cent is less than any figure shown.
    run.peak_uncapped_bytes
        .is_some_and(|bytes| (run.peak_device_bytes as f64) < bytes as f64 * 0.995)
}

/// The run in one sentence.
pub(super) fn headline(run: &Run) -> String {
    let peak = run.peak_device_bytes as f64;
    let memory = match run.peak_uncapped_bytes {
        Some(uncapped) if is_smaller(run) => {
            format!("Trained in {} of the memory", units::percent(peak, uncapped as f64))
        }
        Some(_) => "The model fits under its cap: trained in its full memory".to_owned(),
        None => format!("Trained in {}", units::bytes(run.peak_device_bytes)),
    };
    let time = match (slowdown(run), Figures::typical(run).step_us) {
        (Some(ratio), _) => format!(" at {ratio:.2}x the time"),
        (None, Some(step_us)) => format!(" at {} a step", units::time(step_us)),
        (None, None) => String::new(),
    };
    let losses = match run.bit_identical {
        Some(true) => "; losses and weights identical bit for bit",
        Some(false) => "; LOSSES DIFFER from the uncapped run",
        None => "",
    };
    format!("{memory}{time}{losses}.")
}

#[cfg(test)]
mod tests {
    use super::{Figures, headline, median, median_count, slowdown};
    use crate::report::run::Mode;
    use crate::report::sample;

    #[test]
    fn medians_of_few_and_of_odd_values() {
        assert_eq!(median([].into_iter()), None);
        assert_eq!(median([f64::NAN].into_iter()), None);
        assert_eq!(median([3.0, f64::NAN, 1.0].into_iter()), Some(2.0));
        assert_eq!(median([9.0, 1.0, 2.0].into_iter()), Some(2.0));
        assert_eq!(median_count([].into_iter()), 0);
        assert_eq!(median_count([4, 1].into_iter()), 1);
        assert_eq!(median_count([4, 1, 9].into_iter()), 4);
    }

    #[test]
    fn typical_figures_are_those_of_stable_steps() {
        let run = sample::swapping();
        assert_eq!(Figures::typical(&run), Figures::of_mode(&run, Mode::Stable));
        assert_eq!(Figures::typical(&run).rescues, 0);
        assert!(Figures::of_mode(&run, Mode::WarmUp).rescues > 0);
        let mut short = run;
        short.steps.truncate(2);
        assert_eq!(Figures::typical(&short).steps, 2);
    }

    #[test]
    fn the_headline_says_what_is_known_and_no_more() {
        let mut run = sample::swapping();
        assert_eq!(
            headline(&run),
            "Trained in 48 % of the memory at 1.06x the time; \
             losses and weights identical bit for bit."
        );
        run.bit_identical = Some(false);
        assert!(headline(&run).ends_with("LOSSES DIFFER from the uncapped run."));
        run.bit_identical = None;
        run.step_us_uncapped = Some(0.0);
        assert_eq!(slowdown(&run), None);
        run.peak_uncapped_bytes = None;
        run.steps.clear();
        assert_eq!(headline(&run), "Trained in 412 MiB.");
        run.peak_uncapped_bytes = Some(run.peak_device_bytes);
        assert_eq!(headline(&run), "The model fits under its cap: trained in its full memory.");
    }
}
