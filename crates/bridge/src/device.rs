//! The device that the engine runs on, and the streams that callers bring.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use adaptive::{
    AclDriver, Compute, CudaDriver, Driver, DriverError, HostConfig, HostDriver, HostMapping,
    StreamHandle,
};

use crate::failure::Failure;

/// A device that a caller names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceName {
    Host,
    Cuda(u32),
    Acl(u32),
}

impl FromStr for DeviceName {
    type Err = Failure;

    fn from_str(text: &str) -> Result<DeviceName, Failure> {
        let refuse = || {
            let text = format!("'{text}' is not a device: use host, cuda, cuda:1, acl or acl:1");
            Failure::settings(text)
        };
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse::<u32>().map_err(|_| refuse())?)),
            None => (text, None),
        };
        match (kind, index) {
            ("host" | "cpu", None | Some(0)) => Ok(DeviceName::Host),
            ("cuda", index) => Ok(DeviceName::Cuda(index.unwrap_or(0))),
            ("acl" | "npu", index) => Ok(DeviceName::Acl(index.unwrap_or(0))),
            _ => Err(refuse()),
        }
    }
}

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
