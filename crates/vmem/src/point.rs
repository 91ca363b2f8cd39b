//! Points in the work of streams, the uses of memory that they make up, and the places that wait.

use smallvec::SmallVec;

use crate::streams::Streams;

/// A stream that [`Streams`] knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u32);

/// The end of the first `position` pieces of work of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Point {
    /// The stream.
    pub stream: StreamId,
    /// How many pieces of its work, counted from 1.
    pub position: u64,
}

/// Uses of some memory: at most one point a stream, the latest.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Uses(SmallVec<[Point; 2]>);

impl Uses {
    /// One use.
    pub fn of(point: Point) -> Uses {
        Uses(SmallVec::from_slice(&[point]))
    }

    /// Adds a use; a later one of the same stream replaces an earlier one.
    pub fn add(&mut self, point: Point) {
        match self.0.iter_mut().find(|known| known.stream == point.stream) {
            Some(known) => known.position = known.position.max(point.position),
            None => self.0.push(point),
        }
    }

    /// Adds all uses of `other`.
    pub fn merge(&mut self, other: &Uses) {
        for &point in &other.0 {
            self.add(point);
        }
    }

    /// Forgets the uses that the host knows to be complete.
    pub fn prune(&mut self, streams: &Streams) {
        self.0.retain(|point| !streams.is_known_complete(*point));
    }

    /// The points, one a stream.
    pub fn points(&self) -> &[Point] {
        &self.0
    }
}

/// Each place that waits for uses of memory, for reports and for planted bugs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Site {
    /// A new block waits for the earlier users of its chunk.
    AllocateAfterRelease,
    /// A new small block waits for the earlier users of its piece of a segment.
    CarveAfterRelease,
    /// New swapped memory waits for the earlier users of its slot.
    SwappedAfterRelease,
    /// A copy out waits for the last use of its block.
    CopyOutAfterUse,
    /// A copy out waits for the earlier users of its slot.
    CopyOutAfterSlot,
    /// A copy in waits for the earlier users of its chunk.
    CopyInAfterRelease,
    /// A copy in waits for the copy out that filled its slot.
    CopyInAfterCopyOut,
    /// An op waits for the arrival of a block.
    TouchAfterArrival,
    /// A launch waits for those before it on the same block, on other streams.
    LaunchAfterLaunch,
    /// A replay waits for the earlier users of its chunk.
    ReplayAfterRelease,
    /// A stale mapping of a block goes only after its last use.
    UnmapBlockAfterUse,
    /// A stale mapping of no block goes only after its last use.
    UnmapRangeAfterUse,
    /// A block that is touched while its address shows an earlier chunk waits for that one's users.
    RemapAfterUse,
    /// A chunk goes back to the driver only after its last use.
    ReleaseAfterUse,
    /// A segment with an address of its own goes back to the driver only after its last use.
    FreeSegmentAfterUse,
    /// Host memory is unpinned only after its last use.
    UnpinAfterUse,
    /// The host reads and writes the memory of a tensor only after its last use.
    HostAfterUse,
}

impl Site {
    /// Those of a block's way out and back, which the engine shares with tensors.
    pub const MOVES: [Site; 8] = [
        Site::AllocateAfterRelease,
        Site::CopyOutAfterUse,
        Site::CopyOutAfterSlot,
        Site::CopyInAfterRelease,
        Site::CopyInAfterCopyOut,
        Site::TouchAfterArrival,
        Site::LaunchAfterLaunch,
        Site::ReplayAfterRelease,
    ];
}
