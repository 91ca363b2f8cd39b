//! Cross entropy of logits against target tokens, averaged over rows.

use crate::math::{exp, max, sum_lanes};

/// The mean cross entropy over all rows.
///
/// # Panics
/// If there is not one row of `vocab` logits for each target, or a target is not below `vocab`.
pub fn cross_entropy(logits: &[f32], targets: &[u32], vocab: usize) -> f32 {
    assert_eq!(logits.len(), targets.len() * vocab, "one row of logits for each target");
    let total: f64 = logits
        .chunks_exact(vocab)
        .zip(targets)
        .map(|(row, &target)| {
            let (top, sum) = top_and_sum(row);
            f64::from(sum.ln() + top - row[target as usize])
        })
        .sum();
    (total / targets.len() as f64) as f32
}

/// Overwrites `d_logits` with the gradient of the mean cross entropy.
///
/// # Panics
/// As for [`cross_entropy`], or if `d_logits` is not as large as `logits`.
pub fn cross_entropy_gradient(d_logits: &mut [f32], logits: &[f32], targets: &[u32], vocab: usize) {
    assert_eq!(logits.len(), targets.len() * vocab, "one row of logits for each target");
    assert_eq!(d_logits.len(), logits.len(), "a gradient for each logit");
    let share = 1.0 / targets.len() as f32;
    let rows = d_logits.chunks_exact_mut(vocab).zip(logits.chunks_exact(vocab));
    for ((d_row, row), &target) in rows.zip(targets) {
        let (top, sum) = top_and_sum(row);
        let factor = share / sum;
        for (d_logit, &logit) in d_row.iter_mut().zip(row) {
            *d_logit = exp(logit - top) * factor;
        }
        d_row[target as usize] -= share;
    }
}

/// The largest logit, and the sum of `e^(logit - largest)`.
fn top_and_sum(row: &[f32]) -> (f32, f32) {
    let top = max(row);
    (top, sum_lanes(row.len(), |i| exp(row[i] - top)))
}
