//! The Ascend driver: `libascendcl.so`, opened at run time.
//!
//! ```text
//!   Driver calls (device.rs), each with the device made current (current.rs)
//!      |-- memory.rs     addresses, chunks, mappings      host.rs      pinned, registered, mapped
//!      |-- streams.rs    streams, also those that leave   events.rs    events of both styles
//!      |-- within.rs     copies inside the device
//!      |-- function.rs   work of the host                 reports.rs   the same, older libraries
//!      '-- sys.rs        the vendor's functions           failure.rs   the vendor's codes
//! ```

use std::ffi::c_void;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::acl::current::Device;
use crate::acl::events::Events;
use crate::acl::function::Failure;
use crate::acl::host::HostMemory;
use crate::acl::memory::DeviceMemory;
use crate::acl::reports::Reports;
use crate::acl::streams::Streams;
use crate::error::{DriverError, OpenError};
use crate::types::{DeviceProperties, StreamHandle};

mod current;
mod device;
mod events;
mod failure;
mod function;
mod host;
mod memory;
mod open;
mod reports;
mod streams;
mod sys;
#[cfg(test)]
mod tests;
mod within;

/// An Ascend NPU.
///
/// - The library is the file given when it is opened, else the one that the environment variable
///   `SMARTSWAP_ACL_LIBRARY` names, else `libascendcl.so` where the system's loader finds it.
/// - Host functions may look at the driver but not submit work or wait. Those that declare
///   accesses are [`Unsupported`](crate::ErrorKind::Unsupported), as the host cannot address the
///   device's memory. The stand-in library of the tests is the exception: it names its device
///   `SmartSwap stand-in`, and its memory is the host's.
/// - A panic in a host function is kept: every later synchronize, query and `elapsed_us` fails
///   with its text.
/// - Copies and fills may use the device addresses of host memory, though the library refuses
///   them: they become copies from and to the host, or functions of the host.
/// - Dropping it waits for its streams, and frees all memory that it gave out.
pub struct AclDriver {
    state: Arc<State>,
}

/// Everything of one driver, apart from who owns it.
struct State {
    device: Arc<Device>,
    properties: DeviceProperties,
    /// Why addresses and memory cannot be taken apart, on devices where that is so.
    no_virtual_memory: Option<DriverError>,
    memory: DeviceMemory,
    host: HostMemory,
    streams: Streams,
    events: Events,
    reports: Reports,
    failure: Arc<Failure>,
}

impl AclDriver {
    /// Opens device `index`, counted from 0 among those that the process may see.
    ///
    /// # Errors
    /// No library, a wrong one or one without a needed function, no such device, or a failure of
    /// the device.
    pub fn open(index: u32, library: Option<&Path>) -> Result<Arc<AclDriver>, OpenError> {
        Ok(Arc::new(AclDriver { state: Arc::new(open::open(index, library)?) }))
    }

    /// Takes in a stream of another library, so that it can be used like one of the driver's.
    ///
    /// `stream` is its `aclrtStream` as a number; 0 is the context's default stream.
    /// `destroy_stream` ends the adoption and leaves the stream alive. A stream that is known
    /// already keeps its handle.
    ///
    /// # Errors
    /// None today; as the other drivers'.
    ///
    /// # Safety
    /// It is a stream of the device's default context and lives until `destroy_stream`, or until
    /// the driver is dropped.
    pub unsafe fn adopt_stream(&self, stream: u64) -> Result<StreamHandle, DriverError> {
        Ok(self.state.streams.adopt(sys::aclrtStream(pointer(stream))))
    }

    /// The number of devices that the process may see.
    ///
    /// # Errors
    /// As [`open`](AclDriver::open), without those of a device.
    pub fn device_count(library: Option<&Path>) -> Result<u32, OpenError> {
        open::device_count(&open::load(library)?)
    }
}

impl Drop for AclDriver {
    fn drop(&mut self) {
        let state = Arc::clone(&self.state);
        if function::in_host_function() {
            // The function's own stream can be waited for only after the function.
            thread::spawn(move || state.close());
        } else {
            state.close();
        }
    }
}

impl fmt::Debug for AclDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AclDriver")
            .field("index", &self.state.device.index)
            .field("properties", &self.state.properties)
            .finish_non_exhaustive()
    }
}

/// Locks. No value here is left half-changed by a panic, so a poisoned lock is used on.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A number of bytes as the library takes it.
fn size(size_bytes: u64) -> usize {
    usize::try_from(size_bytes).expect("the library exists for 64-bit machines only")
}

/// An address as the library takes it.
fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(size(address))
}
