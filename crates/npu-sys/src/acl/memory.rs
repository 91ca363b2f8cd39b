//! Device memory: addresses, chunks, mappings, and memory that comes with its address.

use std::sync::Mutex;

use crate::acl::current::Current;
use crate::acl::failure;
use crate::acl::sys::{self, aclrtDrvMemHandle, aclrtMemLocation, aclrtPhysicalMemProp};
use crate::acl::{pointer, size};
use crate::drop_failures;
use crate::error::DriverError;
use crate::sync::lock;
use crate::table::{DeviceTable, Rules};
use crate::types::{ChunkHandle, DevicePtr, VaRange};

/// Sizes of huge pages on all devices up to now, for libraries that cannot be asked.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// What one driver holds of its device's memory.
#[derive(Debug)]
pub(super) struct DeviceMemory {
    rules: Rules,
    table: Mutex<Table>,
}

type Table = DeviceTable<(), aclrtDrvMemHandle, ()>;

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
        let rules = Rules { granularity_bytes, invalid_code: failure::INVALID };
        DeviceMemory { rules, table: Mutex::new(DeviceTable::new(rules)) }
    }

    pub(super) fn granularity_bytes(&self) -> u64 {
        self.rules.granularity_bytes
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
        let range = self.reserve(now, self.rules.granularity_bytes);
        range.and_then(|range| self.free_range(now, range)).err()
    }

    pub(super) fn reserve(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<VaRange, DriverError> {
        let symbol = "aclrtReserveMemAddress";
        let reserve = now.need(symbol, now.api.aclrtReserveMemAddress)?;
        self.rules.check_size(now.call, size_bytes)?;
        let mut start = std::ptr::null_mut();
        let anywhere = std::ptr::null_mut();
        let flags = sys::RESERVE_HUGE_PAGES;
        // SAFETY: the library writes one pointer; all else are numbers.
        let code = unsafe { reserve(&mut start, size(size_bytes), 0, anywhere, flags) };
        now.check(symbol, code)?;
        let start = DevicePtr(start.expose_provenance() as u64);
        let range = VaRange { start, size_bytes };
        lock(&self.table).reserved(range, ());
        Ok(range)
    }

    pub(super) fn free_range(&self, now: &Current<'_>, range: VaRange) -> Result<(), DriverError> {
        let symbol = "aclrtReleaseMemAddress";
        let release = now.need(symbol, now.api.aclrtReleaseMemAddress)?;
        let mut table = lock(&self.table);
        table.check_free_range(range)?;
        // SAFETY: the start of a reserved range, in which nothing is mapped; the lock keeps both
        // so.
        let code = unsafe { release(pointer(range.start.0)) };
        now.check(symbol, code)?;
        table.freed(range);
        Ok(())
    }

    pub(super) fn create_chunk(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<ChunkHandle, DriverError> {
        let symbol = "aclrtMallocPhysical";
        let allocate = now.need(symbol, now.api.aclrtMallocPhysical)?;
        self.rules.check_size(now.call, size_bytes)?;
        let mut handle = aclrtDrvMemHandle::NULL;
        let properties = properties(now.index);
        // Without the lock: it can take as long as clearing the memory does.
        // SAFETY: the library writes one handle and reads the properties during the call.
        let code = unsafe { allocate(&mut handle, size(size_bytes), &properties, 0) };
        now.check(symbol, code)?;
        Ok(lock(&self.table).created(size_bytes, handle))
    }

    pub(super) fn release_chunk(
        &self,
        now: &Current<'_>,
        handle: ChunkHandle,
    ) -> Result<(), DriverError> {
        let symbol = "aclrtFreePhysical";
        let free = now.need(symbol, now.api.aclrtFreePhysical)?;
        let chunk = {
            let mut table = lock(&self.table);
            table.check_release(handle)?;
            table.released(handle)
        };
        // Without the lock, as above.
        // SAFETY: the handle is from `create_chunk`; taken out of the table, it is only here.
        let code = unsafe { free(chunk.held) };
        let freed = now.check(symbol, code);
        if freed.is_err() {
            lock(&self.table).kept(handle, chunk);
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
        let mut table = lock(&self.table);
        let chunk = *table.check_map(range, handle)?;
        let (start, size) = (pointer(range.start.0), size(range.size_bytes));
        // SAFETY: reserved addresses with nothing behind them, and a whole chunk of their length;
        // the lock keeps them so.
        let code = unsafe { map(start, size, 0, chunk, 0) };
        now.check(symbol, code)?;
        table.mapped(range, handle, ());
        Ok(())
    }

    /// The device that owns memory has access as soon as it is mapped; the library's own call is
    /// for other devices.
    pub(super) fn check_access(&self, range: VaRange) -> Result<(), DriverError> {
        lock(&self.table).check_access(range)
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
        let mut table = lock(&self.table);
        table.check_unmap(range)?;
        // SAFETY: the start of a mapping; the caller promises that nothing uses it.
        let code = unsafe { unmap(pointer(range.start.0)) };
        now.check(symbol, code)?;
        table.unmapped(range);
        Ok(())
    }

    pub(super) fn allocate(
        &self,
        now: &Current<'_>,
        size_bytes: u64,
    ) -> Result<DevicePtr, DriverError> {
        self.rules.check_size(now.call, size_bytes)?;
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
        lock(&self.table).allocations.insert(start, size_bytes, ());
        Ok(DevicePtr(start))
    }

    /// # Safety
    /// As for [`Driver::free_device`](crate::Driver::free_device).
    pub(super) unsafe fn free(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
    ) -> Result<(), DriverError> {
        let size_bytes = {
            let mut table = lock(&self.table);
            let size_bytes = table.check_free_device(start)?;
            table.allocations.remove(start.0);
            size_bytes
        };
        // SAFETY: from `allocate`; the caller promises that nothing uses it.
        let code = unsafe { (now.api.aclrtFree)(pointer(start.0)) };
        now.check("aclrtFree", code).inspect_err(|_| {
            lock(&self.table).allocations.insert(start.0, size_bytes, ());
        })
    }

    /// Refuses bytes that begin in memory or addresses of this driver and leave what is mapped.
    /// Of all other addresses it knows nothing: others in the process allocate as well.
    pub(super) fn check(
        &self,
        now: &Current<'_>,
        start: DevicePtr,
        size_bytes: u64,
    ) -> Result<(), DriverError> {
        let table = lock(&self.table);
        let is_ours = table.ranges.holder(start.0, 1).is_some()
            || table.allocations.holder(start.0, 1).is_some();
        if !is_ours || is_valid(&table, start, size_bytes) {
            return Ok(());
        }
        Err(failure::invalid(now.call, format!("{start:?} + {size_bytes} bytes is not mapped")))
    }

    /// Whether all the bytes are memory that this driver gave out.
    pub(super) fn is_valid(&self, start: DevicePtr, size_bytes: u64) -> bool {
        is_valid(&lock(&self.table), start, size_bytes)
    }

    /// Gives everything back, as far as the device still answers.
    ///
    /// # Safety
    /// All work that uses any of it has completed, and none is submitted any more.
    pub(super) unsafe fn free_all(&self, now: &Current<'_>) {
        let (mappings, allocations, chunks, ranges) = {
            let table = lock(&self.table);
            let range = |start, size_bytes| VaRange { start: DevicePtr(start), size_bytes };
            (
                Vec::from_iter(table.mappings.iter().map(|(at, it)| range(at, it.size_bytes))),
                Vec::from_iter(table.allocations.iter().map(|(at, _)| DevicePtr(at))),
                Vec::from_iter(table.chunks().map(|(handle, _)| handle)),
                Vec::from_iter(table.ranges.iter().map(|(at, it)| range(at, it.size_bytes))),
            )
        };
        for range in mappings {
            // SAFETY: the caller's promise.
            let unmapped = unsafe { self.unmap(now, range) };
            drop_failures::note(unmapped);
        }
        for start in allocations {
            // SAFETY: the caller's promise.
            let freed = unsafe { self.free(now, start) };
            drop_failures::note(freed);
        }
        for chunk in chunks {
            drop_failures::note(self.release_chunk(now, chunk));
        }
        for range in ranges {
            drop_failures::note(self.free_range(now, range));
        }
    }
}

/// Whether all the bytes are memory that was given out.
fn is_valid(table: &Table, start: DevicePtr, size_bytes: u64) -> bool {
    table.mappings.covers(start.0, size_bytes, |_| true)
        || table.allocations.holder(start.0, size_bytes).is_some()
}
