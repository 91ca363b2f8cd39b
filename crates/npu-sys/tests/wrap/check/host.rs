//! What the host knows to be complete, and whom it tells.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::bench::{Bench, passes, races};

#[test]
fn the_host_carries_what_it_waited_for_into_every_stream() {
    let bench = Bench::new();
    let [a, b, c] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.synchronize(c);
    races(bench.read(b, buffer));
    bench.synchronize(a);
    passes(bench.read(b, buffer));
    races(bench.write(c, buffer));
    bench.synchronize(b);
    passes(bench.write(c, buffer));
}

#[test]
fn waiting_on_the_host_for_a_stream_includes_what_the_stream_waited_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    passes(bench.write(a, buffer));
    bench.order(a, b);
    races(bench.unmap(buffer));
    bench.synchronize(b);
    passes(bench.unmap(buffer));
}

#[test]
fn waiting_on_the_host_for_an_event_orders_only_what_it_stands_for() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let ((_, early), (_, late)) = (bench.buffer(), bench.buffer());
    let event = bench.event();
    passes(bench.write(a, early));
    bench.record(event, a);
    passes(bench.write(a, late));
    races(bench.read(b, early));
    bench.synchronize_event(event);
    passes(bench.read(b, early));
    races(bench.read(b, late));
}

#[test]
fn what_is_submitted_while_the_host_waits_is_not_known_to_be_complete() {
    for by_event in [false, true] {
        let bench = Arc::new(Bench::new());
        let [a] = bench.streams();
        let ((_, before), (_, during)) = (bench.buffer(), bench.buffer());
        let event = bench.event();
        passes(bench.write(a, before));
        bench.record(event, a);
        let other = Arc::clone(&bench);
        bench.fake.do_meanwhile(move || {
            passes(other.write(a, during));
            other.record(event, a);
        });
        if by_event {
            bench.synchronize_event(event);
        } else {
            bench.synchronize(a);
        }
        races(bench.unmap(during));
        passes(bench.unmap(before));
        bench.synchronize(a);
        passes(bench.unmap(during));
    }
}

#[test]
fn a_query_orders_only_if_it_says_complete() {
    let bench = Bench::new();
    let [a, b] = bench.streams();
    let (_, buffer) = bench.buffer();
    let event = bench.event();
    passes(bench.write(a, buffer));
    bench.record(event, a);
    assert!(!bench.query(event));
    races(bench.read(b, buffer));
    bench.fake.complete.store(true, Ordering::SeqCst);
    races(bench.read(b, buffer));
    assert!(bench.query(event));
    passes(bench.read(b, buffer));
    bench.assert_violations(2);
}

#[test]
fn threads_with_streams_of_their_own_do_not_disturb_each_other() {
    let bench = Bench::new();
    let (_, shared) = bench.buffer();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let [stream] = bench.streams();
                for _ in 0..200 {
                    let (chunk, buffer) = bench.buffer();
                    passes(bench.read(stream, shared));
                    passes(bench.write(stream, buffer));
                    bench.synchronize(stream);
                    passes(bench.unmap(buffer));
                    passes(bench.release(chunk));
                }
            });
        }
    });
    bench.assert_violations(0);
    assert_eq!(bench.check.accesses_checked(), 1600);
    let [stream] = bench.streams();
    passes(bench.write(stream, shared));
}
