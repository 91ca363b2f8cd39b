//! What the engine is opened with: a caller's wishes, and the defaults for the rest.

use std::path::PathBuf;
use std::sync::Arc;

use adaptive::devices::{CheckConfig, CheckDriver, HostMemory, measure_link};
use adaptive::{
    ArenaConfig, Budget, Bytes, Config, DeviceName, Driver, GenerateConfig, JointConfig, Link,
    LoopConfig, Machine, PoolConfig, Prefer, Settings as FileSettings, Strategy,
};

use crate::device::Device;
use crate::failure::{Failure, warn};

/// Blocks of at least this size move, unless the cap is so small that they would be few.
const MIN_BLOCK_BYTES: u64 = 8 << 20;
/// A cap is at least so many of the smallest blocks that move.
const BLOCKS_PER_CAP: u64 = 512;
/// Segments of small blocks hold so many of the smallest blocks that move.
const BLOCKS_PER_SEGMENT: u64 = 4;
/// Chunks of the software device are multiples of this.
const HOST_GRANULARITY_BYTES: u64 = 64 << 10;
/// Host memory is pinned in regions of about these sizes, growing from the first to the last, and
/// the next one is made ready while fewer bytes than the first are left. None is more than an
/// eighth of what may be pinned.
const REGION_BYTES: [u64; 2] = [256 << 20, 4 << 30];
const REGIONS_LEAST: u64 = 8;
/// Under a cap that somebody asked for a good part of it soon leaves. So much is pinned while the
/// script builds its model, and given back where the model fits.
const INITIAL_DIVISOR: u64 = 8;
/// Where no cap is asked for, this part of what is free is left for kernels and libraries.
const FREE_DIVISOR: u64 = 16;
/// Copies that are timed to learn the speed of the link, and the size of one.
const LINK_COPIES: u32 = 4;
const LINK_PIECE_BYTES: u64 = 32 << 20;

/// What a caller asks for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Wishes {
    pub(crate) device: DeviceName,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) host_memory_bytes: Option<u64>,
    pub(crate) min_block_bytes: Option<u64>,
    pub(crate) compute_stream: u64,
    pub(crate) prefer: Option<Prefer>,
    pub(crate) strategy: Option<Strategy>,
    /// Holds what is set nowhere else.
    pub(crate) file: FileSettings,
    pub(crate) record_file: Option<PathBuf>,
}

impl Wishes {
    /// The cap on device memory: what was asked for, or else what the file says.
    fn limit_bytes(&self) -> Result<Option<u64>, Failure> {
        match (self.memory_bytes, self.file.budget()) {
            (Some(bytes), _) | (None, Some(Budget::Bytes(bytes))) => Ok(Some(bytes)),
            (None, None) => Ok(None),
            (None, Some(Budget::Percent(_) | Budget::BelowPeak(_))) => Err(Failure::settings(
                "the settings file measures the cap by the step's own peak, which is not known \
                 before the first step: set memory_bytes, or write `memory` as a size such as \
                 \"24GiB\"",
            )),
        }
    }
}

/// What the engine is opened with.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) device: Device,
    /// Stands in front of the device's driver and checks that all work is ordered.
    pub(crate) checker: Option<Arc<CheckDriver>>,
    pub(crate) engine: Config,
    /// Nobody asked for a cap, so it is only what the device had.
    pub(crate) holds_by_need: bool,
    pub(crate) machine: Machine,
    pub(crate) planning: JointConfig,
    pub(crate) policy: LoopConfig,
    pub(crate) record_file: Option<PathBuf>,
}

impl Settings {
    /// What the engine drives.
    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        match &self.checker {
            Some(checker) => checker.clone(),
            None => self.device.driver(),
        }
    }

    /// Opens the device and fills in what was left open.
    pub(crate) fn new(wishes: &Wishes) -> Result<Settings, Failure> {
        let mut wished_bytes = wishes.limit_bytes()?;
        if wishes.device == DeviceName::Host {
            wished_bytes = within(wished_bytes, "the machine's memory", host_bytes());
        }
        let capacity_bytes = match wished_bytes {
            Some(bytes) => bytes,
            None if wishes.device == DeviceName::Host => half_room()?,
            None => 0,
        };
        let device = Device::open(
            wishes.device,
            capacity_bytes / HOST_GRANULARITY_BYTES * HOST_GRANULARITY_BYTES,
            HOST_GRANULARITY_BYTES,
        )?;
        let driver = device.driver();
        if wishes.device != DeviceName::Host {
            let total_bytes = driver.memory_info()?.total_bytes;
            wished_bytes = within(wished_bytes, "the device's memory", Some(total_bytes));
        }
        let granularity_bytes = driver.properties().granularity_bytes;
        let limit_bytes = device_limit(&*driver, wished_bytes)?;
        let least_bytes = limit_bytes / BLOCKS_PER_CAP / granularity_bytes * granularity_bytes;
        // Who asks for smaller blocks than the device has pieces gets a piece for each.
        let min_block_bytes = wishes
            .min_block_bytes
            .or(wishes.file.min_block_bytes())
            .unwrap_or(MIN_BLOCK_BYTES.min(least_bytes.max(granularity_bytes)))
            .max(1);
        let host_limit_bytes = match wishes.host_memory_bytes.or(wishes.file.host_memory) {
            Some(bytes) => bytes,
            None => half_room()?,
        };
        let machine = wishes.file.machine(Machine {
            limit_bytes,
            host_limit_bytes,
            link: link(&device, granularity_bytes, limit_bytes)?,
            copy_submit_us: Machine::COPY_SUBMIT_US,
        });
        let compute = device.compute(wishes.compute_stream)?;
        let record_file = wishes.record_file.clone();
        let checked = || Arc::new(CheckDriver::new(device.driver(), CheckConfig::ORDER));
        let checker = wishes.file.check_order.unwrap_or(false).then(checked);
        Ok(Settings {
            device,
            checker,
            engine: Config {
                pool: PoolConfig {
                    limit_bytes,
                    swap_threshold_bytes: min_block_bytes,
                    segment_bytes: min_block_bytes * BLOCKS_PER_SEGMENT,
                },
                arena: arena_config(wished_bytes.map_or(0, |_| limit_bytes), host_limit_bytes),
                compute,
                record: false,
            },
            holds_by_need: wished_bytes.is_none(),
            machine: Machine { host_limit_bytes, ..machine },
            planning: planning(wishes, min_block_bytes),
            policy: wishes.file.loop_config(LoopConfig { limit_bytes, ..LoopConfig::default() }),
            record_file,
        })
    }
}

/// A cap that caps something. One beyond all that is there is told and left out.
fn within(wished_bytes: Option<u64>, of: &str, total_bytes: Option<u64>) -> Option<u64> {
    let (wished, total) = (wished_bytes?, total_bytes.unwrap_or(u64::MAX));
    if wished <= total {
        return Some(wished);
    }
    let (wished, total) = (Bytes(wished), Bytes(total));
    warn(&format!("a cap of {wished} is more than {of} of {total}: the default cap is used"));
    None
}

/// What the system lets processes take.
fn host_bytes() -> Option<u64> {
    let memory = HostMemory::read();
    let group_bytes = memory.group.map(|group| group.limit_bytes);
    [memory.total_bytes, group_bytes].into_iter().flatten().min()
}

/// Half of the host memory that is free.
fn half_room() -> Result<u64, Failure> {
    let text = "the system does not say how much memory is free: set memory_bytes";
    let room_bytes = HostMemory::read().room_bytes();
    room_bytes.map(|bytes| bytes / 2).ok_or_else(|| Failure::settings(text))
}

/// How host memory is pinned beside a cap that was asked for, or 0.
fn arena_config(asked_bytes: u64, host_limit_bytes: u64) -> ArenaConfig {
    let [region_bytes, largest_region_bytes] =
        REGION_BYTES.map(|bytes| bytes.min(host_limit_bytes / REGIONS_LEAST).max(1 << 20));
    ArenaConfig {
        region_bytes,
        largest_region_bytes,
        grow_ahead_bytes: region_bytes,
        initial_bytes: (asked_bytes / INITIAL_DIVISOR).min(largest_region_bytes),
        swapped_limit_bytes: host_limit_bytes,
        ..ArenaConfig::new(host_limit_bytes)
    }
}

/// How plans are made: as the file says, with what was asked for on top.
fn planning(wishes: &Wishes, min_block_bytes: u64) -> JointConfig {
    let base = JointConfig { fits_layout: true, ..JointConfig::default() };
    let filed = wishes.file.joint_config(base);
    JointConfig {
        strategy: wishes.strategy.unwrap_or(filed.strategy),
        prefer: wishes.prefer.or(filed.prefer),
        generate: GenerateConfig { min_block_bytes, ..filed.generate },
        ..filed
    }
}

/// The cap in whole chunks.
fn device_limit(driver: &dyn Driver, wished_bytes: Option<u64>) -> Result<u64, Failure> {
    let free_bytes = driver.memory_info()?.free_bytes;
    let granularity_bytes = driver.properties().granularity_bytes;
    let bytes = wished_bytes.unwrap_or(free_bytes - free_bytes / FREE_DIVISOR);
    let bytes = bytes / granularity_bytes * granularity_bytes;
    if bytes > free_bytes {
        return Err(Failure::settings(format!(
            "a cap of {} is more than the {} that the device has free: lower it, or stop what \
             else uses the device",
            Bytes(bytes),
            Bytes(free_bytes)
        )));
    }
    if bytes < granularity_bytes {
        return Err(Failure::settings(format!(
            "a cap of {} is below the device's granularity of {}: raise it",
            Bytes(wished_bytes.unwrap_or(free_bytes)),
            Bytes(granularity_bytes)
        )));
    }
    Ok(bytes)
}

/// The speed of the link, measured.
fn link(device: &Device, granularity_bytes: u64, limit_bytes: u64) -> Result<Link, Failure> {
    // The measurement takes two pieces of device memory.
    let piece_bytes = LINK_PIECE_BYTES.min(limit_bytes / 4) / granularity_bytes * granularity_bytes;
    let piece_bytes = piece_bytes.max(granularity_bytes);
    let rates = measure_link(&device.driver(), piece_bytes, LINK_COPIES)?;
    Ok(Link {
        out_bytes_per_us: rates.out_bytes_per_s / 1e6,
        in_bytes_per_us: rates.in_bytes_per_s / 1e6,
        both_bytes_per_us: rates.both_bytes_per_s / 1e6,
    })
}
