//! A process that has as many mappings as the system allows: calls fail, and giving back works.
//!
//! In a process of its own, since nobody else could go on in it.

#![allow(clippy::unwrap_used)]

use std::fs;

use npu_sys::devices::{HostConfig, HostDriver};
use npu_sys::{ChunkHandle, Driver, ErrorKind, HostPtr, VaRange};
use rustix::mm::{self, MapFlags, MprotectFlags, ProtFlags};

const UNIT: u64 = 4096;

/// Where a system allows far more than usual, filling it up takes too long.
const LIMIT_MAX: u64 = 1 << 18;

fn limit() -> Option<u64> {
    let limit = fs::read_to_string("/proc/sys/vm/max_map_count").ok()?;
    limit.trim().parse::<u64>().ok().filter(|limit| *limit <= LIMIT_MAX)
}

fn mapping_count() -> u64 {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count() as u64
}

fn map(size_bytes: u64, access: ProtFlags) -> rustix::io::Result<usize> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let anywhere = std::ptr::null_mut();
    // SAFETY: no fixed address is asked for, so no existing memory changes.
    let found = unsafe { mm::mmap_anonymous(anywhere, size_bytes as usize, access, flags) };
    found.map(|start| start.expose_provenance())
}

/// Mappings that are in the way, until they are dropped.
struct Ballast {
    start: usize,
    size_bytes: u64,
}

impl Ballast {
    /// Takes about `count` mappings; fewer if the system stops it.
    fn new(count: u64) -> Ballast {
        let size_bytes = count * UNIT;
        let start = map(size_bytes, ProtFlags::empty()).unwrap();
        for page in (0..count).step_by(2) {
            let at = std::ptr::with_exposed_provenance_mut(start + (page * UNIT) as usize);
            // SAFETY: pages of our own, which nobody uses.
            if unsafe { mm::mprotect(at, UNIT as usize, MprotectFlags::READ) }.is_err() {
                break;
            }
        }
        Ballast { start, size_bytes }
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let start = std::ptr::with_exposed_provenance_mut(self.start);
        // SAFETY: our own addresses, which nobody uses.
        unsafe { mm::munmap(start, self.size_bytes as usize) }.unwrap();
    }
}

/// What a test took of the driver.
#[derive(Default)]
struct Taken {
    mapped: Vec<(VaRange, ChunkHandle)>,
    pinned: Vec<HostPtr>,
}

impl Taken {
    /// Takes one more of everything, and leaves nothing half taken.
    fn take(&mut self, driver: &HostDriver) -> Result<(), ErrorKind> {
        let chunk = driver.create_chunk(UNIT).map_err(|error| error.kind)?;
        let range = driver.reserve(UNIT).inspect_err(|_| driver.release_chunk(chunk).unwrap());
        let range = range.map_err(|error| error.kind)?;
        driver.map(range, chunk).unwrap();
        self.mapped.push((range, chunk));
        driver.set_access(range).map_err(|error| error.kind)?;
        if self.mapped.len().is_multiple_of(50) {
            self.pinned.push(driver.allocate_pinned(UNIT).map_err(|error| error.kind)?);
        }
        Ok(())
    }

    /// Gives everything back: every second piece first, so that many have no free neighbour.
    fn give_back(&mut self, driver: &HostDriver) {
        let (even, odd): (Vec<_>, Vec<_>) =
            self.mapped.drain(..).enumerate().partition(|(index, _)| index % 2 == 0);
        for (_, (range, chunk)) in even.into_iter().chain(odd) {
            // SAFETY: no work uses it.
            unsafe { driver.unmap(range) }.unwrap();
            driver.release_chunk(chunk).unwrap();
            driver.free_range(range).unwrap();
        }
        for start in self.pinned.drain(..) {
            // SAFETY: no work uses it.
            unsafe { driver.free_pinned(start) }.unwrap();
        }
    }
}

fn device() -> std::sync::Arc<HostDriver> {
    HostDriver::new(HostConfig { granularity_bytes: UNIT, ..HostConfig::by_time(1 << 40) }).unwrap()
}

#[test]
fn a_process_without_mappings_to_spare_gets_errors_and_can_give_everything_back() {
    let Some(limit) = limit() else { return println!("not tested: no limit, or a high one") };
    let before = mapping_count();
    let driver = device();
    let mut taken = Taken::default();
    // The device stops by itself, and leaves something to others.
    let kind = (0..limit).find_map(|_| taken.take(&driver).err());
    assert_eq!(kind, Some(ErrorKind::OutOfMemory));
    let held = taken.mapped.len() as u64;
    println!("{held} mappings of {limit}, {} in the process", mapping_count());
    assert!(held > limit / 2 && mapping_count() < limit - limit / 16);
    taken.give_back(&driver);
    assert!(driver.ledger().is_empty());
    assert!(mapping_count() < before + 64, "{} mappings are left", mapping_count());

    // Others leave nothing to the device.
    (0..1000).for_each(|_| taken.take(&driver).unwrap());
    let ballast = Ballast::new(limit - mapping_count() - 500);
    let kind = (0..1000).find_map(|_| taken.take(&driver).err());
    assert_eq!(kind, Some(ErrorKind::OutOfMemory));
    // To the last one: neighbours that differ are not joined.
    let kinds = [ProtFlags::empty(), ProtFlags::READ].into_iter().cycle();
    let rest = kinds.take(1000).map_while(|access| map(UNIT, access).ok()).count();
    assert!(rest < 1000, "the system gives no more");
    taken.give_back(&driver);
    assert!(driver.ledger().is_empty());
    drop(ballast);
    (0..1000).for_each(|_| taken.take(&driver).unwrap());
    taken.give_back(&driver);
    assert!(driver.ledger().is_empty());
}
