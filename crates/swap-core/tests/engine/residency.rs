//! Each transition of the residency machine, by name. Those of replays are in `replays.rs`.

use std::sync::Arc;

use swap_core::devices::{FaultDriver, FaultPlan, HostConfig};
use swap_core::{AccessMode, ActionKind, Engine, Error, ErrorKind, Orders, Plan, Residency};

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
    lab.complete_all();
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
    lab.complete_all();
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
    lab.complete_all();
    let _thief = lab.make(2);
    lab.op(&[read(block, 1)]).expect("reads");
    lab.complete_all();
    let copied = lab.host.ledger().copied_out_bytes;
    lab.swap_out(block);
    lab.complete_all();
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
    lab.complete_all();
    lab.op(&[write(block, 7)]).expect("writes");
    lab.complete_all();
    let copied = lab.host.ledger().copied_out_bytes;
    lab.swap_out(block);
    lab.complete_all();
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
    free_in(Some(Residency::Resident), |lab, _| lab.complete_all());
    free_in(Some(Residency::Leaving), |lab, block| lab.swap_out(block));
    free_in(Some(Residency::Away), |lab, block| {
        lab.swap_out(block);
        lab.complete_all();
    });
    free_in(Some(Residency::Arriving), |lab, block| {
        lab.swap_out(block);
        let _thief = lab.make(3);
        lab.complete_all();
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
    lab.complete_all();
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
    let (mut lab, block, [a, b]) = Lab::full();
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
    let (mut lab, block, [a, b]) = Lab::full();
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
    lab.complete_all();
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
