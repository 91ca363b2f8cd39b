//! Layer norm over each row: `out = (x - mean) / deviation * gain + shift`.

use crate::math::{sum, sum_lanes, sum_of_squares_about};

/// Added to the variance, so that a constant row has a finite result.
const EPSILON: f32 = 1e-5;

/// Overwrites `out`, and `stats` with each row's mean and reciprocal deviation.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn forward(out: &mut [f32], stats: &mut [f32], x: &[f32], gain: &[f32], shift: &[f32]) {
    let hidden = gain.len();
    assert_eq!(shift.len(), hidden, "as many shifts as gains");
    assert_eq!(out.len(), x.len(), "the output is as large as the input");
    assert_eq!(stats.len() * hidden, 2 * x.len(), "two statistics for each row");
    let rows = out.chunks_exact_mut(hidden).zip(x.chunks_exact(hidden));
    for ((out, x), stats) in rows.zip(stats.chunks_exact_mut(2)) {
        let mean = sum(x) / hidden as f32;
        let variance = sum_of_squares_about(x, mean) / hidden as f32;
        let reciprocal = 1.0 / (variance + EPSILON).sqrt();
        for (i, value) in out.iter_mut().enumerate() {
            *value = (x[i] - mean) * reciprocal * gain[i] + shift[i];
        }
        stats[0] = mean;
        stats[1] = reciprocal;
    }
}

/// Overwrites `d_x` with the gradient of the input.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn input_gradient(d_x: &mut [f32], d_out: &[f32], x: &[f32], stats: &[f32], gain: &[f32]) {
    let hidden = gain.len();
    assert_eq!(d_x.len(), x.len(), "the gradient is as large as the input");
    assert_eq!(d_out.len(), x.len(), "the output is as large as the input");
    assert_eq!(stats.len() * hidden, 2 * x.len(), "two statistics for each row");
    let rows = d_x.chunks_exact_mut(hidden).zip(d_out.chunks_exact(hidden));
    let inputs = x.chunks_exact(hidden).zip(stats.chunks_exact(2));
    for ((d_x, d_out), (x, stats)) in rows.zip(inputs) {
        let (mean, reciprocal) = (stats[0], stats[1]);
        // First the gradient of the normalised row, and the normalised row's share in it.
        for (i, value) in d_x.iter_mut().enumerate() {
            *value = d_out[i] * gain[i];
        }
        let average = sum(d_x) / hidden as f32;
        let along_x = sum_lanes(hidden, |i| d_x[i] * (x[i] - mean));
        let share = along_x * reciprocal / hidden as f32;
        for (i, value) in d_x.iter_mut().enumerate() {
            let normalised = (x[i] - mean) * reciprocal;
            *value = (*value - average - normalised * share) * reciprocal;
        }
    }
}

/// Overwrites `d_gain` and `d_shift`, summed over all rows.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn parameter_gradient(
    d_gain: &mut [f32],
    d_shift: &mut [f32],
    d_out: &[f32],
    x: &[f32],
    stats: &[f32],
) {
    let hidden = d_gain.len();
    assert_eq!(d_shift.len(), hidden, "as many shifts as gains");
    assert_eq!(d_out.len(), x.len(), "the output is as large as the input");
    assert_eq!(stats.len() * hidden, 2 * x.len(), "two statistics for each row");
    d_gain.fill(0.0);
    d_shift.fill(0.0);
    let rows = d_out.chunks_exact(hidden).zip(x.chunks_exact(hidden));
    for ((d_out, x), stats) in rows.zip(stats.chunks_exact(2)) {
        for i in 0..hidden {
            d_gain[i] += d_out[i] * (x[i] - stats[0]) * stats[1];
            d_shift[i] += d_out[i];
        }
    }
}
