//! Finds a low packing. Several greedy orders come first, in which each item lies in one place.
//! Where none of these is low enough, items may be in pieces: addresses can show memory from
//! several places side by side. Enough bytes are then free at any time for whatever comes once;
//! only what comes back needs the same ones again.

use std::cmp::Reverse;

use swap_core::Lot;

use super::meeting::meeting_bytes;
use super::place::{Fit, Placer};

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
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Packing {
    /// By item: its memory, in the order in which it is shown. All starts and ends at multiples of
    /// what divides all sizes.
    pub spots: Vec<Vec<Lot>>,
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

/// The most lots looked at while items are put in pieces: a quarter of a second.
const WORK_MAX: u64 = 150_000_000;
/// With few items, attempts end here.
const ATTEMPTS_MAX: usize = 200;

/// Packs items: those that are there at the same time share no bytes. What is no higher than
/// `enough_bytes` is as good as anything lower. The same arguments give the same packing.
pub fn pack(items: &[Item], enough_bytes: u64) -> Packing {
    pack_pressed(items, items, enough_bytes)
}

/// As [`pack`]. Only where there is no room otherwise do items lie where there is some for
/// `pressed`, which are the same items with shorter stays.
pub(super) fn pack_pressed(items: &[Item], pressed: &[Item], enough_bytes: u64) -> Packing {
    let curve = Curve::new(items);
    let need_bytes = curve.need_bytes();
    let orders = curve.orders(items);
    let pressed_bytes =
        if items == pressed { need_bytes } else { Curve::new(pressed).need_bytes() };
    let greedy = in_one_place(items, &orders, enough_bytes.max(need_bytes));
    if greedy.height_bytes <= enough_bytes.max(pressed_bytes) {
        return Packing { need_bytes: pressed_bytes, ..greedy };
    }
    let least_bytes = meeting_bytes(pressed).max(enough_bytes).max(pressed_bytes);
    let in_pieces = in_pieces(items, pressed, &orders, least_bytes);
    // Pieces take more calls when they are mapped.
    let best = if in_pieces.height_bytes < greedy.height_bytes { in_pieces } else { greedy };
    Packing { need_bytes: pressed_bytes, ..best }
}

/// The best that greedy orders come to.
fn in_one_place(items: &[Item], orders: &[Vec<u32>], enough_bytes: u64) -> Packing {
    let placer = Placer::new(items);
    let mut best = Packing { height_bytes: u64::MAX, ..Packing::default() };
    for order in orders {
        for fit in [Fit::Lowest, Fit::Best] {
            if best.height_bytes <= enough_bytes {
                return best;
            }
            if let Some(offsets) = placer.place(order, fit, best.height_bytes - 1) {
                let lots = offsets.into_iter().zip(items);
                let lot = |(offset_bytes, item): (u64, &Item)| {
                    vec![Lot { offset_bytes, size_bytes: item.size_bytes }]
                };
                best = packing(lots.map(lot).collect());
            }
        }
    }
    best
}

/// Below a ceiling if that is found soon, and no lower. Who finds no room there comes first when
/// its order is tried again, and that is the order in which the fewest found none, unless it was
/// tried much more often.
fn in_pieces(items: &[Item], pressed: &[Item], orders: &[Vec<u32>], ceiling_bytes: u64) -> Packing {
    let unit_bytes = items.iter().fold(0, |unit, item| divisor(unit, item.size_bytes)).max(1);
    let ceiling_bytes = ceiling_bytes / unit_bytes * unit_bytes;
    let (mut placer, pressed) = (Placer::new(items), Placer::new(pressed));
    let orders = orders.iter().cloned().chain([by_start(items)]);
    let mut orders: Vec<(usize, Vec<u32>)> = orders.map(|order| (0, order)).collect();
    let mut best = Packing { height_bytes: u64::MAX, ..Packing::default() };
    for attempt in 0..ATTEMPTS_MAX {
        let next = orders.iter_mut().min_by_key(|(rank, _)| *rank);
        let (rank, order) = next.expect("there are orders");
        let (spots, stuck) = placer.place_in_pieces(&pressed, order, ceiling_bytes);
        let packing = packing(spots);
        if packing.height_bytes < best.height_bytes {
            best = packing;
        }
        if stuck.is_empty() || placer.work >= WORK_MAX {
            break;
        }
        *rank = stuck.len() + attempt;
        let mut is_stuck = vec![false; items.len()];
        stuck.iter().for_each(|&item| is_stuck[item as usize] = true);
        order.sort_by_key(|&item| !is_stuck[item as usize]);
    }
    best
}

fn packing(spots: Vec<Vec<Lot>>) -> Packing {
    let height_bytes = spots.iter().flatten().map(|spot| spot.end_bytes()).max().unwrap_or(0);
    Packing { spots, height_bytes, need_bytes: 0 }
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

/// The greatest number that divides both.
fn divisor(one: u64, other: u64) -> u64 {
    let (mut one, mut other) = (one, other);
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
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

    /// The most bytes at once.
    fn need_bytes(&self) -> u64 {
        self.peaks[0].iter().copied().max().unwrap_or(0)
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
