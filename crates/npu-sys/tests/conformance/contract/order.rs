//! Streams and events: what runs after what, and what the host gets to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use npu_sys::{AccessMode, ErrorKind, EventKind, HostFunction};

use crate::drivers::on_all_drivers;
use crate::rig::{HOLD_US, Log, Time, refused};

#[test]
fn a_stream_runs_in_order() {
    on_all_drivers(|rig| {
        const ROUNDS: u64 = 100;
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let logs = [Log::default(), Log::default(), Log::default()];
        let slots = rig.pinned(&[0; 3 * ROUNDS as usize]);
        let buffer = rig.buffer(rig.unit);
        let cell = |index: u64| buffer.start().offset(index * 4096);
        for number in 0..ROUNDS {
            for (index, (&stream, log)) in (0..).zip(streams.iter().zip(&logs)) {
                rig.fill(cell(index), 64, number as u8, stream).unwrap();
                rig.copy_out(cell(index), slots.offset(index * ROUNDS + number), 1, stream);
                let log = log.clone();
                rig.run(stream, vec![], 1.0, move |_| log.add(number as u32));
            }
        }
        rig.synchronize(streams);
        for log in &logs {
            assert_eq!(log.entries(), (0..ROUNDS as u32).collect::<Vec<_>>());
        }
        let seen = rig.host_bytes(slots, 3 * ROUNDS);
        assert!(seen.chunks(ROUNDS as usize).all(|seen| seen.iter().copied().eq(0..ROUNDS as u8)));
        rig.free_pinned(slots).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy(streams, []);
    });
}

#[test]
fn events_order_work_of_different_streams() {
    on_all_drivers(|rig| {
        const ROUNDS: u64 = 50;
        const PART: u64 = 4096;
        let (producer, consumer) = (rig.stream(), rig.stream());
        let (produced, consumed) = (
            rig.driver.create_event(EventKind::Order).unwrap(),
            rig.driver.create_event(EventKind::Order).unwrap(),
        );
        let buffer = rig.buffer(rig.unit);
        let slots = rig.pinned(&[0; 2 * (ROUNDS * PART) as usize]);
        let last = buffer.start().offset(rig.unit - PART);
        for round in 0..ROUNDS {
            rig.driver.wait_event(producer, consumed).unwrap();
            rig.fill(buffer.start(), rig.unit, round as u8 + 1, producer).unwrap();
            rig.driver.record_event(produced, producer).unwrap();
            rig.driver.wait_event(consumer, produced).unwrap();
            rig.copy_out(buffer.start(), slots.offset(2 * round * PART), PART, consumer);
            rig.copy_out(last, slots.offset((2 * round + 1) * PART), PART, consumer);
            rig.driver.record_event(consumed, consumer).unwrap();
        }
        rig.driver.synchronize_event(consumed).unwrap();
        let seen = rig.host_bytes(slots, 2 * ROUNDS * PART);
        for (round, seen) in (1..).zip(seen.chunks(2 * PART as usize)) {
            assert!(seen.iter().all(|&byte| byte == round), "round {round} saw another's bytes");
        }
        rig.free_pinned(slots).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([producer, consumer], [produced, consumed]);
    });
}

#[test]
fn a_wait_keeps_the_record_it_saw() {
    on_all_drivers(|rig| {
        let (early, late, waiter) = (rig.stream(), rig.stream(), rig.stream());
        let buffer = rig.buffer(rig.unit);
        let slot = rig.pinned(&[0; 64]);
        rig.fill(buffer.start(), rig.unit, 7, early).unwrap();
        let event = rig.recorded(EventKind::Order, early);
        rig.driver.wait_event(waiter, event).unwrap();
        rig.copy_out(buffer.start().offset(rig.unit - 64), slot, 64, waiter);
        let before_us = rig.host_clock_us();

        // From now on the event stands for work that is held back. The wait above does not.
        let hold = rig.hold(late);
        rig.driver.record_event(event, late).unwrap();
        rig.driver.synchronize_stream(waiter).unwrap();
        assert_eq!(rig.host_bytes(slot, 64), [7; 64]);
        if let (Some(before_us), Some(now_us)) = (before_us, rig.host_clock_us()) {
            assert!(now_us - before_us < HOLD_US, "it waited for the held work");
        }
        if rig.time != Time::Seeded {
            assert!(!rig.driver.query_event(event).unwrap(), "the latest record counts");
        }
        hold.release();
        rig.driver.synchronize_event(event).unwrap();
        assert!(rig.driver.query_event(event).unwrap());
        rig.free_pinned(slot).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([early, late, waiter], [event]);
    });
}

#[test]
fn an_event_that_was_never_recorded_is_complete() {
    on_all_drivers(|rig| {
        let stream = rig.stream();
        for kind in [EventKind::Order, EventKind::Timing] {
            let event = rig.driver.create_event(kind).unwrap();
            assert!(rig.driver.query_event(event).unwrap());
            rig.driver.wait_event(stream, event).unwrap();
            rig.driver.synchronize_event(event).unwrap();
            rig.driver.synchronize_stream(stream).unwrap();
            rig.destroy([], [event]);
        }
        rig.destroy([stream], []);
    });
}

#[test]
fn a_query_is_true_only_when_the_work_is_done() {
    on_all_drivers(|rig| {
        let stream = rig.stream();
        let done = Arc::new(AtomicBool::new(false));
        let hold = rig.hold(stream);
        let set = Arc::clone(&done);
        rig.run(stream, vec![], 1.0, move |_| set.store(true, Ordering::SeqCst));
        let event = rig.recorded(EventKind::Timing, stream);
        for _ in 0..50 {
            let complete = rig.driver.query_event(event).unwrap();
            assert!(!complete || done.load(Ordering::SeqCst));
            assert!(!complete || rig.time == Time::Seeded, "the work is held back");
        }
        hold.release();
        rig.driver.synchronize_event(event).unwrap();
        assert!(rig.driver.query_event(event).unwrap());
        assert!(done.load(Ordering::SeqCst));
        rig.destroy([stream], [event]);
    });
}

#[test]
fn destroyed_streams_and_events_still_do_their_work() {
    on_all_drivers(|rig| {
        let (first, second) = (rig.stream(), rig.stream());
        let buffer = rig.buffer(rig.unit);
        let slot = rig.pinned(&[0; 64]);
        rig.fill(buffer.start(), rig.unit, 1, first).unwrap();
        rig.driver.synchronize_stream(first).unwrap();
        let last = rig.driver.create_event(EventKind::Order).unwrap();

        let hold = rig.hold(first);
        rig.fill(buffer.start(), rig.unit, 2, first).unwrap();
        let event = rig.recorded(EventKind::Order, first);
        rig.driver.wait_event(second, event).unwrap();
        rig.copy_out(buffer.start(), slot, 64, second);
        rig.driver.record_event(last, second).unwrap();
        rig.destroy([first, second], [event]);
        refused(rig.driver.synchronize_stream(first), ErrorKind::Invalid);
        refused(rig.driver.wait_event(second, last), ErrorKind::Invalid);
        if rig.time != Time::Seeded {
            assert!(!rig.driver.query_event(last).unwrap(), "the work is held back");
        }
        hold.release();
        rig.driver.synchronize_event(last).unwrap();
        assert_eq!(rig.host_bytes(slot, 64), [2; 64]);
        rig.free_pinned(slot).unwrap();
        rig.drop_buffer(buffer);
        rig.destroy([], [last]);
    });
}

#[test]
fn elapsed_time_goes_forward_and_needs_complete_timing_events() {
    on_all_drivers(|rig| {
        let stream = rig.stream();
        let buffer = rig.buffer(4 * rig.unit);
        let start = rig.recorded(EventKind::Timing, stream);
        let hold = rig.hold(stream);
        let middle = rig.recorded(EventKind::Timing, stream);
        if rig.time != Time::Seeded {
            refused(rig.driver.elapsed_us(start, middle), ErrorKind::Invalid);
        }
        rig.fill(buffer.start(), 4 * rig.unit, 1, stream).unwrap();
        let end = rig.recorded(EventKind::Timing, stream);
        let order = rig.recorded(EventKind::Order, stream);
        hold.release();
        rig.driver.synchronize_stream(stream).unwrap();
        let elapsed = |start, end| rig.driver.elapsed_us(start, end).unwrap();
        assert!(elapsed(start, middle) >= 0.0 && elapsed(middle, end) >= 0.0);
        // Real clocks tick in steps of about a microsecond.
        let near = |a: f64, b: f64| (a - b).abs() <= 3.0 + 1e-5 * b.abs();
        let sum = elapsed(start, middle) + elapsed(middle, end);
        assert!(near(elapsed(start, end), sum));
        assert!(near(elapsed(end, start), -sum));
        refused(rig.driver.elapsed_us(start, order), ErrorKind::Invalid);
        refused(rig.driver.elapsed_us(order, end), ErrorKind::Invalid);
        rig.drop_buffer(buffer);
        rig.destroy([stream], [start, middle, end, order]);
    });
}

#[test]
fn a_panic_in_a_host_function_is_kept_and_the_rest_goes_on() {
    on_all_drivers(|rig| {
        let (stream, other) = (rig.stream(), rig.stream());
        let buffer = rig.buffer(rig.unit);
        let log = Log::default();
        let before = log.clone();
        rig.run(stream, vec![], 1.0, move |_| before.add(1));
        rig.run(stream, vec![], 1.0, |_| panic!("a mistake in the test"));
        let after = log.clone();
        rig.run(stream, vec![], 1.0, move |_| after.add(2));
        let event = rig.recorded(EventKind::Timing, stream);
        rig.driver.wait_event(other, event).unwrap();
        let third = log.clone();
        rig.run(other, vec![], 1.0, move |_| third.add(3));

        let error = rig.driver.synchronize_stream(other).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Failed);
        assert!(error.text.contains("'test' panicked: a mistake in the test"), "{error}");
        assert_eq!(log.entries(), [1, 2, 3]);
        refused(rig.driver.synchronize_stream(stream), ErrorKind::Failed);
        refused(rig.driver.synchronize_event(event), ErrorKind::Failed);
        refused(rig.driver.query_event(event), ErrorKind::Failed);
        refused(rig.driver.elapsed_us(event, event), ErrorKind::Failed);
        rig.drop_buffer(buffer);
        rig.destroy([stream, other], [event]);
    });
}

#[test]
fn host_functions_get_memory_only_where_the_host_can_address_it() {
    on_all_drivers(|rig| {
        let stream = rig.stream();
        let buffer = rig.buffer(rig.unit);
        rig.fill(buffer.start(), rig.unit, 3, stream).unwrap();
        let log = Log::default();
        let ran = log.clone();
        let function = HostFunction {
            name: "test",
            accesses: vec![buffer.access(AccessMode::Read)],
            cost_us: 1.0,
            body: Box::new(move |operands| ran.add(u32::from(operands.read::<u8>(0)[0]))),
        };
        let result = rig.launch(function, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        if rig.properties.is_host_addressable {
            result.unwrap();
            assert_eq!(log.entries(), [3]);
        } else {
            refused(result, ErrorKind::Unsupported);
            assert_eq!(log.entries(), []);
        }
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}
