//! Shapes: broadcasting, strides, axes.

use crate::failure::{INVALID_PARAM, Outcome, refuse};

/// Number of elements.
pub(super) fn count(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// The strides of elements that lie in a row.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// The places of all elements of a shape, last axis fastest.
pub(super) fn places(dims: &[usize], strides: &[usize], offset: usize) -> Vec<usize> {
    let mut places = vec![offset];
    for (&dim, &stride) in dims.iter().zip(strides) {
        let next = places.iter().flat_map(|&place| (0..dim).map(move |i| place + i * stride));
        places = next.collect();
    }
    places
}

/// The shape to which several broadcast.
pub(super) fn broadcast(shapes: &[&[usize]]) -> Outcome<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut dims = vec![1; rank];
    for shape in shapes {
        for (dim, &own) in dims.iter_mut().rev().zip(shape.iter().rev()) {
            match (*dim, own) {
                (_, 1) => {}
                (1, _) => *dim = own,
                (dim, own) if dim == own => {}
                _ => return refuse(INVALID_PARAM, format!("shapes {shapes:?} do not broadcast")),
            }
        }
    }
    Ok(dims)
}

/// For each element of `dims`, the place of the one of `own` that broadcasts to it.
pub(super) fn broadcast_places(own: &[usize], dims: &[usize]) -> Vec<usize> {
    let mut own_strides = strides(own);
    for (stride, &dim) in own_strides.iter_mut().zip(own) {
        if dim == 1 {
            *stride = 0;
        }
    }
    let mut all = vec![0; dims.len() - own.len()];
    all.extend(own_strides);
    places(dims, &all, 0)
}

/// An axis, which may be counted from the end.
pub(super) fn axis(number: i64, rank: usize) -> Outcome<usize> {
    let counted = if number < 0 { number + rank as i64 } else { number };
    match usize::try_from(counted) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => refuse(INVALID_PARAM, format!("there is no axis {number} of {rank}")),
    }
}

/// Sizes, strides or offsets, which are not negative.
pub(super) fn sizes(numbers: &[i64]) -> Outcome<Vec<usize>> {
    let sizes = numbers.iter().map(|&number| usize::try_from(number));
    match sizes.collect() {
        Ok(sizes) => Ok(sizes),
        Err(_) => refuse(INVALID_PARAM, format!("one of {numbers:?} is negative")),
    }
}
