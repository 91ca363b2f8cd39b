//! Device memory: its addresses, its past, and when it may be given back.

use super::super::bench::{BUFFER_BYTES, Bench, is_invalid, part, passes, races};
use npu_sys::devices::CheckConfig;
use npu_sys::{DevicePtr, Driver, VaRange};

#[test]
fn a_chunk_is_the_same_bytes_at_all_its_addresses() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (chunk, home) = bench.buffer();
    let alias = bench.alias(chunk);
    let (_, other) = bench.buffer();
    passes(bench.write(a, part(home, 0, 64)));
    passes(bench.write(b, other));
    passes(bench.write(b, part(alias, 64, 64)));
    races(bench.read(b, part(alias, 0, 64)));
    bench.order(a, b);
    passes(bench.read(b, part(alias, 0, 64)));
}

#[test]
fn a_range_stays_mapped_while_its_addresses_are_in_use() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.read(a, buffer));
    bench.order(a, b);
    races(bench.unmap(buffer));
    assert_eq!(bench.fake.count("unmap"), 0);
    bench.synchronize(a);
    passes(bench.unmap(buffer));
    assert_eq!(bench.fake.count("unmap"), 1);
}

#[test]
fn use_at_one_address_does_not_hold_another() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (chunk, home) = bench.buffer();
    let alias = bench.alias(chunk);
    passes(bench.write(a, home));
    passes(bench.unmap(alias));
    let alias = bench.alias(chunk);
    // The later use of the same bytes is known to be complete, the one by `alias` is not.
    bench.order(a, b);
    passes(bench.read(b, alias));
    bench.synchronize(a);
    passes(bench.unmap(home));
    races(bench.unmap(alias));
    bench.synchronize(b);
    passes(bench.unmap(alias));
}

#[test]
fn an_older_reader_holds_its_mapping_though_a_newer_one_has_gone() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (chunk, home) = bench.buffer();
    let alias = bench.alias(chunk);
    passes(bench.read(a, home));
    bench.order(a, b);
    passes(bench.write(b, alias));
    races(bench.unmap(home));
    bench.synchronize(a);
    passes(bench.unmap(home));
    races(bench.unmap(alias));
}

#[test]
fn a_chunk_is_kept_while_in_use_or_mapped() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let (chunk, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    races(bench.release(chunk));
    bench.synchronize(a);
    is_invalid(bench.release(chunk));
    passes(bench.unmap(buffer));
    passes(bench.release(chunk));
    assert_eq!(bench.fake.count("release_chunk"), 1);
}

#[test]
fn a_chunk_created_anew_has_no_past() {
    let bench = Bench::with(CheckConfig::ALL);
    let [a, b] = bench.streams();
    let (chunk, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    passes(bench.read(a, buffer));
    bench.synchronize(a);
    passes(bench.unmap(buffer));
    passes(bench.release(chunk));
    let (again, buffer) = bench.buffer();
    assert_eq!(again, chunk, "the fake gives the same handle again");
    is_invalid(bench.read(a, buffer));
    passes(bench.write(b, buffer));
    races(bench.read(a, buffer));
}

#[test]
fn an_address_mapped_anew_reaches_the_new_chunk_and_the_old_one_stays_in_use() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (old, range) = bench.buffer();
    let home = bench.alias(old);
    let (new, _) = bench.buffer();
    passes(bench.write(a, home));
    passes(bench.unmap(range));
    bench.map(range, new);
    passes(bench.write(b, range));
    races(bench.write(b, home));
    races(bench.read(a, range));
    passes(bench.read(a, home));
}

#[test]
fn an_access_may_span_mappings_and_must_not_leave_them() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let ((_, left), (_, right)) = (bench.buffer(), bench.buffer());
    assert_eq!(left.end(), right.start, "the fake leaves no gap");
    passes(bench.write(a, part(left, 200, 100)));
    races(bench.read(b, part(left, 200, 1)));
    races(bench.read(b, part(right, 43, 1)));
    passes(bench.read(b, part(right, 44, 1)));
    is_invalid(bench.write(a, part(right, 200, 100)));
    is_invalid(bench.fill(a, DevicePtr(left.start.0 - 1), 2));
    is_invalid(bench.fill(a, left.start, u64::MAX));
}

#[test]
fn an_address_is_reachable_from_set_access_to_unmap() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let chunk = bench.create_chunk(BUFFER_BYTES);
    let range = bench.reserve(BUFFER_BYTES);
    is_invalid(bench.write(a, range));
    bench.check.map(range, chunk).unwrap();
    is_invalid(bench.write(a, range));
    bench.check.set_access(range).unwrap();
    passes(bench.write(a, range));
    bench.synchronize(a);
    passes(bench.unmap(range));
    is_invalid(bench.write(a, range));
    bench.map(range, chunk);
    passes(bench.write(a, range));
    assert_eq!(bench.fake.count("fill"), 2);
}

#[test]
fn memory_calls_are_held_to_their_conditions() {
    let bench = Bench::new();
    let (_, buffer) = bench.buffer();
    is_invalid(bench.unmap(part(buffer, 0, 64)));
    is_invalid(bench.unmap(part(buffer, 64, 64)));
    is_invalid(bench.check.free_range(buffer));
    passes(bench.unmap(buffer));
    is_invalid(bench.unmap(buffer));
    passes(bench.check.free_range(buffer));
    assert_eq!((bench.fake.count("unmap"), bench.fake.count("free_range")), (1, 1));
}

#[test]
fn memory_allocated_with_its_address_is_tracked_from_birth_to_free() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let start = bench.check.allocate_device(BUFFER_BYTES).unwrap();
    let plain = VaRange { start, size_bytes: BUFFER_BYTES };
    passes(bench.write(a, plain));
    races(bench.read(b, plain));
    bench.order(a, b);
    passes(bench.read(b, plain));
    is_invalid(bench.read(b, VaRange { size_bytes: BUFFER_BYTES + 1, ..plain }));

    is_invalid(bench.unmap(plain));
    is_invalid(bench.check.free_range(plain));
    races(bench.free_device(start));
    bench.synchronize(b);
    passes(bench.free_device(start));
    is_invalid(bench.read(b, plain));
    assert_eq!(bench.fake.count("free_device"), 1);
}

#[test]
fn memory_allocated_with_its_address_has_no_past() {
    let bench = Bench::with(CheckConfig::ALL);
    let [a] = bench.streams();
    let start = bench.check.allocate_device(BUFFER_BYTES).unwrap();
    let plain = VaRange { start, size_bytes: BUFFER_BYTES };
    is_invalid(bench.read(a, plain));
    passes(bench.write(a, plain));
    passes(bench.read(a, plain));
}
