//! The plans of `stress`: what leaves and comes at which op, so that copies never wait for calls.

use adaptive::{
    Action, ActionKind, BlockIndex, OpIndex, Origin, Phase, Plan, PlanBlock, Signature,
};

/// One pass over `count` blocks that live already: each comes `ahead` ops before its use and
/// leaves after it. The last ops bring the first blocks back for the next pass.
pub(super) fn pass(block_bytes: u64, count: u64, ahead: u64) -> Plan {
    let mut actions = Vec::new();
    for op in 0..count {
        actions.push(action(
            op,
            Phase::Begin,
            ActionKind::SwapIn,
            (op + ahead) % count,
            op + ahead,
        ));
        actions.push(action(op, Phase::End, ActionKind::SwapOut, op, op + 1));
    }
    plan(count, (0..count).map(|index| block(index, block_bytes, Origin::Persistent)), actions)
}

/// The pass that allocates a block before each op: behind the first `first` blocks, which live
/// already, up to `count` in all. For each new block the oldest one leaves.
pub(super) fn growing(block_bytes: u64, first: u64, count: u64) -> Plan {
    let op_count = count - first;
    let actions = (0..op_count).map(|op| action(op, Phase::End, ActionKind::SwapOut, op, op + 1));
    let blocks = (0..count).map(|index| {
        let origin = match index.checked_sub(first) {
            None => Origin::Persistent,
            Some(op) => Origin::Before(op_index(op)),
        };
        block(index, block_bytes, origin)
    });
    plan(op_count, blocks, actions.collect())
}

fn plan(op_count: u64, blocks: impl Iterator<Item = PlanBlock>, actions: Vec<Action>) -> Plan {
    Plan {
        signature: Signature::default(),
        op_count: u32::try_from(op_count).expect("blocks are few"),
        blocks: blocks.collect(),
        actions,
    }
}

fn action(op: u64, phase: Phase, kind: ActionKind, block: u64, due: u64) -> Action {
    Action { op: op_index(op), phase, kind, block: block_index(block), due: op_index(due) }
}

fn block(index: u64, size_bytes: u64, origin: Origin) -> PlanBlock {
    PlanBlock { index: block_index(index), size_bytes, origin }
}

fn op_index(op: u64) -> OpIndex {
    OpIndex(u32::try_from(op).expect("blocks are few"))
}

fn block_index(index: u64) -> BlockIndex {
    BlockIndex(u32::try_from(index).expect("blocks are few"))
}
