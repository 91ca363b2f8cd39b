//! Addresses, chunks, pinned memory: what the ledger counts, and misuse that only it can see.

use npu_sys::devices::{HostConfig, HostDriver};
use npu_sys::{
    AccessMode, ChunkHandle, Copy, DevicePtr, ErrorKind, EventHandle, EventKind, HostFunction,
    HostPtr, StreamHandle, VaRange,
};

use super::{CAPACITY, HostRig, UNIT, configs, in_all_modes, in_mode};
use crate::rig::refused;

#[test]
fn the_ledger_counts_every_mapping_and_each_chunk_once() {
    in_all_modes(|rig| {
        let buffer = rig.buffer(2 * UNIT);
        let alias = rig.driver.reserve(4 * UNIT).unwrap();
        let inner = VaRange { start: alias.start.offset(UNIT), size_bytes: 2 * UNIT };
        rig.map(inner, buffer.chunk());
        let ledger = rig.host.ledger();
        assert_eq!((ledger.chunk_count, ledger.chunk_bytes), (1, 2 * UNIT));
        assert_eq!((ledger.mapping_count, ledger.mapped_bytes), (2, 4 * UNIT));
        assert_eq!((ledger.range_count, ledger.reserved_bytes), (2, 6 * UNIT));

        let plain = rig.driver.allocate_device(UNIT).unwrap();
        let with_plain = rig.host.ledger();
        assert_eq!((with_plain.chunk_count, with_plain.chunk_bytes), (2, 3 * UNIT));
        assert_eq!((with_plain.mapping_count, with_plain.mapped_bytes), (3, 5 * UNIT));
        assert_eq!((with_plain.range_count, with_plain.reserved_bytes), (3, 7 * UNIT));
        let whole = VaRange { start: plain, size_bytes: UNIT };
        refused(rig.unmap(whole), ErrorKind::Invalid);
        refused(rig.driver.free_range(whole), ErrorKind::Invalid);
        refused(rig.free_device(plain.offset(8)), ErrorKind::Invalid);
        refused(rig.free_device(buffer.start()), ErrorKind::Invalid);
        refused(rig.driver.allocate_device(UNIT - 1), ErrorKind::Invalid);
        refused(rig.driver.allocate_device(CAPACITY), ErrorKind::OutOfMemory);
        assert_eq!(rig.host.ledger(), with_plain);
        rig.free_device(plain).unwrap();
        refused(rig.free_device(plain), ErrorKind::Invalid);

        let stream = rig.stream();
        let host = rig.pinned(&[0; 4096]);
        rig.copy_out(buffer.start(), host, 100, stream);
        rig.copy_in(host, buffer.start(), 30, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        let after = rig.host.ledger();
        assert_eq!((after.copied_out_bytes, after.copied_in_bytes), (100, 30));
        rig.free_pinned(host).unwrap();
        rig.unmap(inner).unwrap();
        rig.driver.free_range(alias).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

#[test]
fn a_device_without_virtual_memory_refuses_to_take_addresses_and_memory_apart() {
    for config in configs() {
        in_mode(HostConfig { has_virtual_memory: false, ..config }, |rig| {
            let start = rig.driver.allocate_device(UNIT).unwrap();
            let (range, chunk) = (VaRange { start, size_bytes: UNIT }, ChunkHandle(1));
            refused(rig.driver.reserve(UNIT), ErrorKind::Unsupported);
            refused(rig.driver.free_range(range), ErrorKind::Unsupported);
            refused(rig.driver.create_chunk(UNIT), ErrorKind::Unsupported);
            refused(rig.driver.release_chunk(chunk), ErrorKind::Unsupported);
            refused(rig.driver.map(range, chunk), ErrorKind::Unsupported);
            refused(rig.driver.set_access(range), ErrorKind::Unsupported);
            refused(rig.unmap(range), ErrorKind::Unsupported);
            let text = rig.driver.reserve(UNIT).unwrap_err().to_string();
            assert!(text.contains("use allocate_device"), "{text}");
            rig.free_device(start).unwrap();
        });
    }
}

#[test]
fn work_beyond_what_is_mapped_with_access_is_refused() {
    in_all_modes(|rig| {
        let range = rig.driver.reserve(3 * UNIT).unwrap();
        let part =
            |index: u64| VaRange { start: range.start.offset(index * UNIT), size_bytes: UNIT };
        let chunks = [0, 1, 2].map(|index| {
            let chunk = rig.driver.create_chunk(UNIT).unwrap();
            rig.driver.map(part(index), chunk).unwrap();
            chunk
        });
        let stream = rig.stream();
        refused(rig.fill(range.start, 3 * UNIT, 3, stream), ErrorKind::Invalid);
        rig.driver.set_access(range).unwrap();
        rig.fill(range.start.offset(1), 3 * UNIT - 1, 3, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        rig.unmap(part(1)).unwrap();
        refused(rig.fill(range.start, 3 * UNIT, 4, stream), ErrorKind::Invalid);
        refused(rig.fill(range.start, UNIT + 1, 4, stream), ErrorKind::Invalid);
        assert_eq!(rig.device_bytes(part(2).start, 4), [3; 4]);
        for (index, chunk) in [0, 1, 2].into_iter().zip(chunks) {
            if index != 1 {
                rig.unmap(part(index)).unwrap();
            }
            rig.driver.release_chunk(chunk).unwrap();
        }
        rig.driver.free_range(range).unwrap();
        rig.destroy([stream], []);
    });
}

#[test]
fn the_capacity_is_a_wall_and_comes_back() {
    in_all_modes(|rig| {
        let info = rig.driver.memory_info().unwrap();
        assert_eq!((info.free_bytes, info.total_bytes), (CAPACITY, CAPACITY));
        assert_eq!(rig.driver.properties().total_bytes, CAPACITY);
        let large = rig.driver.create_chunk(CAPACITY - UNIT).unwrap();
        refused(rig.driver.create_chunk(2 * UNIT), ErrorKind::OutOfMemory);
        let small = rig.driver.create_chunk(UNIT).unwrap();
        refused(rig.driver.create_chunk(UNIT), ErrorKind::OutOfMemory);
        assert_eq!(rig.driver.memory_info().unwrap().free_bytes, 0);
        rig.driver.release_chunk(large).unwrap();
        let again = rig.driver.create_chunk(2 * UNIT).unwrap();
        assert_eq!(rig.host.ledger().chunk_bytes, 3 * UNIT);
        assert_eq!(rig.host.ledger().chunk_bytes_peak, CAPACITY);
        rig.host.reset_peaks();
        assert_eq!(rig.host.ledger().chunk_bytes_peak, 3 * UNIT);
        rig.driver.release_chunk(small).unwrap();
        rig.driver.release_chunk(again).unwrap();
        refused(rig.driver.create_chunk(u64::MAX - UNIT + 1), ErrorKind::OutOfMemory);
    });
}

#[test]
fn pinned_memory_has_a_limit_and_kernels_reach_it() {
    let limit = 4 * UNIT;
    for config in configs() {
        in_mode(HostConfig { host_limit_bytes: Some(limit), ..config }, |rig| {
            let first = rig.pinned(&vec![5; 3 * UNIT as usize]);
            refused(rig.driver.allocate_pinned(2 * UNIT), ErrorKind::OutOfMemory);
            let page = rig.driver.allocate_pinned(1).unwrap();
            assert_eq!(rig.host.ledger().pinned_bytes, 3 * UNIT + 4096);
            rig.free_pinned(page).unwrap();
            assert_eq!(rig.host.ledger().pinned_bytes_peak, 3 * UNIT + 4096);

            let address = rig.driver.device_pointer(first.offset(8)).unwrap();
            let stream = rig.stream();
            let access =
                npu_sys::Access { start: address, size_bytes: 4, mode: AccessMode::ReadWrite };
            rig.run(stream, vec![access], 0.0, |operands| operands.write::<u8>(0)[1] = 6);
            rig.driver.synchronize_stream(stream).unwrap();
            assert_eq!(rig.host_bytes(first.offset(8), 4), [5, 6, 5, 5]);
            rig.free_pinned(first).unwrap();
            refused(rig.driver.device_pointer(first), ErrorKind::Invalid);
            rig.destroy([stream], []);
        });
    }
}

#[test]
fn registered_memory_takes_part_in_copies() {
    in_all_modes(|rig| {
        // Whole pages somewhere inside an ordinary vector.
        let mut owned = vec![3_u8; 3 * UNIT as usize];
        let first = owned.as_mut_ptr().expose_provenance() as u64;
        let start = HostPtr(first.next_multiple_of(UNIT));
        let buffer = rig.buffer(UNIT);
        let stream = rig.stream();
        let inward = Copy::HostToDevice { source: start, target: buffer.start(), size_bytes: UNIT };
        refused(rig.copy(inward, stream), ErrorKind::Invalid);
        rig.register(start, UNIT).unwrap();
        refused(rig.register(start, UNIT), ErrorKind::Invalid);
        refused(rig.free_pinned(start), ErrorKind::Invalid);
        rig.copy(inward, stream).unwrap();
        rig.fill(buffer.start(), 1, 4, stream).unwrap();
        rig.copy_out(buffer.start(), start.offset(1), 2, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        assert_eq!(rig.host_bytes(start, 4), [3, 4, 3, 3]);
        assert_eq!(rig.host.ledger().registered_bytes, UNIT);
        rig.unregister(start).unwrap();
        refused(rig.unregister(start), ErrorKind::Invalid);
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

#[test]
fn fresh_chunks_show_the_poison() {
    let poison = 0x7ff8_dead_beef_0001_u64;
    for config in configs() {
        in_mode(HostConfig { poison: Some(poison), ..config }, |rig| {
            // The second round gets the place of the first, which was written to.
            for _ in 0..2 {
                let buffer = rig.buffer(3 * UNIT);
                let bytes = rig.device_bytes(buffer.start(), 3 * UNIT);
                let words = bytes.chunks_exact(8).map(|word| word.try_into().unwrap());
                assert!(words.map(u64::from_le_bytes).all(|word| word == poison));
                let stream = rig.stream();
                rig.fill(buffer.start(), 3 * UNIT, 1, stream).unwrap();
                rig.driver.synchronize_stream(stream).unwrap();
                rig.destroy([stream], []);
                rig.drop_buffer(buffer);
            }
        });
    }
}

#[test]
fn misuse_of_memory_is_refused_and_changes_nothing() {
    in_all_modes(|rig| {
        let buffer = rig.buffer(2 * UNIT);
        let (range, chunk) = (buffer.range, buffer.chunk());
        let empty = rig.driver.reserve(4 * UNIT).unwrap();
        let free = rig.driver.create_chunk(2 * UNIT).unwrap();
        let pinned = rig.pinned(&[0; 4096]);
        let before = rig.host.ledger();
        let at = |offset: u64, size_bytes: u64| VaRange {
            start: empty.start.offset(offset),
            size_bytes,
        };
        let nowhere = VaRange { start: DevicePtr(UNIT), size_bytes: 2 * UNIT };
        let endless = VaRange { start: DevicePtr(u64::MAX - UNIT + 1), size_bytes: UNIT };
        let gone = ChunkHandle(999);
        let driver = rig.driver;

        refused(driver.reserve(0), ErrorKind::Invalid);
        refused(driver.reserve(UNIT + 1), ErrorKind::Invalid);
        refused(driver.create_chunk(0), ErrorKind::Invalid);
        refused(driver.create_chunk(UNIT - 1), ErrorKind::Invalid);
        refused(driver.release_chunk(chunk), ErrorKind::Invalid);
        refused(driver.release_chunk(gone), ErrorKind::Invalid);
        refused(driver.free_range(range), ErrorKind::Invalid);
        refused(driver.free_range(at(0, UNIT)), ErrorKind::Invalid);
        refused(driver.free_range(at(UNIT, UNIT)), ErrorKind::Invalid);
        refused(driver.free_range(nowhere), ErrorKind::Invalid);
        refused(driver.map(range, free), ErrorKind::Invalid);
        refused(driver.map(at(0, UNIT), free), ErrorKind::Invalid);
        refused(driver.map(at(0, 4 * UNIT), free), ErrorKind::Invalid);
        refused(driver.map(at(1, 2 * UNIT), free), ErrorKind::Invalid);
        refused(driver.map(at(3 * UNIT, 2 * UNIT), free), ErrorKind::Invalid);
        refused(driver.map(at(0, 2 * UNIT), gone), ErrorKind::Invalid);
        refused(driver.map(at(0, 0), free), ErrorKind::Invalid);
        refused(driver.map(nowhere, free), ErrorKind::Invalid);
        refused(driver.map(endless, free), ErrorKind::Invalid);
        refused(driver.set_access(at(0, UNIT)), ErrorKind::Invalid);
        refused(driver.set_access(nowhere), ErrorKind::Invalid);
        refused(driver.set_access(endless), ErrorKind::Invalid);
        refused(driver.set_access(VaRange { size_bytes: 0, ..range }), ErrorKind::Invalid);
        refused(driver.set_access(VaRange { size_bytes: UNIT, ..range }), ErrorKind::Invalid);
        refused(rig.unmap(at(0, 2 * UNIT)), ErrorKind::Invalid);
        refused(rig.unmap(VaRange { size_bytes: UNIT, ..range }), ErrorKind::Invalid);
        refused(rig.unmap(endless), ErrorKind::Invalid);
        refused(driver.allocate_pinned(0), ErrorKind::Invalid);
        refused(driver.allocate_pinned(u64::MAX), ErrorKind::Invalid);
        refused(rig.free_pinned(pinned.offset(8)), ErrorKind::Invalid);
        refused(rig.register(pinned, 4096), ErrorKind::Invalid);
        refused(rig.register(pinned.offset(1), 4096), ErrorKind::Invalid);
        refused(rig.register(HostPtr(empty.start.0), 4096), ErrorKind::Invalid);
        refused(rig.register(HostPtr(4096), 0), ErrorKind::Invalid);
        refused(rig.register(HostPtr(u64::MAX - 4095), 8192), ErrorKind::Invalid);
        refused(rig.unregister(pinned), ErrorKind::Invalid);
        refused(driver.device_pointer(HostPtr(8)), ErrorKind::Invalid);
        refused(driver.device_pointer(pinned.offset(4096)), ErrorKind::Invalid);
        assert_eq!(rig.host.ledger(), before);

        // Mapped once more over the half of an existing mapping.
        rig.map(at(UNIT, 2 * UNIT), free);
        refused(driver.map(at(2 * UNIT, 2 * UNIT), free), ErrorKind::Invalid);
        refused(driver.map(at(0, 2 * UNIT), free), ErrorKind::Invalid);
        rig.unmap(at(UNIT, 2 * UNIT)).unwrap();
        refused(rig.unmap(at(UNIT, 2 * UNIT)), ErrorKind::Invalid);
        assert_eq!(rig.host.ledger(), before);

        driver.release_chunk(free).unwrap();
        refused(driver.release_chunk(free), ErrorKind::Invalid);
        driver.free_range(empty).unwrap();
        refused(driver.free_range(empty), ErrorKind::Invalid);
        rig.free_pinned(pinned).unwrap();
        refused(rig.free_pinned(pinned), ErrorKind::Invalid);
        rig.drop_buffer(buffer);
    });
}

#[test]
fn misuse_of_streams_is_refused_and_changes_nothing() {
    in_all_modes(|rig| {
        let buffer = rig.buffer(UNIT);
        let start = buffer.start();
        let pinned = rig.pinned(&[0; 4096]);
        let stream = rig.stream();
        let event = rig.driver.create_event(EventKind::Timing).unwrap();
        let (no_stream, no_event) = (StreamHandle(999), EventHandle(999));
        let driver = rig.driver;
        let before = rig.host.ledger();
        let out = |source, target, size_bytes| Copy::DeviceToHost { source, target, size_bytes };
        let within =
            |source, target, size_bytes| Copy::DeviceToDevice { source, target, size_bytes };
        for copy in [
            out(start, pinned, 0),
            out(start, pinned, 4097),
            out(start.offset(UNIT - 1), pinned, 2),
            out(DevicePtr(8), pinned, 8),
            out(DevicePtr(u64::MAX), pinned, 8),
            out(start, HostPtr(8), 8),
            out(start, HostPtr(u64::MAX - 1), 8),
            Copy::HostToDevice { source: HostPtr(8), target: start, size_bytes: 8 },
            Copy::HostToDevice { source: pinned, target: DevicePtr(8), size_bytes: 8 },
            within(start, start.offset(7), 8),
            within(start.offset(7), start, 8),
            within(start, DevicePtr(8), 8),
        ] {
            refused(rig.copy(copy, stream), ErrorKind::Invalid);
        }
        refused(rig.copy(out(start, pinned, 8), no_stream), ErrorKind::Invalid);
        refused(rig.fill(start, 0, 1, stream), ErrorKind::Invalid);
        refused(rig.fill(start, UNIT + 1, 1, stream), ErrorKind::Invalid);
        refused(rig.fill(start, 1, 1, no_stream), ErrorKind::Invalid);

        let launch = |accesses: &[(u64, u64, AccessMode)], cost_us, stream| {
            let accesses = accesses.iter().map(|&(offset, size_bytes, mode)| npu_sys::Access {
                start: start.offset(offset),
                size_bytes,
                mode,
            });
            let body = Box::new(|_: &npu_sys::Operands<'_>| panic!("it must not run"));
            let accesses = accesses.collect();
            rig.launch(HostFunction { name: "bad", accesses, cost_us, body }, stream)
        };
        let (read, write) = (AccessMode::Read, AccessMode::Write);
        refused(launch(&[(0, 0, read)], 0.0, stream), ErrorKind::Invalid);
        refused(launch(&[(UNIT, 4, read)], 0.0, stream), ErrorKind::Invalid);
        refused(launch(&[(0, 8, read), (7, 8, write)], 0.0, stream), ErrorKind::Invalid);
        refused(launch(&[(0, 8, write), (0, 8, write)], 0.0, stream), ErrorKind::Invalid);
        refused(launch(&[], f64::NAN, stream), ErrorKind::Invalid);
        refused(launch(&[], -1.0, stream), ErrorKind::Invalid);
        refused(launch(&[], 0.0, no_stream), ErrorKind::Invalid);

        refused(driver.record_event(event, no_stream), ErrorKind::Invalid);
        refused(driver.record_event(no_event, stream), ErrorKind::Invalid);
        refused(driver.wait_event(no_stream, event), ErrorKind::Invalid);
        refused(driver.wait_event(stream, no_event), ErrorKind::Invalid);
        refused(driver.query_event(no_event), ErrorKind::Invalid);
        refused(driver.synchronize_event(no_event), ErrorKind::Invalid);
        refused(driver.elapsed_us(event, event), ErrorKind::Invalid);
        refused(driver.synchronize_stream(no_stream), ErrorKind::Invalid);
        refused(driver.destroy_stream(no_stream), ErrorKind::Invalid);
        refused(driver.destroy_event(no_event), ErrorKind::Invalid);
        assert!(driver.query_event(event).unwrap(), "an event that was never recorded is complete");
        assert_eq!(rig.host.ledger(), before);

        rig.destroy([stream], [event]);
        refused(driver.destroy_stream(stream), ErrorKind::Invalid);
        refused(driver.destroy_event(event), ErrorKind::Invalid);
        rig.free_pinned(pinned).unwrap();
        rig.drop_buffer(buffer);
    });
}

#[test]
fn impossible_settings_are_refused() {
    let good = HostConfig::threads(CAPACITY);
    let link =
        npu_sys::devices::HostLink { in_bytes_per_s: 0, ..npu_sys::devices::HostLink::duplex(1) };
    for bad in [
        HostConfig { granularity_bytes: 0, ..good.clone() },
        HostConfig { granularity_bytes: 2048, ..good.clone() },
        HostConfig { granularity_bytes: 3 * 4096, ..good.clone() },
        HostConfig { queue_depth: 0, ..good.clone() },
        HostConfig { link: Some(link), ..good.clone() },
    ] {
        refused(HostDriver::new(bad), ErrorKind::Invalid);
    }
    let small = HostDriver::new(HostConfig { granularity_bytes: 4096, ..good }).unwrap();
    let rig = HostRig::new(&small);
    let buffer = rig.buffer(4096);
    assert!(buffer.start().0.is_multiple_of(4096));
    rig.drop_buffer(buffer);
}
