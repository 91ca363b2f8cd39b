//! Forked children get nothing of the arena, however it came by its memory.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use vmem::devices::{AclDriver, FaultDriver, FaultPlan, HostConfig, HostDriver};
use vmem::{ArenaConfig, DeviceMemory, Driver, ErrorKind, PoolConfig};

use self::forked::Forked;

#[path = "../../../acl-standin/built.rs"]
mod built;
#[path = "../../../npu-sys/forked.rs"]
mod forked;

const MIB: u64 = 1 << 20;

fn host() -> Arc<dyn Driver> {
    HostDriver::new(HostConfig::threads(8 * MIB)).expect("opens")
}

/// A driver that allocates pinned memory itself.
fn without_registration() -> Arc<dyn Driver> {
    let driver = FaultDriver::new(host());
    driver.arm(FaultPlan::for_good(1, ErrorKind::Unsupported).only("register_host"));
    Arc::new(driver)
}

fn acl() -> Arc<dyn Driver> {
    static LIBRARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let library = LIBRARY.get_or_init(built::standin).as_ref().expect("cargo builds it");
    // SAFETY: it does what the vendor's library does.
    unsafe { AclDriver::open_from(library, 0) }.expect("opens")
}

#[test]
fn a_child_gets_no_byte_of_the_arena_and_of_what_it_grows_by() {
    for (name, driver) in
        [("host", host()), ("without registration", without_registration()), ("acl", acl())]
    {
        let pool = PoolConfig {
            limit_bytes: 8 * MIB,
            swap_threshold_bytes: 2 * MIB,
            segment_bytes: 2 * MIB,
        };
        let arena = ArenaConfig {
            region_bytes: 4 * MIB,
            grow_ahead_bytes: 3 * MIB,
            ..ArenaConfig::new(32 * MIB)
        };
        let mut memory = DeviceMemory::new(driver, pool, arena).expect("opens");
        let stream = memory.streams.create().expect("a stream");
        memory.arena.reserve(4 * MIB).expect("room");
        let swapped = memory.allocate_swapped(MIB, stream).expect("room");
        let mut places = vec![(swapped.host().0, swapped.size_bytes())];
        // Some in the first region, others in those that the thread pins.
        for size_bytes in [MIB, 64 << 10, MIB, 3 * MIB, 3 * MIB] {
            let (slot, _) = memory.arena.take(size_bytes).expect("room");
            places.push((slot.start().0, size_bytes));
        }
        assert!(memory.arena.pinned_bytes().current > 4 * MIB, "{name}: it grew");
        let child = Forked::new();
        for (start, size_bytes) in places {
            assert_eq!(child.inherited_bytes(start, size_bytes), 0, "{name}: {size_bytes} bytes");
        }
        drop(child);
        memory.close().expect("closes");
    }
}
