//! Finds a low packing: several greedy orders, then the best of them with those first that stood
//! in its way.

use std::cmp::Reverse;

use super::place::{Fit, Placer, Stuck};

/// What needs the same bytes in each of its stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Item {
    pub(super) size_bytes: u64,
    /// From one time to another, that one not included; none empty, in order, none overlap.
    pub(super) stays: Vec<(u32, u32)>,
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

/// Who is placed first.
#[derive(Clone, Copy)]
enum By {
    ContentionThenSize,
    ContentionThenLifetime,
    Size,
    Area,
}

/// The most lots looked at to improve a packing: some tens of milliseconds for a thousand items.
const WORK_MAX: u64 = 20_000_000;

/// Packs items as low as it can in the time it takes itself. The same input gives the same packing.
pub(super) fn pack(items: &[Item]) -> Packing {
    let curve = Curve::new(items);
    let traits: Vec<Traits> = items.iter().map(|item| curve.traits(item)).collect();
    let need_bytes = curve.peaks[0].iter().copied().max().unwrap_or(0);
    let mut placer = Placer::new(items);
    let mut best: Option<(Packing, Vec<u32>, Fit)> = None;
    let all = [By::ContentionThenSize, By::ContentionThenLifetime, By::Size, By::Area].into_iter();
    for (by, fit) in all.flat_map(|by| [(by, Fit::Lowest), (by, Fit::Best)]) {
        let order = by.order(&traits);
        let ceiling_bytes = best.as_ref().map_or(u64::MAX, |best| best.0.height_bytes - 1);
        if let Ok(offsets) = placer.place(&order, fit, ceiling_bytes) {
            let height_bytes = height_bytes(items, &offsets);
            best = Some((Packing { offsets, height_bytes, need_bytes }, order, fit));
            if height_bytes == need_bytes {
                break;
            }
        }
    }
    let (packing, order, fit) = best.expect("nothing is above the first ceiling");
    improve(items, &mut placer, packing, order, fit)
}

/// Whoever finds no room below the best height comes earlier, again and again.
fn improve(
    items: &[Item],
    placer: &mut Placer<'_>,
    mut best: Packing,
    mut order: Vec<u32>,
    fit: Fit,
) -> Packing {
    let work_max = placer.work + WORK_MAX;
    while best.height_bytes > best.need_bytes && placer.work < work_max {
        match placer.place(&order, fit, best.height_bytes - 1) {
            Ok(offsets) => {
                best.height_bytes = height_bytes(items, &offsets);
                best.offsets = offsets;
            }
            Err(Stuck(position)) => order[..=position].rotate_right(1),
        }
    }
    best
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
        let peak = |&(start, end): &(u32, u32)| {
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
