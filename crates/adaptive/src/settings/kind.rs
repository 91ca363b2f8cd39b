//! What may stand behind a key: how it is written, and what it means.

use std::path::PathBuf;
use std::str::FromStr;

use policy::Bytes;

use super::read::Given;
use crate::device_name::DeviceName;
use crate::named::Named;

/// A kind of value.
pub(super) trait Kind {
    /// What it becomes.
    type Value;
    /// What is accepted, in words.
    fn accepts() -> String;
    /// Reads one, or says what would be accepted.
    fn read(given: &Given<'_>) -> Result<Self::Value, String>;
}

/// A memory budget.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Budget {
    /// In bytes.
    Bytes(u64),
    /// In percent of the step's own peak.
    Percent(f64),
    /// This many bytes below the step's own peak.
    BelowPeak(u64),
}

impl Budget {
    /// The budget in bytes, for a step that needs `peak_bytes`. Nothing is left of a peak that is
    /// no larger than what it is to fall by.
    pub fn of_peak(self, peak_bytes: u64) -> u64 {
        match self {
            Budget::Bytes(bytes) => bytes,
            Budget::Percent(percent) => (peak_bytes as f64 * percent / 100.0) as u64,
            Budget::BelowPeak(bytes) => peak_bytes.saturating_sub(bytes),
        }
    }
}

/// A share of more than this is a slip of the finger.
const PERCENT_MAX: f64 = 1000.0;

impl FromStr for Budget {
    type Err = String;

    /// Reads `24GiB`, plain bytes or `60%`.
    fn from_str(text: &str) -> Result<Budget, String> {
        let Some(share) = text.trim().strip_suffix('%') else {
            return size_of(text).map(Budget::Bytes);
        };
        match share.trim().parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= PERCENT_MAX => Ok(Budget::Percent(percent)),
            _ => Err(format!("'{text}' is not a percentage: write 60%, at most {PERCENT_MAX}%")),
        }
    }
}

/// Whether a plan may move the optimizer's moments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OptimizerState {
    /// No: they leave only if there is no room otherwise.
    Device,
    /// Yes, if that is worth it.
    Swap,
}

/// How much to print.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PrintLevel {
    /// Everything that is known.
    Debug,
    /// What most people want to see.
    #[default]
    Info,
    /// Errors alone.
    None,
}

impl Named for OptimizerState {
    const ALL: &'static [(OptimizerState, &'static str, &'static str)] = &[
        (OptimizerState::Device, "device", "No: they leave only if there is no room otherwise"),
        (OptimizerState::Swap, "swap", "Yes, if that is worth it"),
    ];
}

impl<T: Named> Kind for T {
    type Value = T;

    fn accepts() -> String {
        T::names()
    }

    fn read(given: &Given<'_>) -> Result<T, String> {
        match given {
            Given::Text(text) | Given::Untyped(text) => T::named(text),
            _ => Err(T::names()),
        }
    }
}

/// `print_level`: a number, or its name.
pub(super) struct Level;

impl Kind for Level {
    type Value = PrintLevel;

    fn accepts() -> String {
        "0 (`DEBUG`), 1 (`INFO`) or 2 (`NONE`)".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<PrintLevel, String> {
        match given {
            Given::Integer(0) | Given::Text("DEBUG") | Given::Untyped("0" | "DEBUG") => {
                Ok(PrintLevel::Debug)
            }
            Given::Integer(1) | Given::Text("INFO") | Given::Untyped("1" | "INFO") => {
                Ok(PrintLevel::Info)
            }
            Given::Integer(2) | Given::Text("NONE") | Given::Untyped("2" | "NONE") => {
                Ok(PrintLevel::None)
            }
            _ => Err(Level::accepts()),
        }
    }
}

/// True or false.
pub(super) struct Flag;

impl Kind for Flag {
    type Value = bool;

    fn accepts() -> String {
        "`true` or `false`".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<bool, String> {
        match given {
            Given::Boolean(value) => Ok(*value),
            // The originals' files are Python.
            Given::Untyped("true" | "True") => Ok(true),
            Given::Untyped("false" | "False") => Ok(false),
            _ => Err(Flag::accepts()),
        }
    }
}

/// A whole number from `MIN` to `MAX`.
pub(super) struct Whole<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Kind for Whole<MIN, MAX> {
    type Value = u64;

    fn accepts() -> String {
        "a whole number".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<u64, String> {
        let number = match given {
            Given::Integer(number) => u64::try_from(*number).ok(),
            Given::Untyped(text) => text.trim().parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| (MIN..=MAX).contains(number));
        number.ok_or_else(|| match MAX {
            // Where the file format ends, there is no need to say so.
            COUNT_MAX => format!("a whole number from {MIN} on"),
            _ => format!("a whole number from {MIN} to {MAX}"),
        })
    }
}

/// The largest whole number of the file format.
pub(super) const COUNT_MAX: u64 = i64::MAX as u64;

/// A number from `MIN` on, up to 1 if it is a share.
pub(super) struct Number<const MIN: u8, const IS_SHARE: bool>;

impl<const MIN: u8, const IS_SHARE: bool> Kind for Number<MIN, IS_SHARE> {
    type Value = f64;

    fn accepts() -> String {
        "a number".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<f64, String> {
        let number = match given {
            Given::Integer(number) => Some(*number as f64),
            Given::Float(number) => Some(*number),
            Given::Untyped(text) => text.trim().parse().ok(),
            _ => None,
        };
        let most = if IS_SHARE { 1.0 } else { f64::MAX };
        let number = number.filter(|number| (f64::from(MIN)..=most).contains(number));
        number.ok_or_else(|| match IS_SHARE {
            true => format!("a number from {MIN} to 1"),
            false => format!("a number from {MIN} on"),
        })
    }
}

/// More than no bytes.
pub(super) struct Size;

impl Kind for Size {
    type Value = u64;

    fn accepts() -> String {
        "a size".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<u64, String> {
        SizeOrNone::read(given).ok().filter(|&bytes| bytes > 0).ok_or_else(|| SIZE.to_owned())
    }
}

/// Bytes.
pub(super) struct SizeOrNone;

impl Kind for SizeOrNone {
    type Value = u64;

    fn accepts() -> String {
        "a size or 0".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<u64, String> {
        let bytes = match given {
            Given::Integer(bytes) => u64::try_from(*bytes).ok(),
            Given::Text(text) | Given::Untyped(text) => text.parse().ok().map(|Bytes(bytes)| bytes),
            _ => None,
        };
        bytes.ok_or_else(|| format!("{SIZE}, or 0"))
    }
}

const SIZE: &str = "a size such as \"24GiB\", \"512MiB\" or a number of bytes";

fn size_of(text: &str) -> Result<u64, String> {
    let parsed: Result<Bytes, policy::ParseBytesError> = text.parse();
    match parsed {
        Ok(Bytes(0)) => Err("it must be more than 0, such as 512MiB".to_owned()),
        Ok(Bytes(bytes)) => Ok(bytes),
        Err(error) => Err(error.to_string()),
    }
}

impl Kind for Budget {
    type Value = Budget;

    fn accepts() -> String {
        "a size or a share".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<Budget, String> {
        let budget = match given {
            Given::Text(text) | Given::Untyped(text) => text.parse().ok(),
            other => Size::read(other).ok().map(Budget::Bytes),
        };
        budget.ok_or_else(|| format!("{SIZE}, or a share of the peak such as \"60%\""))
    }
}

/// Bytes in a second.
pub(super) struct Rate;

/// Below this a single copy takes minutes, which nobody means.
const RATE_MIN: u64 = 1 << 20;

impl Kind for Rate {
    type Value = u64;

    fn accepts() -> String {
        "a speed".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<u64, String> {
        let bytes = match given {
            Given::Text(text) | Given::Untyped(text) => {
                let size = text.trim();
                Size::read(&Given::Text(size.strip_suffix("/s").unwrap_or(size))).ok()
            }
            other => Size::read(other).ok(),
        };
        bytes
            .filter(|&bytes| bytes >= RATE_MIN)
            .ok_or_else(|| "a speed such as \"50GB/s\", at least 1MiB/s".to_owned())
    }
}

/// `swap_bucket_size`: bytes; below 0 for no bound.
pub(super) struct Bucket;

impl Kind for Bucket {
    type Value = Option<u64>;

    fn accepts() -> String {
        "a size, 0 or -1".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<Option<u64>, String> {
        match given {
            Given::Integer(..0) => Ok(None),
            Given::Untyped(text) if text.trim().starts_with('-') => {
                Whole::<1, COUNT_MAX>::read(&Given::Untyped(&text.trim()[1..])).map(|_| None)
            }
            other => SizeOrNone::read(other).map(Some),
        }
        .map_err(|_| format!("{SIZE}, 0 for none or -1 for all"))
    }
}

/// A file or folder.
pub(super) struct PathText;

impl Kind for PathText {
    type Value = PathBuf;

    fn accepts() -> String {
        "a path".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<PathBuf, String> {
        match given {
            Given::Text(text) | Given::Untyped(text) if !text.is_empty() => Ok(text.into()),
            _ => Err("a path in quotes".to_owned()),
        }
    }
}

/// A device by its name.
pub(super) struct Device;

impl Kind for Device {
    type Value = DeviceName;

    fn accepts() -> String {
        "a device".to_owned()
    }

    fn read(given: &Given<'_>) -> Result<DeviceName, String> {
        let (Given::Text(text) | Given::Untyped(text)) = given else {
            return Err(DEVICE.to_owned());
        };
        text.parse().map_err(|_| DEVICE.to_owned())
    }
}

const DEVICE: &str = "a device: \"host\", \"cuda\", \"cuda:1\", \"acl\" or \"acl:1\"";
