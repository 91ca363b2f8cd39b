//! Looks for prices that give a high bound.

use super::flow::Flow;
use super::market::{Market, Prices};

/// How much colder a search ends than it began.
const COOLED: f64 = 0.1;
/// How much of the slope and of its square is kept from one try to the next.
const KEPT: [f64; 2] = [0.8, 0.95];
/// The bound of every so many tries is looked at.
const EVERY: usize = 4;

/// The highest bound found by so many tries from some prices on, in microseconds, with its prices.
///
/// At a heat, paths count that earn less than the best by as much, as a share of what a copy back
/// takes; and prices change by as much at once. It falls from try to try.
pub(super) fn ascend(
    market: &Market<'_>,
    start: Prices,
    start_heat: f64,
    tries: usize,
) -> (f64, Prices) {
    let mut best = (market.least_us(&start), start.clone());
    let mut search = Search {
        prices: start,
        slope: Prices::none(market.pieces),
        first: Prices::none(market.pieces),
        second: Prices::none(market.pieces),
        number: 0,
    };
    let mut flow = Flow::new(market);
    for number in 1..=tries {
        let heat = start_heat * COOLED.powf(number as f64 / tries as f64);
        flow.slope(&search.prices, heat, &mut search.slope);
        search.step(heat);
        if number % EVERY == 0 {
            let us = market.least_us(&search.prices);
            if us > best.0 {
                best = (us, search.prices.clone());
            }
        }
    }
    best
}

/// Prices that move along the slope, each at a pace of its own: by what it keeps of the slope, in
/// what it keeps of the slope's size.
struct Search {
    prices: Prices,
    slope: Prices,
    first: Prices,
    second: Prices,
    number: i32,
}

impl Search {
    fn step(&mut self, pace: f64) {
        self.number += 1;
        // Both began with nothing kept.
        let [first_share, second_share] = KEPT.map(|kept| 1.0 - kept.powi(self.number));
        let keep =
            |kept: &mut f64, value: f64, share: f64| *kept += (1.0 - share) * (value - *kept);
        let size = |second: f64| pace / first_share / (second / second_share).sqrt().max(1e-9);
        for (cut, &slope) in self.slope.memory.iter().enumerate() {
            keep(&mut self.first.memory[cut], slope, KEPT[0]);
            keep(&mut self.second.memory[cut], slope * slope, KEPT[1]);
            let step = size(self.second.memory[cut]) * self.first.memory[cut];
            self.prices.memory[cut] = (self.prices.memory[cut] + step).max(0.0);
        }
        for piece in 0..self.slope.link[0].len() {
            let slopes = [self.slope.link[0][piece], self.slope.link[1][piece]];
            // Both prices of a piece move at one pace, or what they come to would go astray.
            let larger = slopes[0].abs().max(slopes[1].abs());
            keep(&mut self.second.link[0][piece], larger * larger, KEPT[1]);
            let size = size(self.second.link[0][piece]);
            let mut link = [0.0; 2];
            for way in 0..2 {
                keep(&mut self.first.link[way][piece], slopes[way], KEPT[0]);
                let step = size * self.first.link[way][piece];
                link[way] = (self.prices.link[way][piece] + step).max(0.0);
            }
            let [out, back] = within_one(link);
            self.prices.link[0][piece] = out;
            self.prices.link[1][piece] = back;
        }
    }
}

/// The nearest prices that come to no more than 1.
fn within_one([out, back]: [f64; 2]) -> [f64; 2] {
    let over = (out + back - 1.0).max(0.0);
    match (out - over / 2.0, back - over / 2.0) {
        (one, _) if one < 0.0 => [0.0, 1.0],
        (_, one) if one < 0.0 => [1.0, 0.0],
        (out, back) => [out, back],
    }
}
