//! What the engine can fail with.

use std::fmt;

use vmem::{Bytes, DriverError, MemoryError};

use crate::holds::Held;

/// A failed call of the engine. Blocks keep their bytes unless the device itself failed.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Even with everything else away, the memory asked for does not fit under the cap.
    #[error("out of device memory: {0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The pool or the arena failed for another reason.
    #[error(transparent)]
    Memory(MemoryError),
    /// A block that was freed was used.
    #[error("a block was used after it was freed")]
    Freed,
    /// A call out of order, such as an end without a begin.
    #[error("{0}")]
    Usage(&'static str),
    /// An earlier panic left the engine in an unknown state.
    #[error("the engine stopped at an earlier panic; restart the program")]
    Poisoned,
    /// A recipe failed.
    #[error("replaying '{op}' failed: {text}")]
    Replay {
        /// The op that was replayed.
        op: String,
        /// What its recipe said.
        text: String,
    },
}

impl Error {
    /// Whether it asks for another cap on host memory. What that is called is for front ends to
    /// say.
    pub fn is_short_of_host(&self) -> bool {
        matches!(self, Error::Memory(MemoryError::HostFull { .. }))
    }

    /// Says in which op memory ran out.
    pub(crate) fn within(mut self, op: &'static str) -> Error {
        if let Error::OutOfMemory(report) = &mut self {
            report.op = op;
        }
        self
    }
}

impl From<MemoryError> for Error {
    fn from(error: MemoryError) -> Error {
        Error::Memory(error)
    }
}

impl From<DriverError> for Error {
    fn from(error: DriverError) -> Error {
        Error::Memory(MemoryError::Driver(error))
    }
}

/// What the memory was doing when no more could be found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub requested_bytes: u64,
    /// The op that asked; empty outside ops.
    pub op: &'static str,
    /// Bytes missing under the cap.
    pub missing_bytes: u64,
    /// The cap.
    pub limit_bytes: u64,
    /// Bytes of resident swappable blocks.
    pub resident_bytes: u64,
    /// Those of them that open ops hold.
    pub pinned_bytes: u64,
    /// Those that stay until an op uses them, as none has so far: workspaces, most often.
    pub unused_bytes: u64,
    /// Blocks that stay because somebody has their raw pointer.
    pub held: Vec<Held>,
    /// Bytes of blocks on the host or discarded.
    pub away_bytes: u64,
    /// Bytes of segments for small blocks; for all blocks where nothing can be swapped.
    pub segment_bytes: u64,
    /// Bytes that somebody else holds under the same cap.
    pub outside_bytes: u64,
    /// The largest resident blocks: name and bytes.
    pub largest: Vec<(String, u64)>,
    /// Whether the host arena had no room for more.
    pub host_full: bool,
    /// Why nothing can be swapped on this device at all; `None` where swapping works.
    pub unswappable: Option<String>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} asked for, {} more than the cap of {}; ",
            Bytes(self.requested_bytes),
            Bytes(self.missing_bytes),
            Bytes(self.limit_bytes),
        )?;
        match &self.unswappable {
            Some(why) => write!(f, "{} held by blocks; {why}", Bytes(self.segment_bytes))?,
            None => {
                let (resident, pinned) = (Bytes(self.resident_bytes), Bytes(self.pinned_bytes));
                write!(f, "resident {resident} (of which {pinned} are held by running ops")?;
                if self.unused_bytes > 0 {
                    let unused = Bytes(self.unused_bytes);
                    write!(
                        f,
                        ", and {unused} stay as no op has used them yet, such as workspaces"
                    )?;
                }
                let (away, segments) = (Bytes(self.away_bytes), Bytes(self.segment_bytes));
                write!(f, "), away {away}, small blocks {segments}")?;
            }
        }
        if self.outside_bytes > 0 {
            write!(f, ", outside {}", Bytes(self.outside_bytes))?;
        }
        for (position, held) in self.held.iter().enumerate() {
            let Held { by, is_lent, blocks, size_bytes } = held;
            let until = if *is_lent { "the step ends" } else { "they are freed" };
            let start =
                if position == 0 { "; kept on the device for their address: " } else { ", " };
            write!(f, "{start}{} in {blocks} blocks, by {by} until {until}", Bytes(*size_bytes))?;
        }
        if !self.op.is_empty() && self.pinned_bytes > 0 && self.unswappable.is_none() {
            write!(f, "; '{}' needs all that it uses at once", self.op)?;
        }
        if !self.largest.is_empty() {
            write!(f, "; largest:")?;
            for (position, (name, bytes)) in self.largest.iter().enumerate() {
                let name = if name.is_empty() { "unnamed" } else { name };
                let comma = if position == 0 { "" } else { "," };
                write!(f, "{comma} {name} {}", Bytes(*bytes))?;
            }
        }
        let needed = Bytes(self.limit_bytes.saturating_add(self.missing_bytes)).rounded_up();
        if self.host_full {
            write!(f, "; the host arena is full too: raise its cap, or the device cap to {needed}")
        } else {
            write!(f, "; a cap of {needed} or more would have helped")
        }
    }
}
