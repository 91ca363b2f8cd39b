//! Tensors as lists: a view is the list of the places of its elements, in order.

use std::cell::RefCell;
use std::rc::Rc;

use half::{bf16, f16};
use vmem::{Dtype, Scalar};

/// A tensor or a view of one.
#[derive(Clone, Debug)]
pub struct Model {
    store: Rc<RefCell<Vec<Vec<u8>>>>,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Where each element is in the store.
    pub at: Vec<usize>,
}

/// All indexes of a shape, row by row.
fn indexes(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![vec![]];
    for &size in shape {
        all = all
            .into_iter()
            .flat_map(|index: Vec<usize>| {
                (0..size).map(move |i| index.iter().copied().chain([i]).collect())
            })
            .collect();
    }
    all
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    shape.iter().zip(index).fold(0, |at, (size, i)| at * size + i)
}

impl Model {
    pub fn new(shape: &[usize], dtype: Dtype, values: &[Scalar]) -> Model {
        let bytes: Vec<Vec<u8>> = values.iter().map(|&value| write(value, dtype)).collect();
        assert_eq!(bytes.len(), shape.iter().product::<usize>());
        let at = (0..bytes.len()).collect();
        Model { store: Rc::new(RefCell::new(bytes)), dtype, shape: shape.to_vec(), at }
    }

    /// A view whose element at an index is this one's at the index that `from` makes of it.
    fn remap(&self, shape: Vec<usize>, from: impl Fn(Vec<usize>) -> Vec<usize>) -> Model {
        let at = indexes(&shape)
            .into_iter()
            .map(|index| self.at[flat(&self.shape, &from(index))])
            .collect();
        Model { store: Rc::clone(&self.store), dtype: self.dtype, shape, at }
    }

    pub fn slice(&self, dim: usize, start: usize, end: usize, step: usize) -> Model {
        let mut shape = self.shape.clone();
        shape[dim] = (start..end).step_by(step).count();
        self.remap(shape, |mut index| {
            index[dim] = start + index[dim] * step;
            index
        })
    }

    pub fn select(&self, dim: usize, at: usize) -> Model {
        let mut shape = self.shape.clone();
        shape.remove(dim);
        self.remap(shape, |mut index| {
            index.insert(dim, at);
            index
        })
    }

    pub fn permute(&self, dims: &[usize]) -> Model {
        let shape = dims.iter().map(|&dim| self.shape[dim]).collect();
        self.remap(shape, |index| {
            let mut from = vec![0; dims.len()];
            dims.iter().zip(index).for_each(|(&dim, i)| from[dim] = i);
            from
        })
    }

    pub fn unsqueeze(&self, dim: usize) -> Model {
        let mut view = self.clone();
        view.shape.insert(dim, 1);
        view
    }

    /// `None` if the shape does not allow it.
    pub fn expand(&self, shape: &[usize]) -> Option<Model> {
        let added = shape.len().checked_sub(self.shape.len())?;
        let mut pairs = self.shape.iter().zip(&shape[added..]);
        if !pairs.all(|(&is, &asked)| is == asked || is == 1) {
            return None;
        }
        Some(self.remap(shape.to_vec(), |index| {
            let own = index[added..].iter().zip(&self.shape);
            own.map(|(&i, &size)| if size == 1 { 0 } else { i }).collect()
        }))
    }

    pub fn reshaped(&self, shape: &[usize]) -> Model {
        Model { shape: shape.to_vec(), ..self.clone() }
    }

    /// Whether some strides give exactly these places, which is what a view needs.
    pub fn has_strides(&self) -> bool {
        let all = indexes(&self.shape);
        let Some(&first) = self.at.first() else { return true };
        let strides: Vec<i64> = (0..self.shape.len())
            .map(|dim| {
                let mut unit = vec![0; self.shape.len()];
                unit[dim] = 1;
                let step = |at: usize| at as i64 - first as i64;
                if self.shape[dim] > 1 { step(self.at[flat(&self.shape, &unit)]) } else { 0 }
            })
            .collect();
        all.iter().zip(&self.at).all(|(index, &at)| {
            let sum: i64 = index.iter().zip(&strides).map(|(&i, stride)| i as i64 * stride).sum();
            first as i64 + sum == at as i64
        })
    }

    pub fn repeats(&self) -> bool {
        let mut at = self.at.clone();
        at.sort_unstable();
        at.windows(2).any(|pair| pair[0] == pair[1])
    }

    pub fn is_contiguous(&self) -> bool {
        self.at.windows(2).all(|pair| pair[0] + 1 == pair[1])
    }

    /// A copy with a store of its own.
    pub fn copied(&self, dtype: Dtype) -> Model {
        let copy = Model::new(&self.shape, dtype, &vec![Scalar::Int(0); self.at.len()]);
        assert!(copy.copy_(self));
        copy
    }

    /// Whether `source` could be broadcast; then it was copied.
    pub fn copy_(&self, source: &Model) -> bool {
        let Some(source) = source.expand(&self.shape) else { return false };
        let elements: Vec<Vec<u8>> = {
            let store = source.store.borrow();
            source.at.iter().map(|&at| store[at].clone()).collect()
        };
        let mut store = self.store.borrow_mut();
        for (&at, element) in self.at.iter().zip(elements) {
            let same = self.dtype == source.dtype;
            store[at] =
                if same { element } else { write(read(&element, source.dtype), self.dtype) };
        }
        true
    }

    pub fn fill_(&self, value: Scalar) {
        let mut store = self.store.borrow_mut();
        self.at.iter().for_each(|&at| store[at] = write(value, self.dtype));
    }

    pub fn bytes(&self) -> Vec<u8> {
        let store = self.store.borrow();
        self.at.iter().flat_map(|&at| store[at].clone()).collect()
    }
}

/// The value of an element.
pub fn read(bytes: &[u8], dtype: Dtype) -> Scalar {
    let all = |bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(wide)
    };
    let bits = all(bytes);
    match dtype {
        Dtype::F64 => Scalar::Float(f64::from_bits(bits)),
        Dtype::F32 => Scalar::Float(f64::from(f32::from_bits(bits as u32))),
        Dtype::F16 => Scalar::Float(f16::from_bits(bits as u16).to_f64()),
        Dtype::BF16 => Scalar::Float(bf16::from_bits(bits as u16).to_f64()),
        Dtype::I64 => Scalar::Int(bits as i64),
        Dtype::I32 => Scalar::Int(i64::from(bits as u32 as i32)),
        Dtype::I16 => Scalar::Int(i64::from(bits as u16 as i16)),
        Dtype::I8 => Scalar::Int(i64::from(bits as u8 as i8)),
        Dtype::U8 => Scalar::Int(i64::from(bits as u8)),
        Dtype::Bool => Scalar::Bool(bits != 0),
    }
}

/// The element of a value.
pub fn write(value: Scalar, dtype: Dtype) -> Vec<u8> {
    let single = match value {
        Scalar::Float(x) => x as f32,
        Scalar::Int(x) => x as f32,
        Scalar::Bool(x) => u8::from(x).into(),
    };
    let double = match value {
        Scalar::Float(x) => x,
        Scalar::Int(x) => x as f64,
        Scalar::Bool(x) => u8::from(x).into(),
    };
    let whole = match value {
        Scalar::Float(x) if x.is_nan() => 0,
        Scalar::Float(x) if x >= 9.3e18 => i64::MAX,
        Scalar::Float(x) if x <= -9.3e18 => i64::MIN,
        Scalar::Float(x) => x.trunc() as i64,
        Scalar::Int(x) => x,
        Scalar::Bool(x) => x.into(),
    };
    let truth = match value {
        Scalar::Float(x) => x != 0.0,
        Scalar::Int(x) => x != 0,
        Scalar::Bool(x) => x,
    };
    // Integers keep their low bytes.
    match dtype {
        Dtype::F64 => double.to_le_bytes().to_vec(),
        Dtype::F32 => single.to_le_bytes().to_vec(),
        Dtype::F16 => f16::from_f32(single).to_le_bytes().to_vec(),
        Dtype::BF16 => bf16::from_f32(single).to_le_bytes().to_vec(),
        Dtype::Bool => vec![truth.into()],
        Dtype::I64 | Dtype::I32 | Dtype::I16 | Dtype::I8 | Dtype::U8 => {
            whole.to_le_bytes()[..dtype.size_bytes()].to_vec()
        }
    }
}
