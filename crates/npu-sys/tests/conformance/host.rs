//! What only the host driver has, in all its modes.

use std::ops::Deref;

use npu_sys::devices::{HostConfig, HostDriver};

use crate::rig::Rig;

mod death;
mod life;
mod memory;
mod model;
mod order;
mod time;

/// Granularity of the host drivers under test.
pub(crate) const UNIT: u64 = 64 << 10;
/// Capacity of the host drivers under test.
pub(crate) const CAPACITY: u64 = 64 * UNIT;

/// Every mode, and several seeds of the random one.
pub(crate) fn configs() -> Vec<HostConfig> {
    let mut configs = vec![HostConfig::threads(CAPACITY), HostConfig::by_time(CAPACITY)];
    configs.extend((0..12).map(|seed| HostConfig::lockstep(CAPACITY, seed)));
    configs
}

/// A host driver under test, with its own judge.
pub(crate) struct HostRig<'a> {
    rig: Rig<'a>,
    pub(crate) host: &'a HostDriver,
}

impl<'a> HostRig<'a> {
    pub(crate) fn new(host: &'a HostDriver) -> HostRig<'a> {
        HostRig { rig: Rig::of_host(host), host }
    }
}

impl<'a> Deref for HostRig<'a> {
    type Target = Rig<'a>;

    fn deref(&self) -> &Rig<'a> {
        &self.rig
    }
}

/// Runs a test in every mode. In the end nothing may be held.
fn in_all_modes(test: impl Fn(&HostRig<'_>)) {
    for config in configs() {
        in_mode(config, &test);
    }
}

/// Runs a test on one driver. In the end nothing may be held.
pub(crate) fn in_mode(config: HostConfig, test: impl Fn(&HostRig<'_>)) {
    // Shown only if the test fails.
    println!("on {config:?}");
    let driver = HostDriver::new(config).unwrap();
    test(&HostRig::new(&driver));
    assert!(driver.ledger().is_empty(), "{driver:?}");
}
