//! Figures as people read them: bytes, times, rates and shares.

/// What is printed for a figure that is unknown or no number.
pub(super) const UNKNOWN: &str = "unknown";

const KIB: f64 = 1024.0;

/// A unit of an axis: its name, and how many base units it holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Unit {
    /// The name printed after the number.
    pub(super) name: &'static str,
    /// Base units (bytes or microseconds) in one of it.
    pub(super) size: f64,
}

impl Unit {
    /// The largest byte unit that is not above `bytes`.
    pub(super) fn of_bytes(bytes: f64) -> Unit {
        let units = [
            Unit { name: "TiB", size: KIB * KIB * KIB * KIB },
            Unit { name: "GiB", size: KIB * KIB * KIB },
            Unit { name: "MiB", size: KIB * KIB },
            Unit { name: "KiB", size: KIB },
        ];
        Unit::largest(&units, bytes, Unit { name: "B", size: 1.0 })
    }

    /// The largest time unit that is not above `us`.
    pub(super) fn of_us(us: f64) -> Unit {
        let units = [Unit { name: "s", size: 1e6 }, Unit { name: "ms", size: 1e3 }];
        Unit::largest(&units, us, Unit { name: "µs", size: 1.0 })
    }

    fn largest(units: &[Unit], amount: f64, smallest: Unit) -> Unit {
        // Rounding must not print "1024 MiB" or "1000 ms", so a hair below counts as the unit.
        units.iter().copied().find(|unit| amount.abs() >= unit.size * 0.9995).unwrap_or(smallest)
    }

    /// `amount` in this unit, with its name.
    pub(super) fn show(self, amount: f64) -> String {
        if amount.is_finite() {
            format!("{} {}", significant(amount / self.size), self.name)
        } else {
            UNKNOWN.to_owned()
        }
    }
}

/// Three significant digits, without trailing zeros behind the point.
fn significant(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        _ => 2,
    };
    trimmed(value, decimals)
}

/// `value` with at most `decimals` digits behind the point, no trailing zeros and no "-0".
pub(super) fn trimmed(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Bytes, such as `412 MiB`.
pub(crate) fn bytes(size_bytes: u64) -> String {
    Unit::of_bytes(size_bytes as f64).show(size_bytes as f64)
}

/// A time given in microseconds, such as `84.2 ms`.
pub(crate) fn time(us: f64) -> String {
    Unit::of_us(us).show(us)
}

/// A time, or that it is unknown.
pub(super) fn time_or_unknown(us: Option<f64>) -> String {
    us.map_or_else(|| UNKNOWN.to_owned(), time)
}

/// The rate of a copy in GB/s (10^9 bytes), or `None` when it took no time.
pub(crate) fn gb_per_s(size_bytes: u64, us: f64) -> Option<f64> {
    let rate = size_bytes as f64 / us / 1e3;
    (us > 0.0 && rate.is_finite()).then_some(rate)
}

/// A share as a whole percentage, such as `48 %`.
pub(crate) fn percent(part: f64, whole: f64) -> String {
    let share = 100.0 * part / whole;
    if share.is_finite() { format!("{share:.0} %") } else { UNKNOWN.to_owned() }
}

/// A count with its noun, such as `1 op` or `12,000 ops`.
pub(crate) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// A whole number with commas between groups of three digits.
pub(super) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{bytes, count, gb_per_s, percent, thousands, time, trimmed};

    #[test]
    fn bytes_take_the_unit_that_fits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(412 << 20), "412 MiB");
        assert_eq!(bytes((1 << 30) - 1), "1 GiB");
        assert_eq!(bytes(u64::MAX), "16777216 TiB");
    }

    #[test]
    fn times_take_the_unit_that_fits() {
        assert_eq!(time(0.0), "0 µs");
        assert_eq!(time(12.345), "12.3 µs");
        assert_eq!(time(84_200.0), "84.2 ms");
        assert_eq!(time(999_999.0), "1 s");
        assert_eq!(time(f64::NAN), "unknown");
        assert_eq!(time(f64::INFINITY), "unknown");
    }

    #[test]
    fn rates_and_shares_survive_zeros() {
        assert_eq!(gb_per_s(1_000_000_000, 1e6), Some(1.0));
        assert_eq!(gb_per_s(5, 0.0), None);
        assert_eq!(percent(48.0, 100.0), "48 %");
        assert_eq!(percent(1.0, 0.0), "unknown");
        assert_eq!(percent(0.0, 0.0), "unknown");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(1_234_567), "1,234,567");
        assert_eq!(thousands(123), "123");
        assert_eq!(count(1, "op"), "1 op");
        assert_eq!(count(12_000, "op"), "12,000 ops");
        assert_eq!(trimmed(-0.0001, 2), "0");
        assert_eq!(trimmed(100.0, 0), "100");
    }
}
