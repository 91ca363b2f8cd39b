//! Element by element: GELU, sums, and filling.

use crate::math::exp;

/// `sqrt(8 / pi)`: twice the factor inside GELU's hyperbolic tangent.
const SLOPE: f32 = 1.595_769;
/// The cubic coefficient inside it.
const CUBIC: f32 = 0.044_715;

/// The factor that GELU gives to `x`. `(1 + tanh(y)) / 2` is the logistic function of `2 y`.
#[inline]
fn gate(x: f32) -> f32 {
    1.0 / (1.0 + exp(-(SLOPE * x * (1.0 + CUBIC * x * x))))
}

/// Overwrites `out` with GELU of `x`, in its tanh form.
///
/// # Panics
/// If the lengths differ.
pub fn gelu(out: &mut [f32], x: &[f32]) {
    assert_eq!(out.len(), x.len(), "the output is as large as the input");
    for (out, &x) in out.iter_mut().zip(x) {
        *out = x * gate(x);
    }
}

/// Overwrites `d_x` with the gradient of GELU's input.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_gradient(d_x: &mut [f32], d_out: &[f32], x: &[f32]) {
    assert_eq!(d_x.len(), x.len(), "the gradient is as large as the input");
    assert_eq!(d_out.len(), x.len(), "the output is as large as the input");
    for ((d_x, &d_out), &x) in d_x.iter_mut().zip(d_out).zip(x) {
        let gate = gate(x);
        let slope = SLOPE * (1.0 + 3.0 * CUBIC * x * x);
        *d_x = d_out * gate * (1.0 + x * (1.0 - gate) * slope);
    }
}

/// Overwrites `out` with `a + b`.
///
/// # Panics
/// If the lengths differ.
pub fn add(out: &mut [f32], a: &[f32], b: &[f32]) {
    assert_eq!(out.len(), a.len(), "the sum is as large as its terms");
    assert_eq!(out.len(), b.len(), "the sum is as large as its terms");
    for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
        *out = a + b;
    }
}

/// Accumulates `scale * x`.
///
/// # Panics
/// If the lengths differ.
pub fn add_scaled(out: &mut [f32], x: &[f32], scale: f32) {
    assert_eq!(out.len(), x.len(), "the target is as large as the term");
    for (out, x) in out.iter_mut().zip(x) {
        *out += scale * x;
    }
}
