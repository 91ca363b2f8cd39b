//! What is known of any limit once prices or windows are given.

use super::sums::Sums;

/// So much that must be away while a slot's op runs, and what a byte of it is worth.
#[derive(Debug)]
pub(super) struct Term {
    pub(super) slot: usize,
    /// Bytes of it that do not count: others may be away in their place.
    pub(super) other_bytes: u64,
    /// What the blocks that count can come to.
    pub(super) sums: Sums,
    pub(super) us_per_byte: f64,
    /// The most that it comes to.
    pub(super) most_us: f64,
}

impl Term {
    fn us(&self, excess_bytes: &[u64]) -> f64 {
        let least_bytes = excess_bytes[self.slot].saturating_sub(self.other_bytes);
        (self.sums.at_least(least_bytes) as f64 * self.us_per_byte).min(self.most_us)
    }
}

/// A bound for every limit: what must be away at some slots, each byte at its price, less what does
/// not depend on the limit.
///
/// Prices of a market and weights of windows say how much a byte is worth, whatever the limit: it
/// is in what must be away alone. The less memory, the more that is, so **a claim never rises with
/// memory**. That holds for the numbers as they are rounded, too: each product, sum, difference
/// and least of what only rises, rounded, only rises.
#[derive(Debug)]
pub(super) struct Claim {
    terms: Vec<Term>,
    less_us: f64,
}

impl Claim {
    /// A claim that comes to so much if such bytes must be away.
    pub(super) fn new(terms: Vec<Term>, excess_bytes: &[u64], us: f64) -> Claim {
        let mut claim = Claim { terms, less_us: 0.0 };
        claim.less_us = claim.us(excess_bytes) - us;
        claim
    }

    /// What any plan adds at least if so many bytes must be away while each slot's op runs, in
    /// microseconds.
    pub(super) fn us(&self, excess_bytes: &[u64]) -> f64 {
        self.terms.iter().map(|term| term.us(excess_bytes)).sum::<f64>() - self.less_us
    }
}
