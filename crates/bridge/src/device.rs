//! The device that the engine runs on, and the streams that callers bring.

use std::fmt;
use std::sync::Arc;

use adaptive::devices::{AclDriver, CudaDriver, HostConfig, HostDriver};
use adaptive::{Compute, DeviceName, Driver, DriverError, HostMapping, StreamHandle};

use crate::failure::Failure;

/// An open device.
#[derive(Clone)]
pub(crate) enum Device {
    /// The embedded software device. Its ops run on the calling thread.
    Host(Arc<HostDriver>),
    Cuda(Arc<CudaDriver>),
    Acl(Arc<AclDriver>),
}

impl Device {
    /// Opens a device. The software device gets `capacity_bytes` in pieces of
    /// `granularity_bytes`.
    pub(crate) fn open(
        name: DeviceName,
        capacity_bytes: u64,
        granularity_bytes: u64,
    ) -> Result<Device, Failure> {
        Ok(match name {
            DeviceName::Host => Device::Host(HostDriver::new(HostConfig {
                granularity_bytes,
                ..HostConfig::threads(capacity_bytes)
            })?),
            DeviceName::Cuda(index) => Device::Cuda(CudaDriver::open(index)?),
            DeviceName::Acl(index) => Device::Acl(AclDriver::open(index)?),
        })
    }

    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        match self {
            Device::Host(driver) => driver.clone(),
            Device::Cuda(driver) => driver.clone(),
            Device::Acl(driver) => driver.clone(),
        }
    }

    /// Whether it has host memory in which tensors work as in any other: a framework's copies use
    /// the device's addresses as kernels do.
    pub(crate) fn has_swapped_memory(&self) -> bool {
        match self.driver().properties().host_mapping {
            HostMapping::Nothing | HostMapping::Kernels => false,
            HostMapping::AllocatedForAll | HostMapping::AllForAll => true,
        }
    }

    /// Makes a stream of the caller known to the driver; `None` where ops run on the calling
    /// thread.
    pub(crate) fn adopt(&self, stream: u64) -> Result<Option<StreamHandle>, DriverError> {
        match self {
            Device::Host(_) => Ok(None),
            Device::Cuda(driver) => {
                // SAFETY: the interface asks callers for streams of the device that live as long
                // as the engine, which is what frameworks' pooled streams do.
                unsafe { driver.adopt_stream(stream) }.map(Some)
            }
            Device::Acl(driver) => {
                // SAFETY: as above.
                unsafe { driver.adopt_stream(stream) }.map(Some)
            }
        }
    }

    /// Where ops run by default.
    pub(crate) fn compute(&self, stream: u64) -> Result<Compute, DriverError> {
        Ok(self.adopt(stream)?.map_or(Compute::HostThread, Compute::Stream))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.driver().properties().name).finish()
    }
}
