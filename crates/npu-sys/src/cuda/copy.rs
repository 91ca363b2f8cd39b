//! Copies. Those to the host take turns on two streams, so that copies of others come in between.
//!
//! The copy engine leaves a stream only when that stream has to wait. So four bytes that a script
//! waits for (`loss.item()`) come after all that is queued on one stream, in one piece or in many:
//! after 73 ms behind 4 GiB on an H200, and after 0.8 ms where two streams take turns, which costs
//! 0.4 % of the rate (docs/measurements.md, "Numbers that are read beside copies"). What a script
//! sends to the device waits for nothing like it.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::cuda::device::{host_pointer, length};
use crate::cuda::failure::invalid;
use crate::cuda::{CudaDriver, pinned};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::sync::lock;
use crate::types::{Copy, DevicePtr, EventHandle, EventKind, HostPtr, StreamHandle};

/// What goes out on a stream before it is the other's turn.
pub(super) const TURN_BYTES: u64 = 64 << 20;
/// The other's turn has to last: for a wait of a few microseconds the engine does not leave.
pub(super) const OTHER_BYTES_MIN: u64 = 8 << 20;

const CALL: &str = "copy";

/// How far each stream is in its turn.
#[derive(Debug, Default)]
pub(super) struct Turns {
    by_stream: Mutex<BTreeMap<u64, Turn>>,
}

#[derive(Debug, Default)]
struct Turn {
    done_bytes: u64,
    other: Option<Other>,
}

impl Turn {
    /// Whether what goes out next is the other's, and how much of what is left.
    fn next(&self, left_bytes: u64) -> (bool, u64) {
        match TURN_BYTES.saturating_sub(self.done_bytes) {
            0 if left_bytes >= OTHER_BYTES_MIN => (true, left_bytes.min(TURN_BYTES)),
            0 => (false, left_bytes),
            own_bytes => (false, left_bytes.min(own_bytes)),
        }
    }
}

/// The stream that takes every other turn.
#[derive(Debug, Clone, Copy)]
struct Other {
    stream: StreamHandle,
    /// All before its turn is done.
    begun: EventHandle,
    /// Its turn is.
    ended: EventHandle,
}

impl Other {
    fn new(driver: &CudaDriver) -> Result<Other, DriverError> {
        let stream = driver.create_stream()?;
        let begun = driver.create_event(EventKind::Order)?;
        let ended = driver.create_event(EventKind::Order)?;
        Ok(Other { stream, begun, ended })
    }
}

impl Turns {
    /// Destroys what was made for a stream. Work that was submitted still runs.
    pub(super) fn forget(
        &self,
        driver: &CudaDriver,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let turn = lock(&self.by_stream).remove(&stream.0);
        let Some(other) = turn.and_then(|turn| turn.other) else { return Ok(()) };
        driver.destroy_stream(other.stream)?;
        driver.destroy_event(other.begun)?;
        driver.destroy_event(other.ended)
    }
}

/// Submits a copy.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) for what is not there, and whatever the library refuses.
/// No part of the copy is under way then.
///
/// # Safety
/// As for [`Driver::copy`].
pub(super) unsafe fn copy(
    driver: &CudaDriver,
    copy: Copy,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    copy.check().map_err(|text| invalid(CALL, text))?;
    if let Copy::DeviceToHost { target: host, .. } | Copy::HostToDevice { source: host, .. } = copy
    {
        pinned::check(driver, CALL, host, copy.size_bytes())?;
    }
    if let Copy::DeviceToHost { source, target, size_bytes } = copy
        && driver.streams.get(CALL, stream.0)?.is_own()
    {
        // SAFETY: the caller promises it.
        return unsafe { copy_out(driver, source, target, size_bytes, stream) };
    }
    // SAFETY: the caller promises it.
    unsafe { submit(driver, copy, stream) }
}

/// Submits a copy to the host. What is submitted to the stream later runs after all of it.
///
/// # Errors
/// Whatever the library refuses. No part of the copy is under way then.
///
/// # Safety
/// Both places are there until the copy is complete, and nobody uses them otherwise. The stream is
/// one of the driver's own.
unsafe fn copy_out(
    driver: &CudaDriver,
    source: DevicePtr,
    target: HostPtr,
    size_bytes: u64,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    // Held throughout: no turn begins within another.
    let mut turns = lock(&driver.turns.by_stream);
    let turn = turns.entry(stream.0).or_default();
    let mut at = 0;
    while at < size_bytes {
        let (is_others, piece_bytes) = turn.next(size_bytes - at);
        let piece = Copy::DeviceToHost {
            source: DevicePtr(source.0 + at),
            target: HostPtr(target.0 + at),
            size_bytes: piece_bytes,
        };
        let piece = if is_others {
            // SAFETY: a part of what the caller promises.
            unsafe { submit_on_other(driver, turn, piece, stream) }
        } else {
            // SAFETY: as above.
            unsafe { submit(driver, piece, stream) }
        };
        if let Err(error) = piece {
            wait_for_all(driver, turn, stream);
            return Err(error);
        }
        turn.done_bytes = if is_others { 0 } else { turn.done_bytes + piece_bytes };
        at += piece_bytes;
    }
    Ok(())
}

/// Submits a piece on the other stream: after what the first one has, and before what it gets.
///
/// # Safety
/// As for [`copy_out`].
unsafe fn submit_on_other(
    driver: &CudaDriver,
    turn: &mut Turn,
    piece: Copy,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    let other = match turn.other {
        Some(other) => other,
        None => *turn.other.insert(Other::new(driver)?),
    };
    driver.record_event(other.begun, stream)?;
    driver.wait_event(other.stream, other.begun)?;
    // SAFETY: the caller promises it.
    unsafe { submit(driver, piece, other.stream) }?;
    driver.record_event(other.ended, other.stream)?;
    driver.wait_event(stream, other.ended)
}

/// # Safety
/// As for [`Driver::copy`].
unsafe fn submit(driver: &CudaDriver, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
    let size = length(CALL, copy.size_bytes())?;
    let stream = driver.streams.get(CALL, stream.0)?;
    let cuda = driver.context.enter(CALL)?;
    let code = match copy {
        Copy::DeviceToHost { source, target, .. } => {
            let (copy, target) = (cuda.api().cuMemcpyDtoHAsync_v2, host_pointer(target.0));
            // SAFETY: the caller promises both places until the copy is complete; the
            // stream is alive. So for the two below.
            unsafe { copy(target, source.0, size, stream.stream()) }
        }
        Copy::HostToDevice { source, target, .. } => {
            let (copy, source) = (cuda.api().cuMemcpyHtoDAsync_v2, host_pointer(source.0));
            // SAFETY: as above.
            unsafe { copy(target.0, source, size, stream.stream()) }
        }
        Copy::DeviceToDevice { source, target, .. } => {
            let copy = cuda.api().cuMemcpyDtoDAsync_v2;
            // SAFETY: as above.
            unsafe { copy(target.0, source.0, size, stream.stream()) }
        }
    };
    cuda.check(code)
}

/// Waits until nothing of either stream is under way, whatever comes of it: an error is reported
/// already.
fn wait_for_all(driver: &CudaDriver, turn: &Turn, stream: StreamHandle) {
    let other = turn.other.map(|other| other.stream);
    for stream in other.into_iter().chain([stream]) {
        let _ = driver.synchronize_stream(stream);
    }
}
