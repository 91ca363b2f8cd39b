//! Memory counters, in PyTorch's words.

/// A number of bytes now and at its highest.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Peak {
    /// Now.
    pub current: u64,
    /// The highest since the peaks were last reset.
    pub peak: u64,
}

impl Peak {
    pub(crate) fn grow(&mut self, bytes: u64) {
        self.current += bytes;
        self.peak = self.peak.max(self.current);
    }

    pub(crate) fn shrink(&mut self, bytes: u64) {
        self.current -= bytes;
    }
}

/// Counters of the device pool.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryStats {
    /// Bytes that callers asked for, in blocks that they have.
    pub requested_bytes: Peak,
    /// Bytes of blocks that callers have, rounded up; those that are away count too.
    pub allocated_bytes: Peak,
    /// Bytes of blocks that callers freed and that are still needed to make others again.
    pub disowned_bytes: u64,
    /// Bytes of live blocks with memory behind them.
    pub active_bytes: Peak,
    /// Physical bytes that count towards the cap: active ones, caches, segments, and what
    /// somebody else holds.
    pub reserved_bytes: Peak,
    /// Bytes of blocks that have a chunk or a lot, of segments that hold blocks, and what somebody
    /// else holds. What is held beyond them goes back where its room is needed, but for slack.
    pub in_use_bytes: u64,
    /// Physical bytes of segments for small blocks.
    pub segment_bytes: Peak,
    /// Physical bytes that somebody else holds under the same cap.
    pub outside_bytes: Peak,
    /// Physical bytes of cached chunks.
    pub cached_bytes: u64,
    /// Physical bytes behind live blocks beyond their size, where larger chunks serve.
    pub slack_bytes: u64,
    /// Allocations so far.
    pub allocations: u64,
    /// What the driver was asked for so far.
    pub calls: MemoryCalls,
}

/// Calls of the driver that change what memory there is and where it is seen. On a GPU each takes
/// 20 us to a millisecond of the host's time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct MemoryCalls {
    /// Chunks asked for.
    pub created: u64,
    /// Chunks given back.
    pub released: u64,
    /// Chunks made visible at an address.
    pub mapped: u64,
    /// Those taken away from there.
    pub unmapped: u64,
}

impl MemoryCalls {
    /// All of them.
    pub fn total(self) -> u64 {
        self.created + self.released + self.mapped + self.unmapped
    }

    /// Those made since `before`.
    pub fn since(self, before: MemoryCalls) -> MemoryCalls {
        MemoryCalls {
            created: self.created - before.created,
            released: self.released - before.released,
            mapped: self.mapped - before.mapped,
            unmapped: self.unmapped - before.unmapped,
        }
    }
}

impl MemoryStats {
    pub(crate) fn reset_peaks(&mut self) {
        for counter in [
            &mut self.requested_bytes,
            &mut self.allocated_bytes,
            &mut self.active_bytes,
            &mut self.reserved_bytes,
            &mut self.segment_bytes,
            &mut self.outside_bytes,
        ] {
            counter.peak = counter.current;
        }
    }
}

/// Counters of swapped memory, which is none of the device's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct SwappedStats {
    /// Bytes that callers asked for, in live blocks.
    pub requested_bytes: Peak,
    /// Bytes of the arena in live blocks.
    pub used_bytes: Peak,
    /// Live blocks.
    pub blocks: u64,
    /// Allocations so far.
    pub allocations: u64,
}

impl SwappedStats {
    pub(crate) fn reset_peaks(&mut self) {
        for counter in [&mut self.requested_bytes, &mut self.used_bytes] {
            counter.peak = counter.current;
        }
    }
}
