//! Prices to begin with: those of windows, or those that were good for a little more memory.

use swap_core::Direction;

use super::Bound;
use super::duplex::Task;
use super::ladder::Priced;
use super::lives::{Life, lives};
use super::market::{Market, Prices};
use super::pieces::{Pieces, highest_slots};
use super::window::Window;

/// At how many peaks a step is cut beside the ends of windows.
const PEAKS: usize = 6;
/// What link time costs in windows; the best of these is taken.
const WEIGHTS: [f64; 3] = [0.2, 0.5, 1.0];
/// A cut of prices found before is kept if a byte at it costs more than this, in what moving it
/// back takes.
const PRICE_MIN: f64 = 0.1;

impl Bound<'_> {
    /// The better of the prices of windows and of those found before, for a step that is cut where
    /// both need it and at its highest peaks.
    pub(super) fn start(
        &self,
        tasks: &[Task],
        excess_bytes: &[u64],
        before: Option<Priced>,
    ) -> Priced {
        let windows = tasks.iter().flat_map(Task::windows);
        let mut slots: Vec<usize> = windows.flat_map(|window| self.ends(window)).collect();
        slots.extend(highest_slots(excess_bytes, &self.windows.turns, PEAKS));
        if let Some(Priced { pieces, prices }) = &before {
            let costs = pieces.cuts.iter().zip(prices.memory.chunks_exact(2));
            let kept = costs.filter(|(_, price)| price[0] + price[1] > PRICE_MIN);
            slots.extend(kept.map(|(cut, _)| cut.slot));
        }
        let whole = |slot: usize| self.windows.sums_at(slot).at_least(excess_bytes[slot]);
        let pieces = Pieces::new(self.trace, self.usage, whole, slots);
        let prices = self.of_windows(tasks, &pieces);
        let weighted = WEIGHTS.map(|weight| prices.weighted(weight));
        let before = before.map(|before| refine(&before.pieces, &before.prices, &pieces));
        let lives = self.lives(&pieces);
        let market = Market::new(&pieces, &lives, self.machine);
        let all = weighted.into_iter().chain(before);
        let worth = all.map(|prices| (market.least_us(&prices), prices));
        let best = worth.max_by(|one, other| one.0.total_cmp(&other.0));
        let (_, prices) = best.expect("there are weights");
        Priced { pieces, prices }
    }

    /// Link time has a price in windows, and none outside; memory has that of the link where they
    /// begin or end.
    fn of_windows(&self, tasks: &[Task], pieces: &Pieces) -> Prices {
        let mut whole = Prices::none(pieces);
        for Task { window, .. } in tasks {
            let [from, to] = self.ends(window).map(|slot| pieces.cut_at(slot).0);
            let way = usize::from(window.direction == Direction::In);
            let mut piece = 2 * from + 1;
            while piece != 2 * to {
                whole.link[way][piece] = 1.0;
                piece = (piece + 1) % pieces.count();
            }
            let price = window.us_per_byte() * self.machine.link.in_bytes_per_us;
            whole.memory[2 * pieces.cut_at(window.peak).0 + way] += price;
        }
        whole
    }

    pub(super) fn lives(&self, pieces: &Pieces) -> Vec<Life> {
        let replays_us = self.replays.us_by_gap();
        lives(self.trace, self.usage, &self.windows.gaps, &replays_us, pieces)
    }

    /// The slots before a window begins and where it ends.
    fn ends(&self, window: &Window) -> [usize; 2] {
        let count = self.usage.slot_count();
        [(window.start + count - 1) % count, (window.start + window.slots) % count]
    }
}

/// The same prices for other pieces: of memory at the cuts that both have, of the link where a
/// piece begins.
fn refine(coarse: &Pieces, prices: &Prices, fine: &Pieces) -> Prices {
    let mut finer = Prices::none(fine);
    for (number, cut) in fine.cuts.iter().enumerate() {
        let (before, is_same) = coarse.cut_at(cut.slot);
        if is_same {
            for end in 0..2 {
                finer.memory[2 * number + end] = prices.memory[2 * before + end];
            }
        }
        for way in 0..2 {
            let op = 2 * before + usize::from(!is_same);
            finer.link[way][2 * number] = prices.link[way][op];
            finer.link[way][2 * number + 1] = prices.link[way][2 * before + 1];
        }
    }
    finer
}
