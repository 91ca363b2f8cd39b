//! Descriptions of tensors, and where their data is.

use crate::abi::{In, Opaque, Out, address};
use crate::entry::{self, exports};
use crate::failure::{Failure, INVALID_PARAM, Outcome, refuse};
use crate::shelf::Shelf;

const DATA_TYPE_UNDEFINED: i32 = -1;
const FORMAT_UNDEFINED: i32 = -1;
/// More dimensions than any tensor has.
const DIMENSIONS_MAX: usize = 64;
const MEMORY_TYPES: i32 = 3;

/// What `aclCreateTensorDesc` makes.
#[derive(Clone, Debug)]
pub(crate) struct TensorDesc {
    pub(crate) data_type: i32,
    pub(crate) dims: Vec<i64>,
    pub(crate) format: i32,
    /// Whether the data lies on the host, and is read when the operator is given.
    pub(crate) is_on_host: bool,
}

/// What `aclCreateDataBuffer` makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataBuffer {
    pub(crate) address: u64,
    pub(crate) size_bytes: u64,
}

pub(crate) static TENSORS: Shelf<TensorDesc> = Shelf::new("description of a tensor");
pub(crate) static BUFFERS: Shelf<DataBuffer> = Shelf::new("data buffer");

fn dimensions(count: i32, dims: In<i64>) -> Outcome<Vec<i64>> {
    let count = usize::try_from(count).ok().filter(|&count| count <= DIMENSIONS_MAX);
    let Some(count) = count else {
        return refuse(INVALID_PARAM, "the number of dimensions is not in 0..=64");
    };
    if count == 0 { Ok(Vec::new()) } else { dims.get_all("dims", count) }
}

/// Describes a tensor; null if the dimensions are no such.
///
/// # Safety
/// `dims` is null or good for `count` values.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub unsafe extern "C" fn aclCreateTensorDesc(
    data_type: i32,
    count: i32,
    dims: In<i64>,
    format: i32,
) -> Opaque {
    let mut made = std::ptr::null_mut();
    entry::run("aclCreateTensorDesc", || {
        let dims = dimensions(count, dims)?;
        made = TENSORS.put(TensorDesc { data_type, dims, format, is_on_host: false });
        Ok(())
    });
    made
}

/// Ends a description.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclDestroyTensorDesc(desc: Opaque) {
    entry::run("aclDestroyTensorDesc", || TENSORS.take(desc).map(drop));
}

/// Says where data is; null if there is no room for it.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclCreateDataBuffer(data: Opaque, size: usize) -> Opaque {
    BUFFERS.put(DataBuffer { address: address(data), size_bytes: size as u64 })
}

/// The type of a tensor's elements.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclGetTensorDescType(desc: Opaque) -> i32 {
    TENSORS.with(desc, |desc| desc.data_type).unwrap_or(DATA_TYPE_UNDEFINED)
}

/// How a tensor's dimensions are to be read.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclGetTensorDescFormat(desc: Opaque) -> i32 {
    TENSORS.with(desc, |desc| desc.format).unwrap_or(FORMAT_UNDEFINED)
}

/// How many dimensions a tensor has.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclGetTensorDescNumDims(desc: Opaque) -> usize {
    TENSORS.with(desc, |desc| desc.dims.len()).unwrap_or(0)
}

/// Names a tensor, which changes nothing here.
#[unsafe(no_mangle)]
#[allow(non_snake_case)] // The library's own name.
pub extern "C" fn aclSetTensorDescName(desc: Opaque, _name: *const std::ffi::c_char) {
    entry::run("aclSetTensorDescName", || TENSORS.with(desc, |_| ()));
}

exports! {
    /// Ends a data buffer, not the data.
    fn aclDestroyDataBuffer(buffer: Opaque) {
        BUFFERS.take(buffer).map(drop)
    }

    /// One dimension of a tensor.
    fn aclGetTensorDescDimV2(desc: Opaque, index: usize, size: Out<i64>) {
        size.check("dimSize")?;
        let dim = TENSORS.with(desc, |desc| desc.dims.get(index).copied())?;
        let text = format!("there is no dimension {index}");
        size.put(dim.ok_or_else(|| Failure::new(INVALID_PARAM, text))?);
        Ok(())
    }

    /// The format in which a tensor is stored: as it is described, here.
    fn aclSetTensorFormat(desc: Opaque, _format: i32) {
        TENSORS.with(desc, |_| ())
    }

    /// The shape in which a tensor is stored: as it is described, here.
    fn aclSetTensorShape(desc: Opaque, count: i32, dims: In<i64>) {
        dimensions(count, dims)?;
        TENSORS.with(desc, |_| ())
    }

    /// Whether a tensor's data is on the device or on the host.
    fn aclSetTensorPlaceMent(desc: Opaque, memory_type: i32) {
        if !(0..MEMORY_TYPES).contains(&memory_type) {
            return refuse(INVALID_PARAM, format!("{memory_type} is not a type of memory"));
        }
        TENSORS.with(desc, |desc| desc.is_on_host = memory_type != 0)
    }
}
