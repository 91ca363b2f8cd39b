//! What blocks do at given prices if they are not quite strict about them.
//!
//! The best path of a block jumps as prices change, and says little of where they should go. So
//! all paths are taken here, each by a share that falls with what it earns less than the best:
//! `exp(earned / heat)`. What they do together changes smoothly.

use super::lives::{Life, Stage};
use super::market::{Market, Prices};

/// Larger powers would overflow.
const POWER_MAX: f64 = 600.0;

/// A stage with the shares of its states before it, and the weights of what is done in it.
#[derive(Clone, Copy)]
struct Step {
    stage: Stage,
    shares: Shares,
    weights: Weights,
    /// What the shares were divided by behind it.
    scale: f64,
}

#[derive(Clone, Copy, Default)]
struct Shares {
    device: f64,
    both: f64,
    host: f64,
    coming: f64,
    dropped: f64,
    making: f64,
}

impl Shares {
    fn all(self) -> [f64; 6] {
        [self.device, self.both, self.host, self.coming, self.dropped, self.making]
    }

    fn of(all: [f64; 6]) -> Shares {
        let [device, both, host, coming, dropped, making] = all;
        Shares { device, both, host, coming, dropped, making }
    }

    fn sum(self) -> f64 {
        self.all().into_iter().sum()
    }

    fn over(self, scale: f64) -> Shares {
        Shares::of(self.all().map(|share| share / scale))
    }
}

#[derive(Clone, Copy, Default)]
struct Weights {
    /// Of what is away when the op of a cut begins, and when it ends.
    away: [f64; 2],
    out: f64,
    back: f64,
    replay: f64,
}

/// Weights of blocks of one size, by piece or cut.
#[derive(Default)]
struct Table {
    size_bytes: u64,
    away: Vec<f64>,
    copies: [Vec<f64>; 2],
}

/// Finds how the bound changes with each price.
pub(super) struct Flow<'a> {
    market: &'a Market<'a>,
    table: Table,
    steps: Vec<Step>,
}

impl<'a> Flow<'a> {
    pub(super) fn new(market: &'a Market<'a>) -> Flow<'a> {
        Flow { market, table: Table::default(), steps: Vec::new() }
    }

    /// How the bound changes with each price, at a heat in shares of what a copy back takes.
    pub(super) fn slope(&mut self, prices: &Prices, heat: f64, slope: &mut Prices) {
        let market = self.market;
        for (slope, cut) in slope.memory.chunks_exact_mut(2).zip(&market.pieces.cuts) {
            slope.fill(market.back_us(cut.excess_bytes as f64));
        }
        for way in &mut slope.link {
            for (slope, us) in way.iter_mut().zip(&market.pieces.free_us) {
                *slope = -us;
            }
        }
        self.table.size_bytes = 0;
        for life in market.lives {
            let heat_us = heat * market.back_us(life.size_bytes as f64);
            if self.table.size_bytes != life.size_bytes {
                self.table = self.table_of(life.size_bytes, prices, heat, heat_us);
            }
            let end = self.forth(life, prices, heat_us);
            if end.sum() > 0.0 {
                self.back(life, prices, end.sum(), slope);
            }
        }
    }

    fn table_of(&self, size_bytes: u64, prices: &Prices, heat: f64, heat_us: f64) -> Table {
        let market = self.market;
        let bytes = size_bytes as f64;
        let weight = |way| {
            let us = move |piece| market.copy_us(prices, way, piece, bytes);
            (0..market.pieces.count()).map(|piece| (-us(piece) / heat_us).exp()).collect()
        };
        let away = |price: &f64| (price / heat).min(POWER_MAX).exp();
        Table {
            size_bytes,
            away: prices.memory.iter().map(away).collect(),
            copies: [weight(0), weight(1)],
        }
    }

    /// Follows all paths of a life, and returns the shares at its end.
    fn forth(&mut self, life: &Life, prices: &Prices, heat_us: f64) -> Shares {
        let [device, both] = if life.is_copied { [0.0, 1.0] } else { [1.0, 0.0] };
        let mut shares = Shares { device, both, ..Shares::default() };
        self.steps.clear();
        for stage in life.stages(self.market.pieces.count()) {
            let piece = stage.piece;
            let replay = |us| (-prices.replay_us(piece, us) / heat_us).exp();
            let weights = Weights {
                away: if stage.is_cut {
                    [self.table.away[piece], self.table.away[piece + 1]]
                } else {
                    [1.0; 2]
                },
                out: self.table.copies[0][piece],
                back: self.table.copies[1][piece],
                replay: stage.replay_us.map_or(0.0, replay),
            };
            let before = shares;
            shares = pass(&stage, &weights, shares).0;
            let sum = shares.sum();
            let scale = if (1e-9..1e9).contains(&sum) { 1.0 } else { sum };
            self.steps.push(Step { stage, shares: before, weights, scale });
            if sum <= 0.0 {
                break;
            }
            shares = shares.over(scale);
        }
        shares
    }

    /// Follows the paths back, and takes what they do from the slope.
    fn back(&self, life: &Life, prices: &Prices, sum: f64, slope: &mut Prices) {
        let market = self.market;
        let (blocks, bytes) = (f64::from(life.blocks), life.size_bytes as f64);
        // What a share of each state is worth behind a stage; all of them together come to 1.
        let mut worth = Shares::of([1.0 / sum; 6]);
        for &Step { stage, shares, weights, scale } in self.steps.iter().rev() {
            worth = worth.over(scale);
            let (behind, inside) = pass(&stage, &weights, shares);
            let back_us = blocks * market.back_us(bytes);
            if stage.is_cut {
                let away = behind.host * worth.host + behind.dropped * worth.dropped;
                slope.memory[stage.piece + 1] -= away * back_us;
                worth.host *= weights.away[1];
                worth.dropped *= weights.away[1];
            }
            if stage.can_drop {
                worth.device += worth.dropped;
                worth.both += worth.dropped;
            }
            if stage.can_leave {
                worth.both += worth.host;
            }
            if stage.closes {
                [worth.host, worth.coming, worth.dropped, worth.making] = [0.0; 4];
            }
            let copies = [inside.device * weights.out, inside.coming * weights.back];
            for (way, copied) in copies.into_iter().enumerate() {
                let copied = blocks * copied * worth.both;
                slope.link[way][stage.piece] += copied * market.rates[way].own_us(bytes);
                slope.link[1 - way][stage.piece] += copied * market.rates[way].other_us(bytes);
            }
            worth.coming += weights.back * worth.both;
            worth.device += weights.out * worth.both;
            if let Some(us) = stage.replay_us {
                let made = blocks * inside.making * weights.replay * worth.device;
                if prices.replay_us(stage.piece, 1.0) > 0.0 {
                    slope.link[0][stage.piece] -= made * us;
                    slope.link[1][stage.piece] -= made * us;
                }
                worth.making += weights.replay * worth.device;
                worth.dropped += worth.making;
            }
            worth.host += worth.coming;
            if stage.is_cut {
                worth.host *= weights.away[0];
                worth.dropped *= weights.away[0];
                let away = shares.host * worth.host + shares.dropped * worth.dropped;
                slope.memory[stage.piece] -= away * back_us;
            }
        }
    }
}

/// The shares behind a stage, and those from which copies and replays in it start.
fn pass(stage: &Stage, weights: &Weights, mut shares: Shares) -> (Shares, Shares) {
    shares.host *= weights.away[0];
    shares.dropped *= weights.away[0];
    shares.coming += shares.host;
    if stage.replay_us.is_some() {
        shares.making += shares.dropped;
        shares.device += weights.replay * shares.making;
    }
    let inside = shares;
    shares.both += weights.out * shares.device + weights.back * shares.coming;
    if stage.closes {
        [shares.host, shares.coming, shares.dropped, shares.making] = [0.0; 4];
    }
    if stage.can_leave {
        shares.host += shares.both;
    }
    if stage.can_drop {
        shares.dropped += shares.both + shares.device;
    }
    shares.host *= weights.away[1];
    shares.dropped *= weights.away[1];
    (shares, inside)
}
