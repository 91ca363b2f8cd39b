//! Host functions as kernels, and what lockstep and ledger say about streams.

use npu_sys::{AccessMode, ErrorKind, EventKind};

use super::{UNIT, in_all_modes};
use crate::rig::{Log, Time, refused};

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
fn a_destroyed_stream_leaves_the_ledger_at_once_and_its_work_runs_in_order() {
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
        assert_eq!(rig.host.ledger().stream_count, 0);
        hold.release();
        rig.driver.synchronize_event(last).unwrap();
        assert_eq!(log.entries(), [1, 2]);
        rig.destroy([], [last]);
    });
}

#[test]
fn elapsed_time_is_exact_on_the_virtual_clock() {
    in_all_modes(|rig| {
        if rig.time == Time::Real {
            return;
        }
        let stream = rig.stream();
        let start = rig.recorded(EventKind::Timing, stream);
        rig.run(stream, vec![], 5.0, |_| {});
        let end = rig.recorded(EventKind::Timing, stream);
        rig.driver.synchronize_stream(stream).unwrap();
        assert_eq!(rig.driver.elapsed_us(start, end).unwrap(), 5.0);
        assert_eq!(rig.driver.elapsed_us(end, start).unwrap(), -5.0);
        rig.destroy([stream], [start, end]);
    });
}

#[test]
fn a_function_that_writes_what_it_declared_to_read_panics() {
    in_all_modes(|rig| {
        let stream = rig.stream();
        let buffer = rig.buffer(UNIT);
        rig.run(stream, vec![buffer.access(AccessMode::Read)], 1.0, |operands| {
            operands.write::<u8>(0)[0] = 1;
        });
        let error = rig.driver.synchronize_stream(stream).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Failed);
        assert!(error.text.contains("'test' panicked: operand 0"), "{error}");
        refused(rig.host.synchronize(), ErrorKind::Failed);
        rig.drop_buffer(buffer);
        rig.destroy([stream], []);
    });
}
