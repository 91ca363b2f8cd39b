//! Which drivers the contract is tested on: all that are present.
//!
//! | driver | present when |
//! |---|---|
//! | host | always, in all its modes, with and without virtual memory |
//! | acl | `SMARTSWAP_ACL_LIBRARY` names a library, or cargo is there to build the stand-in |
//! | cuda | a CUDA device is found |
//!
//! `SMARTSWAP_REQUIRE=cuda,acl` makes it a failure that one of them is absent.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use npu_sys::Driver;
use npu_sys::devices::{AclDriver, CudaDriver, HostConfig, OpenError, RecordDriver};

use crate::host::{CAPACITY, configs, in_mode};
use crate::rig::{Rig, Time};

#[path = "../../../acl-standin/built.rs"]
mod built;

/// Runs a test on every driver that is present. In the end nothing may be held.
pub(crate) fn on_all_drivers(test: impl Fn(&Rig<'_>)) {
    for config in configs() {
        in_mode(config, |rig| test(rig));
    }
    for config in [HostConfig::threads(CAPACITY), HostConfig::lockstep(CAPACITY, 1)] {
        in_mode(HostConfig { has_virtual_memory: false, ..config }, |rig| test(rig));
    }
    on_devices(test);
}

/// As [`on_all_drivers`], but on the host driver in one mode only.
pub(crate) fn once_on_each_driver(test: impl Fn(&Rig<'_>)) {
    in_mode(HostConfig::threads(CAPACITY), |rig| test(rig));
    on_devices(test);
}

fn on_devices(test: impl Fn(&Rig<'_>)) {
    for device in Device::ALL {
        on_device(device, &test);
    }
}

/// As [`on_all_drivers`], on those that have virtual memory.
pub(crate) fn with_virtual_memory(test: impl Fn(&Rig<'_>)) {
    on_all_drivers(|rig| {
        if rig.properties.has_virtual_memory {
            test(rig);
        }
    });
}

/// Runs a test on a driver opened anew, if it is present. One test at a time has the devices.
fn on_device(device: Device, test: impl Fn(&Rig<'_>)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Ok(driver) = device.open() {
        // Shown only if the test fails.
        println!("on {}", device.name());
        let record = RecordDriver::new(driver);
        test(&Rig::new(&record, Time::Real));
        assert_balance(device, &record);
    }
    drop(alone);
}

/// All that the driver gave out it got back.
fn assert_balance(device: Device, record: &RecordDriver) {
    let calls = record.calls();
    let done = |name| calls.iter().filter(|it| it.name == name && it.outcome.is_ok()).count();
    for (take, give) in [
        ("reserve", "free_range"),
        ("create_chunk", "release_chunk"),
        ("map", "unmap"),
        ("allocate_device", "free_device"),
        ("allocate_pinned", "free_pinned"),
        ("register_host", "unregister_host"),
        ("create_stream", "destroy_stream"),
        ("create_event", "destroy_event"),
    ] {
        assert_eq!(done(take), done(give), "{device:?}: {take} and {give}");
    }
}

/// A driver that is not a host driver.
#[derive(Clone, Copy, Debug)]
enum Device {
    Acl,
    Cuda,
}

impl Device {
    const ALL: [Device; 2] = [Device::Acl, Device::Cuda];

    /// As `SMARTSWAP_REQUIRE` writes it.
    fn name(self) -> &'static str {
        match self {
            Device::Acl => "acl",
            Device::Cuda => "cuda",
        }
    }

    /// Opens the first device, or says why there is none. One that is there must open.
    fn open(self) -> Result<Arc<dyn Driver>, String> {
        let opened: Result<Arc<dyn Driver>, OpenError> = match self {
            // SAFETY: the vendor's library by the environment's word, or the stand-in.
            Device::Acl => unsafe { AclDriver::open_from(acl_library()?, 0) }.map(|it| it as _),
            Device::Cuda => CudaDriver::open(0).map(|driver| driver as _),
        };
        opened.map_err(|error| match error {
            OpenError::NoLibrary { .. } | OpenError::NoDevice { .. } => error.to_string(),
            broken => panic!("{self:?} is present and does not open: {broken}"),
        })
    }
}

/// The library of the ACL driver: the one that the environment names, or the stand-in.
fn acl_library() -> Result<&'static Path, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| match std::env::var_os("SMARTSWAP_ACL_LIBRARY") {
        Some(path) => Ok(PathBuf::from(path)),
        None => built::standin(),
    });
    found.as_deref().map_err(String::clone)
}

#[test]
fn the_drivers_that_are_required_are_present() {
    let required = std::env::var("SMARTSWAP_REQUIRE").unwrap_or_default();
    let required: Vec<&str> = required.split(',').filter(|name| !name.is_empty()).collect();
    for name in &required {
        let is_known = Device::ALL.iter().any(|device| device.name() == *name);
        assert!(is_known, "SMARTSWAP_REQUIRE names '{name}': write cuda or acl");
    }
    println!("host: {} modes, and without virtual memory", configs().len());
    for device in Device::ALL {
        let name = device.name();
        match device.open() {
            Ok(driver) => {
                let properties = driver.properties();
                println!("{name}: {} ({})", properties.name, properties.driver_version);
            }
            Err(why) => {
                println!("{name}: not tested: {why}");
                assert!(!required.contains(&name), "{name} is required: {why}");
            }
        }
    }
}
