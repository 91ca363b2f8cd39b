//! The devices that commands open.

use std::sync::Arc;

use adaptive::devices::{AclDriver, CudaDriver, OpenError};
use adaptive::{DeviceName, Driver};

/// An open accelerator.
#[derive(Clone, Debug)]
pub(crate) enum Accelerator {
    /// An NVIDIA GPU.
    Cuda(Arc<CudaDriver>),
    /// An Ascend NPU.
    Acl(Arc<AclDriver>),
}

impl Accelerator {
    /// Opens a device; `None` for the software device, which needs settings of its own.
    pub(crate) fn open(name: DeviceName) -> Result<Option<Accelerator>, OpenError> {
        Ok(match name {
            DeviceName::Host => None,
            DeviceName::Cuda(index) => Some(Accelerator::Cuda(CudaDriver::open(index)?)),
            DeviceName::Acl(index) => Some(Accelerator::Acl(AclDriver::open(index)?)),
        })
    }

    /// The device as the engine sees it.
    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        match self {
            Accelerator::Cuda(driver) => driver.clone(),
            Accelerator::Acl(driver) => driver.clone(),
        }
    }
}
