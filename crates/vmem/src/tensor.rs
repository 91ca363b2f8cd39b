//! Tensors whose bytes are on the device, away, in swapped memory or on the host.
//!
//! A [`SwapTensor`] has a shape, strides and a type; views share its bytes and keep them alive.
//! Every call works on every [`Place`], and its result does not depend on the place: what the
//! device cannot do in one plain copy goes by the host in small pieces, so that nothing here ever
//! takes device memory beside the tensors that were asked for.
//!
//! Calls return when their work is submitted, except those that hand values to the host; these
//! wait for what they need and no more. Memory is reused after its last use, by events. Work that
//! others launch on a tensor's address is told with [`SwapTensor::record_use`].

mod bytes;
mod device;
mod dtype;
mod error;
mod file;
mod layout;
mod show;
mod stage;
mod storage;
mod transfer;

use std::sync::Arc;

use npu_sys::{DevicePtr, StreamHandle};

pub use self::device::TensorDevice;
pub use self::dtype::{Dtype, Element, Scalar};
pub use self::error::{FileProblem, TensorError};
pub use self::file::{TensorFile, load, save};
pub use self::storage::Place;

use self::dtype::unpack;
use self::layout::{Layout, checked_count};
use self::storage::{State, Storage};
use self::transfer::End;

/// A tensor, or a view of one. See the module's first lines.
///
/// Offsets and strides are counted in elements.
pub struct SwapTensor {
    storage: Arc<Storage>,
    dtype: Dtype,
    layout: Layout,
}

impl SwapTensor {
    pub(in crate::tensor) fn empty(
        device: &TensorDevice,
        place: Place,
        shape: &[usize],
        dtype: Dtype,
    ) -> Result<SwapTensor, TensorError> {
        let size_bytes = checked_count(shape)? * dtype.size_bytes();
        let storage = Arc::new(Storage::new(device, place, size_bytes)?);
        Ok(SwapTensor { storage, dtype, layout: Layout::contiguous(shape) })
    }

    /// A tensor on the host with these packed elements.
    pub(in crate::tensor) fn from_bytes(
        device: &TensorDevice,
        shape: &[usize],
        dtype: Dtype,
        bytes: Vec<u8>,
    ) -> Result<SwapTensor, TensorError> {
        if checked_count(shape)? * dtype.size_bytes() != bytes.len() {
            return Err(TensorError::ShapeMismatch {
                target: shape.to_vec(),
                source_shape: vec![bytes.len() / dtype.size_bytes()],
            });
        }
        let storage = Arc::new(Storage::of_bytes(device, bytes));
        Ok(SwapTensor { storage, dtype, layout: Layout::contiguous(shape) })
    }

    /// The sizes of the dimensions.
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// For each dimension, how far apart its elements are.
    pub fn strides(&self) -> &[usize] {
        &self.layout.strides
    }

    /// Where the first element is in the memory that the views share.
    pub fn storage_offset(&self) -> usize {
        self.layout.offset
    }

    /// The type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        self.layout.element_count()
    }

    /// Bytes of the elements, without gaps.
    pub fn size_bytes(&self) -> usize {
        self.element_count() * self.dtype.size_bytes()
    }

    /// Whether the elements lie row by row without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Where the bytes are.
    pub fn place(&self) -> Place {
        self.storage.place()
    }

    /// The device that the tensor was made on, whatever its place.
    pub fn device(&self) -> &TensorDevice {
        &self.storage.device
    }

    /// Whether the bytes are in swapped memory (see [`TensorDevice::is_swap_tensor`]).
    pub fn is_swap_tensor(&self) -> bool {
        self.device().is_swap_tensor(self)
    }

    /// Whether both are views of the same memory.
    pub fn shares_storage(&self, other: &SwapTensor) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
    }

    /// Where the device reaches the first element. `None` while the bytes are away or on the host.
    ///
    /// A tensor that is swapped out and in again comes back to the same address.
    pub fn address(&self) -> Option<DevicePtr> {
        let offset_bytes = self.layout.offset * self.dtype.size_bytes();
        self.storage_address().map(|start| start.offset(offset_bytes as u64))
    }

    pub(in crate::tensor) fn storage_address(&self) -> Option<DevicePtr> {
        self.storage.address()
    }

    /// Counts all work that was submitted to `stream` so far as a use of this tensor's memory: it
    /// is reused, moved, and read or written by the host only after that work.
    ///
    /// Whoever launches work on [`address`](SwapTensor::address) calls this after the launch, and
    /// [`TensorDevice::order_stream`] before it, if the stream is not that of the device.
    pub fn record_use(&self, stream: StreamHandle) {
        self.storage.record_use(stream);
    }

    /// Moves the bytes of the tensor and all its views from the device to the host arena. The
    /// device memory is free for others at once; the address stays. Whether the tensor is away
    /// now: tensors below the swap threshold, and those of other places, stay where they are.
    ///
    /// # Errors
    /// If the arena is full or the driver fails; the tensor is where it was.
    pub fn swap_out(&self) -> Result<bool, TensorError> {
        self.storage.swap_out()
    }

    /// Moves the bytes back to the device, to the same address. Whether the tensor is on the
    /// device now: those of other places stay where they are.
    ///
    /// # Errors
    /// If the device is full or the driver fails; the tensor is where it was.
    pub fn swap_in(&self) -> Result<bool, TensorError> {
        self.storage.swap_in()
    }

    fn with(&self, layout: Layout) -> SwapTensor {
        SwapTensor { storage: Arc::clone(&self.storage), dtype: self.dtype, layout }
    }

    /// The same elements of the same memory: a swap tensor stays one.
    pub fn detach(&self) -> SwapTensor {
        self.with(self.layout.clone())
    }

    /// The part `start..start + len` of a dimension.
    ///
    /// # Errors
    /// [`OutOfBounds`](TensorError::OutOfBounds) or
    /// [`NoSuchDimension`](TensorError::NoSuchDimension).
    pub fn narrow(&self, dim: usize, start: usize, len: usize) -> Result<SwapTensor, TensorError> {
        Ok(self.with(self.layout.narrow(dim, start, len)?))
    }

    /// Every `step`-th element of `start..end` of a dimension.
    ///
    /// # Errors
    /// As [`narrow`](SwapTensor::narrow); [`BadShape`](TensorError::BadShape) if `step` is 0 or
    /// `end` is before `start`.
    pub fn slice(
        &self,
        dim: usize,
        start: usize,
        end: usize,
        step: usize,
    ) -> Result<SwapTensor, TensorError> {
        let len = end.checked_sub(start).ok_or_else(|| TensorError::BadShape {
            what: format!("the slice {start}..{end} ends before it starts"),
        })?;
        Ok(self.with(self.layout.narrow(dim, start, len)?.step(dim, step)?))
    }

    /// One index of a dimension, which goes away.
    ///
    /// # Errors
    /// As [`narrow`](SwapTensor::narrow).
    pub fn select(&self, dim: usize, index: usize) -> Result<SwapTensor, TensorError> {
        Ok(self.with(self.layout.select(dim, index)?))
    }

    /// Two dimensions exchanged.
    ///
    /// # Errors
    /// [`NoSuchDimension`](TensorError::NoSuchDimension).
    pub fn transpose(&self, first: usize, second: usize) -> Result<SwapTensor, TensorError> {
        let rank = self.shape().len();
        if let Some(&dim) = [first, second].iter().find(|&&dim| dim >= rank) {
            return Err(TensorError::NoSuchDimension { dim, rank });
        }
        let mut dims: Vec<usize> = (0..rank).collect();
        dims.swap(first, second);
        self.permute(&dims)
    }

    /// The dimensions in another order.
    ///
    /// # Errors
    /// [`BadShape`](TensorError::BadShape) if `dims` does not name each once.
    pub fn permute(&self, dims: &[usize]) -> Result<SwapTensor, TensorError> {
        Ok(self.with(self.layout.permute(dims)?))
    }

    /// A new dimension of one element before `dim`.
    ///
    /// # Errors
    /// [`NoSuchDimension`](TensorError::NoSuchDimension).
    pub fn unsqueeze(&self, dim: usize) -> Result<SwapTensor, TensorError> {
        Ok(self.with(self.layout.unsqueeze(dim)?))
    }

    /// Repeats dimensions of one element, and adds dimensions in front. Such a view is read-only.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch).
    pub fn expand(&self, shape: &[usize]) -> Result<SwapTensor, TensorError> {
        Ok(self.with(self.layout.expand(shape)?))
    }

    /// The same elements in another shape, in the same memory.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch) if the shape has more or fewer elements;
    /// [`NotViewable`](TensorError::NotViewable) if it needs a copy.
    pub fn view(&self, shape: &[usize]) -> Result<SwapTensor, TensorError> {
        let layout = self.layout.view(shape)?.ok_or_else(|| TensorError::NotViewable {
            shape: self.shape().to_vec(),
            strides: self.strides().to_vec(),
            target: shape.to_vec(),
        })?;
        Ok(self.with(layout))
    }

    /// The same elements in another shape: a view where that can be, else a copy in the same
    /// place.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch); as [`try_clone`](SwapTensor::try_clone) if
    /// it copies.
    pub fn reshape(&self, shape: &[usize]) -> Result<SwapTensor, TensorError> {
        match self.layout.view(shape)? {
            Some(layout) => Ok(self.with(layout)),
            None => self.try_clone()?.view(shape),
        }
    }

    /// The tensor itself if its elements lie row by row, else a copy in the same place.
    ///
    /// # Errors
    /// As [`try_clone`](SwapTensor::try_clone).
    pub fn contiguous(&self) -> Result<SwapTensor, TensorError> {
        if self.is_contiguous() { Ok(self.detach()) } else { self.try_clone() }
    }

    /// A copy in the same kind of memory, row by row: PyTorch's `clone`.
    ///
    /// # Errors
    /// If there is no memory or the driver fails.
    pub fn try_clone(&self) -> Result<SwapTensor, TensorError> {
        self.copy_in(self.place(), self.dtype)
    }

    /// The tensor itself if it is in `place`, else a copy there.
    ///
    /// # Errors
    /// If there is no memory or the driver fails.
    pub fn to(&self, place: Place) -> Result<SwapTensor, TensorError> {
        if self.place() == place { Ok(self.detach()) } else { self.copy_in(place, self.dtype) }
    }

    /// The tensor itself if its elements are of this type, else a converted copy in the same
    /// kind of memory.
    ///
    /// # Errors
    /// If there is no memory or the driver fails.
    pub fn to_dtype(&self, dtype: Dtype) -> Result<SwapTensor, TensorError> {
        if self.dtype == dtype { Ok(self.detach()) } else { self.copy_in(self.place(), dtype) }
    }

    /// The tensor on the host: itself if it is there. Takes no device memory.
    ///
    /// # Errors
    /// If there is no memory or the driver fails.
    pub fn cpu(&self) -> Result<SwapTensor, TensorError> {
        self.to(Place::Host)
    }

    /// The tensor in device memory: itself if it is there. A swap tensor is copied and stays.
    ///
    /// # Errors
    /// If there is no memory or the driver fails.
    pub fn npu(&self) -> Result<SwapTensor, TensorError> {
        self.to(Place::Device)
    }

    fn copy_in(&self, place: Place, dtype: Dtype) -> Result<SwapTensor, TensorError> {
        let copy = SwapTensor::empty(self.device(), place, self.shape(), dtype)?;
        copy.copy_(self)?;
        Ok(copy)
    }

    /// Overwrites the elements with those of `source`, which may be anywhere and of any type:
    /// they are broadcast to this shape and converted (see [`Dtype`]). Where both share memory
    /// the result is as if `source` had been read whole before.
    ///
    /// Returns the tensor, so that calls can be chained.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch) if `source` cannot be broadcast;
    /// [`RepeatedElements`](TensorError::RepeatedElements) if this was expanded; if there is no
    /// memory for a stage, or the driver fails. Only after a driver's failure the elements of
    /// this tensor may be in part the old and in part the new ones.
    pub fn copy_(&self, source: &SwapTensor) -> Result<&SwapTensor, TensorError> {
        let layout = source.layout.expand(self.shape())?;
        self.check_writable()?;
        if !self.device().is_same(source.device()) {
            let bytes = source.to_bytes()?;
            let here = SwapTensor::from_bytes(self.device(), source.shape(), source.dtype, bytes)?;
            return self.copy_(&here);
        }
        if self.shares_storage(source) {
            if self.dtype == source.dtype && self.layout == layout {
                return Ok(self);
            }
            let (start, end) = (self.layout.offset, self.layout.offset + self.layout.span());
            if start < layout.offset + layout.span() && layout.offset < end {
                return self.copy_(&source.copy_in(Place::Host, source.dtype)?);
            }
        }
        let from = End { storage: &source.storage, dtype: source.dtype, layout: &layout };
        transfer::copy(self.end(), from)?;
        Ok(self)
    }

    /// Sets every element to `value`, converted as [`copy_`](SwapTensor::copy_) does.
    ///
    /// # Errors
    /// As [`copy_`](SwapTensor::copy_).
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<&SwapTensor, TensorError> {
        self.check_writable()?;
        let bytes = value.into().to_bytes(self.dtype);
        let is_uniform = bytes.iter().all(|&byte| byte == bytes[0]);
        if is_uniform && transfer::fill(self.end(), bytes[0])? {
            return Ok(self);
        }
        self.copy_(&SwapTensor::from_bytes(self.device(), &[], self.dtype, bytes)?)
    }

    /// Sets every element to zero, or false.
    ///
    /// # Errors
    /// As [`copy_`](SwapTensor::copy_).
    pub fn zero_(&self) -> Result<&SwapTensor, TensorError> {
        self.fill_(0_i64)
    }

    fn check_writable(&self) -> Result<(), TensorError> {
        if self.layout.overlaps_itself() {
            return Err(TensorError::RepeatedElements { shape: self.shape().to_vec() });
        }
        Ok(())
    }

    fn end(&self) -> End<'_> {
        End { storage: &self.storage, dtype: self.dtype, layout: &self.layout }
    }

    /// The elements' bytes, packed row by row.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TensorError> {
        let copy = self.copy_in(Place::Host, self.dtype)?;
        let bytes = match &mut *copy.storage.state() {
            State::Host(bytes) => std::mem::take(bytes),
            _ => unreachable!("it was made on the host"),
        };
        Ok(bytes)
    }

    /// The elements, row by row.
    ///
    /// # Errors
    /// [`Dtype`](TensorError::Dtype) if they are of another type; if the driver fails.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, TensorError> {
        if self.dtype != T::DTYPE {
            return Err(TensorError::Dtype { is: self.dtype, asked: T::DTYPE });
        }
        Ok(unpack(&self.to_bytes()?))
    }

    /// The value of a tensor of one element.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch) if it has more or none; if the driver fails.
    pub fn item(&self) -> Result<Scalar, TensorError> {
        if self.element_count() != 1 {
            let source_shape = self.shape().to_vec();
            return Err(TensorError::ShapeMismatch { target: vec![], source_shape });
        }
        Ok(Scalar::of_bytes(&self.to_bytes()?, self.dtype))
    }
}
