//! The pinned host arena: the slots that hold blocks' bytes while they are away.
//!
//! Pinning is slow, so memory is pinned in large regions and slots are carved from them. The cap
//! is on pinned bytes.

use std::sync::Arc;

use npu_sys::{DevicePtr, Driver, DriverError, ErrorKind, HostPtr};

use crate::carver::{Carver, PieceId};
use crate::error::MemoryError;
use crate::point::{Site, Uses};
use crate::stats::Peak;
use crate::streams::Streams;

/// Slots start at multiples of this, for the copy engines' sake.
const SLOT_BYTES: u64 = 4096;

/// Regions are of about this size unless asked otherwise.
const REGION_BYTES: u64 = 256 << 20;

/// Settings of an [`Arena`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArenaConfig {
    /// The cap on pinned bytes.
    pub limit_bytes: u64,
    /// Memory is pinned in regions of about this size.
    pub region_bytes: u64,
    /// A background thread pins the next region while fewer free bytes than this are left.
    /// 0 for none: memory is then pinned only in the calls that need it.
    pub grow_ahead_bytes: u64,
    /// The budget of swapped memory, within the cap.
    pub swapped_limit_bytes: u64,
}

impl ArenaConfig {
    /// A cap of `limit_bytes`, all of which may be swapped memory, and no background thread.
    pub fn new(limit_bytes: u64) -> ArenaConfig {
        ArenaConfig {
            limit_bytes,
            region_bytes: REGION_BYTES,
            grow_ahead_bytes: 0,
            swapped_limit_bytes: limit_bytes,
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
    carver: Carver,
    regions: Vec<(HostPtr, u64)>,
    pinned_bytes: Peak,
    used_bytes: Peak,
}

impl Arena {
    /// An empty arena; memory is pinned when it is needed.
    pub fn new(driver: Arc<dyn Driver>, config: ArenaConfig) -> Arena {
        Arena {
            driver,
            config,
            carver: Carver::default(),
            regions: Vec::new(),
            pinned_bytes: Peak::default(),
            used_bytes: Peak::default(),
        }
    }

    /// Takes a slot. Whoever writes it first waits for the returned uses.
    ///
    /// # Errors
    /// [`HostFull`](MemoryError::HostFull) if the cap or the host leaves no room.
    pub fn take(&mut self, size_bytes: u64) -> Result<(Slot, Uses), MemoryError> {
        let full = MemoryError::HostFull {
            requested_bytes: size_bytes,
            used_bytes: self.used_bytes.current,
            limit_bytes: self.config.limit_bytes,
        };
        let Some(size_bytes) = slot_bytes(size_bytes) else { return Err(full) };
        let carved = match self.carver.carve(0, size_bytes) {
            Some(carved) => carved,
            None => {
                self.grow(size_bytes, full)?;
                self.carver.carve(0, size_bytes).expect("a new region holds the slot")
            }
        };
        let (piece, start, uses) = carved;
        self.used_bytes.grow(size_bytes);
        Ok((Slot { piece, start: HostPtr(start), size_bytes }, uses))
    }

    /// Gives a slot back. It is reused only after `uses`.
    pub fn give_back(&mut self, slot: Slot, uses: Uses) {
        self.used_bytes.shrink(slot.size_bytes);
        self.carver.give_back(slot.piece, uses);
    }

    /// The address by which the device reaches the slot.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn device_pointer(&self, slot: &Slot) -> Result<DevicePtr, DriverError> {
        let region = self
            .regions
            .iter()
            .find(|(start, size_bytes)| (start.0..start.0 + size_bytes).contains(&slot.start.0))
            .expect("a slot lies in a region");
        let start = self.driver.device_pointer(region.0)?;
        Ok(start.offset(slot.start.0 - region.0.0))
    }

    /// Bytes in slots.
    pub fn used_bytes(&self) -> Peak {
        self.used_bytes
    }

    /// Pinned bytes.
    pub fn pinned_bytes(&self) -> Peak {
        self.pinned_bytes
    }

    /// The cap on pinned bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.config.limit_bytes
    }

    fn grow(&mut self, size_bytes: u64, full: MemoryError) -> Result<(), MemoryError> {
        let room_bytes = self.config.limit_bytes - self.pinned_bytes.current;
        if size_bytes > room_bytes {
            return Err(full);
        }
        let wanted_bytes = self.config.region_bytes.next_multiple_of(SLOT_BYTES).max(size_bytes);
        let room_bytes = room_bytes / SLOT_BYTES * SLOT_BYTES;
        let mut region_bytes = wanted_bytes.min(room_bytes);
        let mut pinned = self.driver.allocate_pinned(region_bytes);
        let is_full = |result: &Result<HostPtr, DriverError>| {
            result.as_ref().is_err_and(|error| error.kind == ErrorKind::OutOfMemory)
        };
        // The host has less than the cap promised: perhaps it has just enough.
        if is_full(&pinned) && region_bytes > size_bytes {
            region_bytes = size_bytes;
            pinned = self.driver.allocate_pinned(region_bytes);
        }
        if is_full(&pinned) {
            return Err(full);
        }
        let start = pinned?;
        self.regions.push((start, region_bytes));
        self.pinned_bytes.grow(region_bytes);
        self.carver.add_region(0, start.0, region_bytes);
        Ok(())
    }

    /// Unpins regions that hold no slot, waiting on the host for their last users.
    ///
    /// # Errors
    /// If the driver fails; what could not be unpinned stays.
    pub fn trim(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        let mut result = Ok(());
        for (start, size_bytes, uses) in self.carver.remove_empty_regions() {
            let freed = streams
                .wait_host(&uses, Site::ReleaseAfterUse)
                .and_then(|()| self.unpin(HostPtr(start)));
            match freed {
                Ok(()) => {
                    self.regions.retain(|region| region.0 != HostPtr(start));
                    self.pinned_bytes.shrink(size_bytes);
                }
                Err(error) => {
                    self.carver.add_region(0, start, size_bytes);
                    result = result.and(Err(error));
                }
            }
        }
        result
    }

    /// Unpins everything. All work on the device is complete.
    pub(crate) fn dismantle(&mut self) -> Result<(), DriverError> {
        let mut result = Ok(());
        for (start, _) in std::mem::take(&mut self.regions) {
            // A call that failed once may work now.
            result = result.and(self.unpin(start).or_else(|_| self.unpin(start)));
        }
        result
    }

    fn unpin(&self, start: HostPtr) -> Result<(), DriverError> {
        // SAFETY: `trim` waited for all uses of the region's slots, which are noted when slots
        // are given back; `dismantle` runs when the device is idle.
        unsafe { self.driver.free_pinned(start) }
    }
}

/// The size of a slot for `size_bytes`, if there can be one.
pub(crate) fn slot_bytes(size_bytes: u64) -> Option<u64> {
    size_bytes.max(1).checked_next_multiple_of(SLOT_BYTES)
}
