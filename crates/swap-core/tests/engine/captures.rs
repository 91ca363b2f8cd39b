//! A stream that somebody captures: blocks leave, are freed and come, and nothing is asked of it.

use swap_core::{Access, AccessMode, Error, Residency};

use super::lab::{BLOCK, Lab, read, submit_unseen};
use super::lending::lend;

#[test]
fn memory_is_found_and_freed_while_a_stream_that_used_it_is_captured() {
    let mut lab = Lab::new(4 * BLOCK);
    let [used, freed, held, lent] = [1, 2, 3, 4].map(|tag| lab.make(tag));
    lab.engine.hold(held, "a test").expect("lives");
    lend(&mut lab, lent).expect("is there");
    let compute = lab.engine.stream_handles().expect("handles")[0];
    lab.engine.capture_begins().expect("waits");
    lab.host.set_captured(compute, true);
    // Of what is held and lent nobody tells who uses it, so all streams count.
    lab.engine.free(held).expect("lives");
    lab.engine.free(freed).expect("lives");
    // Others take what there is: first the freed blocks' memory, then that of those that leave.
    for units in 1..=4 {
        lab.engine.set_outside(units * BLOCK).expect("there is room");
        let held_bytes = lab.engine.memory_stats().expect("counts").reserved_bytes.current;
        assert!(held_bytes <= 4 * BLOCK);
    }
    assert_eq!([used, lent].map(|block| lab.state(block)), [Residency::Away; 2]);
    lab.engine.set_outside(0).expect("less");
    lab.engine.trim().expect("gives back");
    lab.host.set_captured(compute, false);
    lab.engine.capture_ended().expect("ends");
    lab.op(&[read(used, 1), read(lent, 4)]).expect("reads");
    lab.finish();
}

#[test]
fn what_captured_work_uses_comes_back_without_its_stream_and_may_leave_afterwards() {
    let mut lab = Lab::new(3 * BLOCK);
    let used = [1, 2].map(|tag| lab.make(tag));
    let others = [3, 4].map(|tag| lab.make(tag));
    let freed = lab.make(5);
    let compute = lab.engine.stream_handles().expect("handles")[0];
    assert!(matches!(lab.engine.keep_for_captures(used[0]), Err(Error::Usage(_))));
    let before = lab.total();
    lab.engine.suspend().expect("all leaves");
    lab.engine.capture_begins().expect("waits");
    lab.host.set_captured(compute, true);
    for block in [freed, used[0], used[1]] {
        assert_eq!(lab.state(block), Residency::Away);
        lab.engine.keep_for_captures(block).expect("there is room");
        assert_eq!(lab.state(block), Residency::Resident, "its bytes are there");
        // The checker refuses what is not mapped at its address.
        let start = lab.engine.address(block).expect("lives");
        let access = Access { start, size_bytes: BLOCK, mode: AccessMode::Read };
        let copy_in = lab.engine.stream_handles().expect("handles")[2];
        submit_unseen(&lab.check, copy_in, vec![access], 1.0, |_| ()).expect("it is mapped");
    }
    lab.engine.keep_for_captures(used[0]).expect("it is there");
    // Three fill the cap, and none of them leaves for another.
    let full = lab.engine.keep_for_captures(others[0]).expect_err("no room").to_string();
    assert!(full.contains("'a capture' needs all that it uses at once"), "{full}");
    lab.free(freed);
    lab.engine.keep_for_captures(others[0]).expect("there is room");
    assert!(lab.engine.set_outside(BLOCK).is_err(), "all of it is kept");
    assert_eq!(lab.engine.keep_for_captures(freed), Err(Error::Freed));
    lab.host.set_captured(compute, false);
    lab.engine.capture_ended().expect("ends");
    assert_eq!(lab.total().rescues, before.rescues);

    lab.engine.set_outside(3 * BLOCK).expect("all of them leave");
    assert_eq!([used[0], used[1], others[0]].map(|block| lab.is_there(block)), [false; 3]);
    lab.engine.set_outside(0).expect("less");
    for (block, tag) in used.into_iter().chain(others).zip(1..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    lab.finish();
}

#[test]
fn room_for_captured_work_is_made_without_its_stream() {
    let (mut lab, away, others) = Lab::full();
    let compute = lab.engine.stream_handles().expect("handles")[0];
    lab.engine.capture_begins().expect("waits");
    lab.host.set_captured(compute, true);
    lab.engine.keep_for_captures(away).expect("another one leaves");
    assert_eq!(lab.state(away), Residency::Resident);
    assert_eq!(others.map(|block| lab.is_there(block)), [false, true]);
    lab.host.set_captured(compute, false);
    lab.engine.capture_ended().expect("ends");
    for (block, tag) in [away, others[0], others[1]].into_iter().zip(1..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    lab.finish();
}

#[test]
fn what_must_be_made_again_is_refused_while_a_stream_captures() {
    let mut lab = Lab::new(4 * BLOCK);
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    lab.discard(derived);
    lab.engine.capture_begins().expect("waits");
    let refused = lab.engine.keep_for_captures(derived).expect_err("no op can run");
    assert!(refused.to_string().contains("use it once before the capture"), "{refused}");
    lab.engine.capture_ended().expect("ends");
    lab.op(&[read(derived, 2)]).expect("reads");
    lab.finish();
}
