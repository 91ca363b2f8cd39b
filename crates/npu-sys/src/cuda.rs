//! The NVIDIA driver: `libcuda.so.1`, opened at run time.
//!
//! ```text
//!   Driver calls (device.rs)
//!      |-- virtual_memory.rs, pinned.rs   memory of the device, memory of the host
//!      |                 ../table.rs says what was given out; left.rs gives back the rest
//!      |-- copy.rs       copies, those to the host in turns on two streams
//!      |-- handles.rs    streams and events, alive as long as somebody uses them
//!      |-- context.rs    the primary context, made current on the calling thread
//!      |-- function.rs   host functions as C callbacks       failure.rs   codes and their texts
//!      '-- sys.rs        the library's functions             open.rs      finding and asking it
//!   kernel.rs, pattern.rs   kernels from PTX, and the two that prove what memory holds
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use crate::cuda::context::Context;
use crate::cuda::copy::Turns;
use crate::cuda::handles::Handles;
use crate::cuda::pinned::PinnedMemory;
use crate::cuda::virtual_memory::DeviceMemory;
use crate::host_function::FirstFailure;
use crate::sync::lock;
use crate::table::Rules;
use crate::types::DeviceProperties;

mod context;
mod copy;
mod device;
mod failure;
mod function;
mod handles;
mod kernel;
mod left;
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
    turns: Turns,
    rules: Rules,
    // Locked during the library's calls, so that the table is what the device has.
    device_memory: Mutex<DeviceMemory>,
    // Pinning takes long: not locked during calls, and copies look things up side by side.
    pinned_memory: RwLock<PinnedMemory>,
    failed: Arc<FirstFailure>,
}

impl CudaDriver {
    fn device_memory(&self) -> MutexGuard<'_, DeviceMemory> {
        lock(&self.device_memory)
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
