//! Host memory: while it is pinned, and by which addresses.

use super::super::bench::{BUFFER_BYTES, Bench, is_invalid, passes, races, swap_in, swap_out};
use npu_sys::{DevicePtr, HostPtr, VaRange};

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
