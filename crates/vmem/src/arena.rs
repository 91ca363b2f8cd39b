//! The pinned host arena: the slots that hold blocks' bytes while they are away.
//!
//! Pinning is slow, so memory is pinned in large regions and slots are carved from them. A region
//! is huge pages of ours, touched by several threads and then registered with the driver in one
//! call. The driver allocates it where it cannot register, or where copies of others may use the
//! device's address only of what it allocated. The cap is on pinned bytes.
//!
//! A region is a multiple of the slot that it is made for, so slots of one size leave no rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use npu_sys::devices::HostMemory;
use npu_sys::{
    DeviceProperties, DevicePtr, Driver, DriverError, ErrorKind, HostMapping, HostPtr, Touching,
    page_bytes,
};

use crate::carver::{EmptyRegion, PieceId};
use crate::error::{HostShortage, MemoryError};
use crate::point::{Site, Uses};
use crate::stats::Peak;
use crate::streams::Streams;

use self::growth::Growth;
use self::region::{PinError, Pinning, Region};
use self::slots::{Carved, Slots};

mod growth;
mod region;
mod slots;

/// Slots start at multiples of this, for the copy engines' sake, or of a larger page.
const SLOT_BYTES: u64 = 4096;

/// Regions are of about this size unless asked otherwise.
const REGION_BYTES: u64 = 256 << 20;

/// Where regions grow, one is at most this part of what is pinned: so much may be too much.
const GROWTH_DIVISOR: u64 = 2;

/// Settings of an [`Arena`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// The cap on pinned bytes.
    pub limit_bytes: u64,
    /// Memory is pinned in regions of about this size: the largest multiple of the slot that
    /// needs it, or one slot if that is larger.
    pub region_bytes: u64,
    /// Regions are half of what is pinned once that is more than [`region_bytes`], up to
    /// this size: a region of gigabytes is ready three times as fast for its size as one of a few
    /// hundred megabytes. 0 for regions that are all alike, as they are once the host is short.
    ///
    /// [`region_bytes`]: ArenaConfig::region_bytes
    pub largest_region_bytes: u64,
    /// A background thread makes the next region ready while fewer free bytes than this are left.
    /// 0 for none: memory is then pinned only in the calls that need it.
    pub grow_ahead_bytes: u64,
    /// A background thread makes so much ready from the start, within the cap; 0 for none.
    pub initial_bytes: u64,
    /// The budget of swapped memory, within the cap.
    pub swapped_limit_bytes: u64,
    /// The most threads that touch the pages of a region; 0 for as many as help.
    pub touch_threads: usize,
}

impl ArenaConfig {
    /// A cap of `limit_bytes`, all of which may be swapped memory, and no background thread.
    pub fn new(limit_bytes: u64) -> ArenaConfig {
        ArenaConfig {
            limit_bytes,
            region_bytes: REGION_BYTES,
            largest_region_bytes: 0,
            grow_ahead_bytes: 0,
            initial_bytes: 0,
            swapped_limit_bytes: limit_bytes,
            touch_threads: 0,
        }
    }
}

/// A place for the bytes of one block.
///
/// It is given back with [`Arena::give_back`]; one that is dropped stays in use.
#[derive(Debug)]
pub struct Slot {
    piece: PieceId,
    start: HostPtr,
    size_bytes: u64,
}

impl Slot {
    /// Where it is.
    pub fn start(&self) -> HostPtr {
        self.start
    }

    /// How long it is.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}

/// The pinned host arena of one device.
#[derive(Debug)]
pub struct Arena {
    driver: Arc<dyn Driver>,
    config: ArenaConfig,
    pinning: Pinning,
    slots: Slots,
    /// By first address.
    regions: BTreeMap<u64, Region>,
    growth: Option<Growth>,
    /// No region is made ready ahead until a call needs memory and gets it: one failed where
    /// nobody saw it, or users have what they need.
    growth_stopped: bool,
    pinned_bytes: Peak,
    used_bytes: Peak,
}

impl Arena {
    /// An empty arena; memory is pinned when it is needed, or begins to be at once.
    pub fn new(driver: Arc<dyn Driver>, config: ArenaConfig) -> Arena {
        let DeviceProperties { numa_node, host_mapping, .. } = driver.properties();
        let touching = Touching { numa_node, threads: config.touch_threads };
        // Swapped memory is for all that frameworks do with it, where any can be.
        let registers = host_mapping != HostMapping::AllocatedForAll;
        let pinning = Pinning { touching, registers };
        let initial_bytes = config.initial_bytes.min(config.limit_bytes);
        let initial_bytes = initial_bytes / unit_bytes() * unit_bytes();
        let begins = initial_bytes > 0;
        let growth = begins.then(|| Growth::start(&driver, initial_bytes, pinning)).flatten();
        Arena {
            driver,
            config,
            pinning,
            slots: Slots::default(),
            regions: BTreeMap::new(),
            growth,
            growth_stopped: false,
            pinned_bytes: Peak::default(),
            used_bytes: Peak::default(),
        }
    }

    /// Takes a slot. Whoever writes it first waits for the returned uses.
    ///
    /// # Errors
    /// [`HostFull`](MemoryError::HostFull) if the cap or the host leaves no room.
    pub fn take(&mut self, size_bytes: u64) -> Result<(Slot, Uses), MemoryError> {
        let requested_bytes = size_bytes;
        let Some(size_bytes) = slot_bytes(requested_bytes) else {
            return Err(self.full(requested_bytes, None));
        };
        let (piece, start, uses) = self.place(size_bytes, requested_bytes)?;
        self.used_bytes.grow(size_bytes);
        self.grow_ahead(size_bytes);
        Ok((Slot { piece, start: HostPtr(start), size_bytes }, uses))
    }

    /// Finds memory for a slot: in this order, so that few have to wait for its last users.
    fn place(&mut self, size_bytes: u64, requested_bytes: u64) -> Result<Carved, MemoryError> {
        let ready = self.slots.carve(size_bytes).or_else(|| self.slots.take_waiting(size_bytes));
        if let Some(carved) = ready {
            return Ok(carved);
        }
        if self.needs_growth(size_bytes) {
            self.finish_growth(Some(size_bytes));
        }
        if let Some(carved) = self.slots.take_of_others(size_bytes) {
            return Ok(carved);
        }
        match self.grow(size_bytes, requested_bytes) {
            Ok(()) => Ok(self.slots.carve(size_bytes).expect("a new region holds the slot")),
            Err(error) => self.slots.take_any(size_bytes).ok_or(error),
        }
    }

    /// Gives a slot back. It is reused only after `uses`.
    pub fn give_back(&mut self, slot: Slot, uses: Uses) {
        self.used_bytes.shrink(slot.size_bytes);
        self.slots.give_back(slot.piece, slot.start.0, slot.size_bytes, uses);
    }

    /// Pins as much as is missing until `size_bytes` are free, in one region: that leaves the
    /// least unused, whatever the sizes of the slots, and takes the least time.
    ///
    /// # Errors
    /// [`HostFull`](MemoryError::HostFull) if the cap or the host leaves no room.
    pub fn reserve(&mut self, size_bytes: u64) -> Result<(), MemoryError> {
        self.finish_growth(None);
        let missing_bytes = size_bytes.saturating_sub(self.free_bytes());
        let Some(region_bytes) = missing_bytes
            .checked_next_multiple_of(unit_bytes())
            .filter(|&region_bytes| region_bytes <= self.room_bytes())
        else {
            return Err(self.full(size_bytes, None));
        };
        if region_bytes > 0 {
            let pinned = Region::pin(&*self.driver, region_bytes, self.pinning);
            let region =
                pinned.map_err(|error| self.not_pinned(error, size_bytes, region_bytes))?;
            self.add(region);
        }
        Ok(())
    }

    /// The address by which the device reaches the slot.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn device_pointer(&self, slot: &Slot) -> Result<DevicePtr, DriverError> {
        let before = self.regions.range(..=slot.start.0).next_back();
        let (&start, _) = before.expect("a slot lies in a region");
        let device = self.driver.device_pointer(HostPtr(start))?;
        Ok(device.offset(slot.start.0 - start))
    }

    /// Bytes in slots.
    pub fn used_bytes(&self) -> Peak {
        self.used_bytes
    }

    /// Pinned bytes. A region that is only on its way does not count.
    pub fn pinned_bytes(&self) -> Peak {
        self.pinned_bytes
    }

    /// Pinned bytes in no slot.
    pub fn free_bytes(&self) -> u64 {
        self.pinned_bytes.current - self.used_bytes.current
    }

    /// The cap on pinned bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.config.limit_bytes
    }

    /// Unpins regions that hold no slot, waiting on the host for their last users.
    ///
    /// # Errors
    /// If the driver fails; what could not be unpinned stays.
    pub fn trim(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        let mut result = self.discard_growth();
        for EmptyRegion { start, uses, .. } in self.slots.remove_empty_regions() {
            let mut region = self.regions.remove(&start).expect("a region is one of these");
            let freed = streams
                .wait_host(&uses, Site::UnpinAfterUse)
                // SAFETY: these are the uses of its slots, noted when they were given back.
                .and_then(|()| unsafe { region.unpin(&*self.driver) });
            self.pinned_bytes.shrink(region.size_bytes());
            if let Err(error) = freed {
                self.restore(region, uses);
                result = result.and(Err(error));
            }
        }
        self.growth_stopped = false;
        result
    }

    /// Gives back what is on its way, and makes no more ready until a call finds too little.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn stop_growing(&mut self) -> Result<(), DriverError> {
        self.growth_stopped = true;
        self.discard_growth()
    }

    /// Unpins everything. All work on the device is complete.
    pub(crate) fn dismantle(&mut self) -> Result<(), DriverError> {
        let mut result = self.discard_growth();
        for (_, mut region) in std::mem::take(&mut self.regions) {
            self.pinned_bytes.shrink(region.size_bytes());
            // SAFETY: the device is idle.
            let mut unpin = || unsafe { region.unpin(&*self.driver) };
            // A call that failed once may work now.
            result = result.and(unpin().or_else(|_| unpin()));
        }
        result
    }

    /// Bytes that may still be pinned. What is on its way counts as pinned.
    fn room_bytes(&self) -> u64 {
        let coming_bytes = self.growth.as_ref().map_or(0, Growth::size_bytes);
        self.config.limit_bytes - self.pinned_bytes.current - coming_bytes
    }

    /// The size of a region made for a slot, beside others of `beside_bytes` that count as pinned
    /// as well: a multiple of it. `None` if the cap forbids one.
    fn region_bytes(&self, size_bytes: u64, beside_bytes: u64) -> Option<u64> {
        let grown_bytes = (self.pinned_bytes.current + beside_bytes) / GROWTH_DIVISOR;
        let grown_bytes = grown_bytes.min(self.config.largest_region_bytes);
        let wanted = (self.config.region_bytes.max(grown_bytes) / size_bytes).max(1);
        let slots = wanted.min((self.room_bytes() - beside_bytes) / size_bytes);
        (slots > 0).then(|| slots * size_bytes)
    }

    fn grow(&mut self, size_bytes: u64, requested_bytes: u64) -> Result<(), MemoryError> {
        let Some(region_bytes) = self.region_bytes(size_bytes, 0) else {
            return Err(self.full(requested_bytes, None));
        };
        let mut pinned = Region::pin(&*self.driver, region_bytes, self.pinning);
        // The host has less than the cap promised: perhaps it has just enough.
        if pinned.as_ref().is_err_and(PinError::is_short) && region_bytes > size_bytes {
            self.config.largest_region_bytes = 0;
            pinned = Region::pin(&*self.driver, size_bytes, self.pinning);
        }
        let region = pinned.map_err(|error| self.not_pinned(error, requested_bytes, size_bytes))?;
        self.growth_stopped = false;
        self.add(region);
        Ok(())
    }

    /// Starts to make the next region ready if few bytes are left for slots like this one.
    fn grow_ahead(&mut self, size_bytes: u64) {
        let enough = self.free_bytes() >= self.config.grow_ahead_bytes;
        if !enough && self.growth.is_none() {
            self.start_growth(size_bytes, 0);
        }
    }

    fn start_growth(&mut self, size_bytes: u64, beside_bytes: u64) {
        if self.config.grow_ahead_bytes == 0 || self.growth_stopped {
            return;
        }
        let Some(region_bytes) = self.region_bytes(size_bytes, beside_bytes) else { return };
        self.growth = Growth::start(&self.driver, region_bytes, self.pinning);
    }

    /// Whether a slot that has no place must wait for the region on its way: it will hold it, or
    /// leaves no room under the cap for another.
    fn needs_growth(&self, size_bytes: u64) -> bool {
        let holds = |growth: &Growth| growth.size_bytes() >= size_bytes;
        self.growth.as_ref().is_some_and(|it| holds(it) || self.room_bytes() < size_bytes)
    }

    /// Takes in the region on its way, waiting for it. Where slots of `size_bytes` wait for it,
    /// the next one is touched while the driver pins this one.
    fn finish_growth(&mut self, size_bytes: Option<u64>) {
        let Some(growth) = self.growth.take() else { return };
        let region_bytes = growth.size_bytes();
        let ready = growth.finish();
        if let (Some(_), Some(size_bytes)) = (&ready, size_bytes) {
            self.start_growth(size_bytes, region_bytes);
        }
        match ready.map(|ready| ready.pin(&*self.driver)) {
            Some(Ok(region)) => self.add(region),
            Some(Err(_)) | None => {
                self.growth_stopped = true;
                self.config.largest_region_bytes = 0;
            }
        }
    }

    /// Gives back the region on its way.
    fn discard_growth(&mut self) -> Result<(), DriverError> {
        let ready = self.growth.take().and_then(Growth::finish);
        ready.map_or(Ok(()), |ready| ready.discard(&*self.driver))
    }

    fn add(&mut self, region: Region) {
        self.pinning.registers &= region.is_registered();
        self.restore(region, Uses::default());
    }

    /// Makes all of a region free, after `uses`.
    fn restore(&mut self, region: Region, uses: Uses) {
        let (start, size_bytes) = (region.start(), region.size_bytes());
        self.pinned_bytes.grow(size_bytes);
        assert!(self.pinned_bytes.current <= self.config.limit_bytes, "the cap holds");
        self.slots.add_region(start.0, size_bytes, uses);
        self.regions.insert(start.0, region);
    }

    fn full(&self, requested_bytes: u64, shortage: Option<Box<HostShortage>>) -> MemoryError {
        MemoryError::HostFull {
            requested_bytes,
            used_bytes: self.used_bytes.current,
            limit_bytes: self.config.limit_bytes,
            shortage,
        }
    }

    /// The error for a region of `tried_bytes` that was not pinned.
    fn not_pinned(&self, error: PinError, requested_bytes: u64, tried_bytes: u64) -> MemoryError {
        match error {
            PinError::Driver(error) if error.kind != ErrorKind::OutOfMemory => error.into(),
            short => {
                let reason = short.to_string();
                let shortage = HostShortage { tried_bytes, reason, host: HostMemory::read() };
                self.full(requested_bytes, Some(Box::new(shortage)))
            }
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // Nobody used a region that is on its way, so it can go even if the others cannot.
        let _ = self.discard_growth();
    }
}

/// The size of a slot for `size_bytes`, if there can be one.
pub(crate) fn slot_bytes(size_bytes: u64) -> Option<u64> {
    size_bytes.max(1).checked_next_multiple_of(unit_bytes())
}

fn unit_bytes() -> u64 {
    SLOT_BYTES.max(page_bytes())
}
