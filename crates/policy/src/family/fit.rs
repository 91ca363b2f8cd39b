//! How one figure of a step grows with the size of its probe: not at all, in proportion, with its
//! square or its root, and beside that by something that is always there.

use std::cmp::Ordering;

/// Proportion is believed unless another power leaves less than this share of its error.
const MUCH_BETTER: f64 = 0.5;
/// What is there at nothing may be below nothing by this share of the largest value: noise.
const BELOW_NOTHING: f64 = 0.02;
/// A mask of all pairs may be the probe, as well as what it masks: one grows with the square of the
/// other.
const OTHERS: [Power; 2] = [Power::Square, Power::Root];

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Power {
    Root,
    #[default]
    One,
    Square,
}

impl Power {
    /// The same bits on each machine, which powers of other numbers are not.
    fn of(self, probe: f64) -> f64 {
        match self {
            Power::Root => probe.sqrt(),
            Power::One => probe,
            Power::Square => probe * probe,
        }
    }
}

/// `base + slope * probe ^ power`, and how far recorded values are above it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Curve {
    base: f64,
    slope: f64,
    power: Power,
    /// The most that a recorded value is above the curve, for each byte of its probe.
    above: f64,
}

impl Curve {
    /// The curve through points of a probe's size and a value.
    pub(super) fn through(points: &[(f64, f64)]) -> Curve {
        let most = points.iter().map(|&(_, value)| value).fold(0.0, f64::max);
        let flat = Curve { base: most, ..Curve::default() };
        if points.iter().all(|&(_, value)| value == most) {
            return flat;
        }
        let Some((line, line_error)) = Curve::fitted(points, Power::One) else { return flat };
        let others = OTHERS.into_iter().filter_map(|power| Curve::fitted(points, power));
        let (other, error) = others
            .fold((line, f64::INFINITY), |best, next| if next.1 < best.1 { next } else { best });
        // Two points are on a curve of any power.
        let chosen = match points.len() {
            ..=2 if line.base < -BELOW_NOTHING * most => {
                Curve::fitted(points, Power::Square).map_or(line, |(square, _)| square)
            }
            ..=2 => line,
            _ if error < MUCH_BETTER * line_error => other,
            _ => line,
        };
        // Nothing of a step shrinks where its batch grows; what seems to is noise.
        let chosen = if chosen.slope < 0.0 { flat } else { chosen };
        let above = |&(probe, value): &(f64, f64)| (value - chosen.at(probe)) / probe.max(1.0);
        Curve { above: points.iter().map(above).fold(0.0, f64::max), ..chosen }
    }

    /// The curve below points that may be above what is true, and never below it, as of an op in
    /// which the device waited for its host: the one that is nearest to them in their middle, of
    /// the power that [`through`](Curve::through) finds.
    pub(super) fn below(points: &[(f64, f64)]) -> Curve {
        let Curve { power, .. } = Curve::through(points);
        let mut points: Vec<(f64, f64)> =
            points.iter().map(|&(probe, value)| (power.of(probe), value)).collect();
        let middle = points.iter().map(|&(x, _)| x).sum::<f64>() / points.len().max(1) as f64;
        let (base, slope) = line_below(&mut points, middle);
        Curve { base, slope, power, above: 0.0 }
    }

    /// The least squares, and what they leave.
    fn fitted(points: &[(f64, f64)], power: Power) -> Option<(Curve, f64)> {
        let count = points.len() as f64;
        let mean_x = points.iter().map(|&(probe, _)| power.of(probe)).sum::<f64>() / count;
        let mean_y = points.iter().map(|&(_, value)| value).sum::<f64>() / count;
        let spread =
            points.iter().map(|&(probe, _)| (power.of(probe) - mean_x).powi(2)).sum::<f64>();
        if spread <= 0.0 {
            return None;
        }
        let product = |&(probe, value): &(f64, f64)| (power.of(probe) - mean_x) * (value - mean_y);
        let slope = points.iter().map(product).sum::<f64>() / spread;
        let curve = Curve { base: mean_y - slope * mean_x, slope, power, above: 0.0 };
        let error = points.iter().map(|&(probe, value)| (value - curve.at(probe)).powi(2)).sum();
        Some((curve, error))
    }

    /// The value at a size of the probe.
    pub(super) fn at(self, probe: f64) -> f64 {
        self.base + self.slope * self.power.of(probe)
    }

    /// What no recorded value exceeded.
    pub(super) fn bound(self, probe: f64) -> f64 {
        self.at(probe) + self.above * probe
    }
}

/// Base and slope, neither below 0, of the line below all points that is the highest at `middle`.
fn line_below(points: &mut [(f64, f64)], middle: f64) -> (f64, f64) {
    let least = points.iter().map(|&(_, y)| y).fold(f64::INFINITY, f64::min);
    let flattest = (if least.is_finite() { least } else { 0.0 }, 0.0);
    let ratios = points.iter().filter(|&&(x, _)| x > 0.0).map(|&(x, y)| y / x);
    let steepest = (0.0, ratios.fold(f64::INFINITY, f64::min));
    let steepest = if steepest.1.is_finite() { steepest } else { flattest };
    points.sort_by(|one, other| one.partial_cmp(other).unwrap_or(Ordering::Equal));
    let through = |one: (f64, f64), other: (f64, f64)| {
        let slope = (other.1 - one.1) / (other.0 - one.0);
        (one.1 - slope * one.0, slope)
    };
    let pairs = (0..points.len()).flat_map(|at| (at + 1..points.len()).map(move |next| (at, next)));
    let lines = pairs.map(|(at, next)| through(points[at], points[next]));
    let is_below = |&(base, slope): &(f64, f64)| {
        let under = |&(x, y): &(f64, f64)| base + slope * x <= y + 1e-9 * y.abs();
        base >= 0.0 && slope >= 0.0 && points.iter().all(under)
    };
    let at_middle = |(base, slope): (f64, f64)| base + slope * middle;
    let higher = |best, line| if at_middle(line) > at_middle(best) { line } else { best };
    lines.filter(is_below).chain([steepest]).fold(flattest, higher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linear_square_or_constant_is_found_again() {
        let check = |value: fn(f64) -> f64, count: usize| {
            let points: Vec<_> =
                [10.0, 16.0, 12.0, 20.0].iter().take(count).map(|&x| (x, value(x))).collect();
            let curve = Curve::through(&points);
            for x in [2.0, 14.0, 80.0] {
                let (found, expect) = (curve.bound(x), value(x));
                assert!((found - expect).abs() <= 1e-6 * expect, "{found} for {expect} at {x}");
            }
        };
        for count in 2..=4 {
            check(|_| 7.0, count);
            check(|x| 3.0 * x, count);
            check(|x| 5.0 + 3.0 * x, count);
            check(|x| 2.0 * x * x, count);
        }
        check(|x| 900.0 + 2.0 * x * x, 4);
        check(|x| 6.0 * x.sqrt(), 4);
    }

    #[test]
    fn the_bound_is_above_all_that_was_seen() {
        let points = [(10.0, 30.0), (12.0, 41.0), (14.0, 40.0), (16.0, 50.0)];
        let curve = Curve::through(&points);
        assert!(points.iter().all(|&(x, y)| curve.bound(x) >= y - 1e-9));
        assert!(points.iter().any(|&(x, y)| curve.at(x) < y));
    }

    #[test]
    fn values_that_are_now_and_then_too_large_do_not_raise_what_is_below_them() {
        let check = |value: fn(f64) -> f64, late: [f64; 5]| {
            let probes = [10.0, 12.0, 16.0, 20.0, 24.0];
            let points: Vec<_> =
                probes.iter().zip(late).map(|(&x, late)| (x, value(x) + late)).collect();
            let curve = Curve::below(&points);
            for x in [5.0, 16.0, 60.0] {
                let (found, expect) = (curve.at(x), value(x));
                assert!((found - expect).abs() <= 1e-6 * expect, "{found} for {expect} at {x}");
            }
        };
        for late in [[0.0; 5], [0.0, 9.0, 0.0, 0.0, 40.0], [30.0, 0.0, 0.0, 5.0, 0.0]] {
            check(|x| 3.0 * x, late);
            check(|x| 5.0 + 3.0 * x, late);
            check(|_| 7.0, late);
        }
        check(|x| 2.0 * x * x, [0.0; 5]);
        assert_eq!(Curve::below(&[]).at(3.0), 0.0);
        assert_eq!(Curve::below(&[(4.0, 8.0)]).at(9.0), 8.0, "all that is known");
    }

    #[test]
    fn what_shrinks_is_taken_for_the_most_that_it_was() {
        let curve = Curve::through(&[(10.0, 9.0), (20.0, 8.0)]);
        assert_eq!((curve.bound(5.0), curve.bound(40.0)), (9.0, 9.0));
    }
}
