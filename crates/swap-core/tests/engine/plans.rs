//! What a plan may rely on: which blocks it finds, what it asked for, and which victims it spares.

use std::sync::Arc;

use swap_core::devices::HostConfig;
use swap_core::{
    Action, ActionKind, BlockIndex, OpIndex, Orders, Origin, Phase, Plan, PlanBlock, Residency,
    Trace,
};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, work, write};

/// Runs an op under a plan to swap out the only block, which the plan knows as `known`.
fn swap_out_as(known: PlanBlock) -> (Option<OpIndex>, Residency) {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.end_step();
    let op = OpIndex(0);
    let index = BlockIndex(0);
    let out = Action { op, phase: Phase::Begin, kind: ActionKind::SwapOut, block: index, due: op };
    let plan = Plan { blocks: vec![known], actions: vec![out], ..Plan::default() };
    lab.engine.set_orders(false, Some(Arc::new(Orders::new(&plan)))).expect("between steps");
    lab.tick();
    let state = lab.state(block);
    let drifted = lab.end_step();
    lab.finish();
    (drifted, state)
}

#[test]
fn a_plan_acts_only_on_the_blocks_that_it_knows() {
    let known = PlanBlock { index: BlockIndex(0), size_bytes: BLOCK, origin: Origin::Persistent };
    assert_eq!(swap_out_as(known.clone()), (None, Residency::Leaving));
    let drifted = (Some(OpIndex(0)), Residency::Resident);
    assert_eq!(swap_out_as(PlanBlock { size_bytes: BLOCK + 1, ..known.clone() }), drifted);
    assert_eq!(swap_out_as(PlanBlock { origin: Origin::Op(OpIndex(0)), ..known.clone() }), drifted);
    assert_eq!(swap_out_as(PlanBlock { index: BlockIndex(1), ..known }), drifted);
}

#[test]
fn a_touch_of_a_block_that_was_put_off_is_no_miss() {
    let (mut lab, block, [a, b]) = Lab::full();
    lab.total();
    lab.act(&[(ActionKind::SwapIn, block), (ActionKind::SwapIn, block)]);
    assert_eq!(lab.state(block), Residency::Away, "there was no room: it is put off");
    lab.op(&[read(block, 1)]).expect("somebody makes room");
    assert_eq!(lab.total().misses, 0);
    lab.op(&[read(a, 2), read(b, 3)]).expect("reads");
    lab.finish();
}

#[test]
fn a_block_that_came_back_by_a_touch_is_not_asked_for_any_more() {
    let (mut lab, block, [a, b]) = Lab::full();
    lab.act(&[(ActionKind::SwapIn, block)]);
    // It comes back, and leaves again before another op begins.
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[read(block, 1)], &lab.errors).expect("somebody makes room");
    lab.ops = lab.engine.op_stack();
    for unused in [a, b] {
        lab.free(unused);
    }
    let fresh = [(); 2].map(|()| lab.engine.allocate(BLOCK, "").expect("others leave"));
    lab.places.extend(fresh.map(|block| (block, BLOCK)));
    lab.complete_all();
    lab.free(fresh[0]);
    lab.tick();
    assert_eq!(lab.state(block), Residency::Away);
    lab.op(&[read(block, 1), write(fresh[1], 4)]).expect("reads");
    lab.finish();
}

/// A step of two ops on a block of its own, between uses of a block that stays.
fn step(lab: &mut Lab, stays: swap_core::BlockId, rescued: bool) -> Residency {
    lab.op(&[read(stays, 1)]).expect("reads");
    let own = lab.derive(&[], 2);
    lab.op(&[read(own, 2)]).expect("reads");
    let third = if rescued { Some(lab.make(3)) } else { None };
    let state = lab.state(stays);
    lab.free(own);
    third.into_iter().for_each(|third| lab.free(third));
    state
}

#[test]
fn a_rescue_spares_what_the_next_step_uses_for_what_nobody_uses() {
    let mut lab = Lab::with(2 * BLOCK, ENOUGH, HostConfig::by_time(4 * BLOCK));
    let stays = lab.make(1);
    lab.total();
    lab.engine.set_orders(true, None).expect("between steps");
    step(&mut lab, stays, false);
    let trace = lab.engine.end_step().expect("ends").pop().and_then(|report| report.trace);
    let trace: Trace = trace.expect("it was recorded");
    let orders = Orders::with_trace(&Plan::default(), &trace);
    lab.engine.set_orders(false, Some(Arc::new(orders))).expect("between steps");
    assert_eq!(step(&mut lab, stays, true), Residency::Resident);
    lab.end_step();
    // Without the trace it is the one that was used longest ago.
    lab.engine.set_orders(false, Some(Arc::new(Orders::new(&Plan::default())))).expect("open");
    assert_ne!(step(&mut lab, stays, true), Residency::Resident);
    assert_eq!(lab.total().rescues, 2);
    lab.op(&[write(stays, 5)]).expect("writes");
    lab.finish();
}
