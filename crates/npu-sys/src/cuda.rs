//! The NVIDIA driver: `libcuda.so.1`, opened at run time.
//!
//! ```text
//!   Driver calls (device.rs)
//!      |-- virtual_memory.rs, pinned.rs   memory of the device, memory of the host
//!      |-- memory.rs     what was given out: wrong numbers are refused; left.rs frees the rest
//!      |-- handles.rs    streams and events, alive as long as somebody uses them
//!      |-- context.rs    the primary context, made current on the calling thread
//!      |-- function.rs   host functions as C callbacks       failure.rs   codes and their texts
//!      '-- sys.rs        the library's functions             open.rs      finding and asking it
//!   kernel.rs, pattern.rs   kernels from PTX, and the two that prove what memory holds
//! ```

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::cuda::context::Context;
use crate::cuda::function::Failed;
use crate::cuda::handles::{Handles, Kind};
use crate::cuda::left::Left;
use crate::cuda::memory::{DeviceMemory, PinnedMemory};
use crate::error::{DriverError, OpenError};
use crate::types::{DeviceProperties, StreamHandle};

mod context;
mod device;
mod failure;
mod function;
mod handles;
mod kernel;
mod left;
mod memory;
mod open;
pub(crate) mod pattern;
mod pinned;
mod sys;
#[cfg(test)]
mod tests;
mod virtual_memory;

/// One NVIDIA GPU.
///
/// - It works in the device's primary context, as PyTorch and the CUDA runtime do: addresses,
///   streams and events can be shared with them. A thread that had another device's context gets
///   it back after each call.
/// - Numbers of streams, events and chunks that it did not give out are
///   [`Invalid`](crate::ErrorKind::Invalid). Streams of others are made known with
///   [`adopt_stream`](CudaDriver::adopt_stream).
/// - Its streams do not wait for the legacy default stream, nor that for them: order work on it
///   with events.
/// - A wait for the device spins: the engine waits only when an allocation has no other way, and
///   is then in a hurry.
/// - Host functions run on threads of the library, may not call any CUDA function, and cannot
///   declare accesses. They run one at a time: one that blocks holds up those of all streams,
///   though not copies and kernels. A panic in one is kept: every later synchronize, query and
///   `elapsed_us` fails with its text. After an error of the device they may never run.
/// - `free_device` waits for the device, as `cuMemFree` does. Without virtual memory there is no
///   way round it.
/// - Dropping it waits for the device, and gives back all that it holds.
pub struct CudaDriver {
    context: Arc<Context>,
    properties: DeviceProperties,
    /// Why there is no virtual memory, if there is none.
    lack: Option<String>,
    streams: Handles,
    events: Handles,
    // Locked during the library's calls, so that the table is what the device has.
    device_memory: Mutex<DeviceMemory>,
    // Pinning takes long: not locked during calls, and copies look things up side by side.
    pinned_memory: RwLock<PinnedMemory>,
    failed: Failed,
}

impl CudaDriver {
    /// Opens a device.
    ///
    /// The library is the file that `SMARTSWAP_CUDA_LIBRARY` names, else the system's
    /// `libcuda.so.1`. `CUDA_VISIBLE_DEVICES` counts: `index` is a place among visible devices.
    ///
    /// # Errors
    /// [`OpenError`] says what was tried: no library, a wrong file, a library that is too old,
    /// no such device, or a driver that does not start.
    pub fn open(index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        let library = open::library_of_environment();
        CudaDriver::open_with(library.as_deref().map(Path::new), index)
    }

    /// As [`open`](CudaDriver::open), with the library in this file, whatever the environment
    /// says.
    ///
    /// # Errors
    /// As for `open`.
    pub fn open_from(library: &Path, index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        CudaDriver::open_with(Some(library), index)
    }

    /// The number of devices that [`open`](CudaDriver::open) can open.
    ///
    /// # Errors
    /// As for `open`. No device is no error: the number is 0.
    pub fn device_count() -> Result<u32, OpenError> {
        let library = open::library_of_environment();
        let api = open::load(library.as_deref().map(Path::new))?;
        Ok(open::count_devices(&api)?)
    }

    fn open_with(library: Option<&Path>, index: u32) -> Result<Arc<CudaDriver>, OpenError> {
        let api = open::load(library)?;
        let count = open::count_devices(&api)?;
        if index >= count {
            return Err(OpenError::NoDevice { name: "CUDA", index, count });
        }
        let device = open::device(&api, index)?;
        let lack = open::lack_of_virtual_memory(&api, device)?;
        let context = Arc::new(Context::retain(api, device)?);
        let properties = {
            let _current = context.enter("open")?;
            open::properties(&api, device, lack.is_none())?
        };
        Ok(Arc::new(CudaDriver {
            context,
            properties,
            lack,
            streams: Handles::new("stream"),
            events: Handles::new("event"),
            device_memory: Mutex::default(),
            pinned_memory: RwLock::default(),
            failed: Failed::default(),
        }))
    }

    /// Takes in a stream of another library, so that it can be used like one of the driver's.
    ///
    /// `stream` is its `CUstream` (equally, `cudaStream_t`) as a number; 0 is the legacy default
    /// stream. `destroy_stream` ends the adoption and leaves the stream alive. A stream that is
    /// known already stays what it is.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) inside a host function.
    ///
    /// # Safety
    /// It is a stream of the device's primary context and lives until `destroy_stream`, or until
    /// the driver is dropped.
    pub unsafe fn adopt_stream(&self, stream: u64) -> Result<StreamHandle, DriverError> {
        let call = "adopt_stream";
        drop(self.context.enter(call)?);
        if self.streams.get(call, stream).is_err() {
            self.streams.insert(stream, Kind::BorrowedStream, &self.context);
        }
        Ok(StreamHandle(stream))
    }

    fn device_memory(&self) -> MutexGuard<'_, DeviceMemory> {
        // A panic leaves no table half-changed.
        self.device_memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("properties", &self.properties)
            .field("lack", &self.lack)
            .finish_non_exhaustive()
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        let mut handles = self.streams.take_all();
        handles.extend(self.events.take_all());
        let pinned_memory = self.pinned_memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        let device_memory = self.device_memory.get_mut().unwrap_or_else(PoisonError::into_inner);
        let left = Left {
            handles,
            context: Arc::clone(&self.context),
            device_memory: std::mem::take(device_memory),
            pinned_memory: std::mem::take(pinned_memory),
        };
        // A host function may have held the last handle.
        function::outside("cuda drop", || left.give_back());
    }
}
