//! Peculiarities of the vendor's library that no caller is to notice.

use std::sync::mpsc::channel;
use std::thread;

use super::rig::{Rig, pattern, read, refused, write};
use super::standin::{Copied, with_settings};
use crate::acl::sys::ACL_SUCCESS;
use crate::acl::{open, pointer};
use crate::driver::Driver;
use crate::drop_failures::drop_failures;
use crate::error::{DriverError, ErrorKind};
use crate::types::{Access, AccessMode, Copy, DevicePtr, EventKind, HostPtr};

/// Copies and fills in all pairings of device memory and host memory that the device sees.
fn mapped_memory_is_memory_like_any_other() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    let size = 3 * 4096_u64;
    let (first, second) = (rig.pinned(&pattern(size, 1)), rig.pinned(&vec![0; size as usize]));
    let owned = rustix_pages(size);
    // SAFETY: the memory stays until it is unregistered below.
    unsafe { rig.driver.register_host(owned, size) }.unwrap();
    let seen = |host| rig.driver.device_pointer(host).unwrap();
    let places = [seen(first), seen(second), seen(owned)];
    let device = rig.buffer(rig.unit);
    let (part, shift) = (size - 100, 37);

    // Round through all of them, at odd addresses, by copies that name the device's addresses.
    rig.copy_within(places[0].offset(shift), device.start.offset(1), part);
    rig.copy_within(device.start.offset(1), places[1].offset(5), part);
    rig.copy_within(places[1].offset(5), places[2].offset(9), part);
    rig.synchronize();
    let expect = &pattern(size, 1)[shift as usize..][..part as usize];
    assert_eq!(read(owned.offset(9), part), expect);
    assert_eq!(read(owned, 9), [0; 9]);

    // The same host memory by its other address.
    rig.fill(places[2], size, 4);
    rig.copy_out(places[0], owned.offset(100), 50);
    rig.copy_in(first.offset(50), places[2].offset(150), 50);
    rig.synchronize();
    let mut expect = vec![4; size as usize];
    expect[100..200].copy_from_slice(&pattern(size, 1)[..100]);
    assert_eq!(read(owned, size), expect);

    // Functions of the host reach it as well.
    let access = Access { start: places[2].offset(8), size_bytes: 8, mode: AccessMode::Write };
    rig.run(rig.stream, vec![access], |operands| operands.write::<u8>(0).fill(8)).unwrap();
    rig.synchronize();
    assert_eq!(read(owned, 24), [[4; 8], [8; 8], [4; 8]].concat());

    // What leaves a piece of it is refused.
    let over = Copy::DeviceToDevice {
        source: places[2].offset(size - 8),
        target: device.start,
        size_bytes: 9,
    };
    refused(rig.try_copy(over), ErrorKind::Invalid);
    // SAFETY: the stream is synchronized.
    unsafe { rig.driver.unregister_host(owned) }.unwrap();
    drop(rig);
    copied.ledger().assert_empty();
}

/// Fresh pages of memory that several addresses can show.
fn rustix_pages(size_bytes: u64) -> HostPtr {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: fresh addresses, chosen by the system; they stay until the process ends.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), size_bytes as usize, protection, flags) };
    HostPtr(start.unwrap().expose_provenance() as u64)
}

#[test]
fn mapped_memory_with_one_address() {
    mapped_memory_is_memory_like_any_other();
}

#[test]
fn mapped_memory_with_an_address_of_its_own() {
    let test = "acl::tests::peculiar::mapped_memory_with_an_address_of_its_own";
    with_settings(test, &[("ACL_STANDIN_VA_FLAG", "off")], mapped_memory_is_memory_like_any_other);
}

#[test]
fn copies_inside_the_device_take_any_address() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    // Longer than the buffer of the detour.
    let size = 5 << 20;
    let whole = rig.unit * 3;
    let (source, target) = (rig.buffer(whole), rig.buffer(whole));
    let bytes = pattern(whole, 3);
    let pinned = rig.pinned(&bytes);
    rig.copy_in(pinned, source.start, whole);
    for (from, to, size) in
        [(0, 0, size), (3, 3, size), (3, 3, 20), (0, 1, size), (63, 64, 1), (64, 128, 65)]
    {
        rig.fill(target.start, whole, 255);
        rig.copy_within(source.start.offset(from), target.start.offset(to), size);
        let mut expect = vec![255; whole as usize];
        let part = &bytes[from as usize..(from + size) as usize];
        expect[to as usize..(to + size) as usize].copy_from_slice(part);
        assert!(rig.bytes(target.start, whole) == expect, "{from} to {to}, {size} bytes");
    }
    drop(rig);
    copied.ledger().assert_empty();
}

#[test]
fn each_thread_may_call_and_keeps_its_own_device() {
    let test = "acl::tests::peculiar::each_thread_may_call_and_keeps_its_own_device";
    with_settings(test, &[("ACL_STANDIN_DEVICES", "2")], || {
        let copied = Copied::without(&[]);
        let path = copied.path.as_path();
        let drivers = [0, 1].map(|index| Rig::device(path, index));
        assert_eq!(open::device_count(&drivers[0].state.device.api), Ok(2));
        let api = &drivers[0].state.device.api;
        thread::scope(|scope| {
            scope.spawn(|| {
                // Somebody else's choice, which calls to both drivers leave alone.
                // SAFETY: it takes a plain number.
                assert_eq!(unsafe { (api.aclrtSetDevice)(1) }, 0);
                for _ in 0..3 {
                    for driver in &drivers {
                        let stream = driver.create_stream().unwrap();
                        driver.synchronize_stream(stream).unwrap();
                        driver.destroy_stream(stream).unwrap();
                        let mut current = -1;
                        // SAFETY: the library writes one number.
                        assert_eq!(unsafe { (api.aclrtGetDevice)(&mut current) }, 0);
                        assert_eq!(current, 1);
                    }
                }
            });
            // A thread that never chose one.
            scope.spawn(|| assert!(drivers[1].memory_info().unwrap().free_bytes > 0));
        });
        // The memory is each device's own.
        let chunk = drivers[1].create_chunk(4 << 20).unwrap();
        let free = [0, 1].map(|index| drivers[index].memory_info().unwrap().free_bytes);
        assert_eq!(free[0] - free[1], 4 << 20);
        drivers[1].release_chunk(chunk).unwrap();
    });
}

#[test]
fn a_stream_may_be_destroyed_while_it_works_and_goes_later() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    let stream = rig.driver.create_stream().unwrap();
    let (go, going) = channel::<()>();
    let (tell, told) = channel();
    rig.run(stream, vec![], move |_| going.recv().unwrap()).unwrap();
    rig.run(stream, vec![], move |_| tell.send(()).unwrap()).unwrap();
    // Does not wait: the function above still does.
    rig.driver.destroy_stream(stream).unwrap();
    refused(rig.driver.synchronize_stream(stream), ErrorKind::Invalid);
    assert_eq!(copied.ledger().stream_count, 2);
    go.send(()).unwrap();
    told.recv().unwrap();
    // Gone with one of the next calls, as soon as the library counts its work as complete.
    while copied.ledger().stream_count > 1 {
        let next = rig.driver.create_stream().unwrap();
        rig.driver.synchronize_stream(next).unwrap();
        rig.driver.destroy_stream(next).unwrap();
        thread::yield_now();
    }
}

#[test]
fn what_a_dropped_driver_cannot_give_back_is_counted() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    let pinned = rig.pinned(&[7; 4096]);
    let api = &rig.driver.state.device.api;
    // SAFETY: nothing uses the memory. That the driver does not know of it is the point.
    let code = unsafe { (api.aclrtFreeHost)(pointer(pinned.0)) };
    assert_eq!(code, ACL_SUCCESS, "the page is the library's whole allocation");
    drop(rig);
    let failures = drop_failures();
    let is_ours =
        |error: &DriverError| error.call == "drop" && error.text.contains("aclrtFreeHost");
    assert_eq!(failures.first.iter().filter(|error| is_ours(error)).count(), 1, "{failures:?}");
    assert!(failures.count >= failures.first.len() as u64);
}

#[test]
fn dropping_the_driver_gives_everything_back() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    let device = rig.driver.allocate_device(rig.unit).unwrap();
    let buffer = rig.buffer(2 * rig.unit);
    let pinned = rig.pinned(&[7; 10_000]);
    rig.driver.device_pointer(pinned).unwrap();
    let event = rig.driver.create_event(EventKind::Order).unwrap();
    rig.copy_in(pinned, device, 10_000);
    rig.copy_in(pinned, buffer.start, 10_000);
    rig.driver.record_event(event, rig.stream).unwrap();
    let held = copied.ledger();
    assert_eq!((held.chunk_bytes, held.stream_count, held.event_count), (3 * rig.unit, 1, 1));
    drop(rig);
    copied.ledger().assert_empty();

    // Even by a function of its own, after which the library's thread goes on.
    let rig = Rig::open(&copied.path);
    let own = rig.driver.clone();
    let (go, going) = channel::<()>();
    let (tell, told) = channel();
    let stream = rig.stream;
    rig.run(stream, vec![], move |_| {
        going.recv().unwrap();
        drop(own);
        tell.send(()).unwrap();
    })
    .unwrap();
    drop(rig);
    go.send(()).unwrap();
    told.recv().unwrap();
    while copied.ledger().stream_count > 0 {
        thread::yield_now();
    }
}

#[test]
fn wrong_use_of_own_memory_never_reaches_the_device() {
    let copied = Copied::without(&[]);
    let rig = Rig::open(&copied.path);
    let buffer = rig.buffer(rig.unit);
    let pinned = rig.pinned(&[0; 4096]);
    let over = Copy::DeviceToHost {
        source: buffer.start.offset(rig.unit - 8),
        target: pinned,
        size_bytes: 9,
    };
    let text = refused(rig.try_copy(over), ErrorKind::Invalid);
    assert!(text.contains("is not mapped"), "{text}");
    let foreign = Copy::HostToDevice {
        source: HostPtr(pinned.0 + 4096),
        target: buffer.start,
        size_bytes: 8,
    };
    let text = refused(rig.try_copy(foreign), ErrorKind::Invalid);
    assert!(text.contains("is not pinned"), "{text}");
    // Of what is behind other addresses only the library knows.
    let elsewhere = Copy::DeviceToHost { source: DevicePtr(64), target: pinned, size_bytes: 8 };
    let text = refused(rig.try_copy(elsewhere), ErrorKind::Invalid);
    assert!(text.contains("aclrtMemcpyAsync"), "{text}");
    write(pinned, &[1]);
    assert_eq!(read(pinned, 2), [1, 0]);
}
