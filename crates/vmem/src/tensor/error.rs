//! What tensors can fail with.

use std::path::PathBuf;

use npu_sys::DriverError;

use crate::error::MemoryError;
use crate::tensor::dtype::Dtype;

/// A failed call on a tensor.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Two shapes that do not fit each other: reshape or slice one of them.
    #[error("shape {source_shape:?} does not fit {target:?}")]
    ShapeMismatch {
        /// The shape that was to be filled or made.
        target: Vec<usize>,
        /// The shape that there is.
        source_shape: Vec<usize>,
    },
    /// A shape or order of dimensions that makes no sense.
    #[error("{what}")]
    BadShape {
        /// What is wrong with it.
        what: String,
    },
    /// A dimension that does not exist.
    #[error("dimension {dim} does not exist: the tensor has {rank}, counted from 0")]
    NoSuchDimension {
        /// What was given.
        dim: usize,
        /// Dimensions of the tensor.
        rank: usize,
    },
    /// Elements beyond the end of a dimension.
    #[error("elements {start}..{start}+{len} are out of bounds: dimension {dim} has {size}")]
    OutOfBounds {
        /// The dimension.
        dim: usize,
        /// The first element asked for.
        start: usize,
        /// How many.
        len: usize,
        /// How many there are.
        size: usize,
    },
    /// The elements are not in an order that strides of this shape can say: copy them with
    /// `contiguous` or `reshape`.
    #[error("a tensor of shape {shape:?} and strides {strides:?} cannot be viewed as {target:?}")]
    NotViewable {
        /// The tensor's shape.
        shape: Vec<usize>,
        /// The tensor's strides.
        strides: Vec<usize>,
        /// The shape asked for.
        target: Vec<usize>,
    },
    /// A write to a view in which one element stands for several: write to a `clone`.
    #[error("the tensor of shape {shape:?} repeats elements (it was expanded), so it is read-only")]
    RepeatedElements {
        /// The view's shape.
        shape: Vec<usize>,
    },
    /// Elements of another type were asked for: convert the tensor first.
    #[error("the elements are {is}, not {asked}")]
    Dtype {
        /// What they are.
        is: Dtype,
        /// What was asked for.
        asked: Dtype,
    },
    /// No memory: free some, move tensors elsewhere, or raise a cap.
    #[error(transparent)]
    Memory(MemoryError),
    /// The driver failed.
    #[error(transparent)]
    Driver(DriverError),
    /// A file could not be written or read.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: FileProblem,
    },
}

/// What is wrong with a file of tensors.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileProblem {
    /// The system could not read or write it.
    #[error("cannot {action}: {text}")]
    System {
        /// What was tried.
        action: &'static str,
        /// The system's words.
        text: String,
    },
    /// Its path is not a place for a file.
    #[error("{why}")]
    Place {
        /// What is there.
        why: String,
    },
    /// It is something else.
    #[error("not a safetensors file: {why}")]
    NotSafetensors {
        /// What is wrong with it.
        why: String,
    },
    /// It ends too early or too late.
    #[error(
        "has {has_bytes} bytes, but its header speaks of {expected_bytes}: it was cut short or \
         damaged"
    )]
    WrongLength {
        /// Bytes of the file.
        has_bytes: u64,
        /// Bytes by its header.
        expected_bytes: u64,
    },
    /// A tensor of a type that is not known here.
    #[error("tensor '{name}' has elements of type {dtype}, which is not supported")]
    UnknownDtype {
        /// The tensor.
        name: String,
        /// The type as the file has it.
        dtype: String,
    },
    /// The file has no tensor of this name.
    #[error("has no tensor '{name}'; it has {}", list(has))]
    NameMissing {
        /// What was asked for.
        name: String,
        /// All names in the file.
        has: Vec<String>,
    },
    /// A name that cannot be written.
    #[error("cannot hold a tensor named '{name}': {why}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        why: &'static str,
    },
}

/// The first few names.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("'{name}'")).collect();
    let more = names.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    shown.join(", ") + &rest
}

impl From<MemoryError> for TensorError {
    fn from(error: MemoryError) -> TensorError {
        match error {
            MemoryError::Driver(error) => TensorError::Driver(error),
            error => TensorError::Memory(error),
        }
    }
}

impl From<DriverError> for TensorError {
    fn from(error: DriverError) -> TensorError {
        TensorError::Driver(error)
    }
}
