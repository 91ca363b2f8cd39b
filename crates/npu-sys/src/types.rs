//! The plain values that cross the driver seam: addresses, handles, sizes.

use std::fmt;
use std::str::FromStr;

/// A device address. It is not dereferenceable by the host unless the driver says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DevicePtr(pub u64);

/// An address in host memory that the driver has pinned or registered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPtr(pub u64);

impl DevicePtr {
    /// The address `offset_bytes` further on.
    ///
    /// # Panics
    /// If the sum overflows.
    pub fn offset(self, offset_bytes: u64) -> DevicePtr {
        DevicePtr(self.0 + offset_bytes)
    }
}

impl HostPtr {
    /// The address `offset_bytes` further on.
    ///
    /// # Panics
    /// If the sum overflows.
    pub fn offset(self, offset_bytes: u64) -> HostPtr {
        HostPtr(self.0 + offset_bytes)
    }
}

impl fmt::Debug for DevicePtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device:{:#x}", self.0)
    }
}

impl fmt::Debug for HostPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host:{:#x}", self.0)
    }
}

/// Reserved device addresses `start .. start + size_bytes`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VaRange {
    /// First address.
    pub start: DevicePtr,
    /// Length, a multiple of the granularity.
    pub size_bytes: u64,
}

impl VaRange {
    /// First address behind the range.
    pub fn end(self) -> DevicePtr {
        self.start.offset(self.size_bytes)
    }
}

/// A piece of physical device memory. Only its driver can interpret the number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkHandle(pub u64);

/// A stream of one driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamHandle(pub u64);

/// An event of one driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EventHandle(pub u64);

/// What an event is for. Timing costs more on real devices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum EventKind {
    /// Order only.
    Order,
    /// Order, and usable with [`elapsed_us`](crate::Driver::elapsed_us).
    Timing,
}

/// How an operator uses memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AccessMode {
    /// Reads; the bytes stay as they are.
    Read,
    /// Overwrites all of it without reading.
    Write,
    /// Reads and changes it.
    ReadWrite,
}

impl AccessMode {
    /// Whether bytes change.
    pub fn writes(self) -> bool {
        self != AccessMode::Read
    }
}

/// Device bytes that a piece of work uses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Access {
    /// First byte.
    pub start: DevicePtr,
    /// Number of bytes.
    pub size_bytes: u64,
    /// How they are used.
    pub mode: AccessMode,
}

/// A copy between two places.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Copy {
    /// Out of the device.
    DeviceToHost {
        /// Where the bytes are.
        source: DevicePtr,
        /// Where they go; pinned.
        target: HostPtr,
        /// How many.
        size_bytes: u64,
    },
    /// Into the device.
    HostToDevice {
        /// Where the bytes are; pinned.
        source: HostPtr,
        /// Where they go.
        target: DevicePtr,
        /// How many.
        size_bytes: u64,
    },
    /// Inside the device.
    DeviceToDevice {
        /// Where the bytes are.
        source: DevicePtr,
        /// Where they go. Must not overlap the source.
        target: DevicePtr,
        /// How many.
        size_bytes: u64,
    },
}

impl Copy {
    /// Number of bytes copied.
    pub fn size_bytes(self) -> u64 {
        match self {
            Copy::DeviceToHost { size_bytes, .. }
            | Copy::HostToDevice { size_bytes, .. }
            | Copy::DeviceToDevice { size_bytes, .. } => size_bytes,
        }
    }

    /// What can be seen to be wrong with it before it runs.
    pub(crate) fn check(self) -> Result<(), String> {
        match self {
            _ if self.size_bytes() == 0 => Err("0 bytes".to_owned()),
            Copy::DeviceToDevice { source, target, size_bytes }
                if source.0.abs_diff(target.0) < size_bytes =>
            {
                Err(format!("{source:?} overlaps {target:?}"))
            }
            _ => Ok(()),
        }
    }
}

/// Device memory as the driver reports it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MemoryInfo {
    /// Physical bytes that nobody holds.
    pub free_bytes: u64,
    /// Physical bytes of the device.
    pub total_bytes: u64,
}

/// Facts about a device that do not change while it is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceProperties {
    /// The device's own name.
    pub name: String,
    /// Physical bytes.
    pub total_bytes: u64,
    /// Sizes of ranges and chunks are multiples of this.
    pub granularity_bytes: u64,
    /// Which host memory the device addresses.
    pub host_mapping: HostMapping,
    /// Whether addresses and memory are two things. Without it `reserve`, `create_chunk` and
    /// `map` are [`Unsupported`](crate::ErrorKind::Unsupported), and only
    /// [`allocate_device`](crate::Driver::allocate_device) gives memory.
    pub has_virtual_memory: bool,
    /// Whether `set_access` waits for a copy to the host that is under way, so that it is better
    /// called from a thread that runs no operators.
    pub map_waits_for_copies: bool,
    /// Whether the host can read and write device memory at its device address, so that host
    /// functions may declare accesses.
    pub is_host_addressable: bool,
    /// The driver's own version, as it writes it.
    pub driver_version: String,
    /// The NUMA node of the host memory that is nearest to the device, where the system says.
    pub numa_node: Option<u32>,
}

/// Which host memory a device addresses, and what may use the addresses that
/// [`device_pointer`](crate::Driver::device_pointer) gives. Copies and fills of a driver always
/// may; those of others, such as a framework's, go to the vendor's library as they are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostMapping {
    /// None.
    Nothing,
    /// Pinned and registered memory, for kernels alone.
    Kernels,
    /// The same; at what `allocate_pinned` gave for copies and fills of others too.
    AllocatedForAll,
    /// Pinned and registered memory, for copies and fills of others too.
    AllForAll,
}

/// A number of bytes as people write it: parsed from `24GiB`, `512MiB`, `1.5GB` or plain bytes,
/// printed with a binary unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Bytes(pub u64);

/// A size that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a size: write 24GiB, 512MiB or a plain number of bytes{why}")]
pub struct ParseBytesError {
    text: String,
    why: &'static str,
}

const UNITS: [(&str, u64); 9] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
];

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let error = |why| ParseBytesError { text: text.to_owned(), why };
        let lower = text.trim().to_ascii_lowercase();
        let (digits, scale) = UNITS
            .iter()
            .find_map(|&(unit, scale)| lower.strip_suffix(unit).map(|digits| (digits, scale)))
            .unwrap_or((&lower, 1));
        let digits = digits.trim_end();
        if let Ok(whole) = digits.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(|| error(" (too large)"));
        }
        let decimal = |c: char| c.is_ascii_digit() || c == '.';
        match digits.parse::<f64>() {
            Ok(value) if !digits.is_empty() && digits.chars().all(decimal) => {
                let bytes = (value * scale as f64).round();
                if bytes < u64::MAX as f64 {
                    Ok(Bytes(bytes as u64))
                } else {
                    Err(error(" (too large)"))
                }
            }
            _ => Err(error("")),
        }
    }
}

impl Bytes {
    /// The least size from this one on that is shown as it is, for advice that has to suffice.
    pub fn rounded_up(self) -> Bytes {
        let step = match self.0 {
            0..=1023 => return self,
            1024..=1_048_575 => 102.4,
            1_048_576..=1_073_741_823 => 104_857.6,
            _ => 10_737_418.24,
        };
        Bytes(((self.0 as f64 / step).ceil() * step).ceil() as u64)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..=1023 => write!(f, "{} B", self.0),
            1024..=1_048_575 => write!(f, "{:.1} KiB", bytes / 1024.0),
            1_048_576..=1_073_741_823 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_of_a_size_rounded_up_is_never_less() {
        let shown = |bytes| Bytes(bytes).rounded_up().to_string();
        assert_eq!(shown(1000), "1000 B");
        assert_eq!(shown(196 << 16), "12.3 MiB");
        assert_eq!(shown(12 << 20), "12.0 MiB");
        assert_eq!(shown((5 << 30) + 1), "5.01 GiB");
        for bytes in (0..60).flat_map(|power| [(1_u64 << power) + 1, 3 << power]) {
            let read: Bytes = shown(bytes).parse().expect("it is a size");
            assert!(read.0 + 1 >= bytes, "{bytes}: {read:?}");
        }
    }

    #[test]
    fn sizes_parse_as_people_write_them() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(text.parse::<Bytes>().ok(), expect.map(Bytes), "{text}");
        };
        check("24GiB", Some(24 << 30));
        check("512 MiB", Some(512 << 20));
        check("1.5gib", Some(3 << 29));
        check("2GB", Some(2_000_000_000));
        check("4096", Some(4096));
        check("0", Some(0));
        check("", None);
        check("GiB", None);
        check("-1GiB", None);
        check("1e3", None);
        check("nan", None);
        check("12 parsecs", None);
        check("99999999999999999999", None);
        check("18446744073709551615", Some(u64::MAX));
        check("20000000TiB", None);
    }
}
