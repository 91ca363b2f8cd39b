//! Finds a low packing: several greedy orders, then two of them with those first that found no
//! room.

use std::cmp::Reverse;

use super::place::{Fit, Placer, Stuck};

/// From one time to another, that one not included. Not empty.
pub(super) type Stay = (u32, u32);

/// What needs the same bytes in each of its stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) size_bytes: u64,
    /// In order; none overlap.
    pub(super) stays: Vec<Stay>,
}

/// Where items lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packing {
    /// By item.
    pub(super) offsets: Vec<u64>,
    /// The end of the highest.
    pub(super) height_bytes: u64,
    /// The most bytes at once.
    pub(super) need_bytes: u64,
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

/// The most lots looked at for each order that is improved: together some tens of milliseconds.
const WORK_MAX: u64 = 18_000_000;

/// Packs items as low as it can in the time it takes itself. The same input gives the same packing.
pub(super) fn pack(items: &[Item]) -> Packing {
    let curve = Curve::new(items);
    let traits: Vec<Traits> = items.iter().map(|item| curve.traits(item)).collect();
    let need_bytes = curve.peaks[0].iter().copied().max().unwrap_or(0);
    let best = Packing { offsets: vec![0; items.len()], height_bytes: u64::MAX, need_bytes };
    let mut search = Search { items, placer: Placer::new(items), best };
    let firm = [By::ContentionThenSize, By::ContentionThenLifetime];
    for by in firm.into_iter().chain([By::Size, By::Area]) {
        for fit in [Fit::Lowest, Fit::Best] {
            // Being stuck means being no better.
            let _ = search.attempt(&by.order(&traits), fit);
        }
    }
    for by in firm {
        search.improve(by.order(&traits));
    }
    search.best
}

/// The best packing so far.
struct Search<'a> {
    items: &'a [Item],
    placer: Placer<'a>,
    best: Packing,
}

impl Search<'_> {
    fn is_perfect(&self) -> bool {
        self.best.height_bytes == self.best.need_bytes
    }

    /// Keeps what an order comes to if it is better.
    fn attempt(&mut self, order: &[u32], fit: Fit) -> Result<(), Stuck> {
        if !self.is_perfect() {
            self.best.offsets = self.placer.place(order, fit, self.best.height_bytes - 1)?;
            self.best.height_bytes = height_bytes(self.items, &self.best.offsets);
        }
        Ok(())
    }

    /// Whoever finds no room below the best height comes first, again and again.
    fn improve(&mut self, mut order: Vec<u32>) {
        let work_max = self.placer.work + WORK_MAX;
        while !self.is_perfect() && self.placer.work < work_max {
            if let Err(Stuck(position)) = self.attempt(&order, Fit::Lowest) {
                order[..=position].rotate_right(1);
            }
        }
    }
}

fn height_bytes(items: &[Item], offsets: &[u64]) -> u64 {
    items.iter().zip(offsets).map(|(item, offset)| offset + item.size_bytes).max().unwrap_or(0)
}

impl By {
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
