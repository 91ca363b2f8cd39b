//! Layer normalisation.

use super::Operator;
use super::call::{Call, Output};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "LayerNorm" => forward,
        "LayerNormGrad" => backward,
        _ => return None,
    })
}

fn mean_of(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

/// The result, and of each row the mean and the variance. The backward operator is not told what
/// is added to the variance, so the variance holds it already.
fn forward(call: &Call) -> Outcome<Vec<Output>> {
    let ((dims, x), (_, gain), (_, shift)) = (call.floats(0)?, call.floats(1)?, call.floats(2)?);
    let epsilon = f64::from(call.float("epsilon")?);
    let axis = shape::axis(call.int("begin_norm_axis")?, dims.len())?;
    let width = shape::count(&dims[axis..]);
    if gain.len() != width || shift.len() != width {
        return call.refuse(format!("gain and shift are not of {width} elements"));
    }
    let (mut result, mut means, mut variances) = (Vec::new(), Vec::new(), Vec::new());
    for row in x.chunks(width) {
        let mean = mean_of(row.iter().map(|&x| f64::from(x)));
        let variance = mean_of(row.iter().map(|&x| (f64::from(x) - mean).powi(2))) + epsilon;
        let scale = variance.sqrt().recip();
        let places = row.iter().zip(&gain).zip(&shift);
        result.extend(places.map(|((&x, &gain), &shift)| {
            ((f64::from(x) - mean) * scale * f64::from(gain) + f64::from(shift)) as f32
        }));
        means.push(mean as f32);
        variances.push(variance as f32);
    }
    Ok([result, means, variances].map(|values| Output::Whole(Values::Floats(values))).into())
}

/// The gradients of the input, the gain and the shift.
fn backward(call: &Call) -> Outcome<Vec<Output>> {
    let ((_, grad), (_, x)) = (call.floats(0)?, call.floats(1)?);
    let ((_, variances), (_, means)) = (call.floats(2)?, call.floats(3)?);
    let (_, gain) = call.floats(4)?;
    let width = gain.len();
    if grad.len() != x.len() || x.len() != means.len() * width || means.len() != variances.len() {
        return call.refuse("the inputs do not fit");
    }
    let mut of_x = Vec::with_capacity(x.len());
    let (mut of_gain, mut of_shift) = (vec![0.0_f64; width], vec![0.0_f64; width]);
    let statistics = means.iter().zip(&variances);
    for ((x, grad), (&mean, &variance)) in x.chunks(width).zip(grad.chunks(width)).zip(statistics) {
        let scale = f64::from(variance).sqrt().recip();
        let normal: Vec<f64> =
            x.iter().map(|&x| (f64::from(x) - f64::from(mean)) * scale).collect();
        let grad: Vec<f64> = grad.iter().map(|&grad| f64::from(grad)).collect();
        for at in 0..width {
            of_gain[at] += grad[at] * normal[at];
            of_shift[at] += grad[at];
        }
        let inner: Vec<f64> =
            grad.iter().zip(&gain).map(|(g, &gain)| g * f64::from(gain)).collect();
        let mean_inner = mean_of(inner.iter().copied());
        let mean_along = mean_of((0..width).map(|at| inner[at] * normal[at]));
        let slope = |at: usize| scale * (inner[at] - mean_inner - normal[at] * mean_along);
        of_x.extend((0..width).map(|at| slope(at) as f32));
    }
    let rounded = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect();
    let outputs = [of_x, rounded(of_gain), rounded(of_shift)];
    Ok(outputs.map(|values| Output::Whole(Values::Floats(values))).into())
}
