//! Blocks that are one and the same in steps that follow each other, and when they are on the
//! device.
//!
//! Steps take turns, one or two, and time goes on through all of them before it begins anew.

use swap_core::{Origin, Trace};

use super::pack::{Item, Stay};
use crate::simulate::Residency;
use crate::usage::{NONE, Usage};

/// A block in the steps of one turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Member {
    pub(super) block: usize,
    pub(super) turn: usize,
}

/// What passes from step to step.
#[derive(Clone, Default)]
pub(super) struct Lineage {
    pub(super) members: Vec<Member>,
    /// In order. None goes on beyond the end of its step.
    stays: Vec<Stay>,
}

impl Lineage {
    /// What is to be packed. Each stay goes on until its bytes are cleared, or the next begins;
    /// the last one into the first step. `cleared` is by change of a step.
    pub(super) fn item(&self, trace: &Trace, cleared: &[u32], turns: u32) -> Item {
        let count = cleared.len() as u32;
        let all = count * turns;
        let first = self.stays[0].0;
        let until = |&(start, end): &Stay| {
            let step = start / count * count;
            let until = cleared.get((end - step) as usize).map_or(end, |&until| step + until);
            until.max(end)
        };
        let starts = self.stays[1..].iter().map(|stay| stay.0).chain([all + first]);
        let ends = self.stays.iter().zip(starts).map(|(stay, next)| until(stay).min(next));
        let ends: Vec<u32> = ends.collect();
        let beyond = ends[ends.len() - 1].saturating_sub(all);
        let into_first = (beyond > 0).then_some((0, beyond));
        let stays = self.stays.iter().zip(&ends).map(|(stay, &end)| (stay.0, end.min(all)));
        Item {
            size_bytes: trace.blocks[self.members[0].block].size_bytes,
            stays: into_first.into_iter().chain(stays).collect(),
        }
    }
}

/// What has a lot where steps take so many turns.
pub(super) fn lineages(
    trace: &Trace,
    usage: &Usage,
    residency: &Residency,
    turns: u32,
) -> Vec<Lineage> {
    let block_count = trace.blocks.len();
    let count = residency.changes.len() as u32;
    let stays = stays(residency);
    let heads = heads(usage, turns as usize);
    let mut lineages = vec![Lineage::default(); heads.len()];
    for (node, &head) in heads.iter().enumerate() {
        let (block, turn) = (node % block_count, node / block_count);
        let before = turn as u32 * count;
        lineages[head].members.push(Member { block, turn });
        lineages[head].stays.extend(stays[block].iter().map(|it| (before + it.0, before + it.1)));
    }
    let whole: Vec<Stay> = (0..turns).map(|turn| (turn * count, (turn + 1) * count)).collect();
    lineages.retain_mut(|Lineage { members, stays }| {
        stays.sort_unstable();
        let moves = !stays.is_empty() && *stays != whole;
        // What the step makes for the next one may live beside what the last step made.
        let alone = stays.windows(2).all(|pair| pair[0].1 <= pair[1].0);
        moves && alone && members.iter().all(|member| returns(trace, usage, member.block))
    });
    lineages
}

/// By turn, then by block: the first of those that are one block in steps that follow each other;
/// any of them where there is no first.
fn heads(usage: &Usage, turns: usize) -> Vec<usize> {
    let block_count = usage.successor.len();
    let nodes = 0..block_count * turns;
    let next = |node: usize| {
        let (block, turn) = (node % block_count, node / block_count);
        let successor = usage.successor[block];
        (successor != NONE).then(|| (turn + 1) % turns * block_count + successor as usize)
    };
    let is_first = |&node: &usize| usage.predecessor[node % block_count] == NONE;
    let mut heads: Vec<Option<usize>> = vec![None; nodes.len()];
    for head in nodes.clone().filter(is_first).chain(nodes) {
        let mut node = Some(head);
        while let Some(of) = node.filter(|&node| heads[node].is_none()) {
            heads[of] = Some(head);
            node = next(of);
        }
    }
    heads.into_iter().map(|head| head.expect("each was a start")).collect()
}

/// Whether what a step finds of a block is what the last step left of one.
fn returns(trace: &Trace, usage: &Usage, block: usize) -> bool {
    let persistent = trace.blocks[block].origin == Origin::Persistent;
    let found = !persistent || usage.predecessor[block] != NONE;
    let left = usage.freed[block] != NONE || usage.successor[block] != NONE;
    found && left
}

/// By block: from which change to which it is on the device.
fn stays(residency: &Residency) -> Vec<Vec<Stay>> {
    let mut stays = vec![Vec::new(); residency.at_start.len()];
    let mut since: Vec<Option<u32>> =
        residency.at_start.iter().map(|&resident| resident.then_some(0)).collect();
    for (now, change) in (0..).zip(&residency.changes) {
        let block = change.block as usize;
        match since[block].take() {
            _ if change.arrives => since[block] = Some(now),
            Some(start) if start < now => stays[block].push((start, now)),
            _ => {}
        }
    }
    let end = residency.changes.len() as u32;
    for (block, since) in since.into_iter().enumerate() {
        stays[block].extend(since.filter(|&start| start < end).map(|start| (start, end)));
    }
    stays
}
