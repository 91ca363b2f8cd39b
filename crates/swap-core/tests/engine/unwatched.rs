//! Ops that nobody tells of: while the engine is not watched, and once it is again.

use swap_core::Residency;

use super::lab::{BLOCK, Lab, read};

#[test]
fn what_nobody_told_of_is_waited_for_and_its_bytes_are_kept() {
    let mut lab = Lab::new(3 * BLOCK);
    let side = lab.check_stream();
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let blocks = [lab.make(1), lab.make(2), lab.make(3)];
    // One that left and came back has a copy on the host, and another a way to be made again.
    lab.swap_out(blocks[0]);
    lab.op(&[read(blocks[0], 1)]).expect("reads");
    lab.engine.free(blocks[2]).expect("lives");
    let derived = lab.derive(&[read(blocks[1], 2)], 4);
    lab.engine.synchronize().expect("works");
    lab.engine.set_watched(false).expect("open");
    // Two streams, one after the other for each block. One block is freed meanwhile.
    lab.write_unseen(compute, blocks[0], 11);
    lab.write_unseen(side.0, blocks[1], 12);
    lab.write_unseen(compute, derived, 14);
    lab.engine.free(blocks[1]).expect("lives");
    // Its memory goes to another stream, which waits for the work.
    let reused = lab.try_make(BLOCK, 5).expect("there is room");
    lab.write_unseen(compute, reused, 15);
    lab.engine.set_watched(true).expect("open");
    // Now all of them have to leave, with what was written last.
    let others: Vec<_> =
        (100..107).map(|tag| lab.try_make(BLOCK, tag).expect("there is room")).collect();
    for (block, tag) in [(blocks[0], 11), (derived, 14), (reused, 15)] {
        assert_ne!(lab.state(block), Residency::Resident);
        lab.op(&[read(block, tag)]).expect("reads");
    }
    for (block, tag) in others.into_iter().zip(100..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    lab.errors();
    lab.close_with(side.0);
}
