//! The software device that models run on: how it is set up, and what the machine has room for.

use std::fs;
use std::sync::Arc;

use adaptive::{
    ArenaConfig, Config, Engine, Error, GenerateConfig, HostConfig, HostDriver, HostLink,
    JointConfig, Link, Machine, PoolConfig, Strategy,
};

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
/// What it takes from issuing a copy to its first byte: waking the thread that does it.
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
    pub(crate) driver: Arc<HostDriver>,
}

impl Setup {
    /// The cap as it is enforced: whole chunks only.
    pub(crate) fn enforced_bytes(&self) -> u64 {
        round_down(self.limit_bytes.unwrap_or(ROOMY_BYTES))
    }

    /// Opens a device.
    pub(crate) fn open(&self, time: Time) -> Result<Device, Error> {
        let limit_bytes = self.enforced_bytes();
        // The driver refuses whatever exceeds the cap, whoever asks.
        let base = match time {
            Time::Real => HostConfig::threads(limit_bytes),
            Time::Virtual => HostConfig::by_time(limit_bytes),
        };
        let driver = HostDriver::new(HostConfig {
            granularity_bytes: GRANULARITY_BYTES,
            link: Some(HostLink::duplex(self.link_bytes_per_s)),
            queue_depth: QUEUE_DEPTH,
            ..base
        })?;
        let config = Config {
            pool: PoolConfig {
                limit_bytes,
                swap_threshold_bytes: SWAP_THRESHOLD_BYTES,
                segment_bytes: SEGMENT_BYTES,
            },
            arena: ArenaConfig {
                region_bytes: REGION_BYTES,
                ..ArenaConfig::new(self.host_limit_bytes)
            },
            compute_stream: None,
            record: false,
        };
        let engine = Engine::new(driver.clone(), config)?;
        Ok(Device { engine, driver })
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
        let generate =
            GenerateConfig { min_block_bytes: SWAP_THRESHOLD_BYTES, ..GenerateConfig::default() };
        JointConfig { strategy, generate, ..JointConfig::default() }
    }
}

impl Device {
    /// Physical bytes at the highest, by the driver's own count.
    pub(crate) fn peak_bytes(&self) -> u64 {
        self.driver.ledger().chunk_bytes_peak
    }
}

/// The largest size in whole chunks that is not above `bytes`.
pub(crate) fn round_down(bytes: u64) -> u64 {
    bytes / GRANULARITY_BYTES * GRANULARITY_BYTES
}

/// The smallest size in whole chunks that is not below `bytes`.
pub(crate) fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(GRANULARITY_BYTES).saturating_mul(GRANULARITY_BYTES)
}

/// Memory that this machine can give to a process, as the system counts it; nothing where it
/// does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let machine = available_in(&fs::read_to_string("/proc/meminfo").ok()?)?;
    Some(group_bytes().map_or(machine, |group| group.min(machine)))
}

/// Memory left to this process's control group, if that has a limit.
fn group_bytes() -> Option<u64> {
    let read = |name: &str| {
        let text = fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use adaptive::Driver as _;

    use super::*;

    #[test]
    fn the_driver_itself_enforces_the_cap_in_whole_chunks() {
        let setup = Setup {
            limit_bytes: Some((5 << 20) + 1),
            host_limit_bytes: 1 << 20,
            link_bytes_per_s: 1 << 30,
        };
        let device = setup.open(Time::Virtual).unwrap();
        assert_eq!(device.driver.properties().total_bytes, 5 << 20);
        assert_eq!(setup.machine().limit_bytes, 5 << 20);
        assert_eq!((round_down(65_537), round_up(65_537)), (65_536, 131_072));
    }

    #[test]
    fn available_memory_is_read_from_the_system() {
        let text = "MemTotal: 9 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available_in(text), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 9 kB\n"), None);
        assert_eq!(available_in("MemAvailable: many\n"), None);
    }
}
