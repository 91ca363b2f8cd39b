//! What a host driver is like: sizes, link speed, and how its streams run.

use crate::error::DriverError;
use crate::host::failure;
use crate::types::HostMapping;

/// Settings of a [`HostDriver`](crate::devices::HostDriver).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostConfig {
    /// Physical device bytes. No chunk is created beyond them.
    pub capacity_bytes: u64,
    /// Sizes of ranges and chunks are multiples of this: a power of two of at least one page.
    pub granularity_bytes: u64,
    /// Most bytes of host memory that may be pinned or registered at once. `None`: no limit.
    pub host_limit_bytes: Option<u64>,
    /// Speed of copies between host and device. `None`: as fast as the machine copies on
    /// threads, no time at all in lockstep.
    pub link: Option<HostLink>,
    /// Work that a stream holds before a submission blocks (threads only).
    pub queue_depth: usize,
    /// Fresh chunks are filled with this pattern instead of zeros.
    pub poison: Option<u64>,
    /// Whether addresses and memory are two things. Without, only
    /// [`allocate_device`](crate::Driver::allocate_device) gives memory, as on old devices.
    pub has_virtual_memory: bool,
    /// Whether the device says of itself that mapping waits for copies. It does not, but callers
    /// then map as they do on devices where it does.
    pub map_waits_for_copies: bool,
    /// Which pinned host memory the device says that it addresses. Where it addresses some, all
    /// may use it, at the host's own address.
    pub host_mapping: HostMapping,
    /// How streams run.
    pub mode: Mode,
}

/// Speed of the link between host and device. One copy at a time runs in each direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostLink {
    /// Device to host, while nothing comes in.
    pub out_bytes_per_s: u64,
    /// Host to device, while nothing goes out.
    pub in_bytes_per_s: u64,
    /// Each direction while both are busy.
    pub both_bytes_per_s: u64,
}

impl HostLink {
    /// A link that is as fast in each direction as in both at once.
    pub fn duplex(bytes_per_s: u64) -> HostLink {
        HostLink {
            out_bytes_per_s: bytes_per_s,
            in_bytes_per_s: bytes_per_s,
            both_bytes_per_s: bytes_per_s,
        }
    }
}

/// How the streams of a host driver run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Each stream on a thread of its own, in real time.
    Threads,
    /// Without threads, inside the driver calls, on a virtual clock. The same calls always give
    /// the same result.
    Lockstep(Order),
}

/// In which order lockstep work takes effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// By completion on the virtual clock. Host functions take their `cost_us`, copies their
    /// share of the link; streams run side by side. The host's clock moves only when the host
    /// waits or calls [`advance`](crate::devices::HostDriver::advance).
    ByTime,
    /// In any order that streams and events allow, drawn from this seed at each driver call.
    /// The virtual clock is kept, but copies in both directions do not slow each other.
    Seeded(u64),
}

impl HostConfig {
    /// A device of `capacity_bytes` that runs on threads, with no limits but the capacity.
    pub fn threads(capacity_bytes: u64) -> HostConfig {
        HostConfig {
            capacity_bytes,
            granularity_bytes: 64 << 10,
            host_limit_bytes: None,
            link: None,
            queue_depth: 1024,
            poison: None,
            has_virtual_memory: true,
            map_waits_for_copies: false,
            host_mapping: HostMapping::AllForAll,
            mode: Mode::Threads,
        }
    }

    /// As [`threads`](HostConfig::threads), but in lockstep in an order drawn from `seed`.
    pub fn lockstep(capacity_bytes: u64, seed: u64) -> HostConfig {
        HostConfig {
            mode: Mode::Lockstep(Order::Seeded(seed)),
            ..HostConfig::threads(capacity_bytes)
        }
    }

    /// As [`threads`](HostConfig::threads), but in lockstep in the order of the virtual clock.
    pub fn by_time(capacity_bytes: u64) -> HostConfig {
        HostConfig { mode: Mode::Lockstep(Order::ByTime), ..HostConfig::threads(capacity_bytes) }
    }

    pub(super) fn check(&self, page_bytes: u64) -> Result<(), DriverError> {
        let invalid = |text: String| Err(failure::invalid("new", text));
        let granularity = self.granularity_bytes;
        if !granularity.is_power_of_two() || granularity < page_bytes {
            return invalid(format!(
                "granularity of {granularity} bytes is not a power of two of at least a page \
                 of {page_bytes} bytes"
            ));
        }
        if self.queue_depth == 0 {
            return invalid("a queue depth of 0 holds no work".to_owned());
        }
        if let Some(link) = self.link {
            let rates = [link.out_bytes_per_s, link.in_bytes_per_s, link.both_bytes_per_s];
            if rates.contains(&0) {
                return invalid("a link rate is 0 bytes per second".to_owned());
            }
        }
        Ok(())
    }
}
