//! Versions of the software around a device, as far as the system tells them.

use std::env;
use std::fs;

use serde::Serialize;

/// Set by the command `smartswap` of the Python package: what is installed beside it.
const PACKAGES: &str = "SMARTSWAP_PACKAGES";
/// Where Ascend's driver says which it is, in a line `Version=`.
const ASCEND_DRIVER: &str = "/usr/local/Ascend/driver/version.info";
/// Where Linux says which it is.
const KERNEL: &str = "/proc/sys/kernel/osrelease";

/// The software of this machine.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Software {
    pub(super) smartswap: &'static str,
    pub(super) system: String,
    /// PyTorch and its like, with their versions.
    pub(super) packages: Option<String>,
    /// The kernel's driver for Ascend.
    pub(super) ascend_driver: Option<String>,
}

impl Software {
    pub(super) fn read() -> Software {
        let kernel = fs::read_to_string(KERNEL).unwrap_or_default();
        let system = [env::consts::OS, kernel.trim(), env::consts::ARCH];
        let driver = fs::read_to_string(ASCEND_DRIVER).ok();
        Software {
            smartswap: env!("CARGO_PKG_VERSION"),
            system: system
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect::<Vec<_>>()
                .join(" "),
            packages: env::var(PACKAGES).ok().filter(|text| !text.is_empty()),
            ascend_driver: driver.and_then(|text| version_in(&text)),
        }
    }

    /// What each line of the report says.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let asked = "unknown: run the smartswap command of the Python package";
        let packages = self.packages.clone().unwrap_or_else(|| asked.to_owned());
        let mut lines = vec![
            ("smartswap", self.smartswap.to_owned()),
            ("system", self.system.clone()),
            ("packages", packages),
        ];
        lines.extend(self.ascend_driver.clone().map(|version| ("Ascend driver", version)));
        lines
    }
}

/// The version in a file of Ascend's.
fn version_in(text: &str) -> Option<String> {
    let version = text.lines().find_map(|line| line.trim().strip_prefix("Version="))?.trim();
    (!version.is_empty()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_found_among_other_lines() {
        let text = "Innerversion=V100\n Version=25.0.rc1 \nascendhal_version=7\n";
        assert_eq!(version_in(text).as_deref(), Some("25.0.rc1"));
        assert_eq!(version_in("package=driver\nVersion=\n"), None);
    }

    #[test]
    fn what_nobody_told_is_said_with_how_to_learn_it() {
        let known = Software {
            smartswap: "1.2.3",
            system: "linux 6.1 x86_64".to_owned(),
            packages: Some("torch 2.11.0".to_owned()),
            ascend_driver: Some("25.0.rc1".to_owned()),
        };
        assert_eq!(known.lines()[2], ("packages", "torch 2.11.0".to_owned()));
        assert_eq!(known.lines()[3], ("Ascend driver", "25.0.rc1".to_owned()));
        let unknown = Software { packages: None, ascend_driver: None, ..known };
        assert_eq!(unknown.lines().len(), 3);
        assert!(unknown.lines()[2].1.contains("Python package"));
    }
}
