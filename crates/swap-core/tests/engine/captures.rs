//! A stream that somebody captures: blocks leave, are freed and come, and nothing is asked of it.

use swap_core::Residency;

use super::lab::{BLOCK, Lab, read};
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
