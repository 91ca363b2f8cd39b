//! What a step costs at given prices of memory and of link time.
//!
//! Let every byte away at a cut earn a price, and every microsecond of a copy cost one, by piece
//! and direction. Then each block's bytes can be planned by themselves: what they earn at most is
//! the longest path through their states.
//!
//! ```text
//!            copy out            leave           take memory          copy in
//!   DEVICE ───────────> BOTH ───────────> HOST ───────────> COMING ───────────> BOTH
//!     │  <───────────── MAKING <───────── DROPPED
//!     │      replay             take memory   ^
//!     └───────────────────────────────────────┘  drop
//! ```
//!
//! All that must be away at the cuts, at its prices, less the time that pieces have for copies, at
//! theirs, less what the blocks earn, is never above what any plan adds: that is weak duality, and
//! holds for all prices that are not negative, if those of both directions come to no more than 1
//! in each piece. A replay's own time is time for copies, too.

use swap_core::Direction;

use super::lives::Life;
use super::pieces::Pieces;
use crate::machine::Machine;

/// Prices, or what belongs to each of them.
#[derive(Clone, Debug)]
pub(super) struct Prices {
    /// Of a byte that is away when the op of a cut begins, and when it ends, cut by cut, in what
    /// moving it back takes.
    pub(super) memory: Vec<f64>,
    /// By piece: of a microsecond of copies out and in.
    pub(super) link: [Vec<f64>; 2],
}

impl Prices {
    /// All 0.
    pub(super) fn none(pieces: &Pieces) -> Prices {
        let link = [(); 2].map(|()| vec![0.0; pieces.count()]);
        Prices { memory: vec![0.0; pieces.count()], link }
    }

    /// A share of these prices.
    pub(super) fn weighted(&self, weight: f64) -> Prices {
        let of = |prices: &Vec<f64>| prices.iter().map(|price| weight * price).collect();
        Prices { memory: of(&self.memory), link: [of(&self.link[0]), of(&self.link[1])] }
    }

    /// What a replay that takes so long costs in a piece.
    pub(super) fn replay_us(&self, piece: usize, device_us: f64) -> f64 {
        device_us * (1.0 - self.link[0][piece] - self.link[1][piece]).max(0.0)
    }
}

/// What copies of one direction take of the time that it has, and of the other direction's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    us_per_byte: f64,
    us_per_copy: f64,
    other_us_per_byte: f64,
}

impl Rate {
    fn new(machine: &Machine, outward: bool) -> Rate {
        let us_per_byte = 1.0 / machine.link.rate(outward, false);
        Rate {
            us_per_byte,
            us_per_copy: machine.copy_submit_us * (1.0 - taken_share(machine, outward)),
            other_us_per_byte: taken_share(machine, !outward) * us_per_byte,
        }
    }

    /// What a copy takes of its own direction's time.
    pub(super) fn own_us(&self, bytes: f64) -> f64 {
        bytes * self.us_per_byte + self.us_per_copy
    }

    /// What a copy takes of the other direction's time.
    pub(super) fn other_us(&self, bytes: f64) -> f64 {
        bytes * self.other_us_per_byte
    }
}

/// What each microsecond of the other direction's copies takes of one direction's time.
///
/// Let one direction take `a` and the other `b` to move its bytes alone, and let their rates fall
/// to shares `p` and `q` while both run. Alone the first then runs for `a - p t` and the other for
/// `b - q t`, and both for `t`. So `a + b (1 - p) / q` is the time in which the first runs, and a
/// share of that in which only the other does: with a share of at most 1, no more than there is.
/// While a copy is submitted, the other direction is as fast as alone.
fn taken_share(machine: &Machine, outward: bool) -> f64 {
    let slower = |outward| machine.link.rate(outward, true) / machine.link.rate(outward, false);
    ((1.0 - slower(outward)) / slower(!outward)).min(1.0)
}

/// All that prices are for.
pub(super) struct Market<'a> {
    pub(super) pieces: &'a Pieces,
    pub(super) lives: &'a [Life],
    /// Of copies out and in.
    pub(super) rates: [Rate; 2],
}

impl<'a> Market<'a> {
    pub(super) fn new(pieces: &'a Pieces, lives: &'a [Life], machine: &Machine) -> Market<'a> {
        let rates = [Direction::Out, Direction::In];
        let rates = rates.map(|way| Rate::new(machine, way == Direction::Out));
        Market { pieces, lives, rates }
    }

    /// What having bytes back takes.
    pub(super) fn back_us(&self, bytes: f64) -> f64 {
        bytes * self.rates[1].us_per_byte
    }

    /// What a copy of so many bytes costs in a piece.
    pub(super) fn copy_us(&self, prices: &Prices, way: usize, piece: usize, bytes: f64) -> f64 {
        let rate = &self.rates[way];
        prices.link[way][piece] * rate.own_us(bytes)
            + prices.link[1 - way][piece] * rate.other_us(bytes)
    }

    /// The least that a plan adds to the step, in microseconds, by these prices.
    pub(super) fn least_us(&self, prices: &Prices) -> f64 {
        let Pieces { cuts, free_us, .. } = self.pieces;
        let away = cuts.iter().zip(prices.memory.chunks_exact(2));
        let away_us =
            away.map(|(cut, price)| (price[0] + price[1]) * self.back_us(cut.excess_bytes as f64));
        let free = |way: &Vec<f64>| -> f64 { way.iter().zip(free_us).map(|(p, us)| p * us).sum() };
        let earned = |life: &Life| f64::from(life.blocks) * self.most_us(life, prices);
        away_us.sum::<f64>()
            - prices.link.iter().map(free).sum::<f64>()
            - self.lives.iter().map(earned).sum::<f64>()
    }

    /// The most that a block of a life earns.
    fn most_us(&self, life: &Life, prices: &Prices) -> f64 {
        let bytes = life.size_bytes as f64;
        let back_us = self.back_us(bytes);
        let never = f64::NEG_INFINITY;
        let [mut host, mut coming, mut dropped, mut making] = [never; 4];
        let [mut device, mut both] = if life.is_copied { [never, 0.0] } else { [0.0, never] };
        for stage in life.stages(self.pieces.count()) {
            let piece = stage.piece;
            if stage.is_cut {
                let earned_us = prices.memory[piece] * back_us;
                host += earned_us;
                dropped += earned_us;
            }
            coming = host.max(coming);
            making = dropped.max(making);
            device = device.max(making - prices.replay_us(piece, stage.replay_us.unwrap_or(0.0)));
            both = both.max(device - self.copy_us(prices, 0, piece, bytes));
            both = both.max(coming - self.copy_us(prices, 1, piece, bytes));
            if stage.closes {
                [host, coming, dropped, making] = [never; 4];
            }
            if stage.can_leave {
                host = host.max(both);
            }
            if stage.can_drop {
                dropped = dropped.max(both).max(device);
            }
            if stage.is_cut {
                let earned_us = prices.memory[piece + 1] * back_us;
                host += earned_us;
                dropped += earned_us;
            }
        }
        [device, both, host, coming, dropped, making].into_iter().fold(0.0, f64::max)
    }
}
