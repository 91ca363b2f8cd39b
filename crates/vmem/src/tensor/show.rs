//! How a tensor is printed: what it is, where it is, and its values, or their edges if there are
//! many. Nothing moves for it.

use std::fmt;

use crate::tensor::dtype::{Dtype, Element, with_element};
use crate::tensor::error::TensorError;
use crate::tensor::{Place, SwapTensor};

/// Tensors with more elements are shown by their edges.
const SHOWN_WHOLE: usize = 1000;

/// Elements shown at each end of a dimension that is not shown whole.
const EDGE: usize = 3;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Device => "device",
            Place::Away => "away",
            Place::Swapped => "swapped",
            Place::Host => "host",
        })
    }
}

impl fmt::Debug for SwapTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SwapTensor({}, {:?}, {}, ", self.dtype(), self.shape(), self.place())?;
        match edges(self) {
            Ok(edges) => Values { of: self, edges: &edges, at: 0 }.write(f, 0)?,
            Err(error) => write!(f, "unreadable: {error}")?,
        }
        f.write_str(")")
    }
}

/// The elements that are shown.
fn edges(tensor: &SwapTensor) -> Result<Edges, TensorError> {
    if tensor.element_count() <= SHOWN_WHOLE {
        return Ok(Edges { bytes: tensor.to_bytes()?, shape: tensor.shape().to_vec() });
    }
    let shape: Vec<usize> = tensor.shape().iter().map(|&size| size.min(2 * EDGE)).collect();
    let shown = tensor.device().empty_in(Place::Host, &shape, tensor.dtype())?;
    copy_corners(&shown, tensor, 0)?;
    Ok(Edges { bytes: shown.to_bytes()?, shape })
}

fn copy_corners(target: &SwapTensor, source: &SwapTensor, dim: usize) -> Result<(), TensorError> {
    let Some(&size) = source.shape().get(dim) else { return target.copy_(source).map(|_| ()) };
    if size == target.shape()[dim] {
        return copy_corners(target, source, dim + 1);
    }
    for (to, from) in [(0, 0), (EDGE, size - EDGE)] {
        let (target, source) = (target.narrow(dim, to, EDGE)?, source.narrow(dim, from, EDGE)?);
        copy_corners(&target, &source, dim + 1)?;
    }
    Ok(())
}

struct Edges {
    bytes: Vec<u8>,
    shape: Vec<usize>,
}

/// Walks over the shown elements.
struct Values<'a> {
    of: &'a SwapTensor,
    edges: &'a Edges,
    /// The next byte to show.
    at: usize,
}

impl Values<'_> {
    fn write(&mut self, f: &mut fmt::Formatter<'_>, dim: usize) -> fmt::Result {
        let Some(&shown) = self.edges.shape.get(dim) else { return self.write_element(f) };
        let is_whole = shown == self.of.shape()[dim];
        let is_row = dim + 1 == self.edges.shape.len();
        f.write_str("[")?;
        for index in 0..shown {
            if index > 0 {
                separate(f, is_row, dim)?;
            }
            if index == EDGE && !is_whole {
                f.write_str("...")?;
                separate(f, is_row, dim)?;
            }
            self.write(f, dim + 1)?;
        }
        f.write_str("]")
    }

    fn write_element(&mut self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype: Dtype = self.of.dtype();
        let bytes = &self.edges.bytes[self.at..self.at + dtype.size_bytes()];
        self.at += dtype.size_bytes();
        with_element!(dtype, T => write!(f, "{:?}", T::get(bytes)))
    }
}

/// Elements stand in lines, and so do rows, below each other.
fn separate(f: &mut fmt::Formatter<'_>, is_row: bool, dim: usize) -> fmt::Result {
    if is_row {
        return f.write_str(", ");
    }
    write!(f, ",\n{:1$}", "", dim + 1)
}
