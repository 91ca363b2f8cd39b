//! The host driver's error codes and how its errors are made.

use std::borrow::Cow;

use rustix::io::Errno;

use crate::error::{DriverError, ErrorKind};
use crate::types::Bytes;

pub(super) const INVALID: i64 = 1;
const OUT_OF_MEMORY: i64 = 2;
const UNSUPPORTED: i64 = 3;
pub(super) const FAILED: i64 = 4;

/// A mistake of the caller.
pub(super) fn invalid(call: &'static str, text: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError { call, code: INVALID, text: text.into(), kind: ErrorKind::Invalid }
}

/// A request beyond a limit.
pub(super) fn out_of_memory(
    call: &'static str,
    asked_bytes: u64,
    held_bytes: u64,
    limit_bytes: u64,
) -> DriverError {
    let (asked, held, limit) = (Bytes(asked_bytes), Bytes(held_bytes), Bytes(limit_bytes));
    let text = format!("asked for {asked}, {held} of {limit} are taken");
    DriverError { call, code: OUT_OF_MEMORY, text: text.into(), kind: ErrorKind::OutOfMemory }
}

/// A mapping beyond those that devices may have.
pub(super) fn too_many_mappings(call: &'static str, taken: u64, most: u64) -> DriverError {
    let text = format!(
        "{taken} of {most} mappings are taken, which is most of what the system gives a process: \
         raise vm.max_map_count, or swap larger blocks only"
    );
    DriverError { call, code: OUT_OF_MEMORY, text: text.into(), kind: ErrorKind::OutOfMemory }
}

/// Something that this mode of the driver cannot do.
pub(super) fn unsupported(call: &'static str, text: &'static str) -> DriverError {
    DriverError { call, code: UNSUPPORTED, text: text.into(), kind: ErrorKind::Unsupported }
}

/// Any other failure.
pub(super) fn failed(call: &'static str, text: impl Into<Cow<'static, str>>) -> DriverError {
    DriverError { call, code: FAILED, text: text.into(), kind: ErrorKind::Failed }
}

/// A refusal of the operating system.
pub(super) fn system(call: &'static str, errno: Errno) -> DriverError {
    let kind = if errno == Errno::NOMEM { ErrorKind::OutOfMemory } else { ErrorKind::Failed };
    DriverError {
        call,
        code: i64::from(errno.raw_os_error()),
        text: errno.to_string().into(),
        kind,
    }
}
