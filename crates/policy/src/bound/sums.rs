//! Blocks leave whole: what they can come to together.

/// Blocks whose sums are told apart, at most. Those of more are near to anything.
const BLOCKS_MAX: usize = 32;
/// Words of a set of sums, at most.
const WORDS_MAX: usize = 1 << 10;

/// The sums that some of a growing list of blocks come to.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// All sizes are multiples of it.
    unit_bytes: u64,
    blocks: usize,
    /// A bit for each sum in units; empty if there are too many blocks.
    words: Vec<u64>,
}

impl Sums {
    /// The sum of no blocks.
    pub(super) fn new(unit_bytes: u64) -> Sums {
        Sums { unit_bytes, blocks: 0, words: vec![1] }
    }

    /// The largest number of bytes that divides all sizes.
    pub(super) fn unit_bytes(sizes: impl Iterator<Item = u64>) -> u64 {
        let divisor = |mut one: u64, mut other: u64| {
            while other > 0 {
                (one, other) = (other, one % other);
            }
            one
        };
        sizes.fold(0, divisor).max(1)
    }

    /// Whether there are too many blocks to tell.
    pub(super) fn is_unknown(&self) -> bool {
        self.words.is_empty()
    }

    /// Adds a block.
    pub(super) fn add(&mut self, size_bytes: u64) {
        self.blocks += 1;
        let units = (size_bytes / self.unit_bytes) as usize;
        let (words, bits) = (units / 64, units % 64);
        let length = self.words.len() + words + 1;
        if self.blocks > BLOCKS_MAX || length > WORDS_MAX || self.words.is_empty() {
            self.words.clear();
            return;
        }
        self.words.resize(length, 0);
        for place in (words..length).rev() {
            let low = self.words[place - words] << bits;
            let high = if bits == 0 || place == words {
                0
            } else {
                self.words[place - words - 1] >> (64 - bits)
            };
            self.words[place] |= low | high;
        }
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// The least sum that is no less than some bytes; these themselves if there is none or nobody
    /// knows.
    pub(super) fn at_least(&self, bytes: u64) -> u64 {
        let first = bytes.div_ceil(self.unit_bytes) as usize;
        let from = first / 64;
        let words = self.words.iter().enumerate().skip(from);
        let mut masked = words.map(|(place, &word)| {
            (place, if place == from { word & (u64::MAX << (first % 64)) } else { word })
        });
        let found = masked.find(|&(_, word)| word != 0);
        let sum = found.map(|(place, word)| 64 * place as u64 + u64::from(word.trailing_zeros()));
        sum.map_or(bytes, |sum| sum * self.unit_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Sums;
    use crate::synthetic::Numbers;

    #[test]
    fn the_least_sum_is_that_of_all_subsets() {
        let (mut numbers, mut between) = (Numbers::new(1), 0);
        for _ in 0..200 {
            let sizes: Vec<u64> =
                (0..1 + numbers.below(9)).map(|_| 3 + numbers.below(90)).collect();
            let mut sums = Sums::new(Sums::unit_bytes(sizes.iter().copied()));
            let mut all = BTreeSet::from([0]);
            for &size in &sizes {
                sums.add(size);
                all.extend(all.clone().into_iter().map(|sum| sum + size));
            }
            for bytes in 0..=sizes.iter().sum() {
                let least = all.range(bytes..).next().copied();
                assert_eq!(Some(sums.at_least(bytes)), least, "{sizes:?} {bytes}");
                between += u64::from(least > Some(bytes));
            }
        }
        assert!(between > 1_000, "only {between} were between two sums");
    }

    #[test]
    fn of_too_many_blocks_no_sum_is_told() {
        let mut sums = Sums::new(1);
        (0..100).for_each(|_| sums.add(2));
        assert_eq!(sums.at_least(5), 5);
    }
}
