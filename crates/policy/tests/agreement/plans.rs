//! Random plans for a trace.

use policy::synthetic::Numbers;
use policy::{
    Action, ActionKind, BlockIndex, OpIndex, Origin, Phase, Plan, PlanBlock, Trace, TraceEvent,
};

/// Random swaps of random blocks.
pub(crate) fn random_plan(numbers: &mut Numbers, trace: &Trace) -> Plan {
    let op_count = trace.ops.len() as u64;
    let mut actions: Vec<Action> = (0..numbers.below(2 * op_count))
        .map(|_| {
            let op = OpIndex(numbers.below(op_count) as u32);
            Action {
                op,
                phase: if numbers.chance(50) { Phase::Begin } else { Phase::End },
                kind: if numbers.chance(50) { ActionKind::SwapOut } else { ActionKind::SwapIn },
                block: BlockIndex(numbers.below(trace.blocks.len() as u64) as u32),
                due: op,
            }
        })
        .filter(|action| is_live(trace, action))
        .collect();
    actions.sort_by_key(|action| (action.op, action.phase));
    let blocks = (0..).zip(&trace.blocks).map(|(index, block)| PlanBlock {
        index: BlockIndex(index),
        size_bytes: block.size_bytes,
        origin: block.origin,
    });
    Plan {
        signature: trace.signature,
        op_count: op_count as u32,
        blocks: blocks.collect(),
        actions,
    }
}

/// Drops of random blocks that the step makes and frees, most of them just before their owner frees
/// them, and replays of some.
pub(crate) fn random_drops(numbers: &mut Numbers, trace: &Trace) -> Plan {
    let mut plan = random_plan(numbers, trace);
    let mut depth = 0;
    let mut ends: Vec<OpIndex> = Vec::new();
    let mut add = |op: OpIndex, phase: Phase, kind: ActionKind, block: BlockIndex, due: OpIndex| {
        plan.actions.push(Action { op, phase, kind, block, due });
    };
    let last = OpIndex(trace.ops.len() as u32 - 1);
    for &event in &trace.events {
        match event {
            TraceEvent::Begin(_) => depth += 1,
            TraceEvent::End(op) => {
                depth -= 1;
                ends.extend((depth == 0).then_some(op));
            }
            TraceEvent::Free(block) if numbers.chance(60) && !ends.is_empty() => {
                let back = numbers.below(ends.len().min(3) as u64) as usize;
                let op = ends[ends.len() - 1 - back];
                let due = if numbers.chance(70) { last } else { op };
                add(op, Phase::End, ActionKind::Discard, block, due);
                if numbers.chance(40) {
                    let at = ends[numbers.below(ends.len() as u64) as usize];
                    add(at, Phase::Begin, ActionKind::Replay, block, at);
                    let at = ends[numbers.below(ends.len() as u64) as usize];
                    add(at, Phase::End, ActionKind::Discard, block, at);
                }
            }
            _ => {}
        }
    }
    plan.actions.retain(|action| is_live(trace, action));
    plan.actions.sort_by_key(|action| (action.op, action.phase));
    plan
}

/// Whether the block lives when the action is due: the engine takes any other for drift.
fn is_live(trace: &Trace, action: &Action) -> bool {
    let at = trace.events.iter().position(|&event| match action.phase {
        Phase::Begin => event == TraceEvent::Begin(action.op),
        Phase::End => event == TraceEvent::End(action.op),
    });
    let before = &trace.events[..at.expect("each op begins and ends")];
    let born = trace.blocks[action.block.0 as usize].origin == Origin::Persistent
        || before.contains(&TraceEvent::Allocate(action.block));
    born && !before.contains(&TraceEvent::Free(action.block))
}
