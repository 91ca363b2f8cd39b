//! Matrix products over slices: the safe face of the `gemm` crate.

#![allow(unsafe_code)]

use gemm::Parallelism;

/// A matrix in a slice, each element at `row * row_stride + column * column_stride`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

/// A row-major matrix to write, its rows `row_stride` apart.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
}

/// What becomes of the target's old contents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Onto {
    /// They are overwritten without being read.
    Overwrite,
    /// The product is added to them.
    Accumulate,
}

impl<'a> Matrix<'a> {
    /// A matrix that fills `data` row by row.
    ///
    /// # Panics
    /// If `data` is not whole rows of `columns` elements.
    pub fn new(data: &'a [f32], columns: usize) -> Matrix<'a> {
        let rows = whole_rows(data.len(), columns);
        Matrix { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// A matrix of `rows` by `columns` whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    /// If it does not lie in `data`, or its rows overlap.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, row_stride: usize) -> Matrix<'a> {
        assert_inside(data.len(), rows, columns, row_stride);
        Matrix { data, rows, columns, row_stride, column_stride: 1 }
    }

    /// The same elements with rows and columns exchanged.
    #[must_use]
    pub fn transposed(self) -> Matrix<'a> {
        Matrix {
            data: self.data,
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
        }
    }
}

impl<'a> MatrixMut<'a> {
    /// A matrix that fills `data` row by row.
    ///
    /// # Panics
    /// If `data` is not whole rows of `columns` elements.
    pub fn new(data: &'a mut [f32], columns: usize) -> MatrixMut<'a> {
        let rows = whole_rows(data.len(), columns);
        MatrixMut { data, rows, columns, row_stride: columns }
    }

    /// A matrix of `rows` by `columns` whose rows start `row_stride` elements apart.
    ///
    /// # Panics
    /// If it does not lie in `data`, or its rows overlap.
    pub fn strided(
        data: &'a mut [f32],
        rows: usize,
        columns: usize,
        row_stride: usize,
    ) -> MatrixMut<'a> {
        assert_inside(data.len(), rows, columns, row_stride);
        MatrixMut { data, rows, columns, row_stride }
    }
}

/// `target = scale * left * right`, or adds that to `target`.
///
/// It runs on the calling thread alone, so that the order of additions depends on the shapes only.
///
/// # Panics
/// If the shapes do not fit each other.
pub fn matmul(target: MatrixMut<'_>, left: Matrix<'_>, right: Matrix<'_>, scale: f32, onto: Onto) {
    assert_eq!(left.columns, right.rows, "the inner sizes of a product must agree");
    assert_eq!(target.rows, left.rows, "a product has as many rows as its left factor");
    assert_eq!(target.columns, right.columns, "a product has its right factor's columns");
    let (keep, read_target) = match onto {
        Onto::Overwrite => (0.0, false),
        Onto::Accumulate => (1.0, true),
    };
    // SAFETY: for each matrix the constructors checked that every element at `row * row_stride +
    // column * column_stride` lies in its slice, which outlives the call; `target` is borrowed
    // exclusively, so it overlaps neither factor, and its rows do not overlap each other
    // (`assert_inside`); the three shapes were just checked against each other.
    unsafe {
        gemm::gemm(
            target.rows,
            target.columns,
            left.columns,
            target.data.as_mut_ptr(),
            1,
            stride(target.row_stride),
            read_target,
            left.data.as_ptr(),
            stride(left.column_stride),
            stride(left.row_stride),
            right.data.as_ptr(),
            stride(right.column_stride),
            stride(right.row_stride),
            keep,
            scale,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

fn whole_rows(length: usize, columns: usize) -> usize {
    assert!(columns > 0, "a matrix needs at least one column");
    assert_eq!(length % columns, 0, "{length} elements are not whole rows of {columns}");
    length / columns
}

fn assert_inside(length: usize, rows: usize, columns: usize, row_stride: usize) {
    assert!(columns <= row_stride, "rows of {columns} overlap at a stride of {row_stride}");
    let end = match rows {
        0 => 0,
        _ => (rows - 1) * row_stride + columns,
    };
    assert!(end <= length, "the matrix ends at {end}, behind its slice of {length}");
}

fn stride(elements: usize) -> isize {
    isize::try_from(elements).expect("a slice holds at most isize::MAX bytes")
}
