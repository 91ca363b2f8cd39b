//! Packs items of which some are in pieces. Addresses can show memory from several places side by
//! side, so whoever finds no room in one place may still find it in several. Enough bytes are then
//! free at any time for whatever comes once; only what comes back needs the same ones again.

use super::build::divisor;
use super::pack::{Item, orders};
use super::place::{Placer, Spots};

/// How far ceilings are above what is needed, in parts of it.
const CEILINGS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];
const CEILING_DIVISOR: u64 = 256;

/// All orders have so many rounds to fit below a ceiling.
const ROUNDS: u32 = 20;
/// The most lots looked at below each ceiling: a tenth of a second.
const WORK_MAX: u64 = 40_000_000;

/// Where items lie if some may be in pieces, below the lowest of a few ceilings for which that is
/// found, from this height on. Nothing if there is none. All starts and ends at multiples of what
/// divides all sizes.
pub(super) fn pack_in_pieces(items: &[Item], least_bytes: u64) -> Option<Vec<Spots>> {
    let mut placer = Placer::new(items);
    let unit_bytes = items.iter().fold(0, |unit, item| divisor(unit, item.size_bytes)).max(1);
    let mut all = orders(items).to_vec();
    all.push(by_start(items));
    CEILINGS.iter().find_map(|parts| {
        let ceiling_bytes = least_bytes + least_bytes / CEILING_DIVISOR * parts;
        below(&mut placer, &all, ceiling_bytes / unit_bytes * unit_bytes)
    })
}

/// Whoever finds no room comes first in the next round of its order.
fn below(placer: &mut Placer, orders: &[Vec<u32>], ceiling_bytes: u64) -> Option<Vec<Spots>> {
    let work_max = placer.work + WORK_MAX;
    let mut orders = orders.to_vec();
    for _ in 0..ROUNDS {
        for order in &mut orders {
            match placer.place_in_pieces(order, ceiling_bytes) {
                Ok(spots) => return Some(spots),
                Err(stuck) => order[..=stuck.largest].rotate_right(1),
            }
            if placer.work >= work_max {
                return None;
            }
        }
    }
    None
}

/// What comes back first, then by time.
fn by_start(items: &[Item]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..items.len() as u32).collect();
    order.sort_by_key(|&item| {
        let stays = &items[item as usize].stays;
        (stays.len() == 1, stays[0].0)
    });
    order
}
