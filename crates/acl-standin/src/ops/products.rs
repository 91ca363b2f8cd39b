//! Matrix products.

use kernels::matmul::{Matrix, MatrixMut, Onto, matmul};

use super::Operator;
use super::call::{Call, Output, whole};
use super::values::Values;
use crate::failure::Outcome;

pub(super) fn find(name: &str) -> Option<Operator> {
    Some(match name {
        "MatMul" => |call| product(call, ("transpose_x1", "transpose_x2")),
        "BatchMatMul" => |call| product(call, ("adj_x1", "adj_x2")),
        _ => return None,
    })
}

/// The product of two matrices, or of as many as both inputs have, and a bias for its columns.
fn product(call: &Call, (flip_left, flip_right): (&str, &str)) -> Outcome<Vec<Output>> {
    let ((left_dims, left), (right_dims, right)) = (call.floats(0)?, call.floats(1)?);
    let (flip_left, flip_right) = (call.flag(flip_left), call.flag(flip_right));
    let [left_batch @ .., left_rows, left_columns] = &left_dims[..] else {
        return call.refuse("an input is no matrix");
    };
    let [right_batch @ .., right_rows, right_columns] = &right_dims[..] else {
        return call.refuse("an input is no matrix");
    };
    let order = |rows: usize, columns: usize, is_flipped: bool| match is_flipped {
        true => (columns, rows),
        false => (rows, columns),
    };
    let (rows, inner) = order(*left_rows, *left_columns, flip_left);
    let (right_inner, columns) = order(*right_rows, *right_columns, flip_right);
    if inner != right_inner || left_batch != right_batch {
        return call.refuse(format!("{left_dims:?} and {right_dims:?} do not fit"));
    }
    let batch = left_batch.iter().product::<usize>();
    let mut target = vec![0.0; batch * rows * columns];
    let matrix = |data, columns, is_flipped| {
        let matrix = Matrix::new(data, columns);
        if is_flipped { matrix.transposed() } else { matrix }
    };
    for at in 0..batch {
        let lot = |size: usize| at * size..(at + 1) * size;
        let left = matrix(&left[lot(rows * inner)], *left_columns, flip_left);
        let right = matrix(&right[lot(inner * columns)], *right_columns, flip_right);
        let target = MatrixMut::new(&mut target[lot(rows * columns)], columns);
        matmul(target, left, right, 1.0, Onto::Overwrite);
    }
    if call.inputs.len() > 2 {
        let (_, bias) = call.floats(2)?;
        if bias.len() != columns {
            return call.refuse(format!("a bias of {} for {columns} columns", bias.len()));
        }
        for row in target.chunks_mut(columns) {
            row.iter_mut().zip(&bias).for_each(|(value, bias)| *value += bias);
        }
    }
    whole(Values::Floats(target))
}
