//! Discarding and replaying, by name: what recipes bring back, and what they must not disturb.

use std::sync::Arc;

use swap_core::devices::HostConfig;
use swap_core::{
    Access, AccessMode, Action, ActionKind, BlockId, BlockIndex, Driver, Error, OpIndex, Orders,
    Origin, Phase, Plan, PlanBlock, Recipe, RecipeUse, Residency,
};

use super::lab::{BLOCK, ENOUGH, Lab, OP, for_output, read, recipe, work, write};

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
    assert_eq!(lab.bytes(), (BLOCK, BLOCK));
    lab.op(&[read(derived, 2)]).expect("replays from the freed block");
    assert_eq!(lab.bytes(), (BLOCK, 0));
    lab.errors();
    // Also when the dependent is freed without coming back.
    let input = lab.make(3);
    let lost = lab.derive(&[read(input, 3)], 4);
    lab.places.remove(0);
    lab.discard(lost);
    lab.engine.free(input).expect("lives");
    assert_eq!(lab.bytes(), (2 * BLOCK, BLOCK));
    lab.engine.free(lost).expect("lives");
    assert_eq!(lab.bytes(), (BLOCK, 0));
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
fn an_input_that_its_owner_freed_is_not_needed_by_more() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    let first = lab.derive(&[read(input, 1)], 2);
    let second = lab.derive(&[read(input, 1)], 3);
    lab.discard(first);
    lab.engine.free(input).expect("lives");
    // The first keeps it until it is back, and no other block keeps it for longer.
    lab.act(&[(ActionKind::Discard, second)]);
    assert_eq!(lab.state(second), Residency::Resident);
    lab.op(&[read(first, 2), read(second, 3)]).expect("reads");
    assert_eq!(lab.total().recomputed_ops, 1);
    let stats = lab.engine.memory_stats().expect("stats");
    assert_eq!(stats.requested_bytes.current, 2 * BLOCK, "the input is gone");
    lab.finish();
}

/// Two outputs of one op, patterns 2 and 3.
fn derive_two(lab: &mut Lab) -> [BlockId; 2] {
    let input = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    let first = lab.ops.allocate(BLOCK, "first").expect("room");
    let second = lab.ops.allocate(BLOCK, "second").expect("room");
    lab.places.extend([(first, BLOCK), (second, BLOCK)]);
    let operands = [read(input, 1), write(first, 2), write(second, 3)];
    work(&mut lab.ops, &operands, &lab.errors).expect("works");
    lab.ops.recipe(recipe(&operands, &lab.errors)).expect("an op is open");
    lab.ops.end().expect("ends");
    [first, second]
}

#[test]
fn the_outputs_of_one_op_come_back_one_by_one() {
    let mut lab = Lab::new(ENOUGH);
    let [first, second] = derive_two(&mut lab);
    lab.act(&[(ActionKind::Discard, first), (ActionKind::Discard, second)]);
    assert_eq!(lab.state(second), Residency::Discarded);
    lab.op(&[read(first, 2)]).expect("replays");
    assert_eq!(lab.state(second), Residency::Discarded);
    // Nor does a free of the one concern the other.
    lab.free(first);
    lab.op(&[read(second, 3)]).expect("replays");
    assert_eq!(lab.total().recomputed_ops, 2);
    lab.finish();
}

#[test]
fn a_replay_spares_the_newer_bytes_of_other_outputs() {
    let mut lab = Lab::new(ENOUGH);
    let [first, second] = derive_two(&mut lab);
    lab.discard(first);
    lab.op(&[write(second, 8)]).expect("writes");
    lab.op(&[read(first, 2), read(second, 8)]).expect("reads");
    lab.finish();
}

/// An op holds one output of an op, and another stack, on another stream, replays that op for its
/// other output. The outer op's own work is `launched`, or the engine is only told of it.
fn replay_beside_an_open_op(launched: bool) {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let [first, second] = {
        let input = lab.make(1);
        lab.order(side.0);
        lab.ops.begin_on(OP, side.1).expect("begins");
        let blocks = [(); 2].map(|()| lab.ops.allocate(BLOCK, "").expect("room"));
        lab.places.extend(blocks.map(|block| (block, BLOCK)));
        let operands = [read(input, 1), write(blocks[0], 2), write(blocks[1], 3)];
        work(&mut lab.ops, &operands, &lab.errors).expect("works");
        let (errors, on) = (Arc::clone(&lab.errors), side.1);
        let again = Recipe::new(move |ops, output| {
            ops.begin_on(OP, on)?;
            work(ops, &for_output(&operands, output), &errors)?;
            ops.end()
        });
        lab.ops.recipe(again).expect("an op is open");
        lab.ops.end().expect("ends");
        blocks
    };
    lab.order_compute(side.0);
    lab.discard(first);
    lab.ops.begin(OP).expect("begins");
    if launched {
        work(&mut lab.ops, &[read(second, 3)], &lab.errors).expect("works");
    } else {
        let start = lab.ops.touch(second, AccessMode::Read).expect("touches");
        let access = Access { start, size_bytes: BLOCK, mode: AccessMode::Read };
        let compute = lab.engine.stream_handles().expect("open")[0];
        lab.check.note_access(compute, &[access]).expect("its work");
    }
    let mut other = lab.engine.op_stack();
    other.begin_on(OP, side.1).expect("begins");
    work(&mut other, &[read(first, 2)], &lab.errors).expect("replays");
    other.end().expect("ends");
    if launched {
        lab.ops.launch(1.0, |_| ()).expect("is behind the replay");
    }
    lab.ops.end().expect("is behind the replay");
    assert_eq!(lab.total().recomputed_ops, 1);
    drop(other);
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn a_replay_leaves_alone_what_an_open_op_holds_of_the_same_op() {
    replay_beside_an_open_op(true);
    replay_beside_an_open_op(false);
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
    lab.complete_all();
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
fn what_a_replay_allocates_has_no_place_in_the_step() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let errors = Arc::clone(&lab.errors);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &errors).expect("works");
    lab.ops
        .recipe(Recipe::new(move |ops, _| {
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

/// Too small to move.
const SMALL: u64 = 1024;

/// A small block of pattern 1, and one of pattern 2 made from it.
fn derived_from_a_small_one(lab: &mut Lab) -> [BlockId; 2] {
    let small = lab.engine.allocate(SMALL, "small").expect("room");
    lab.op(&[write(small, 1)]).expect("writes");
    let derived = lab.derive(&[read(small, 1)], 2);
    [small, derived]
}

#[test]
fn a_write_to_a_small_input_first_brings_back_what_needs_it() {
    let mut lab = Lab::new(ENOUGH);
    let [small, derived] = derived_from_a_small_one(&mut lab);
    assert_eq!(lab.engine.discard(derived), Ok(true));
    lab.op(&[write(small, 9)]).expect("replays, then writes");
    assert_ne!(lab.state(derived), Residency::Discarded);
    lab.op(&[read(small, 9), read(derived, 2)]).expect("reads");
    assert_eq!(lab.total().recomputed_ops, 1);
    // Now its recipe is out of date.
    assert_eq!(lab.engine.discard(derived), Ok(false));
    lab.finish();
}

#[test]
fn a_small_input_that_its_owner_freed_stays_as_long_as_a_recipe_reads_it() {
    let mut lab = Lab::new(ENOUGH);
    let [small, derived] = derived_from_a_small_one(&mut lab);
    let again = lab.derive(&[read(small, 1)], 3);
    lab.engine.free(small).expect("lives");
    assert_eq!(lab.engine.free(small), Err(Error::Freed));
    assert_eq!(lab.op(&[read(small, 1)]), Err(Error::Freed));
    lab.ops = lab.engine.op_stack();
    assert_eq!(lab.engine.discard(derived), Ok(true));
    lab.op(&[read(derived, 2)]).expect("replays");
    assert_eq!(lab.bytes(), (2 * BLOCK, SMALL));
    lab.op(&[write(derived, 4)]).expect("writes");
    assert_eq!(lab.bytes(), (2 * BLOCK, SMALL), "the other recipe reads it");
    assert_eq!(lab.engine.discard(again), Ok(true));
    lab.engine.free(again).expect("lives");
    assert_eq!(lab.bytes(), (BLOCK, 0), "nobody reads it any more");
    lab.places.pop();
    lab.finish();
}

#[test]
fn what_an_op_freed_itself_is_no_output() {
    let mut lab = Lab::new(ENOUGH);
    let input = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    let output = lab.ops.allocate(BLOCK, "output").expect("room");
    let workspace = lab.ops.allocate(BLOCK, "workspace").expect("room");
    lab.places.push((output, BLOCK));
    let operands = [read(input, 1), write(workspace, 7), write(output, 2)];
    work(&mut lab.ops, &operands, &lab.errors).expect("works");
    let again = recipe(&[operands[0], operands[2]], &lab.errors);
    lab.ops.recipe(again).expect("an op is open");
    lab.ops.free(workspace).expect("lives");
    lab.ops.end().expect("ends");
    assert_eq!(lab.engine.discard(output), Ok(true));
    lab.op(&[read(output, 2)]).expect("replays");
    assert_eq!(lab.total().recomputed_ops, 1);
    lab.finish();
}

#[test]
fn a_recipe_is_of_use_while_recording_and_where_the_plan_drops_an_output() {
    let mut lab = Lab::new(ENOUGH);
    let uses = |lab: &mut Lab| {
        [(); 2].map(|()| {
            lab.ops.begin(OP).expect("begins");
            let block = lab.ops.allocate(BLOCK, "output").expect("room");
            let found = lab.ops.recipe_use().expect("an op is open");
            lab.ops.end().expect("ends");
            lab.ops.free(block).expect("lives");
            found
        })
    };
    let mut under = |record: bool, plan: Option<Plan>| {
        lab.end_step();
        let orders = plan.map(|plan| Arc::new(Orders::new(&plan)));
        lab.engine.set_orders(record, orders).expect("between steps");
        uses(&mut lab)
    };
    assert_eq!(under(false, None), [RecipeUse::None; 2]);
    assert_eq!(under(true, None), [RecipeUse::Recorded; 2]);
    let (op, block) = (OpIndex(1), BlockIndex(1));
    let phase = Phase::End;
    let action = |kind| Action { op, phase, kind, block, due: op };
    let plan = |kind| Plan {
        blocks: vec![PlanBlock { index: block, size_bytes: BLOCK, origin: Origin::Op(op) }],
        actions: vec![action(kind)],
        ..Plan::default()
    };
    let swapping = under(false, Some(plan(ActionKind::SwapOut)));
    assert_eq!(swapping, [RecipeUse::None; 2]);
    let dropping = under(false, Some(plan(ActionKind::Discard)));
    assert_eq!(dropping, [RecipeUse::None, RecipeUse::Planned]);
    lab.finish();
}

#[test]
fn a_recipe_is_of_use_at_the_op_that_wrote_what_the_plan_drops() {
    let mut lab = Lab::new(ENOUGH);
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    // One op allocates, as `torch.empty` does, another writes, and a third reads.
    let step = |lab: &mut Lab| {
        lab.ops.begin(OP).expect("begins");
        let block = lab.ops.allocate(BLOCK, "output").expect("room");
        lab.places.push((block, BLOCK));
        let mut found = vec![lab.ops.recipe_use().expect("an op is open")];
        lab.ops.end().expect("ends");
        for operand in [write(block, 2), read(block, 2)] {
            lab.ops.begin(OP).expect("begins");
            work(&mut lab.ops, &[operand], &lab.errors).expect("works");
            found.push(lab.ops.recipe_use().expect("an op is open"));
            lab.ops.end().expect("ends");
        }
        lab.free(block);
        found
    };
    assert_eq!(step(&mut lab), [RecipeUse::Recorded; 3]);
    let trace = lab.engine.end_step().expect("ends").pop().and_then(|report| report.trace);
    let trace = trace.expect("it was recorded");
    let (op, block) = (OpIndex(1), BlockIndex(0));
    let known = &trace.blocks[0];
    let known =
        PlanBlock { index: block, size_bytes: known.size_bytes, origin: Origin::Op(OpIndex(0)) };
    let drop = Action { op, phase: Phase::End, kind: ActionKind::Discard, block, due: op };
    let plan = Plan { blocks: vec![known], actions: vec![drop], ..Plan::default() };
    let orders = Arc::new(Orders::with_trace(&plan, &trace));
    lab.engine.set_orders(false, Some(orders)).expect("between steps");
    assert_eq!(step(&mut lab), [RecipeUse::None, RecipeUse::Planned, RecipeUse::None]);
    lab.end_step();
    let orders = Arc::new(Orders::for_sizes_up_to(&plan, &trace, &[block]));
    lab.engine.set_orders(true, Some(orders)).expect("between steps");
    assert_eq!(step(&mut lab), [RecipeUse::RecordedForSizes; 3]);
    lab.finish();
}

#[test]
fn a_recipe_is_of_no_use_while_a_cap_that_nobody_asked_for_is_far() {
    let mut lab = Lab::new(20 * BLOCK);
    lab.engine.hold_by_need().expect("is open");
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    let mut blocks = Vec::new();
    let uses: Vec<RecipeUse> = (0..20)
        .map(|_| {
            lab.ops.begin(OP).expect("begins");
            blocks.push(lab.ops.allocate(BLOCK, "output").expect("room"));
            let found = lab.ops.recipe_use().expect("an op is open");
            lab.ops.end().expect("ends");
            found
        })
        .collect();
    assert_eq!(uses[..12], [RecipeUse::None; 12]);
    assert_eq!(uses[17..], [RecipeUse::Recorded; 3], "a fifth of the cap is left at most");
    blocks.into_iter().for_each(|block| lab.ops.free(block).expect("lives"));
    lab.finish();
}
