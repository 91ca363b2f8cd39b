//! An operator that puts a border around a tensor.

use super::Operator;
use super::call::{Call, Output, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    (name == "PadV3").then_some(pad)
}

/// Elements before and behind each axis, all of one value.
fn pad(call: &Call) -> Outcome<Vec<Output>> {
    let (input, borders) = (call.input(0)?, call.sizes(1)?);
    if call.text("mode")? != "constant" || borders.len() != 2 * input.dims.len() {
        return call.refuse(format!("borders {borders:?} around {:?}", input.dims));
    }
    let sides = input.dims.iter().zip(borders.chunks_exact(2));
    let dims: Vec<usize> = sides.map(|(dim, side)| side[0] + dim + side[1]).collect();
    let strides = shape::strides(&dims);
    let offset = borders.iter().step_by(2).zip(&strides).map(|(before, stride)| before * stride);
    let places = shape::places(&input.dims, &strides, offset.sum());
    let count = shape::count(&dims);
    whole(match (input.values, call.input(2)?.values) {
        (Values::Floats(values), Values::Floats(border)) => {
            Values::Floats(bordered(values, places, border[0], count))
        }
        (Values::Ints(values), Values::Ints(border)) => {
            Values::Ints(bordered(values, places, border[0], count))
        }
        _ => return call.refuse("the border is of another type"),
    })
}

fn bordered<T: Copy>(values: Vec<T>, places: Vec<usize>, border: T, count: usize) -> Vec<T> {
    let mut all = vec![border; count];
    for (place, value) in places.into_iter().zip(values) {
        all[place] = value;
    }
    all
}
