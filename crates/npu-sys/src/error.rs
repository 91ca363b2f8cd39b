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
    /// Two accesses are not ordered by an event ([`CheckDriver`](crate::CheckDriver) only).
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
