//! Devices by name: `host`, `cuda`, `cuda:1`, `acl`, `acl:1`.

use std::fmt;
use std::str::FromStr;

/// A device that a user names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceName {
    /// The embedded software device.
    Host,
    /// An NVIDIA GPU, by its number.
    Cuda(u32),
    /// An Ascend NPU, by its number.
    Acl(u32),
}

impl DeviceName {
    /// The driver's name.
    pub fn kind(self) -> &'static str {
        match self {
            DeviceName::Host => "host",
            DeviceName::Cuda(_) => "cuda",
            DeviceName::Acl(_) => "acl",
        }
    }
}

impl FromStr for DeviceName {
    type Err = String;

    /// Reads the names of the drivers, and PyTorch's: `cpu` and `npu`.
    fn from_str(text: &str) -> Result<DeviceName, String> {
        let refuse = || format!("'{text}' is not a device: write host, cuda, cuda:1, acl or acl:1");
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
        check("cpu", DeviceName::Host);
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
