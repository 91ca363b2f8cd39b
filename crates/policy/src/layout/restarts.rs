//! Builds packings again and again, each time in another order: one that starts well ends soon, and
//! one that starts badly ends never. The same seed gives the same orders.

use std::cmp::Reverse;

use super::build::{Builder, Limits};
use super::pack::Item;
use swap_core::devices::Numbers;

/// How often an attempt may go on to another item, for each that is to be placed.
const NODES_PER_ITEM: u64 = 4;
/// Every second attempt may go on twice as often, every fourth four times as often, and so on.
const DOUBLINGS_MAX: u32 = 16;

/// How much an order leaves to chance, in turn, of so many parts.
const CHANCES: [u64; 5] = [0, 150, 250, 350, 500];
const CHANCE_PARTS: u64 = 1_000;
/// Of so many orders one is by area, and the others by lifetime.
const AREA_EVERY: u64 = 4;

/// The most attempts, and the most sections that they look at, for each unit of effort: together
/// a fiftieth of a second.
const ATTEMPTS_MAX: u32 = 64;
const WORK_MAX: u64 = 20_000_000;

const SEED: u64 = 1;

pub(super) struct Restarts {
    builder: Builder,
    numbers: Numbers,
    attempts: u64,
    lifetimes: Vec<u64>,
    sizes_bytes: Vec<u64>,
}

impl Restarts {
    /// `None` if nothing can be built of these.
    pub(super) fn new(items: &[Item], need_bytes: u64) -> Option<Restarts> {
        let builder = Builder::new(items, need_bytes)?;
        let lifetimes = builder.lifetimes();
        let sizes_bytes = items.iter().map(|item| item.size_bytes).collect();
        let numbers = Numbers::new(SEED);
        Some(Restarts { builder, numbers, attempts: 0, lifetimes, sizes_bytes })
    }

    /// Offsets by item, all lots ending at the ceiling or below, if some are found with this much
    /// effort.
    pub(super) fn build(&mut self, ceiling_bytes: u64, effort: u32) -> Option<Vec<u64>> {
        let work_max = self.builder.work + WORK_MAX * u64::from(effort);
        for _ in 0..ATTEMPTS_MAX.saturating_mul(effort) {
            if self.builder.work >= work_max {
                break;
            }
            let order = self.order();
            let doublings = self.attempts.trailing_ones().min(DOUBLINGS_MAX);
            let nodes = NODES_PER_ITEM * order.len() as u64 * (1 << doublings);
            self.attempts += 1;
            let limits = Limits { nodes, work: work_max - self.builder.work };
            if let Ok(built) = self.builder.build(&order, ceiling_bytes, limits) {
                return built;
            }
        }
        None
    }

    /// What is longest there comes first, more or less.
    fn order(&mut self) -> Vec<u32> {
        let by_area = self.attempts % AREA_EVERY == AREA_EVERY - 1;
        let chance = CHANCES[(self.attempts % CHANCES.len() as u64) as usize];
        let numbers = &mut self.numbers;
        let weights =
            self.lifetimes.iter().zip(&self.sizes_bytes).map(|(&lifetime, &size_bytes)| {
                let share = CHANCE_PARTS - chance + numbers.below(2 * chance + 1);
                let weight = u128::from(lifetime) * u128::from(share);
                if by_area { weight * u128::from(size_bytes) } else { weight }
            });
        let weights: Vec<u128> = weights.collect();
        let mut order: Vec<u32> = (0..weights.len() as u32).collect();
        order.sort_by_key(|&item| {
            Reverse((weights[item as usize], self.sizes_bytes[item as usize]))
        });
        order
    }
}
