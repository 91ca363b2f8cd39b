//! Tests of the shadow memory by cases.

use super::*;
use crate::types::{AccessMode, DevicePtr, StreamHandle};
use crate::wrap::check::clock::Clocks;
use crate::wrap::check::violation::Address;

struct Bench {
    clocks: Clocks,
    shadow: Shadow,
}

impl Bench {
    fn new() -> Bench {
        Bench { clocks: Clocks::default(), shadow: Shadow::default() }
    }

    /// Submits one access; false if it conflicts.
    fn access(&mut self, stream: u64, bytes: Range<u64>, mode: AccessMode) -> bool {
        let lane = self.clocks.submit(StreamHandle(stream));
        let epoch = self.clocks.next(lane);
        let clock = self.clocks.of(lane);
        if self.shadow.conflict(&bytes, mode.writes(), clock).is_some() {
            return false;
        }
        let site = AccessSite {
            stream: StreamHandle(stream),
            operation: "test",
            number: epoch.number,
            address: Address::Device(DevicePtr(bytes.start)),
            size_bytes: bytes.end - bytes.start,
            mode,
        };
        let stamp = Arc::new(Stamp { epoch, site });
        self.shadow.apply(&bytes, &stamp, clock, self.clocks.host());
        self.clocks.advance(epoch);
        true
    }

    fn write(&mut self, stream: u64, bytes: Range<u64>) -> bool {
        self.access(stream, bytes, AccessMode::Write)
    }

    fn read(&mut self, stream: u64, bytes: Range<u64>) -> bool {
        self.access(stream, bytes, AccessMode::Read)
    }

    fn synchronize(&mut self, stream: u64) {
        self.clocks.host_learns(&self.clocks.of_stream(StreamHandle(stream)));
    }

    fn ranges(&self) -> Vec<Range<u64>> {
        self.shadow.extents.iter().map(|(&start, extent)| start..extent.end).collect()
    }
}

#[test]
fn spans_split_at_the_borders_of_accesses_and_merge_again() {
    let mut bench = Bench::new();
    assert!(bench.write(1, 10..30));
    assert!(bench.read(1, 20..40));
    assert_eq!(bench.ranges(), [10..20, 20..30, 30..40]);
    assert!(bench.write(1, 0..50));
    assert_eq!(bench.ranges(), vec![0..50]);
    assert!(bench.write(1, 20..30));
    assert_eq!(bench.ranges(), [0..20, 20..30, 30..50]);
}

#[test]
fn each_byte_has_its_own_past() {
    let mut bench = Bench::new();
    assert!(bench.write(1, 10..20));
    assert!(bench.read(2, 30..40));
    assert!(!bench.read(2, 19..20), "written by another stream");
    assert!(bench.read(2, 20..30), "not written");
    assert!(bench.read(1, 30..40), "two reads");
    assert!(!bench.write(1, 39..41), "read by another stream");
    assert!(bench.write(1, 40..41));
    assert_eq!(bench.shadow.unwritten(&(10..20)), None);
    assert_eq!(bench.shadow.unwritten(&(5..20)), Some(5..10));
    assert_eq!(bench.shadow.unwritten(&(15..45)), Some(20..30));
    assert_eq!(bench.shadow.unwritten(&(40..45)), Some(41..45));
}

#[test]
fn what_the_host_knows_to_be_complete_is_forgotten() {
    let mut bench = Bench::new();
    for index in 0..100 {
        assert!(bench.write(1, index * 10..index * 10 + 10));
    }
    assert_eq!(bench.shadow.extents.len(), 100);
    bench.synchronize(1);
    assert!(bench.read(2, 0..1000));
    assert_eq!(bench.ranges(), vec![0..1000]);
    assert_eq!(bench.shadow.unwritten(&(0..1000)), None, "but not that they were written");
}

#[test]
fn a_long_run_stays_as_small_as_its_borders() {
    let mut bench = Bench::new();
    for step in 0..10_000_u64 {
        let stream = step % 3;
        let start = step * 7919 % 16 * 64;
        if step % 5 == 0 {
            assert!(bench.write(stream, start..start + 64));
        } else {
            assert!(bench.read(stream, start..start + 64));
        }
        bench.synchronize(stream);
        assert!(bench.shadow.extents.len() <= 16);
        assert!(bench.shadow.extents.values().all(|s| s.past.reads_since.stamps.len() <= 1));
    }
}

#[test]
fn readers_that_are_not_ordered_are_all_kept() {
    let mut bench = Bench::new();
    for stream in 1..=4 {
        for _ in 0..10 {
            assert!(bench.read(stream, 0..8));
        }
    }
    let reads = &bench.shadow.extents[&0].past.reads_since;
    assert_eq!(reads.stamps.len(), 4, "the latest of each stream");
    for stream in 1..=3 {
        bench.synchronize(stream);
        assert!(!bench.write(5, 0..8), "stream 4 may still read");
    }
    bench.synchronize(4);
    assert!(bench.write(5, 0..8));
}
