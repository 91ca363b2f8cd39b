//! The record driver: each call is in the log, once, with what it said.

use std::sync::Arc;
use std::thread;

use npu_sys::devices::{FALLIBLE_CALLS, FaultDriver, FaultPlan, RecordDriver};
use npu_sys::{Driver, ErrorKind};

use super::fake::FakeDriver;
use super::fault::call;

fn recorded() -> (Arc<FakeDriver>, RecordDriver) {
    let fake = Arc::new(FakeDriver::default());
    (Arc::clone(&fake), RecordDriver::new(fake))
}

#[test]
fn every_call_is_logged_under_its_name_and_goes_through() {
    let (fake, record) = recorded();
    for name in FALLIBLE_CALLS {
        assert_eq!(record.count(name), 0);
        call(&record, name).unwrap();
        assert_eq!((record.count(name), fake.count(name)), (1, 1), "{name}");
    }
    let names: Vec<&str> = record.calls().iter().map(|call| call.name).collect();
    assert_eq!(names, FALLIBLE_CALLS);
    assert_eq!(record.counts(), FALLIBLE_CALLS.map(|name| (name, 1)).into());
}

#[test]
fn a_line_shows_arguments_and_outcome() {
    let fake = Arc::new(FakeDriver::default());
    let fault = Arc::new(FaultDriver::new(fake));
    let record = RecordDriver::new(Arc::clone(&fault) as Arc<dyn Driver>);
    call(&record, "create_chunk").unwrap();
    fault.arm(FaultPlan::once(1, ErrorKind::Failed));
    call(&record, "fill").unwrap_err();
    let [created, filled]: [String; 2] = record.lines().try_into().unwrap();
    assert!(created.starts_with("1 "), "{created}");
    assert!(created.ends_with("create_chunk(64 bytes) -> ChunkHandle(1)"), "{created}");
    let expected = "fill(device:0x40 + 64 bytes, 0x07, StreamHandle(1)) failed: \
                    fill failed with code 999: injected fault at call 1";
    assert!(filled.ends_with(expected), "{filled}");
    assert_eq!(record.count("fill"), 1, "failed calls count");
    assert_eq!(record.calls()[1].outcome.as_ref().unwrap_err().kind, ErrorKind::Failed);
}

#[test]
fn a_bounded_log_keeps_the_latest_and_counts_all() {
    let record = RecordDriver::bounded(Arc::new(FakeDriver::default()), 3);
    for name in FALLIBLE_CALLS {
        call(&record, name).unwrap();
    }
    let kept: Vec<(u64, &str)> =
        record.calls().iter().map(|call| (call.number, call.name)).collect();
    assert_eq!(kept, [(28, "fill"), (29, "launch_host"), (30, "note_access")]);
    assert_eq!((record.total(), record.count("reserve")), (30, 1));
    record.clear();
    assert_eq!((record.total(), record.count("reserve"), record.lines().len()), (0, 0, 0));
}

#[test]
fn the_log_tells_threads_apart() {
    let (_, record) = recorded();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|_| call(&record, "reserve").unwrap()));
        }
    });
    call(&record, "reserve").unwrap();
    let calls = record.calls();
    assert!(calls.iter().map(|call| call.number).eq(1..=201));
    assert_eq!(calls[200].thread, thread::current().id());
    assert!(calls[..200].iter().all(|call| call.thread != thread::current().id()));
}

#[test]
fn asking_for_a_call_that_does_not_exist_is_a_mistake() {
    let (_, record) = recorded();
    let count = || record.count("creat_chunk");
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(count)).is_err());
}
