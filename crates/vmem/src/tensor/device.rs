//! The device on which tensors are made, and the one lock of its memory.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use npu_sys::{DevicePtr, Driver, StreamHandle};

use crate::memory::DeviceMemory;
use crate::point::{Site, StreamId};
use crate::tensor::dtype::{Dtype, Element, pack};
use crate::tensor::error::TensorError;
use crate::tensor::{Place, SwapTensor};

/// A device with tensors. Clones are the same device; it is closed when the last of them and the
/// last of its tensors are gone.
///
/// All work on tensors runs on one stream, in the order of the calls.
#[derive(Clone)]
pub struct TensorDevice {
    shared: Arc<Shared>,
}

struct Shared {
    memory: Mutex<DeviceMemory>,
    stream: StreamId,
    stage_bytes: AtomicUsize,
}

/// Large enough for copies at the full rate of a link.
const STAGE_BYTES: usize = 4 << 20;

impl TensorDevice {
    /// Makes tensors in `memory`, with a stream of its own.
    ///
    /// # Errors
    /// If the driver cannot create a stream.
    pub fn new(mut memory: DeviceMemory) -> Result<TensorDevice, TensorError> {
        let stream = memory.streams.create()?;
        Ok(TensorDevice::with(memory, stream))
    }

    /// Makes tensors in `memory`, on a stream of the caller, which must outlive the device.
    pub fn on_stream(mut memory: DeviceMemory, stream: StreamHandle) -> TensorDevice {
        let stream = memory.streams.adopt(stream);
        TensorDevice::with(memory, stream)
    }

    fn with(memory: DeviceMemory, stream: StreamId) -> TensorDevice {
        let stage_bytes = AtomicUsize::new(STAGE_BYTES);
        let memory = Mutex::new(memory);
        TensorDevice { shared: Arc::new(Shared { memory, stream, stage_bytes }) }
    }

    /// Sets the most host memory that a copy, or reading and writing files, takes at a time for
    /// each of its stages: 4 MiB unless set, and at least one page. A strided or converting copy
    /// moves what lies between its elements too, as far as it fits into a stage.
    pub fn set_stage_bytes(&self, stage_bytes: usize) {
        self.shared.stage_bytes.store(stage_bytes.max(4096), Ordering::Relaxed);
    }

    /// What [`set_stage_bytes`](TensorDevice::set_stage_bytes) set.
    pub fn stage_bytes(&self) -> usize {
        self.shared.stage_bytes.load(Ordering::Relaxed)
    }

    /// A new tensor on the device. Its elements are undefined.
    ///
    /// # Errors
    /// [`BadShape`](TensorError::BadShape) if no memory could hold it;
    /// [`Memory`](TensorError::Memory) if the device is full.
    pub fn empty(&self, shape: &[usize], dtype: Dtype) -> Result<SwapTensor, TensorError> {
        self.empty_in(Place::Device, shape, dtype)
    }

    /// A new tensor in host memory that the device addresses. Its elements are undefined.
    ///
    /// # Errors
    /// As [`empty`](TensorDevice::empty); [`Memory`](TensorError::Memory) if the budget of swapped
    /// memory is spent or the device cannot address host memory.
    pub fn empty_with_swapped_memory(
        &self,
        shape: &[usize],
        dtype: Dtype,
    ) -> Result<SwapTensor, TensorError> {
        self.empty_in(Place::Swapped, shape, dtype)
    }

    /// A new tensor in any place. Its elements are undefined.
    ///
    /// # Errors
    /// As [`empty`](TensorDevice::empty), of that place.
    pub fn empty_in(
        &self,
        place: Place,
        shape: &[usize],
        dtype: Dtype,
    ) -> Result<SwapTensor, TensorError> {
        SwapTensor::empty(self, place, shape, dtype)
    }

    /// A new tensor in `place` with the elements of `values`, row by row.
    ///
    /// # Errors
    /// [`ShapeMismatch`](TensorError::ShapeMismatch) if there are more or fewer values than
    /// elements; else as [`empty`](TensorDevice::empty).
    pub fn from_slice<T: Element>(
        &self,
        place: Place,
        shape: &[usize],
        values: &[T],
    ) -> Result<SwapTensor, TensorError> {
        SwapTensor::from_bytes(self, shape, T::DTYPE, pack(values))?.to(place)
    }

    /// Whether the tensor's bytes are in swapped memory. The address is asked, not a mark, so
    /// views, slices and detached tensors answer as the tensor they come from.
    pub fn is_swap_tensor(&self, tensor: &SwapTensor) -> bool {
        tensor.storage_address().is_some_and(|address| self.is_swapped(address))
    }

    /// Whether an address is in swapped memory.
    pub fn is_swapped(&self, address: DevicePtr) -> bool {
        self.lock().swapped.is_swapped(address)
    }

    /// The stream of all work on tensors.
    pub fn stream(&self) -> StreamHandle {
        self.lock().streams.handle(self.shared.stream)
    }

    /// Holds later work of `stream` back until all work on tensors so far is complete. Streams on
    /// which others use tensors wait like this first.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn order_stream(&self, stream: StreamHandle) -> Result<(), TensorError> {
        let mut memory = self.lock();
        let waiter = memory.streams.adopt(stream);
        let here = memory.streams.here(self.shared.stream);
        Ok(memory.streams.order_after(waiter, here, Site::TouchAfterArrival)?)
    }

    /// The driver.
    pub fn driver(&self) -> Arc<dyn Driver> {
        Arc::clone(self.lock().streams.driver())
    }

    /// Looks at pool, arena, swapped memory and streams. `look` must not drop tensors.
    pub fn inspect<R>(&self, look: impl FnOnce(&DeviceMemory) -> R) -> R {
        look(&self.lock())
    }

    /// Gives memory that no tensor has back to the driver. Waits for its last users.
    ///
    /// # Errors
    /// If the driver fails; what could not be given back is kept.
    pub fn trim(&self) -> Result<(), TensorError> {
        let memory = &mut *self.lock();
        let device = memory.pool.trim(&mut memory.streams);
        Ok(device.and(memory.arena.trim(&mut memory.streams))?)
    }

    /// Waits for all work on tensors.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn synchronize(&self) -> Result<(), TensorError> {
        Ok(self.lock().streams.synchronize()?)
    }

    /// Whether both are one device.
    pub fn is_same(&self, other: &TensorDevice) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    pub(super) fn stream_id(&self) -> StreamId {
        self.shared.stream
    }

    /// Everything is whole at each step, so a panic elsewhere does no harm.
    pub(super) fn lock(&self) -> MutexGuard<'_, DeviceMemory> {
        self.shared.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TensorDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorDevice").finish_non_exhaustive()
    }
}
