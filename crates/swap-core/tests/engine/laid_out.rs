//! Lots and all that keeps a block where it is: holds, loans, replays, and orders that change while
//! blocks are away.

use std::sync::Arc;

use swap_core::devices::HostConfig;
use swap_core::{
    Action, ActionKind, BlockId, BlockIndex, Lot, MemoryCalls, OpIndex, Orders, Origin, Phase,
    Plan, PlanBlock, Residency,
};

use super::lab::{BLOCK, ENOUGH, Lab, read, write};
use super::lending::lend;

/// The lot of that number, if memory were cut into blocks.
fn lot(number: u64) -> Option<Lot> {
    Some(Lot { offset_bytes: number * BLOCK, size_bytes: BLOCK })
}

/// Orders for a step of which all blocks are there before: they lie in these lots, and the first
/// op begins with these actions.
fn set(lab: &mut Lab, lots: &[Option<Lot>], actions: &[(ActionKind, usize)]) {
    set_turns(lab, vec![lots.to_vec()], actions);
}

/// The same where steps take turns.
fn set_turns(lab: &mut Lab, turns: Vec<Vec<Option<Lot>>>, actions: &[(ActionKind, usize)]) {
    lab.end_step();
    let orders = Arc::new(orders(lab, actions).with_lots(turns));
    lab.engine.set_orders(false, Some(orders)).expect("between steps");
}

fn orders(lab: &Lab, actions: &[(ActionKind, usize)]) -> Orders {
    let blocks = (0..lab.places.len()).map(|at| PlanBlock {
        index: BlockIndex(at as u32),
        size_bytes: BLOCK,
        origin: Origin::Persistent,
    });
    let actions = actions.iter().map(|&(kind, at)| Action {
        op: OpIndex(0),
        phase: Phase::Begin,
        kind,
        block: BlockIndex(at as u32),
        due: OpIndex(0),
    });
    let plan = Plan { blocks: blocks.collect(), actions: actions.collect(), ..Plan::default() };
    Orders::new(&plan)
}

/// Sends all blocks away and brings them back to these lots.
fn move_to(lab: &mut Lab, blocks: &[BlockId], lots: &[Option<Lot>]) {
    let out: Vec<(ActionKind, usize)> =
        (0..blocks.len()).map(|at| (ActionKind::SwapOut, at)).collect();
    set(lab, lots, &out);
    lab.tick();
    lab.complete_all();
    // What they left would be taken back.
    lab.engine.trim().expect("gives back");
    let back: Vec<(ActionKind, usize)> =
        (0..blocks.len()).map(|at| (ActionKind::SwapIn, at)).collect();
    set(lab, lots, &back);
    lab.tick();
    lab.complete_all();
    let there = blocks.iter().all(|&block| lab.is_there(block));
    assert!(there, "all came back");
}

fn lab(units: u64) -> Lab {
    Lab::with(units * BLOCK, ENOUGH, HostConfig::by_time(2 * units * BLOCK))
}

#[test]
fn a_block_that_is_held_or_lent_keeps_its_lot_whatever_the_orders_become() {
    let mut lab = lab(4);
    let [held, lent] = [1, 2].map(|tag| lab.make(tag));
    move_to(&mut lab, &[held, lent], &[lot(0), lot(1)]);
    lab.engine.hold(held, "a test").expect("lives");
    lend(&mut lab, lent).expect("is there");
    let compute = lab.engine.stream_handles().expect("handles")[0];
    lab.write_unseen(compute, lent, 12);
    // Others want both lots, and there is not room for all of them.
    for tag in 100..106 {
        lab.make(tag);
        assert_eq!([held, lent].map(|block| lab.state(block)), [Residency::Resident; 2]);
    }
    set(&mut lab, &[lot(1), lot(0), lot(0), lot(1), lot(2)], &[(ActionKind::SwapOut, 0)]);
    lab.tick();
    assert_eq!(lab.state(held), Residency::Resident);
    lab.op(&[read(held, 1), read(lent, 12)]).expect("reads");
    for at in 0..6 {
        lab.op(&[read(lab.places[2 + at].0, 100 + at as u64)]).expect("reads");
    }
    lab.op(&[read(held, 1)]).expect("reads");
    lab.finish();
}

#[test]
fn blocks_that_are_away_find_the_lots_of_new_orders_or_chunks() {
    let mut lab = lab(4);
    let blocks = [1, 2, 3].map(|tag| lab.make(tag));
    let lots = [lot(0), lot(1), lot(2)];
    move_to(&mut lab, &blocks, &lots);
    let all_out = [0, 1, 2].map(|at| (ActionKind::SwapOut, at));
    let all_in = [0, 1, 2].map(|at| (ActionKind::SwapIn, at));
    let turned = [lot(2), lot(0), lot(1)];
    let together = [lot(0), lot(0), None];
    let addresses = blocks.map(|block| lab.engine.address(block));
    for lots in [&turned[..], &[], &lots, &together, &[None, lot(5)]] {
        lab.op(&[write(blocks[0], 4), write(blocks[1], 5), write(blocks[2], 6)]).expect("writes");
        set(&mut lab, &lots[lots.len() / 2..], &all_out);
        lab.tick();
        assert!(blocks.iter().all(|&block| !lab.is_there(block)));
        set(&mut lab, lots, &all_in);
        lab.tick();
        lab.op(&[read(blocks[0], 4), read(blocks[1], 5), read(blocks[2], 6)]).expect("reads");
        assert_eq!(blocks.map(|block| lab.engine.address(block)), addresses);
    }
    lab.finish();
}

/// Where nothing tells, the first turn is taken.
#[test]
fn a_step_takes_the_turn_in_which_blocks_are_to_lie_where_they_are() {
    let mut lab = lab(4);
    let blocks = [1, 2].map(|tag| lab.make(tag));
    let [straight, crossed] = [[lot(0), lot(1)], [lot(1), lot(0)]];
    for (there, turns) in [
        (straight, [straight, crossed]),
        (straight, [crossed, straight]),
        (crossed, [straight, crossed]),
        (crossed, [[lot(1), None], crossed]),
    ] {
        move_to(&mut lab, &blocks, &there);
        let calls = lab.engine.memory_stats().expect("counts").calls;
        for kind in [ActionKind::SwapOut, ActionKind::SwapIn] {
            let turns = turns.map(|lots| lots.to_vec()).to_vec();
            set_turns(&mut lab, turns, &[(kind, 0), (kind, 1)]);
            lab.tick();
            lab.complete_all();
        }
        lab.op(&[read(blocks[0], 1), read(blocks[1], 2)]).expect("reads");
        assert_eq!(lab.engine.memory_stats().expect("counts").calls, calls, "{turns:?}");
    }
    lab.finish();
}

/// Nobody else wants the memory that it leaves, so it could take that back for ever.
#[test]
fn a_block_in_memory_of_its_own_is_in_its_lot_when_it_has_come_back() {
    let mut lab = lab(4);
    let block = lab.make(1);
    let mut calls = Vec::new();
    for _ in 0..3 {
        for kind in [ActionKind::SwapOut, ActionKind::SwapIn] {
            set(&mut lab, &[lot(0)], &[(kind, 0)]);
            lab.tick();
            lab.complete_all();
            // Time to unmap what is in no lot.
            (0..4).for_each(|_| lab.tick());
        }
        lab.op(&[read(block, 1)]).expect("reads");
        calls.push(lab.engine.memory_stats().expect("counts").calls);
    }
    assert_ne!(calls[0], MemoryCalls::default());
    assert_eq!(calls[1], calls[2], "its addresses show its lot also while it is away");
    lab.finish();
}

#[test]
fn a_block_comes_back_when_its_plan_says_so_though_its_lot_can_never_be_had() {
    let odd = Some(Lot { offset_bytes: 100, size_bytes: BLOCK });
    let long = Some(Lot { offset_bytes: 0, size_bytes: 2 * BLOCK });
    for wrong in [odd, long] {
        let mut lab = lab(4);
        let block = lab.make(1);
        set(&mut lab, &[wrong], &[(ActionKind::SwapOut, 0)]);
        lab.tick();
        lab.complete_all();
        lab.engine.trim().expect("gives back");
        set(&mut lab, &[wrong], &[(ActionKind::SwapIn, 0)]);
        lab.tick();
        assert!(lab.is_there(block), "{wrong:?}");
        lab.op(&[read(block, 1)]).expect("reads");
        lab.finish();
    }
}

#[test]
fn what_a_replay_makes_beside_a_layout_is_right_and_leaves_nothing() {
    let mut lab = lab(4);
    let input = lab.make(1);
    let made = lab.derive(&[read(input, 1)], 2);
    let other = lab.make(3);
    move_to(&mut lab, &[input, made, other], &[lot(0), lot(1), lot(2)]);
    lab.op(&[read(made, 2), read(other, 3)]).expect("reads");
    set(&mut lab, &[lot(1), lot(0), lot(2)], &[(ActionKind::Discard, 1), (ActionKind::SwapOut, 0)]);
    lab.tick();
    assert_eq!(lab.state(made), Residency::Discarded);
    lab.op(&[read(made, 2)]).expect("replays");
    assert_eq!(lab.total().recomputed_ops, 1);
    lab.op(&[read(input, 1), read(made, 2), read(other, 3)]).expect("reads");
    lab.finish();
}

#[test]
fn the_same_lots_once_more_are_other_memory() {
    let mut lab = lab(4);
    let input = lab.make(1);
    let made = lab.derive(&[read(input, 1)], 2);
    let lots = [lot(0), lot(1)];
    move_to(&mut lab, &[input, made], &lots);
    set(&mut lab, &lots, &[(ActionKind::Discard, 1)]);
    lab.tick();
    assert_eq!(lab.state(made), Residency::Discarded);
    lab.end_step();
    // The first layout has no time to go: the block's address still shows its memory.
    lab.engine.set_orders(false, None).expect("between steps");
    let again = Arc::new(orders(&lab, &[]).with_lots(vec![lots.to_vec()]));
    lab.engine.set_orders(false, Some(again)).expect("between steps");
    lab.op(&[read(made, 2)]).expect("replays into the lot of the second");
    set(&mut lab, &lots, &[(ActionKind::SwapOut, 1)]);
    lab.tick();
    lab.complete_all();
    lab.engine.trim().expect("gives back");
    lab.op(&[read(made, 2)]).expect("reads what was copied from there");
    lab.finish();
}
