//! Scalar functions and reductions that the compiler can vectorise and that always give the same
//! bits.

/// Lanes of a reduction: enough for two vectors of the widest common kind.
const LANES: usize = 16;

/// `e^x` within two units in the last place for `x` from -80 to 87, and as at the nearer end
/// outside. So neither the result nor its reciprocal is ever denormal, which is slow.
///
/// Written out, because the platform's function is neither vectorised nor the same everywhere.
#[inline]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; the first has so few bits that its product with n is exact.
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-80.0, 87.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN_2_HIGH - n * LN_2_LOW;
    // The series of e^r for |r| <= ln 2 / 2; the first term left out is below 1e-8.
    let mut series = 1.0 / 5_040.0;
    for term in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * r + term;
    }
    let power_of_two = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    series * power_of_two
}

/// Adds up `term(index)` over `0..count` in a fixed order: by lane, then across lanes.
#[inline]
pub(crate) fn sum_lanes(count: usize, term: impl Fn(usize) -> f32) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let whole = count - count % LANES;
    let mut start = 0;
    while start < whole {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
        start += LANES;
    }
    for (lane, sum) in lanes.iter_mut().enumerate().take(count - whole) {
        *sum += term(whole + lane);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// The sum of all elements.
#[inline]
pub(crate) fn sum(x: &[f32]) -> f32 {
    sum_lanes(x.len(), |i| x[i])
}

/// The sum of squared differences from `mean`.
#[inline]
pub(crate) fn sum_of_squares_about(x: &[f32], mean: f32) -> f32 {
    sum_lanes(x.len(), |i| (x[i] - mean) * (x[i] - mean))
}

/// The sum of products.
#[inline]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a dot product needs equal lengths");
    sum_lanes(a.len(), |i| a[i] * b[i])
}

/// The largest element that is a number.
#[inline]
pub(crate) fn max(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let groups = x.chunks_exact(LANES);
    let rest = groups.remainder();
    for group in groups {
        for (lane, &value) in lanes.iter_mut().zip(group) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |top, &value| larger(top, value))
}

/// Turns `row` into `e^(row - max)`, and returns the sum.
#[inline]
pub(crate) fn exp_in_place(row: &mut [f32]) -> f32 {
    let top = max(row);
    for value in &mut *row {
        *value = exp(*value - top);
    }
    sum(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_of_the_exact_value() {
        let mut worst = 0.0_f64;
        for step in 0..2_000_000_u32 {
            let x = -80.0 + 167.0 * (step as f32) / 2_000_000.0;
            let exact = f64::from(x).exp();
            let unit = f64::from((exact as f32).next_up() - exact as f32);
            worst = worst.max((f64::from(exp(x)) - exact).abs() / unit);
        }
        assert!(worst < 2.0, "{worst} units");
        assert!(worst > 0.1, "nothing was compared");
    }

    #[test]
    fn exp_has_sane_ends() {
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-35);
        assert!(exp(f32::INFINITY) > 6e37);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn reductions_cover_every_element() {
        for count in 0..70 {
            let x: Vec<f32> = (0..count).map(|i| i as f32 + 1.0).collect();
            let expect = (count * (count + 1) / 2) as f32;
            assert_eq!(sum(&x), expect);
            assert_eq!(dot(&x, &vec![2.0; x.len()]), 2.0 * expect);
            let squares: f32 = x.iter().map(|v| (v - 1.0) * (v - 1.0)).sum();
            assert_eq!(sum_of_squares_about(&x, 1.0), squares);
            assert_eq!(max(&x), if count == 0 { f32::NEG_INFINITY } else { count as f32 });
        }
    }

    #[test]
    fn a_nan_spreads_through_a_softmax_row() {
        let mut row = [1.0, f32::NAN, 2.0];
        assert!(exp_in_place(&mut row).is_nan());
    }
}
