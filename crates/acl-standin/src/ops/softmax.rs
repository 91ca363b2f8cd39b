//! Softmax and its logarithm, along the last axis.

use super::Operator;
use super::call::{Call, Output, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "SoftmaxV2" => |call| forward(call, softmax),
        "LogSoftmaxV2" => |call| forward(call, log_softmax),
        "SoftmaxGrad" => |call| {
            // The result comes first, then its gradient.
            backward(call, "axes", (1, 0), |grad, result| {
                let along: f64 = grad.iter().zip(result).map(|(g, y)| g * y).sum();
                grad.iter().zip(result).map(|(g, y)| y * (g - along)).collect()
            })
        },
        "LogSoftmaxGrad" => |call| {
            backward(call, "axis", (0, 1), |grad, result| {
                let all: f64 = grad.iter().sum();
                grad.iter().zip(result).map(|(g, y)| g - y.exp() * all).collect()
            })
        },
        _ => return None,
    })
}

/// The largest number, and the sum of the exponentials of all, seen from it.
fn top_and_sum(row: &[f64]) -> (f64, f64) {
    let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (top, row.iter().map(|x| (x - top).exp()).sum())
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let (top, sum) = top_and_sum(row);
    row.iter().map(|x| (x - top).exp() / sum).collect()
}

fn log_softmax(row: &[f64]) -> Vec<f64> {
    let (top, sum) = top_and_sum(row);
    row.iter().map(|x| x - top - sum.ln()).collect()
}

/// The length of the last axis, along which the call goes.
fn width(call: &Call, name: &str, dims: &[usize]) -> Outcome<usize> {
    let rank = dims.len();
    match call.int_list(name)? {
        &[axis] if shape::axis(axis, rank)? + 1 == rank => Ok(dims[rank - 1]),
        axes => call.refuse(format!("along {axes:?} of {rank} axes: only along the last")),
    }
}

fn wide(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&x| f64::from(x)).collect()
}

fn forward(call: &Call, body: impl Fn(&[f64]) -> Vec<f64>) -> Outcome<Vec<Output>> {
    let (dims, x) = call.floats(0)?;
    let rows = x.chunks(width(call, "axes", &dims)?);
    let results = rows.flat_map(|row| body(&wide(row))).map(|result| result as f32);
    whole(Values::Floats(results.collect()))
}

/// The gradient of the input, from that of the result and the result, given in these inputs.
fn backward(
    call: &Call,
    axes: &str,
    (grad, result): (usize, usize),
    body: impl Fn(&[f64], &[f64]) -> Vec<f64>,
) -> Outcome<Vec<Output>> {
    let ((dims, grad), (result_dims, result)) = (call.floats(grad)?, call.floats(result)?);
    if dims != result_dims {
        return call.refuse(format!("{dims:?} and {result_dims:?} do not fit"));
    }
    let width = width(call, axes, &dims)?;
    let rows = grad.chunks(width).zip(result.chunks(width));
    let slopes = rows.flat_map(|(grad, result)| body(&wide(grad), &wide(result)));
    whole(Values::Floats(slopes.map(|slope| slope as f32).collect()))
}
