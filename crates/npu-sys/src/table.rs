//! What device memory a driver gave out, and which calls on it are right: the rules of
//! [`Driver`](crate::Driver) that every driver keeps, without any call of its library.
//!
//! A driver asks `check_*`, makes the library's call, and tells what happened. Wrong numbers are
//! an error here and never reach the library, which would take some for something else. Chunks
//! have numbers of our own, each given once, so that an old one never means a new chunk.

use std::collections::BTreeMap;

use crate::error::{DriverError, ErrorKind};
use crate::extents::Extents;
use crate::types::{ChunkHandle, DevicePtr, VaRange};

/// What a driver's sizes are multiples of, and how it says that an argument is wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub(crate) granularity_bytes: u64,
    /// The code by which the driver's library says so.
    pub(crate) invalid_code: i64,
}

impl Rules {
    fn invalid<T>(self, call: &'static str, text: String) -> Result<T, DriverError> {
        let (code, kind) = (self.invalid_code, ErrorKind::Invalid);
        Err(DriverError { call, code, text: text.into(), kind })
    }

    pub(crate) fn check_size(self, call: &'static str, size_bytes: u64) -> Result<(), DriverError> {
        let granularity = self.granularity_bytes;
        if size_bytes == 0 || !size_bytes.is_multiple_of(granularity) {
            let text = format!("{size_bytes} bytes is not a positive multiple of {granularity}");
            return self.invalid(call, text);
        }
        Ok(())
    }
}

/// Ranges, chunks, and what is mapped where. A driver keeps an `R` of each range, a `C` of each
/// chunk and an `M` of each mapping.
#[derive(Debug)]
pub(crate) struct DeviceTable<R, C, M> {
    pub(crate) rules: Rules,
    chunk_count_ever: u64,
    chunks: BTreeMap<u64, Chunk<C>>,
    pub(crate) ranges: Extents<R>,
    pub(crate) mappings: Extents<Mapping<M>>,
    /// From `allocate_device`.
    pub(crate) allocations: Extents<()>,
}

#[derive(Debug)]
pub(crate) struct Chunk<C> {
    pub(crate) size_bytes: u64,
    pub(crate) held: C,
    pub(crate) mapping_count: u64,
}

#[derive(Debug)]
pub(crate) struct Mapping<M> {
    pub(crate) chunk: ChunkHandle,
    pub(crate) held: M,
}

impl<R, C, M> DeviceTable<R, C, M> {
    pub(crate) fn new(rules: Rules) -> DeviceTable<R, C, M> {
        DeviceTable {
            rules,
            chunk_count_ever: 0,
            chunks: BTreeMap::new(),
            ranges: Extents::default(),
            mappings: Extents::default(),
            allocations: Extents::default(),
        }
    }

    pub(crate) fn reserved(&mut self, range: VaRange, held: R) {
        self.ranges.insert(range.start.0, range.size_bytes, held);
    }

    pub(crate) fn check_free_range(&self, range: VaRange) -> Result<(), DriverError> {
        let call = "free_range";
        let reserved = self.ranges.get(range.start.0);
        if reserved.is_none_or(|reserved| reserved.size_bytes != range.size_bytes) {
            return self.rules.invalid(call, format!("{range:?} was not reserved"));
        }
        match self.mappings.overlap(range.start.0, range.size_bytes) {
            Some(at) => self.rules.invalid(call, format!("{:?} is mapped", DevicePtr(at))),
            None => Ok(()),
        }
    }

    pub(crate) fn freed(&mut self, range: VaRange) -> R {
        self.ranges.remove(range.start.0).expect("`check_free_range` found it").held
    }

    pub(crate) fn created(&mut self, size_bytes: u64, held: C) -> ChunkHandle {
        self.chunk_count_ever += 1;
        let chunk = Chunk { size_bytes, held, mapping_count: 0 };
        self.chunks.insert(self.chunk_count_ever, chunk);
        ChunkHandle(self.chunk_count_ever)
    }

    /// The chunk, if it exists.
    pub(crate) fn chunk(&self, handle: ChunkHandle) -> Option<&Chunk<C>> {
        self.chunks.get(&handle.0)
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = (ChunkHandle, &Chunk<C>)> {
        self.chunks.iter().map(|(&number, chunk)| (ChunkHandle(number), chunk))
    }

    /// Checks that a chunk may be released, and says what is kept of it.
    pub(crate) fn check_release(&self, handle: ChunkHandle) -> Result<&Chunk<C>, DriverError> {
        let call = "release_chunk";
        match self.chunk(handle) {
            None => self.rules.invalid(call, format!("{handle:?} does not exist")),
            Some(chunk) if chunk.mapping_count == 0 => Ok(chunk),
            Some(Chunk { mapping_count, .. }) => self
                .rules
                .invalid(call, format!("{handle:?} is mapped at {mapping_count} addresses")),
        }
    }

    pub(crate) fn released(&mut self, handle: ChunkHandle) -> Chunk<C> {
        self.chunks.remove(&handle.0).expect("`check_release` found it")
    }

    /// Takes a chunk back in that could not be released.
    pub(crate) fn kept(&mut self, handle: ChunkHandle, chunk: Chunk<C>) {
        self.chunks.insert(handle.0, chunk);
    }

    /// Checks that a chunk may be mapped at a range, and says what is kept of the chunk.
    pub(crate) fn check_map(&self, range: VaRange, handle: ChunkHandle) -> Result<&C, DriverError> {
        let call = "map";
        self.rules.check_size(call, range.size_bytes)?;
        let VaRange { start, size_bytes } = range;
        if !start.0.is_multiple_of(self.rules.granularity_bytes) {
            return self.rules.invalid(call, format!("{start:?} is not aligned"));
        }
        self.check_reserved(call, range)?;
        if let Some(at) = self.mappings.overlap(start.0, size_bytes) {
            return self.rules.invalid(call, format!("{:?} is mapped already", DevicePtr(at)));
        }
        match self.chunk(handle) {
            None => self.rules.invalid(call, format!("{handle:?} does not exist")),
            Some(chunk) if chunk.size_bytes != size_bytes => {
                let is = chunk.size_bytes;
                self.rules
                    .invalid(call, format!("{handle:?} has {is} bytes, the range {size_bytes}"))
            }
            Some(chunk) => Ok(&chunk.held),
        }
    }

    pub(crate) fn mapped(&mut self, range: VaRange, chunk: ChunkHandle, held: M) {
        let mapped = self.chunks.get_mut(&chunk.0).expect("`check_map` found it");
        mapped.mapping_count += 1;
        self.mappings.insert(range.start.0, range.size_bytes, Mapping { chunk, held });
    }

    /// Checks that the range is one or more whole mappings without a gap.
    pub(crate) fn check_access(&self, range: VaRange) -> Result<(), DriverError> {
        let call = "set_access";
        self.rules.check_size(call, range.size_bytes)?;
        self.check_reserved(call, range)?;
        match self.mappings.is_whole(range.start.0, range.size_bytes) {
            true => Ok(()),
            false => self.rules.invalid(call, format!("{range:?} is not whole mappings")),
        }
    }

    fn check_reserved(&self, call: &'static str, range: VaRange) -> Result<(), DriverError> {
        match self.ranges.holder(range.start.0, range.size_bytes) {
            Some(_) => Ok(()),
            None => self.rules.invalid(call, format!("{range:?} is not in a reserved range")),
        }
    }

    /// Checks that the range is one whole mapping, and says what is kept of it.
    pub(crate) fn check_unmap(&self, range: VaRange) -> Result<&Mapping<M>, DriverError> {
        match self.mappings.get(range.start.0) {
            Some(mapping) if mapping.size_bytes == range.size_bytes => Ok(&mapping.held),
            _ => self.rules.invalid("unmap", format!("{range:?} is not one whole mapping")),
        }
    }

    pub(crate) fn unmapped(&mut self, range: VaRange) {
        let mapping = self.mappings.remove(range.start.0).expect("`check_unmap` found it").held;
        let chunk = self.chunks.get_mut(&mapping.chunk.0).expect("mapped chunks are not released");
        chunk.mapping_count -= 1;
    }

    /// Checks that memory was allocated at its address, and says how much.
    pub(crate) fn check_free_device(&self, start: DevicePtr) -> Result<u64, DriverError> {
        match self.allocations.get(start.0) {
            Some(allocation) => Ok(allocation.size_bytes),
            None => self.rules.invalid("free_device", format!("{start:?} was not allocated")),
        }
    }
}

#[cfg(test)]
mod tests;
