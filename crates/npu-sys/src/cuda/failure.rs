//! Errors of the CUDA driver: what kind each code is, and its text.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};

use crate::cuda::sys::{Api, CUresult};
use crate::error::{DriverError, ErrorKind};

/// What the caller can do about a code.
pub(super) fn kind(code: CUresult) -> ErrorKind {
    match code {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        CUresult::CUDA_ERROR_NOT_SUPPORTED
        | CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => ErrorKind::Unsupported,
        CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_INVALID_DEVICE
        | CUresult::CUDA_ERROR_INVALID_CONTEXT
        | CUresult::CUDA_ERROR_INVALID_PTX
        | CUresult::CUDA_ERROR_INVALID_HANDLE
        | CUresult::CUDA_ERROR_NOT_FOUND
        // Queries take it for an answer. Elsewhere the caller came too early.
        | CUresult::CUDA_ERROR_NOT_READY
        | CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        | CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED
        | CUresult::CUDA_ERROR_NOT_PERMITTED => ErrorKind::Invalid,
        CUresult::CUDA_ERROR_DEINITIALIZED
        | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
        | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
        | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | CUresult::CUDA_ERROR_CONTAINED
        | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
        | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | CUresult::CUDA_ERROR_ASSERT
        | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | CUresult::CUDA_ERROR_INVALID_PC
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => ErrorKind::DeviceLost,
        _ => ErrorKind::Failed,
    }
}

/// How to mend what keeps a machine's driver from starting.
fn hint(code: CUresult) -> Option<&'static str> {
    match code {
        CUresult::CUDA_ERROR_STUB_LIBRARY => {
            Some("this file is the toolkit's stub: use the libcuda.so.1 of the NVIDIA driver")
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY => {
            Some("on machines with NVSwitch start nvidia-fabricmanager")
        }
        CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            Some("libcuda.so.1 and the kernel module differ in version: install one, or reboot")
        }
        _ => None,
    }
}

/// The error for a code of the driver.
pub(super) fn error(api: &Api, call: &'static str, code: CUresult) -> DriverError {
    let name = text(api.cuGetErrorName, code).unwrap_or_else(|| "unnamed error".to_owned());
    let mut text = match text(api.cuGetErrorString, code) {
        Some(meaning) => format!("{name}: {meaning}"),
        None => name,
    };
    if let Some(hint) = hint(code) {
        text = format!("{text} ({hint})");
    }
    DriverError { call, code: i64::from(code.0), text: text.into(), kind: kind(code) }
}

/// The driver's words for a code; `None` if it has none.
fn text(
    function: unsafe extern "C" fn(CUresult, *mut *const c_char) -> CUresult,
    code: CUresult,
) -> Option<String> {
    let mut words = std::ptr::null();
    // SAFETY: it writes one pointer, and may be called at any time, on any thread.
    let found = unsafe { function(code, &raw mut words) };
    if found != CUresult::CUDA_SUCCESS || words.is_null() {
        return None;
    }
    // SAFETY: the driver answers with a text of its own that is never freed.
    let words = unsafe { CStr::from_ptr(words) };
    Some(words.to_string_lossy().into_owned())
}

/// The code of a mistake of the caller.
pub(super) const INVALID: i64 = CUresult::CUDA_ERROR_INVALID_VALUE.0 as i64;

/// A mistake of the caller, found before the driver was asked.
pub(super) fn invalid(call: &'static str, text: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError { call, code: INVALID, text: text.into(), kind: ErrorKind::Invalid }
}

/// A size that no device memory can have.
pub(super) fn out_of_memory(call: &'static str, text: String) -> DriverError {
    let code = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    DriverError { call, code: i64::from(code.0), text: text.into(), kind: kind(code) }
}

/// A function of the library, or the error that says which version has it.
pub(super) fn need<F>(
    call: &'static str,
    function: Option<F>,
    symbol: &'static str,
    version: &'static str,
) -> Result<F, DriverError> {
    function.ok_or_else(|| {
        DriverError::unsupported(call, format!("this driver has no {symbol}: {version}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_the_kind_that_says_what_to_do() {
        let check =
            |code: u32, expect: ErrorKind| assert_eq!(kind(CUresult(code)), expect, "{code}");
        check(1, ErrorKind::Invalid);
        check(2, ErrorKind::OutOfMemory);
        check(201, ErrorKind::Invalid);
        check(400, ErrorKind::Invalid);
        check(600, ErrorKind::Invalid);
        check(700, ErrorKind::DeviceLost);
        check(719, ErrorKind::DeviceLost);
        check(801, ErrorKind::Unsupported);
        check(803, ErrorKind::Failed);
        check(999, ErrorKind::Failed);
        check(123_456, ErrorKind::Failed);
    }

    #[test]
    fn a_missing_function_is_named_with_the_version_that_has_it() {
        let missing: Result<(), _> = need("map", None, "cuMemMap", "needs CUDA 10.2");
        let error = missing.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unsupported);
        assert!(error.to_string().contains("no cuMemMap: needs CUDA 10.2"), "{error}");
        assert_eq!(need("map", Some(3), "cuMemMap", ""), Ok(3));
    }
}
