//! Why a call fails: the library's code and a text.

use npu_sys::{DriverError, ErrorKind};

pub(crate) const INVALID_PARAM: i32 = 100_000;
pub(crate) const UNINITIALIZE: i32 = 100_001;
pub(crate) const REPEAT_INITIALIZE: i32 = 100_002;
pub(crate) const REPEAT_FINALIZE: i32 = 100_037;
pub(crate) const RT_PARAM_INVALID: i32 = 107_000;
pub(crate) const RT_INVALID_DEVICEID: i32 = 107_001;
pub(crate) const RT_CONTEXT_NULL: i32 = 107_002;
pub(crate) const RT_STREAM_CONTEXT: i32 = 107_003;
pub(crate) const RT_EVENT_TIMESTAMP_INVALID: i32 = 107_006;
pub(crate) const RT_EVENT_TIMESTAMP_REVERSAL: i32 = 107_007;
pub(crate) const RT_ADDR_UNALIGNED: i32 = 107_008;
pub(crate) const RT_INVALID_MEMORY_TYPE: i32 = 107_016;
pub(crate) const RT_INVALID_HANDLE: i32 = 107_017;
pub(crate) const RT_INVALID_MALLOC_TYPE: i32 = 107_018;
pub(crate) const RT_WAIT_TIMEOUT: i32 = 107_019;
pub(crate) const RT_FEATURE_NOT_SUPPORT: i32 = 207_000;
pub(crate) const RT_MEMORY_ALLOCATION: i32 = 207_001;
pub(crate) const INTERNAL_ERROR: i32 = 500_000;
pub(crate) const RT_INTERNAL_ERROR: i32 = 507_000;
pub(crate) const RT_STREAM_SYNC_TIMEOUT: i32 = 507_046;
pub(crate) const RT_EVENT_SYNC_TIMEOUT: i32 = 507_047;
pub(crate) const RT_HOST_MEMORY_ALREADY_REGISTERED: i32 = 507_910;
pub(crate) const RT_HOST_MEMORY_NOT_REGISTERED: i32 = 507_911;

/// A refused call.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) text: String,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub(crate) fn new(code: i32, text: impl Into<String>) -> Failure {
        Failure { code, text: text.into() }
    }
}

/// A refusal, with a code and why.
pub(crate) fn refuse<T>(code: i32, text: impl Into<String>) -> Outcome<T> {
    Err(Failure::new(code, text))
}

/// Refuses a value unless it is `due`.
pub(crate) fn expect<T: PartialEq + std::fmt::Display>(name: &str, value: T, due: T) -> Outcome {
    if value != due {
        return refuse(RT_PARAM_INVALID, format!("{name} is {value}, not {due}"));
    }
    Ok(())
}

impl From<DriverError> for Failure {
    fn from(error: DriverError) -> Failure {
        let code = match error.kind {
            ErrorKind::OutOfMemory => RT_MEMORY_ALLOCATION,
            ErrorKind::Unsupported => RT_FEATURE_NOT_SUPPORT,
            ErrorKind::Invalid => RT_PARAM_INVALID,
            _ => RT_INTERNAL_ERROR,
        };
        Failure::new(code, error.to_string())
    }
}
