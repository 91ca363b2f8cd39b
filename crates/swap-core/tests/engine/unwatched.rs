//! Ops that nobody tells of: while the engine is not watched, and once it is again.

use swap_core::{AccessMode, ActionKind, Recipe, Residency};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, work, write};

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

#[test]
fn no_plan_sends_away_what_ops_may_write_that_nobody_tells_of() {
    let mut lab = Lab::new(ENOUGH);
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let block = lab.make(1);
    // It has a copy on the host, which would pass for its bytes.
    lab.swap_out(block);
    lab.op(&[read(block, 1)]).expect("reads");
    lab.engine.synchronize().expect("works");
    lab.engine.set_watched(false).expect("open");
    lab.write_unseen(compute, block, 2);
    lab.act(&[(ActionKind::SwapOut, block)]);
    assert!(lab.is_there(block));
    lab.engine.set_watched(true).expect("open");
    lab.swap_out(block);
    lab.op(&[read(block, 2)]).expect("reads");
    lab.finish();
}

#[test]
fn small_blocks_that_stay_for_recipes_alone_go_when_ops_are_told_of_again() {
    let mut lab = Lab::new(ENOUGH);
    // An older block, so that it is looked at first, takes the recipe's word back.
    let made = lab.engine.allocate(BLOCK, "made").expect("there is room");
    lab.places.push((made, BLOCK));
    let small = lab.make_sized(600, 1);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[read(small, 1), write(made, 2)], &lab.errors).expect("works");
    lab.ops.recipe(Recipe::new(|_, _| unreachable!("nobody drops it"))).expect("an op is open");
    lab.ops.end().expect("ends");
    lab.free(small);
    assert!(lab.engine.kept_bytes().expect("open") > 0);
    lab.engine.set_watched(false).expect("open");
    lab.engine.set_watched(true).expect("open");
    assert_eq!(lab.engine.kept_bytes(), Ok(0));
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(made, AccessMode::Read).expect("is there");
    lab.ops.end().expect("ends");
    lab.finish();
}
