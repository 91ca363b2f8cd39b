//! The fault driver: every call can fail, once and for good, and none that fails gets through.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use npu_sys::devices::{FALLIBLE_CALLS, FaultDriver, FaultPlan, Lasting};
use npu_sys::{
    Access, AccessMode, ChunkHandle, Copy, DevicePtr, Driver, DriverError, ErrorKind, EventHandle,
    EventKind, HostFunction, HostPtr, StreamHandle, VaRange,
};

use super::fake::FakeDriver;

fn faulty() -> (Arc<FakeDriver>, FaultDriver) {
    let fake = Arc::new(FakeDriver::default());
    (Arc::clone(&fake), FaultDriver::new(fake))
}

/// Makes one call by its name, with arguments that do not matter.
pub(crate) fn call(driver: &dyn Driver, name: &str) -> Result<(), DriverError> {
    let range = VaRange { start: DevicePtr(64), size_bytes: 64 };
    let (chunk, host) = (ChunkHandle(1), HostPtr(64));
    let (stream, event) = (StreamHandle(1), EventHandle(1));
    let copy = Copy::DeviceToHost { source: range.start, target: host, size_bytes: 64 };
    let accesses = vec![Access { start: range.start, size_bytes: 64, mode: AccessMode::Read }];
    match name {
        "memory_info" => driver.memory_info().map(drop),
        "reserve" => driver.reserve(64).map(drop),
        "free_range" => driver.free_range(range),
        "create_chunk" => driver.create_chunk(64).map(drop),
        "release_chunk" => driver.release_chunk(chunk),
        "map" => driver.map(range, chunk),
        "set_access" => driver.set_access(range),
        // SAFETY: the driver behind maps nothing.
        "unmap" => unsafe { driver.unmap(range) },
        "allocate_device" => driver.allocate_device(64).map(drop),
        // SAFETY: the driver behind allocates nothing.
        "free_device" => unsafe { driver.free_device(range.start) },
        "allocate_pinned" => driver.allocate_pinned(64).map(drop),
        // SAFETY: the driver behind allocates nothing.
        "free_pinned" => unsafe { driver.free_pinned(host) },
        // SAFETY: the driver behind pins nothing.
        "register_host" => unsafe { driver.register_host(host, 64) },
        // SAFETY: the driver behind pins nothing.
        "unregister_host" => unsafe { driver.unregister_host(host) },
        "device_pointer" => driver.device_pointer(host).map(drop),
        "create_stream" => driver.create_stream().map(drop),
        "destroy_stream" => driver.destroy_stream(stream),
        "synchronize_stream" => driver.synchronize_stream(stream),
        "is_captured" => driver.is_captured(stream).map(drop),
        "create_event" => driver.create_event(EventKind::Timing).map(drop),
        "destroy_event" => driver.destroy_event(event),
        "record_event" => driver.record_event(event, stream),
        "wait_event" => driver.wait_event(stream, event),
        "query_event" => driver.query_event(event).map(drop),
        "synchronize_event" => driver.synchronize_event(event),
        "elapsed_us" => driver.elapsed_us(event, event).map(drop),
        // SAFETY: the driver behind touches no memory.
        "copy" => unsafe { driver.copy(copy, stream) },
        // SAFETY: the driver behind touches no memory.
        "fill" => unsafe { driver.fill(range.start, 64, 7, stream) },
        "launch_host" => {
            let body = Box::new(|_: &npu_sys::Operands<'_>| ());
            let function = HostFunction { name: "add", accesses, cost_us: 1.0, body };
            // SAFETY: the driver behind runs nothing.
            unsafe { driver.launch_host(function, stream) }
        }
        "note_access" => driver.note_access(stream, &accesses),
        other => panic!("no such call: {other}"),
    }
}

#[test]
fn the_list_of_calls_has_each_once() {
    let names: BTreeSet<&str> = FALLIBLE_CALLS.into_iter().collect();
    assert_eq!(names.len(), FALLIBLE_CALLS.len());
}

#[test]
fn unarmed_every_call_goes_through_and_is_counted() {
    let (fake, fault) = faulty();
    for name in FALLIBLE_CALLS {
        call(&fault, name).unwrap();
        assert_eq!(fake.count(name), 1, "{name}");
    }
    assert_eq!(fault.calls(), FALLIBLE_CALLS.len() as u64);
    assert_eq!(fault.calls_by_name(), FALLIBLE_CALLS.map(|name| (name, 1)).into());
    assert_eq!((fault.injected(), fault.hits()), (0, BTreeMap::new()));
}

#[test]
fn every_call_can_fail_once() {
    for (index, name) in FALLIBLE_CALLS.into_iter().enumerate() {
        let (fake, fault) = faulty();
        fault.arm(FaultPlan::once(index as u64 + 1, ErrorKind::Failed));
        for other in FALLIBLE_CALLS {
            let result = call(&fault, other);
            assert_eq!(result.is_err(), other == name, "{other}");
            assert_eq!(fake.count(other), u64::from(other != name), "{other}");
            if let Err(error) = result {
                assert_eq!((error.call, error.kind), (name, ErrorKind::Failed));
            }
        }
        call(&fault, name).unwrap();
        assert_eq!((fault.injected(), fault.hits()), (1, [(name, 1)].into()));
    }
}

#[test]
fn every_call_can_fail_for_good() {
    for (index, name) in FALLIBLE_CALLS.into_iter().enumerate() {
        let (fake, fault) = faulty();
        fault.arm(FaultPlan::for_good(index as u64 + 1, ErrorKind::DeviceLost));
        let failed: Vec<&str> =
            FALLIBLE_CALLS.into_iter().filter(|name| call(&fault, name).is_err()).collect();
        assert_eq!(failed, FALLIBLE_CALLS[index..], "{name}");
        assert_eq!(fake.total(), index as u64);
        assert_eq!(fault.injected(), failed.len() as u64);
        assert_eq!(fault.calls(), FALLIBLE_CALLS.len() as u64);
    }
}

#[test]
fn a_plan_for_one_name_counts_and_fails_only_that() {
    for name in FALLIBLE_CALLS {
        for lasting in [Lasting::Once, Lasting::ForGood] {
            let (fake, fault) = faulty();
            let kind = ErrorKind::OutOfMemory;
            fault.arm(FaultPlan { call: 2, lasting, kind, only: Some(name) });
            for round in 1..=4 {
                for other in FALLIBLE_CALLS {
                    let fails = match lasting {
                        Lasting::Once => round == 2,
                        Lasting::ForGood => round >= 2,
                    };
                    let result = call(&fault, other);
                    assert_eq!(result.is_err(), fails && other == name, "{other} in {round}");
                }
            }
            let failed = if lasting == Lasting::Once { 1 } else { 3 };
            assert_eq!(fake.count(name), 4 - failed);
            assert_eq!((fault.injected(), fault.hits()), (failed, [(name, failed)].into()));
            assert_eq!(fault.calls_by_name()[name], 4);
        }
    }
}

#[test]
fn arming_counts_anew_and_disarming_lets_all_through() {
    let (_, fault) = faulty();
    call(&fault, "map").unwrap();
    fault.arm(FaultPlan::for_good(2, ErrorKind::Failed));
    assert_eq!(fault.calls(), 0);
    call(&fault, "map").unwrap();
    call(&fault, "unmap").unwrap_err();
    call(&fault, "map").unwrap_err();
    fault.disarm();
    call(&fault, "unmap").unwrap();
    assert_eq!((fault.calls(), fault.injected()), (4, 2));
    assert_eq!(fault.hits(), [("map", 1), ("unmap", 1)].into());
    fault.arm(FaultPlan::once(1, ErrorKind::Failed));
    assert_eq!((fault.calls(), fault.injected()), (0, 0));
    call(&fault, "unmap").unwrap_err();
    call(&fault, "unmap").unwrap();
}

#[test]
fn the_error_is_of_the_asked_kind_and_says_that_it_was_injected() {
    let mut codes = BTreeSet::new();
    let kinds = [
        ErrorKind::OutOfMemory,
        ErrorKind::Unsupported,
        ErrorKind::Invalid,
        ErrorKind::DeviceLost,
        ErrorKind::Race,
        ErrorKind::Failed,
    ];
    for kind in kinds {
        let (_, fault) = faulty();
        fault.arm(FaultPlan::once(1, kind));
        let error = call(&fault, "create_chunk").unwrap_err();
        assert_eq!((error.kind, error.call), (kind, "create_chunk"));
        assert!(error.text.contains("injected"), "{error}");
        codes.insert(error.code);
    }
    assert_eq!(codes.len(), kinds.len(), "each kind has a code of its own");
}

#[test]
fn a_plan_that_could_never_hit_is_a_mistake() {
    let (_, fault) = faulty();
    let panics =
        |act: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).is_err();
    let plan = FaultPlan::once(1, ErrorKind::Failed);
    assert!(panics(&|| fault.arm(FaultPlan { call: 0, ..plan })));
    assert!(panics(&|| fault.arm(FaultPlan { only: Some("mapp"), ..plan })));
    assert!(panics(&|| assert_eq!(plan.only("mapp"), plan)));
    assert!(!panics(&|| fault.arm(plan.only("map"))));
}
