//! Blocks that must stay: those held for their life, and fresh ones that no op has shown yet.

use swap_core::{Access, AccessMode, BlockId, Driver, Error, Residency};

use super::lab::{BLOCK, Lab, OP, read, write};

/// Uses more blocks in turn than there is room for, so that those that may leave do.
fn press(lab: &mut Lab, others: &[(BlockId, u64)], stays: BlockId) {
    for &(block, tag) in others.iter().cycle().take(3 * others.len()) {
        lab.op(&[read(block, tag)]).expect("there is room for one more");
        assert_eq!(lab.state(stays), Residency::Resident);
    }
}

fn make_many(lab: &mut Lab) -> Vec<(BlockId, u64)> {
    (100..107).map(|tag| (lab.make(tag), tag)).collect()
}

#[test]
fn a_held_block_never_leaves() {
    let mut lab = Lab::new(3 * BLOCK);
    let held = lab.make(1);
    lab.engine.hold(held, "a test").expect("lives");
    let others = make_many(&mut lab);
    press(&mut lab, &others, held);
    // Neither the need of others nor a plan sends it away.
    lab.swap_out(held);
    lab.complete_all();
    assert_eq!(lab.state(held), Residency::Resident);
    // Nor does a touch end the hold.
    lab.op(&[read(held, 1)]).expect("reads");
    press(&mut lab, &others, held);
    lab.op(&[read(held, 1)]).expect("reads");
    let total = lab.total();
    assert!(total.rescues > 20 && total.misses > 20, "{total:?}");
    lab.free(held);
    assert_eq!(lab.engine.hold(held, "a test"), Err(Error::Freed));
    lab.finish();
}

#[test]
fn a_block_that_no_op_touched_never_leaves() {
    let mut lab = Lab::new(3 * BLOCK);
    let fresh = lab.engine.allocate(BLOCK, "workspace").expect("there is room");
    lab.places.push((fresh, BLOCK));
    lab.engine.hold_until_touched(fresh).expect("lives");
    let others = make_many(&mut lab);
    press(&mut lab, &others, fresh);
    // An op shows that it is used through ops, and from then on it is like any other.
    lab.op(&[write(fresh, 9)]).expect("writes");
    for &(block, tag) in &others {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    assert_ne!(lab.state(fresh), Residency::Resident);
    lab.op(&[read(fresh, 9)]).expect("reads");
    lab.free(fresh);
    assert_eq!(lab.engine.hold_until_touched(fresh), Err(Error::Freed));
    lab.finish();
}

#[test]
fn held_blocks_alone_can_use_up_the_cap() {
    let mut lab = Lab::new(3 * BLOCK);
    let held: Vec<BlockId> = (1..4).map(|tag| lab.make(tag)).collect();
    for &block in &held {
        lab.engine.hold(block, "a test").expect("lives");
    }
    let Err(Error::OutOfMemory(report)) = lab.engine.allocate(BLOCK, "more") else {
        panic!("there is no room");
    };
    assert_eq!((report.requested_bytes, report.missing_bytes), (BLOCK, BLOCK));
    assert_eq!((report.unused_bytes, report.held.len()), (0, 1));
    lab.free(held[0]);
    let more = lab.make(9);
    lab.op(&[read(held[1], 2), read(held[2], 3), read(more, 9)]).expect("all are there");
    lab.finish();
}

#[test]
fn where_memory_runs_out_those_are_counted_that_no_op_has_used() {
    let mut lab = Lab::new(3 * BLOCK);
    let stream = lab.engine.compute_stream();
    for _ in 0..3 {
        let made = lab.engine.allocate_unshown(BLOCK, stream, false).expect("there is room");
        lab.places.push((made.block, BLOCK));
    }
    let Err(Error::OutOfMemory(report)) = lab.engine.allocate(BLOCK, "more") else {
        panic!("there is no room");
    };
    assert_eq!((report.unused_bytes, report.held.len()), (3 * BLOCK, 0));
    let text = report.to_string();
    assert!(text.contains("stay as no op has used them yet, such as workspaces), away"), "{text}");
    lab.finish();
}

#[test]
fn what_is_allocated_aside_may_leave_before_an_op_touches_it() {
    let mut lab = Lab::new(3 * BLOCK);
    let stream = lab.engine.compute_stream();
    let unshown = lab.engine.allocate_unshown(BLOCK, stream, true).expect("there is room").block;
    let aside = lab.engine.allocate_aside(BLOCK, stream).expect("there is room").block;
    lab.places.extend([(unshown, BLOCK), (aside, BLOCK)]);
    make_many(&mut lab);
    assert_ne!(lab.state(aside), Residency::Resident);
    assert_eq!(lab.state(unshown), Residency::Resident);
    lab.finish();
}

#[test]
fn a_recorded_step_names_the_blocks_that_stay() {
    let mut lab = Lab::new(4 * BLOCK);
    let blocks: Vec<BlockId> = (1..4).map(|tag| lab.make(tag)).collect();
    lab.engine.hold(blocks[0], "a test").expect("lives");
    lab.total();
    lab.engine.set_orders(true, None).expect("between steps");
    lab.engine.hold(blocks[1], "a test").expect("lives");
    lab.engine.hold_until_touched(blocks[2]).expect("lives");
    lab.op(&[read(blocks[2], 3)]).expect("reads");
    let stream = lab.engine.compute_stream();
    let fresh = lab.engine.allocate_unshown(BLOCK, stream, false).expect("there is room").block;
    lab.places.push((fresh, BLOCK));
    let trace = lab.engine.end_step().expect("ends").pop().and_then(|report| report.trace);
    let blocks = trace.expect("it was recorded").blocks;
    let held: Vec<bool> = blocks.iter().map(|block| block.held).collect();
    assert_eq!(held, [true, true, false, true]);
    lab.finish();
}

#[test]
fn where_nobody_may_be_sent_away_memory_runs_out() {
    let mut lab = Lab::new(2 * BLOCK);
    let blocks = [lab.make(1), lab.make(2)];
    lab.engine.set_watched(false).expect("open");
    let refused = lab.engine.allocate(BLOCK, "more");
    assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}");
    for block in blocks {
        assert_eq!(lab.state(block), Residency::Resident);
    }
    lab.engine.set_watched(true).expect("open");
    lab.make(3);
    lab.finish();
}

#[test]
fn of_blocks_that_nobody_touched_the_oldest_makes_room() {
    let lab = Lab::new(3 * BLOCK);
    let new = || lab.engine.allocate(BLOCK, "untouched").expect("there is room");
    let [first, oldest, _] = [new(), new(), new()];
    lab.engine.free(first).expect("lives");
    // In the place of the one that is gone, and yet the youngest.
    let youngest = new();
    new();
    assert_ne!(lab.state(oldest), Residency::Resident);
    assert_eq!(lab.state(youngest), Residency::Resident);
    lab.errors();
}

/// A workspace of an op: used through its address alone, and never touched.
#[test]
fn what_an_op_allocates_counts_as_used_until_the_op_ends() {
    let mut lab = Lab::new(4 * BLOCK);
    let side = lab.check_stream();
    lab.ops.begin_on(OP, side.1).expect("begins");
    let unshown = lab.ops.allocate_unshown(BLOCK).expect("there is room");
    let (workspace, start) = (unshown.block, unshown.address);
    let access = Access { start, size_bytes: BLOCK, mode: AccessMode::Write };
    lab.check.note_access(side.0, &[access]).expect("its work");
    lab.ops.end().expect("ends");
    lab.engine.free(workspace).expect("lives");
    let fresh = lab.make(1);
    assert_eq!(lab.engine.address(fresh), Ok(start), "it is the very memory");
    lab.errors();
    lab.close_with(side.0);
}
