//! Numbers that look random and are the same in each run: for searches, and for made-up traces.

use swap_core::devices::pattern_word;

/// A repeatable stream of numbers: the same seed gives the same numbers for ever.
#[derive(Clone, Debug)]
pub struct Numbers {
    seed: u64,
    drawn: u64,
}

impl Numbers {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers { seed, drawn: 0 }
    }

    /// A number below `end`.
    ///
    /// # Panics
    /// If `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        assert!(end > 0, "no number is below 0");
        self.drawn += 1;
        pattern_word(self.seed, self.drawn - 1) % end
    }

    /// True `percent` times out of a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}
