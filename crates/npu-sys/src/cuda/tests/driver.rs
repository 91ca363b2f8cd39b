//! The driver over the stand-in library: contexts, fallbacks, errors, and giving all back.

use std::sync::Arc;
use std::thread;

use crate::cuda::CudaDriver;
use crate::cuda::pattern::PatternKernels;
use crate::cuda::sys::CUstreamCaptureMode;
use crate::cuda::tests::fake::Fake;
use crate::driver::{Driver, HostFunction};
use crate::error::{DriverError, ErrorKind};
use crate::pattern::pattern_word;
use crate::types::{
    Access, AccessMode, ChunkHandle, Copy, DevicePtr, EventHandle, EventKind, HostPtr, MemoryInfo,
    StreamHandle, VaRange,
};
use crate::{HostMapping, drop_failures};

const UNIT: u64 = 2 << 20;

pub(super) fn device() -> (Fake, Arc<CudaDriver>) {
    let fake = Fake::whole();
    let driver = fake.open(0).unwrap();
    (fake, driver)
}

pub(super) fn refused<T: std::fmt::Debug>(
    result: Result<T, DriverError>,
    kind: ErrorKind,
    expect: &str,
) -> DriverError {
    let error = result.unwrap_err();
    assert_eq!(error.kind, kind, "{error}");
    assert!(error.to_string().contains(expect), "{error} lacks '{expect}'");
    error
}

fn mapped(driver: &CudaDriver) -> (VaRange, ChunkHandle) {
    let range = driver.reserve(UNIT).unwrap();
    let chunk = driver.create_chunk(UNIT).unwrap();
    driver.map(range, chunk).unwrap();
    driver.set_access(range).unwrap();
    (range, chunk)
}

fn function(body: impl FnOnce() + Send + 'static) -> HostFunction {
    let body = Box::new(move |_: &crate::Operands<'_>| body());
    HostFunction { name: "probe", accesses: vec![], cost_us: 0.0, body }
}

// What the driver's callers promise is kept by the tests: memory is freed when no work is left,
// and misuse that is tested is refused without effect.

fn unmap(driver: &CudaDriver, range: VaRange) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.unmap(range) }
}

fn free_device(driver: &CudaDriver, start: DevicePtr) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.free_device(start) }
}

fn free_pinned(driver: &CudaDriver, start: HostPtr) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.free_pinned(start) }
}

pub(super) fn copy(
    driver: &CudaDriver,
    copy: Copy,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.copy(copy, stream) }
}

fn fill(
    driver: &CudaDriver,
    target: DevicePtr,
    value: u8,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.fill(target, UNIT, value, stream) }
}

fn launch(
    driver: &CudaDriver,
    function: HostFunction,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    // SAFETY: see above.
    unsafe { driver.launch_host(function, stream) }
}

#[test]
fn properties_are_what_the_library_says() {
    let (_fake, driver) = device();
    let properties = driver.properties();
    assert_eq!(properties.name, "Fake");
    assert_eq!(properties.total_bytes, 64 * UNIT);
    assert_eq!(properties.granularity_bytes, UNIT);
    assert_eq!(properties.host_mapping, HostMapping::AllForAll);
    assert!(properties.has_virtual_memory);
    assert!(!properties.is_host_addressable);
    assert!(properties.driver_version.starts_with("12.8"), "{}", properties.driver_version);
    assert_eq!(properties.numa_node, None);
    let info = MemoryInfo { free_bytes: 32 * UNIT, total_bytes: 64 * UNIT };
    assert_eq!(driver.memory_info(), Ok(info));
}

#[test]
fn bytes_go_round_through_all_kinds_of_memory() {
    let (_fake, driver) = device();
    let (first, second) = (mapped(&driver).0, mapped(&driver).0);
    let stream = driver.create_stream().unwrap();
    let host = driver.allocate_pinned(5000).unwrap();
    assert!(host.0.is_multiple_of(4096), "{host:?}");
    assert_eq!(driver.device_pointer(host.offset(9)), Ok(DevicePtr(host.0 + 9)));
    let address = std::ptr::with_exposed_provenance_mut::<u8>(host.0 as usize);
    let within =
        Copy::DeviceToDevice { source: first.start, target: second.start, size_bytes: 100 };
    let out =
        Copy::DeviceToHost { source: second.start, target: host.offset(4900), size_bytes: 100 };
    let inward = Copy::HostToDevice { source: host, target: first.start, size_bytes: 50 };
    // SAFETY: pinned memory of that length, which nobody else knows.
    unsafe { address.write_bytes(3, 5000) };
    fill(&driver, first.start, 7, stream).unwrap();
    copy(&driver, inward, stream).unwrap();
    copy(&driver, within, stream).unwrap();
    copy(&driver, out, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    // SAFETY: ours, and no work is left.
    let bytes = unsafe { std::slice::from_raw_parts(address, 5000) };
    assert!(bytes[..4950].iter().all(|&byte| byte == 3));
    assert!(bytes[4950..].iter().all(|&byte| byte == 7));
}

#[test]
fn wrong_numbers_are_refused_before_the_library_sees_them() {
    let (fake, driver) = device();
    let (range, chunk) = mapped(&driver);
    let stream = driver.create_stream().unwrap();
    let event = driver.create_event(EventKind::Order).unwrap();
    let host = driver.allocate_pinned(4096).unwrap();
    let held = fake.held();
    let invalid = ErrorKind::Invalid;
    refused(driver.synchronize_stream(StreamHandle(999)), invalid, "stream 0x3e7");
    refused(driver.record_event(EventHandle(999), stream), invalid, "event 0x3e7");
    refused(driver.record_event(EventHandle(stream.0), stream), invalid, "does not exist");
    refused(driver.wait_event(StreamHandle(event.0), event), invalid, "does not exist");
    refused(driver.release_chunk(chunk), invalid, "mapped at 1");
    refused(driver.free_range(range), invalid, "is mapped");
    refused(driver.map(range, chunk), invalid, "mapped already");
    refused(driver.reserve(UNIT + 1), invalid, "not a positive multiple of 2097152");
    refused(driver.create_chunk(0), invalid, "0 bytes");
    refused(driver.create_chunk(65 * UNIT), ErrorKind::OutOfMemory, "the device has");
    refused(driver.device_pointer(host.offset(4096)), invalid, "not pinned");
    let out = |source, target, size_bytes| Copy::DeviceToHost { source, target, size_bytes };
    let within = |source, target, size_bytes| Copy::DeviceToDevice { source, target, size_bytes };
    for (copy, expect) in [
        (out(range.start, host, 0), "0 bytes"),
        (out(range.start, host, 4097), "not in one piece"),
        (out(range.start, HostPtr(8), 8), "not in one piece"),
        (within(range.start, range.start.offset(7), 8), "overlaps"),
    ] {
        refused(self::copy(&driver, copy, stream), invalid, expect);
    }
    let access = Access { start: range.start, size_bytes: 8, mode: AccessMode::Read };
    let declares = HostFunction { accesses: vec![access], ..function(|| panic!("it ran")) };
    let result = launch(&driver, declares, stream);
    refused(result, ErrorKind::Unsupported, "'probe' declares 1 accesses");
    let endless = HostFunction { cost_us: f64::NAN, ..function(|| panic!("it ran")) };
    refused(launch(&driver, endless, stream), invalid, "NaN microseconds");
    refused(free_device(&driver, range.start), invalid, "was not allocated");
    // SAFETY: refused without effect.
    let unregistered = unsafe { driver.unregister_host(host) };
    refused(unregistered, invalid, "not the start");
    // SAFETY: refused without effect.
    let registered = unsafe { driver.register_host(HostPtr(4097), 4096) };
    refused(registered, invalid, "whole pages");
    free_pinned(&driver, host).unwrap();
    refused(free_pinned(&driver, host), invalid, "not the start");
    assert_eq!(fake.held(), held - 1);
}

#[test]
fn a_failure_of_the_library_changes_nothing_and_speaks_its_words() {
    let (fake, driver) = device();
    let (range, chunk) = mapped(&driver);
    let stream = driver.create_stream().unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    let host = driver.allocate_pinned(4096).unwrap();
    let plain = driver.allocate_device(UNIT).unwrap();
    let held = fake.held();
    fake.set("fake_call_code", 2);
    let full = ErrorKind::OutOfMemory;
    let error = refused(driver.create_chunk(UNIT), full, "CUDA_ERROR_OUT_OF_MEMORY: out of memory");
    assert_eq!((error.call, error.code), ("create_chunk", 2));
    refused(driver.reserve(UNIT), full, "reserve");
    refused(driver.allocate_pinned(1), full, "allocate_pinned");
    refused(driver.create_stream(), full, "create_stream");
    refused(driver.destroy_stream(stream), full, "destroy_stream");
    refused(driver.destroy_event(event), full, "destroy_event");
    refused(driver.query_event(event), full, "query_event");
    let ran = function(|| panic!("it ran"));
    refused(launch(&driver, ran, stream), full, "launch_host");
    refused(unmap(&driver, range), full, "unmap");
    refused(free_pinned(&driver, host), full, "free_pinned");
    refused(free_device(&driver, plain), full, "free_device");
    fake.set("fake_call_code", 12_345);
    refused(driver.memory_info(), ErrorKind::Failed, "code 12345: unnamed error");
    fake.set("fake_call_code", 700);
    refused(driver.synchronize_stream(stream), ErrorKind::DeviceLost, "code 700");
    fake.set("fake_call_code", 0);
    assert_eq!(fake.held(), held);

    // All of it is still there, and goes once.
    driver.destroy_stream(stream).unwrap();
    driver.destroy_event(event).unwrap();
    unmap(&driver, range).unwrap();
    free_pinned(&driver, host).unwrap();
    free_device(&driver, plain).unwrap();
    driver.release_chunk(chunk).unwrap();
    driver.free_range(range).unwrap();
    assert_eq!(fake.held(), 0);
    refused(driver.destroy_stream(stream), ErrorKind::Invalid, "does not exist");
    refused(driver.release_chunk(chunk), ErrorKind::Invalid, "does not exist");
}

#[test]
fn every_thread_gets_the_context_and_a_foreign_one_comes_back() {
    let (fake, driver) = device();
    let api = fake.api();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: it writes one pointer.
        unsafe { (api.cuCtxGetCurrent)(&raw mut context) };
        context.addr()
    };
    let set = |context: usize| {
        // SAFETY: the stand-in only keeps the address.
        unsafe { (api.cuCtxSetCurrent)(std::ptr::without_provenance_mut(context)) };
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(current(), 0);
            driver.memory_info().unwrap();
            let ours = current();
            assert_ne!(ours, 0, "a thread that had none keeps ours");
            set(0x1234);
            driver.memory_info().unwrap();
            assert_eq!(current(), 0x1234);
            refused(
                driver.map(VaRange { start: DevicePtr(0), size_bytes: UNIT }, ChunkHandle(1)),
                ErrorKind::Invalid,
                "reserved",
            );
            assert_eq!(current(), 0x1234, "after a refusal too");
            set(ours);
            driver.memory_info().unwrap();
            assert_eq!(current(), ours);
        });
    });
    driver.memory_info().unwrap();
    drop(driver);
    assert_eq!((current(), fake.retained()), (0, 0));
}

#[test]
fn a_graph_that_is_captured_meanwhile_is_not_disturbed() {
    let (fake, driver) = device();
    let api = fake.api();
    let (range, chunk) = mapped(&driver);
    let stream = driver.create_stream().unwrap();
    let event = driver.create_event(EventKind::Order).unwrap();
    assert_eq!(driver.is_captured(stream), Ok(false));
    fake.set("fake_is_capturing", 1);
    assert_eq!(driver.is_captured(stream), Ok(true));
    driver.query_event(event).unwrap();
    unmap(&driver, range).unwrap();
    driver.release_chunk(chunk).unwrap();
    let mut mode = CUstreamCaptureMode(0);
    // SAFETY: it reads and writes one number.
    unsafe { api.cuThreadExchangeStreamCaptureMode.unwrap()(&raw mut mode) };
    assert_eq!(mode.0, 0, "the thread's own mode is back");
    for symbol in ["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"] {
        let driver = Fake::without(symbol).open(0).unwrap();
        let stream = driver.create_stream().unwrap();
        assert_eq!(driver.is_captured(stream), Ok(false));
    }
}

#[test]
fn without_virtual_memory_there_is_plain_memory_and_a_reason() {
    let check = |fake: Fake, expect: &str| {
        let driver = fake.open(0).unwrap();
        let properties = driver.properties();
        assert!(!properties.has_virtual_memory);
        assert_eq!(properties.granularity_bytes, UNIT);
        let unsupported = ErrorKind::Unsupported;
        let range = VaRange { start: DevicePtr(UNIT), size_bytes: UNIT };
        refused(driver.reserve(UNIT), unsupported, expect);
        refused(driver.create_chunk(UNIT), unsupported, expect);
        refused(driver.map(range, ChunkHandle(1)), unsupported, expect);
        refused(driver.set_access(range), unsupported, expect);
        refused(driver.release_chunk(ChunkHandle(1)), unsupported, expect);
        refused(driver.free_range(range), unsupported, expect);
        refused(unmap(&driver, range), unsupported, expect);

        let start = driver.allocate_device(UNIT).unwrap();
        refused(driver.allocate_device(UNIT + 1), ErrorKind::Invalid, "not a positive multiple");
        let stream = driver.create_stream().unwrap();
        fill(&driver, start, 1, stream).unwrap();
        free_device(&driver, start).unwrap();
        refused(free_device(&driver, start), ErrorKind::Invalid, "was not allocated");
    };
    let old = |symbol: &str| format!("no {symbol}: it needs CUDA 10.2 / driver 440 or newer");
    for symbol in ["cuMemAddressReserve", "cuMemMap", "cuMemGetAllocationGranularity"] {
        check(Fake::without(symbol), &old(symbol));
    }
    let fake = Fake::whole();
    fake.set("fake_has_virtual_memory", 0);
    check(fake, "this device has no virtual memory management");
}

#[test]
fn queries_do_not_take_unready_for_a_failure() {
    let (fake, driver) = device();
    let stream = driver.create_stream().unwrap();
    let order = driver.create_event(EventKind::Order).unwrap();
    let [start, end] = [0, 1].map(|_| driver.create_event(EventKind::Timing).unwrap());
    driver.record_event(start, stream).unwrap();
    assert_eq!(driver.query_event(start), Ok(true));
    assert_eq!(driver.elapsed_us(start, end), Ok(1500.0));
    refused(driver.elapsed_us(start, order), ErrorKind::Invalid, "code 400");
    fake.set("fake_is_busy", 1);
    assert_eq!(driver.query_event(start), Ok(false));
    refused(driver.elapsed_us(start, end), ErrorKind::Invalid, "code 600");
    driver.wait_event(stream, end).unwrap();
    driver.synchronize_event(end).unwrap();
}

#[test]
fn host_functions_may_not_call_and_their_panic_is_kept() {
    let (_fake, driver) = device();
    let stream = driver.create_stream().unwrap();
    let event = driver.create_event(EventKind::Timing).unwrap();
    let inner = Arc::clone(&driver);
    let calls = function(move || {
        refused(inner.memory_info(), ErrorKind::Invalid, "a host function cannot call");
        refused(inner.destroy_stream(stream), ErrorKind::Invalid, "a host function cannot call");
        assert_eq!(inner.properties().name, "Fake");
    });
    launch(&driver, calls, stream).unwrap();
    driver.synchronize_stream(stream).unwrap();
    launch(&driver, function(|| panic!("number {}", 7)), stream).unwrap();
    let (failed, text) = (ErrorKind::Failed, "host function 'probe' panicked: number 7");
    refused(driver.synchronize_stream(stream), failed, text);
    refused(driver.synchronize_event(event), failed, text);
    refused(driver.query_event(event), failed, text);
    refused(driver.elapsed_us(event, event), failed, text);
    // All other calls go on.
    driver.record_event(event, stream).unwrap();
    driver.destroy_stream(stream).unwrap();
}

/// Takes some of everything and keeps it.
fn take_all_kinds(driver: &Arc<CudaDriver>) {
    mapped(driver);
    driver.reserve(UNIT).unwrap();
    driver.create_chunk(UNIT).unwrap();
    driver.allocate_device(UNIT).unwrap();
    driver.allocate_pinned(100).unwrap();
    driver.create_stream().unwrap();
    driver.create_event(EventKind::Order).unwrap();
    // SAFETY: a page of the stand-in's address space; it only counts registrations.
    unsafe { driver.register_host(HostPtr(1 << 20), 4096) }.unwrap();
    // SAFETY: the legacy default stream.
    unsafe { driver.adopt_stream(0) }.unwrap();
}

#[test]
fn a_dropped_driver_gives_everything_back() {
    let (fake, driver) = device();
    take_all_kinds(&driver);
    assert_eq!((fake.held(), fake.retained()), (10, 1));
    drop(driver);
    assert_eq!((fake.held(), fake.retained()), (0, 0));
}

#[test]
fn what_a_dropped_driver_cannot_give_back_is_counted() {
    let (fake, driver) = device();
    fake.set("fake_call_code", 4001);
    drop(driver);
    assert_counted(4001, 1);
}

#[test]
fn a_handle_that_goes_late_and_fails_is_counted() {
    let (fake, driver) = device();
    let stream = driver.create_stream().unwrap();
    let held = driver.streams.get("test", stream.0).unwrap();
    driver.destroy_stream(stream).unwrap();
    fake.set("fake_call_code", 4002);
    drop(held);
    assert_counted(4002, 1);
    fake.set("fake_call_code", 0);
    drop(driver);
    assert_eq!(fake.held(), 1, "the stream stays");
}

/// Asserts that so many failures with a code of the test's own were counted at a drop.
fn assert_counted(code: i64, count: usize) {
    let failures = drop_failures();
    let ours = failures.first.iter().filter(|error| (error.call, error.code) == ("drop", code));
    assert_eq!(ours.count(), count, "{failures:?}");
}

#[test]
fn a_driver_dropped_in_a_host_function_gives_everything_back() {
    let (fake, driver) = device();
    take_all_kinds(&driver);
    let (_other, outer) = device();
    let stream = outer.create_stream().unwrap();
    launch(&outer, function(move || drop(driver)), stream).unwrap();
    outer.synchronize_stream(stream).unwrap();
    // A thread of its own gives back; it takes a moment.
    let is_done = || (fake.held(), fake.retained()) == (0, 0);
    let done = (0..1_000_000).any(|_| {
        thread::yield_now();
        is_done()
    });
    assert!(done, "{} held, {} retained", fake.held(), fake.retained());
}

#[test]
fn adopted_streams_work_and_are_left_alive() {
    let (fake, driver) = device();
    refused(driver.synchronize_stream(StreamHandle(0)), ErrorKind::Invalid, "does not exist");
    // SAFETY: the legacy default stream.
    let stream = unsafe { driver.adopt_stream(0) }.unwrap();
    assert_eq!(stream, StreamHandle(0));
    driver.synchronize_stream(stream).unwrap();
    driver.destroy_stream(stream).unwrap();
    assert_eq!(fake.held(), 0);
    refused(driver.synchronize_stream(stream), ErrorKind::Invalid, "does not exist");
    // A stream of the driver's own stays its own.
    let own = driver.create_stream().unwrap();
    // SAFETY: it is the driver's.
    assert_eq!(unsafe { driver.adopt_stream(own.0) }, Ok(own));
    driver.destroy_stream(own).unwrap();
    assert_eq!(fake.held(), 0);
}

#[test]
fn pattern_kernels_take_whole_words_only() {
    let (fake, driver) = device();
    let kernels = PatternKernels::new(&driver).unwrap();
    let stream = driver.create_stream().unwrap();
    let write = |target: u64, size_bytes: u64| {
        // SAFETY: the stand-in launches nothing.
        unsafe { kernels.write(DevicePtr(target), size_bytes, 1, stream) }
    };
    for (target, size_bytes) in [(UNIT + 4, 8), (UNIT, 12), (UNIT, 0)] {
        refused(write(target, size_bytes), ErrorKind::Invalid, "is not whole words");
    }
    refused(write(UNIT, 8), ErrorKind::Unsupported, "launch_kernel failed with code 801");
    // SAFETY: as above.
    let check = unsafe { kernels.check(DevicePtr(UNIT), 8, 1, DevicePtr(UNIT + 4), stream) };
    refused(check, ErrorKind::Invalid, "not a place for a u64");
    assert_ne!(pattern_word(1, 0), pattern_word(1, 1));
    drop((driver, kernels));
    assert_eq!((fake.held(), fake.retained()), (0, 0));
}
