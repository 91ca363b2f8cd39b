//! Devices by name: `host`, `cuda`, `cuda:1`, `acl`, `acl:1`, `npu`.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use adaptive::{AclDriver, CudaDriver, Driver, OpenError};

/// A device that the command line names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceName {
    /// The embedded software device.
    Host,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// An Ascend NPU, by its number.
    Acl(u32),
}

/// An open accelerator.
#[derive(Clone, Debug)]
pub(crate) enum Accelerator {
    /// An NVIDIA GPU.
    Cuda(Arc<CudaDriver>),
    /// An Ascend NPU.
    Acl(Arc<AclDriver>),
}

impl Accelerator {
    /// Opens a device; nothing for the software device, which needs settings of its own.
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

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        let refuse = || format!("'{text}' is not a device: write host, cuda, cuda:1, acl or acl:1");
        let (kind, index) = match text.split_once(':') {
            Some((kind, index)) => (kind, Some(index.parse::<u32>().map_err(|_| refuse())?)),
            None => (text, None),
        };
        match (kind, index) {
            ("host", None | Some(0)) => Ok(DeviceName::Host),
            ("cuda", index) => Ok(DeviceName::Cuda(index.unwrap_or(0))),
            // PyTorch's name for it.
            ("acl" | "npu", index) => Ok(DeviceName::Acl(index.unwrap_or(0))),
            _ => Err(refuse()),
        }
    }
}

impl DeviceName {
    /// The driver's name.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            DeviceName::Host => "host",
            DeviceName::Cuda(_) => "cuda",
            DeviceName::Acl(_) => "acl",
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind();
        match self {
            DeviceName::Host => f.write_str(kind),
            DeviceName::Cuda(index) | DeviceName::Acl(index) => write!(f, "{kind}:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_go_by_kind_and_number() {
        let check = |text: &str, expect: DeviceName| {
            assert_eq!(text.parse(), Ok(expect), "{text}");
        };
        check("host", DeviceName::Host);
        check("cuda", DeviceName::Cuda(0));
        check("cuda:3", DeviceName::Cuda(3));
        check("acl:1", DeviceName::Acl(1));
        check("npu:2", DeviceName::Acl(2));
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "host:1", "acl:1:2"] {
            let error = text.parse::<DeviceName>().unwrap_err();
            assert!(error.contains("cuda:1"), "{error}");
        }
        assert_eq!(DeviceName::Cuda(2).to_string(), "cuda:2");
    }
}
