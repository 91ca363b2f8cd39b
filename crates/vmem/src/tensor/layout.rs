//! Shapes, strides and offsets: which elements of a storage a view has, and in which order.

use crate::tensor::error::TensorError;

/// Which elements of a storage a view has. Counted in elements.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) offset: usize,
}

impl Layout {
    /// All of a storage, row by row.
    pub(super) fn contiguous(shape: &[usize]) -> Layout {
        Layout { shape: shape.to_vec(), strides: contiguous_strides(shape), offset: 0 }
    }

    pub(super) fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from the first to the last that the view has, both counted.
    pub(super) fn span(&self) -> usize {
        if self.element_count() == 0 { 0 } else { span(&self.shape, &self.strides) }
    }

    /// Whether the elements lie row by row without gaps.
    pub(super) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size != 1 && stride != expected {
                return self.element_count() == 0;
            }
            expected *= size;
        }
        true
    }

    /// Whether two places in the view are one element of the storage.
    pub(super) fn overlaps_itself(&self) -> bool {
        // Views repeat elements by `expand` alone.
        let mut dims = self.shape.iter().zip(&self.strides);
        self.element_count() > 0 && dims.any(|(&size, &stride)| size > 1 && stride == 0)
    }

    pub(super) fn narrow(
        &self,
        dim: usize,
        start: usize,
        len: usize,
    ) -> Result<Layout, TensorError> {
        let size = self.size_of(dim)?;
        if start.checked_add(len).is_none_or(|end| end > size) {
            return Err(TensorError::OutOfBounds { dim, start, len, size });
        }
        let mut view = self.clone();
        view.shape[dim] = len;
        // An empty view may begin behind the last element, and so behind the storage.
        if len > 0 {
            view.offset += start * self.strides[dim];
        }
        Ok(view)
    }

    /// Every `step`-th element of a dimension.
    pub(super) fn step(&self, dim: usize, step: usize) -> Result<Layout, TensorError> {
        let size = self.size_of(dim)?;
        if step == 0 {
            return Err(TensorError::BadShape { what: "a slice has a step of 0".to_owned() });
        }
        let mut view = self.clone();
        view.shape[dim] = size.div_ceil(step);
        // A stride that leaves the storage belongs to a dimension of one element.
        view.strides[dim] = self.strides[dim].saturating_mul(step);
        Ok(view)
    }

    pub(super) fn select(&self, dim: usize, index: usize) -> Result<Layout, TensorError> {
        let mut view = self.narrow(dim, index, 1)?;
        view.shape.remove(dim);
        view.strides.remove(dim);
        Ok(view)
    }

    pub(super) fn permute(&self, dims: &[usize]) -> Result<Layout, TensorError> {
        let mut sorted = dims.to_vec();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..self.shape.len()) {
            let rank = self.shape.len();
            let what = format!("{dims:?} does not name each of {rank} dimensions once");
            return Err(TensorError::BadShape { what });
        }
        Ok(Layout {
            shape: dims.iter().map(|&dim| self.shape[dim]).collect(),
            strides: dims.iter().map(|&dim| self.strides[dim]).collect(),
            offset: self.offset,
        })
    }

    /// A new dimension of one element before `dim`.
    pub(super) fn unsqueeze(&self, dim: usize) -> Result<Layout, TensorError> {
        let rank = self.shape.len();
        if dim > rank {
            return Err(TensorError::NoSuchDimension { dim, rank });
        }
        let mut view = self.clone();
        let stride = self
            .strides
            .get(dim)
            .zip(self.shape.get(dim))
            .map_or(1, |(stride, &size)| stride.saturating_mul(size));
        view.shape.insert(dim, 1);
        view.strides.insert(dim, stride);
        Ok(view)
    }

    /// Repeats dimensions of one element, and adds dimensions in front, without a copy.
    pub(super) fn expand(&self, shape: &[usize]) -> Result<Layout, TensorError> {
        let mismatch = || TensorError::ShapeMismatch {
            target: shape.to_vec(),
            source_shape: self.shape.clone(),
        };
        let added = shape.len().checked_sub(self.shape.len()).ok_or_else(mismatch)?;
        let mut strides = vec![0; added];
        for ((&asked, &size), &stride) in shape[added..].iter().zip(&self.shape).zip(&self.strides)
        {
            match (asked, size) {
                (asked, size) if asked == size => strides.push(stride),
                (_, 1) => strides.push(0),
                _ => return Err(mismatch()),
            }
        }
        checked_count(shape)?;
        Ok(Layout { shape: shape.to_vec(), strides, offset: self.offset })
    }

    /// The same elements in the same order under another shape, if strides can say it.
    pub(super) fn view(&self, shape: &[usize]) -> Result<Option<Layout>, TensorError> {
        if checked_count(shape)? != self.element_count() {
            return Err(TensorError::ShapeMismatch {
                target: shape.to_vec(),
                source_shape: self.shape.clone(),
            });
        }
        if self.element_count() == 0 {
            let offset = self.offset;
            return Ok(Some(Layout { offset, ..Layout::contiguous(shape) }));
        }
        // Runs of dimensions that are one long dimension, innermost last.
        let mut runs: Vec<(usize, usize)> = vec![];
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            match runs.last_mut() {
                _ if size == 1 => {}
                Some(last) if last.1 == size * stride => *last = (last.0 * size, stride),
                _ => runs.push((size, stride)),
            }
        }
        let mut strides = vec![1; shape.len()];
        let mut run = runs.pop().unwrap_or((1, 1));
        let mut taken = 1;
        for (dim, &size) in shape.iter().enumerate().rev() {
            if taken == run.0 && size != 1 {
                run = runs.pop().expect("both shapes have as many elements");
                taken = 1;
            }
            if size != 1 && !run.0.is_multiple_of(taken * size) {
                return Ok(None);
            }
            strides[dim] = taken * run.1;
            taken *= size;
        }
        Ok(Some(Layout { shape: shape.to_vec(), strides, offset: self.offset }))
    }

    fn size_of(&self, dim: usize) -> Result<usize, TensorError> {
        let rank = self.shape.len();
        self.shape.get(dim).copied().ok_or(TensorError::NoSuchDimension { dim, rank })
    }
}

/// The number of elements of a shape that a machine can hold.
pub(super) fn checked_count(shape: &[usize]) -> Result<usize, TensorError> {
    // Sizes of 0 do not excuse others that no index can reach.
    let sizes = shape.iter().map(|&size| size.max(1));
    let count = sizes.into_iter().try_fold(1usize, usize::checked_mul);
    match count {
        // Each element has at most 8 bytes.
        Some(count) if isize::try_from(count).is_ok_and(|count| count <= isize::MAX / 8) => {
            Ok(if shape.contains(&0) { 0 } else { count })
        }
        _ => Err(TensorError::BadShape { what: format!("{shape:?} is too large") }),
    }
}

fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

/// Elements from the first to the last of a box that has some.
pub(super) fn span(shape: &[usize], strides: &[usize]) -> usize {
    1 + shape.iter().zip(strides).map(|(&size, &stride)| (size - 1) * stride).sum::<usize>()
}

/// The walk of a copy: the same box of elements in two storages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Walk {
    pub(super) shape: Vec<usize>,
    pub(super) target: Side,
    pub(super) source: Side,
}

/// Where one side of a walk is: its first element and its strides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Side {
    pub(super) start: usize,
    pub(super) strides: Vec<usize>,
}

impl Walk {
    /// A walk over two views of the same shape in the target's own order, with as few dimensions
    /// as can be.
    pub(super) fn new(target: &Layout, source: &Layout) -> Walk {
        assert_eq!(target.shape, source.shape, "the source was expanded");
        let mut dims: Vec<(usize, usize, usize)> = target
            .shape
            .iter()
            .zip(target.strides.iter().zip(&source.strides))
            .filter(|(size, _)| **size != 1)
            .map(|(&size, (&to, &from))| (size, to, from))
            .collect();
        dims.sort_by_key(|&(_, to, from)| std::cmp::Reverse((to, from)));
        let mut merged: Vec<(usize, usize, usize)> = Vec::with_capacity(dims.len());
        for (size, to, from) in dims {
            match merged.last_mut() {
                Some(last) if last.1 == size * to && last.2 == size * from => {
                    *last = (last.0 * size, to, from);
                }
                _ => merged.push((size, to, from)),
            }
        }
        Walk {
            shape: merged.iter().map(|dim| dim.0).collect(),
            target: Side {
                start: target.offset,
                strides: merged.iter().map(|dim| dim.1).collect(),
            },
            source: Side {
                start: source.offset,
                strides: merged.iter().map(|dim| dim.2).collect(),
            },
        }
    }

    pub(super) fn element_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements in a row that are neighbours on both sides.
    pub(super) fn run(&self) -> usize {
        match (self.shape.last(), self.target.strides.last(), self.source.strides.last()) {
            (Some(&size), Some(1), Some(1)) => size,
            _ => 1,
        }
    }

    /// Cuts the walk in two along `dim`.
    pub(super) fn halve(self, dim: usize) -> (Walk, Walk) {
        let (mut low, mut high) = (self.clone(), self);
        let half = low.shape[dim] / 2;
        low.shape[dim] = half;
        high.shape[dim] -= half;
        high.target.start += half * high.target.strides[dim];
        high.source.start += half * high.source.strides[dim];
        (low, high)
    }
}

impl Side {
    /// Elements from the first to the last of the walk's box on this side.
    pub(super) fn span(&self, shape: &[usize]) -> usize {
        span(shape, &self.strides)
    }

    /// The dimension along which the box is longest on this side, of those that can be cut.
    pub(super) fn longest(&self, shape: &[usize]) -> usize {
        let length = |&dim: &usize| (shape[dim] - 1) * self.strides[dim];
        let dims = (0..shape.len()).filter(|&dim| shape[dim] > 1);
        dims.max_by_key(length).expect("a box of one element is not cut")
    }

    /// Calls `visit` with the start of each row of a box, counted from the side's first element.
    pub(super) fn rows(&self, shape: &[usize], mut visit: impl FnMut(usize)) {
        let outer = shape.len().saturating_sub(1);
        let mut index = vec![0; outer];
        let mut at = 0;
        loop {
            visit(at);
            let mut dim = outer;
            loop {
                if dim == 0 {
                    return;
                }
                dim -= 1;
                index[dim] += 1;
                at += self.strides[dim];
                if index[dim] < shape[dim] {
                    break;
                }
                at -= shape[dim] * self.strides[dim];
                index[dim] = 0;
            }
        }
    }

    /// The stride within a row.
    pub(super) fn row_stride(&self) -> usize {
        self.strides.last().copied().unwrap_or(1)
    }
}
