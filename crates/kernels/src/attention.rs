//! Causal multi-head attention over rows that hold query, key and value side by side.
//!
//! A row of `qkv` is `[query | key | value]`, each of `heads * head_size` elements, head by head.
//! `probabilities` is `[batch, heads, seq, seq]`; what lies behind a row's own position is 0.

use crate::math::{dot, exp_in_place};
use crate::matmul::{Matrix, MatrixMut, Onto, matmul};

/// The sizes of an attention layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Number of sequences.
    pub batch: usize,
    /// Positions in each sequence.
    pub seq: usize,
    /// Number of heads.
    pub heads: usize,
    /// Elements of a head's query, key or value.
    pub head_size: usize,
}

/// Which third of a `qkv` row.
#[derive(Clone, Copy)]
enum Part {
    Query = 0,
    Key = 1,
    Value = 2,
}

impl Shape {
    /// Elements of a row of the layer's output.
    pub fn hidden(self) -> usize {
        self.heads * self.head_size
    }

    /// Elements of the layer's output.
    pub fn output_elements(self) -> usize {
        self.batch * self.seq * self.hidden()
    }

    /// Elements of `probabilities`.
    pub fn probability_elements(self) -> usize {
        self.batch * self.heads * self.seq * self.seq
    }

    fn assert_lengths(self, qkv: usize, probabilities: usize) {
        assert_eq!(qkv, 3 * self.output_elements(), "queries, keys and values for each row");
        assert_eq!(probabilities, self.probability_elements(), "a probability for each pair");
    }

    /// Each sequence and head in turn.
    fn pairs(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.batch).flat_map(move |sequence| (0..self.heads).map(move |head| (sequence, head)))
    }

    fn probability_range(self, sequence: usize, head: usize) -> std::ops::Range<usize> {
        let size = self.seq * self.seq;
        let start = (sequence * self.heads + head) * size;
        start..start + size
    }

    fn qkv_start(self, sequence: usize, head: usize, part: Part) -> usize {
        let third = part as usize * self.hidden();
        sequence * self.seq * 3 * self.hidden() + third + head * self.head_size
    }

    fn output_start(self, sequence: usize, head: usize) -> usize {
        sequence * self.seq * self.hidden() + head * self.head_size
    }

    /// One head's queries, keys or values of one sequence.
    fn part(self, qkv: &[f32], sequence: usize, head: usize, part: Part) -> Matrix<'_> {
        let start = self.qkv_start(sequence, head, part);
        Matrix::strided(&qkv[start..], self.seq, self.head_size, 3 * self.hidden())
    }

    /// The same, to be written.
    fn part_mut(self, qkv: &mut [f32], sequence: usize, head: usize, part: Part) -> MatrixMut<'_> {
        let start = self.qkv_start(sequence, head, part);
        MatrixMut::strided(&mut qkv[start..], self.seq, self.head_size, 3 * self.hidden())
    }

    /// One head's share of one sequence's output.
    fn head_output(self, out: &[f32], sequence: usize, head: usize) -> Matrix<'_> {
        let start = self.output_start(sequence, head);
        Matrix::strided(&out[start..], self.seq, self.head_size, self.hidden())
    }

    /// What products of queries and keys are multiplied with.
    fn scale(self) -> f32 {
        1.0 / (self.head_size as f32).sqrt()
    }
}

/// Overwrites `probabilities` with the causal softmax of the scaled scores.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn probabilities(probabilities: &mut [f32], qkv: &[f32], shape: Shape) {
    shape.assert_lengths(qkv.len(), probabilities.len());
    for (sequence, head) in shape.pairs() {
        let square = &mut probabilities[shape.probability_range(sequence, head)];
        matmul(
            MatrixMut::new(square, shape.seq),
            shape.part(qkv, sequence, head, Part::Query),
            shape.part(qkv, sequence, head, Part::Key).transposed(),
            shape.scale(),
            Onto::Overwrite,
        );
        for (position, row) in square.chunks_exact_mut(shape.seq).enumerate() {
            let (seen, future) = row.split_at_mut(position + 1);
            let factor = 1.0 / exp_in_place(seen);
            for value in seen {
                *value *= factor;
            }
            future.fill(0.0);
        }
    }
}

/// Overwrites `out` with the values weighted by `probabilities`.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn apply(out: &mut [f32], probabilities: &[f32], qkv: &[f32], shape: Shape) {
    shape.assert_lengths(qkv.len(), probabilities.len());
    assert_eq!(out.len(), shape.output_elements(), "an output for each row");
    for (sequence, head) in shape.pairs() {
        let start = shape.output_start(sequence, head);
        let target =
            MatrixMut::strided(&mut out[start..], shape.seq, shape.head_size, shape.hidden());
        matmul(
            target,
            Matrix::new(&probabilities[shape.probability_range(sequence, head)], shape.seq),
            shape.part(qkv, sequence, head, Part::Value),
            1.0,
            Onto::Overwrite,
        );
    }
}

/// Overwrites `d_scores` with the gradient of the scaled scores, before the softmax.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn score_gradient(
    d_scores: &mut [f32],
    d_out: &[f32],
    probabilities: &[f32],
    qkv: &[f32],
    shape: Shape,
) {
    shape.assert_lengths(qkv.len(), probabilities.len());
    assert_eq!(d_scores.len(), probabilities.len(), "a score for each probability");
    assert_eq!(d_out.len(), shape.output_elements(), "an output gradient for each row");
    for (sequence, head) in shape.pairs() {
        let range = shape.probability_range(sequence, head);
        let d_square = &mut d_scores[range.clone()];
        matmul(
            MatrixMut::new(d_square, shape.seq),
            shape.head_output(d_out, sequence, head),
            shape.part(qkv, sequence, head, Part::Value).transposed(),
            1.0,
            Onto::Overwrite,
        );
        let rows =
            d_square.chunks_exact_mut(shape.seq).zip(probabilities[range].chunks_exact(shape.seq));
        for (position, (d_row, row)) in rows.enumerate() {
            let (d_seen, d_future) = d_row.split_at_mut(position + 1);
            let seen = &row[..=position];
            let average = dot(d_seen, seen);
            for (d_value, value) in d_seen.iter_mut().zip(seen) {
                *d_value = value * (*d_value - average);
            }
            d_future.fill(0.0);
        }
    }
}

/// Overwrites `d_qkv` with the gradients of queries, keys and values.
///
/// # Panics
/// If the lengths do not fit the shape.
pub fn qkv_gradient(
    d_qkv: &mut [f32],
    d_scores: &[f32],
    d_out: &[f32],
    probabilities: &[f32],
    qkv: &[f32],
    shape: Shape,
) {
    shape.assert_lengths(qkv.len(), probabilities.len());
    assert_eq!(d_qkv.len(), qkv.len(), "a gradient for each query, key and value");
    assert_eq!(d_scores.len(), probabilities.len(), "a score for each probability");
    assert_eq!(d_out.len(), shape.output_elements(), "an output gradient for each row");
    for (sequence, head) in shape.pairs() {
        let range = shape.probability_range(sequence, head);
        let d_square = Matrix::new(&d_scores[range.clone()], shape.seq);
        let square = Matrix::new(&probabilities[range], shape.seq);
        let products = [
            (Part::Query, d_square, shape.part(qkv, sequence, head, Part::Key), shape.scale()),
            (
                Part::Key,
                d_square.transposed(),
                shape.part(qkv, sequence, head, Part::Query),
                shape.scale(),
            ),
            (Part::Value, square.transposed(), shape.head_output(d_out, sequence, head), 1.0),
        ];
        for (part, left, right, scale) in products {
            let target = shape.part_mut(d_qkv, sequence, head, part);
            matmul(target, left, right, scale, Onto::Overwrite);
        }
    }
}
