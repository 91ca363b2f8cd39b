//! What a driver call can fail with.

use std::borrow::Cow;

/// Why a driver call failed, by what the caller can do about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No memory of the asked kind is left: free some and try again.
    OutOfMemory,
    /// This driver or device cannot do it: use the documented fallback.
    Unsupported,
    /// An argument is wrong: a mistake of the caller.
    Invalid,
    /// The device is gone: nothing can be saved but host memory.
    DeviceLost,
    /// Two accesses are not ordered by an event. Only
    /// [`CheckDriver`](crate::devices::CheckDriver) finds that.
    Race,
    /// Any other code of the driver.
    Failed,
}

/// A failed driver call.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} failed with code {code}: {text}")]
pub struct DriverError {
    /// The call, as this crate names it.
    pub call: &'static str,
    /// The driver's own code.
    pub code: i64,
    /// The driver's own text.
    pub text: Cow<'static, str>,
    /// What the caller can do.
    pub kind: ErrorKind,
}

impl DriverError {
    /// A call that this driver cannot make, found out before anything was asked of the device.
    pub(crate) fn unsupported(call: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        DriverError { call, code: -1, text: text.into(), kind: ErrorKind::Unsupported }
    }
}

/// Why a device could not be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The vendor's library is not on this machine.
    #[error("no {name} on this machine (tried {tried}): {hint}")]
    NoLibrary {
        /// The library, as its vendor names it.
        name: &'static str,
        /// What was tried, and what each try gave.
        tried: String,
        /// How to mend it.
        hint: &'static str,
    },
    /// A file is there, but it is not a library that this process can load.
    #[error("{path} is not a library that can be loaded here: {why}")]
    NotALibrary {
        /// The file.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The library lacks a function that no version may lack.
    #[error("{path} has no function {symbol}: it is another library, or too old")]
    MissingSymbol {
        /// The file.
        path: String,
        /// The function.
        symbol: &'static str,
    },
    /// There is no device of that number.
    #[error("there is no device {index}: {name} sees {count} of them, numbered from 0")]
    NoDevice {
        /// The driver.
        name: &'static str,
        /// What was asked for.
        index: u32,
        /// How many there are.
        count: u32,
    },
    /// The driver failed while the device was opened.
    #[error(transparent)]
    Driver(#[from] DriverError),
}
