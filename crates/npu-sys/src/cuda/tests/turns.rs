//! Copies to the host take turns on two streams, and are in order all the same.

use crate::cuda::CudaDriver;
use crate::cuda::copy::{OTHER_BYTES_MIN, TURN_BYTES};
use crate::cuda::tests::driver::{copy, device, refused};
use crate::driver::Driver;
use crate::error::{DriverError, ErrorKind};
use crate::types::{Copy, DevicePtr, HostPtr, StreamHandle};

const SIZE_BYTES: u64 = TURN_BYTES + OTHER_BYTES_MIN;
const WORD_BYTES: u64 = 8;

fn address(start: u64, index: u64) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut((start + index * WORD_BYTES) as usize)
}

/// Device memory of which each word is its own index, and as much host memory.
fn memory(driver: &CudaDriver) -> (DevicePtr, HostPtr) {
    let source = driver.allocate_device(SIZE_BYTES).unwrap();
    let target = driver.allocate_pinned(SIZE_BYTES).unwrap();
    for index in 0..SIZE_BYTES / WORD_BYTES {
        // SAFETY: the stand-in's device memory is the process's own, and nobody else knows it.
        unsafe { address(source.0, index).write(index) };
    }
    (source, target)
}

fn copy_out(
    driver: &CudaDriver,
    from: (DevicePtr, HostPtr),
    size_bytes: u64,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    copy(driver, Copy::DeviceToHost { source: from.0, target: from.1, size_bytes }, stream)
}

#[test]
fn every_other_turn_is_another_streams_and_all_bytes_arrive_in_order() {
    let (fake, driver) = device();
    let from = memory(&driver);
    let (stream, quiet) = (driver.create_stream().unwrap(), driver.create_stream().unwrap());
    let held = fake.held();
    copy_out(&driver, from, TURN_BYTES, stream).unwrap();
    assert_eq!((fake.count("fake_copies_out"), fake.held()), (1, held), "one turn needs no other");
    copy_out(&driver, from, OTHER_BYTES_MIN - 1, stream).unwrap();
    assert_eq!(fake.count("fake_turns"), 0, "too little for a turn of the other");
    copy_out(&driver, from, SIZE_BYTES, stream).unwrap();
    assert_eq!((fake.count("fake_copies_out"), fake.count("fake_turns")), (4, 2));
    // The first stream has begun its turn already.
    copy_out(&driver, from, SIZE_BYTES, stream).unwrap();
    assert_eq!((fake.count("fake_copies_out"), fake.count("fake_turns")), (6, 3));
    assert_eq!(fake.count("fake_unordered"), 0);
    driver.synchronize_stream(stream).unwrap();
    assert_eq!(fake.count("fake_waited_for"), 6, "the stream waits for the other");
    for index in 0..SIZE_BYTES / WORD_BYTES {
        // SAFETY: pinned memory of that size, and no work is left.
        let word = unsafe { address(from.1.0, index).read() };
        assert_eq!(word, index);
    }
    assert_eq!(fake.held(), held + 3, "a stream and two events");
    driver.destroy_stream(quiet).unwrap();
    driver.destroy_stream(stream).unwrap();
    assert_eq!(fake.held(), held - 2);
    // SAFETY: the legacy default stream.
    let adopted = unsafe { driver.adopt_stream(0) }.unwrap();
    let before = fake.count("fake_copies_out");
    copy_out(&driver, from, SIZE_BYTES, adopted).unwrap();
    assert_eq!(fake.count("fake_copies_out"), before + 1, "a borrowed stream keeps its copies");
    drop(driver);
    assert_eq!(fake.held(), 0);
}

#[test]
fn a_copy_that_fails_half_way_leaves_nothing_under_way() {
    let (fake, driver) = device();
    let from = memory(&driver);
    let stream = driver.create_stream().unwrap();
    for (succeed, waited_for) in [(0, 0), (1, 1), (1, 2)] {
        fake.set("fake_copies_until_failure", succeed);
        refused(copy_out(&driver, from, SIZE_BYTES, stream), ErrorKind::OutOfMemory, "copy");
        assert_eq!(fake.count("fake_waited_for"), waited_for, "after {succeed}");
    }
    fake.set("fake_copies_until_failure", -1);
    copy_out(&driver, from, SIZE_BYTES, stream).unwrap();
    assert_eq!(fake.count("fake_unordered"), 0);
}
