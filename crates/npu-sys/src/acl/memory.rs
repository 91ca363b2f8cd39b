//! Device memory: addresses, chunks, mappings, and memory that comes with its address.
//!
//! Handles are numbers of our own and every one is looked up, so that a wrong one is an error
//! and never reaches the library.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::acl::current::Current;
use crate::acl::failure::{self, invalid};
use crate::acl::sys::{self, aclrtDrvMemHandle, aclrtMemLocation, aclrtPhysicalMemProp};
use crate::acl::{lock, pointer, size};
use crate::error::DriverError;
use crate::types::{ChunkHandle, DevicePtr, VaRange};

/// Sizes of huge pages on all devices up to now, for libraries that cannot be asked.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What one driver holds of its device's memory.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    granularity_bytes: u64,
    tables: Mutex<Tables>,
}

#[derive(Debug, Default)]
struct Tables {
    chunk_count_ever: u64,
    chunks: BTreeMap<u64, Chunk>,
    // By start address.
    ranges: BTreeMap<u64, u64>,
    mappings: BTreeMap<u64, Mapping>,
    plain: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Chunk {
    handle: aclrtDrvMemHandle,
    size_bytes: u64,
    mapping_count: u64,
}

#[derive(Debug)]
struct Mapping {
    chunk: u64,
    size_bytes: u64,
}

/// Huge pages of the device itself.
fn properties(index: i32) -> aclrtPhysicalMemProp {
    aclrtPhysicalMemProp {
        handleType: sys::ACL_MEM_HANDLE_TYPE_NONE,
        allocationType: sys::ACL_MEM_ALLOCATION_TYPE_PINNED,
        memAttr: sys::ACL_HBM_MEM_HUGE,
        location: aclrtMemLocation {
            id: index.unsigned_abs(),
            r#type: sys::ACL_MEM_LOCATION_TYPE_DEVICE,
        },
        reserve: 0,
    }
}

/// The multiple of which all sizes are.
fn granularity_bytes(now: &Current<'_>) -> u64 {
    let Some(ask) = now.api.aclrtMemGetAllocationGranularity else { return HUGE_PAGE_BYTES };
    let mut properties = properties(now.index);
    let mut granularity = 0;
    // SAFETY: both are of the vendor's types, and only read and written during the call.
    let code = unsafe {
        ask(&mut properties, sys::ACL_RT_MEM_ALLOC_GRANULARITY_MINIMUM, &mut granularity)
    };
    let asked = if code == sys::ACL_SUCCESS { granularity as u64 } else { 0 };
    // Addresses for huge pages are whole huge pages, whatever the memory's own unit.
    asked.max(HUGE_PAGE_BYTES)
}

impl DeviceMemory {
    pub(super) fn new(now: &Current<'_>) -> DeviceMemory {
        let granularity_bytes = granularity_bytes(now);
        DeviceMemory { granularity_bytes, tables: Mutex::default() }
    }

    pub(super) fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    /// Why the device does not take addresses and memory apart; `None` if it does. The library
    /// has no other way to say so than to do it.
    pub(super) fn probe(&self, now: &Current<'_>) -> Option<DriverError> {
        let api = now.api;
        let needed = [
            ("aclrtReserveMemAddress", api.aclrtReserveMemAddress.is_some()),
            ("aclrtReleaseMemAddress", api.aclrtReleaseMemAddress.is_some()),
            ("aclrtMallocPhysical", api.aclrtMallocPhysical.is_some()),
            ("aclrtFreePhysical", api.aclrtFreePhysical.is_some()),
            ("aclrtMapMem", api.aclrtMapMem.is_some()),
            ("aclrtUnmapMem", api.aclrtUnmapMem.is_some()),
        ];
        if let Some((symbol, _)) = needed.iter().find(|(_, is_there)| !is_there) {
            return Some(failure::missing(now.call, symbol));
        }
        let range = self.reserve(now, self.granularity_bytes);
        range.and_then(|range| self.free_range(now, range)).err()
    }

    fn check_size(&self, now: &Current<'_>, size_bytes: u64) -> Result<(), DriverError> {
        let granularity = self.granularity_bytes;
        if size_bytes == 0 || !size_bytes.is_multiple_of(granularity) {
            let text = format!("{size_bytes} bytes is not a positive multiple of {granularity}");
            return Err(invalid(now.call, text));
        }
        Ok(())
    }

    pub(super) fn reserve(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<VaRange, DriverError> {
        let symbol = "aclrtReserveMemAddress";
        let reserve = now.need(symbol, now.api.aclrtReserveMemAddress)?;
        self.check_size(now, size_bytes)?;
        let mut start = std::ptr::null_mut();
        let anywhere = std::ptr::null_mut();
        let flags = sys::RESERVE_HUGE_PAGES;
        // SAFETY: the library writes one pointer; all else are numbers.
        let code = unsafe { reserve(&mut start, size(size_bytes), 0, anywhere, flags) };
        now.check(symbol, code)?;
        let start = start.expose_provenance() as u64;
        lock(&self.tables).ranges.insert(start, size_bytes);
        Ok(VaRange { start: DevicePtr(start), size_bytes })
    }

    pub(super) fn free_range(&self, now: &Current<'_>, range: VaRange) -> Result<(), DriverError> {
        let symbol = "aclrtReleaseMemAddress";
        let release = now.need(symbol, now.api.aclrtReleaseMemAddress)?;
        let mut tables = lock(&self.tables);
        let start = range.start.0;
        if tables.ranges.get(&start) != Some(&range.size_bytes) {
            return Err(invalid(now.call, format!("{range:?} was not reserved")));
        }
        if let Some((at, _)) = tables.mappings.range(start..range.end().0).next() {
            return Err(invalid(now.call, format!("{:?} is mapped", DevicePtr(*at))));
        }
        // SAFETY: the start of a reserved range, in which nothing is mapped; the lock keeps both
        // so.
        let code = unsafe { release(pointer(start)) };
        now.check(symbol, code)?;
        tables.ranges.remove(&start);
        Ok(())
    }

    pub(super) fn create_chunk(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<ChunkHandle, DriverError> {
        let symbol = "aclrtMallocPhysical";
        let allocate = now.need(symbol, now.api.aclrtMallocPhysical)?;
        self.check_size(now, size_bytes)?;
        let mut handle = aclrtDrvMemHandle::NULL;
        let properties = properties(now.index);
        // Without the lock: it can take as long as clearing the memory does.
        // SAFETY: the library writes one handle and reads the properties during the call.
        let code = unsafe { allocate(&mut handle, size(size_bytes), &properties, 0) };
        now.check(symbol, code)?;
        let mut tables = lock(&self.tables);
        tables.chunk_count_ever += 1;
        let chunk = tables.chunk_count_ever;
        tables.chunks.insert(chunk, Chunk { handle, size_bytes, mapping_count: 0 });
        Ok(ChunkHandle(chunk))
    }

    pub(super) fn release_chunk(
        &self,
        now: &Current<'_>,
        handle: ChunkHandle,
    ) -> Result<(), DriverError> {
        let symbol = "aclrtFreePhysical";
        let free = now.need(symbol, now.api.aclrtFreePhysical)?;
        let chunk = {
            let mut tables = lock(&self.tables);
            match tables.chunks.get(&handle.0).map(|chunk| chunk.mapping_count) {
                None => return Err(invalid(now.call, format!("{handle:?} does not exist"))),
                Some(0) => {}
                Some(count) => {
                    let text = format!("{handle:?} is mapped at {count} addresses");
                    return Err(invalid(now.call, text));
                }
            }
            tables.chunks.remove(&handle.0).expect("it was there a moment ago, under the lock")
        };
        // SAFETY: the handle is from `create_chunk`; taken out of the table, it is only here.
        let code = unsafe { free(chunk.handle) };
        let freed = now.check(symbol, code);
        if freed.is_err() {
            lock(&self.tables).chunks.insert(handle.0, chunk);
        }
        freed
    }

    pub(super) fn map(
        &self,
        now: &Current<'_>,
        range: VaRange,
        handle: ChunkHandle,
    ) -> Result<(), DriverError> {
        let symbol = "aclrtMapMem";
        let map = now.need(symbol, now.api.aclrtMapMem)?;
        self.check_size(now, range.size_bytes)?;
        let start = range.start.0;
        let mut tables = lock(&self.tables);
        if !start.is_multiple_of(self.granularity_bytes) {
            return Err(invalid(now.call, format!("{:?} is not aligned", range.start)));
        }
        if !tables.is_reserved(start, range.size_bytes) {
            return Err(invalid(now.call, format!("{range:?} is not in a reserved range")));
        }
        if let Some((at, mapping)) = tables.mappings.range(..range.end().0).next_back()
            && at + mapping.size_bytes > start
        {
            return Err(invalid(now.call, format!("{:?} is mapped already", DevicePtr(*at))));
        }
        let Some(chunk) = tables.chunks.get_mut(&handle.0) else {
            return Err(invalid(now.call, format!("{handle:?} does not exist")));
        };
        if chunk.size_bytes != range.size_bytes {
            let (is, asked) = (chunk.size_bytes, range.size_bytes);
            return Err(invalid(now.call, format!("{handle:?} has {is} bytes, the range {asked}")));
        }
        // SAFETY: reserved addresses with nothing behind them, and a whole chunk of their length;
        // the lock keeps them so.
        let code = unsafe { map(pointer(start), size(range.size_bytes), 0, chunk.handle, 0) };
        now.check(symbol, code)?;
        chunk.mapping_count += 1;
        let mapping = Mapping { chunk: handle.0, size_bytes: range.size_bytes };
        tables.mappings.insert(start, mapping);
        Ok(())
    }

    /// The device that owns memory has access as soon as it is mapped; the library's own call is
    /// for other devices.
    pub(super) fn check_access(
        &self,
        now: &Current<'_>,
        range: VaRange,
    ) -> Result<(), DriverError> {
        self.check_size(now, range.size_bytes)?;
        let tables = lock(&self.tables);
        if !tables.is_reserved(range.start.0, range.size_bytes) {
            return Err(invalid(now.call, format!("{range:?} is not in a reserved range")));
        }
        let begins = tables.mappings.contains_key(&range.start.0);
        let last = tables.mappings.range(..range.end().0).next_back();
        let ends = last.is_some_and(|(at, mapping)| at + mapping.size_bytes == range.end().0);
        if !(begins && ends && tables.is_mapped(range.start.0, range.size_bytes)) {
            return Err(invalid(now.call, format!("{range:?} is not whole mappings")));
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Driver::unmap`](crate::Driver::unmap).
    pub(super) unsafe fn unmap(
        &self,
        now: &Current<'_>,
        range: VaRange,
    ) -> Result<(), DriverError> {
        let symbol = "aclrtUnmapMem";
        let unmap = now.need(symbol, now.api.aclrtUnmapMem)?;
        let mut tables = lock(&self.tables);
        let start = range.start.0;
        let chunk = match tables.mappings.get(&start) {
            Some(mapping) if mapping.size_bytes == range.size_bytes => mapping.chunk,
            _ => return Err(invalid(now.call, format!("{range:?} is not one whole mapping"))),
        };
        // SAFETY: the start of a mapping; the caller promises that nothing uses it.
        let code = unsafe { unmap(pointer(start)) };
        now.check(symbol, code)?;
        tables.mappings.remove(&start);
        let chunk = tables.chunks.get_mut(&chunk).expect("mapped chunks are not released");
        chunk.mapping_count -= 1;
        Ok(())
    }

    pub(super) fn allocate(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<DevicePtr, DriverError> {
        self.check_size(now, size_bytes)?;
        // The older function adds bytes of its own behind the last.
        let (symbol, allocate) = match now.api.aclrtMallocAlign32 {
            Some(allocate) => ("aclrtMallocAlign32", allocate),
            None => ("aclrtMalloc", now.api.aclrtMalloc),
        };
        let mut start = std::ptr::null_mut();
        // SAFETY: the library writes one pointer.
        let code =
            unsafe { allocate(&mut start, size(size_bytes), sys::ACL_MEM_MALLOC_HUGE_FIRST) };
        now.check(symbol, code)?;
        let start = start.expose_provenance() as u64;
        lock(&self.tables).plain.insert(start, size_bytes);
        Ok(DevicePtr(start))
    }

    /// # Safety
    /// As for [`Driver::free_device`](crate::Driver::free_device).
    pub(super) unsafe fn free(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
    ) -> Result<(), DriverError> {
        let Some(size_bytes) = lock(&self.tables).plain.remove(&start.0) else {
            return Err(invalid(now.call, format!("{start:?} was not allocated")));
        };
        // SAFETY: from `allocate`; the caller promises that nothing uses it.
        let code = unsafe { (now.api.aclrtFree)(pointer(start.0)) };
        let freed = now.check("aclrtFree", code);
        if freed.is_err() {
            lock(&self.tables).plain.insert(start.0, size_bytes);
        }
        freed
    }

    /// Refuses bytes that begin in memory or addresses of this driver and leave what is mapped.
    /// Of all other addresses it knows nothing: others in the process allocate as well.
    pub(super) fn check(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        let tables = lock(&self.tables);
        if !tables.knows(start.0) || tables.is_valid(start.0, size_bytes) {
            return Ok(());
        }
        Err(invalid(now.call, format!("{start:?} + {size_bytes} bytes is not mapped")))
    }

    /// Whether all the bytes are memory that this driver gave out.
    pub(super) fn is_valid(&self, start: DevicePtr, size_bytes: u64) -> bool {
        lock(&self.tables).is_valid(start.0, size_bytes)
    }

    /// Gives everything back, as far as the device still answers.
    ///
    /// # Safety
    /// All work that uses any of it has completed, and none is submitted any more.
    pub(super) unsafe fn free_all(&self, now: &Current<'_>) {
        let (mappings, plain, chunks, ranges) = {
            let tables = lock(&self.tables);
            (
                tables.mappings.iter().map(|(&at, m)| (at, m.size_bytes)).collect::<Vec<_>>(),
                tables.plain.keys().copied().collect::<Vec<_>>(),
                tables.chunks.keys().copied().collect::<Vec<_>>(),
                tables.ranges.iter().map(|(&at, &size)| (at, size)).collect::<Vec<_>>(),
            )
        };
        let range = |(at, size_bytes)| VaRange { start: DevicePtr(at), size_bytes };
        // Nobody is left to be told of failures: the process's end frees what stays.
        for mapping in mappings {
            // SAFETY: the caller's promise.
            let _ = unsafe { self.unmap(now, range(mapping)) };
        }
        for start in plain {
            // SAFETY: the caller's promise.
            let _ = unsafe { self.free(now, DevicePtr(start)) };
        }
        for chunk in chunks {
            let _ = self.release_chunk(now, ChunkHandle(chunk));
        }
        for reserved in ranges {
            let _ = self.free_range(now, range(reserved));
        }
    }
}

impl Tables {
    fn is_reserved(&self, start: u64, size_bytes: u64) -> bool {
        let reserved = self.ranges.range(..=start).next_back();
        reserved.is_some_and(|(&from, &whole)| contains(from, whole, start, size_bytes))
    }

    fn is_mapped(&self, start: u64, size_bytes: u64) -> bool {
        let Some(end) = start.checked_add(size_bytes) else { return false };
        let mut at = start;
        while at < end {
            match self.mappings.range(..=at).next_back() {
                Some((from, mapping)) if at < from + mapping.size_bytes => {
                    at = from + mapping.size_bytes;
                }
                _ => return false,
            }
        }
        true
    }

    fn knows(&self, start: u64) -> bool {
        let plain = self.plain.range(..=start).next_back();
        self.is_reserved(start, 1) || plain.is_some_and(|(&at, &size)| contains(at, size, start, 1))
    }

    fn is_valid(&self, start: u64, size_bytes: u64) -> bool {
        let plain = self.plain.range(..=start).next_back();
        self.is_mapped(start, size_bytes)
            || plain.is_some_and(|(&at, &whole)| contains(at, whole, start, size_bytes))
    }
}

/// Whether `from + size_bytes` holds all of `start + part_bytes`.
pub(super) fn contains(from: u64, size_bytes: u64, start: u64, part_bytes: u64) -> bool {
    start >= from && part_bytes <= size_bytes && start - from <= size_bytes - part_bytes
}
