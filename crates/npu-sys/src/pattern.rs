//! Repeatable numbers: to fill memory with, so that what is read back proves what was where, and to
//! draw from.

/// The increment of the sequence: 2 to the 64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Word `index` of the pattern of `seed`: the SplitMix64 generator's output of that number.
///
/// Words of one pattern differ from each other, and patterns of different seeds differ in each
/// word, so memory that is swapped, shifted or left over is told apart from what should be there.
/// [`PatternKernels`](crate::devices::PatternKernels) does the same on a GPU.
pub fn pattern_word(seed: u64, index: u64) -> u64 {
    let mut word = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(STEP));
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// A repeatable stream of numbers that look random: the words of a seed's pattern, in their order.
#[derive(Clone, Debug)]
pub struct Numbers {
    seed: u64,
    drawn: u64,
}

impl Numbers {
    /// The stream of a seed: the same for ever, on every machine.
    pub fn new(seed: u64) -> Numbers {
        Numbers { seed, drawn: 0 }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.drawn += 1;
        pattern_word(self.seed, self.drawn - 1)
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "no number is below 0");
        self.draw() % end
    }

    /// True `percent` times out of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_the_generators_published_numbers() {
        let known = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        for (index, expect) in known.into_iter().enumerate() {
            assert_eq!(pattern_word(1_234_567, index as u64), expect);
        }
    }

    #[test]
    fn words_differ_within_a_pattern_and_from_seed_to_seed() {
        let mut words: Vec<u64> = (0..10_000).map(|index| pattern_word(3, index)).collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), 10_000);
        for index in [0, 1, 77, u64::MAX] {
            let mut words: Vec<u64> = (0..10_000).map(|seed| pattern_word(seed, index)).collect();
            words.sort_unstable();
            words.dedup();
            assert_eq!(words.len(), 10_000, "at {index}");
        }
    }
}
