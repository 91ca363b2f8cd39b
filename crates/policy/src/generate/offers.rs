//! Offers by row: which ways to lower a row are on offer, the cheapest first.
//!
//! A tree over the rows that can be the highest. Each offer lies at the few nodes that together
//! make up its rows, so those for one row are on the way from the root to it. Each node keeps a
//! heap by what an offer cost when last looked at there.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// What an offer cost when last looked at, and its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Priced {
    pub(super) score: f64,
    pub(super) item: u32,
}

impl PartialEq for Priced {
    fn eq(&self, other: &Priced) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Priced {}

impl PartialOrd for Priced {
    fn partial_cmp(&self, other: &Priced) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Priced {
    fn cmp(&self, other: &Priced) -> Ordering {
        self.score.total_cmp(&other.score).then(self.item.cmp(&other.item))
    }
}

#[derive(Debug)]
pub(super) struct Offers {
    /// By row: how many rows before it can be the highest.
    rank: Vec<u32>,
    leaves: usize,
    heaps: Vec<BinaryHeap<Reverse<Priced>>>,
}

impl Offers {
    /// For rows of which those that are `tall` can be the highest.
    pub(super) fn new(tall: impl Iterator<Item = bool>) -> Offers {
        let mut rank = vec![0];
        let mut count = 0;
        for tall in tall {
            count += u32::from(tall);
            rank.push(count);
        }
        let leaves = (count as usize).next_power_of_two().max(1);
        Offers { rank, leaves, heaps: vec![BinaryHeap::new(); 2 * leaves] }
    }

    /// Adds an offer for `count` rows from `first` on, going round at the end.
    pub(super) fn add(&mut self, first: usize, count: usize, offer: Priced) {
        let rows = self.rank.len() - 1;
        let end = first + count;
        self.add_range(first, end.min(rows), offer);
        if end > rows {
            self.add_range(0, end - rows, offer);
        }
    }

    fn add_range(&mut self, first: usize, end: usize, offer: Priced) {
        let mut low = self.rank[first] as usize + self.leaves;
        let mut high = self.rank[end] as usize + self.leaves;
        while low < high {
            if low % 2 == 1 {
                self.heaps[low].push(Reverse(offer));
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.heaps[high].push(Reverse(offer));
            }
            low /= 2;
            high /= 2;
        }
    }

    /// The cheapest offer for a row, and the node that it lies at.
    pub(super) fn first(&self, row: usize) -> Option<(Priced, usize)> {
        let mut node = self.rank[row] as usize + self.leaves;
        let mut first: Option<(Priced, usize)> = None;
        while node > 0 {
            if let Some(&Reverse(top)) = self.heaps[node].peek()
                && first.is_none_or(|(best, _)| top < best)
            {
                first = Some((top, node));
            }
            node /= 2;
        }
        first
    }

    /// Takes the cheapest offer off a node.
    pub(super) fn drop_first(&mut self, node: usize) {
        self.heaps[node].pop();
    }

    /// Puts an offer back with what it costs now.
    pub(super) fn put_back(&mut self, node: usize, offer: Priced) {
        self.heaps[node].push(Reverse(offer));
    }
}
