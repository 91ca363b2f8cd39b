//! NUMA nodes, their processors, and the node that a device hangs on.

use std::fs;
use std::path::Path;

use super::meminfo_bytes;

const NODES: &str = "/sys/devices/system/node";

/// A part of the machine whose processors are near its memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NumaNode {
    /// Its number.
    pub index: u32,
    /// Numbers of its processors, rising.
    pub cpus: Vec<u32>,
    /// Its memory.
    pub total_bytes: Option<u64>,
}

/// The nodes of this machine, by number. None if the system does not tell.
pub fn numa_nodes() -> Vec<NumaNode> {
    let Ok(online) = fs::read_to_string(Path::new(NODES).join("online")) else { return vec![] };
    let indexes = number_list(&online).unwrap_or_default();
    indexes.into_iter().filter_map(numa_node).collect()
}

/// The node of that number.
pub(crate) fn numa_node(index: u32) -> Option<NumaNode> {
    let folder = Path::new(NODES).join(format!("node{index}"));
    let cpus = number_list(&fs::read_to_string(folder.join("cpulist")).ok()?)?;
    let meminfo = fs::read_to_string(folder.join("meminfo")).unwrap_or_default();
    Some(NumaNode { index, cpus, total_bytes: node_total_bytes(&meminfo) })
}

/// The node nearest to the PCI device at `address`, as drivers write it (`00000000:3B:00.0`).
/// `None` if there is no such device, or the system does not say.
pub fn pci_numa_node(address: &str) -> Option<u32> {
    let folder = Path::new("/sys/bus/pci/devices").join(pci_folder(address)?);
    // -1 is for devices that are near to none.
    fs::read_to_string(folder.join("numa_node")).ok()?.trim().parse().ok()
}

/// The address as the system writes it: a domain of four digits, in small letters.
fn pci_folder(address: &str) -> Option<String> {
    let mut parts = address.split([':', '.']);
    let mut number = || u32::from_str_radix(parts.next()?, 16).ok();
    let (domain, bus, device, function) = (number()?, number()?, number()?, number()?);
    let rest = parts.next();
    rest.is_none().then(|| format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

/// Reads lists such as `0-3,8,10-11`.
fn number_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > 1 << 16 {
            return None;
        }
        numbers.extend(first..=last);
    }
    Some(numbers)
}

/// Lines read `Node 0 MemTotal:  24684084 kB`.
fn node_total_bytes(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains(" MemTotal:"))?;
    meminfo_bytes(&line[line.find("MemTotal")?..], "MemTotal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read_and_nonsense_is_not() {
        assert_eq!(number_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(number_list("\n"), Some(vec![]), "a node with memory alone");
        assert_eq!(number_list("3-1"), None);
        assert_eq!(number_list("0-4294967295"), None, "no machine has so many");
        assert_eq!(number_list("a"), None);
    }

    #[test]
    fn addresses_of_devices_are_written_as_the_system_does() {
        assert_eq!(pci_folder("00000000:3B:00.0").as_deref(), Some("0000:3b:00.0"));
        assert_eq!(pci_folder("0000:00:06.0").as_deref(), Some("0000:00:06.0"));
        for bad in ["", "3b:00.0", "0000:3b:00", "0000:3b:00.0:1", "../../etc:0:0.0"] {
            assert_eq!(pci_folder(bad), None, "{bad}");
        }
        assert_eq!(pci_numa_node("ffff:ff:1f.7"), None);
    }

    #[test]
    fn the_memory_of_a_node_is_read_from_its_own_line() {
        let text = "Node 1 MemTotal:        2048 kB\nNode 1 MemFree: 1 kB\n";
        assert_eq!(node_total_bytes(text), Some(2 << 20));
        assert_eq!(node_total_bytes("Node 1 MemFree: 1 kB\n"), None);
    }
}
