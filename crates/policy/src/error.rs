//! What can go wrong with files of plans and traces, and how to fix it.

use std::path::PathBuf;
use std::{fmt, io};

use swap_core::SaveError;
use thiserror::Error;

use crate::check::TraceFault;

/// A plan or trace file that could not be written or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FileError {
    /// It could not be saved.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The file system refused.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, such as "read".
        doing: &'static str,
        /// The file system's answer.
        #[source]
        source: io::Error,
    },
    /// It is larger than any file of ours can sensibly be.
    #[error(
        "{} is larger than {limit_bytes} bytes: this is not a {expected} file",
        .path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What it should have been: "plan" or "trace".
        expected: &'static str,
        /// The most that is read.
        limit_bytes: u64,
    },
    /// Something else's file.
    #[error(
        "{} is not a {expected} file: give one that `smartswap` wrote, or leave it out",
        .path.display()
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it should have been: "plan" or "trace".
        expected: &'static str,
    },
    /// Written by a newer version.
    #[error(
        "{} has format version {found}, this version reads up to {supported}: \
         update, or record again",
        .path.display()
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The newest version that is known here.
        supported: u64,
    },
    /// It holds more steps than one.
    #[error(
        "{} holds {steps} steps where one is needed: each is a line of it",
        .path.display()
    )]
    Several {
        /// The file.
        path: PathBuf,
        /// How many it holds.
        steps: usize,
    },
    /// Lanes that are not of the recorded step.
    #[error(
        "{} was measured of another step than the one it is given with: give both of one report",
        .path.display()
    )]
    OtherStep {
        /// The file.
        path: PathBuf,
    },
    /// The end is missing.
    #[error("{} ends after {size_bytes} bytes, in the middle: copy it again, or delete it",
        .path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        size_bytes: u64,
    },
    /// It is one of ours by name but not by content.
    #[error("{} is damaged: {}: copy it again, or delete it", .path.display(), OneLine(source))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What does not fit the format, and where.
        #[source]
        source: serde_json::Error,
    },
    /// The content is not what was written.
    #[error(
        "{} is damaged: its checksum is {found} where {} was written: \
         copy it again, or delete it",
        .path.display(), OneLine(expected)
    )]
    Checksum {
        /// The file.
        path: PathBuf,
        /// What the file says.
        expected: String,
        /// What its body gives.
        found: String,
    },
    /// The content contradicts itself.
    #[error("{} cannot be used: {fault}: record again, or delete it", .path.display())]
    Plan {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        #[source]
        fault: PlanFault,
    },
    /// A recorded step that contradicts itself.
    #[error("{} cannot be used: {fault}: record again", .path.display())]
    Recorded {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        #[source]
        fault: RecordedFault,
    },
    /// The content is not a well-formed trace.
    #[error("{} cannot be used: {fault}: record again, or delete it", .path.display())]
    Trace {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        #[source]
        fault: TraceFault,
    },
}

/// Words of a file for people: on one line, nothing that moves a terminal's cursor, and no more
/// than a reader would read.
///
/// # Examples
/// ```
/// assert_eq!(policy::OneLine("aten::add\n\u{1b}[31m").to_string(), "aten::add\\n\\u{1b}[31m");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct OneLine<T>(pub T);

/// Characters of a file's words, at most.
const WORDS_MAX: usize = 300;

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        for letter in text.chars().take(WORDS_MAX) {
            match letter.is_control() {
                true => write!(to, "{}", letter.escape_default())?,
                false => write!(to, "{letter}")?,
            }
        }
        let is_cut = text.chars().nth(WORDS_MAX).is_some();
        to.write_str(if is_cut { " ..." } else { "" })
    }
}

/// Why a plan cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// The version is that of plans for steps in parts, and the plan for none, or the reverse.
    #[error("its version is {version}: 2 is for plans with `part_bytes`, 1 for those without")]
    Version {
        /// The version.
        version: u64,
    },
    /// A block is empty, out of order, or comes from an op that does not exist.
    #[error("entry {position} of its blocks is empty, out of order or of an unknown op")]
    Block {
        /// Position in the blocks.
        position: usize,
    },
    /// An action names an op that does not exist.
    #[error("action {position} names op {op} of {op_count}")]
    Op {
        /// Position in the actions.
        position: usize,
        /// The op.
        op: u32,
        /// The number of ops.
        op_count: u32,
    },
    /// An action names a block that the plan does not list.
    #[error("action {position} names block {block}, which the plan does not list")]
    UnknownBlock {
        /// Position in the actions.
        position: usize,
        /// The block.
        block: u32,
    },
    /// An action comes before one that must run earlier.
    #[error("action {position} is out of order")]
    Order {
        /// Position in the actions.
        position: usize,
    },
}

/// What contradicts itself in a recorded step, and where.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{place}: {what}")]
pub struct RecordedFault {
    /// The place in the file, such as `tensors[5].free`.
    pub place: String,
    /// What is wrong there.
    pub what: String,
}
