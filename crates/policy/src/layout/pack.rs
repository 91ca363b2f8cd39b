//! Finds a low packing. Several greedy orders come first. Then items that find no room below a
//! ceiling go to the front of their order, one by one, until all fit: the largest of them below the
//! lowest of some ceilings for which that can be done, then the first below the best height. Where
//! that is not low enough, packings are built from the ground up below such ceilings.

use std::cmp::Reverse;

use super::meeting::meeting_bytes;
use super::place::{Fit, Placer, Stuck};
use super::restarts::Restarts;

/// From one time to another, that one not included. Not empty.
pub type Stay = (u32, u32);

/// What needs the same bytes in each of its stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// In each stay.
    pub size_bytes: u64,
    /// In order; at least one; none overlap.
    pub stays: Vec<Stay>,
}

/// Where items lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Packing {
    /// By item.
    pub offsets: Vec<u64>,
    /// The end of the highest.
    pub height_bytes: u64,
    /// The most bytes at once. No packing is lower; where items come back, all may be higher.
    pub need_bytes: u64,
}

/// What is known of an item before it has a place.
struct Traits {
    size_bytes: u64,
    /// The most bytes that are there during its stays.
    contention_bytes: u64,
    /// For how many changes it is there.
    lifetime: u64,
}

/// Who is placed first. The rest by what is named next.
#[derive(Clone, Copy)]
enum By {
    ContentionThenSize,
    ContentionThenLifetime,
    Size,
    Area,
}

/// How far ceilings are above what is needed, in parts of it.
const CEILINGS: [u64; 8] = [0, 1, 2, 4, 8, 16, 32, 64];
const CEILING_DIVISOR: u64 = 256;
/// An order has so many rounds to fit below a ceiling.
const ROUNDS: u32 = 40;

/// The most lots looked at below all ceilings, and for each order that is improved further:
/// together a fifth of a second.
const CEILINGS_WORK_MAX: u64 = 80_000_000;
const IMPROVING_WORK_MAX: u64 = 18_000_000;

/// How low a packing is to be, and what may be spent on that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aim {
    /// A packing of this height is as good as any lower one.
    pub height_bytes: u64,
    /// Where that is not reached, the search goes on for so many fiftieths of a second.
    pub effort: u32,
}

impl Default for Aim {
    /// As low as is found soon.
    fn default() -> Aim {
        Aim { height_bytes: 0, effort: 1 }
    }
}

/// Packs items: those that are there at the same time share no bytes. The same arguments give the
/// same packing.
pub fn pack(items: &[Item], aim: Aim) -> Packing {
    pack_above(|| meeting_bytes(items), items, aim)
}

/// What greedy orders come to, with one of this height as good as any lower one.
pub(super) fn pack_greedily(items: &[Item], enough_bytes: u64) -> Packing {
    greedy(items, enough_bytes).0.best
}

fn greedy(items: &[Item], enough_bytes: u64) -> (Search<'_>, [Vec<u32>; 4]) {
    let curve = Curve::new(items);
    let need_bytes = curve.peaks[0].iter().copied().max().unwrap_or(0);
    let best = Packing { offsets: vec![0; items.len()], height_bytes: u64::MAX, need_bytes };
    let enough_bytes = enough_bytes.max(need_bytes);
    let mut search = Search { items, placer: Placer::new(items), enough_bytes, best };
    let orders = curve.orders(items);
    for order in &orders {
        for fit in [Fit::Lowest, Fit::Best] {
            // Being stuck means being no better.
            let _ = search.attempt(order, fit, u64::MAX);
        }
    }
    (search, orders)
}

/// As [`pack`], where it may be known already that no packing is lower than so many bytes.
pub(super) fn pack_above(least_bytes: impl FnOnce() -> u64, items: &[Item], aim: Aim) -> Packing {
    let (mut search, orders) = greedy(items, aim.height_bytes);
    if !search.is_enough() {
        search.enough_bytes = search.enough_bytes.max(least_bytes());
    }
    search.lower_the_ceiling(&orders);
    for order in &orders[..2] {
        search.improve(order.clone());
    }
    search.build(aim.effort);
    search.best
}

/// Orders of items that lead to low packings.
pub(super) fn orders(items: &[Item]) -> [Vec<u32>; 4] {
    Curve::new(items).orders(items)
}

/// The best packing so far.
struct Search<'a> {
    items: &'a [Item],
    placer: Placer<'a>,
    /// It ends here.
    enough_bytes: u64,
    best: Packing,
}

impl Search<'_> {
    fn is_enough(&self) -> bool {
        self.best.height_bytes <= self.enough_bytes
    }

    /// Keeps what an order comes to if it is below the ceiling and better.
    fn attempt(&mut self, order: &[u32], fit: Fit, ceiling_bytes: u64) -> Result<(), Stuck> {
        if !self.is_enough() {
            let ceiling_bytes = ceiling_bytes.min(self.best.height_bytes - 1);
            self.best.offsets = self.placer.place(order, fit, ceiling_bytes)?;
            self.best.height_bytes = height_bytes(self.items, &self.best.offsets);
        }
        Ok(())
    }

    /// Brings items below ceilings, starting with one of these orders.
    fn lower_the_ceiling(&mut self, orders: &[Vec<u32>]) {
        let work_max = self.placer.work + CEILINGS_WORK_MAX;
        self.halve_the_ceilings(|search, ceiling_bytes| {
            orders.iter().any(|order| search.fits(order, ceiling_bytes, work_max))
        });
    }

    /// Halves the ceilings until the lowest is found below which items are brought.
    fn halve_the_ceilings(&mut self, mut fits: impl FnMut(&mut Self, u64) -> bool) {
        let mut parts = &CEILINGS[..];
        while let Some(&middle) = parts.get(parts.len() / 2) {
            let ceiling_bytes = self.enough_bytes + self.enough_bytes / CEILING_DIVISOR * middle;
            parts = match fits(self, ceiling_bytes) {
                true => &parts[..parts.len() / 2],
                false => &parts[parts.len() / 2 + 1..],
            };
        }
    }

    /// Builds packings below ceilings, and with what effort is left below the lowest of all.
    fn build(&mut self, effort: u32) {
        if self.is_enough() || effort == 0 {
            return;
        }
        let Some(mut restarts) = Restarts::new(self.items, self.best.need_bytes) else { return };
        self.halve_the_ceilings(|search, ceiling_bytes| {
            search.builds(&mut restarts, ceiling_bytes, 1)
        });
        self.builds(&mut restarts, self.enough_bytes, effort - 1);
    }

    /// Whether the best packing is below the ceiling, or one is built that is.
    fn builds(&mut self, restarts: &mut Restarts, ceiling_bytes: u64, effort: u32) -> bool {
        if self.best.height_bytes > ceiling_bytes
            && let Some(offsets) = restarts.build(ceiling_bytes, effort)
        {
            self.best.height_bytes = height_bytes(self.items, &offsets);
            self.best.offsets = offsets;
        }
        self.best.height_bytes <= ceiling_bytes
    }

    /// Whether all items are brought below the ceiling, starting with this order.
    fn fits(&mut self, order: &[u32], ceiling_bytes: u64, work_max: u64) -> bool {
        let mut order = order.to_vec();
        for _ in 0..ROUNDS {
            if self.best.height_bytes <= ceiling_bytes || self.placer.work >= work_max {
                break;
            }
            if let Err(stuck) = self.attempt(&order, Fit::Lowest, ceiling_bytes) {
                order[..=stuck.largest].rotate_right(1);
            }
        }
        self.best.height_bytes <= ceiling_bytes
    }

    /// Looks for anything better, starting with this order.
    fn improve(&mut self, mut order: Vec<u32>) {
        let work_max = self.placer.work + IMPROVING_WORK_MAX;
        while !self.is_enough() && self.placer.work < work_max {
            if let Err(stuck) = self.attempt(&order, Fit::Lowest, u64::MAX) {
                order[..=stuck.first].rotate_right(1);
            }
        }
    }
}

fn height_bytes(items: &[Item], offsets: &[u64]) -> u64 {
    items.iter().zip(offsets).map(|(item, offset)| offset + item.size_bytes).max().unwrap_or(0)
}

impl By {
    const ALL: [By; 4] = [By::ContentionThenSize, By::ContentionThenLifetime, By::Size, By::Area];

    fn order(self, traits: &[Traits]) -> Vec<u32> {
        let mut order: Vec<u32> = (0..traits.len() as u32).collect();
        order.sort_by_key(|&item| {
            let it = &traits[item as usize];
            let (size, lifetime) = (u128::from(it.size_bytes), u128::from(it.lifetime));
            let contention = u128::from(it.contention_bytes);
            Reverse(match self {
                By::ContentionThenSize => (contention, size, lifetime),
                By::ContentionThenLifetime => (contention, lifetime, size),
                By::Size => (size, lifetime, 0),
                By::Area => (size * lifetime, size, 0),
            })
        });
        order
    }
}

/// Bytes that are there at each time, and their peaks over spans of time.
struct Curve {
    /// The times at which anything changes.
    times: Vec<u32>,
    /// By power of two, then start: the peak of so many spans between times.
    peaks: Vec<Vec<u64>>,
}

impl Curve {
    fn new(items: &[Item]) -> Curve {
        let stays = || items.iter().flat_map(|item| &item.stays);
        let mut times: Vec<u32> = stays().flat_map(|&(start, end)| [start, end]).collect();
        times.sort_unstable();
        times.dedup();
        let mut curve = Curve { times, peaks: Vec::new() };
        let mut arrive = vec![0_u64; curve.times.len()];
        let mut leave = arrive.clone();
        for item in items {
            for &(start, end) in &item.stays {
                arrive[curve.rank(start)] += item.size_bytes;
                leave[curve.rank(end)] += item.size_bytes;
            }
        }
        let mut live_bytes = 0;
        let live = arrive.into_iter().zip(leave).map(|(arrive, leave)| {
            live_bytes = live_bytes + arrive - leave;
            live_bytes
        });
        curve.peaks.push(live.collect());
        let mut width = 1;
        while 2 * width <= curve.times.len() {
            let last = curve.peaks.last().expect("the first is there");
            let wider = last.iter().zip(&last[width..]).map(|(one, next)| *one.max(next));
            let wider = wider.collect();
            curve.peaks.push(wider);
            width *= 2;
        }
        curve
    }

    fn rank(&self, time: u32) -> usize {
        self.times.partition_point(|&earlier| earlier < time)
    }

    fn orders(&self, items: &[Item]) -> [Vec<u32>; 4] {
        let traits: Vec<Traits> = items.iter().map(|item| self.traits(item)).collect();
        By::ALL.map(|by| by.order(&traits))
    }

    fn traits(&self, item: &Item) -> Traits {
        let peak = |&(start, end): &Stay| {
            let (start, end) = (self.rank(start), self.rank(end));
            let level = (end - start).ilog2() as usize;
            let peaks = &self.peaks[level];
            peaks[start].max(peaks[end - (1 << level)])
        };
        Traits {
            size_bytes: item.size_bytes,
            contention_bytes: item.stays.iter().map(peak).max().unwrap_or(0),
            lifetime: item.stays.iter().map(|&(start, end)| u64::from(end - start)).sum(),
        }
    }
}
