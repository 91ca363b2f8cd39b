//! Offers by row: which ways to lower a row are on offer, the cheapest first.
//!
//! A tree over the rows that can be the highest. Each offer lies at the few nodes that together
//! make up its rows, so those for one row are on the way from the root to it. Each node keeps a
//! heap by what an offer cost when last looked at there.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use crate::usage::NONE;

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
    rows: usize,
    /// By node: whether a row below it can be the highest. Others get no offers.
    tall: Vec<bool>,
    /// By node: its heap's number, or [`NONE`].
    numbers: Vec<u32>,
    heaps: Vec<BinaryHeap<Reverse<Priced>>>,
}

impl Offers {
    /// For rows of which those that are `tall` can be the highest. Which ones these are does not
    /// change the order of offers, so that it does not depend on the limit.
    pub(super) fn new(rows: impl ExactSizeIterator<Item = bool>) -> Offers {
        let count = rows.len();
        let mut tall = vec![false; count];
        tall.extend(rows);
        for node in (1..count).rev() {
            tall[node] = tall[2 * node] || tall[2 * node + 1];
        }
        Offers { rows: count, tall, numbers: vec![NONE; 2 * count], heaps: Vec::new() }
    }

    /// Adds an offer for `count` rows from `first` on, going round at the end.
    pub(super) fn add(&mut self, first: usize, count: usize, offer: Priced) {
        let end = first + count;
        self.add_range(first, end.min(self.rows), offer);
        if end > self.rows {
            self.add_range(0, end - self.rows, offer);
        }
    }

    fn add_range(&mut self, first: usize, end: usize, offer: Priced) {
        let (mut low, mut high) = (first + self.rows, end + self.rows);
        while low < high {
            if low % 2 == 1 {
                self.put(low, offer);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.put(high, offer);
            }
            low /= 2;
            high /= 2;
        }
    }

    fn put(&mut self, node: usize, offer: Priced) {
        if !self.tall[node] {
            return;
        }
        if self.numbers[node] == NONE {
            self.numbers[node] = self.heaps.len() as u32;
            self.heaps.push(BinaryHeap::new());
        }
        self.heaps[self.numbers[node] as usize].push(Reverse(offer));
    }

    /// The cheapest offer for a row, and the node that it lies at.
    pub(super) fn first(&self, row: usize) -> Option<(Priced, usize)> {
        let mut node = row + self.rows;
        let mut first: Option<(Priced, usize)> = None;
        while node > 0 {
            if let Some(heap) = self.heaps.get(self.numbers[node] as usize)
                && let Some(&Reverse(top)) = heap.peek()
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
        self.heaps[self.numbers[node] as usize].pop();
    }

    /// Puts an offer back with what it costs now.
    pub(super) fn put_back(&mut self, node: usize, offer: Priced) {
        self.put(node, offer);
    }
}
