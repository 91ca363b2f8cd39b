//! Mistakes that every driver sees, for they are in the call alone or in what it gave out.

use npu_sys::{
    ChunkHandle, DevicePtr, Driver, ErrorKind, EventHandle, EventKind, StreamHandle, VaRange,
};

use crate::drivers::{on_all_drivers, with_virtual_memory};
use crate::rig::refused;

#[test]
fn misuse_of_memory_is_refused_and_changes_nothing() {
    with_virtual_memory(|rig| {
        let unit = rig.unit;
        let buffer = rig.buffer(2 * unit);
        let (range, chunk) = (buffer.range, buffer.chunk());
        let empty = rig.driver.reserve(4 * unit).unwrap();
        let free = rig.driver.create_chunk(2 * unit).unwrap();
        let at = |offset: u64, size_bytes: u64| VaRange {
            start: empty.start.offset(offset),
            size_bytes,
        };
        let nowhere = VaRange { start: DevicePtr(unit), size_bytes: 2 * unit };
        let gone = ChunkHandle(999);
        let stream = rig.stream();
        rig.fill(range.start, 2 * unit, 6, stream).unwrap();
        rig.driver.synchronize_stream(stream).unwrap();
        let driver = rig.driver;

        refused(driver.reserve(0), ErrorKind::Invalid);
        refused(driver.reserve(unit + 1), ErrorKind::Invalid);
        refused(driver.create_chunk(0), ErrorKind::Invalid);
        refused(driver.create_chunk(unit - 1), ErrorKind::Invalid);
        refused(driver.release_chunk(chunk), ErrorKind::Invalid);
        refused(driver.release_chunk(gone), ErrorKind::Invalid);
        refused(driver.free_range(range), ErrorKind::Invalid);
        refused(driver.free_range(at(0, unit)), ErrorKind::Invalid);
        refused(driver.free_range(nowhere), ErrorKind::Invalid);
        refused(driver.map(range, free), ErrorKind::Invalid);
        refused(driver.map(at(0, unit), free), ErrorKind::Invalid);
        refused(driver.map(at(0, 2 * unit), gone), ErrorKind::Invalid);
        refused(driver.map(nowhere, free), ErrorKind::Invalid);
        refused(driver.set_access(at(0, unit)), ErrorKind::Invalid);
        refused(driver.set_access(nowhere), ErrorKind::Invalid);
        refused(rig.unmap(at(0, 2 * unit)), ErrorKind::Invalid);
        refused(rig.unmap(VaRange { size_bytes: unit, ..range }), ErrorKind::Invalid);

        // Nothing of that had an effect.
        assert_eq!(rig.device_bytes(range.start, 4), [6; 4]);
        rig.map(at(unit, 2 * unit), free);
        rig.unmap(at(unit, 2 * unit)).unwrap();
        driver.release_chunk(free).unwrap();
        refused(driver.release_chunk(free), ErrorKind::Invalid);
        driver.free_range(empty).unwrap();
        refused(driver.free_range(empty), ErrorKind::Invalid);
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}

#[test]
fn misuse_of_host_memory_is_refused_and_changes_nothing() {
    on_all_drivers(|rig| {
        let pinned = rig.pinned(&[9; 8192]);
        refused(rig.driver.allocate_pinned(0), ErrorKind::Invalid);
        refused(rig.free_pinned(pinned.offset(4096)), ErrorKind::Invalid);
        refused(rig.unregister(pinned), ErrorKind::Invalid);
        refused(rig.register(pinned.offset(1), 4096), ErrorKind::Invalid);
        refused(rig.register(pinned, 0), ErrorKind::Invalid);
        assert_eq!(rig.host_bytes(pinned, 8192), [9; 8192]);
        rig.free_pinned(pinned).unwrap();
        refused(rig.free_pinned(pinned), ErrorKind::Invalid);
    });
}

#[test]
fn misuse_of_streams_is_refused_and_changes_nothing() {
    on_all_drivers(|rig| {
        let driver: &dyn Driver = rig.driver;
        let buffer = rig.buffer(rig.unit);
        let stream = rig.stream();
        let event = driver.create_event(EventKind::Timing).unwrap();
        let (no_stream, no_event) = (StreamHandle(999), EventHandle(999));
        refused(rig.fill(buffer.start(), 64, 1, no_stream), ErrorKind::Invalid);
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
        assert!(driver.query_event(event).unwrap());
        driver.synchronize_stream(stream).unwrap();

        rig.destroy([stream], [event]);
        refused(driver.destroy_stream(stream), ErrorKind::Invalid);
        refused(driver.destroy_event(event), ErrorKind::Invalid);
        rig.drop_buffer(buffer);
    });
}
