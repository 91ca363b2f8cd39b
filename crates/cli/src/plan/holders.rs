//! What holds the memory while an op runs.

use adaptive::{BlockIndex, Generated, OpIndex, Origin, Trace, TraceEvent};

use super::is_away;

/// A block that is on the device while an op runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) block: BlockIndex,
    pub(super) name: String,
    pub(super) size_bytes: u64,
    /// Whether the op itself, or one inside it, uses it.
    pub(super) in_use: bool,
}

/// The blocks that live while an outermost op runs and that the plan does not have away then,
/// largest first.
pub(super) fn holders(trace: &Trace, made: &Generated, op: OpIndex) -> Vec<Holder> {
    let mut away = vec![false; trace.blocks.len()];
    for decision in made.decisions.iter().filter(|decision| is_away(decision, op)) {
        away[decision.block.0 as usize] = true;
    }
    let (present, used) = lives(trace, op);
    let mut holders: Vec<Holder> = (0..)
        .zip(&trace.blocks)
        .filter(|&(index, _)| present[index as usize])
        .filter(|&(index, _)| used[index as usize] || !away[index as usize])
        .map(|(index, block)| Holder {
            block: BlockIndex(index),
            name: block.name.clone(),
            size_bytes: block.size_bytes,
            in_use: used[index as usize],
        })
        .collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.size_bytes), holder.block));
    holders
}

/// By block: whether it lives at any moment from an op's begin to its end, and whether the op
/// uses it. An op beyond the last one stands for the step's end.
fn lives(trace: &Trace, op: OpIndex) -> (Vec<bool>, Vec<bool>) {
    let mut live: Vec<bool> =
        trace.blocks.iter().map(|block| block.origin == Origin::Persistent).collect();
    let mut used = vec![false; trace.blocks.len()];
    let mut present: Option<Vec<bool>> = None;
    for &event in &trace.events {
        match event {
            TraceEvent::Begin(begun) if begun == op => present = Some(live.clone()),
            TraceEvent::End(ended) if ended == op => break,
            TraceEvent::Allocate(block) => {
                live[block.0 as usize] = true;
                if let Some(present) = &mut present {
                    present[block.0 as usize] = true;
                    used[block.0 as usize] = true;
                }
            }
            TraceEvent::Free(block) => live[block.0 as usize] = false,
            TraceEvent::Touch(block, _) if present.is_some() => used[block.0 as usize] = true,
            _ => {}
        }
    }
    (present.unwrap_or(live), used)
}
