//! Streams, pool and arena of one device, taken apart in the right order.

use std::sync::Arc;

use npu_sys::{Driver, DriverError};

use crate::arena::{Arena, ArenaConfig};
use crate::error::MemoryError;
use crate::point::{Site, StreamId, Uses};
use crate::pool::{Pool, PoolConfig};
use crate::streams::Streams;
use crate::swapped::{SwappedBlock, SwappedMemory};

/// Everything that vmem keeps for one device. Dropping it waits for the device and gives
/// everything back to the driver.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The device pool.
    pub pool: Pool,
    /// The pinned host arena.
    pub arena: Arena,
    /// Host memory that the device addresses, taken from the arena.
    pub swapped: SwappedMemory,
    /// The streams.
    pub streams: Streams,
    open: bool,
}

impl DeviceMemory {
    /// Opens the memory of a device; takes nothing from the driver yet.
    ///
    /// # Errors
    /// [`BadConfig`](MemoryError::BadConfig) if the settings contradict each other.
    pub fn new(
        driver: Arc<dyn Driver>,
        pool: PoolConfig,
        arena: ArenaConfig,
    ) -> Result<DeviceMemory, MemoryError> {
        Ok(DeviceMemory {
            pool: Pool::new(Arc::clone(&driver), pool)?,
            swapped: SwappedMemory::new(Arc::clone(&driver), arena.swapped_limit_bytes),
            arena: Arena::new(Arc::clone(&driver), arena),
            streams: Streams::new(driver),
            open: true,
        })
    }

    /// Takes swapped memory for use on `stream`, which waits for its earlier users. The host must
    /// not touch it before `stream` is there.
    ///
    /// # Errors
    /// As [`SwappedMemory::take`].
    pub fn allocate_swapped(
        &mut self,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<SwappedBlock, MemoryError> {
        let (block, uses) = self.swapped.take(&mut self.arena, size_bytes)?;
        for &point in uses.points() {
            let ordered = self.streams.order_after(stream, point, Site::SwappedAfterRelease);
            if let Err(error) = ordered {
                self.swapped.give_back(&mut self.arena, block, uses);
                return Err(error.into());
            }
        }
        Ok(block)
    }

    /// Gives swapped memory back. It is reused only after `uses`; nobody waits here.
    pub fn free_swapped(&mut self, block: SwappedBlock, uses: Uses) {
        self.swapped.give_back(&mut self.arena, block, uses);
    }

    /// Waits for the device and gives everything back. Blocks that are live are lost.
    ///
    /// # Errors
    /// The first failure; the rest is still given back. But if the device cannot be waited for,
    /// nothing is: its work may still use the memory, which is then left to the driver.
    pub fn close(&mut self) -> Result<(), DriverError> {
        if !std::mem::replace(&mut self.open, false) {
            return Ok(());
        }
        let streams = &mut self.streams;
        streams.synchronize().or_else(|_| streams.synchronize())?;
        self.pool.dismantle(streams).and(self.arena.dismantle())
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // A device that fails now cannot be helped; `close` reports it to those who ask.
        let _ = self.close();
    }
}
