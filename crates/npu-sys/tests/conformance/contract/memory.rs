//! Addresses, chunks, pinned memory: what they hold.

use npu_sys::{Copy, DevicePtr, ErrorKind, HostMapping, HostPtr, VaRange};

use crate::drivers::{on_all_drivers, with_virtual_memory};
use crate::rig::{Rig, refused};

/// Bytes in which each differs from those around it.
fn pattern(size_bytes: u64) -> Vec<u8> {
    (0..size_bytes).map(|index| (index * 31 % 251) as u8).collect()
}

/// Offsets and sizes of pieces of `whole` bytes.
fn pieces(whole: u64) -> [(u64, u64); 8] {
    [(0, whole), (0, 1), (1, 1), (3, 17), (5, 4096), (64, 64), (4095, 2), (0, whole - 1)]
}

/// `inner` at an offset in so many bytes of `outer`.
fn surrounded(outer: u8, size_bytes: u64, offset: u64, inner: &[u8]) -> Vec<u8> {
    let mut bytes = vec![outer; size_bytes as usize];
    bytes[offset as usize..offset as usize + inner.len()].copy_from_slice(inner);
    bytes
}

/// Whether all the bytes are `value`.
fn holds(rig: &Rig<'_>, start: DevicePtr, size_bytes: u64, value: u8) -> bool {
    rig.device_bytes(start, size_bytes).iter().all(|&byte| byte == value)
}

#[test]
fn properties_and_free_memory_make_sense() {
    on_all_drivers(|rig| {
        let properties = rig.driver.properties();
        assert_eq!(properties, rig.properties, "facts do not change");
        assert!(rig.unit.is_power_of_two() && rig.unit >= 4096);
        assert!(!properties.name.is_empty() && !properties.driver_version.is_empty());
        let before = rig.driver.memory_info().unwrap();
        assert!(before.free_bytes <= before.total_bytes);
        assert!(before.total_bytes <= properties.total_bytes);
        let buffer = rig.buffer(16 * rig.unit);
        let during = rig.driver.memory_info().unwrap();
        assert!(during.free_bytes < before.free_bytes, "{during:?} after {before:?}");
        assert_eq!(during.total_bytes, before.total_bytes);
        rig.drop_buffer(buffer);
        assert!(rig.driver.memory_info().unwrap().free_bytes > during.free_bytes);
    });
}

#[test]
fn aliases_see_the_same_bytes() {
    with_virtual_memory(|rig| {
        let unit = rig.unit;
        let buffer = rig.buffer(2 * unit);
        let alias = rig.driver.reserve(4 * unit).unwrap();
        let inner = VaRange { start: alias.start.offset(unit), size_bytes: 2 * unit };
        rig.map(inner, buffer.chunk());
        let stream = rig.stream();
        rig.fill(buffer.start(), 2 * unit, 7, stream).unwrap();
        rig.fill(inner.start.offset(unit), unit, 9, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        for start in [buffer.start(), inner.start] {
            assert!(holds(rig, start, unit, 7));
            assert!(holds(rig, start.offset(unit), unit, 9));
        }
        rig.unmap(inner).unwrap();
        assert!(holds(rig, buffer.start(), unit, 7), "the other mapping stays");
        rig.driver.free_range(alias).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

#[test]
fn bytes_belong_to_the_chunk_and_not_to_the_address() {
    with_virtual_memory(|rig| {
        let unit = rig.unit;
        let buffer = rig.buffer(unit);
        let second = rig.driver.create_chunk(unit).unwrap();
        let elsewhere = rig.driver.reserve(unit).unwrap();
        let stream = rig.stream();
        rig.fill(buffer.start(), unit, 1, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        rig.unmap(buffer.range).unwrap();
        rig.map(buffer.range, second);
        rig.fill(buffer.start(), unit, 2, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        rig.map(elsewhere, buffer.chunk());
        assert!(holds(rig, elsewhere.start, unit, 1));
        assert!(holds(rig, buffer.start(), unit, 2));

        rig.unmap(elsewhere).unwrap();
        rig.unmap(buffer.range).unwrap();
        rig.driver.free_range(elsewhere).unwrap();
        rig.driver.free_range(buffer.range).unwrap();
        rig.driver.release_chunk(buffer.chunk()).unwrap();
        rig.driver.release_chunk(second).unwrap();
        rig.destroy([stream], []);
    });
}

#[test]
fn work_may_span_neighbouring_mappings() {
    with_virtual_memory(|rig| {
        let unit = rig.unit;
        let range = rig.driver.reserve(3 * unit).unwrap();
        let part =
            |index: u64| VaRange { start: range.start.offset(index * unit), size_bytes: unit };
        let chunks = [0, 1, 2].map(|index| {
            let chunk = rig.driver.create_chunk(unit).unwrap();
            rig.driver.map(part(index), chunk).unwrap();
            chunk
        });
        rig.driver.set_access(range).unwrap();
        let stream = rig.stream();
        let bytes = pattern(3 * unit);
        let (source, target) = (rig.pinned(&bytes), rig.pinned(&vec![0; 3 * unit as usize]));
        rig.copy_in(source, range.start, 3 * unit, stream);
        rig.copy_out(range.start, target, 3 * unit, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        assert!(rig.host_bytes(target, 3 * unit) == bytes);
        rig.fill(range.start.offset(unit / 2), 2 * unit, 3, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        assert!(holds(rig, range.start.offset(unit / 2), 2 * unit, 3));

        // What is left beside a gap keeps its bytes.
        rig.unmap(part(1)).unwrap();
        let half = unit as usize / 2;
        assert!(rig.device_bytes(range.start, unit / 2) == bytes[..half]);
        let last = range.start.offset(5 * unit / 2);
        assert!(rig.device_bytes(last, unit / 2) == bytes[5 * half..]);
        for (index, chunk) in [0, 1, 2].into_iter().zip(chunks) {
            if index != 1 {
                rig.unmap(part(index)).unwrap();
            }
            rig.driver.release_chunk(chunk).unwrap();
        }
        rig.driver.free_range(range).unwrap();
        rig.free_pinned(source).unwrap();
        rig.free_pinned(target).unwrap();
        rig.destroy([stream], []);
    });
}

#[test]
fn ranges_are_apart_and_aligned() {
    with_virtual_memory(|rig| {
        let sizes = [1, 3, 2, 1, 5].map(|units| units * rig.unit);
        let ranges = sizes.map(|size_bytes| rig.driver.reserve(size_bytes).unwrap());
        for (index, range) in ranges.iter().enumerate() {
            assert_eq!(range.size_bytes, sizes[index]);
            assert!(range.start.0.is_multiple_of(rig.unit));
            for other in &ranges[index + 1..] {
                assert!(range.end() <= other.start || other.end() <= range.start);
            }
        }
        ranges.into_iter().for_each(|range| rig.driver.free_range(range).unwrap());
    });
}

#[test]
fn more_than_the_device_has_is_out_of_memory_and_takes_nothing() {
    on_all_drivers(|rig| {
        let too_much = (rig.properties.total_bytes / rig.unit + 1) * rig.unit;
        if rig.properties.has_virtual_memory {
            refused(rig.driver.create_chunk(too_much), ErrorKind::OutOfMemory);
            let chunk = rig.driver.create_chunk(rig.unit).unwrap();
            rig.driver.release_chunk(chunk).unwrap();
        } else {
            refused(rig.driver.allocate_device(too_much), ErrorKind::OutOfMemory);
            refused(rig.driver.reserve(rig.unit), ErrorKind::Unsupported);
            refused(rig.driver.create_chunk(rig.unit), ErrorKind::Unsupported);
        }
        let buffer = rig.buffer(rig.unit);
        rig.drop_buffer(buffer);
    });
}

#[test]
fn memory_may_come_with_its_address() {
    on_all_drivers(|rig| {
        let size_bytes = 3 * rig.unit;
        let start = match rig.driver.allocate_device(size_bytes) {
            Ok(start) => start,
            Err(error) => {
                // Chunks are the only way then.
                assert!(error.kind == ErrorKind::Unsupported && rig.properties.has_virtual_memory);
                return;
            }
        };
        let other = rig.driver.allocate_device(rig.unit).unwrap();
        let stream = rig.stream();
        rig.fill(start, size_bytes, 4, stream).unwrap();
        rig.fill(other, rig.unit, 5, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        assert!(holds(rig, start, size_bytes, 4) && holds(rig, other, rig.unit, 5));
        rig.free_device(start).unwrap();
        assert!(holds(rig, other, rig.unit, 5));
        rig.free_device(other).unwrap();
        rig.destroy([stream], []);
    });
}

#[test]
fn pinned_memory_is_page_aligned_and_the_device_reaches_it() {
    on_all_drivers(|rig| {
        let first = rig.pinned(&[5; 10_000]);
        let second = rig.pinned(&[6; 1]);
        assert!(first.0.is_multiple_of(4096) && second.0.is_multiple_of(4096));
        if rig.properties.host_mapping != HostMapping::Nothing {
            let stream = rig.stream();
            let buffer = rig.buffer(rig.unit);
            let mapped = rig.driver.device_pointer(first).unwrap();
            let inner = rig.driver.device_pointer(first.offset(4096)).unwrap();
            assert_eq!(inner, mapped.offset(4096), "one piece of addresses");
            rig.fill(inner, 64, 7, stream).unwrap();
            let copy = |source, target| Copy::DeviceToDevice { source, target, size_bytes: 8192 };
            rig.copy(copy(mapped, buffer.start()), stream).unwrap();
            rig.driver.synchronize_stream(stream).unwrap();
            let expect = [vec![5; 4096], vec![7; 64], vec![5; 4032]].concat();
            assert!(rig.host_bytes(first, 8192) == expect);
            assert!(rig.device_bytes(buffer.start(), 8192) == expect);
            rig.fill(buffer.start(), 8192, 8, stream).unwrap();
            rig.copy(copy(buffer.start(), mapped), stream).unwrap();
            rig.driver.synchronize_stream(stream).unwrap();
            assert!(rig.host_bytes(first, 8193) == [vec![8; 8192], vec![5]].concat());
            rig.drop_buffer(buffer);
            rig.destroy([stream], []);
        }
        assert_eq!(rig.host_bytes(second, 1), [6]);
        rig.free_pinned(first).unwrap();
        rig.free_pinned(second).unwrap();
    });
}

#[test]
fn more_pinned_memory_than_there_are_addresses_is_out_of_memory() {
    on_all_drivers(|rig| {
        refused(rig.driver.allocate_pinned(1 << 52), ErrorKind::OutOfMemory);
        let start = rig.pinned(&[1]);
        rig.free_pinned(start).unwrap();
    });
}

#[test]
fn registered_memory_takes_part_in_copies() {
    on_all_drivers(|rig| {
        // Whole pages somewhere inside an ordinary vector.
        let size_bytes = 16 * 4096;
        let mut owned = vec![3_u8; size_bytes as usize + 4096];
        let first = owned.as_mut_ptr().expose_provenance() as u64;
        let start = HostPtr(first.next_multiple_of(4096));
        let buffer = rig.buffer(rig.unit.max(size_bytes));
        let stream = rig.stream();
        rig.register(start, size_bytes).unwrap();
        rig.copy_in(start, buffer.start(), size_bytes, stream);
        rig.fill(buffer.start(), 64, 4, stream).unwrap();
        rig.copy_out(buffer.start(), start.offset(1), 66, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        assert_eq!(rig.host_bytes(start, 69), [vec![3], vec![4; 64], vec![3; 4]].concat());
        rig.unregister(start).unwrap();
        // The caller's again, and it may be registered anew.
        rig.register(start, 4096).unwrap();
        rig.unregister(start).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
        drop(owned);
    });
}

#[test]
fn copies_round_trip_at_any_offset_and_size() {
    on_all_drivers(|rig| {
        let unit = rig.unit;
        let bytes = pattern(unit);
        let (source, target) = (rig.pinned(&bytes), rig.pinned(&vec![0; unit as usize]));
        let buffer = rig.buffer(unit);
        let stream = rig.stream();
        for (offset, size_bytes) in pieces(unit) {
            rig.fill(buffer.start(), unit, 0xaa, stream).unwrap();
            rig.copy_in(source, buffer.start().offset(offset), size_bytes, stream);
            rig.copy_out(buffer.start(), target, unit, stream);
            rig.driver.synchronize_stream(stream).unwrap();
            let expect = surrounded(0xaa, unit, offset, &bytes[..size_bytes as usize]);
            assert!(rig.host_bytes(target, unit) == expect, "{size_bytes} bytes to {offset}");
            rig.copy_in(source, buffer.start(), unit, stream);
            rig.copy_out(buffer.start().offset(offset), target, size_bytes, stream);
            rig.driver.synchronize_stream(stream).unwrap();
            let end = (offset + size_bytes) as usize;
            let expect = &bytes[offset as usize..end];
            assert!(rig.host_bytes(target, size_bytes) == expect, "{size_bytes} from {offset}");
        }
        rig.free_pinned(source).unwrap();
        rig.free_pinned(target).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

#[test]
fn copies_within_the_device_reach_any_offset_and_size() {
    on_all_drivers(|rig| {
        let unit = rig.unit;
        let bytes = pattern(unit);
        let source = rig.pinned(&bytes);
        let (first, second) = (rig.buffer(unit), rig.buffer(unit));
        let stream = rig.stream();
        rig.copy_in(source, first.start(), unit, stream);
        for (offset, size_bytes) in pieces(unit) {
            // To the same place, and to one that is aligned otherwise.
            for target_offset in [offset, (offset + 3).min(unit - size_bytes)] {
                rig.fill(second.start(), unit, 0xbb, stream).unwrap();
                let within = Copy::DeviceToDevice {
                    source: first.start().offset(offset),
                    target: second.start().offset(target_offset),
                    size_bytes,
                };
                rig.copy(within, stream).unwrap();
                rig.driver.synchronize_stream(stream).unwrap();
                let copied = &bytes[offset as usize..(offset + size_bytes) as usize];
                let expect = surrounded(0xbb, unit, target_offset, copied);
                let seen = rig.device_bytes(second.start(), unit);
                assert!(seen == expect, "{size_bytes} bytes from {offset} to {target_offset}");
            }
        }
        rig.free_pinned(source).unwrap();
        rig.drop_buffer(first);
        rig.drop_buffer(second);
        rig.destroy([stream], []);
    });
}

#[test]
fn fills_stop_where_they_should() {
    on_all_drivers(|rig| {
        let buffer = rig.buffer(rig.unit);
        let stream = rig.stream();
        for (offset, size_bytes) in [(0, 1), (1, 3), (7, 4096), (64, 64), (4095, 2)] {
            rig.fill(buffer.start(), 16_384, 1, stream).unwrap();
            rig.fill(buffer.start().offset(offset), size_bytes, 2, stream).unwrap();
            rig.driver.synchronize_stream(stream).unwrap();
            let seen = rig.device_bytes(buffer.start(), 16_384);
            let inside = |at: u64| offset <= at && at < offset + size_bytes;
            let expect: Vec<u8> = (0..16_384).map(|at| 1 + u8::from(inside(at))).collect();
            assert!(seen == expect, "{size_bytes} bytes at {offset}");
        }
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}
