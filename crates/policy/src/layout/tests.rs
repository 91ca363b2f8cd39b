//! Packings of items, checked pair by pair.

use super::pack::{Aim, Item, Packing};
use crate::synthetic::Numbers;

fn pack(items: &[Item]) -> Packing {
    super::pack(items, Aim::default())
}

fn meet(one: &Item, other: &Item) -> bool {
    let overlap = |a: &(u32, u32)| other.stays.iter().any(|b| a.0 < b.1 && b.0 < a.1);
    one.stays.iter().any(overlap)
}

/// Packs, and checks everything that a packing says. Returns its height over its need.
fn checked(items: &[Item]) -> f64 {
    let packing = pack(items);
    let span = |item: usize| {
        let start = packing.offsets[item];
        start..start + items[item].size_bytes
    };
    let mut end = 0;
    for one in 0..items.len() {
        end = end.max(span(one).end);
        for other in 0..one {
            let apart = span(one).end <= span(other).start || span(other).end <= span(one).start;
            assert!(apart || !meet(&items[one], &items[other]), "{one} and {other} share bytes");
        }
    }
    assert_eq!(packing.height_bytes, end);
    let starts = items.iter().flat_map(|item| &item.stays).map(|stay| stay.0);
    let live_at = |time: u32| {
        let there = |item: &&Item| item.stays.iter().any(|stay| stay.0 <= time && time < stay.1);
        items.iter().filter(there).map(|item| item.size_bytes).sum::<u64>()
    };
    assert_eq!(packing.need_bytes, starts.map(live_at).max().unwrap_or(0));
    assert_eq!(packing, pack(items), "the same items, the same packing");
    packing.height_bytes as f64 / packing.need_bytes.max(1) as f64
}

#[test]
fn items_that_meet_lie_apart() {
    let mut numbers = Numbers::new(3);
    let (mut several, mut reused) = (0, 0);
    for _ in 0..200 {
        let count = 1 + numbers.below(40);
        let items: Vec<Item> = (0..count)
            .map(|_| {
                let size_bytes = 1 + numbers.below(9);
                let (mut stays, mut time) = (Vec::new(), numbers.below(40) as u32);
                for _ in 0..1 + numbers.below(3) {
                    let end = time + 1 + numbers.below(12) as u32;
                    stays.push((time, end));
                    time = end + numbers.below(20) as u32;
                }
                Item { size_bytes, stays }
            })
            .collect();
        several += items.iter().filter(|item| item.stays.len() > 1).count();
        checked(&items);
        let total: u64 = items.iter().map(|item| item.size_bytes).sum();
        reused += u32::from(pack(&items).height_bytes < total);
    }
    assert!(several > 1_000 && reused > 100, "{several} with several stays, {reused} reuse bytes");
}

/// Cuts a rectangle of bytes and time into items, so that a perfect packing is known to exist.
fn cut(
    numbers: &mut Numbers,
    items: &mut Vec<Item>,
    size_bytes: u64,
    (start, end): (u32, u32),
    cuts: u32,
) {
    let by_time = numbers.chance(50);
    if cuts > 0 && by_time && end - start > 1 {
        let middle = start + 1 + numbers.below(u64::from(end - start - 1)) as u32;
        cut(numbers, items, size_bytes, (start, middle), cuts - 1);
        cut(numbers, items, size_bytes, (middle, end), cuts - 1);
    } else if cuts > 0 && !by_time && size_bytes > 1 {
        let lower_bytes = 1 + numbers.below(size_bytes - 1);
        cut(numbers, items, lower_bytes, (start, end), cuts - 1);
        cut(numbers, items, size_bytes - lower_bytes, (start, end), cuts - 1);
    } else {
        items.push(Item { size_bytes, stays: vec![(start, end)] });
    }
}

#[test]
fn a_rectangle_that_was_cut_is_packed_almost_as_low_again() {
    let mut numbers = Numbers::new(5);
    let ratios: Vec<f64> = (0..20)
        .map(|_| {
            let mut items = Vec::new();
            cut(&mut numbers, &mut items, 1_000, (0, 1_000), 5);
            checked(&items)
        })
        .collect();
    println!("height over need: {ratios:.3?}");
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(mean < 1.08, "{mean}");
    assert!(ratios.contains(&1.0), "some are perfect");
}

#[test]
fn nothing_and_one_item_are_packed() {
    assert_eq!(pack(&[]).height_bytes, 0);
    assert_eq!(checked(&[Item { size_bytes: 7, stays: vec![(3, 4)] }]), 1.0);
}
