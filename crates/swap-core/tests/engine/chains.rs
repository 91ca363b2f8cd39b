//! Chains of replays through blocks that their owners have freed.

use std::sync::Arc;

use swap_core::{
    Action, ActionKind, BlockId, BlockIndex, OpIndex, Orders, Origin, Phase, Plan, PlanBlock,
    Residency,
};

use super::lab::{BLOCK, ENOUGH, Lab, read};

/// A block, one made from it by op 1 and one made from that by op 2, under a plan that drops the
/// second behind op 2, due at `due`, and the third behind op 3.
fn chain(lab: &mut Lab, due: u32) -> [BlockId; 3] {
    let drop = |op: u32, block: u32, due: u32| Action {
        op: OpIndex(op),
        phase: Phase::End,
        kind: ActionKind::Discard,
        block: BlockIndex(block),
        due: OpIndex(due),
    };
    let made_by = |op: u32| PlanBlock {
        index: BlockIndex(op),
        size_bytes: BLOCK,
        origin: Origin::Op(OpIndex(op)),
    };
    let plan = Plan {
        blocks: vec![made_by(1), made_by(2)],
        actions: vec![drop(2, 1, due), drop(3, 2, 3)],
        ..Plan::default()
    };
    let orders = Some(Arc::new(Orders::new(&plan)));
    lab.engine.set_orders(false, orders).expect("between steps");
    let first = lab.make(1);
    let second = lab.derive(&[read(first, 1)], 2);
    let third = lab.derive(&[read(second, 2)], 3);
    assert_eq!(lab.state(second), Residency::Discarded);
    [first, second, third]
}

#[test]
fn what_is_dropped_for_others_stays_for_them_though_its_owner_frees_it() {
    let mut lab = Lab::new(ENOUGH);
    let [_, second, third] = chain(&mut lab, 4);
    lab.engine.free(second).expect("lives");
    assert_eq!(lab.bytes(), (2 * BLOCK, BLOCK));
    lab.op(&[]).expect("runs");
    assert_eq!(lab.state(third), Residency::Discarded);
    lab.op(&[read(third, 3)]).expect("comes back through the freed one");
    assert_ne!(lab.state(third), Residency::Discarded);
    assert_eq!(lab.bytes(), (2 * BLOCK, 0), "the freed one is gone");
    assert_eq!(lab.total().recomputed_ops, 2);
    lab.finish();
}

#[test]
fn what_is_dropped_for_itself_goes_when_its_owner_frees_it() {
    let mut lab = Lab::new(ENOUGH);
    let [_, second, third] = chain(&mut lab, 2);
    lab.engine.free(second).expect("lives");
    assert_eq!(lab.bytes(), (2 * BLOCK, 0));
    lab.op(&[]).expect("runs");
    assert_eq!(lab.state(third), Residency::Resident, "its recipe reads what is gone");
    lab.finish();
}

#[test]
fn what_is_dropped_for_others_goes_with_them() {
    let mut lab = Lab::new(ENOUGH);
    let [first, second, third] = chain(&mut lab, 4);
    lab.engine.free(second).expect("lives");
    lab.op(&[]).expect("runs");
    lab.engine.free(first).expect("lives");
    assert_eq!(lab.bytes(), (BLOCK, 2 * BLOCK), "each stays for the next");
    lab.engine.free(third).expect("lives");
    assert_eq!(lab.bytes(), (0, 0));
    lab.finish();
}

#[test]
fn what_is_dropped_for_others_does_not_outlive_the_step() {
    let mut lab = Lab::new(ENOUGH);
    let [_, second, third] = chain(&mut lab, 4);
    lab.engine.free(second).expect("lives");
    assert_eq!(lab.bytes(), (2 * BLOCK, BLOCK));
    lab.engine.end_step().expect("ends");
    assert_eq!(lab.bytes(), (2 * BLOCK, 0));
    lab.op(&[read(third, 3)]).expect("is still there");
    lab.finish();
}
