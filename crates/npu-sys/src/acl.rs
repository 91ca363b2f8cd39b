//! The Ascend driver: `libascendcl.so`, opened at run time.
//!
//! ```text
//!   Driver calls (device.rs), each with the device made current (current.rs)
//!      |-- memory.rs     device memory, by ../table.rs    host.rs      pinned, registered, mapped
//!      |-- streams.rs    streams, also those that leave   events.rs    events of both styles
//!      |-- within.rs     copies inside the device
//!      |-- function.rs   work of the host                 reports.rs   the same, older libraries
//!      '-- sys.rs        the vendor's functions           failure.rs   the vendor's codes
//! ```

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::acl::current::Device;
use crate::acl::events::Events;
use crate::acl::host::HostMemory;
use crate::acl::memory::DeviceMemory;
use crate::acl::reports::Reports;
use crate::acl::streams::Streams;
use crate::error::DriverError;
use crate::host_function::FirstFailure;
use crate::types::DeviceProperties;

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
    failure: Arc<FirstFailure>,
}

impl fmt::Debug for AclDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AclDriver")
            .field("index", &self.state.device.index)
            .field("properties", &self.state.properties)
            .finish_non_exhaustive()
    }
}

/// A number of bytes as the library takes it.
fn size(size_bytes: u64) -> usize {
    usize::try_from(size_bytes).expect("the library exists for 64-bit machines only")
}

/// An address as the library takes it.
fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(size(address))
}
