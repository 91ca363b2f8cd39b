//! The project's own random numbers: a seed means the same for ever, on every machine.

use adaptive::devices::Numbers;

/// A repeatable stream of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(Numbers);

impl Random {
    /// The generator number `stream` of a seed. Streams of one seed are independent.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        let start = Numbers::new(seed).draw();
        Random(Numbers::new(start ^ stream.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// The next 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.draw()
    }

    /// A number below `bound`; the bias of at most `bound / 2^64` does not matter here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// A number of mean 0 and deviation 1, near enough to normal to start weights with: the sum
    /// of four uniform ones. It needs no logarithm, whose last bit differs between platforms.
    pub(crate) fn normal(&mut self) -> f32 {
        const UNIT: f32 = 1.0 / 65_536.0;
        /// The deviation of four uniform numbers' sum is `sqrt(4 / 12)`.
        const SCALE: f32 = 1.732_050_8;
        let bits = self.next();
        let sum: u64 = (0..4).map(|part| (bits >> (16 * part)) & 0xffff).sum();
        ((sum as f32 + 2.0) * UNIT - 2.0) * SCALE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_the_same_for_ever() {
        let mut random = Random::new(7, 3);
        let found: Vec<u64> = (0..3).map(|_| random.next()).collect();
        // From a separate implementation.
        let expect: [u64; 3] =
            [0x100d_3db9_b776_9042, 0x16b5_072a_2111_168e, 0xf9f9_720b_95a8_4bc4];
        assert_eq!(found, expect);
    }

    #[test]
    fn normal_numbers_have_mean_0_and_deviation_1() {
        let mut random = Random::new(1, 0);
        let values: Vec<f64> = (0..100_000).map(|_| f64::from(random.normal())).collect();
        let mean = values.iter().sum::<f64>() / 1e5;
        let variance = values.iter().map(|v| v * v).sum::<f64>() / 1e5 - mean * mean;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
    }

    #[test]
    fn bounded_numbers_reach_every_value_and_no_other() {
        let mut random = Random::new(1, 0);
        let mut seen = [0; 7];
        (0..7_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|&count| count > 800), "{seen:?}");
    }
}
