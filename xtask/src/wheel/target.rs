//! The platform that a wheel is for: that of the Python it is made for.
//!
//! A Python for another machine runs here through QEMU, if the system knows to start its programs
//! that way. Compilers and linkers are then this machine's, for the other.

use std::env::consts::ARCH;
use std::path::{Path, PathBuf};

use anyhow::bail;
use xshell::{Shell, cmd};

/// Machines that there are wheels for.
const MACHINES: [&str; 2] = ["x86_64", "aarch64"];
/// The glibc that PyTorch's own wheels ask for.
const GLIBC: [u32; 2] = [2, 28];

/// A machine and its C library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    machine: &'static str,
}

impl Target {
    /// The platform of a Python.
    ///
    /// # Errors
    /// If it does not run, or there are no wheels for its machine.
    pub(super) fn of(shell: &Shell, python: &Path) -> anyhow::Result<Self> {
        let told = "import platform; print(platform.machine())";
        Self::named(&cmd!(shell, "{python} -c {told}").quiet().read()?)
    }

    fn named(machine: &str) -> anyhow::Result<Self> {
        match MACHINES.into_iter().find(|&known| known == machine) {
            Some(machine) => Ok(Self { machine }),
            None => bail!("this Python is for {machine}; wheels are made for {MACHINES:?}"),
        }
    }

    /// Whether it is the machine that this program runs on.
    pub(super) fn is_here(&self) -> bool {
        self.machine == ARCH
    }

    /// As Python and the kernel name it.
    pub(super) fn machine(&self) -> &str {
        self.machine
    }

    /// As Rust names it.
    pub(super) fn triple(&self) -> String {
        format!("{}-unknown-linux-gnu", self.machine)
    }

    /// As `cargo zigbuild` takes it: zig knows the symbols of each glibc.
    pub(super) fn triple_with_glibc(&self) -> String {
        let [major, minor] = GLIBC;
        format!("{}.{major}.{minor}", self.triple())
    }

    /// As the names of wheels have it.
    pub(super) fn platform(&self) -> String {
        let [major, minor] = GLIBC;
        format!("manylinux_{major}_{minor}_{}", self.machine)
    }

    /// A GNU tool that makes or reads files for it, as Debian and Ubuntu name them.
    pub(super) fn tool(&self, name: &str) -> PathBuf {
        match self.is_here() {
            true => PathBuf::from(name),
            false => PathBuf::from(format!("{}-linux-gnu-{name}", self.machine)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_machine_has_its_names() {
        let target = Target::named("aarch64").expect("there are wheels for it");
        assert_eq!(target.triple_with_glibc(), "aarch64-unknown-linux-gnu.2.28");
        assert_eq!(target.platform(), "manylinux_2_28_aarch64");
        let here = Target::named(ARCH).expect("tests run on one of them");
        assert_eq!(here.tool("strip"), Path::new("strip"));
        let other = MACHINES.into_iter().find(|&machine| machine != ARCH).expect("there are two");
        let other = Target::named(other).expect("it is one of them");
        assert_eq!(other.tool("g++"), PathBuf::from(format!("{}-linux-gnu-g++", other.machine)));
    }

    #[test]
    fn other_machines_are_refused() {
        let error = Target::named("riscv64").expect_err("there are no wheels for it");
        assert!(error.to_string().starts_with("this Python is for riscv64;"), "{error}");
    }
}
