//! Who holds which memory and addresses. Every call is checked before anything changes.

use crate::error::DriverError;
use crate::extents::{Extent, Extents};
use crate::host::config::{HostConfig, Mode};
use crate::host::failure::{self, invalid, out_of_memory, system};
use crate::host::ledger::Ledger;
use crate::host::mappings::Mappings;
use crate::host::physical::Physical;
use crate::host::vm::{AddressSpace, Reservation};
use crate::pages::{self, HostPages};
use crate::table::{Chunk, DeviceTable, Mapping, Rules};
use crate::types::{ChunkHandle, DevicePtr, HostPtr, VaRange};

/// All memory of one device and what is pinned for it.
#[derive(Debug)]
pub(super) struct Memory {
    capacity_bytes: u64,
    page_bytes: u64,
    host_limit_bytes: Option<u64>,
    touch: bool,
    chunk_bytes: Level,
    pinned_bytes: Level,
    registered_bytes: Level,
    table: DeviceTable<Reservation, Offset, Reach>,
    pinned: Extents<HostPages>,
    registered: Extents<()>,
    addresses: AddressSpace,
    shown: Mappings,
    physical: Physical,
}

/// A running count of bytes, and the most that it was.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    now: u64,
    peak: u64,
}

impl Level {
    fn add(&mut self, size_bytes: u64) {
        self.now += size_bytes;
        self.peak = self.peak.max(self.now);
    }

    fn subtract(&mut self, size_bytes: u64) {
        self.now -= size_bytes;
    }
}

/// Where in the memory file a chunk is.
type Offset = u64;

/// Whether `set_access` was called for a mapping: before it the bytes cannot be reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reach {
    Hidden,
    Shown,
}

impl Memory {
    pub(super) fn new(config: &HostConfig, page_bytes: u64) -> Result<Memory, DriverError> {
        let granularity_bytes = config.granularity_bytes;
        let rules = Rules { granularity_bytes, invalid_code: failure::INVALID };
        Ok(Memory {
            capacity_bytes: config.capacity_bytes,
            page_bytes,
            host_limit_bytes: config.host_limit_bytes,
            // Lockstep devices are often far larger than the machine: their pages come by use.
            touch: config.mode == Mode::Threads,
            chunk_bytes: Level::default(),
            pinned_bytes: Level::default(),
            registered_bytes: Level::default(),
            table: DeviceTable::new(rules),
            pinned: Extents::default(),
            registered: Extents::default(),
            addresses: AddressSpace::new(granularity_bytes),
            shown: Mappings::new(),
            physical: Physical::new(granularity_bytes, config.poison)
                .map_err(|errno| system("new", errno))?,
        })
    }

    pub(super) fn free_bytes(&self) -> u64 {
        self.capacity_bytes - self.chunk_bytes.now
    }

    pub(super) fn reserve(&mut self, size_bytes: u64) -> Result<VaRange, DriverError> {
        let call = "reserve";
        self.table.rules.check_size(call, size_bytes)?;
        let reserved = self.addresses.reserve(size_bytes).map_err(|errno| system(call, errno))?;
        let range = VaRange { start: DevicePtr(reserved.start()), size_bytes };
        self.table.reserved(range, reserved);
        Ok(range)
    }

    pub(super) fn free_range(&mut self, range: VaRange) -> Result<(), DriverError> {
        self.table.check_free_range(range)?;
        self.addresses.give_back(self.table.freed(range));
        Ok(())
    }

    pub(super) fn create_chunk(&mut self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        let call = "create_chunk";
        self.table.rules.check_size(call, size_bytes)?;
        if size_bytes > self.free_bytes() {
            return Err(out_of_memory(call, size_bytes, self.chunk_bytes.now, self.capacity_bytes));
        }
        let offset = self.physical.take(size_bytes).map_err(|errno| system(call, errno))?;
        self.chunk_bytes.add(size_bytes);
        Ok(self.table.created(size_bytes, offset))
    }

    pub(super) fn release_chunk(&mut self, handle: ChunkHandle) -> Result<(), DriverError> {
        let &Chunk { size_bytes, held: offset, .. } = self.table.check_release(handle)?;
        let given = self.physical.give_back(offset, size_bytes);
        given.map_err(|errno| system("release_chunk", errno))?;
        self.table.released(handle);
        self.chunk_bytes.subtract(size_bytes);
        Ok(())
    }

    pub(super) fn map(&mut self, range: VaRange, handle: ChunkHandle) -> Result<(), DriverError> {
        self.table.check_map(range, handle)?;
        self.table.mapped(range, handle, Reach::Hidden);
        Ok(())
    }

    pub(super) fn set_access(&mut self, range: VaRange) -> Result<(), DriverError> {
        self.table.check_access(range)?;
        let parts = self.table.mappings.starting_in(range.start.0, range.size_bytes);
        let hidden = parts.filter(|(_, mapping)| mapping.held.held == Reach::Hidden);
        for start in hidden.map(|(start, _)| start).collect::<Vec<u64>>() {
            self.show(start)?;
        }
        Ok(())
    }

    /// Shows the chunk that is mapped at an address, where nothing is shown yet.
    fn show(&mut self, start: u64) -> Result<(), DriverError> {
        let call = "set_access";
        let Extent { size_bytes, held: Mapping { chunk, .. } } =
            self.table.mappings.get(start).expect("`set_access` found it");
        let (size_bytes, chunk) = (*size_bytes, self.table.chunk(*chunk));
        let offset = chunk.expect("mapped chunks are not released").held;
        let range = VaRange { start: DevicePtr(start), size_bytes };
        let pieces = self.pieces_between(range);
        self.shown.take(call, pieces)?;
        let reserved = self.reservation(range);
        // SAFETY: a mapping that is hidden, so nothing is shown there.
        let shown =
            unsafe { reserved.show(start, size_bytes, self.physical.file(), offset, self.touch) };
        if let Err(errno) = shown {
            self.shown.give_back(pieces);
            return Err(system(call, errno));
        }
        let mapping = self.table.mappings.get_mut(start).expect("seen above");
        mapping.held.held = Reach::Shown;
        Ok(())
    }

    /// The addresses in which a mapping lies.
    fn reservation(&self, range: VaRange) -> &Reservation {
        let holder = self.table.ranges.holder(range.start.0, range.size_bytes);
        &holder.expect("mappings lie in reserved ranges").1.held
    }

    /// How many more mappings the system keeps while memory is shown at a range than while none
    /// is: one for each side on which reserved addresses are cut off.
    fn pieces_between(&self, range: VaRange) -> u64 {
        let is_shown = |mapping: &Extent<Mapping<Reach>>| mapping.held.held == Reach::Shown;
        let mappings = &self.table.mappings;
        let is_joined_before = mappings
            .before(range.start.0)
            .is_some_and(|(at, it)| is_shown(it) && at + it.size_bytes == range.start.0);
        let is_joined_behind = mappings.get(range.end().0).is_some_and(is_shown);
        u64::from(!is_joined_before) + u64::from(!is_joined_behind)
    }

    /// # Safety
    /// As for [`Driver::unmap`](crate::Driver::unmap).
    pub(super) unsafe fn unmap(&mut self, range: VaRange) -> Result<(), DriverError> {
        if self.table.allocations.get(range.start.0).is_some() {
            return Err(invalid("unmap", format!("{range:?} is from allocate_device")));
        }
        // SAFETY: the caller's promise.
        unsafe { self.take_mapping("unmap", range) }
    }

    /// # Safety
    /// As for [`Driver::unmap`](crate::Driver::unmap).
    unsafe fn take_mapping(
        &mut self,
        call: &'static str,
        range: VaRange,
    ) -> Result<(), DriverError> {
        if self.table.check_unmap(range)?.held == Reach::Shown {
            let reserved = self.reservation(range);
            // SAFETY: the caller's promise.
            let hidden = unsafe { reserved.hide(range.start.0, range.size_bytes) };
            hidden.map_err(|errno| system(call, errno))?;
            self.shown.give_back(self.pieces_between(range));
        }
        self.table.unmapped(range);
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
            // SAFETY: nobody knows the addresses.
            unsafe { self.take_mapping(call, range) }?;
            self.free_range(range).map_err(named)?;
            self.release_chunk(chunk).map_err(named)?;
            return Err(named(error));
        }
        self.table.allocations.insert(range.start.0, size_bytes, ());
        Ok(range.start)
    }

    /// # Safety
    /// As for [`Driver::free_device`](crate::Driver::free_device).
    pub(super) unsafe fn free_device(&mut self, start: DevicePtr) -> Result<(), DriverError> {
        let call = "free_device";
        let named = |error| DriverError { call, ..error };
        let size_bytes = self.table.check_free_device(start)?;
        let range = VaRange { start, size_bytes };
        let chunk = self.table.check_unmap(range).map_err(named)?.chunk;
        if self.table.chunk(chunk).is_some_and(|chunk| chunk.mapping_count > 1) {
            return Err(invalid(call, format!("{start:?} is mapped elsewhere too")));
        }
        // SAFETY: the caller's promise.
        unsafe { self.take_mapping(call, range) }?;
        if let Err(error) = self.release_chunk(chunk) {
            let shown = self.map(range, chunk).and_then(|()| self.set_access(range));
            return Err(named(shown.err().unwrap_or(error)));
        }
        self.table.allocations.remove(start.0);
        self.free_range(range).map_err(named)
    }

    pub(super) fn allocate_pinned(&mut self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        let call = "allocate_pinned";
        let size_bytes =
            pages::rounded_up(size_bytes, self.page_bytes).map_err(|text| invalid(call, text))?;
        self.check_host_limit(call, size_bytes)?;
        let pinned = HostPages::untouched(size_bytes).map_err(|errno| system(call, errno))?;
        let start = pinned.start();
        self.pinned.insert(start.0, size_bytes, pinned);
        self.pinned_bytes.add(size_bytes);
        Ok(start)
    }

    pub(super) fn free_pinned(&mut self, start: HostPtr) -> Result<(), DriverError> {
        match self.pinned.remove(start.0) {
            Some(pinned) => self.pinned_bytes.subtract(pinned.size_bytes),
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
        pages::check_whole(start, size_bytes, self.page_bytes)
            .map_err(|text| invalid(call, text))?;
        let is_known = self.registered.overlap(start.0, size_bytes).is_some()
            || self.pinned.overlap(start.0, size_bytes).is_some()
            || self.table.ranges.overlap(start.0, size_bytes).is_some();
        if is_known {
            return Err(invalid(call, format!("{start:?} + {size_bytes} bytes is known already")));
        }
        self.check_host_limit(call, size_bytes)?;
        self.registered.insert(start.0, size_bytes, ());
        self.registered_bytes.add(size_bytes);
        Ok(())
    }

    pub(super) fn unregister_host(&mut self, start: HostPtr) -> Result<(), DriverError> {
        match self.registered.remove(start.0) {
            Some(registered) => self.registered_bytes.subtract(registered.size_bytes),
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
        for level in [&mut self.chunk_bytes, &mut self.pinned_bytes, &mut self.registered_bytes] {
            level.peak = level.now;
        }
    }

    /// The memory part of the ledger, added up afresh from the tables.
    pub(super) fn ledger(&self) -> Ledger {
        let ledger = Ledger {
            capacity_bytes: self.capacity_bytes,
            chunk_bytes: self.table.chunks().map(|(_, chunk)| chunk.size_bytes).sum(),
            chunk_bytes_peak: self.chunk_bytes.peak,
            chunk_count: self.table.chunks().count() as u64,
            mapped_bytes: self.table.mappings.total_bytes(),
            mapping_count: self.table.mappings.count(),
            reserved_bytes: self.table.ranges.total_bytes(),
            range_count: self.table.ranges.count(),
            pinned_bytes: self.pinned.total_bytes(),
            pinned_bytes_peak: self.pinned_bytes.peak,
            registered_bytes: self.registered.total_bytes(),
            registered_bytes_peak: self.registered_bytes.peak,
            ..Ledger::default()
        };
        assert_eq!(ledger.chunk_bytes, self.chunk_bytes.now, "the running count of chunks is off");
        assert_eq!(ledger.pinned_bytes, self.pinned_bytes.now, "the running count of pins is off");
        let registered_bytes = self.registered_bytes.now;
        assert_eq!(ledger.registered_bytes, registered_bytes, "the running count is off");
        ledger
    }

    fn check_host_limit(&self, call: &'static str, size_bytes: u64) -> Result<(), DriverError> {
        let held = self.pinned_bytes.now + self.registered_bytes.now;
        match self.host_limit_bytes {
            Some(limit) if size_bytes > limit - held.min(limit) => {
                Err(out_of_memory(call, size_bytes, held, limit))
            }
            _ => Ok(()),
        }
    }

    fn is_accessible(&self, start: u64, size_bytes: u64) -> bool {
        let is_shown = |mapping: &Mapping<Reach>| mapping.held == Reach::Shown;
        self.table.mappings.covers(start, size_bytes, is_shown)
    }

    fn is_host(&self, start: u64, size_bytes: u64) -> bool {
        self.pinned.holder(start, size_bytes).is_some()
            || self.registered.holder(start, size_bytes).is_some()
    }
}
