//! Each transition of the residency machine, by name.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use swap_core::{
    AccessMode, ActionKind, Engine, Error, ErrorKind, FaultDriver, FaultPlan, HostConfig, Orders,
    Plan, Recipe, Residency,
};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, recipe, work, write};
use super::world::config;

#[test]
fn a_touch_while_leaving_takes_the_chunk_back() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let address = lab.engine.address(block);
    lab.swap_out(block);
    assert_eq!(lab.state(block), Residency::Leaving);
    lab.op(&[read(block, 1)]).expect("reads");
    assert_eq!(lab.engine.address(block), address);
    let total = lab.total();
    assert_eq!((total.swapped_out_bytes, total.swapped_in_bytes, total.misses), (BLOCK, 0, 1));
    assert_eq!(lab.host.ledger().copied_in_bytes, 0);
    lab.finish();
}

#[test]
fn a_chunk_that_others_used_is_not_taken_back() {
    let mut lab = Lab::new(2 * BLOCK);
    let block = lab.make(1);
    let other = lab.make(2);
    lab.swap_out(block);
    // The chunk goes to a third block and comes back to the cache.
    let third = lab.make(3);
    lab.settle();
    lab.swap_out(third);
    lab.op(&[read(block, 1), read(other, 2)]).expect("reads");
    lab.op(&[read(third, 3)]).expect("reads");
    lab.finish();
}

#[test]
fn a_block_that_leaves_while_it_arrives_and_is_taken_back_has_arrived() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.swap_out(block);
    lab.settle();
    lab.tick();
    // Another block takes its chunk, so that it must be copied in.
    let thief = lab.make(2);
    lab.act(&[(ActionKind::SwapIn, block)]);
    assert_eq!(lab.state(block), Residency::Arriving);
    lab.swap_out(block);
    lab.op(&[read(block, 1), read(thief, 2)]).expect("reads");
    let total = lab.total();
    assert_eq!((total.swapped_in_bytes, total.clean_swap_outs), (BLOCK, 1));
    lab.finish();
}

#[test]
fn a_block_that_was_only_read_leaves_without_a_copy() {
    let mut lab = Lab::new(2 * BLOCK);
    let block = lab.make(1);
    lab.swap_out(block);
    lab.settle();
    let _thief = lab.make(2);
    lab.op(&[read(block, 1)]).expect("reads");
    lab.settle();
    let copied = lab.host.ledger().copied_out_bytes;
    lab.swap_out(block);
    lab.settle();
    assert_eq!(lab.state(block), Residency::Away);
    assert_eq!(lab.host.ledger().copied_out_bytes, copied);
    lab.op(&[read(block, 1)]).expect("reads");
    assert_eq!(lab.total().clean_swap_outs, 1);
    lab.finish();
}

#[test]
fn a_write_makes_the_next_swap_out_copy() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.swap_out(block);
    lab.settle();
    lab.op(&[write(block, 7)]).expect("writes");
    lab.settle();
    let copied = lab.host.ledger().copied_out_bytes;
    lab.swap_out(block);
    lab.settle();
    assert_eq!(lab.host.ledger().copied_out_bytes, copied + BLOCK);
    let thief = lab.make(2);
    lab.op(&[read(block, 7), read(thief, 2)]).expect("reads");
    assert_eq!(lab.total().clean_swap_outs, 0);
    lab.finish();
}

/// Brings a fresh block into a state, frees it there, and uses the memory again at once.
fn free_in(expect: Option<Residency>, bring: impl Fn(&mut Lab, swap_core::BlockId)) {
    let mut lab = Lab::new(4 * BLOCK);
    let input = lab.make(1);
    let block = lab.derive(&[read(input, 1)], 2);
    bring(&mut lab, block);
    if let Some(expect) = expect {
        assert_eq!(lab.state(block), expect);
    }
    let before = lab.engine.memory_stats().expect("stats");
    lab.free(block);
    assert_eq!(lab.engine.free(block), Err(Error::Freed));
    assert_eq!(lab.engine.residency(block), Err(Error::Freed));
    assert_eq!(lab.op(&[read(block, 2)]), Err(Error::Freed));
    lab.ops = lab.engine.op_stack();
    let after = lab.engine.memory_stats().expect("stats");
    assert_eq!(after.requested_bytes.current, before.requested_bytes.current - BLOCK);
    let fresh: Vec<_> = (10..13).map(|tag| (tag, lab.make(tag))).collect();
    for (tag, block) in fresh {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    lab.op(&[read(input, 1)]).expect("reads");
    lab.finish();
}

#[test]
fn free_is_legal_in_every_state() {
    free_in(Some(Residency::Resident), |lab, _| lab.settle());
    free_in(Some(Residency::Leaving), |lab, block| lab.swap_out(block));
    free_in(Some(Residency::Away), |lab, block| {
        lab.swap_out(block);
        lab.settle();
    });
    free_in(Some(Residency::Arriving), |lab, block| {
        lab.swap_out(block);
        let _thief = lab.make(3);
        lab.settle();
        lab.act(&[(ActionKind::SwapIn, block)]);
        let thief = lab.places.pop().expect("made above").0;
        lab.engine.free(thief).expect("lives");
    });
    free_in(Some(Residency::Discarded), |lab, block| lab.discard(block));
}

#[test]
fn a_block_freed_inside_its_op_is_reused_only_after_it() {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let block = lab.make(1);
    lab.settle();
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[read(block, 1)], &lab.errors).expect("works");
    lab.engine.free(block).expect("lives");
    lab.places.clear();
    // Another thread's op gets the chunk, on another stream, before the op has ended.
    let mut other = lab.engine.op_stack();
    other.begin_on(OP, side.1).expect("begins");
    let fresh = other.allocate(BLOCK, "fresh").expect("there is room");
    work(&mut other, &[write(fresh, 2)], &lab.errors).expect("is ordered");
    other.end().expect("ends");
    lab.ops.end().expect("ends");
    drop(other);
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn a_free_of_a_put_off_block_forgets_its_order() {
    let mut lab = Lab::new(2 * BLOCK);
    let block = lab.make(1);
    lab.swap_out(block);
    let (a, b) = (lab.make(2), lab.make(3));
    lab.settle();
    assert_eq!(lab.state(block), Residency::Away);
    lab.act(&[(ActionKind::SwapIn, block)]);
    assert_eq!(lab.state(block), Residency::Away, "there was no room: it is put off");
    lab.free(block);
    lab.free(a);
    lab.tick();
    lab.tick();
    lab.op(&[read(b, 3)]).expect("reads");
    assert_eq!(lab.total().swapped_in_bytes, 0);
    lab.finish();
}

#[test]
fn a_put_off_swap_in_happens_as_soon_as_there_is_room() {
    let mut lab = Lab::new(2 * BLOCK);
    let block = lab.make(1);
    lab.swap_out(block);
    let (a, b) = (lab.make(2), lab.make(3));
    lab.settle();
    lab.act(&[(ActionKind::SwapIn, block)]);
    assert_eq!(lab.state(block), Residency::Away);
    lab.free(a);
    assert_eq!(lab.state(block), Residency::Away);
    lab.tick();
    assert_eq!(lab.state(block), Residency::Arriving);
    lab.op(&[read(block, 1), read(b, 3)]).expect("reads");
    let total = lab.total();
    assert_eq!((total.misses, total.swapped_in_bytes), (0, BLOCK));
    lab.finish();
}

#[test]
fn a_chain_of_five_discarded_blocks_comes_back() {
    let mut lab = Lab::new(ENOUGH);
    let root = lab.make(1);
    let mut chain = vec![root];
    for tag in 2..7 {
        let last = chain[chain.len() - 1];
        chain.push(lab.derive(&[read(last, tag - 1)], tag));
    }
    for &block in &chain[1..] {
        lab.discard(block);
    }
    lab.op(&[read(chain[5], 6)]).expect("replays all");
    for (&block, tag) in chain.iter().zip(1..) {
        assert_ne!(lab.state(block), Residency::Discarded);
        lab.op(&[read(block, tag)]).expect("reads");
    }
    assert_eq!(lab.total().recomputed_ops, 5);
    lab.finish();
}

#[test]
fn a_write_to_an_input_first_brings_back_what_needs_it() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    let first = lab.derive(&[read(input, 1)], 2);
    let second = lab.derive(&[read(input, 1)], 3);
    lab.act(&[(ActionKind::Discard, first), (ActionKind::Discard, second)]);
    lab.op(&[write(input, 9)]).expect("replays, then writes");
    assert_ne!(lab.state(first), Residency::Discarded);
    assert_ne!(lab.state(second), Residency::Discarded);
    lab.op(&[read(input, 9), read(first, 2), read(second, 3)]).expect("reads");
    assert_eq!(lab.total().recomputed_ops, 2);
    lab.finish();
}

#[test]
fn an_owner_on_another_stream_need_not_know_of_replays() {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    // The owner orders the side stream after everything so far, and then uses the input there.
    lab.order(side.0);
    lab.discard(derived);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin_on(OP, side.1).expect("begins");
    work(&mut lab.ops, &[write(input, 5)], &errors).expect("comes behind the replay");
    lab.ops.end().expect("ends");
    lab.ops.begin_on(OP, side.1).expect("begins");
    work(&mut lab.ops, &[read(derived, 2), read(input, 5)], &errors).expect("comes behind it too");
    lab.ops.end().expect("ends");
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn a_free_of_an_input_waits_for_what_needs_it() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    lab.discard(derived);
    lab.engine.free(input).expect("lives");
    assert_eq!(lab.engine.free(input), Err(Error::Freed));
    assert_eq!(lab.op(&[read(input, 1)]), Err(Error::Freed));
    lab.ops = lab.engine.op_stack();
    let requested = |lab: &Lab| lab.engine.memory_stats().expect("stats").requested_bytes.current;
    assert_eq!(requested(&lab), 2 * BLOCK);
    lab.op(&[read(derived, 2)]).expect("replays from the freed block");
    assert_eq!(requested(&lab), BLOCK);
    lab.errors();
    // Also when the dependent is freed without coming back.
    let input = lab.make(3);
    let lost = lab.derive(&[read(input, 3)], 4);
    lab.places.remove(0);
    lab.discard(lost);
    lab.engine.free(input).expect("lives");
    lab.engine.free(lost).expect("lives");
    assert_eq!(requested(&lab), BLOCK);
    lab.finish();
}

#[test]
fn nothing_is_discarded_once_its_recipe_is_out_of_date() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    lab.op(&[write(input, 5)]).expect("writes");
    lab.act(&[(ActionKind::Discard, derived)]);
    assert_eq!(lab.state(derived), Residency::Resident);
    // Nor when it was itself overwritten, nor when an input is gone.
    let input = lab.make(6);
    let derived = lab.derive(&[read(input, 6)], 7);
    lab.op(&[write(derived, 8)]).expect("writes");
    lab.act(&[(ActionKind::Discard, derived)]);
    assert_eq!(lab.state(derived), Residency::Resident);
    let derived = lab.derive(&[read(input, 6)], 9);
    lab.free(input);
    lab.act(&[(ActionKind::Discard, derived)]);
    assert_eq!(lab.state(derived), Residency::Resident);
    lab.finish();
}

#[test]
fn a_replay_spares_the_newer_bytes_of_other_outputs() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    let first = lab.ops.allocate(BLOCK, "first").expect("room");
    let second = lab.ops.allocate(BLOCK, "second").expect("room");
    lab.places.extend([(first, BLOCK), (second, BLOCK)]);
    let operands = [read(input, 1), write(first, 2), write(second, 3)];
    work(&mut lab.ops, &operands, &lab.errors).expect("works");
    lab.ops.recipe(recipe(&operands, &lab.errors)).expect("an op is open");
    lab.ops.end().expect("ends");
    lab.discard(first);
    lab.op(&[write(second, 8)]).expect("writes");
    lab.op(&[read(first, 2), read(second, 8)]).expect("reads");
    lab.finish();
}

#[test]
fn an_open_op_comes_behind_a_replay_that_writes_what_it_holds() {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let input = lab.make(1);
    lab.order(side.0);
    let allocate = |lab: &mut Lab| lab.ops.allocate(BLOCK, "").expect("room");
    lab.ops.begin_on(OP, side.1).expect("begins");
    let (first, second) = (allocate(&mut lab), allocate(&mut lab));
    lab.places.extend([(first, BLOCK), (second, BLOCK)]);
    let operands = [read(input, 1), write(first, 2), write(second, 3)];
    work(&mut lab.ops, &operands, &lab.errors).expect("works");
    let (errors, on) = (Arc::clone(&lab.errors), side.1);
    let again = Recipe::new(move |ops| {
        ops.begin_on(OP, on)?;
        work(ops, &operands, &errors)?;
        ops.end()
    });
    lab.ops.recipe(again).expect("an op is open");
    lab.ops.end().expect("ends");
    lab.order_compute(side.0);
    lab.discard(first);
    // The outer op holds the second output, launches before and after, and the inner one needs
    // the first.
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[read(second, 3)], &lab.errors).expect("works");
    lab.op(&[read(first, 2)]).expect("replays");
    lab.ops.launch(1.0, |_| ()).expect("is behind the replay");
    lab.ops.end().expect("ends");
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn an_op_that_writes_its_input_has_no_recipe() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(block, AccessMode::Read).expect("touches");
    lab.ops.touch(block, AccessMode::Write).expect("touches");
    lab.ops.recipe(recipe(&[], &lab.errors)).expect("an op is open");
    lab.ops.end().expect("ends");
    lab.act(&[(ActionKind::Discard, block)]);
    assert_eq!(lab.state(block), Residency::Resident);
    lab.finish();
}

#[test]
fn a_full_arena_discards_and_then_reports() {
    // Two blocks fit the device, none the host.
    let mut lab = Lab::with(2 * BLOCK, 0, HostConfig::by_time(4 * BLOCK));
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    lab.act(&[(ActionKind::SwapOut, derived)]);
    assert_eq!(lab.state(derived), Residency::Resident, "there is no slot");
    let fresh = lab.make(3);
    assert_eq!(lab.state(derived), Residency::Discarded, "there is no slot, but a recipe");
    lab.op(&[read(fresh, 3), read(input, 1)]).expect("reads");
    let Err(Error::OutOfMemory(report)) = lab.engine.allocate(BLOCK, "one too many") else {
        panic!("nothing can make room");
    };
    assert!(report.host_full);
    assert_eq!((report.requested_bytes, report.missing_bytes), (BLOCK, BLOCK));
    assert_eq!((report.limit_bytes, report.resident_bytes), (2 * BLOCK, 2 * BLOCK));
    assert_eq!((report.away_bytes, report.pinned_bytes), (BLOCK, 0));
    assert_eq!(report.largest.len(), 2);
    assert!(report.to_string().contains("host arena is full"), "{report}");
    // Nothing is broken by it.
    lab.free(fresh);
    lab.op(&[read(derived, 2)]).expect("replays");
    lab.finish();
}

#[test]
fn a_host_without_memory_is_a_full_arena() {
    let mut device = HostConfig::by_time(4 * BLOCK);
    device.host_limit_bytes = Some(BLOCK);
    let mut lab = Lab::with(2 * BLOCK, ENOUGH, device);
    let first = lab.make(1);
    let second = lab.make(2);
    let third = lab.make(3);
    assert_eq!(lab.host.ledger().registered_bytes, BLOCK, "a smaller region than asked for");
    let Err(Error::OutOfMemory(report)) = lab.engine.allocate(BLOCK, "one too many") else {
        panic!("there is no memory on either side");
    };
    assert!(report.host_full);
    lab.free(first);
    lab.op(&[read(second, 2), read(third, 3)]).expect("reads");
    lab.finish();
}

#[test]
fn replays_that_depend_on_one_input_do_not_chase_each_other() {
    // The host holds nothing, so room comes from discarding: the two derived blocks can never be
    // resident both beside the input, and a write to it needs both. It must end.
    let mut lab = Lab::with(2 * BLOCK, 0, HostConfig::by_time(4 * BLOCK));
    let input = lab.make(1);
    let first = lab.derive(&[read(input, 1)], 2);
    let second = lab.derive(&[read(input, 1)], 3);
    assert_eq!(lab.state(first), Residency::Discarded);
    let result = lab.op(&[write(input, 9)]);
    assert!(matches!(result, Err(Error::OutOfMemory(_))), "{result:?}");
    lab.ops = lab.engine.op_stack();
    // The input keeps its bytes.
    lab.op(&[read(input, 1)]).expect("reads");
    lab.free(second);
    lab.op(&[read(first, 2)]).expect("replays");
    lab.finish();
}

#[test]
fn room_for_a_written_input_is_not_made_by_discarding_what_needs_it() {
    // One slot on the host, taken by the input; the derived block can only be discarded.
    let mut lab = Lab::with(2 * BLOCK, BLOCK, HostConfig::by_time(4 * BLOCK));
    let input = lab.make(1);
    let derived = lab.derive(&[read(input, 1)], 2);
    lab.swap_out(input);
    let other = lab.make(3);
    lab.settle();
    // The input must come back, and only one of the other two can go.
    let _ = lab.op(&[write(input, 9)]);
    lab.ops = lab.engine.op_stack();
    lab.free(other);
    lab.op(&[write(input, 10)]).expect("there is room now");
    lab.op(&[read(input, 10)]).expect("reads");
    lab.op(&[read(derived, 2)]).expect("it was not lost");
    lab.finish();
}

#[test]
fn a_planned_replay_without_room_leaves_the_block_to_its_touch() {
    let mut lab = Lab::new(3 * BLOCK);
    let inputs = [lab.make(1), lab.make(2)];
    let derived = lab.derive(&[read(inputs[0], 1), read(inputs[1], 2)], 3);
    lab.discard(derived);
    let held = lab.make(4);
    // An outer op holds a block, so the replay of three does not fit beside it.
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(held, AccessMode::Read).expect("touches");
    let mut other = lab.engine.op_stack();
    lab.end_step();
    std::mem::swap(&mut lab.ops, &mut other);
    lab.act(&[(ActionKind::Replay, derived)]);
    assert_eq!(lab.state(derived), Residency::Discarded);
    std::mem::swap(&mut lab.ops, &mut other);
    lab.ops.end().expect("ends");
    drop(other);
    lab.op(&[read(derived, 3)]).expect("replays");
    lab.op(&[read(held, 4)]).expect("reads");
    lab.finish();
}

#[test]
fn open_ops_pin_and_a_dropped_stack_lets_go() {
    let mut lab = Lab::new(2 * BLOCK);
    let (first, second) = (lab.make(1), lab.make(2));
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[read(first, 1)], &lab.errors).expect("works");
    lab.ops.begin(OP).expect("nests");
    lab.ops.touch(second, AccessMode::Write).expect("touches");
    let Err(Error::OutOfMemory(report)) = lab.engine.allocate(BLOCK, "too much") else {
        panic!("open ops hold everything");
    };
    assert_eq!((report.pinned_bytes, report.host_full), (2 * BLOCK, false));
    assert_eq!(lab.ops.depth(), 2);
    lab.ops = lab.engine.op_stack();
    let third = lab.make(3);
    lab.op(&[read(first, 1), read(third, 3)]).expect("reads");
    lab.op(&[read(second, 2)]).expect("reads");
    lab.finish();
}

#[test]
fn calls_out_of_order_are_errors_and_harm_nothing() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    assert!(matches!(lab.ops.end(), Err(Error::Usage(_))));
    assert!(matches!(lab.ops.touch(block, AccessMode::Read), Err(Error::Usage(_))));
    assert!(matches!(lab.ops.allocate(BLOCK, ""), Err(Error::Usage(_))));
    assert!(matches!(lab.ops.launch(0.0, |_| ()), Err(Error::Usage(_))));
    lab.ops.begin(OP).expect("begins");
    // A block that is touched twice is one operand.
    lab.ops.touch(block, AccessMode::Read).expect("touches");
    lab.ops.touch(block, AccessMode::Write).expect("touches");
    lab.ops.launch(0.0, |given| assert_eq!(given.count(), 1)).expect("launches");
    let orders = Some(Arc::new(Orders::new(&Plan::default())));
    assert!(matches!(lab.engine.set_orders(true, orders), Err(Error::Usage(_))));
    lab.ops.end().expect("ends");
    assert!(lab.engine.allocate(u64::MAX, "too large").is_err());
    lab.op(&[read(block, 1)]).expect("reads");
    lab.finish();
}

#[test]
fn a_step_may_end_inside_an_op() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.engine.drain_reports().expect("reports");
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    for _ in 0..5 {
        lab.tick();
    }
    lab.ops.begin(OP).expect("begins");
    let operands = [write(block, 2)];
    work(&mut lab.ops, &operands, &lab.errors).expect("works");
    lab.ops.recipe(recipe(&operands, &lab.errors)).expect("an op is open");
    let reports = lab.engine.end_step().expect("the step ends");
    assert!(reports.iter().any(|report| report.trace.is_some()));
    lab.ops.end().expect("ends in the next step");
    lab.op(&[read(block, 2)]).expect("reads");
    let reports = lab.engine.end_step().expect("the step ends");
    let trace = reports.into_iter().find_map(|report| report.trace).expect("it was recorded");
    assert_eq!(trace.ops.len(), 1);
    lab.finish();
}

#[test]
fn a_failed_recipe_is_an_error_and_the_block_stays_discarded() {
    let mut lab = Lab::new(ENOUGH);
    let fails = Arc::new(AtomicBool::new(true));
    let block = lab.make(1);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    let flag = Arc::clone(&fails);
    lab.ops
        .recipe(Recipe::new(move |ops| {
            ops.begin(OP)?;
            work(ops, &[write(block, 2)], &errors)?;
            if flag.load(Ordering::Relaxed) {
                let text = "not now".to_owned();
                return Err(Error::Replay { op: "op".to_owned(), text });
            }
            ops.end()
        }))
        .expect("an op is open");
    lab.ops.end().expect("ends");
    lab.discard(block);
    lab.ops.begin(OP).expect("begins");
    let error = lab.ops.touch(block, AccessMode::Read).expect_err("the recipe fails");
    assert_eq!(error.to_string(), "replaying 'op' failed: not now");
    assert_eq!(lab.ops.depth(), 1, "the frames of the recipe are gone");
    assert_eq!(lab.state(block), Residency::Discarded);
    lab.ops.end().expect("ends");
    fails.store(false, Ordering::Relaxed);
    lab.op(&[read(block, 2)]).expect("replays");
    lab.finish();
}

#[test]
fn a_panic_in_a_recipe_harms_nobody_else() {
    let mut lab = Lab::new(ENOUGH);
    let count = Arc::new(AtomicU32::new(0));
    let block = lab.make(1);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    let counter = Arc::clone(&count);
    lab.ops
        .recipe(Recipe::new(move |ops| {
            ops.begin(OP)?;
            work(ops, &[write(block, 2)], &errors)?;
            assert!(counter.fetch_add(1, Ordering::Relaxed) > 0, "the first replay panics");
            ops.end()
        }))
        .expect("an op is open");
    lab.ops.end().expect("ends");
    lab.discard(block);
    let mut broken = lab.engine.op_stack();
    broken.begin(OP).expect("begins");
    let touch = catch_unwind(AssertUnwindSafe(|| broken.touch(block, AccessMode::Read)));
    assert!(touch.is_err(), "the panic goes on");
    assert_eq!(lab.state(block), Residency::Discarded);
    drop(broken);
    lab.op(&[read(block, 2)]).expect("replays");
    assert_eq!(count.load(Ordering::Relaxed), 2);
    lab.finish();
}

#[test]
fn what_a_replay_allocates_has_no_place_in_the_step() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    lab.ops
        .recipe(Recipe::new(move |ops| {
            ops.begin(OP)?;
            let workspace = ops.allocate(BLOCK, "workspace")?;
            work(ops, &[write(workspace, 9), write(block, 2)], &errors)?;
            ops.free(workspace)?;
            ops.end()
        }))
        .expect("an op is open");
    lab.ops.end().expect("ends");
    lab.total();
    let mut signatures = Vec::new();
    for discards in [false, true] {
        if discards {
            lab.discard(block);
        }
        lab.engine.set_orders(true, None).expect("between steps");
        lab.op(&[read(block, 2)]).expect("reads");
        let report = lab.engine.end_step().expect("ends").pop().expect("a recorded step");
        let trace = report.trace.expect("it was recorded");
        assert_eq!((trace.blocks.len(), trace.events.len()), (1, 3));
        signatures.push(report.signature);
        lab.engine.set_orders(false, None).expect("between steps");
    }
    assert_eq!(signatures[0], signatures[1]);
    lab.finish();
}

#[test]
fn nothing_is_taken_from_a_device_that_cannot_be_waited_for() {
    let mut lab = Lab::with(ENOUGH, ENOUGH, HostConfig::threads(2 * ENOUGH));
    let block = lab.make(1);
    let fault = Arc::new(FaultDriver::new(lab.check.clone()));
    let engine = Engine::new(fault.clone(), config(ENOUGH, ENOUGH)).expect("opens");
    let mut ops = engine.op_stack();
    let (release, released) = std::sync::mpsc::channel::<()>();
    ops.begin(OP).expect("begins");
    let held = ops.allocate(BLOCK, "held").expect("room");
    ops.touch(held, AccessMode::Write).expect("touches");
    ops.launch(1.0, move |given| {
        let words = given.write::<u64>(0);
        released.recv().expect("it is released");
        words.fill(7);
    })
    .expect("launches");
    ops.end().expect("ends");
    drop(ops);
    let never = FaultPlan::for_good(1, ErrorKind::Failed).only("synchronize_stream");
    fault.arm(never);
    drop(engine);
    // The kernel still runs, on memory that is still there.
    release.send(()).expect("the kernel waits");
    lab.settle();
    assert_eq!(lab.check.violations().first(), None);
    lab.op(&[read(block, 1)]).expect("reads");
    lab.errors();
}

#[test]
fn a_panic_in_a_kernel_is_reported_and_the_engine_can_be_dropped() {
    let mut lab = Lab::new(2 * BLOCK);
    let block = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(block, AccessMode::ReadWrite).expect("touches");
    lab.ops.launch(1.0, |_| panic!("a bad kernel")).expect("launches");
    lab.ops.end().expect("ends");
    let error = lab.engine.synchronize().expect_err("the panic is kept");
    assert!(error.to_string().contains("a bad kernel"), "{error}");
    let Lab { host, engine, ops, .. } = lab;
    drop(ops);
    drop(engine);
    drop(host);
}
