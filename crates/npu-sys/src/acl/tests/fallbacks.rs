//! Libraries that lack a function: another takes its place, or the refusal names it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use super::rig::{Rig, pattern, read, refused, write};
use super::standin::{Copied, with_settings};
use crate::acl::sys::Api;
use crate::driver::Driver;
use crate::error::ErrorKind;
use crate::types::{Access, AccessMode, EventKind, HostMapping, HostPtr};

/// The functions without which a device has no virtual memory.
const VIRTUAL_MEMORY: [&str; 6] = [
    "aclrtReserveMemAddress",
    "aclrtReleaseMemAddress",
    "aclrtMallocPhysical",
    "aclrtFreePhysical",
    "aclrtMapMem",
    "aclrtUnmapMem",
];

/// Whole pages of ordinary memory.
fn pages(size_bytes: u64) -> (Vec<u8>, HostPtr) {
    let mut owned = vec![0_u8; size_bytes as usize + 4096];
    let first = owned.as_mut_ptr().expose_provenance() as u64;
    (owned, HostPtr(first.next_multiple_of(4096)))
}

/// Uses every part of a driver, as far as the functions that the library lacks allow it.
fn use_all(rig: &Rig, lacks: &[&str]) {
    let driver = &rig.driver;
    let is_without = |names: &[&str]| lacks.iter().any(|name| names.contains(name));
    assert_eq!(driver.properties().has_virtual_memory, !is_without(&VIRTUAL_MEMORY));
    if is_without(&VIRTUAL_MEMORY) {
        let text = refused(driver.reserve(rig.unit), ErrorKind::Unsupported);
        assert!(lacks.iter().any(|name| text.contains(name)), "{text}");
        assert!(text.contains("use allocate_device"), "{text}");
        refused(driver.create_chunk(rig.unit), ErrorKind::Unsupported);
    }

    // Copies and fills.
    let bytes = pattern(rig.unit, 1);
    let (one, two) = (rig.buffer(rig.unit), rig.buffer(rig.unit));
    let source = rig.pinned(&bytes);
    rig.copy_in(source, one.start, rig.unit);
    rig.copy_within(one.start, two.start, rig.unit);
    rig.fill(two.start, 5, 77);
    let mut expect = bytes;
    expect[..5].fill(77);
    assert_eq!(rig.bytes(two.start, rig.unit), expect);

    // Host memory that the device sees.
    let can_register = !is_without(&["aclrtHostRegister", "aclrtHostUnregister"]);
    let (owned, own) = pages(8192);
    // SAFETY: `owned` stays until it is unregistered below.
    let registered = unsafe { driver.register_host(own, 8192) };
    if can_register {
        registered.unwrap();
        rig.fill(driver.device_pointer(own).unwrap(), 8192, 3);
        rig.synchronize();
        assert_eq!(read(own, 8192), [3; 8192]);
        // SAFETY: the stream is synchronized.
        unsafe { driver.unregister_host(own) }.unwrap();
    } else {
        let text = refused(registered, ErrorKind::Unsupported);
        assert!(lacks.iter().any(|name| text.contains(name)), "{text}");
    }
    drop(owned);

    // Events, recorded again and again, and functions of the host between them.
    let other = driver.create_stream().unwrap();
    let counter = Arc::new(AtomicU64::new(0));
    let event = driver.create_event(EventKind::Timing).unwrap();
    for round in 0..40 {
        let stream = if round % 2 == 0 { rig.stream } else { other };
        driver.wait_event(stream, event).unwrap();
        let counter = Arc::clone(&counter);
        rig.run(stream, vec![], move |_| {
            assert_eq!(counter.fetch_add(1, Ordering::SeqCst), round, "out of order");
        })
        .unwrap();
        driver.record_event(event, stream).unwrap();
    }
    driver.synchronize_event(event).unwrap();
    assert!(driver.query_event(event).unwrap());
    assert_eq!(counter.load(Ordering::SeqCst), 40);
    assert!(driver.elapsed_us(event, event).unwrap().abs() < 1.0);
    driver.destroy_event(event).unwrap();
    driver.destroy_stream(other).unwrap();
    rig.synchronize();
    rig.free_pinned(source);
    rig.drop_buffer(one);
    rig.drop_buffer(two);
}

#[test]
fn each_optional_function_may_be_missing() {
    let optional: Vec<&str> = Api::SYMBOLS
        .iter()
        .filter(|(_, is_optional)| *is_optional)
        .map(|&(name, _)| name)
        .collect();
    assert!(optional.len() >= 14, "{optional:?}");
    for name in &optional {
        let copied = Copied::without(&[name]);
        let rig = Rig::open(&copied.path);
        use_all(&rig, &[name]);
        drop(rig);
        copied.ledger().assert_empty();
    }
    // All at once: the oldest library there is.
    let copied = Copied::without(&optional);
    let rig = Rig::open(&copied.path);
    use_all(&rig, &optional);
    assert_eq!(rig.driver.properties().driver_version, "unknown");
    assert_eq!(rig.driver.properties().host_mapping, HostMapping::Nothing);
    let pinned = rig.pinned(&[1; 4096]);
    let text = refused(rig.driver.device_pointer(pinned), ErrorKind::Unsupported);
    assert!(text.contains("aclrtHostRegister"), "{text}");
    rig.free_pinned(pinned);
    drop(rig);
    copied.ledger().assert_empty();
}

#[test]
fn without_registration_one_address_for_both_still_serves() {
    let copied = Copied::without(&["aclrtHostRegister"]);
    let rig = Rig::open(&copied.path);
    assert_eq!(rig.driver.properties().host_mapping, HostMapping::AllocatedForAll);
    let pinned = rig.pinned(&[1; 4096]);
    let address = rig.driver.device_pointer(pinned.offset(64)).unwrap();
    assert_eq!(address.0, pinned.0 + 64);
    rig.fill(address, 10, 6);
    rig.synchronize();
    assert_eq!(read(pinned, 80)[60..], [[1; 4], [6; 4], [6; 4], [6, 6, 1, 1], [1; 4]].concat());
    rig.free_pinned(pinned);
}

#[test]
fn events_of_the_older_style_are_few_and_used_again() {
    let copied = Copied::without(&["aclrtCreateEventExWithFlag"]);
    let rig = Rig::open(&copied.path);
    let driver = &rig.driver;
    let other = driver.create_stream().unwrap();
    let event = driver.create_event(EventKind::Order).unwrap();
    let mut most = 0;
    for _ in 0..100 {
        driver.record_event(event, rig.stream).unwrap();
        driver.wait_event(other, event).unwrap();
        driver.synchronize_stream(other).unwrap();
        most = most.max(copied.ledger().event_count);
    }
    assert!((1..=3).contains(&most), "{most} events for one");

    // While waits are under way each record takes one more, and earlier waits keep theirs.
    let (go, going) = channel::<()>();
    let order = Arc::new(Mutex::new(Vec::new()));
    rig.run(rig.stream, vec![], move |_| going.recv().unwrap()).unwrap();
    for number in 0..5 {
        let (first, second) = (Arc::clone(&order), Arc::clone(&order));
        rig.run(rig.stream, vec![], move |_| first.lock().unwrap().push((0, number))).unwrap();
        driver.record_event(event, rig.stream).unwrap();
        driver.wait_event(other, event).unwrap();
        rig.run(other, vec![], move |_| second.lock().unwrap().push((1, number))).unwrap();
    }
    assert!(!driver.query_event(event).unwrap());
    driver.destroy_event(event).unwrap();
    go.send(()).unwrap();
    driver.synchronize_stream(other).unwrap();
    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), 10);
    for number in 0..5 {
        let at = |stream| order.iter().position(|&entry| entry == (stream, number)).unwrap();
        assert!(at(0) < at(1), "{order:?}");
    }
    drop(rig);
    copied.ledger().assert_empty();
}

#[test]
fn callbacks_of_a_thread_do_what_host_functions_do() {
    let copied = Copied::without(&["aclrtLaunchHostFunc"]);
    let rig = Rig::open(&copied.path);
    let driver = &rig.driver;
    let buffer = rig.buffer(rig.unit);
    rig.fill(buffer.start, 16, 1);
    let access = Access { start: buffer.start, size_bytes: 16, mode: AccessMode::ReadWrite };
    rig.run(rig.stream, vec![access], |operands| operands.write::<u8>(0)[3] = 9).unwrap();
    assert_eq!(rig.bytes(buffer.start, 5), [1, 1, 1, 9, 1]);

    // Two streams on one thread: neither holds the other up for good.
    let other = driver.create_stream().unwrap();
    let (tell, told) = channel();
    rig.run(other, vec![], move |_| tell.send(42).unwrap()).unwrap();
    assert_eq!(told.recv().unwrap(), 42);
    driver.destroy_stream(other).unwrap();

    rig.run(rig.stream, vec![], |_| panic!("on purpose")).unwrap();
    let text = refused(driver.synchronize_stream(rig.stream), ErrorKind::Failed);
    assert!(text.contains("'test' panicked: on purpose"), "{text}");
    drop(rig);
    copied.ledger().assert_empty();
}

#[test]
fn a_device_without_virtual_memory_says_so() {
    let test = "acl::tests::fallbacks::a_device_without_virtual_memory_says_so";
    with_settings(test, &[("ACL_STANDIN_VMM", "off"), ("ACL_STANDIN_VA_FLAG", "off")], || {
        let copied = Copied::without(&[]);
        let rig = Rig::open(&copied.path);
        let properties = rig.driver.properties();
        assert!(!properties.has_virtual_memory);
        assert_eq!(properties.host_mapping, HostMapping::Kernels);
        let text = refused(rig.driver.reserve(rig.unit), ErrorKind::Unsupported);
        assert!(text.contains("ACL_ERROR_RT_FEATURE_NOT_SUPPORT"), "{text}");
        let buffer = rig.buffer(2 * rig.unit);
        let bytes = pattern(2 * rig.unit, 5);
        let source = rig.pinned(&bytes);
        rig.copy_in(source, buffer.start, 2 * rig.unit);
        write(source, &[0; 8]);
        assert_eq!(rig.bytes(buffer.start.offset(8), 4096), bytes[8..4104]);
        rig.free_pinned(source);
        rig.drop_buffer(buffer);
        drop(rig);
        copied.ledger().assert_empty();
    });
}
