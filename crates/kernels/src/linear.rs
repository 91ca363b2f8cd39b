//! Linear layers: `out = x * weight^T + bias`, with one row of `weight` for each output.

use crate::matmul::{Matrix, MatrixMut, Onto, matmul};

/// Overwrites `out` (rows of outputs) from `x` (rows of `inputs`).
///
/// # Panics
/// If the lengths do not fit each other.
pub fn forward(out: &mut [f32], x: &[f32], weight: &[f32], bias: Option<&[f32]>, inputs: usize) {
    let outputs = weight.len() / inputs;
    let onto = match bias {
        None => Onto::Overwrite,
        Some(bias) => {
            assert_eq!(bias.len(), outputs, "one bias for each output");
            for row in out.chunks_exact_mut(outputs) {
                row.copy_from_slice(bias);
            }
            Onto::Accumulate
        }
    };
    let weight = Matrix::new(weight, inputs);
    matmul(MatrixMut::new(out, outputs), Matrix::new(x, inputs), weight.transposed(), 1.0, onto);
}

/// Overwrites `d_x` with the gradient of the layer's input.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn input_gradient(d_x: &mut [f32], d_out: &[f32], weight: &[f32], inputs: usize) {
    let outputs = weight.len() / inputs;
    matmul(
        MatrixMut::new(d_x, inputs),
        Matrix::new(d_out, outputs),
        Matrix::new(weight, inputs),
        1.0,
        Onto::Overwrite,
    );
}

/// Overwrites `d_weight` with the gradient of the layer's weight.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn weight_gradient(d_weight: &mut [f32], d_out: &[f32], x: &[f32], inputs: usize) {
    let outputs = d_weight.len() / inputs;
    matmul(
        MatrixMut::new(d_weight, inputs),
        Matrix::new(d_out, outputs).transposed(),
        Matrix::new(x, inputs),
        1.0,
        Onto::Overwrite,
    );
}

/// Overwrites `d_bias` with the gradient of the layer's bias: the sum of all rows of `d_out`.
///
/// # Panics
/// If `d_out` is not whole rows.
pub fn bias_gradient(d_bias: &mut [f32], d_out: &[f32]) {
    assert_eq!(d_out.len() % d_bias.len(), 0, "the output gradient must be whole rows");
    d_bias.fill(0.0);
    for row in d_out.chunks_exact(d_bias.len()) {
        for (sum, value) in d_bias.iter_mut().zip(row) {
            *sum += value;
        }
    }
}
