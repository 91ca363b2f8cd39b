//! Order that others make past the driver: each call of theirs, told and left out.

use super::super::bench::{Bench, passes, races};
use npu_sys::devices::ForeignCall;
use npu_sys::{EventHandle, StreamHandle, VaRange};

/// Streams and an event that were not made through the checker.
const ONE: StreamHandle = StreamHandle(1 << 40);
const TWO: StreamHandle = StreamHandle(2 << 40);
const EVENT: EventHandle = EventHandle(3 << 40);

const RECORD: ForeignCall = ForeignCall::Record { event: EVENT, stream: ONE };
const WAIT: ForeignCall = ForeignCall::Wait { stream: TWO, event: EVENT };

/// Whether a read on the second stream is ordered after a write on the first by these calls.
fn orders(calls: &[ForeignCall]) -> bool {
    let bench = Bench::new();
    let (_, buffer) = bench.buffer();
    passes(bench.write(ONE, buffer));
    calls.iter().for_each(|&call| bench.check.note_foreign(call));
    assert_eq!(bench.check.foreign_calls(), calls.len() as u64);
    let read = bench.read(TWO, buffer);
    let is_ordered = read.is_ok();
    if !is_ordered {
        races(read);
    }
    is_ordered
}

/// Whether memory that the first stream wrote may be unmapped by these calls.
fn frees(calls: &[ForeignCall]) -> bool {
    let bench = Bench::new();
    let (_, buffer): (_, VaRange) = bench.buffer();
    passes(bench.write(ONE, buffer));
    calls.iter().for_each(|&call| bench.check.note_foreign(call));
    let unmapped = bench.unmap(buffer);
    let is_known = unmapped.is_ok();
    if !is_known {
        races(unmapped);
    }
    is_known
}

#[test]
fn a_wait_for_a_record_orders_and_half_of_it_does_not() {
    assert!(orders(&[RECORD, WAIT]));
    assert!(!orders(&[]));
    assert!(!orders(&[RECORD]));
    assert!(!orders(&[WAIT]));
    assert!(!orders(&[WAIT, RECORD]));
}

#[test]
fn an_event_that_is_gone_stands_for_nothing() {
    assert!(!orders(&[RECORD, ForeignCall::DestroyEvent(EVENT), WAIT]));
    assert!(orders(&[RECORD, ForeignCall::DestroyEvent(EVENT), RECORD, WAIT]));
}

#[test]
fn the_host_knows_what_it_waited_for() {
    assert!(!frees(&[]));
    assert!(!frees(&[RECORD]));
    assert!(frees(&[RECORD, ForeignCall::SynchronizeEvent(EVENT)]));
    assert!(!frees(&[ForeignCall::SynchronizeEvent(EVENT)]));
    assert!(frees(&[ForeignCall::SynchronizeStream(ONE)]));
    assert!(!frees(&[ForeignCall::SynchronizeStream(TWO)]));
    assert!(frees(&[ForeignCall::SynchronizeDevice]));
    // What the host knows, later work of any stream may rely on.
    assert!(orders(&[ForeignCall::SynchronizeStream(ONE)]));
    assert!(orders(&[ForeignCall::SynchronizeDevice]));
}
