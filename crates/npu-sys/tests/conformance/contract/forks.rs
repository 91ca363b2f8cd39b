//! What a forked child gets of the memory of a device: nothing that costs anything.

use std::time::Instant;

use npu_sys::{Bytes, HostPages, HostPtr, Touching};

use crate::drivers::{on_all_drivers, once_on_each_driver};
use crate::forked::{Forked, SIGSEGV, signal_of_child};
use crate::rig::Rig;

const MIB: u64 = 1 << 20;

/// Pages that are there and registered.
fn registered(rig: &Rig<'_>, size_bytes: u64) -> HostPages {
    let pages = HostPages::new(size_bytes, Touching::default()).unwrap();
    rig.register(pages.start(), pages.size_bytes()).unwrap();
    pages
}

fn read(address: HostPtr) -> u8 {
    let address = std::ptr::with_exposed_provenance::<u8>(address.0 as usize);
    // SAFETY: memory of the test; in a child that did not get it the read is the child's end.
    unsafe { address.read_volatile() }
}

fn touch(start: HostPtr, size_bytes: u64) {
    let start = std::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
    // SAFETY: fresh memory of that length, which nobody else knows.
    unsafe { start.write_bytes(1, size_bytes as usize) };
}

#[test]
fn a_child_gets_no_pinned_memory_and_a_touch_of_it_faults() {
    on_all_drivers(|rig| {
        // Too small for huge pages, and large enough.
        for size_bytes in [3 * 4096, 8 * MIB] {
            let allocated = rig.pinned(&vec![7; size_bytes as usize]);
            let pages = registered(rig, size_bytes);
            let child = Forked::new();
            for start in [allocated, pages.start()] {
                assert_eq!(child.inherited_bytes(start.0, size_bytes), 0, "{size_bytes} bytes");
                let last = start.offset(size_bytes - 1);
                assert_eq!(signal_of_child(|| _ = read(last)), Some(SIGSEGV));
            }
            drop(child);
            assert_eq!(rig.host_bytes(allocated, size_bytes), vec![7; size_bytes as usize]);
            rig.unregister(pages.start()).unwrap();
            rig.free_pinned(allocated).unwrap();
        }
    });
}

#[test]
fn a_child_gets_no_page_of_device_memory() {
    on_all_drivers(|rig| {
        let size_bytes = 16 * rig.unit;
        let (buffer, stream) = (rig.buffer(size_bytes), rig.stream());
        rig.fill(buffer.start(), size_bytes, 7, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        let child = Forked::new();
        assert_eq!(child.resident_bytes(buffer.start().0, size_bytes), 0);
        drop(child);
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

/// Prints what a fork costs beside so much pinned memory:
/// `cargo test --release -p npu-sys --test conformance fork_times -- --ignored --nocapture`.
#[test]
#[ignore = "prints times, and takes 4 GiB"]
fn fork_times() {
    const FORKS: usize = 5;
    let measure = |name: &str, size_bytes: u64| {
        let mut child = None;
        let mut times_us: Vec<u128> = Vec::new();
        for _ in 0..FORKS {
            drop(child.take());
            #[allow(clippy::disallowed_methods)] // It prints times and judges none.
            let start = Instant::now();
            child = Some(Forked::new());
            times_us.push(start.elapsed().as_micros());
        }
        times_us.sort_unstable();
        let child = child.unwrap();
        let bytes = |name| Bytes(child.status_bytes(name)).to_string();
        let (median_us, pages) = (times_us[FORKS / 2], bytes("RssAnon"));
        let (size, tables) = (Bytes(size_bytes).to_string(), bytes("VmPTE"));
        println!("{size:>9} {name:<26} {median_us:>9} us {pages:>11} {tables:>11}");
    };
    once_on_each_driver(|rig| {
        println!("{} ({})", rig.properties.name, rig.properties.driver_version);
        println!("{:>9} {:<26} {:>12} {:>11} {:>11}", "pinned", "how", "fork", "child", "tables");
        measure("nothing", 0);
        for size_bytes in [1 << 30, 4 << 30] {
            let pages = registered(rig, size_bytes);
            measure("kept from children", size_bytes);
            rig.unregister(pages.start()).unwrap();
            drop(pages);
            let inherited = vec![1_u8; size_bytes as usize + 4096];
            let first = inherited.as_ptr().expose_provenance() as u64;
            let start = HostPtr(first.next_multiple_of(4096));
            rig.register(start, size_bytes).unwrap();
            measure("an inherited vector", size_bytes);
            rig.unregister(start).unwrap();
            drop(inherited);
            let allocated = rig.driver.allocate_pinned(size_bytes).unwrap();
            touch(allocated, size_bytes);
            measure("allocated by the driver", size_bytes);
            rig.free_pinned(allocated).unwrap();
        }
    });
}
