//! Seeded test data.

/// A splitmix generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Numbers between -1 and 1.
    pub(crate) fn vector(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0).collect()
    }

    /// Tokens below `vocab`.
    pub(crate) fn tokens(&mut self, count: usize, vocab: u32) -> Vec<u32> {
        (0..count).map(|_| (self.next() % u64::from(vocab)) as u32).collect()
    }
}
