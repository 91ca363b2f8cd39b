//! A plan out of its moves: it says for which step it is, and what the blocks are that it names.

use swap_core::{Action, BlockIndex, Plan, PlanBlock, Trace};

/// The plan that makes these moves in this step; without any, the one that leaves all to demand.
pub fn assemble(trace: &Trace, actions: Vec<Action>) -> Plan {
    let mut blocks: Vec<BlockIndex> = actions.iter().map(|action| action.block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let describe = |index: BlockIndex| {
        let block = &trace.blocks[index.0 as usize];
        PlanBlock { index, size_bytes: block.size_bytes, origin: block.origin }
    };
    Plan {
        signature: trace.signature,
        op_count: trace.ops.len() as u32,
        blocks: blocks.into_iter().map(describe).collect(),
        actions,
    }
}
