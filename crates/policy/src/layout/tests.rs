//! Packings of items, checked pair by pair.

use super::meeting::meeting_bytes;
use super::pack::{Item, Packing, pack_pressed};
use swap_core::Lot;
use swap_core::devices::Numbers;

fn pack(items: &[Item]) -> Packing {
    super::pack(items, 0)
}

fn meet(one: &Item, other: &Item) -> bool {
    let overlap = |a: &(u32, u32)| other.stays.iter().any(|b| a.0 < b.1 && b.0 < a.1);
    one.stays.iter().any(overlap)
}

/// Packs, and checks everything that a packing says. Returns its height over its need.
fn checked(items: &[Item]) -> f64 {
    let packing = pack(items);
    check_apart(items, &packing);
    let ends = packing.spots.iter().flatten().map(|spot| spot.end_bytes());
    let end = ends.max().unwrap_or(0);
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
    for _ in 0..50 {
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
    assert!(several > 250 && reused > 25, "{several} with several stays, {reused} reuse bytes");
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
fn a_rectangle_that_was_cut_is_packed_as_low_again() {
    let mut numbers = Numbers::new(5);
    let ratios: Vec<f64> = (0..20)
        .map(|_| {
            let mut items = Vec::new();
            cut(&mut numbers, &mut items, 1_000, (0, 1_000), 5);
            checked(&items)
        })
        .collect();
    assert_eq!(ratios, [1.0; 20]);
}

#[test]
fn nothing_and_one_item_are_packed() {
    assert_eq!(pack(&[]).height_bytes, 0);
    assert_eq!(checked(&[Item { size_bytes: 7, stays: vec![(3, 4)] }]), 1.0);
}

/// The least height of any packing: items in every order, each at the lowest place that is left
/// for it. One of these orders is that of the offsets in a best packing.
fn least_height(items: &[Item], offsets: &mut Vec<(usize, u64)>) -> u64 {
    let end = |&(item, at): &(usize, u64)| at + items[item].size_bytes;
    let left = (0..items.len()).filter(|&item| offsets.iter().all(|placed| placed.0 != item));
    let left: Vec<usize> = left.collect();
    let heights = left.into_iter().map(|item| {
        let is_free = |&at: &u64| {
            let apart = |placed: &(usize, u64)| {
                end(placed) <= at
                    || at + items[item].size_bytes <= placed.1
                    || !meet(&items[item], &items[placed.0])
            };
            offsets.iter().all(apart)
        };
        let lowest = offsets.iter().map(end).chain([0]).filter(is_free).min();
        offsets.push((item, lowest.expect("above all is room")));
        let height = least_height(items, offsets);
        offsets.pop();
        height
    });
    heights.min().unwrap_or_else(|| offsets.iter().map(end).max().unwrap_or(0))
}

fn random_items(numbers: &mut Numbers, count: u64, times: u64) -> Vec<Item> {
    let item = |numbers: &mut Numbers| {
        let size_bytes = 3 * (1 + numbers.below(9));
        let start = numbers.below(times) as u32;
        let end = start + 1 + numbers.below(times / 2) as u32;
        let again = end + 1 + numbers.below(3) as u32;
        let stays = [(start, end), (again, again + 1 + numbers.below(3) as u32)];
        let several = numbers.chance(30);
        Item { size_bytes, stays: stays[..1 + usize::from(several)].to_vec() }
    };
    (0..count).map(|_| item(numbers)).collect()
}

/// The spots of each are all of it, apart from each other, and from those of all that it meets.
fn check_apart(items: &[Item], packing: &Packing) {
    let are_apart = |one: &Lot, other: &Lot| {
        one.end_bytes() <= other.offset_bytes || other.end_bytes() <= one.offset_bytes
    };
    for (one, own) in packing.spots.iter().enumerate() {
        assert_eq!(own.iter().map(|spot| spot.size_bytes).sum::<u64>(), items[one].size_bytes);
        for (at, spot) in own.iter().enumerate() {
            assert!(spot.end_bytes() <= packing.height_bytes);
            assert!(own[..at].iter().all(|other| are_apart(spot, other)), "{one} has bytes twice");
            for other in (0..one).filter(|&other| meet(&items[one], &items[other])) {
                let is_apart = packing.spots[other].iter().all(|other| are_apart(spot, other));
                assert!(is_apart, "{one} and {other} share bytes");
            }
        }
    }
}

fn is_cut(packing: &Packing) -> bool {
    packing.spots.iter().any(|spots| spots.len() > 1)
}

#[test]
fn few_items_are_mostly_no_higher_than_in_the_best_packing_in_one_place() {
    let mut numbers = Numbers::new(11);
    let (mut above_need, mut proven, mut higher) = (0, 0, 0);
    for _ in 0..200 {
        let count = 3 + numbers.below(5);
        let items = random_items(&mut numbers, count, 8);
        let least_bytes = least_height(&items, &mut Vec::new());
        let packing = pack(&items);
        let meeting_bytes = meeting_bytes(&items);
        assert!(meeting_bytes <= packing.height_bytes, "{meeting_bytes} is no bound");
        above_need += u32::from(packing.need_bytes < least_bytes);
        proven += u32::from(packing.need_bytes < meeting_bytes);
        higher += u32::from(packing.height_bytes > least_bytes);
    }
    println!("{above_need} need more than is there at once, {proven} are shown to");
    assert!(above_need >= 5 && proven >= 3);
    assert!(higher <= 2, "{higher} of 200");
}

/// Greedy orders leave these problems higher than they need be, as they do those of compilers.
#[test]
fn what_comes_once_is_as_low_as_all_that_is_there_at_once() {
    let mut numbers = Numbers::new(7);
    let mut cut_count = 0;
    for round in 0..20 {
        let mut items = Vec::new();
        match round % 2 {
            0 => cut(&mut numbers, &mut items, 1_000, (0, 1_000), 7),
            _ => items = random_items(&mut numbers, 200, 90),
        }
        items.iter_mut().for_each(|item| item.stays.truncate(1));
        assert_eq!(checked(&items), 1.0);
        cut_count += u32::from(is_cut(&pack(&items)));
    }
    assert!(cut_count >= 10, "{cut_count} are in pieces");
}

#[test]
fn what_is_low_enough_lies_in_one_place() {
    let mut numbers = Numbers::new(12);
    for _ in 0..12 {
        let items = random_items(&mut numbers, 60, 40);
        let enough_bytes = 2 * pack(&items).need_bytes;
        let roomy = super::pack(&items, enough_bytes);
        assert!(roomy.height_bytes <= enough_bytes && !is_cut(&roomy));
        check_apart(&items, &roomy);
    }
}

/// Whoever leaves is alone in its memory for a while longer, if there is room for that.
#[test]
fn lots_are_left_alone_where_that_makes_nothing_higher() {
    let mut numbers = Numbers::new(19);
    let (mut alone, mut all) = (0, 0);
    for _ in 0..20 {
        let pressed: Vec<Item> = random_items(&mut numbers, 60, 60)
            .into_iter()
            .map(|item| Item { stays: vec![item.stays[0]], ..item })
            .collect();
        let longer =
            |item: &Item| Item { stays: vec![(item.stays[0].0, item.stays[0].1 + 3)], ..*item };
        let items: Vec<Item> = pressed.iter().map(longer).collect();
        let packing = pack_pressed(&items, &pressed, 0);
        check_apart(&pressed, &packing);
        assert_eq!(packing.height_bytes, pack(&pressed).need_bytes);
        for (one, other) in (0..items.len()).flat_map(|one| (0..one).map(move |other| (one, other)))
        {
            let would_wait =
                meet(&items[one], &items[other]) && !meet(&pressed[one], &pressed[other]);
            let mut spots = packing.spots[one].iter();
            let waits =
                spots.any(|spot| packing.spots[other].iter().any(|it| !spot.is_apart_from(*it)));
            all += u32::from(would_wait);
            alone += u32::from(would_wait && !waits);
        }
    }
    println!("{alone} of {all} are left alone");
    assert!(all > 500 && alone * 10 > all * 8);
}

#[test]
fn sizes_without_a_common_part_are_packed_all_the_same() {
    let mut numbers = Numbers::new(13);
    checked(&random_items(&mut numbers, 1_100, 400));
    let mut odd = random_items(&mut numbers, 30, 20);
    odd.iter_mut().for_each(|item| item.size_bytes = (item.size_bytes << 40) + 1);
    checked(&odd);
    let nothing = vec![Item { size_bytes: 0, stays: vec![(0, 1)] }; 2];
    assert_eq!(pack(&nothing).height_bytes, 0);
}
