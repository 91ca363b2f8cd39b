//! What two accesses must not do without order, and what one piece of work may do.

use super::super::bench::{BUFFER_BYTES, Bench, access, part, passes, races};
use npu_sys::devices::Violation;
use npu_sys::{AccessMode, Copy, Driver};

#[test]
fn a_read_must_wait_for_the_write() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    races(bench.read(b, buffer));
    bench.order(a, b);
    passes(bench.read(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_write_must_wait_for_the_read() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.read(a, buffer));
    races(bench.write(b, buffer));
    bench.order(a, b);
    passes(bench.write(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_write_must_wait_for_the_write() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    races(bench.write(b, buffer));
    bench.order(a, b);
    passes(bench.write(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_write_must_wait_for_every_reader() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.read(a, buffer));
    passes(bench.read(b, buffer));
    bench.order(a, c);
    races(bench.write(c, buffer));
    bench.order(b, c);
    passes(bench.write(c, buffer));
    bench.assert_violations(1);
}

#[test]
fn reads_need_no_order_among_themselves() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    for stream in [a, b, c, a, b, c] {
        passes(bench.read(stream, buffer));
    }
    races(bench.write(a, buffer));
    bench.assert_violations(1);
}

#[test]
fn one_stream_is_ordered_by_itself() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    for _ in 0..3 {
        passes(bench.write(a, buffer));
        passes(bench.read(a, buffer));
    }
    races(bench.write(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn disjoint_bytes_do_not_conflict_and_one_shared_byte_does() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, part(buffer, 64, 64)));
    passes(bench.write(b, part(buffer, 0, 64)));
    passes(bench.write(b, part(buffer, 128, 64)));
    races(bench.write(b, part(buffer, 127, 1)));
    races(bench.write(b, part(buffer, 0, 65)));
    let [first, second]: [Violation; 2] = bench.check.violations().try_into().unwrap();
    assert!(matches!(first, Violation::Race { shared_bytes, .. } if shared_bytes == (127..128)));
    assert!(matches!(second, Violation::Race { shared_bytes, .. } if shared_bytes == (64..65)));
}

#[test]
fn work_of_no_bytes_touches_nothing() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    passes(bench.write(b, part(buffer, 16, 0)));
    races(bench.write(b, part(buffer, 16, 1)));
}

#[test]
fn both_sides_of_a_copy_are_checked() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let ((_, one), (_, two)) = (bench.buffer(), bench.buffer());
    let size_bytes = BUFFER_BYTES;
    let copy = Copy::DeviceToDevice { source: one.start, target: two.start, size_bytes };
    passes(bench.copy(a, copy));
    races(bench.read(b, two));
    races(bench.write(b, one));
    passes(bench.read(b, one));
    bench.order(a, b);
    passes(bench.read(b, two));
}

#[test]
fn work_launched_by_others_is_checked_as_noted() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    assert!(bench.check.wants_accesses());
    passes(bench.note(a, &[access(buffer, AccessMode::Write)]));
    races(bench.note(b, &[access(buffer, AccessMode::Read)]));
    races(bench.read(b, buffer));
    races(bench.unmap(buffer));
    bench.order(a, b);
    passes(bench.note(b, &[access(buffer, AccessMode::Read)]));
    races(bench.note(a, &[access(buffer, AccessMode::ReadWrite)]));
    assert_eq!(bench.fake.count("note_access"), 2);
}

#[test]
fn one_piece_of_work_writes_what_it_does_not_otherwise_use() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let (chunk, home) = bench.buffer();
    let alias = bench.alias(chunk);
    let (read, write) = (AccessMode::Read, AccessMode::Write);
    let half = |range, offset, mode| access(part(range, offset, 128), mode);
    races(bench.launch(a, "add", &[half(home, 0, read), half(alias, 127, write)]));
    races(bench.launch(a, "add", &[half(home, 0, write), half(alias, 127, write)]));
    passes(bench.launch(a, "add", &[half(home, 0, write), half(alias, 128, write)]));
    passes(bench.launch(a, "add", &[half(home, 0, read), half(alias, 127, read)]));
    // A kernel of others may read and write the same bytes in its own good order.
    passes(bench.note(a, &[half(home, 0, read), half(alias, 0, write)]));
    let copy = |offset| {
        let target = alias.start.offset(offset);
        Copy::DeviceToDevice { source: home.start, target, size_bytes: 128 }
    };
    races(bench.copy(a, copy(64)));
    passes(bench.copy(a, copy(128)));
}
