//! The device that models run on, software or not: how it is set up, and what the machine has
//! room for.

use std::sync::Arc;

use adaptive::devices::{HostConfig, HostDriver, HostLink, HostMemory, measure_link};
use adaptive::{
    ArenaConfig, Compute, Config, Driver, DriverError, Engine, Error, GenerateConfig, JointConfig,
    Link, Machine, PoolConfig, Strategy,
};

use crate::open::Accelerator;

/// Chunks are multiples of this, so that the rounding of a tensor costs little beside it.
const GRANULARITY_BYTES: u64 = 64 << 10;
/// Tensors from this size on can leave: copying less takes no longer than starting the copy.
const SWAP_THRESHOLD_BYTES: u64 = 256 << 10;
/// Small tensors lie in segments of this size, which stay for good.
const SEGMENT_BYTES: u64 = 1 << 20;
/// Host memory is pinned in pieces of this size.
const REGION_BYTES: u64 = 16 << 20;
/// Work that a stream holds: more than two steps, so that submitting never waits for a place.
const QUEUE_DEPTH: usize = 1 << 18;
/// More than any machine has: a device without a cap. Only what is used takes real memory.
const ROOMY_BYTES: u64 = 1 << 45;
/// Fixed time of one copy of the software device, in microseconds: a thread is woken for it, which
/// takes longer than an accelerator's copy engine does.
const COPY_SUBMIT_US: f64 = 30.0;

/// The device's memory and its link.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// The cap; none for as much as the model takes.
    pub(crate) limit_bytes: Option<u64>,
    /// The cap on pinned host memory.
    pub(crate) host_limit_bytes: u64,
    /// Speed of the link each way.
    pub(crate) link_bytes_per_s: u64,
    /// What does not depend on the run.
    pub(crate) ground: Ground,
}

/// What a device brings with it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ground {
    /// Chunks are multiples of this.
    pub(crate) granularity_bytes: u64,
    /// What there is to take.
    pub(crate) capacity_bytes: u64,
}

/// How time passes on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Time {
    /// As it does.
    Real,
    /// On a virtual clock, without threads.
    Virtual,
}

/// A device and the engine that owns its memory.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) engine: Engine,
    pub(crate) driver: Arc<dyn Driver>,
    /// The same driver, if it is the software device.
    pub(crate) software: Option<Arc<HostDriver>>,
}

impl Ground {
    /// The software device.
    pub(crate) const SOFTWARE: Ground =
        Ground { granularity_bytes: GRANULARITY_BYTES, capacity_bytes: ROOMY_BYTES };

    /// A device that is open.
    pub(crate) fn of(driver: &dyn Driver) -> Result<Ground, DriverError> {
        Ok(Ground {
            granularity_bytes: driver.properties().granularity_bytes,
            capacity_bytes: driver.memory_info()?.free_bytes,
        })
    }

    /// The speed of a device's link, measured both ways at once.
    pub(crate) fn link_bytes_per_s(self, driver: &Arc<dyn Driver>) -> Result<u64, DriverError> {
        /// Copies that are timed.
        const COUNT: u32 = 4;
        // The bench takes two pieces of device memory.
        let piece_bytes = self.round_down(REGION_BYTES.min(self.capacity_bytes / 4));
        let rates = measure_link(driver, piece_bytes.max(self.granularity_bytes), COUNT)?;
        Ok((rates.both_bytes_per_s as u64).max(1))
    }

    /// The largest size in whole chunks that is not above `bytes`.
    fn round_down(self, bytes: u64) -> u64 {
        bytes / self.granularity_bytes * self.granularity_bytes
    }

    /// The smallest size in whole chunks that is not below `bytes`.
    pub(crate) fn round_up(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.granularity_bytes).saturating_mul(self.granularity_bytes)
    }
}

impl Setup {
    /// The cap as it is enforced: whole chunks only.
    pub(crate) fn enforced_bytes(&self) -> u64 {
        self.ground.round_down(self.limit_bytes.unwrap_or(self.ground.capacity_bytes))
    }

    /// Tensors from this size on have chunks of their own.
    fn swap_threshold_bytes(&self) -> u64 {
        SWAP_THRESHOLD_BYTES.max(self.ground.granularity_bytes)
    }

    /// Takes an accelerator, or the software device if there is none.
    pub(crate) fn open_on(&self, accelerator: Option<&Accelerator>) -> Result<Device, Error> {
        match accelerator {
            None => self.open(Time::Real),
            Some(accelerator) => {
                let driver = accelerator.driver();
                let engine = Engine::new(Arc::clone(&driver), self.config())?;
                Ok(Device { engine, driver, software: None })
            }
        }
    }

    /// Opens a software device.
    pub(crate) fn open(&self, time: Time) -> Result<Device, Error> {
        let limit_bytes = self.enforced_bytes();
        // The driver refuses whatever exceeds the cap, whoever asks.
        let base = match time {
            Time::Real => HostConfig::threads(limit_bytes),
            Time::Virtual => HostConfig::by_time(limit_bytes),
        };
        let driver = HostDriver::new(HostConfig {
            granularity_bytes: self.ground.granularity_bytes,
            link: Some(HostLink::duplex(self.link_bytes_per_s)),
            queue_depth: QUEUE_DEPTH,
            ..base
        })?;
        let engine = Engine::new(driver.clone(), self.config())?;
        Ok(Device { engine, driver: driver.clone(), software: Some(driver) })
    }

    /// Settings of the engine.
    fn config(&self) -> Config {
        let swap_threshold_bytes = self.swap_threshold_bytes();
        Config {
            pool: PoolConfig {
                limit_bytes: self.enforced_bytes(),
                swap_threshold_bytes,
                segment_bytes: SEGMENT_BYTES.max(swap_threshold_bytes),
            },
            arena: ArenaConfig {
                region_bytes: REGION_BYTES,
                ..ArenaConfig::new(self.host_limit_bytes)
            },
            compute: Compute::Own,
            record: false,
        }
    }

    /// The device as planners see it.
    pub(crate) fn machine(&self) -> Machine {
        let bytes_per_us = self.link_bytes_per_s as f64 / 1e6;
        Machine {
            limit_bytes: self.enforced_bytes(),
            host_limit_bytes: self.host_limit_bytes,
            link: Link {
                out_bytes_per_us: bytes_per_us,
                in_bytes_per_us: bytes_per_us,
                both_bytes_per_us: bytes_per_us,
            },
            copy_submit_us: COPY_SUBMIT_US,
        }
    }

    /// Settings of the planner: whatever can leave may be planned.
    pub(crate) fn planning(&self, strategy: Strategy) -> JointConfig {
        let min_block_bytes = self.swap_threshold_bytes();
        let generate = GenerateConfig { min_block_bytes, ..GenerateConfig::default() };
        JointConfig { strategy, generate, ..JointConfig::default() }
    }
}

impl Device {
    /// Physical bytes at the highest: by the software device's own count, else by the engine's.
    pub(crate) fn peak_bytes(&self) -> Result<u64, Error> {
        match &self.software {
            Some(driver) => Ok(driver.ledger().chunk_bytes_peak),
            None => Ok(self.engine.memory_stats()?.reserved_bytes.peak),
        }
    }
}

/// The largest size in whole chunks of the software device that is not above `bytes`.
pub(crate) fn round_down(bytes: u64) -> u64 {
    Ground::SOFTWARE.round_down(bytes)
}

/// Memory that this machine can give to a process, as the system counts it; `None` where it
/// does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    HostMemory::read().room_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_driver_itself_enforces_the_cap_in_whole_chunks() {
        let setup = Setup {
            limit_bytes: Some((5 << 20) + 1),
            host_limit_bytes: 1 << 20,
            link_bytes_per_s: 1 << 30,
            ground: Ground::SOFTWARE,
        };
        let device = setup.open(Time::Virtual).unwrap();
        assert_eq!(device.driver.properties().total_bytes, 5 << 20);
        assert_eq!(setup.machine().limit_bytes, 5 << 20);
        assert_eq!((round_down(65_537), setup.ground.round_up(65_537)), (65_536, 131_072));
        let coarse = Ground { granularity_bytes: 2 << 20, ..Ground::SOFTWARE };
        let setup = Setup { ground: coarse, ..setup };
        let device = setup.open(Time::Virtual).unwrap();
        assert_eq!(device.driver.properties().total_bytes, 4 << 20);
        assert_eq!(device.driver.properties().granularity_bytes, 2 << 20);
        assert_eq!(setup.swap_threshold_bytes(), 2 << 20);
    }
}
