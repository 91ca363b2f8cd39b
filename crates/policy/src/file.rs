//! Files of plans and traces: versioned, checked when read, saved whole or not at all.
//!
//! # The plan file
//!
//! One JSON object. `docs/plan-format.md` has an example and the meaning of each action.
//!
//! ```json
//! {
//!   "format": "smartswap-plan",
//!   "version": 1,
//!   "crc32": "8 lower-case hex digits",
//!   "body": {
//!     "signature": "16 lower-case hex digits",
//!     "op_count": 3,
//!     "blocks": [{"index": 0, "size_bytes": 8388608, "origin": "persistent"},
//!                {"index": 4, "size_bytes": 8388608, "origin": {"op": 1}}],
//!     "actions": [{"op": 1, "phase": "end", "kind": "swap_out", "block": 0, "due": 2}]
//!   }
//! }
//! ```
//!
//! `crc32` is the CRC-32 (IEEE) of the body written without any white space, with its keys in
//! the order above. Origins are `"persistent"`, `{"op": n}` and `{"before": n}`; phases `begin`
//! and `end`; kinds `swap_out`, `swap_in`, `discard` and `replay`. Where the step runs in parts,
//! `version` is 2 and the body has `part_bytes` behind `op_count`.
//!
//! # The trace file
//!
//! The interchange form of recorded steps (`meta`, `ops`, `tensors`), with fields of our own
//! beside it, so that nothing of a [`Trace`] is lost. See [`write_trace`]. Files of the plain form,
//! as frameworks record them, are read as well; both may be compressed with gzip. A file may hold
//! several steps, an object each, one behind the other.
//!
//! # The lanes file
//!
//! One JSON object for looking at: `format`, `version`, and under `measured` and `predicted` the
//! same [`Lanes`] each, with times in microseconds since the step began.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZeroU64;
use std::path::Path;

use flate2::read::MultiGzDecoder;
use swap_core::{Lanes, Plan, Trace, save_file};

use crate::error::FileError;

mod json;
mod lanes;
mod plan;
mod recorded;
mod trace;

#[cfg(test)]
mod tests;

/// The largest plan file that is read, in bytes.
const PLAN_BYTES_MAX: u64 = 64 << 20;
/// The largest trace file that is read, in bytes.
const TRACE_BYTES_MAX: u64 = 512 << 20;
/// The largest file of lanes that is read, in bytes.
const LANES_BYTES_MAX: u64 = 512 << 20;
/// What every gzip file begins with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A plan as a file holds it: with what its step is.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedPlan {
    /// The plan.
    pub plan: Plan,
    /// The step is the recorded one with operators over lists in parts of at most these bytes,
    /// as [`in_parts`](crate::in_parts) has it; as it was recorded if there is nothing here.
    pub part_bytes: Option<NonZeroU64>,
}

/// Saves a plan for a step as it was recorded. The path holds either the plan or what was there
/// before, even if the machine loses power.
///
/// # Errors
/// [`FileError::Plan`] if [`load`] would refuse the plan; [`FileError::Save`].
pub fn save(path: &Path, plan: &Plan) -> Result<(), FileError> {
    save_in_parts(path, plan, None)
}

/// Saves a plan like [`save`], for a step [in parts](SavedPlan::part_bytes).
///
/// # Errors
/// As [`save`].
pub fn save_in_parts(
    path: &Path,
    plan: &Plan,
    part_bytes: Option<NonZeroU64>,
) -> Result<(), FileError> {
    plan::check(plan).map_err(|fault| FileError::Plan { path: path.to_owned(), fault })?;
    save_bytes(path, plan::write(plan, part_bytes).as_bytes())
}

/// Loads a plan that [`save`] or [`save_in_parts`] wrote.
///
/// # Errors
/// Any [`FileError`] but `Trace`: the file cannot be read, is something else's, newer, cut short,
/// damaged or contradicts itself.
pub fn load(path: &Path) -> Result<SavedPlan, FileError> {
    read_plan(&load_bytes(path, "plan", PLAN_BYTES_MAX)?, path)
}

/// Saves a trace like [`save`] a plan.
///
/// # Errors
/// [`FileError::Save`].
pub fn save_trace(path: &Path, trace: &Trace) -> Result<(), FileError> {
    save_bytes(path, write_trace(trace).as_bytes())
}

/// Saves several traces in one file, a line each, like [`save`] a plan.
///
/// # Errors
/// [`FileError::Save`].
pub fn save_steps<'a>(
    path: &Path,
    steps: impl IntoIterator<Item = &'a Trace>,
) -> Result<(), FileError> {
    let lines: Vec<String> = steps.into_iter().map(|step| write_trace(step) + "\n").collect();
    save_bytes(path, lines.concat().as_bytes())
}

/// Saves the lanes of a step, as measured and as predicted, like [`save`] a plan.
///
/// # Errors
/// [`FileError::Save`].
pub fn save_lanes(path: &Path, measured: &Lanes, predicted: &Lanes) -> Result<(), FileError> {
    save_bytes(path, lanes::write(measured, predicted).as_bytes())
}

/// Loads the measured lanes that [`save_lanes`] wrote. They are of the step of `trace`.
///
/// # Errors
/// As [`load`], and [`FileError::OtherStep`] if the lanes name what is not in the step.
pub fn load_lanes(path: &Path, trace: &Trace) -> Result<Lanes, FileError> {
    lanes::read(&load_bytes(path, "lanes", LANES_BYTES_MAX)?, path, trace)
}

/// How the tensors of a recorded step become blocks of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordedConfig {
    /// Blocks are rounded up to multiples of this.
    pub granularity_bytes: u64,
    /// Tensors from this size on have memory of their own; smaller ones lie in segments.
    pub swap_threshold_bytes: u64,
}

impl Default for RecordedConfig {
    /// As GPUs and NPUs have it: units of 2 MiB, and tensors below 8 MiB stay.
    fn default() -> RecordedConfig {
        RecordedConfig { granularity_bytes: 2 << 20, swap_threshold_bytes: 8 << 20 }
    }
}

/// Loads a trace that [`save_trace`] wrote, or a step that a framework recorded; either may be
/// compressed.
///
/// # Errors
/// Any [`FileError`] but `Plan` and `Checksum`. A file that unpacks to more than 512 MiB is refused
/// before more than that is unpacked.
pub fn load_trace(path: &Path, config: &RecordedConfig) -> Result<Trace, FileError> {
    read_trace(&load_bytes(path, "trace", TRACE_BYTES_MAX)?, path, config)
}

/// Loads all steps of a file, at least one: what [`save_steps`] wrote, or files that
/// [`load_trace`] loads, one behind the other.
///
/// # Errors
/// As [`load_trace`], but for `Several`.
pub fn load_steps(path: &Path, config: &RecordedConfig) -> Result<Vec<Trace>, FileError> {
    let bytes = load_bytes(path, "trace", TRACE_BYTES_MAX)?;
    read_steps(&plain(&bytes, path)?, path, config)
}

/// The bytes of a file of at most `size_bytes_max`. `expected` says in messages what it should be,
/// such as "settings".
///
/// # Errors
/// [`FileError::Io`] and [`FileError::TooLarge`].
pub fn load_bytes(
    path: &Path,
    expected: &'static str,
    size_bytes_max: u64,
) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let opened = File::open(path);
    let read = opened.and_then(|file| file.take(size_bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|source| FileError::Io { path: path.to_owned(), doing: "read", source })?;
    if bytes.len() as u64 > size_bytes_max {
        let limit_bytes = size_bytes_max;
        return Err(FileError::TooLarge { path: path.to_owned(), expected, limit_bytes });
    }
    Ok(bytes)
}

/// Saves bytes so that the path holds either all of them or what was there before. A device or a
/// pipe takes them as they come ([`save_file`]).
///
/// # Errors
/// [`FileError::Save`].
pub fn save_bytes(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    save_file(path, |write| Ok(write(bytes)?))
}

/// A trace as JSON.
///
/// The interchange part: `meta`; `ops` with `name`, `depth`, `us` and the tensor indexes `reads`,
/// `writes`, `outputs` (blocks that the op allocated and left behind); `tensors` with `bytes` and
/// `alloc` and `free`, each the number of ops that had begun by then, or -1 for "before the step"
/// and "after the step". Beside it, for [`read_trace`]: `format`, `version`, `signature`,
/// `step_us`, `segment_bytes`; `replayable`, `at_any_size` and `outdated_by` of ops; `name` and
/// `origin` of tensors; and `events`, each a letter and a number: `B3` begin of op 3, `E3` its end,
/// `R7`, `W7` and `M7` a read, a write and both of block 7, `A7` its allocation, `F7` its free,
/// `S4096` segments of 4096 bytes.
pub fn write_trace(trace: &Trace) -> String {
    trace::write(trace)
}

/// The trace in `bytes`, as [`write_trace`] wrote it or as a framework recorded it, compressed or
/// not. `path` is for messages only.
///
/// # Errors
/// As [`load_trace`], but that nothing is read from a disk.
pub fn read_trace(bytes: &[u8], path: &Path, config: &RecordedConfig) -> Result<Trace, FileError> {
    let mut steps = read_steps(&plain(bytes, path)?, path, config)?;
    match (steps.len(), steps.pop()) {
        (1, Some(step)) => Ok(step),
        (steps, _) => Err(FileError::Several { path: path.to_owned(), steps }),
    }
}

fn read_steps(json: &[u8], path: &Path, config: &RecordedConfig) -> Result<Vec<Trace>, FileError> {
    let read = |json: &[u8]| {
        if json::is_recorded(json) || json::was_recorded(json) {
            return recorded::read(json, path, config);
        }
        trace::read(json, path)
    };
    json::objects(json).into_iter().map(read).collect()
}

/// The plan in `json`, as [`save`] wrote it. `path` is for messages only.
///
/// # Errors
/// As [`load`], but that nothing is read from a disk.
pub fn read_plan(json: &[u8], path: &Path) -> Result<SavedPlan, FileError> {
    plan::read(json, path)
}

/// The bytes themselves, or what they hold if they are a gzip file.
fn plain<'a>(bytes: &'a [u8], path: &Path) -> Result<Cow<'a, [u8]>, FileError> {
    match bytes.starts_with(&GZIP_MAGIC) {
        true => unpack(bytes, path).map(Cow::Owned),
        false => Ok(Cow::Borrowed(bytes)),
    }
}

/// What a gzip file holds. No more is unpacked than a trace may have.
fn unpack(bytes: &[u8], path: &Path) -> Result<Vec<u8>, FileError> {
    let limit_bytes = TRACE_BYTES_MAX;
    let mut unpacked = Vec::new();
    match MultiGzDecoder::new(bytes).take(limit_bytes + 1).read_to_end(&mut unpacked) {
        Ok(size) if size as u64 > limit_bytes => {
            Err(FileError::TooLarge { path: path.to_owned(), expected: "trace", limit_bytes })
        }
        Ok(_) => Ok(unpacked),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let size_bytes = bytes.len() as u64;
            Err(FileError::Truncated { path: path.to_owned(), size_bytes })
        }
        Err(source) => Err(FileError::Io { path: path.to_owned(), doing: "unpack", source }),
    }
}
