//! The gradient of an embedding's table.

use super::Operator;
use super::call::{Call, Output, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    match name {
        "EmbeddingDenseGrad" => Some(backward),
        _ => None,
    }
}

fn backward(call: &Call) -> Outcome<Vec<Output>> {
    let ((dims, grad), rows) = (call.floats(0)?, call.ints(1)?);
    if call.flag("scale_grad_by_freq") {
        return call.refuse("not scaled by how often a row is used");
    }
    let padding = call.int("padding_idx")?;
    let count = shape::sizes(&[call.int("num_weights")?])?[0];
    let width = dims.last().copied().unwrap_or(1);
    if grad.len() != rows.len() * width {
        return call.refuse("there is not a gradient for each row");
    }
    let mut table = vec![0.0_f64; count * width];
    for (&row, grad) in rows.iter().zip(grad.chunks(width)) {
        if row == padding {
            continue;
        }
        let row = match usize::try_from(row) {
            Ok(row) if row < count => row,
            _ => return call.refuse(format!("there is no row {row} of {count}")),
        };
        let sums = &mut table[row * width..(row + 1) * width];
        sums.iter_mut().zip(grad).for_each(|(sum, &grad)| *sum += f64::from(grad));
    }
    whole(Values::Floats(table.into_iter().map(|sum| sum as f32).collect()))
}
