//! What is refused changes nothing, and is reported and counted.

use super::super::bench::{
    BUFFER_BYTES, Bench, access, is_invalid, part, passes, races, swap_in, swap_out,
};
use npu_sys::devices::{CheckConfig, Violation};
use npu_sys::{Access, AccessMode, DevicePtr};

#[test]
fn a_refused_call_changes_nothing() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let ((_, one), (_, two)) = (bench.buffer(), bench.buffer());
    passes(bench.write(a, two));
    let before = bench.fake.total();
    // The first access alone would be fine; it must not be noted.
    let accesses = [access(one, AccessMode::Write), access(two, AccessMode::Write)];
    races(bench.launch(b, "both", &accesses));
    assert_eq!(bench.fake.total(), before, "it did not reach the driver");
    passes(bench.write(a, one));
    races(bench.write(b, one));
    bench.assert_violations(2);
}

#[test]
fn a_report_names_both_accesses() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (chunk, home) = bench.buffer();
    let alias = bench.alias(chunk);
    passes(bench.launch(a, "layer_norm", &[access(part(home, 0, 128), AccessMode::ReadWrite)]));
    let error = bench.fill(b, alias.start.offset(64), 128).unwrap_err();
    assert_eq!(
        error.to_string(),
        "fill failed with code -1: write of 128 bytes at device:0x100140 by fill \
         (stream 2, work 1) is not ordered after read and write of 128 bytes at device:0x100000 \
         by layer_norm (stream 1, work 1); both use bytes 64..128 of chunk 1"
    );
    let error = bench.unmap(home).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unmap failed with code -1: unmap of chunk 1 while the host does not know that read and \
         write of 128 bytes at device:0x100000 by layer_norm (stream 1, work 1) is done"
    );
    let [race, in_use]: [Violation; 2] = bench.check.violations().try_into().unwrap();
    let Violation::Race { earlier, later, .. } = race else { panic!("{race:?}") };
    assert_eq!((earlier.stream, earlier.operation), (a, "layer_norm"));
    assert_eq!((later.stream, later.operation), (b, "fill"));
    assert!(matches!(in_use, Violation::InUse { call: "unmap", access, .. } if access == earlier));
}

#[test]
fn reads_of_bytes_never_written_are_reported_on_request() {
    for config in [CheckConfig::ORDER, CheckConfig::ALL] {
        let bench = Bench::with(config);
        let [a] = bench.streams();
        let (_, buffer) = bench.buffer();
        let slot = bench.allocate_pinned(BUFFER_BYTES);
        passes(bench.write(a, part(buffer, 0, 128)));
        passes(bench.read(a, part(buffer, 0, 128)));
        let outcome = bench.read(a, buffer);
        if config.uninitialised_reads {
            is_invalid(outcome);
            is_invalid(bench.copy(a, swap_out(buffer, slot)));
            is_invalid(bench.launch(a, "add", &[access(buffer, AccessMode::ReadWrite)]));
            bench.assert_violations(3);
        } else {
            passes(outcome);
        }
        // The host may have written pinned memory unseen.
        passes(bench.copy(a, swap_in(slot, buffer)));
        passes(bench.read(a, buffer));
    }
}

#[test]
fn the_counts_show_that_something_was_checked() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    assert_eq!((bench.check.accesses_checked(), bench.check.waits_seen()), (0, 0));
    let slot = bench.allocate_pinned(BUFFER_BYTES);
    passes(bench.copy(a, swap_out(buffer, slot)));
    races(bench.write(b, buffer));
    bench.order(a, b);
    let accesses: [Access; 2] =
        [0, 64].map(|offset| access(part(buffer, offset, 64), AccessMode::Read));
    passes(bench.note(b, &accesses));
    assert_eq!((bench.check.accesses_checked(), bench.check.waits_seen()), (5, 1));
}

#[test]
fn violations_are_counted_beyond_those_that_are_kept() {
    let bench = Bench::new();
    let [a] = bench.streams();
    for _ in 0..1500 {
        is_invalid(bench.fill(a, DevicePtr(1), 1));
    }
    assert_eq!(bench.check.violations().len(), 1000);
    assert_eq!(bench.check.violation_count(), 1500);
}
