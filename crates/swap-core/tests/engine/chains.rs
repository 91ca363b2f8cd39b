//! Chains of replays through blocks that their owners have freed.

use std::sync::Arc;

use swap_core::{
    Action, ActionKind, BlockId, BlockIndex, Engine, OpIndex, Orders, Origin, Phase, Plan,
    PlanBlock, Residency,
};

use super::lab::{BLOCK, ENOUGH, Lab, read};

/// A plan that drops some block, much later, that any op may have written.
fn drop_anything(engine: &Engine) {
    let (op, index) = (OpIndex(1_000), BlockIndex(0));
    let (phase, kind) = (Phase::End, ActionKind::Discard);
    let plan = Plan {
        blocks: vec![PlanBlock { index, size_bytes: BLOCK, origin: Origin::Persistent }],
        actions: vec![Action { op, phase, kind, block: index, due: op }],
        ..Plan::default()
    };
    engine.set_orders(false, Some(Arc::new(Orders::new(&plan)))).expect("between steps");
}

fn requested_bytes(lab: &Lab) -> u64 {
    lab.engine.memory_stats().expect("stats").requested_bytes.current
}

/// A block, one made from it, and one made from that.
fn chain(lab: &mut Lab) -> [BlockId; 3] {
    let first = lab.make(1);
    let second = lab.derive(&[read(first, 1)], 2);
    [first, second, lab.derive(&[read(second, 2)], 3)]
}

#[test]
fn a_dropped_block_that_its_owner_freed_stays_for_what_the_plan_makes_from_it() {
    let mut lab = Lab::new(ENOUGH);
    drop_anything(&lab.engine);
    let [_, second, third] = chain(&mut lab);
    assert!(lab.engine.discard(second).expect("lives"));
    lab.engine.free(second).expect("lives");
    assert!(lab.engine.discard(third).expect("lives"), "both can be made again");
    lab.op(&[read(third, 3)]).expect("comes back through the freed one");
    assert_eq!(lab.state(third), Residency::Resident);
    assert_eq!(requested_bytes(&lab), 2 * BLOCK, "the freed one is gone");
    assert_eq!(lab.total().recomputed_ops, 2);
    lab.finish();
}

#[test]
fn a_dropped_block_that_its_owner_freed_goes_with_what_was_made_from_it() {
    let mut lab = Lab::new(ENOUGH);
    drop_anything(&lab.engine);
    let [first, second, third] = chain(&mut lab);
    assert!(lab.engine.discard(second).expect("lives"));
    lab.engine.free(second).expect("lives");
    lab.engine.free(first).expect("lives");
    assert_eq!(requested_bytes(&lab), 3 * BLOCK, "the first stays for the second");
    lab.engine.free(third).expect("lives");
    assert_eq!(requested_bytes(&lab), 0);
    lab.finish();
}

#[test]
fn a_dropped_block_that_its_owner_freed_does_not_outlive_the_step() {
    let mut lab = Lab::new(ENOUGH);
    drop_anything(&lab.engine);
    let [_, second, third] = chain(&mut lab);
    assert!(lab.engine.discard(second).expect("lives"));
    lab.engine.free(second).expect("lives");
    lab.engine.end_step().expect("ends");
    assert_eq!(requested_bytes(&lab), 2 * BLOCK);
    assert!(!lab.engine.discard(third).expect("lives"), "its recipe reads what is gone");
    lab.op(&[read(third, 3)]).expect("is still there");
    lab.finish();
}

#[test]
fn without_a_plan_that_drops_what_is_made_from_it_a_freed_block_goes_at_once() {
    let mut lab = Lab::new(ENOUGH);
    let [_, second, third] = chain(&mut lab);
    assert!(lab.engine.discard(second).expect("lives"));
    lab.engine.free(second).expect("lives");
    assert_eq!(requested_bytes(&lab), 2 * BLOCK);
    assert!(!lab.engine.discard(third).expect("lives"));
    lab.finish();
}
