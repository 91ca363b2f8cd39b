//! What the operating system says about memory: free, locked, grouped, near which device.
//!
//! Each figure is read by a pure function of a file's text and a reader of the file. What the
//! system does not say is `None`, never a guess.

use std::fmt;
use std::fs;

use rustix::process::{Resource, getrlimit};

use crate::types::Bytes;

mod group;
mod nodes;

pub use self::group::GroupMemory;
pub(crate) use self::nodes::numa_node;
pub use self::nodes::{NumaNode, numa_nodes, pci_numa_node};

/// The host's memory as the system counts it, at one moment.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HostMemory {
    /// Physical bytes of the machine.
    pub total_bytes: Option<u64>,
    /// Bytes that can be used without pushing others out.
    pub available_bytes: Option<u64>,
    /// Whether the two figures above come from the kernel that owns the memory. Sandboxes that
    /// stand in for a kernel write an estimate, which grows with use.
    pub is_measured: bool,
    /// The control group with the least room, if a group of this process has a limit.
    pub group: Option<GroupMemory>,
    /// Bytes that this process may lock (`ulimit -l`). `None`: no limit. Drivers that pin for
    /// their device are not held to it on all systems.
    pub lock_limit_bytes: Option<u64>,
    /// Huge pages.
    pub huge: HugePages,
}

/// Huge pages as the system is set up.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct HugePages {
    /// Size of a huge page.
    pub page_bytes: Option<u64>,
    /// Bytes in reserved huge pages that nobody uses or was promised.
    pub reserved_free_bytes: u64,
    /// Who gets transparent ones: `always`, `madvise` or `never`.
    pub transparent: Option<String>,
}

impl HostMemory {
    /// Asks the system.
    pub fn read() -> HostMemory {
        let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        HostMemory {
            total_bytes: meminfo_bytes(&text, "MemTotal"),
            available_bytes: meminfo_bytes(&text, "MemAvailable"),
            is_measured: fs::exists("/proc/zoneinfo").unwrap_or(false),
            group: group::tightest(),
            lock_limit_bytes: getrlimit(Resource::Memlock).current,
            huge: huge_pages(&text),
        }
    }

    /// Bytes that this process can still take: what the machine has and its control group allows.
    pub fn room_bytes(&self) -> Option<u64> {
        let group = self.group.as_ref().map(GroupMemory::room_bytes);
        [self.available_bytes, group].into_iter().flatten().min()
    }
}

/// For messages: one line, without a final dot.
impl fmt::Display for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.available_bytes, self.total_bytes) {
            (Some(available), Some(total)) => {
                write!(f, "{} of the machine's {} are available", Bytes(available), Bytes(total))?;
            }
            _ => f.write_str("the system does not say what is available")?,
        }
        match &self.group {
            Some(group) => write!(f, "; {group}")?,
            None => f.write_str("; no control group limits it")?,
        }
        match self.lock_limit_bytes {
            Some(bytes) => write!(f, "; `ulimit -l` is {}", Bytes(bytes)),
            None => f.write_str("; `ulimit -l` is unlimited"),
        }
    }
}

/// The figure after `key:`, in bytes. Lines read `MemTotal:  24684084 kB`.
fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let kib = meminfo_number(text, key)?.strip_suffix("kB")?.trim_end();
    kib.parse::<u64>().ok()?.checked_mul(1 << 10)
}

fn meminfo_number<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    Some(line.trim())
}

fn huge_pages(meminfo: &str) -> HugePages {
    let page_bytes = meminfo_bytes(meminfo, "Hugepagesize");
    let count = |key| meminfo_number(meminfo, key).and_then(|text| text.parse::<u64>().ok());
    let free = count("HugePages_Free").unwrap_or(0);
    // Free pages that were promised to others will not be given to us.
    let count = free.saturating_sub(count("HugePages_Rsvd").unwrap_or(0));
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    HugePages {
        page_bytes,
        reserved_free_bytes: page_bytes.map_or(0, |bytes| bytes.saturating_mul(count)),
        transparent: setting.ok().and_then(|text| chosen(&text)),
    }
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (word, _) = rest.split_once(']')?;
    Some(word.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       131980916 kB\nMemFree:        130705076 kB\n\
        MemAvailable:   131483144 kB\nHugePages_Total:     600\nHugePages_Free:      500\n\
        HugePages_Rsvd:      100\nHugepagesize:       2048 kB\n";

    #[test]
    fn meminfo_gives_bytes_by_name_and_nothing_else() {
        assert_eq!(meminfo_bytes(MEMINFO, "MemTotal"), Some(131_980_916 << 10));
        assert_eq!(meminfo_bytes(MEMINFO, "MemAvailable"), Some(131_483_144 << 10));
        assert_eq!(meminfo_bytes(MEMINFO, "Mem"), None);
        assert_eq!(meminfo_bytes(MEMINFO, "HugePages_Free"), None, "a count is not bytes");
        assert_eq!(meminfo_bytes("MemTotal: many kB", "MemTotal"), None);
        assert_eq!(meminfo_bytes("MemTotal: 18446744073709551615 kB", "MemTotal"), None);
        assert_eq!(meminfo_bytes("", "MemTotal"), None);
    }

    #[test]
    fn only_huge_pages_that_nobody_was_promised_are_free() {
        let huge = huge_pages(MEMINFO);
        assert_eq!((huge.page_bytes, huge.reserved_free_bytes), (Some(2 << 20), 400 * (2 << 20)));
        assert_eq!(huge_pages("").reserved_free_bytes, 0);
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always"), None);
    }

    #[test]
    fn this_machine_says_how_much_memory_it_has() {
        let memory = HostMemory::read();
        let (total, available) = (memory.total_bytes, memory.available_bytes);
        assert!(available.is_some() && available <= total, "{memory:?}");
        assert!(memory.room_bytes() <= available);
        let nodes = numa_nodes();
        assert!(nodes.iter().all(|node| node.total_bytes <= total), "{nodes:?}");
    }

    #[test]
    fn a_message_names_every_limit() {
        let mut memory = HostMemory {
            total_bytes: Some(64 << 30),
            available_bytes: Some(10 << 30),
            lock_limit_bytes: Some(8 << 20),
            ..HostMemory::default()
        };
        assert_eq!(
            memory.to_string(),
            "10.00 GiB of the machine's 64.00 GiB are available; no control group limits it; \
             `ulimit -l` is 8.0 MiB"
        );
        memory.group = Some(GroupMemory {
            path: "/sys/fs/cgroup/job".to_owned(),
            limit_bytes: 4 << 30,
            used_bytes: 3 << 30,
            reclaimable_bytes: 1 << 29,
        });
        memory.lock_limit_bytes = None;
        assert_eq!(memory.room_bytes(), Some(3 << 29));
        let text = memory.to_string();
        assert!(text.contains("its control group is limited to 4.00 GiB"), "{text}");
        assert!(text.ends_with("`ulimit -l` is unlimited"), "{text}");
    }
}
