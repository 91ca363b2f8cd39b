//! Bytes from their last write to the last gap that holds them.

use std::collections::BTreeMap;

use swap_core::{AccessMode, Trace};

use super::pieces::Pieces;
use crate::candidate::Gap;
use crate::usage::{NONE, Usage};

/// A stretch in which a block can be away, in cuts of a step that goes on for ever.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Away {
    /// The first and the last cut at which it can be.
    pub(super) first: i64,
    pub(super) last: i64,
    /// Whether it must be back behind the last one.
    pub(super) returns: bool,
    /// What making it again takes, if that can be done.
    pub(super) replay_us: Option<f64>,
}

/// The same bytes of one block, or of several that have the same to do at the same time. One copy
/// to the host serves all of its gaps.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) size_bytes: u64,
    /// How many blocks have it.
    pub(super) blocks: u32,
    /// The piece with which it begins: a copy to the host can start there.
    pub(super) start: i64,
    /// Whether the host may have the bytes from the start.
    pub(super) is_copied: bool,
    pub(super) gaps: Vec<Away>,
}

/// A gap, what a replay of its block takes, and by how many slots it lies elsewhere among those of
/// its bytes.
type Placed = (Gap, Option<f64>, i64);

/// All bytes that can be away at some cut.
pub(super) fn lives(
    trace: &Trace,
    usage: &Usage,
    gaps: &[Gap],
    replays_us: &[Option<f64>],
    pieces: &Pieces,
) -> Vec<Life> {
    let mut by_version: BTreeMap<(u32, bool), Vec<Placed>> = BTreeMap::new();
    for (&gap, &replay_us) in gaps.iter().zip(replays_us) {
        // A gap that goes on into the next step comes before those that its bytes have there.
        let is_round =
            usage.successor[gap.block as usize] != NONE && gap.to >= usage.slot_count() as i64;
        let shift = if is_round { -(usage.slot_count() as i64) } else { 0 };
        // The host may have had the bytes of an earlier step for ever.
        let is_old = is_round && last_write(usage, gap.block as usize, gap.from).is_none();
        by_version.entry((gap.version, is_old)).or_default().push((gap, replay_us, shift));
    }
    let mut alike: BTreeMap<Key, Life> = BTreeMap::new();
    for ((_, is_old), mut gaps) in by_version {
        gaps.sort_by_key(|(gap, _, shift)| gap.from + shift);
        let (first, _, shift) = gaps[0];
        let written = if is_old { None } else { written_slot(usage, &first) };
        let away = |&(gap, replay_us, shift): &Placed| away(pieces, &gap, replay_us, shift);
        let mut own: Vec<Away> = gaps.iter().filter_map(away).collect();
        let Some(begin) = own.first().map(|gap| gap.first) else { continue };
        // Steps are alike: the first cut can be one of the first step.
        let count = pieces.cuts.len() as i64;
        let rounds = begin.div_euclid(count) * count;
        for gap in &mut own {
            gap.first -= rounds;
            gap.last -= rounds;
        }
        let is_copied = first.clean || written.is_none();
        let start = match written {
            Some(slot) if !is_copied => 2 * (pieces.cuts_until(slot + shift) - rounds) - 1,
            _ => 2 * own[0].first - 1,
        };
        let size_bytes = trace.blocks[first.block as usize].size_bytes;
        let key = (size_bytes, start, is_copied, own.iter().map(key_of).collect());
        let life = Life { size_bytes, blocks: 0, start, is_copied, gaps: own };
        alike.entry(key).or_insert(life).blocks += 1;
    }
    alike.into_values().collect()
}

/// What lives that are alike have in common.
type Key = (u64, i64, bool, Vec<(i64, i64, bool, Option<u64>)>);

fn key_of(gap: &Away) -> (i64, i64, bool, Option<u64>) {
    (gap.first, gap.last, gap.returns, gap.replay_us.map(f64::to_bits))
}

/// A gap in cuts; nothing if it is over none.
fn away(pieces: &Pieces, gap: &Gap, replay_us: Option<f64>, shift: i64) -> Option<Away> {
    // In the slot that frees it, a block may be gone before the op runs.
    let end = gap.to - i64::from(!gap.returns && gap.freed != NONE);
    let first = pieces.cuts_until(gap.from + shift);
    let last = pieces.cuts_until(end - 1 + shift) - 1;
    (first <= last).then_some(Away { first, last, returns: gap.returns, replay_us })
}

/// The slot of the last write of a block up to a slot.
fn last_write(usage: &Usage, block: usize, until: i64) -> Option<i64> {
    let uses = usage.uses(block).iter().rev();
    let mut before = uses.skip_while(|use_| i64::from(use_.slot) > until);
    let write = before.find(|use_| use_.mode.is_none_or(AccessMode::writes))?;
    Some(i64::from(write.slot))
}

/// The slot that wrote a gap's bytes. A copy to the host may start after it, even if the block is
/// used in between. Nothing if they are those of two steps ago: then the host may have had them
/// all along.
pub(super) fn written_slot(usage: &Usage, gap: &Gap) -> Option<i64> {
    if let Some(slot) = last_write(usage, gap.block as usize, gap.from) {
        return Some(slot);
    }
    let before = usage.predecessor[gap.block as usize];
    if before == NONE {
        return None;
    }
    Some(last_write(usage, before as usize, i64::MAX)? - usage.slot_count() as i64)
}

/// A piece of a life, and what can be done in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage {
    /// The piece of the step.
    pub(super) piece: usize,
    /// Whether it is the op of a cut.
    pub(super) is_cut: bool,
    /// What a replay takes, if there can be one.
    pub(super) replay_us: Option<f64>,
    /// Whether the block must be back behind it.
    pub(super) closes: bool,
    /// Whether it can leave then.
    pub(super) can_leave: bool,
    /// Whether it can be dropped then.
    pub(super) can_drop: bool,
}

impl Life {
    /// Its pieces in order, in a step of so many.
    pub(super) fn stages(&self, count: usize) -> impl Iterator<Item = Stage> {
        let mut gaps = self.gaps.iter().copied().peekable();
        let end = self.gaps.last().map_or(self.start, |gap| 2 * gap.last + 1);
        let mut at = self.start.rem_euclid(count as i64) as usize;
        (self.start..=end).map(move |piece| {
            let mut stage = Stage {
                piece: at,
                is_cut: piece % 2 == 0,
                replay_us: gaps.peek().and_then(|gap| gap.replay_us),
                closes: false,
                can_leave: false,
                can_drop: false,
            };
            at = if at + 1 == count { 0 } else { at + 1 };
            if let Some(gap) = gaps.next_if(|gap| piece == 2 * gap.last + 1) {
                stage.closes = gap.returns;
            }
            if let Some(gap) = gaps.peek()
                && 2 * gap.first <= piece + 1
            {
                stage.can_leave = true;
                stage.can_drop = gap.replay_us.is_some();
            }
            stage
        })
    }
}
