//! Lent blocks: their addresses are out, and may be used until the step ends.

use swap_core::{AccessMode, ActionKind, BlockId, Error, Held, Residency};

use super::lab::{BLOCK, Lab, OP, read};

/// As somebody does who takes the address of a block.
pub(super) fn lend(lab: &mut Lab, block: BlockId) -> Result<(), Error> {
    lab.ops.begin_aside(OP, lab.engine.compute_stream())?;
    let lent = lab.ops.touch(block, AccessMode::ReadWrite).map(drop);
    let lent = lent.and_then(|()| lab.engine.lend(block, "a test"));
    lab.ops.end().and(lent)
}

fn press(lab: &mut Lab, tags: std::ops::Range<u64>) -> Vec<BlockId> {
    tags.map(|tag| lab.make(tag)).collect()
}

#[test]
fn a_lent_block_stays_until_the_step_ends_and_keeps_what_was_written_unseen() {
    let mut lab = Lab::new(3 * BLOCK);
    let side = lab.check_stream();
    let lent = lab.make(1);
    // It has a copy on the host, which the unseen write makes old.
    lab.swap_out(lent);
    lab.op(&[read(lent, 1)]).expect("reads");
    lend(&mut lab, lent).expect("there is room");
    lab.order(side.0);
    lab.write_unseen(side.0, lent, 11);
    let others = press(&mut lab, 100..107);
    assert_eq!(lab.state(lent), Residency::Resident);
    let held = Held { by: "a test", is_lent: true, blocks: 1, size_bytes: BLOCK };
    assert_eq!(lab.engine.held(), Ok(vec![held]));
    lab.end_step();
    assert_eq!(lab.engine.held(), Ok(vec![]));
    for (&block, tag) in others.iter().zip(100..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    assert_ne!(lab.state(lent), Residency::Resident);
    lab.op(&[read(lent, 11)]).expect("reads");
    assert_eq!(lab.total().recalls, 0);
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn where_all_is_lent_the_oldest_leaves_with_what_was_written_unseen() {
    let mut lab = Lab::new(3 * BLOCK);
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let blocks = press(&mut lab, 1..7);
    for (&block, tag) in blocks.iter().zip(11..) {
        lend(&mut lab, block).expect("the oldest makes room");
        lab.write_unseen(compute, block, tag);
    }
    // The latest are there, but for the one whose address was taken again.
    let there =
        |lab: &Lab| -> Vec<bool> { blocks.iter().map(|&block| lab.is_there(block)).collect() };
    assert_eq!(there(&lab), [false, false, false, true, true, true]);
    lend(&mut lab, blocks[3]).expect("is there");
    lend(&mut lab, blocks[0]).expect("the oldest makes room");
    assert_eq!(there(&lab), [true, false, false, true, false, true]);
    for (&block, tag) in blocks.iter().zip(11..) {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    assert!(lab.total().recalls >= 4);
    lab.finish();
}

#[test]
fn what_a_lent_block_was_made_from_may_change_unseen_so_it_is_not_made_again() {
    let mut lab = Lab::new(8 * BLOCK);
    let compute = lab.engine.stream_handles().expect("handles")[0];
    let input = lab.make(1);
    let discarded = lab.derive(&[read(input, 1)], 2);
    lab.discard(discarded);
    // Whoever takes the address may write, so what depends on the bytes comes back before.
    lend(&mut lab, input).expect("there is room");
    assert!(lab.is_there(discarded));
    let derived = lab.derive(&[read(input, 1)], 3);
    lab.engine.hold(input, "a test").expect("lives");
    lab.write_unseen(compute, input, 11);
    lab.act(&[(ActionKind::Discard, derived)]);
    assert_eq!(lab.engine.discard(derived), Ok(false));
    assert!(lab.is_there(derived));
    lab.op(&[read(derived, 3), read(discarded, 2), read(input, 11)]).expect("reads");
    lab.finish();
}

#[test]
fn memory_of_a_lent_block_that_is_freed_waits_for_unseen_work() {
    let mut lab = Lab::new(2 * BLOCK);
    let side = lab.check_stream();
    let lent = lab.make(1);
    lend(&mut lab, lent).expect("there is room");
    lab.order(side.0);
    lab.write_unseen(side.0, lent, 11);
    lab.free(lent);
    let (first, second) = (lab.make(2), lab.make(3));
    lab.op(&[read(first, 2), read(second, 3)]).expect("reads");
    lab.errors();
    lab.close_with(side.0);
}
