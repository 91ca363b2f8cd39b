//! A bound that more memory never makes higher.
//!
//! ```text
//!   all fits                                            as little as can be
//!   ├──┬───┬──────┬────────────┬────────────────────────┤     memory, falling
//!   rung 0 1      2            3      ^                 4
//!                                     limit: claims of rungs 0 to 4
//! ```
//!
//! Windows and prices that are good for one limit say something about all others (`claim.rs`). So
//! they are looked for at rungs: limits that depend on the step alone. What is known of a limit is
//! the best claim of the rungs with more memory and of the next one with less.
//!
//! **It never rises with memory.** Let one limit be below another. All rungs that count for the
//! larger one count for the smaller, and each claim, the same for both, is no lower at the smaller
//! one. So neither is the best of them.
//!
//! A rung begins with the prices that the one before it found, so that it has little to climb.

use super::ascent::ascend;
use super::claim::{Claim, Term};
use super::duplex::Task;
use super::market::{Market, Prices};
use super::pieces::{Cut, Pieces};
use super::{Bound, Choice};

/// What must be away at the first rung, as a share of what can be.
const FIRST: f64 = 1.0 / 32.0;
/// Rungs from one to where twice as much must be away.
const RUNGS: i32 = 4;
/// Gaps looked at for the windows of a rung, at most.
const LOOKS_MAX: usize = 25_000;

/// The heat from which prices climb.
const HEAT: f64 = 0.02;
/// Tries of a rung, at least and at most.
const TRIES: [usize; 2] = [12, 40];
/// Pieces of blocks' lives looked at by all tries of a rung, about.
const LOOKS: usize = 50_000;

/// A step cut somewhere, and prices for it.
pub(super) struct Priced {
    pub(super) pieces: Pieces,
    pub(super) prices: Prices,
}

impl Bound<'_> {
    /// The bound for a limit.
    pub(super) fn of_ladder(&self, limit_bytes: u64) -> f64 {
        let excess_bytes = self.excess_bytes(limit_bytes);
        let (mut best_us, mut last) = (0.0_f64, None);
        for rung_bytes in self.rungs() {
            let (claims, priced) = self.claims(rung_bytes, last);
            best_us = claims.iter().fold(best_us, |most, claim| claim.us(&excess_bytes).max(most));
            if rung_bytes <= limit_bytes {
                break;
            }
            last = priced;
        }
        best_us
    }

    /// Limits at which windows and prices are looked for, falling.
    fn rungs(&self) -> Vec<u64> {
        let most_bytes = self.forced_bytes.iter().copied().max().unwrap_or(0);
        let least =
            |(slot, bytes): (usize, &u64)| bytes.saturating_sub(self.windows.total_bytes(slot));
        let least_bytes = self.forced_bytes.iter().enumerate().map(least).max().unwrap_or(0);
        let range_bytes = most_bytes - least_bytes;
        let share = |rung: i32| FIRST * 2_f64.powf(f64::from(rung) / f64::from(RUNGS));
        let below = (0..).map(share).take_while(|&share| share < 1.0);
        let limit_bytes = |share: f64| most_bytes - (share * range_bytes as f64) as u64;
        below.map(limit_bytes).chain([least_bytes]).collect()
    }

    /// What can be said at a rung, with its prices.
    fn claims(&self, rung_bytes: u64, last: Option<Priced>) -> (Vec<Claim>, Option<Priced>) {
        let excess_bytes = self.excess_bytes(rung_bytes);
        let choices = self.choices(&excess_bytes, LOOKS_MAX);
        let mut claims: Vec<Claim> =
            choices.iter().map(|choice| self.claim_of(choice, &excess_bytes)).collect();
        let best = choices.iter().max_by(|one, other| one.lacks_us.total_cmp(&other.lacks_us));
        let Some(best) = best.filter(|best| best.lacks_us > 0.0) else { return (claims, last) };
        // Prices know nothing of what early copies make others wait.
        let is_priced = |task: &&Task| task.window.most_us.is_infinite();
        let tasks: Vec<Task> = best.tasks.iter().filter(is_priced).cloned().collect();
        if tasks.is_empty() {
            return (claims, last);
        }
        let Priced { pieces, prices } = self.start(&tasks, &excess_bytes, last);
        let lives = self.lives(&pieces);
        let market = Market::new(&pieces, &lives, self.machine);
        let looks: usize = lives.iter().map(|life| life.stages(pieces.count()).count()).sum();
        let tries = (LOOKS / looks.max(1)).clamp(TRIES[0], TRIES[1]);
        let (us, prices) = ascend(&market, prices, HEAT, tries);
        // Prices do not say where a step is longer, so all of its idle time may hide some of that.
        let us = us - self.idle.total_us();
        claims.push(self.claim_at(&market, &prices, &excess_bytes, us));
        (claims, Some(Priced { pieces, prices }))
    }

    /// What windows say, by their weights.
    fn claim_of(&self, choice: &Choice, excess_bytes: &[u64]) -> Claim {
        let mut terms = Vec::new();
        for (task, &weight) in choice.tasks.iter().zip(&choice.weights).filter(|(_, w)| **w > 0.0) {
            for window in task.windows() {
                let (sums, other_bytes) = self.windows.sums_in(window);
                let us_per_byte = weight * window.us_per_byte();
                let most_us = weight * (window.most_us + window.free_us);
                terms.push(Term { slot: window.peak, other_bytes, sums, us_per_byte, most_us });
            }
        }
        Claim::new(terms, excess_bytes, choice.adds_us())
    }

    /// What prices say that come to so much.
    fn claim_at(
        &self,
        market: &Market<'_>,
        prices: &Prices,
        excess_bytes: &[u64],
        us: f64,
    ) -> Claim {
        let cuts = market.pieces.cuts.iter().zip(prices.memory.chunks_exact(2));
        let priced = cuts.filter(|(_, price)| price[0] + price[1] > 0.0);
        let term = |(cut, price): (&Cut, &[f64])| Term {
            slot: cut.slot,
            other_bytes: 0,
            sums: self.windows.sums_at(cut.slot),
            us_per_byte: (price[0] + price[1]) * market.back_us(1.0),
            most_us: f64::INFINITY,
        };
        Claim::new(priced.map(term).collect(), excess_bytes, us)
    }
}
