//! Codes of the library: their names, and what the caller can do about them.

use std::borrow::Cow;

use crate::acl::sys::{self, aclError};
use crate::error::{DriverError, ErrorKind};

/// The vendor's names of the codes that its calls here can give. The library has no function
/// that knows them.
#[rustfmt::skip]
pub(super) const NAMES: &[(aclError, &str)] = &[
    (100000, "ACL_ERROR_INVALID_PARAM"),
    (100001, "ACL_ERROR_UNINITIALIZE"),
    (100002, "ACL_ERROR_REPEAT_INITIALIZE"),
    (100003, "ACL_ERROR_INVALID_FILE"),
    (100033, "ACL_ERROR_REPEAT_SUBSCRIBE"),
    (100034, "ACL_ERROR_STREAM_NOT_SUBSCRIBE"),
    (100035, "ACL_ERROR_THREAD_NOT_SUBSCRIBE"),
    (100036, "ACL_ERROR_WAIT_CALLBACK_TIMEOUT"),
    (100037, "ACL_ERROR_REPEAT_FINALIZE"),
    (100039, "ACL_ERROR_COMPILING_STUB_MODE"),
    (107000, "ACL_ERROR_RT_PARAM_INVALID"),
    (107001, "ACL_ERROR_RT_INVALID_DEVICEID"),
    (107002, "ACL_ERROR_RT_CONTEXT_NULL"),
    (107003, "ACL_ERROR_RT_STREAM_CONTEXT"),
    (107006, "ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID"),
    (107007, "ACL_ERROR_RT_EVENT_TIMESTAMP_REVERSAL"),
    (107008, "ACL_ERROR_RT_ADDR_UNALIGNED"),
    (107011, "ACL_ERROR_RT_STREAM_SUBSCRIBE"),
    (107012, "ACL_ERROR_RT_THREAD_SUBSCRIBE"),
    (107015, "ACL_ERROR_RT_STREAM_NO_CB_REG"),
    (107016, "ACL_ERROR_RT_INVALID_MEMORY_TYPE"),
    (107017, "ACL_ERROR_RT_INVALID_HANDLE"),
    (107018, "ACL_ERROR_RT_INVALID_MALLOC_TYPE"),
    (107019, "ACL_ERROR_RT_WAIT_TIMEOUT"),
    (107020, "ACL_ERROR_RT_TASK_TIMEOUT"),
    (107022, "ACL_ERROR_RT_DEVICE_TASK_ABORT"),
    (107023, "ACL_ERROR_RT_STREAM_ABORT"),
    (107025, "ACL_ERROR_RT_STREAM_UNJOINED"),
    (107026, "ACL_ERROR_RT_MODEL_CAPTURED"),
    (107027, "ACL_ERROR_RT_STREAM_CAPTURED"),
    (107028, "ACL_ERROR_RT_EVENT_CAPTURED"),
    (107030, "ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT"),
    (107031, "ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT"),
    (200000, "ACL_ERROR_BAD_ALLOC"),
    (200001, "ACL_ERROR_API_NOT_SUPPORT"),
    (200002, "ACL_ERROR_INVALID_DEVICE"),
    (200003, "ACL_ERROR_MEMORY_ADDRESS_UNALIGNED"),
    (200005, "ACL_ERROR_INVALID_RESOURCE_HANDLE"),
    (200006, "ACL_ERROR_FEATURE_UNSUPPORTED"),
    (207000, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT"),
    (207001, "ACL_ERROR_RT_MEMORY_ALLOCATION"),
    (207002, "ACL_ERROR_RT_MEMORY_FREE"),
    (207004, "ACL_ERROR_RT_NO_DEVICE"),
    (207005, "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL"),
    (207006, "ACL_ERROR_RT_NO_PERMISSION"),
    (207007, "ACL_ERROR_RT_NO_EVENT_RESOURCE"),
    (207008, "ACL_ERROR_RT_NO_STREAM_RESOURCE"),
    (207012, "ACL_ERROR_RT_OVER_LIMIT"),
    (207018, "ACL_ERROR_RT_DEVICE_OOM"),
    (207020, "ACL_ERROR_RT_TIMEOUT"),
    (300000, "ACL_ERROR_STORAGE_OVER_LIMIT"),
    (500000, "ACL_ERROR_INTERNAL_ERROR"),
    (500001, "ACL_ERROR_FAILURE"),
    (500002, "ACL_ERROR_GE_FAILURE"),
    (500003, "ACL_ERROR_RT_FAILURE"),
    (500004, "ACL_ERROR_DRV_FAILURE"),
    (500005, "ACL_ERROR_PROFILING_FAILURE"),
    (507000, "ACL_ERROR_RT_INTERNAL_ERROR"),
    (507001, "ACL_ERROR_RT_TS_ERROR"),
    (507002, "ACL_ERROR_RT_STREAM_TASK_FULL"),
    (507010, "ACL_ERROR_RT_LOST_HEARTBEAT"),
    (507012, "ACL_ERROR_RT_REPORT_TIMEOUT"),
    (507013, "ACL_ERROR_RT_SYS_DMA"),
    (507014, "ACL_ERROR_RT_AICORE_TIMEOUT"),
    (507015, "ACL_ERROR_RT_AICORE_EXCEPTION"),
    (507016, "ACL_ERROR_RT_AICORE_TRAP_EXCEPTION"),
    (507017, "ACL_ERROR_RT_AICPU_TIMEOUT"),
    (507018, "ACL_ERROR_RT_AICPU_EXCEPTION"),
    (507033, "ACL_ERROR_RT_DEV_SETUP_ERROR"),
    (507034, "ACL_ERROR_RT_VECTOR_CORE_TIMEOUT"),
    (507035, "ACL_ERROR_RT_VECTOR_CORE_EXCEPTION"),
    (507046, "ACL_ERROR_RT_STREAM_SYNC_TIMEOUT"),
    (507047, "ACL_ERROR_RT_EVENT_SYNC_TIMEOUT"),
    (507053, "ACL_ERROR_RT_DEVICE_MEM_ERROR"),
    (507054, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR"),
    (507055, "ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR"),
    (507056, "ACL_ERROR_RT_LINK_ERROR"),
    (507057, "ACL_ERROR_RT_SUSPECT_REMOTE_ERROR"),
    (507899, "ACL_ERROR_RT_DRV_INTERNAL_ERROR"),
    (507900, "ACL_ERROR_RT_AICPU_INTERNAL_ERROR"),
    (507901, "ACL_ERROR_RT_SOCKET_CLOSE"),
    (507910, "ACL_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (507911, "ACL_ERROR_HOST_MEMORY_NOT_REGISTERED"),
];

/// What the caller can do about a code.
fn kind(code: aclError) -> ErrorKind {
    match code {
        sys::ACL_ERROR_BAD_ALLOC
        | sys::ACL_ERROR_RT_MEMORY_ALLOCATION
        | sys::ACL_ERROR_RT_DEVICE_OOM => ErrorKind::OutOfMemory,
        sys::ACL_ERROR_RT_FEATURE_NOT_SUPPORT
        | sys::ACL_ERROR_COMPILING_STUB_MODE
        | sys::ACL_ERROR_API_NOT_SUPPORT
        | sys::ACL_ERROR_FEATURE_UNSUPPORTED => ErrorKind::Unsupported,
        // In the numbers of wrong arguments, but nobody's mistake.
        sys::ACL_ERROR_WAIT_CALLBACK_TIMEOUT
        | sys::ACL_ERROR_RT_WAIT_TIMEOUT
        | sys::ACL_ERROR_RT_TASK_TIMEOUT
        | sys::ACL_ERROR_RT_DEVICE_TASK_ABORT
        | sys::ACL_ERROR_RT_STREAM_ABORT => ErrorKind::Failed,
        100_000..=100_999 | 107_000..=107_999 | 200_002..=200_005 => ErrorKind::Invalid,
        sys::ACL_ERROR_RT_LOST_HEARTBEAT
        | sys::ACL_ERROR_RT_SOCKET_CLOSE
        | sys::ACL_ERROR_RT_DEVICE_MEM_ERROR
        | sys::ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR
        | sys::ACL_ERROR_RT_SUSPECT_DEVICE_MEM_ERROR
        | sys::ACL_ERROR_RT_LINK_ERROR
        | sys::ACL_ERROR_RT_SUSPECT_REMOTE_ERROR => ErrorKind::DeviceLost,
        _ => ErrorKind::Failed,
    }
}

/// A code that `symbol` gave, in the driver's `call`.
pub(super) fn error(
    call: &'static str,
    symbol: &'static str,
    code: aclError,
    text: &str,
) -> DriverError {
    let name = NAMES.iter().find(|(named, _)| *named == code);
    let name = name.map_or("a code without a name", |(_, name)| name);
    let text = match text {
        "" => format!("{symbol} gave {name}"),
        text => format!("{symbol} gave {name}: {text}"),
    };
    DriverError { call, code: i64::from(code), text: text.into(), kind: kind(code) }
}

/// A function that this version of the library lacks.
pub(super) fn missing(call: &'static str, symbol: &'static str) -> DriverError {
    let text = format!("this version of libascendcl.so has no function {symbol}");
    DriverError::unsupported(call, text)
}

/// The code of a mistake of the caller.
pub(super) const INVALID: i64 = sys::ACL_ERROR_INVALID_PARAM as i64;

/// A mistake of the caller that was seen before the library was asked.
pub(super) fn invalid(call: &'static str, text: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError { call, code: INVALID, text: text.into(), kind: ErrorKind::Invalid }
}

/// Work that failed on the host.
pub(super) fn failed(call: &'static str, text: impl Into<Cow<'static, str>>) -> DriverError {
    let code = i64::from(sys::ACL_ERROR_FAILURE);
    DriverError { call, code, text: text.into(), kind: ErrorKind::Failed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_a_name_and_a_kind() {
        let check = |code, expect: ErrorKind, text: &str| {
            let error = error("map", "aclrtMapMem", code, "details");
            assert_eq!((error.kind, error.code), (expect, i64::from(code)));
            assert_eq!(error.text, format!("aclrtMapMem gave {text}: details"));
        };
        check(207001, ErrorKind::OutOfMemory, "ACL_ERROR_RT_MEMORY_ALLOCATION");
        check(207018, ErrorKind::OutOfMemory, "ACL_ERROR_RT_DEVICE_OOM");
        check(207000, ErrorKind::Unsupported, "ACL_ERROR_RT_FEATURE_NOT_SUPPORT");
        check(107000, ErrorKind::Invalid, "ACL_ERROR_RT_PARAM_INVALID");
        check(100000, ErrorKind::Invalid, "ACL_ERROR_INVALID_PARAM");
        check(107020, ErrorKind::Failed, "ACL_ERROR_RT_TASK_TIMEOUT");
        check(507015, ErrorKind::Failed, "ACL_ERROR_RT_AICORE_EXCEPTION");
        check(507054, ErrorKind::DeviceLost, "ACL_ERROR_RT_HBM_MULTI_BIT_ECC_ERROR");
        check(999_999, ErrorKind::Failed, "a code without a name");
        assert!(NAMES.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
