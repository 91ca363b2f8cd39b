//! Streams and events: what runs after what, and what the host gets to know.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use npu_sys::{AccessMode, ErrorKind, EventKind};

use crate::rig::{HOLD_US, Log, UNIT, in_all_modes, refused};

#[test]
fn a_stream_runs_in_order() {
    in_all_modes(|rig| {
        let streams = [rig.stream(), rig.stream(), rig.stream()];
        let logs = [Log::default(), Log::default(), Log::default()];
        for number in 0..100 {
            for (&stream, log) in streams.iter().zip(&logs) {
                let log = log.clone();
                rig.run(stream, vec![], 1.0, move |_| log.add(number));
            }
        }
        for (&stream, log) in streams.iter().zip(&logs) {
            rig.driver.synchronize_stream(stream).unwrap();
            assert_eq!(log.entries(), (0..100).collect::<Vec<_>>());
        }
        rig.destroy(streams, []);
    });
}

#[test]
fn host_functions_see_their_operands() {
    in_all_modes(|rig| {
        let (a, b, c) = (rig.buffer(UNIT), rig.buffer(UNIT), rig.buffer(UNIT));
        let stream = rig.stream();
        rig.fill(a.start(), UNIT, 2, stream).unwrap();
        rig.fill(b.start(), UNIT, 3, stream).unwrap();
        rig.fill(c.start(), UNIT, 1, stream).unwrap();
        let accesses = vec![
            a.access(AccessMode::Read),
            b.access(AccessMode::Read),
            c.access(AccessMode::ReadWrite),
        ];
        rig.run(stream, accesses, 1.0, |operands| {
            assert_eq!(operands.count(), 3);
            let (a, b) = (operands.read::<u32>(0), operands.read::<u32>(1));
            for (c, (a, b)) in operands.write::<u32>(2).iter_mut().zip(a.iter().zip(b)) {
                *c = c.wrapping_add(a.wrapping_mul(*b));
            }
        });
        rig.driver.synchronize_stream(stream).unwrap();
        let expect = 0x0101_0101_u32.wrapping_add(0x0202_0202_u32.wrapping_mul(0x0303_0303));
        let bytes = rig.device_bytes(c.start(), UNIT);
        assert!(bytes.chunks_exact(4).all(|word| word == expect.to_le_bytes()));
        [a, b, c].into_iter().for_each(|buffer| rig.drop_buffer(buffer));
        rig.destroy([stream], []);
    });
}

#[test]
fn events_order_work_of_different_streams() {
    in_all_modes(|rig| {
        let (producer, consumer) = (rig.stream(), rig.stream());
        let (produced, consumed) = (
            rig.driver.create_event(EventKind::Order).unwrap(),
            rig.driver.create_event(EventKind::Order).unwrap(),
        );
        let buffer = rig.buffer(UNIT);
        let log = Log::default();
        for round in 0..50 {
            rig.driver.wait_event(producer, consumed).unwrap();
            rig.fill(buffer.start(), UNIT, round as u8, producer).unwrap();
            rig.driver.record_event(produced, producer).unwrap();
            rig.driver.wait_event(consumer, produced).unwrap();
            let log = log.clone();
            rig.run(consumer, vec![buffer.access(AccessMode::Read)], 1.0, move |operands| {
                let bytes = operands.read::<u8>(0);
                assert!(bytes.iter().all(|&byte| byte == bytes[0]), "torn by the producer");
                log.add(u32::from(bytes[0]));
            });
            rig.driver.record_event(consumed, consumer).unwrap();
        }
        rig.driver.synchronize_event(consumed).unwrap();
        assert_eq!(log.entries(), (0..50).collect::<Vec<_>>());
        rig.drop_buffer(buffer);
        rig.destroy([producer, consumer], [produced, consumed]);
    });
}

#[test]
fn a_wait_keeps_the_record_it_saw() {
    in_all_modes(|rig| {
        let (early, late, waiter) = (rig.stream(), rig.stream(), rig.stream());
        let log = Log::default();
        let first = log.clone();
        rig.run(early, vec![], 1.0, move |_| first.add(1));
        let event = rig.recorded(EventKind::Order, early);
        rig.driver.wait_event(waiter, event).unwrap();
        let second = log.clone();
        rig.run(waiter, vec![], 1.0, move |_| second.add(2));

        // From now on the event stands for work that is held back. The wait above does not.
        let hold = rig.hold(late);
        rig.driver.record_event(event, late).unwrap();
        rig.driver.synchronize_stream(waiter).unwrap();
        assert_eq!(log.entries(), [1, 2]);
        assert!(rig.host.config().mode == npu_sys::Mode::Threads || rig.host.now_us() < HOLD_US);
        if !rig.is_seeded() {
            assert!(!rig.driver.query_event(event).unwrap(), "the latest record counts");
        }
        hold.release();
        rig.driver.synchronize_event(event).unwrap();
        assert!(rig.driver.query_event(event).unwrap());
        rig.destroy([early, late, waiter], [event]);
    });
}

#[test]
fn a_query_is_true_only_when_the_work_is_done() {
    in_all_modes(|rig| {
        let stream = rig.stream();
        let done = Arc::new(AtomicBool::new(false));
        let hold = rig.hold(stream);
        let set = Arc::clone(&done);
        rig.run(stream, vec![], 1.0, move |_| set.store(true, Ordering::SeqCst));
        let event = rig.recorded(EventKind::Timing, stream);
        for _ in 0..50 {
            let complete = rig.driver.query_event(event).unwrap();
            assert!(!complete || done.load(Ordering::SeqCst));
            assert!(!complete || rig.is_seeded(), "the work is held back");
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
    in_all_modes(|rig| {
        let (first, second) = (rig.stream(), rig.stream());
        let log = Log::default();
        let hold = rig.hold(first);
        let early = log.clone();
        rig.run(first, vec![], 1.0, move |_| early.add(1));
        let event = rig.recorded(EventKind::Order, first);
        rig.driver.wait_event(second, event).unwrap();
        let late = log.clone();
        rig.run(second, vec![], 1.0, move |_| late.add(2));
        let last = rig.recorded(EventKind::Order, second);
        rig.destroy([first, second], [event]);
        refused(rig.driver.synchronize_stream(first), ErrorKind::Invalid);
        refused(rig.driver.wait_event(second, last), ErrorKind::Invalid);
        assert_eq!(rig.host.ledger().stream_count, 0);
        hold.release();
        rig.driver.synchronize_event(last).unwrap();
        assert_eq!(log.entries(), [1, 2]);
        rig.destroy([], [last]);
    });
}

#[test]
fn elapsed_time_goes_forward_and_needs_complete_timing_events() {
    in_all_modes(|rig| {
        let stream = rig.stream();
        let start = rig.recorded(EventKind::Timing, stream);
        let hold = rig.hold(stream);
        let middle = rig.recorded(EventKind::Timing, stream);
        if !rig.is_seeded() {
            refused(rig.driver.elapsed_us(start, middle), ErrorKind::Invalid);
        }
        rig.run(stream, vec![], 5.0, |_| {});
        let end = rig.recorded(EventKind::Timing, stream);
        let order = rig.recorded(EventKind::Order, stream);
        hold.release();
        rig.driver.synchronize_stream(stream).unwrap();
        let elapsed = |start, end| rig.driver.elapsed_us(start, end).unwrap();
        assert!(elapsed(start, middle) >= 0.0 && elapsed(middle, end) >= 0.0);
        let sum = elapsed(start, middle) + elapsed(middle, end);
        assert!((elapsed(start, end) - sum).abs() < 1e-3);
        assert_eq!(elapsed(end, start), -elapsed(start, end));
        if rig.host.config().mode != npu_sys::Mode::Threads {
            assert_eq!(elapsed(middle, end), 5.0);
        }
        refused(rig.driver.elapsed_us(start, order), ErrorKind::Invalid);
        refused(rig.driver.elapsed_us(order, end), ErrorKind::Invalid);
        rig.destroy([stream], [start, middle, end, order]);
    });
}

#[test]
fn a_panic_in_a_host_function_is_kept_and_the_rest_goes_on() {
    in_all_modes(|rig| {
        let (stream, other) = (rig.stream(), rig.stream());
        let buffer = rig.buffer(UNIT);
        let log = Log::default();
        let before = log.clone();
        rig.run(stream, vec![], 1.0, move |_| before.add(1));
        rig.run(stream, vec![buffer.access(AccessMode::Read)], 1.0, |operands| {
            operands.write::<u8>(0)[0] = 1;
        });
        let after = log.clone();
        rig.run(stream, vec![], 1.0, move |_| after.add(2));
        let event = rig.recorded(EventKind::Timing, stream);
        rig.driver.wait_event(other, event).unwrap();
        let third = log.clone();
        rig.run(other, vec![], 1.0, move |_| third.add(3));

        let error = rig.driver.synchronize_stream(other).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Failed);
        assert!(error.text.contains("'test' panicked: operand 0"), "{error}");
        assert_eq!(log.entries(), [1, 2, 3]);
        refused(rig.driver.synchronize_stream(stream), ErrorKind::Failed);
        refused(rig.driver.synchronize_event(event), ErrorKind::Failed);
        refused(rig.driver.query_event(event), ErrorKind::Failed);
        refused(rig.driver.elapsed_us(event, event), ErrorKind::Failed);
        refused(rig.host.synchronize(), ErrorKind::Failed);
        rig.drop_buffer(buffer);
        rig.destroy([stream, other], [event]);
    });
}
