//! The most bytes of items that all meet each other. They need not all be there at any one time: an
//! item that comes back meets others in each stay. No packing is lower.

use std::cmp::Reverse;

use super::pack::Item;
use super::place::meet;

/// From so many of the items that meet the most bytes a set of them is put together.
const SEEDS_MAX: usize = 64;
/// With more items than that, telling who meets whom takes too long.
const ITEMS_MAX: usize = 8_192;

/// The most bytes of all that meet each other, as far as is found: at most what any packing takes.
pub(super) fn meeting_bytes(items: &[Item]) -> u64 {
    // Without these, all that meet each other are there at one time.
    let come_back = items.iter().any(|item| item.stays.len() > 1);
    if !come_back || items.len() > ITEMS_MAX {
        return 0;
    }
    let meets = |one: &Item| -> Vec<bool> {
        items.iter().map(|other| meet(&one.stays, &other.stays)).collect()
    };
    let meets: Vec<Vec<bool>> = items.iter().map(meets).collect();
    let size_bytes = |item: &usize| items[*item].size_bytes;
    let near_bytes = |row: &Vec<bool>| -> u64 {
        let others = (0..items.len()).filter(|&other| row[other]);
        others.map(|other| size_bytes(&other)).sum()
    };
    let near_bytes: Vec<u64> = meets.iter().map(near_bytes).collect();
    let mut by_near: Vec<usize> = (0..items.len()).collect();
    by_near.sort_by_key(|&item| Reverse((near_bytes[item], size_bytes(&item))));
    let mut by_size = by_near.clone();
    by_size.sort_by_key(|item| Reverse(size_bytes(item)));
    let all_bytes = |order: &[usize], seed: usize| {
        let mut all = vec![seed];
        for &item in order {
            if item != seed && all.iter().all(|&other| meets[item][other]) {
                all.push(item);
            }
        }
        all.iter().map(size_bytes).sum()
    };
    let seeds = by_near.iter().take(SEEDS_MAX);
    let found = seeds.flat_map(|&seed| [&by_near, &by_size].map(|order| all_bytes(order, seed)));
    found.max().unwrap_or(0)
}
