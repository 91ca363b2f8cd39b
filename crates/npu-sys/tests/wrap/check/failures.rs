//! A call that the driver behind fails teaches the checker nothing.

use std::sync::Arc;

use super::super::bench::{BUFFER_BYTES, Bench, is_invalid, passes, races};
use npu_sys::devices::{CheckConfig, CheckDriver, FaultDriver, FaultPlan};
use npu_sys::{Driver, ErrorKind};

/// A checker in front of a driver whose calls fail by name.
struct Failing {
    bench: Bench,
    fault: Arc<FaultDriver>,
}

impl Failing {
    fn new() -> Failing {
        let inner = Bench::new();
        let fault = Arc::new(FaultDriver::new(Arc::clone(&inner.fake) as Arc<dyn Driver>));
        let check = CheckDriver::new(Arc::clone(&fault) as Arc<dyn Driver>, CheckConfig::ORDER);
        Failing { bench: Bench { check, ..inner }, fault }
    }

    /// The next call of that name fails.
    fn fail(&self, name: &'static str) -> &Bench {
        self.fault.arm(FaultPlan::once(1, ErrorKind::Failed).only(name));
        &self.bench
    }
}

#[test]
fn work_that_was_not_submitted_needs_no_order() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    failing.fail("fill").write(a, buffer).unwrap_err();
    passes(bench.write(b, buffer));
    races(bench.write(a, buffer));
}

#[test]
fn an_event_that_was_not_recorded_stands_for_nothing() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(b, buffer));
    failing.fail("record_event").check.record_event(event, b).unwrap_err();
    bench.wait(a, event);
    races(bench.read(a, buffer));
    bench.record(event, b);
    bench.wait(a, event);
    passes(bench.read(a, buffer));
}

#[test]
fn a_stream_that_was_not_made_to_wait_knows_nothing() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(b, buffer));
    bench.record(event, b);
    failing.fail("wait_event").check.wait_event(a, event).unwrap_err();
    races(bench.read(a, buffer));
    assert_eq!(bench.check.waits_seen(), 0);
    bench.wait(a, event);
    passes(bench.read(a, buffer));
}

#[test]
fn a_host_that_could_not_wait_knows_nothing() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    failing.fail("synchronize_stream").check.synchronize_stream(a).unwrap_err();
    races(bench.unmap(buffer));
    failing.fail("synchronize_event").check.synchronize_event(event).unwrap_err();
    races(bench.unmap(buffer));
    failing.fail("query_event").check.query_event(event).unwrap_err();
    races(bench.unmap(buffer));
    bench.synchronize(a);
    passes(bench.unmap(buffer));
}

#[test]
fn memory_that_was_not_given_back_is_there_still() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a] = bench.streams();
    let (chunk, buffer) = bench.buffer();
    failing.fail("unmap").unmap(buffer).unwrap_err();
    passes(bench.write(a, buffer));
    bench.synchronize(a);
    passes(bench.unmap(buffer));
    failing.fail("release_chunk").release(chunk).unwrap_err();
    bench.map(buffer, chunk);
    passes(bench.write(a, buffer));
}

#[test]
fn addresses_at_which_nothing_was_mapped_are_out_of_reach() {
    let failing = Failing::new();
    let bench = &failing.bench;
    let [a] = bench.streams();
    let (chunk, _) = bench.buffer();
    let range = bench.reserve(BUFFER_BYTES);
    failing.fail("map").check.map(range, chunk).unwrap_err();
    is_invalid(bench.write(a, range));
    bench.map(range, chunk);
    passes(bench.write(a, range));
}
