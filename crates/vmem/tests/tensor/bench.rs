//! A device with tensors behind a checker of order and a driver that can be made to fail.

use std::sync::Arc;

use vmem::devices::{CheckConfig, CheckDriver, FaultDriver, HostConfig, HostDriver};
use vmem::{ArenaConfig, DeviceMemory, Driver, PoolConfig, TensorDevice};

pub const GRANULARITY: u64 = 4096;
/// Tensors of fewer bytes stay on the device.
pub const THRESHOLD: u64 = 4096;
pub const SEGMENT: u64 = 64 << 10;

pub struct Bench {
    pub host: Arc<HostDriver>,
    pub fault: Arc<FaultDriver>,
    pub check: Arc<CheckDriver>,
    pub device: TensorDevice,
}

impl Bench {
    /// A device of `limit_bytes` in lockstep, in an order drawn from `seed`.
    pub fn new(seed: u64, limit_bytes: u64, arena_bytes: u64) -> Bench {
        Bench::on(HostConfig::lockstep(limit_bytes, seed), arena_bytes)
    }

    pub fn on(settings: HostConfig, arena_bytes: u64) -> Bench {
        Bench::prepared(settings, arena_bytes, |_| ())
    }

    /// As `on`, with memory that `prepare` has seen first.
    pub fn prepared(
        mut settings: HostConfig,
        arena_bytes: u64,
        prepare: impl FnOnce(&mut DeviceMemory),
    ) -> Bench {
        settings.granularity_bytes = GRANULARITY;
        settings.poison = Some(0x7ff4_dead_beef_7e5a);
        let pool = PoolConfig {
            limit_bytes: settings.capacity_bytes,
            swap_threshold_bytes: THRESHOLD,
            segment_bytes: SEGMENT,
        };
        let host = HostDriver::new(settings).expect("opens");
        let fault = Arc::new(FaultDriver::new(host.clone()));
        let check = Arc::new(CheckDriver::new(fault.clone(), CheckConfig::ORDER));
        let arena = ArenaConfig { region_bytes: 64 << 10, ..ArenaConfig::new(arena_bytes) };
        let driver: Arc<dyn Driver> = check.clone();
        let mut memory = DeviceMemory::new(driver, pool, arena).expect("opens");
        prepare(&mut memory);
        let device = TensorDevice::new(memory).expect("a stream");
        Bench { host, fault, check, device }
    }

    /// Closes the device, of which no tensor is left, and asks the judges.
    pub fn finish(self) {
        self.finish_after(|_| ());
    }

    /// As `finish`; `afterwards` gives back what outlived the device.
    pub fn finish_after(self, afterwards: impl FnOnce(&CheckDriver)) {
        let Bench { host, check, device, .. } = self;
        drop(device);
        afterwards(&check);
        assert_eq!(check.violations(), []);
        assert!(host.ledger().is_empty(), "{:?}", host.ledger());
    }
}
