//! Device drivers behind one object-safe trait.
//!
//! [`Driver`] is the contract: reserve addresses, create physical memory, map one to the other,
//! pin host memory, copy and run on streams, order with events. The embedded
//! [`HostDriver`](devices::HostDriver) is a software device that keeps the whole contract, so
//! everything above it runs and is tested on a machine without an accelerator. What wraps a driver
//! is in [`devices`] too: one wrapper fails calls, one proves that all work is ordered, one keeps
//! a log, and one adds up what calls cost the host.
//!
//! | word | meaning |
//! |---|---|
//! | chunk | a piece of physical device memory, held by a [`ChunkHandle`] |
//! | range | reserved device addresses, a [`VaRange`], with nothing behind them until mapped |
//! | pinned | host memory that the device can copy to and from while the host goes on |
//! | stream | a queue whose work runs in order, a [`StreamHandle`] |
//! | event | a point in a stream's work, an [`EventHandle`] |
//! | host function | a function that runs in stream order; on the host driver, a kernel |
//! | ledger | the host driver's own count of all it gave out, a [`Ledger`](devices::Ledger) |
//!
//! # Example
//!
//! ```
//! use npu_sys::devices::{HostConfig, HostDriver};
//! use npu_sys::{Access, AccessMode, Copy, Driver, HostFunction};
//!
//! let device = HostDriver::new(HostConfig::threads(1 << 20))?;
//! let size_bytes = device.properties().granularity_bytes;
//!
//! // Addresses and memory are two things; mapping brings them together.
//! let range = device.reserve(size_bytes)?;
//! let chunk = device.create_chunk(size_bytes)?;
//! device.map(range, chunk)?;
//! device.set_access(range)?;
//!
//! let host = device.allocate_pinned(size_bytes)?;
//! let address = std::ptr::with_exposed_provenance_mut::<f32>(host.0 as usize);
//! // SAFETY: the pinned memory is ours, long enough and aligned to a page.
//! unsafe { address.write(20.5) };
//!
//! // Copy in, double each number on the device, copy out: in stream order.
//! let stream = device.create_stream()?;
//! let inward = Copy::HostToDevice { source: host, target: range.start, size_bytes };
//! let outward = Copy::DeviceToHost { source: range.start, target: host, size_bytes };
//! let double = HostFunction {
//!     name: "double",
//!     accesses: vec![Access { start: range.start, size_bytes, mode: AccessMode::ReadWrite }],
//!     cost_us: 1.0,
//!     body: Box::new(|operands| operands.write::<f32>(0).iter_mut().for_each(|x| *x *= 2.0)),
//! };
//! // SAFETY: both places live until the stream is synchronized below.
//! unsafe { device.copy(inward, stream) }?;
//! // SAFETY: the range stays mapped until then as well.
//! unsafe { device.launch_host(double, stream) }?;
//! // SAFETY: as for the first copy.
//! unsafe { device.copy(outward, stream) }?;
//! device.synchronize_stream(stream)?;
//! // SAFETY: nothing writes to the pinned memory any more.
//! assert_eq!(unsafe { address.read() }, 41.0);
//!
//! // SAFETY: all work is complete.
//! unsafe { device.unmap(range) }?;
//! // SAFETY: all work is complete and `address` is not used again.
//! unsafe { device.free_pinned(host) }?;
//! device.release_chunk(chunk)?;
//! device.free_range(range)?;
//! device.destroy_stream(stream)?;
//! assert!(device.ledger().is_empty());
//! # Ok::<(), npu_sys::DriverError>(())
//! ```
//!
//! # Safety model
//!
//! Nothing here hands out a reference to device or pinned memory, except to a running host
//! function. Addresses are plain numbers; the `unsafe` methods of [`Driver`] say what their
//! callers promise about them. The host driver checks what it can when work is submitted, and
//! memory that is not mapped faults when it is touched.
//!
//! What a driver cannot give back when it is dropped is counted, with the library's words:
//! [`drop_failures`].
//!
//! This crate decides nothing and caches nothing: every call goes to the device.

mod acl;
mod cuda;
mod driver;
mod drop_failures;
mod error;
mod extents;
mod host;
mod host_function;
mod load;
mod operands;
mod pages;
mod pattern;

mod sync;
mod system;
mod table;
mod types;
mod wrap;

pub use driver::{Driver, HostFunction, Operands};
pub use drop_failures::{DropFailures, drop_failures};
pub use error::{DriverError, ErrorKind};
pub use pages::{HostPages, PageKind, PagesError, Touching, page_bytes};
pub use types::{
    Access, AccessMode, Bytes, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle,
    EventKind, HostMapping, HostPtr, MemoryInfo, ParseBytesError, StreamHandle, VaRange,
};

/// What front ends, tools and tests take from here: devices to open, what the host has, and what
/// stands in front of a device. Each layer above passes it on as a whole.
pub mod devices {
    pub use crate::acl::AclDriver;
    pub use crate::cuda::CudaDriver;
    pub use crate::cuda::pattern::PatternKernels;
    pub use crate::error::OpenError;
    pub use crate::host::HostDriver;
    pub use crate::host::config::{HostConfig, HostLink, Mode, Order};
    pub use crate::host::ledger::Ledger;
    pub use crate::host::timeline::{DeviceSpan, SpanKind};
    pub use crate::pattern::{Numbers, pattern_word};
    pub use crate::system::{
        GroupMemory, HostMemory, HugePages, NumaNode, numa_nodes, pci_numa_node,
    };
    pub use crate::wrap::{
        AccessSite, Address, CallCost, CheckConfig, CheckDriver, FALLIBLE_CALLS, FaultDriver,
        FaultPlan, ForeignCall, Lasting, Memory, MeterDriver, RecordDriver, RecordedCall,
        Violation,
    };
}
