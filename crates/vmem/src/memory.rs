//! Streams, pool and arena of one device, taken apart in the right order.

use std::sync::Arc;

use npu_sys::{Driver, DriverError};

use crate::arena::{Arena, ArenaConfig};
use crate::error::MemoryError;
use crate::pool::{Pool, PoolConfig};
use crate::streams::Streams;

/// Everything that vmem keeps for one device. Dropping it waits for the device and gives
/// everything back to the driver.
#[derive(Debug)]
pub struct DeviceMemory {
    /// The device pool.
    pub pool: Pool,
    /// The pinned host arena.
    pub arena: Arena,
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
            arena: Arena::new(Arc::clone(&driver), arena),
            streams: Streams::new(driver),
            open: true,
        })
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
