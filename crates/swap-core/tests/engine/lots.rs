//! Random lots for the blocks of a step: as a planner would lay them out, and nonsense.

use std::collections::BTreeSet;

use swap_core::{Lot, LotPiece, Orders, Trace};

use super::script::{Random, lives};

/// Draws lots for steps like `trace`. Some are of no block.
pub(crate) fn random_lots(
    trace: &Trace,
    random: &mut Random,
    granularity_bytes: u64,
) -> Vec<Option<Lot>> {
    match random.below(6) {
        0 | 1 => apart(trace),
        2 => shared(trace, random),
        3 => crowded(trace),
        4 => nonsense(trace, random, granularity_bytes),
        _ => Vec::new(),
    }
}

/// Orders under which blocks lie in these lots, some of them in pieces. Under most, steps take
/// turns: in the other one each block has the lot of the block behind it, so that what has moved
/// up by one, as another was freed, lies where it is to.
pub(crate) fn laid_out(orders: Orders, lots: &[Option<Lot>], granularity_bytes: u64) -> Orders {
    let (lots, pieces) = cut_some(lots, granularity_bytes);
    let mut turns = vec![lots.clone()];
    if lots.len() % 3 > 0 {
        let behind = lots[1..].iter().chain(&lots[..1]);
        turns.push(behind.copied().collect());
    }
    orders.with_lots(turns).with_pieces(pieces)
}

/// The same memory, of which some lots have the upper half below the lower one: these are in
/// pieces, and lie beyond all others.
fn cut_some(lots: &[Option<Lot>], granularity_bytes: u64) -> (Vec<Option<Lot>>, Vec<LotPiece>) {
    let is_cut = |lot: &Lot| {
        let is_whole = |bytes: u64| bytes.is_multiple_of(granularity_bytes);
        let is_one = is_whole(lot.offset_bytes) && is_whole(lot.size_bytes) && lot.size_bytes > 0;
        is_one && lot.end_bytes() < END_BYTES_MAX && lot.offset_bytes / granularity_bytes % 3 == 1
    };
    let ends = lots.iter().flatten().map(|lot| lot.end_bytes()).filter(|&end| end < END_BYTES_MAX);
    let mut beyond_bytes = ends.max().unwrap_or(0).next_multiple_of(granularity_bytes);
    let (mut pieces, mut moved) = (Vec::new(), Vec::new());
    for lot in lots.iter().flatten().filter(|lot| is_cut(lot)).collect::<BTreeSet<_>>() {
        moved.push((*lot, Lot { offset_bytes: beyond_bytes, ..*lot }));
        let lower_bytes = lot.size_bytes / granularity_bytes / 2 * granularity_bytes;
        let middle_bytes = lot.offset_bytes + lower_bytes;
        for (start, end) in [(middle_bytes, lot.end_bytes()), (lot.offset_bytes, middle_bytes)] {
            if start < end {
                let memory = Lot { offset_bytes: start, size_bytes: end - start };
                pieces.push(LotPiece { shown_at_bytes: beyond_bytes, memory });
                beyond_bytes += memory.size_bytes;
            }
        }
    }
    let place = |lot: Lot| moved.iter().find(|(from, _)| *from == lot).map_or(lot, |&(_, to)| to);
    (lots.iter().map(|lot| lot.map(place)).collect(), pieces)
}

/// No lot that a device can have ends there.
const END_BYTES_MAX: u64 = 1 << 40;

/// No two blocks that live at the same time share a byte.
fn apart(trace: &Trace) -> Vec<Option<Lot>> {
    let lives = lives(trace);
    let mut placed: Vec<(Lot, (u32, u32))> = Vec::new();
    for (block, &life) in trace.blocks.iter().zip(&lives) {
        let meets = |&&(_, other): &&(Lot, (u32, u32))| life.0 <= other.1 && other.0 <= life.1;
        let mut others: Vec<Lot> = placed.iter().filter(meets).map(|&(lot, _)| lot).collect();
        others.sort_unstable();
        let mut offset_bytes = 0;
        for other in others {
            if other.offset_bytes >= offset_bytes + block.size_bytes {
                break;
            }
            offset_bytes = offset_bytes.max(other.end_bytes());
        }
        placed.push((Lot { offset_bytes, size_bytes: block.size_bytes }, life));
    }
    placed.into_iter().map(|(lot, _)| Some(lot)).collect()
}

/// As [`apart`], but some lie where others do, which may be away meanwhile.
pub(crate) fn shared(trace: &Trace, random: &mut Random) -> Vec<Option<Lot>> {
    let mut lots = apart(trace);
    for at in 0..lots.len() {
        let other = lots[random.below(lots.len() as u64) as usize];
        if let (Some(lot), Some(other), true) = (&mut lots[at], other, random.chance(40)) {
            lot.offset_bytes = other.offset_bytes;
        }
    }
    lots
}

/// All lie in one place, where only one can be.
fn crowded(trace: &Trace) -> Vec<Option<Lot>> {
    let lot = |size_bytes| Some(Lot { offset_bytes: 0, size_bytes });
    trace.blocks.iter().map(|block| lot(block.size_bytes)).collect()
}

/// Anything, for blocks that the step has and others that it has not.
pub(crate) fn nonsense(
    trace: &Trace,
    random: &mut Random,
    granularity_bytes: u64,
) -> Vec<Option<Lot>> {
    let sizes = trace.blocks.iter().map(|block| block.size_bytes);
    let more = std::iter::repeat_n(8 * granularity_bytes, random.below(5) as usize);
    let mut lot = |size_bytes: u64| {
        let offset_bytes = match random.below(40) {
            0 => u64::MAX - granularity_bytes,
            1 => 100,
            2 => 1 << 50,
            _ => random.below(64) * granularity_bytes,
        };
        let size_bytes = match random.below(20) {
            0 => 0,
            1 => size_bytes + 100,
            2 => size_bytes - granularity_bytes,
            3 => size_bytes + granularity_bytes,
            4 => random.below(16) * granularity_bytes,
            _ => size_bytes,
        };
        random.chance(85).then_some(Lot { offset_bytes, size_bytes })
    };
    sizes.chain(more).map(&mut lot).collect()
}
