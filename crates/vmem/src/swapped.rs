//! Swapped memory: host memory that the device addresses directly.
//!
//! Blocks are slots of the pinned arena, not pins of their own, so that taking one is cheap. They
//! have a budget of their own within the arena's cap, and are counted apart from device memory.
//! Whether an address is in swapped memory is asked of the address, so views need no mark.

use std::collections::BTreeMap;
use std::sync::Arc;

use npu_sys::{DevicePtr, Driver, HostMapping, HostPtr};

use crate::arena::{Arena, Slot, slot_bytes};
use crate::error::MemoryError;
use crate::point::Uses;
use crate::stats::SwappedStats;

/// A piece of swapped memory.
///
/// It is given back with [`SwappedMemory::give_back`]; one that is dropped stays in use.
#[derive(Debug)]
pub struct SwappedBlock {
    slot: Slot,
    address: DevicePtr,
    requested_bytes: u64,
}

impl SwappedBlock {
    /// Where the device reaches it.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Where the host reaches it, and copies do.
    pub fn host(&self) -> HostPtr {
        self.slot.start()
    }

    /// How long it is.
    pub fn size_bytes(&self) -> u64 {
        self.slot.size_bytes()
    }

    /// How many bytes were asked for.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}

/// The swapped memory of one device.
#[derive(Debug)]
pub struct SwappedMemory {
    driver: Arc<dyn Driver>,
    host_mapping: HostMapping,
    limit_bytes: u64,
    /// Live blocks by device address.
    live: BTreeMap<u64, Live>,
    stats: SwappedStats,
}

#[derive(Clone, Copy, Debug)]
struct Live {
    host: HostPtr,
    size_bytes: u64,
}

impl SwappedMemory {
    /// None yet; at most `limit_bytes` will be taken of an arena.
    pub fn new(driver: Arc<dyn Driver>, limit_bytes: u64) -> SwappedMemory {
        SwappedMemory {
            host_mapping: driver.properties().host_mapping,
            driver,
            limit_bytes,
            live: BTreeMap::new(),
            stats: SwappedStats::default(),
        }
    }

    /// Takes a block from `arena`, the same one each time. Its bytes are undefined. Whoever
    /// touches it first, on the device or on the host, waits for the returned uses.
    ///
    /// # Errors
    /// [`HostNotMappable`](MemoryError::HostNotMappable) if the device cannot address host memory;
    /// [`SwappedFull`](MemoryError::SwappedFull) beyond the budget;
    /// [`HostFull`](MemoryError::HostFull) if the arena has no room.
    pub fn take(
        &mut self,
        arena: &mut Arena,
        size_bytes: u64,
    ) -> Result<(SwappedBlock, Uses), MemoryError> {
        if self.host_mapping == HostMapping::Nothing {
            let device = self.driver.properties().name;
            return Err(MemoryError::HostNotMappable { device });
        }
        let used_bytes = self.stats.used_bytes.current;
        let full = MemoryError::SwappedFull {
            requested_bytes: size_bytes,
            used_bytes,
            limit_bytes: self.limit_bytes,
        };
        match slot_bytes(size_bytes) {
            Some(slot_bytes) if slot_bytes <= self.limit_bytes - used_bytes => {}
            _ => return Err(full),
        }
        let (slot, uses) = arena.take(size_bytes)?;
        let address = match arena.device_pointer(&slot) {
            Ok(address) => address,
            Err(error) => {
                arena.give_back(slot, uses);
                return Err(error.into());
            }
        };
        let live = Live { host: slot.start(), size_bytes: slot.size_bytes() };
        let before = self.live.insert(address.0, live);
        assert!(before.is_none(), "two live blocks have one address");
        self.stats.requested_bytes.grow(size_bytes);
        self.stats.used_bytes.grow(slot.size_bytes());
        self.stats.blocks += 1;
        self.stats.allocations += 1;
        Ok((SwappedBlock { slot, address, requested_bytes: size_bytes }, uses))
    }

    /// Gives a block back. It is reused only after `uses`.
    pub fn give_back(&mut self, arena: &mut Arena, block: SwappedBlock, uses: Uses) {
        let live = self.live.remove(&block.address.0);
        assert!(live.is_some(), "the block was taken from another swapped memory");
        self.stats.requested_bytes.shrink(block.requested_bytes);
        self.stats.used_bytes.shrink(block.slot.size_bytes());
        self.stats.blocks -= 1;
        arena.give_back(block.slot, uses);
    }

    /// Whether `address` is in swapped memory: at the start of a live block or anywhere in it.
    pub fn is_swapped(&self, address: DevicePtr) -> bool {
        self.find(address).is_some()
    }

    /// Where the host reaches `address`, if that is in swapped memory.
    pub fn host_address(&self, address: DevicePtr) -> Option<HostPtr> {
        self.find(address).map(|(start, live)| live.host.offset(address.0 - start))
    }

    /// The counters.
    pub fn stats(&self) -> SwappedStats {
        self.stats
    }

    /// Starts a new measurement of the counters' peaks.
    pub fn reset_peaks(&mut self) {
        self.stats.reset_peaks();
    }

    /// The budget.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    fn find(&self, address: DevicePtr) -> Option<(u64, Live)> {
        let (&start, &live) = self.live.range(..=address.0).next_back()?;
        (address.0 - start < live.size_bytes).then_some((start, live))
    }
}
