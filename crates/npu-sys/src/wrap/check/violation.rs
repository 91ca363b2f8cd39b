//! What the checker reports, in values and in words.

use std::fmt;
use std::ops::Range;

use crate::error::{DriverError, ErrorKind};
use crate::types::{AccessMode, ChunkHandle, DevicePtr, HostPtr, StreamHandle};

/// An address as the work named it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// An address of the device.
    Device(DevicePtr),
    /// An address of pinned host memory.
    Host(HostPtr),
}

/// The memory behind an address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Memory {
    /// A chunk, whatever addresses it is mapped at.
    Chunk(ChunkHandle),
    /// Device memory that was allocated with this address.
    Plain(DevicePtr),
    /// Pinned or registered host memory that starts here.
    Host(HostPtr),
}

/// One access by one piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AccessSite {
    /// Where the work was submitted.
    pub stream: StreamHandle,
    /// `copy`, `fill`, `note_access`, or the name of the host function.
    pub operation: &'static str,
    /// Which piece of its stream's work it is, from 1.
    pub number: u64,
    /// First byte.
    pub address: Address,
    /// Number of bytes.
    pub size_bytes: u64,
    /// How they are used.
    pub mode: AccessMode,
}

/// A broken rule. The call that broke it was not passed on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Violation {
    /// Two accesses share bytes, at least one writes, and nothing orders the later one after the
    /// earlier one. Both are the same work if its own accesses overlap.
    Race {
        /// The one submitted first.
        earlier: AccessSite,
        /// The one that was refused.
        later: AccessSite,
        /// What they share.
        memory: Memory,
        /// Some shared bytes, as offsets in `memory`.
        shared_bytes: Range<u64>,
    },
    /// Memory was to be unmapped or given back, and the host does not know that this access is
    /// complete.
    InUse {
        /// `unmap`, `release_chunk`, `free_pinned` or `unregister_host`.
        call: &'static str,
        /// The access that may still run.
        access: AccessSite,
        /// The memory that it uses.
        memory: Memory,
    },
    /// Bytes that the device cannot reach.
    Unreachable {
        /// The access that was refused.
        access: AccessSite,
        /// What is missing.
        why: &'static str,
    },
    /// A read of chunk bytes that nothing wrote since the chunk was created. Reported only on
    /// request, see [`CheckConfig`](crate::devices::CheckConfig).
    Uninitialised {
        /// The read.
        access: AccessSite,
        /// The chunk that holds the bytes.
        memory: Memory,
        /// The first such bytes, as offsets in `memory`.
        unwritten_bytes: Range<u64>,
    },
    /// A memory call whose conditions do not hold.
    Misuse {
        /// The call.
        call: &'static str,
        /// What is wrong.
        why: &'static str,
    },
}

impl Violation {
    /// Errors of order are races; the others are invalid arguments.
    pub(super) fn into_error(self, call: &'static str) -> DriverError {
        let kind = match self {
            Violation::Race { .. } | Violation::InUse { .. } => ErrorKind::Race,
            Violation::Unreachable { .. }
            | Violation::Uninitialised { .. }
            | Violation::Misuse { .. } => ErrorKind::Invalid,
        };
        DriverError { call, code: -1, text: self.to_string().into(), kind }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Memory::Chunk(chunk) => write!(f, "chunk {}", chunk.0),
            Memory::Plain(start) => write!(f, "device memory {start:?}"),
            Memory::Host(start) => write!(f, "pinned memory {start:?}"),
        }
    }
}

impl fmt::Display for AccessSite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            AccessMode::Read => "read",
            AccessMode::Write => "write",
            AccessMode::ReadWrite => "read and write",
        };
        write!(f, "{mode} of {} bytes at ", self.size_bytes)?;
        match self.address {
            Address::Device(start) => write!(f, "{start:?}")?,
            Address::Host(start) => write!(f, "{start:?}")?,
        }
        write!(f, " by {} (stream {}, work {})", self.operation, self.stream.0, self.number)
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Race { earlier, later, memory, shared_bytes } => write!(
                f,
                "{later} is not ordered after {earlier}; both use bytes {}..{} of {memory}",
                shared_bytes.start, shared_bytes.end
            ),
            Violation::InUse { call, access, memory } => {
                write!(f, "{call} of {memory} while the host does not know that {access} is done")
            }
            Violation::Unreachable { access, why } => write!(f, "{access}: {why}"),
            Violation::Uninitialised { access, memory, unwritten_bytes } => write!(
                f,
                "{access}: bytes {}..{} of {memory} were never written",
                unwritten_bytes.start, unwritten_bytes.end
            ),
            Violation::Misuse { call, why } => write!(f, "{call}: {why}"),
        }
    }
}
