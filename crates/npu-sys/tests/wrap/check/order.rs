//! What orders streams: events, waits, and what passes through them.

use super::super::bench::{Bench, passes, races};
use npu_sys::{Driver, StreamHandle};

#[test]
fn order_passes_through_a_chain_of_streams() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    // Nothing runs on `b` itself.
    races(bench.read(c, buffer));
    bench.order(b, c);
    passes(bench.read(c, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_chain_in_the_wrong_order_carries_nothing() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(b, c);
    bench.order(a, b);
    races(bench.read(c, buffer));
    passes(bench.read(b, buffer));
}

#[test]
fn a_stream_that_waits_twice_knows_both() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let ((_, one), (_, two)) = (bench.buffer(), bench.buffer());
    let old = bench.event();
    bench.record(old, a);
    passes(bench.write(a, one));
    passes(bench.write(b, two));
    bench.order(a, c);
    races(bench.read(c, two));
    bench.order(b, c);
    // An event that says less than is known takes nothing away.
    bench.wait(c, old);
    passes(bench.read(c, one));
    passes(bench.read(c, two));
    bench.assert_violations(1);
}

#[test]
fn an_event_stands_for_what_came_before_its_record() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    bench.record(event, a);
    passes(bench.write(a, buffer));
    bench.wait(b, event);
    races(bench.read(b, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    passes(bench.read(b, buffer));
    bench.assert_violations(1);
}

#[test]
fn a_wait_before_the_record_waits_for_nothing() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.wait(b, event);
    bench.record(event, a);
    races(bench.read(b, buffer));
    bench.wait(b, event);
    passes(bench.read(b, buffer));
}

#[test]
fn an_event_recorded_anew_forgets_and_earlier_waits_do_not() {
    let bench = Bench::new();
    let [a, b, c, d] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    bench.record(event, c);
    bench.wait(d, event);
    passes(bench.read(b, buffer));
    races(bench.read(d, buffer));
}

#[test]
fn a_destroyed_event_keeps_the_waits_it_served_and_serves_no_more() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    bench.wait(b, event);
    bench.check.destroy_event(event).unwrap();
    passes(bench.read(b, buffer));
    let again = bench.event();
    assert_eq!(again, event, "the fake gives the same handle again");
    bench.wait(c, again);
    races(bench.read(c, buffer));
    bench.record(again, b);
    bench.wait(c, again);
    passes(bench.read(c, buffer));
}

#[test]
fn a_destroyed_stream_s_work_still_counts() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    let event = bench.event();
    bench.record(event, a);
    bench.check.destroy_stream(a).unwrap();
    let [again] = bench.streams();
    assert_eq!(again, a, "the fake gives the same handle again");
    races(bench.read(again, buffer));
    bench.wait(again, event);
    passes(bench.read(again, buffer));
}

#[test]
fn a_new_stream_does_not_inherit_what_a_destroyed_one_waited_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    bench.check.destroy_stream(b).unwrap();
    let [again] = bench.streams();
    races(bench.read(again, buffer));
    bench.order(a, again);
    passes(bench.read(again, buffer));
}

#[test]
fn a_stream_made_elsewhere_is_tracked_too() {
    let bench = Bench::new();
    let [a] = bench.streams();
    let theirs = StreamHandle(77);
    let (_, buffer) = bench.buffer();
    passes(bench.write(theirs, buffer));
    races(bench.read(a, buffer));
    bench.order(theirs, a);
    passes(bench.read(a, buffer));
}
