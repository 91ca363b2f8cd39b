//! Sums and truths over axes.

use super::Operator;
use super::call::{Call, Output, Tensor, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "ReduceSum" => |call| sum(call, |_| 1.0),
        "ReduceMean" => |call| sum(call, |count| count as f64),
        "ReduceAll" => |call| truth(call, true, |so_far, value| so_far && value),
        "ReduceAny" => |call| truth(call, false, |so_far, value| so_far || value),
        "TensorEqual" => |call| {
            let (left, right) = (call.input(0)?, call.input(1)?);
            let is_equal = left.dims == right.dims && left.values == right.values;
            whole(Values::Ints(vec![i64::from(is_equal)]))
        },
        _ => return None,
    })
}

/// The input, and for each of its elements the place of its result; and how many results.
fn targets(call: &Call) -> Outcome<(Tensor, Vec<usize>, usize)> {
    let (input, axes) = (call.input(0)?, call.ints(1)?);
    let mut kept = input.dims.clone();
    for axis in axes {
        kept[shape::axis(axis, input.dims.len())?] = 1;
    }
    let places = shape::broadcast_places(&kept, &input.dims);
    Ok((input, places, shape::count(&kept)))
}

/// Sums over axes, each divided by what `divisor` says of the number of its elements.
fn sum(call: &Call, divisor: impl Fn(usize) -> f64) -> Outcome<Vec<Output>> {
    let (input, places, count) = targets(call)?;
    whole(match input.values {
        Values::Floats(values) => {
            let mut sums = vec![0.0_f64; count];
            places.iter().zip(&values).for_each(|(&at, &value)| sums[at] += f64::from(value));
            let divisor = divisor(values.len() / count.max(1));
            Values::Floats(sums.into_iter().map(|sum| (sum / divisor) as f32).collect())
        }
        Values::Ints(values) => {
            let mut sums = vec![0; count];
            places.iter().zip(&values).for_each(|(&at, &value)| sums[at] += value);
            Values::Ints(sums)
        }
    })
}

/// Joins truths over axes, beginning with `first`.
fn truth(call: &Call, first: bool, join: impl Fn(bool, bool) -> bool) -> Outcome<Vec<Output>> {
    let (input, places, count) = targets(call)?;
    let Values::Ints(values) = input.values else {
        return call.refuse("the input holds no truth values");
    };
    let mut truths = vec![first; count];
    for (at, value) in places.into_iter().zip(values) {
        truths[at] = join(truths[at], value != 0);
    }
    whole(Values::Ints(truths.into_iter().map(i64::from).collect()))
}
