//! Who holds which memory and addresses. Every call is checked here before anything changes.

use std::collections::BTreeMap;

use crate::error::DriverError;
use crate::host::config::{HostConfig, Mode};
use crate::host::failure::{invalid, out_of_memory, system};
use crate::host::ledger::Ledger;
use crate::host::mappings::Mappings;
use crate::host::physical::Physical;
use crate::host::vm::{AddressSpace, Reservation};
use crate::pages::HostPages;
use crate::types::{ChunkHandle, DevicePtr, HostPtr, VaRange};

/// All memory of one device and what is pinned for it.
#[derive(Debug)]
pub(super) struct Memory {
    capacity_bytes: u64,
    granularity_bytes: u64,
    page_bytes: u64,
    host_limit_bytes: Option<u64>,
    touch: bool,
    chunk_count_ever: u64,
    chunk_bytes: u64,
    chunk_bytes_peak: u64,
    pinned_bytes: u64,
    pinned_bytes_peak: u64,
    registered_bytes: u64,
    registered_bytes_peak: u64,
    // Tables by start address or handle.
    ranges: BTreeMap<u64, Reservation>,
    mappings: BTreeMap<u64, Mapping>,
    chunks: BTreeMap<u64, Chunk>,
    /// Memory that was given out with its address: where, and its chunk.
    plain: BTreeMap<u64, ChunkHandle>,
    pinned: BTreeMap<u64, HostPages>,
    registered: BTreeMap<u64, u64>,
    addresses: AddressSpace,
    shown: Mappings,
    physical: Physical,
}

#[derive(Debug)]
struct Mapping {
    chunk: u64,
    size_bytes: u64,
    /// Whether `set_access` was called: before it the bytes cannot be reached.
    accessible: bool,
}

#[derive(Debug)]
struct Chunk {
    size_bytes: u64,
    offset: u64,
    mapping_count: u64,
}

impl Memory {
    pub(super) fn new(config: &HostConfig, page_bytes: u64) -> Result<Memory, DriverError> {
        Ok(Memory {
            capacity_bytes: config.capacity_bytes,
            granularity_bytes: config.granularity_bytes,
            page_bytes,
            host_limit_bytes: config.host_limit_bytes,
            // Lockstep devices are often far larger than the machine: their pages come by use.
            touch: config.mode == Mode::Threads,
            chunk_count_ever: 0,
            chunk_bytes: 0,
            chunk_bytes_peak: 0,
            pinned_bytes: 0,
            pinned_bytes_peak: 0,
            registered_bytes: 0,
            registered_bytes_peak: 0,
            ranges: BTreeMap::new(),
            mappings: BTreeMap::new(),
            chunks: BTreeMap::new(),
            plain: BTreeMap::new(),
            pinned: BTreeMap::new(),
            registered: BTreeMap::new(),
            addresses: AddressSpace::new(config.granularity_bytes),
            shown: Mappings::new(),
            physical: Physical::new(config.granularity_bytes, config.poison)
                .map_err(|errno| system("new", errno))?,
        })
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity_bytes - self.chunk_bytes
    }

    pub(super) fn reserve(&mut self, size_bytes: u64) -> Result<VaRange, DriverError> {
        let call = "reserve";
        self.check_size(call, size_bytes)?;
        let range = self.addresses.reserve(size_bytes).map_err(|errno| system(call, errno))?;
        let start = range.start();
        self.ranges.insert(start, range);
        Ok(VaRange { start: DevicePtr(start), size_bytes })
    }

    pub(super) fn free_range(&mut self, range: VaRange) -> Result<(), DriverError> {
        let call = "free_range";
        let start = range.start.0;
        match self.ranges.get(&start) {
            Some(reserved) if reserved.size_bytes() == range.size_bytes => {}
            _ => return Err(invalid(call, format!("{range:?} was not reserved"))),
        }
        if let Some((at, _)) = self.mappings.range(start..start + range.size_bytes).next() {
            return Err(invalid(call, format!("{:?} is mapped", DevicePtr(*at))));
        }
        if let Some(reserved) = self.ranges.remove(&start) {
            self.addresses.give_back(reserved);
        }
        Ok(())
    }

    pub(super) fn create_chunk(&mut self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        let call = "create_chunk";
        self.check_size(call, size_bytes)?;
        if size_bytes > self.free_bytes() {
            return Err(out_of_memory(call, size_bytes, self.chunk_bytes, self.capacity_bytes));
        }
        let offset = self.physical.take(size_bytes).map_err(|errno| system(call, errno))?;
        self.chunk_count_ever += 1;
        let chunk = self.chunk_count_ever;
        self.chunks.insert(chunk, Chunk { size_bytes, offset, mapping_count: 0 });
        self.chunk_bytes += size_bytes;
        self.chunk_bytes_peak = self.chunk_bytes_peak.max(self.chunk_bytes);
        Ok(ChunkHandle(chunk))
    }

    pub(super) fn release_chunk(&mut self, handle: ChunkHandle) -> Result<(), DriverError> {
        let call = "release_chunk";
        let Some(chunk) = self.chunks.get(&handle.0) else {
            return Err(invalid(call, format!("{handle:?} does not exist")));
        };
        if chunk.mapping_count > 0 {
            let count = chunk.mapping_count;
            return Err(invalid(call, format!("{handle:?} is mapped at {count} addresses")));
        }
        let size_bytes = chunk.size_bytes;
        self.physical.give_back(chunk.offset, size_bytes).map_err(|errno| system(call, errno))?;
        self.chunks.remove(&handle.0);
        self.chunk_bytes -= size_bytes;
        Ok(())
    }

    pub(super) fn map(&mut self, range: VaRange, handle: ChunkHandle) -> Result<(), DriverError> {
        let call = "map";
        self.check_size(call, range.size_bytes)?;
        let start = range.start.0;
        if !start.is_multiple_of(self.granularity_bytes) {
            return Err(invalid(call, format!("{:?} is not aligned", range.start)));
        }
        if holder(&self.ranges, range).is_none() {
            return Err(invalid(call, format!("{range:?} is not in a reserved range")));
        }
        if let Some((at, mapping)) = self.mappings.range(..range.end().0).next_back()
            && at + mapping.size_bytes > start
        {
            return Err(invalid(call, format!("{:?} is mapped already", DevicePtr(*at))));
        }
        let Some(chunk) = self.chunks.get_mut(&handle.0) else {
            return Err(invalid(call, format!("{handle:?} does not exist")));
        };
        if chunk.size_bytes != range.size_bytes {
            let (is, asked) = (chunk.size_bytes, range.size_bytes);
            return Err(invalid(call, format!("{handle:?} has {is} bytes, the range {asked}")));
        }
        chunk.mapping_count += 1;
        let mapping = Mapping { chunk: handle.0, size_bytes: range.size_bytes, accessible: false };
        self.mappings.insert(start, mapping);
        Ok(())
    }

    pub(super) fn set_access(&mut self, range: VaRange) -> Result<(), DriverError> {
        let call = "set_access";
        self.check_size(call, range.size_bytes)?;
        if holder(&self.ranges, range).is_none() {
            return Err(invalid(call, format!("{range:?} is not in a reserved range")));
        }
        let mut at = range.start.0;
        while at < range.end().0 {
            match self.mappings.get(&at) {
                Some(mapping) if at + mapping.size_bytes <= range.end().0 => {
                    at += mapping.size_bytes;
                }
                _ => return Err(invalid(call, format!("{range:?} is not whole mappings"))),
            }
        }
        let parts = self.mappings.range(range.start.0..range.end().0);
        let hidden = parts.filter(|(_, mapping)| !mapping.accessible).map(|(&start, _)| start);
        for start in hidden.collect::<Vec<u64>>() {
            self.show(call, start)?;
        }
        Ok(())
    }

    /// Shows the chunk that is mapped at an address.
    fn show(&mut self, call: &'static str, start: u64) -> Result<(), DriverError> {
        let Mapping { chunk, size_bytes, .. } = self.mappings[&start];
        let range = VaRange { start: DevicePtr(start), size_bytes };
        let pieces = self.pieces_between(range);
        self.shown.take(call, pieces)?;
        let reserved = holder(&self.ranges, range).expect("mappings lie in reserved ranges");
        let offset = self.chunks[&chunk].offset;
        let shown = reserved.show(start, size_bytes, self.physical.file(), offset, self.touch);
        if let Err(errno) = shown {
            self.shown.give_back(pieces);
            return Err(system(call, errno));
        }
        self.mappings.get_mut(&start).expect("seen above").accessible = true;
        Ok(())
    }

    /// How many more mappings the system keeps while memory is shown at a range than while none
    /// is: one for each side on which reserved addresses are cut off.
    fn pieces_between(&self, range: VaRange) -> u64 {
        let before = self.mappings.range(..range.start.0).next_back();
        let touches = |at: u64, it: &Mapping| it.accessible && at + it.size_bytes == range.start.0;
        let is_cut_before = !before.is_some_and(|(&at, mapping)| touches(at, mapping));
        let behind = self.mappings.get(&range.end().0);
        let is_cut_behind = !behind.is_some_and(|mapping| mapping.accessible);
        u64::from(is_cut_before) + u64::from(is_cut_behind)
    }

    pub(super) fn unmap(&mut self, range: VaRange) -> Result<(), DriverError> {
        let call = "unmap";
        let start = range.start.0;
        if self.plain.contains_key(&start) {
            return Err(invalid(call, format!("{range:?} is from allocate_device")));
        }
        self.take_mapping(call, range)
    }

    fn take_mapping(&mut self, call: &'static str, range: VaRange) -> Result<(), DriverError> {
        let start = range.start.0;
        let mapping = match self.mappings.get(&start) {
            Some(mapping) if mapping.size_bytes == range.size_bytes => mapping,
            _ => return Err(invalid(call, format!("{range:?} is not one whole mapping"))),
        };
        if mapping.accessible {
            let reserved = holder(&self.ranges, range).expect("mappings lie in reserved ranges");
            reserved.hide(start, range.size_bytes).map_err(|errno| system(call, errno))?;
            self.shown.give_back(self.pieces_between(range));
        }
        let chunk = self.chunks.get_mut(&mapping.chunk).expect("mapped chunks are not released");
        chunk.mapping_count -= 1;
        self.mappings.remove(&start);
        Ok(())
    }

    /// Memory and addresses at once: a range, a chunk, and the mapping of one to the other.
    pub(super) fn allocate_device(&mut self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        let call = "allocate_device";
        let named = |error| DriverError { call, ..error };
        let chunk = self.create_chunk(size_bytes).map_err(named)?;
        let range = match self.reserve(size_bytes) {
            Ok(range) => range,
            Err(error) => {
                self.release_chunk(chunk).map_err(named)?;
                return Err(named(error));
            }
        };
        let shown = self.map(range, chunk).and_then(|()| self.set_access(range));
        if let Err(error) = shown {
            // The mapping was never accessible, so all of it goes without the system's help.
            self.take_mapping(call, range)?;
            self.free_range(range).map_err(named)?;
            self.release_chunk(chunk).map_err(named)?;
            return Err(named(error));
        }
        self.plain.insert(range.start.0, chunk);
        Ok(range.start)
    }

    pub(super) fn free_device(&mut self, start: DevicePtr) -> Result<(), DriverError> {
        let call = "free_device";
        let named = |error| DriverError { call, ..error };
        let Some(&chunk) = self.plain.get(&start.0) else {
            return Err(invalid(call, format!("{start:?} was not allocated")));
        };
        let held = &self.chunks[&chunk.0];
        if held.mapping_count > 1 {
            return Err(invalid(call, format!("{start:?} is mapped elsewhere too")));
        }
        let range = VaRange { start, size_bytes: held.size_bytes };
        self.take_mapping(call, range)?;
        if let Err(error) = self.release_chunk(chunk) {
            let shown = self.map(range, chunk).and_then(|()| self.set_access(range));
            return Err(named(shown.err().unwrap_or(error)));
        }
        self.plain.remove(&start.0);
        self.free_range(range).map_err(named)
    }

    pub(super) fn allocate_pinned(&mut self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        let call = "allocate_pinned";
        let size_bytes = size_bytes
            .checked_next_multiple_of(self.page_bytes)
            .filter(|&size_bytes| size_bytes > 0)
            .ok_or_else(|| invalid(call, format!("{size_bytes} bytes cannot be pinned")))?;
        self.check_host_limit(call, size_bytes)?;
        let pinned = HostPages::untouched(size_bytes).map_err(|errno| system(call, errno))?;
        let start = pinned.start();
        self.pinned.insert(start.0, pinned);
        self.pinned_bytes += size_bytes;
        self.pinned_bytes_peak = self.pinned_bytes_peak.max(self.pinned_bytes);
        Ok(start)
    }

    pub(super) fn free_pinned(&mut self, start: HostPtr) -> Result<(), DriverError> {
        match self.pinned.remove(&start.0) {
            Some(pinned) => self.pinned_bytes -= pinned.size_bytes(),
            None => return Err(invalid("free_pinned", format!("{start:?} was not allocated"))),
        }
        Ok(())
    }

    pub(super) fn register_host(
        &mut self,
        start: HostPtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        let call = "register_host";
        let page = self.page_bytes;
        let end = start.0.checked_add(size_bytes);
        let aligned = start.0.is_multiple_of(page) && size_bytes.is_multiple_of(page);
        let Some(end) = end.filter(|_| aligned && size_bytes > 0 && start.0 > 0) else {
            return Err(invalid(
                call,
                format!("{start:?} + {size_bytes} bytes is not whole pages"),
            ));
        };
        let before = |(&at, &size): (&u64, &u64)| at + size > start.0;
        let overlaps = self.registered.range(..end).next_back().is_some_and(before)
            || self
                .pinned
                .range(..end)
                .next_back()
                .is_some_and(|(at, p)| before((at, &p.size_bytes())))
            || self
                .ranges
                .range(..end)
                .next_back()
                .is_some_and(|(at, r)| before((at, &r.size_bytes())));
        if overlaps {
            return Err(invalid(call, format!("{start:?} + {size_bytes} bytes is known already")));
        }
        self.check_host_limit(call, size_bytes)?;
        self.registered.insert(start.0, size_bytes);
        self.registered_bytes += size_bytes;
        self.registered_bytes_peak = self.registered_bytes_peak.max(self.registered_bytes);
        Ok(())
    }

    pub(super) fn unregister_host(&mut self, start: HostPtr) -> Result<(), DriverError> {
        match self.registered.remove(&start.0) {
            Some(size_bytes) => self.registered_bytes -= size_bytes,
            None => return Err(invalid("unregister_host", format!("{start:?} is not registered"))),
        }
        Ok(())
    }

    /// Checks that the device can reach the bytes: they are mapped, or pinned host memory.
    pub(super) fn check_device(
        &self,
        call: &'static str,
        start: DevicePtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        if self.is_accessible(start.0, size_bytes) || self.is_host(start.0, size_bytes) {
            return Ok(());
        }
        Err(invalid(call, format!("{start:?} + {size_bytes} bytes is not mapped with access")))
    }

    /// Checks that the bytes are in one piece of pinned or registered host memory.
    pub(super) fn check_host(
        &self,
        call: &'static str,
        start: HostPtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        if self.is_host(start.0, size_bytes) {
            return Ok(());
        }
        Err(invalid(call, format!("{start:?} + {size_bytes} bytes is not pinned")))
    }

    pub(super) fn reset_peaks(&mut self) {
        self.chunk_bytes_peak = self.chunk_bytes;
        self.pinned_bytes_peak = self.pinned_bytes;
        self.registered_bytes_peak = self.registered_bytes;
    }

    /// The memory part of the ledger, added up afresh from the tables.
    pub(super) fn ledger(&self) -> Ledger {
        let ledger = Ledger {
            capacity_bytes: self.capacity_bytes,
            chunk_bytes: self.chunks.values().map(|chunk| chunk.size_bytes).sum(),
            chunk_bytes_peak: self.chunk_bytes_peak,
            chunk_count: self.chunks.len() as u64,
            mapped_bytes: self.mappings.values().map(|mapping| mapping.size_bytes).sum(),
            mapping_count: self.mappings.len() as u64,
            reserved_bytes: self.ranges.values().map(Reservation::size_bytes).sum(),
            range_count: self.ranges.len() as u64,
            pinned_bytes: self.pinned.values().map(HostPages::size_bytes).sum(),
            pinned_bytes_peak: self.pinned_bytes_peak,
            registered_bytes: self.registered.values().sum(),
            registered_bytes_peak: self.registered_bytes_peak,
            ..Ledger::default()
        };
        assert_eq!(ledger.chunk_bytes, self.chunk_bytes, "the running count of chunks is off");
        assert_eq!(ledger.pinned_bytes, self.pinned_bytes, "the running count of pins is off");
        let registered_bytes = self.registered_bytes;
        assert_eq!(ledger.registered_bytes, registered_bytes, "the running count is off");
        ledger
    }

    fn check_size(&self, call: &'static str, size_bytes: u64) -> Result<(), DriverError> {
        let granularity = self.granularity_bytes;
        if size_bytes == 0 || !size_bytes.is_multiple_of(granularity) {
            let text = format!("{size_bytes} bytes is not a positive multiple of {granularity}");
            return Err(invalid(call, text));
        }
        Ok(())
    }

    fn check_host_limit(&self, call: &'static str, size_bytes: u64) -> Result<(), DriverError> {
        let held = self.pinned_bytes + self.registered_bytes;
        match self.host_limit_bytes {
            Some(limit) if size_bytes > limit - held.min(limit) => {
                Err(out_of_memory(call, size_bytes, held, limit))
            }
            _ => Ok(()),
        }
    }

    fn is_accessible(&self, start: u64, size_bytes: u64) -> bool {
        let Some(end) = start.checked_add(size_bytes) else { return false };
        let mut at = start;
        loop {
            match self.mappings.range(..=at).next_back() {
                Some((from, mapping)) if mapping.accessible && at < from + mapping.size_bytes => {
                    at = from + mapping.size_bytes;
                }
                _ => return false,
            }
            if at >= end {
                return true;
            }
        }
    }

    fn is_host(&self, start: u64, size_bytes: u64) -> bool {
        let pinned = self.pinned.range(..=start).next_back();
        let registered = self.registered.range(..=start).next_back();
        pinned.is_some_and(|(&from, pinned)| contains(from, pinned.size_bytes(), start, size_bytes))
            || registered.is_some_and(|(&from, &size)| contains(from, size, start, size_bytes))
    }
}

/// The reserved range that holds all of `range`.
fn holder(ranges: &BTreeMap<u64, Reservation>, range: VaRange) -> Option<&Reservation> {
    let (&start, reserved) = ranges.range(..=range.start.0).next_back()?;
    contains(start, reserved.size_bytes(), range.start.0, range.size_bytes).then_some(reserved)
}

/// Whether `from + size_bytes` holds all of `start + part_bytes`.
fn contains(from: u64, size_bytes: u64, start: u64, part_bytes: u64) -> bool {
    start >= from && part_bytes <= size_bytes && start - from <= size_bytes - part_bytes
}
