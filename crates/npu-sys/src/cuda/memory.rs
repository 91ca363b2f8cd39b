//! What memory the driver gave out: device memory with its addresses, and host memory.
//!
//! Tables alone, no calls of the library. They refuse what the library would take for something
//! else or not notice, and they say what to give back in the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::cuda::failure::invalid;
use crate::error::DriverError;
use crate::types::{ChunkHandle, DevicePtr, HostPtr, VaRange};

/// Device memory: ranges, chunks, and what is mapped where.
#[derive(Debug, Default)]
pub(super) struct DeviceMemory {
    pub(super) ranges: BTreeMap<u64, u64>,
    pub(super) chunks: BTreeMap<u64, Chunk>,
    pub(super) mappings: BTreeMap<u64, Mapping>,
    /// From `allocate_device`.
    pub(super) allocations: BTreeSet<u64>,
}

#[derive(Debug)]
pub(super) struct Chunk {
    size_bytes: u64,
    mapping_count: u64,
}

#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) size_bytes: u64,
    chunk: u64,
}

impl DeviceMemory {
    pub(super) fn reserved(&mut self, range: VaRange) {
        self.ranges.insert(range.start.0, range.size_bytes);
    }

    pub(super) fn check_free_range(&self, range: VaRange) -> Result<(), DriverError> {
        let call = "free_range";
        if self.ranges.get(&range.start.0) != Some(&range.size_bytes) {
            return Err(invalid(call, format!("{range:?} was not reserved")));
        }
        match self.mappings.range(range.start.0..range.end().0).next() {
            Some((&at, _)) => Err(invalid(call, format!("{:?} is mapped", DevicePtr(at)))),
            None => Ok(()),
        }
    }

    pub(super) fn created(&mut self, chunk: ChunkHandle, size_bytes: u64) {
        self.chunks.insert(chunk.0, Chunk { size_bytes, mapping_count: 0 });
    }

    pub(super) fn check_release(&self, handle: ChunkHandle) -> Result<(), DriverError> {
        let call = "release_chunk";
        match self.chunks.get(&handle.0) {
            None => Err(invalid(call, format!("{handle:?} does not exist"))),
            Some(Chunk { mapping_count: 0, .. }) => Ok(()),
            Some(Chunk { mapping_count, .. }) => {
                Err(invalid(call, format!("{handle:?} is mapped at {mapping_count} addresses")))
            }
        }
    }

    pub(super) fn check_map(&self, range: VaRange, handle: ChunkHandle) -> Result<(), DriverError> {
        let call = "map";
        let Some(end) = range.start.0.checked_add(range.size_bytes) else {
            return Err(invalid(call, format!("{range:?} ends behind all addresses")));
        };
        let holder = self.ranges.range(..=range.start.0).next_back();
        if holder.is_none_or(|(&start, &size_bytes)| start + size_bytes < end) {
            return Err(invalid(call, format!("{range:?} is not in a reserved range")));
        }
        if let Some((&at, mapping)) = self.mappings.range(..end).next_back()
            && at + mapping.size_bytes > range.start.0
        {
            return Err(invalid(call, format!("{:?} is mapped already", DevicePtr(at))));
        }
        match self.chunks.get(&handle.0) {
            None => Err(invalid(call, format!("{handle:?} does not exist"))),
            Some(chunk) if chunk.size_bytes != range.size_bytes => {
                let (is, asked) = (chunk.size_bytes, range.size_bytes);
                Err(invalid(call, format!("{handle:?} has {is} bytes, the range {asked}")))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) fn mapped(&mut self, range: VaRange, handle: ChunkHandle) {
        let chunk = self.chunks.get_mut(&handle.0).expect("`check_map` found it");
        chunk.mapping_count += 1;
        let mapping = Mapping { size_bytes: range.size_bytes, chunk: handle.0 };
        self.mappings.insert(range.start.0, mapping);
    }

    /// Checks that the range is one or more whole mappings without a gap.
    pub(super) fn check_access(&self, range: VaRange) -> Result<(), DriverError> {
        let (mut at, mut left_bytes) = (range.start.0, range.size_bytes);
        while left_bytes > 0 {
            match self.mappings.get(&at) {
                Some(mapping) if mapping.size_bytes <= left_bytes => {
                    at += mapping.size_bytes;
                    left_bytes -= mapping.size_bytes;
                }
                _ => {
                    let text = format!("{range:?} is not whole mappings");
                    return Err(invalid("set_access", text));
                }
            }
        }
        Ok(())
    }

    pub(super) fn check_unmap(&self, range: VaRange) -> Result<(), DriverError> {
        match self.mappings.get(&range.start.0) {
            Some(mapping) if mapping.size_bytes == range.size_bytes => Ok(()),
            _ => Err(invalid("unmap", format!("{range:?} is not one whole mapping"))),
        }
    }

    pub(super) fn unmapped(&mut self, range: VaRange) {
        let mapping = self.mappings.remove(&range.start.0).expect("`check_unmap` found it");
        let chunk = self.chunks.get_mut(&mapping.chunk).expect("mapped chunks are not released");
        chunk.mapping_count -= 1;
    }
}

/// A piece of pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    pub(super) size_bytes: u64,
    pub(super) origin: Origin,
}

/// Where a piece of pinned host memory is from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// The library gave it, at this address or a little behind.
    Allocated { base: u64 },
    /// The caller's, registered.
    Registered,
}

/// Host memory that the device can copy to and from.
#[derive(Debug, Default)]
pub(super) struct PinnedMemory {
    pub(super) pieces: BTreeMap<u64, Piece>,
}

impl PinnedMemory {
    pub(super) fn insert(&mut self, start: HostPtr, piece: Piece) {
        self.pieces.insert(start.0, piece);
    }

    /// Takes out a piece that starts there, if it is of the right origin.
    pub(super) fn take(
        &mut self,
        start: HostPtr,
        is_right: impl Fn(Origin) -> bool,
    ) -> Option<Piece> {
        self.pieces.get(&start.0).filter(|piece| is_right(piece.origin))?;
        self.pieces.remove(&start.0)
    }

    /// The start of the piece that holds the address.
    pub(super) fn find(&self, address: HostPtr) -> Option<HostPtr> {
        let (&start, piece) = self.pieces.range(..=address.0).next_back()?;
        (address.0 - start < piece.size_bytes).then_some(HostPtr(start))
    }

    /// Whether all of the bytes are in one piece. The library refuses copies that span two.
    pub(super) fn is_pinned(&self, start: HostPtr, size_bytes: u64) -> bool {
        let piece = self.find(start).and_then(|first| Some((first, self.pieces.get(&first.0)?)));
        piece.is_some_and(|(first, piece)| size_bytes <= piece.size_bytes - (start.0 - first.0))
    }

    /// Whether any of the bytes `start .. end` is pinned.
    pub(super) fn overlaps(&self, start: u64, end: u64) -> bool {
        let last = self.pieces.range(..end).next_back();
        last.is_some_and(|(&first, piece)| first + piece.size_bytes > start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const UNIT: u64 = 1 << 21;

    fn range(start: u64, units: u64) -> VaRange {
        VaRange { start: DevicePtr(start * UNIT), size_bytes: units * UNIT }
    }

    fn refused(result: Result<(), DriverError>, expect: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.text.contains(expect), "{error} lacks '{expect}'");
    }

    #[test]
    fn a_chunk_lives_from_create_to_release_and_is_mapped_between() {
        let mut memory = DeviceMemory::default();
        let (chunk, other) = (ChunkHandle(70), ChunkHandle(71));
        memory.reserved(range(10, 4));
        memory.created(chunk, 2 * UNIT);
        memory.created(other, UNIT);
        memory.check_map(range(11, 2), chunk).unwrap();
        memory.mapped(range(11, 2), chunk);
        refused(memory.check_map(range(12, 1), other), "mapped already");
        refused(memory.check_map(range(10, 2), chunk), "mapped already");
        memory.check_map(range(10, 1), other).unwrap();
        memory.mapped(range(10, 1), other);
        refused(memory.check_release(chunk), "mapped at 1 addresses");
        refused(memory.check_free_range(range(10, 4)), "is mapped");

        memory.check_access(range(10, 3)).unwrap();
        memory.check_access(range(11, 2)).unwrap();
        refused(memory.check_access(range(10, 2)), "whole mappings");
        refused(memory.check_access(range(10, 4)), "whole mappings");
        refused(memory.check_unmap(range(10, 3)), "one whole mapping");
        refused(memory.check_unmap(range(12, 1)), "one whole mapping");

        for mapped in [range(11, 2), range(10, 1)] {
            memory.check_unmap(mapped).unwrap();
            memory.unmapped(mapped);
            refused(memory.check_unmap(mapped), "one whole mapping");
        }
        memory.check_release(chunk).unwrap();
        memory.check_free_range(range(10, 4)).unwrap();
    }

    #[test]
    fn what_was_never_given_out_is_refused() {
        let mut memory = DeviceMemory::default();
        let chunk = ChunkHandle(70);
        memory.reserved(range(10, 2));
        memory.created(chunk, 2 * UNIT);
        refused(memory.check_release(ChunkHandle(999)), "does not exist");
        refused(memory.check_map(range(10, 2), ChunkHandle(999)), "does not exist");
        refused(memory.check_map(range(10, 1), chunk), "the range 2097152");
        refused(memory.check_map(range(11, 2), chunk), "not in a reserved range");
        refused(memory.check_map(range(9, 2), chunk), "not in a reserved range");
        let endless = VaRange { start: DevicePtr(u64::MAX - UNIT + 1), size_bytes: 2 * UNIT };
        refused(memory.check_map(endless, chunk), "ends behind all addresses");
        refused(memory.check_access(endless), "whole mappings");
        refused(memory.check_free_range(range(10, 1)), "was not reserved");
        refused(memory.check_free_range(range(11, 1)), "was not reserved");
    }

    #[test]
    fn pinned_memory_is_found_by_any_of_its_bytes() {
        let mut memory = PinnedMemory::default();
        let (allocated, registered) = (HostPtr(0x1000), HostPtr(0x3000));
        let base = 0x800;
        memory.insert(allocated, Piece { size_bytes: 0x2000, origin: Origin::Allocated { base } });
        memory.insert(registered, Piece { size_bytes: 0x1000, origin: Origin::Registered });
        assert_eq!(memory.find(HostPtr(0xfff)), None);
        assert_eq!(memory.find(HostPtr(0x1000)), Some(allocated));
        assert_eq!(memory.find(HostPtr(0x2fff)), Some(allocated));
        assert_eq!(memory.find(HostPtr(0x3001)), Some(registered));
        assert_eq!(memory.find(HostPtr(0x4000)), None);

        let check = |start: u64, size_bytes: u64, expect: bool| {
            assert_eq!(memory.is_pinned(HostPtr(start), size_bytes), expect, "{start:#x}");
        };
        check(0x1000, 0x2000, true);
        check(0x2fff, 1, true);
        check(0x2fff, 2, false);
        check(0x3000, 0x1000, true);
        check(0xfff, 2, false);
        check(0x3fff, 2, false);
        check(0x3fff, u64::MAX, false);
        check(8, 1, false);

        assert!(memory.overlaps(0, 0x1001) && memory.overlaps(0x3fff, 0x5000));
        assert!(!memory.overlaps(0, 0x1000) && !memory.overlaps(0x4000, 0x5000));

        let is_registered = |origin| origin == Origin::Registered;
        assert_eq!(memory.take(allocated, is_registered), None);
        assert_eq!(memory.take(HostPtr(0x3001), is_registered), None);
        assert!(memory.take(registered, is_registered).is_some());
        assert_eq!(memory.take(registered, is_registered), None);
        assert_eq!(memory.pieces.len(), 1);
    }
}
