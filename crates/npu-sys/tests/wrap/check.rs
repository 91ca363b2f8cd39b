//! The checker: each case with its twin, so that one that always passes, or never, is caught.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bench::{BUFFER_BYTES, Bench, access, is_invalid, passes, races};
use npu_sys::{
    Access, AccessMode, CheckConfig, CheckDriver, Copy, DevicePtr, Driver, ErrorKind, FaultDriver,
    FaultPlan, HostPtr, StreamHandle, VaRange, Violation,
};

/// The first `size_bytes` bytes of `range` from `offset_bytes` on.
fn part(range: VaRange, offset_bytes: u64, size_bytes: u64) -> VaRange {
    VaRange { start: range.start.offset(offset_bytes), size_bytes }
}

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
fn order_passes_through_a_chain_of_streams() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    // Nothing runs on `b` itself.
    races(bench.read(c, buffer));
    bench.order(b, c);
    passes(bench.read(c, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_chain_in_the_wrong_order_carries_nothing() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(b, c);
    bench.order(a, b);
    races(bench.read(c, buffer));
    passes(bench.read(b, buffer));
}

#[test]
fn a_stream_that_waits_twice_knows_both() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let ((_, one), (_, two)) = (bench.buffer(), bench.buffer());
    let old = bench.event();
    bench.record(old, a);
    passes(bench.write(a, one));
    passes(bench.write(b, two));
    bench.order(a, c);
    races(bench.read(c, two));
    bench.order(b, c);
    // An event that says less than is known takes nothing away.
    bench.wait(c, old);
    passes(bench.read(c, one));
    passes(bench.read(c, two));
    bench.assert_violations(1);
}

#[test]
fn an_event_stands_for_what_came_before_its_record() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    bench.record(event, a);
    passes(bench.write(a, buffer));
    bench.wait(b, event);
    races(bench.read(b, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    passes(bench.read(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_wait_before_the_record_waits_for_nothing() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.wait(b, event);
    bench.record(event, a);
    races(bench.read(b, buffer));
    bench.wait(b, event);
    passes(bench.read(b, buffer));
}

#[test]
fn an_event_recorded_anew_forgets_and_earlier_waits_do_not() {
    let bench = Bench::new();
    let [a, b, c, d] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    bench.record(event, c);
    bench.wait(d, event);
    passes(bench.read(b, buffer));
    races(bench.read(d, buffer));
}

#[test]
fn a_destroyed_event_keeps_the_waits_it_served_and_serves_no_more() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    bench.check.destroy_event(event).unwrap();
    passes(bench.read(b, buffer));
    let again = bench.event();
    assert_eq!(again, event, "the fake gives the same handle again");
    bench.wait(c, again);
    races(bench.read(c, buffer));
    bench.record(again, b);
    bench.wait(c, again);
    passes(bench.read(c, buffer));
}

#[test]
fn a_destroyed_stream_s_work_still_counts() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    let event = bench.event();
    bench.record(event, a);
    bench.check.destroy_stream(a).unwrap();
    let [again] = bench.streams();
    assert_eq!(again, a, "the fake gives the same handle again");
    races(bench.read(again, buffer));
    bench.wait(again, event);
    passes(bench.read(again, buffer));
}

#[test]
fn a_new_stream_does_not_inherit_what_a_destroyed_one_waited_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    bench.check.destroy_stream(b).unwrap();
    let [again] = bench.streams();
    races(bench.read(again, buffer));
    bench.order(a, again);
    passes(bench.read(again, buffer));
}

#[test]
fn a_stream_made_elsewhere_is_tracked_too() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let theirs = StreamHandle(77);
    let (_, buffer) = bench.buffer();
    passes(bench.write(theirs, buffer));
    races(bench.read(a, buffer));
    bench.order(theirs, a);
    passes(bench.read(a, buffer));
}

#[test]
fn the_host_carries_what_it_waited_for_into_every_stream() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.synchronize(c);
    races(bench.read(b, buffer));
    bench.synchronize(a);
    passes(bench.read(b, buffer));
    races(bench.write(c, buffer));
    bench.synchronize(b);
    passes(bench.write(c, buffer));
}

#[test]
fn waiting_on_the_host_for_a_stream_includes_what_the_stream_waited_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    races(bench.unmap(buffer));
    bench.synchronize(b);
    passes(bench.unmap(buffer));
}

#[test]
fn waiting_on_the_host_for_an_event_orders_only_what_it_stands_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let ((_, early), (_, late)) = (bench.buffer(), bench.buffer());
    let event = bench.event();
    passes(bench.write(a, early));
    bench.record(event, a);
    passes(bench.write(a, late));
    races(bench.read(b, early));
    bench.synchronize_event(event);
    passes(bench.read(b, early));
    races(bench.read(b, late));
}

#[test]
fn what_is_submitted_while_the_host_waits_is_not_known_to_be_complete() {
    for by_event in [false, true] {
        let bench = Arc::new(Bench::new());
        let [a] = bench.streams();
        let ((_, before), (_, during)) = (bench.buffer(), bench.buffer());
        let event = bench.event();
        passes(bench.write(a, before));
        bench.record(event, a);
        let other = Arc::clone(&bench);
        bench.fake.do_meanwhile(move || {
            passes(other.write(a, during));
            other.record(event, a);
        });
        if by_event {
            bench.synchronize_event(event);
        } else {
            bench.synchronize(a);
        }
        races(bench.unmap(during));
        passes(bench.unmap(before));
        bench.synchronize(a);
        passes(bench.unmap(during));
    }
}

#[test]
fn a_query_orders_only_if_it_says_complete() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    assert!(!bench.query(event));
    races(bench.read(b, buffer));
    bench.fake.complete.store(true, Ordering::SeqCst);
    races(bench.read(b, buffer));
    assert!(bench.query(event));
    passes(bench.read(b, buffer));
    bench.assert_violations(2);
}

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

    let strict = Bench::with(CheckConfig::ALL);
    let [a] = strict.streams();
    let start = strict.check.allocate_device(BUFFER_BYTES).unwrap();
    let plain = VaRange { start, size_bytes: BUFFER_BYTES };
    is_invalid(strict.read(a, plain));
    passes(strict.write(a, plain));
    passes(strict.read(a, plain));
}

fn swap_out(source: VaRange, target: HostPtr) -> Copy {
    Copy::DeviceToHost { source: source.start, target, size_bytes: source.size_bytes }
}

fn swap_in(source: HostPtr, target: VaRange) -> Copy {
    Copy::HostToDevice { source, target: target.start, size_bytes: target.size_bytes }
}

#[test]
fn a_pinned_slot_is_used_again_only_after_its_copies() {
    let bench = Bench::new();
    let [out, back] = bench.streams();
    let ((_, one), (_, two)) = (bench.buffer(), bench.buffer());
    let slot = bench.allocate_pinned(BUFFER_BYTES);
    passes(bench.copy(out, swap_out(one, slot)));
    races(bench.copy(back, swap_in(slot, one)));
    bench.order(out, back);
    passes(bench.copy(back, swap_in(slot, one)));
    races(bench.copy(out, swap_out(two, slot)));
    bench.order(back, out);
    passes(bench.copy(out, swap_out(two, slot)));
    bench.assert_violations(2);
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
fn host_memory_is_reachable_while_it_is_pinned() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let (_, buffer) = bench.buffer();
    let slot = bench.allocate_pinned(BUFFER_BYTES);
    is_invalid(bench.copy(a, swap_out(buffer, HostPtr(0x1000))));
    is_invalid(bench.copy(a, swap_out(buffer, slot.offset(1))));
    is_invalid(bench.copy(a, swap_out(buffer, slot.offset(BUFFER_BYTES))));
    passes(bench.copy(a, swap_out(buffer, slot)));
    races(bench.free_pinned(slot));
    bench.synchronize(a);
    passes(bench.free_pinned(slot));
    is_invalid(bench.copy(a, swap_out(buffer, slot)));
    assert_eq!(bench.fake.count("free_pinned"), 1);
}

#[test]
fn registered_memory_is_tracked_like_pinned_memory() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let ours = HostPtr(0x7000);
    is_invalid(bench.copy(a, swap_out(buffer, ours)));
    passes(bench.register(ours, BUFFER_BYTES));
    passes(bench.copy(a, swap_out(buffer, ours)));
    races(bench.copy(b, swap_out(buffer, ours)));
    races(bench.unregister(ours));
    bench.synchronize(a);
    passes(bench.unregister(ours));
    is_invalid(bench.copy(a, swap_out(buffer, ours)));
}

#[test]
fn host_memory_is_the_same_bytes_by_its_device_address() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let slot = bench.allocate_pinned(BUFFER_BYTES);
    // Asked for by an inner address, all of the memory is reachable.
    let device = bench.device_pointer(slot.offset(16));
    let start = DevicePtr(device.0 - 16);
    let window = VaRange { start, size_bytes: BUFFER_BYTES };
    passes(bench.copy(a, swap_out(buffer, slot)));
    races(bench.read(b, window));
    bench.order(a, b);
    passes(bench.read(b, window));
    bench.synchronize(a);
    races(bench.free_pinned(slot));
    bench.synchronize(b);
    passes(bench.free_pinned(slot));
    is_invalid(bench.read(b, window));
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
fn a_call_that_the_driver_fails_is_not_noted() {
    let inner = Bench::new();
    let fault = Arc::new(FaultDriver::new(Arc::clone(&inner.fake) as Arc<dyn Driver>));
    let check = CheckDriver::new(Arc::clone(&fault) as Arc<dyn Driver>, CheckConfig::ORDER);
    let bench = Bench { check, ..inner };
    let [a, b] = bench.streams();
    let (chunk, buffer) = bench.buffer();
    let event = bench.event();
    let fail = |name| fault.arm(FaultPlan::once(1, ErrorKind::Failed).only(name));

    fail("fill");
    bench.write(a, buffer).unwrap_err();
    passes(bench.write(b, buffer));
    fail("record_event");
    bench.check.record_event(event, b).unwrap_err();
    bench.wait(a, event);
    races(bench.read(a, buffer));
    bench.record(event, b);
    fail("wait_event");
    bench.check.wait_event(a, event).unwrap_err();
    races(bench.read(a, buffer));
    fail("synchronize_stream");
    bench.check.synchronize_stream(b).unwrap_err();
    fail("synchronize_event");
    bench.check.synchronize_event(event).unwrap_err();
    fail("query_event");
    bench.check.query_event(event).unwrap_err();
    races(bench.unmap(buffer));
    bench.synchronize(b);
    fail("unmap");
    bench.unmap(buffer).unwrap_err();
    passes(bench.write(a, buffer));
    bench.synchronize(a);
    passes(bench.unmap(buffer));
    fail("release_chunk");
    bench.release(chunk).unwrap_err();
    bench.map(buffer, chunk);
    fail("map");
    let range = bench.reserve(BUFFER_BYTES);
    bench.check.map(range, chunk).unwrap_err();
    is_invalid(bench.write(a, range));
    bench.assert_violations(4);
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

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    let bench = Bench::new();
    let (_, shared) = bench.buffer();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let [stream] = bench.streams();
                for _ in 0..200 {
                    let (chunk, buffer) = bench.buffer();
                    passes(bench.read(stream, shared));
                    passes(bench.write(stream, buffer));
                    bench.synchronize(stream);
                    passes(bench.unmap(buffer));
                    passes(bench.release(chunk));
                }
            });
        }
    });
    bench.assert_violations(0);
    assert_eq!(bench.check.accesses_checked(), 1600);
    let [stream] = bench.streams();
    passes(bench.write(stream, shared));
}
