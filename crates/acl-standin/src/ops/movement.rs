//! Operators that move elements, or make them from nothing.

use super::Operator;
use super::call::{Call, Output, whole};
use super::shape;
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "AsStrided" => |call| whole(strided(call, 0)?),
        "ViewCopy" => view_copy,
        "Transpose" => transpose,
        "Slice" => slice,
        "BroadcastTo" => broadcast_to,
        "ConcatD" => concat,
        "GatherV2" => gather,
        "Fill" => |call| {
            let value = call.input(1)?.values;
            let count = shape::count(&call.output(0)?.dims);
            whole(value.pick(std::iter::repeat_n(0, count)))
        },
        "ZerosLike" => |call| constant(call, 0),
        "OnesLike" => |call| constant(call, 1),
        "Triu" => |call| triangle(call, |row, column, diagonal| column - row >= diagonal),
        "Tril" => |call| triangle(call, |row, column, diagonal| column - row <= diagonal),
        _ => return None,
    })
}

/// The places that sizes, strides and an offset name, given in three inputs from `first` on.
fn view(call: &Call, first: usize) -> Outcome<Vec<usize>> {
    let (dims, strides) = (call.sizes(first)?, call.sizes(first + 1)?);
    let offset = call.sizes(first + 2)?;
    match offset[..] {
        [offset] if dims.len() == strides.len() => Ok(shape::places(&dims, &strides, offset)),
        _ => call.refuse("sizes, strides and offset do not fit"),
    }
}

/// The elements of a view of input `index`, whose sizes, strides and offset come behind it.
fn strided(call: &Call, index: usize) -> Outcome<Values> {
    call.elements(index, &view(call, index + 1)?)
}

/// Copies one view into another.
fn view_copy(call: &Call) -> Outcome<Vec<Output>> {
    Ok(vec![Output::At(view(call, 1)?, strided(call, 4)?)])
}

fn transpose(call: &Call) -> Outcome<Vec<Output>> {
    let (input, order) = (call.input(0)?, call.sizes(1)?);
    let strides = shape::strides(&input.dims);
    let is_order = order.len() == strides.len() && (0..order.len()).all(|i| order.contains(&i));
    if !is_order {
        return call.refuse(format!("{order:?} is no order of the axes of {:?}", input.dims));
    }
    let dims: Vec<usize> = order.iter().map(|&axis| input.dims[axis]).collect();
    let strides: Vec<usize> = order.iter().map(|&axis| strides[axis]).collect();
    whole(input.values.pick(shape::places(&dims, &strides, 0).into_iter()))
}

fn slice(call: &Call) -> Outcome<Vec<Output>> {
    let (input, starts, dims) = (call.input(0)?, call.sizes(1)?, call.sizes(2)?);
    let strides = shape::strides(&input.dims);
    let rank = strides.len();
    let fits = |axis: usize| starts[axis] + dims[axis] <= input.dims[axis];
    if starts.len() != rank || dims.len() != rank || !(0..rank).all(fits) {
        return call.refuse(format!("{starts:?} + {dims:?} is not in {:?}", input.dims));
    }
    let offset = starts.iter().zip(&strides).map(|(start, stride)| start * stride).sum();
    whole(input.values.pick(shape::places(&dims, &strides, offset).into_iter()))
}

fn broadcast_to(call: &Call) -> Outcome<Vec<Output>> {
    let (input, dims) = (call.input(0)?, call.sizes(1)?);
    if shape::broadcast(&[&input.dims, &dims])? != dims {
        return call.refuse(format!("{:?} does not broadcast to {dims:?}", input.dims));
    }
    whole(input.values.pick(shape::broadcast_places(&input.dims, &dims).into_iter()))
}

fn concat(call: &Call) -> Outcome<Vec<Output>> {
    let output = call.output(0)?;
    let axis = shape::axis(call.int("concat_dim")?, output.dims.len())?;
    let strides = shape::strides(&output.dims);
    let mut offset = 0;
    let mut parts = Vec::new();
    for index in 0..call.inputs.len() {
        let input = call.input(index)?;
        let places = shape::places(&input.dims, &strides, offset * strides[axis]);
        offset += input.dims[axis];
        parts.push((places, input.values));
    }
    let is_whole = parts.iter().map(|(places, _)| places.len()).sum::<usize>();
    if offset != output.dims[axis] || is_whole != shape::count(&output.dims) {
        return call.refuse("the inputs do not make the output");
    }
    // Each part has places of its own, and the last is stored with the others.
    let places = parts.iter().flat_map(|(places, _)| places.iter().copied()).collect();
    whole_of(call, places, parts.into_iter().map(|(_, values)| values))
}

/// One output of several lots of elements, for the places in their order.
fn whole_of(
    call: &Call,
    places: Vec<usize>,
    lots: impl Iterator<Item = Values>,
) -> Outcome<Vec<Output>> {
    let (mut floats, mut ints) = (Vec::new(), Vec::new());
    for lot in lots {
        match lot {
            Values::Floats(values) => floats.extend(values),
            Values::Ints(values) => ints.extend(values),
        }
    }
    let values = match (floats.is_empty(), ints.is_empty()) {
        (_, true) => Values::Floats(floats),
        (true, false) => Values::Ints(ints),
        (false, false) => return call.refuse("some inputs hold floats, others do not"),
    };
    Ok(vec![Output::At(places, values)])
}

/// Rows along an axis, by their numbers.
fn gather(call: &Call) -> Outcome<Vec<Output>> {
    let (input, rows) = (call.input(0)?, call.ints(1)?);
    if call.int("batch_dims")? != 0 {
        return call.refuse("only without batch dimensions");
    }
    let axis = match call.ints(2)?[..] {
        [axis] => shape::axis(axis, input.dims.len())?,
        _ => return call.refuse("the axis is not one number"),
    };
    let before = shape::count(&input.dims[..axis]);
    let (length, after) = (input.dims[axis], shape::count(&input.dims[axis + 1..]));
    let rows = shape::sizes(&rows)?;
    if let Some(row) = rows.iter().find(|&&row| row >= length) {
        return call.refuse(format!("there is no row {row} of {length}"));
    }
    let start = |lot: usize, row: usize| (lot * length + row) * after;
    let starts = (0..before).flat_map(|lot| rows.iter().map(move |&row| start(lot, row)));
    let places: Vec<usize> = starts.flat_map(|start| start..start + after).collect();
    whole(input.values.pick(places.into_iter()))
}

fn constant(call: &Call, value: u8) -> Outcome<Vec<Output>> {
    let output = call.output(0)?;
    let count = shape::count(&output.dims);
    whole(match output.data_type.is_float() {
        true => Values::Floats(vec![f32::from(value); count]),
        false => Values::Ints(vec![i64::from(value); count]),
    })
}

/// Keeps what is on one side of a diagonal; the rest becomes zero.
fn triangle(call: &Call, keeps: impl Fn(i64, i64, i64) -> bool) -> Outcome<Vec<Output>> {
    let (mut input, diagonal) = (call.input(0)?, call.int("diagonal")?);
    let [.., rows, columns] = input.dims[..] else {
        return call.refuse("the input is no matrix");
    };
    for at in 0..input.values.len() {
        let (row, column) = ((at / columns % rows) as i64, (at % columns) as i64);
        if !keeps(row, column, diagonal) {
            match &mut input.values {
                Values::Floats(values) => values[at] = 0.0,
                Values::Ints(values) => values[at] = 0,
            }
        }
    }
    whole(input.values)
}
