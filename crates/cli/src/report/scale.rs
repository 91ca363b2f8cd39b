//! From figures to places on an axis: ranges, round tick marks, and thinning of long curves.

/// A closed range of figures that is never empty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// From `low` to `high`; a range of no length is widened upwards.
    pub(crate) fn new(low: f64, high: f64) -> Scale {
        let low = if low.is_finite() { low } else { 0.0 };
        let high = if high.is_finite() { high } else { low };
        let high = if high > low { high } else { low + low.abs().max(1.0) };
        Scale { low, high }
    }

    /// The range of the finite values with a little air on both sides.
    pub(super) fn around(values: impl Iterator<Item = f64>) -> Scale {
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|value| value.is_finite()) {
            low = low.min(value);
            high = high.max(value);
        }
        if low > high {
            return Scale::new(0.0, 1.0);
        }
        // Equal values lie in the middle.
        let air = if high > low { (high - low) * 0.06 } else { low.abs().max(1.0) * 0.5 };
        Scale::new(low - air, high + air)
    }

    /// Where `value` lies, from 0 at the low end to 1 at the high end, held inside.
    pub(crate) fn share(self, value: f64) -> f64 {
        if value.is_finite() {
            ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        } else {
            0.0
        }
    }

    /// The pixel row of `value` in a plot whose low end is at `bottom` and high end at `top`.
    pub(crate) fn row(self, value: f64, (top, bottom): (f64, f64)) -> f64 {
        bottom - (bottom - top) * self.share(value)
    }

    /// The high end.
    pub(crate) fn high(self) -> f64 {
        self.high
    }

    /// At most about `count` round decimal marks (1, 2, 5 times a power of ten) inside.
    pub(crate) fn decimal_ticks(self, count: f64) -> Vec<f64> {
        let rough = (self.high - self.low) / count;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        self.ticks(step.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(power * 10.0))
    }

    /// At most `count` marks at multiples of a power of two inside: round in binary units.
    pub(super) fn binary_ticks(self, count: f64) -> Vec<f64> {
        self.ticks(((self.high - self.low) / count).log2().ceil().exp2())
    }

    /// Round marks at whole numbers only.
    pub(super) fn whole_ticks(self, count: f64) -> Vec<f64> {
        if self.high - self.low < count { self.ticks(1.0) } else { self.decimal_ticks(count) }
    }

    fn ticks(self, step: f64) -> Vec<f64> {
        if !(step.is_finite() && step > 0.0) {
            return Vec::new();
        }
        let first = (self.low / step - 1e-9).ceil();
        let last = (self.high / step + 1e-9).floor();
        // Bounded: a step so small that the range swallows it must not loop for ever.
        let count = (last - first).clamp(-1.0, 100.0) as i64;
        (0..=count).map(|position| (first + position as f64) * step).collect()
    }
}

/// Thins a curve to what `columns` can show: of each column its first, lowest, highest and last
/// point, in order. Shares must not decrease.
pub(super) fn thin(points: &[(f64, f64)], columns: usize) -> Vec<(f64, f64)> {
    if points.len() <= columns * 2 {
        return points.to_vec();
    }
    let column_of = |point: &(f64, f64)| (point.0 * columns as f64) as usize;
    let mut kept = Vec::new();
    for column in points.chunk_by(|a, b| column_of(a) == column_of(b)) {
        let by_value = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let low = column.iter().min_by(by_value).map(|point| point.1);
        let high = column.iter().max_by(by_value).map(|point| point.1);
        let (mut low, mut high) = (low, high);
        for (position, point) in column.iter().enumerate() {
            let is_end = position == 0 || position + 1 == column.len();
            let is_low = low == Some(point.1);
            let is_high = high == Some(point.1);
            if is_end || is_low || is_high {
                kept.push(*point);
            }
            low = low.filter(|_| !is_low);
            high = high.filter(|_| !is_high);
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{Scale, thin};

    #[test]
    fn ranges_of_no_length_still_place_their_value() {
        assert_eq!(Scale::new(0.0, 0.0).share(0.0), 0.0);
        assert_eq!(Scale::new(5.0, 5.0).share(10.0), 1.0);
        assert!((Scale::around([7.0].into_iter()).share(7.0) - 0.5).abs() < 1e-12);
        assert!((Scale::around([0.0, 0.0].into_iter()).share(0.0) - 0.5).abs() < 1e-12);
        assert_eq!(Scale::around([].into_iter()), Scale::new(0.0, 1.0));
        assert_eq!(Scale::new(f64::NAN, f64::INFINITY), Scale::new(0.0, 1.0));
        assert_eq!(Scale::new(0.0, 10.0).share(f64::NAN), 0.0);
        assert_eq!(Scale::new(0.0, 10.0).share(99.0), 1.0);
        assert_eq!(Scale::new(0.0, 10.0).row(10.0, (5.0, 25.0)), 5.0);
    }

    #[test]
    fn marks_are_round() {
        assert_eq!(Scale::new(0.0, 10.0).decimal_ticks(5.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        let mib = 1024.0 * 1024.0;
        let ticks = Scale::new(0.0, 860.0 * mib).binary_ticks(5.0);
        assert_eq!(
            ticks.iter().map(|tick| tick / mib).collect::<Vec<_>>(),
            [0.0, 256.0, 512.0, 768.0]
        );
        assert_eq!(Scale::new(0.0, 2.0).whole_ticks(8.0), [0.0, 1.0, 2.0]);
        assert_eq!(Scale::new(4.0, 4.0).whole_ticks(8.0), [4.0, 5.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn marks_lie_inside_and_are_few_for_any_range() {
        for exponent in -12..20 {
            for mantissa in [1.0, 1.7, 3.3, 9.99] {
                let high = mantissa * 10_f64.powi(exponent);
                let scale = Scale::new(0.0, high);
                for ticks in [scale.decimal_ticks(6.0), scale.binary_ticks(6.0)] {
                    assert!((2..=8).contains(&ticks.len()), "{high} {ticks:?}");
                    assert!(ticks.iter().all(|tick| (0.0..=high * 1.000_001).contains(tick)));
                }
            }
        }
        assert!(Scale::new(1e300, 1e300 + 1.0).decimal_ticks(5.0).len() <= 101);
    }

    #[test]
    fn thinning_keeps_extremes_and_ends() {
        let points: Vec<(f64, f64)> = (0..20_000)
            .map(|place| (f64::from(place) / 20_000.0, f64::from((place * 7_919) % 1_000)))
            .collect();
        let kept = thin(&points, 100);
        assert!(kept.len() <= 400 && kept.len() >= 200, "{}", kept.len());
        assert_eq!((kept.first(), kept.last()), (points.first(), points.last()));
        assert!(kept.iter().any(|point| point.1 == 0.0));
        assert!(kept.iter().any(|point| point.1 == 999.0));
        assert!(kept.is_sorted_by(|a, b| a.0 <= b.0));
        assert_eq!(thin(&points[..10], 100), &points[..10]);
        assert!(thin(&[], 100).is_empty());
    }
}
