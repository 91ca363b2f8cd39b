//! All that can leave leaves at once, so that somebody else can use the device meanwhile.

use vmem::{BlockId, DeviceMemory};

use crate::core::Core;
use crate::engine::Engine;
use crate::entry::State;
use crate::error::Error;

impl Engine {
    /// Sends every block away that can leave, waits for that, and gives all memory that nobody
    /// uses back to the driver. Returns the bytes of device memory that are held all the same:
    /// small blocks, and those that are held or that an open op uses. What is lent is taken back,
    /// as when a step ends.
    ///
    /// Addresses stay. What is touched comes back as ever, and all else with
    /// [`resume`](Engine::resume).
    ///
    /// # Errors
    /// [`Error::Usage`] on a device that swaps nothing, or while ops are not told of;
    /// [`Error::Memory`] if the host has no room for all, and nothing has left then; or if the
    /// driver fails: what has left comes back as ever.
    pub fn suspend(&self) -> Result<u64, Error> {
        self.shared().lock()?.suspend()
    }

    /// Begins to bring back what [`suspend`](Engine::suspend) sent away, in the order in which it
    /// is needed, as long as there is room. Does not wait for the copies: ops do.
    ///
    /// # Errors
    /// If the driver fails: what is away still comes back as it is touched.
    pub fn resume(&self) -> Result<(), Error> {
        self.shared().lock()?.resume()
    }
}

/// Blocks that were sent away for others to use the device, what is needed last first.
#[derive(Debug, Default)]
pub(crate) struct Suspended(Vec<BlockId>);

impl Core {
    fn suspend(&mut self) -> Result<u64, Error> {
        if self.unswappable.is_some() {
            return Err(Error::Usage("this device cannot swap, so it cannot be suspended"));
        }
        if !self.watch.is_on() {
            return Err(Error::Usage("the engine is asleep: ops run that it does not see"));
        }
        self.take_all_back()?;
        // Needed last first, so that what is needed first is the last of the list.
        let leaving = self.victims();
        self.memory.arena.reserve(self.bytes_to_copy(&leaving)?)?;
        self.moving = true;
        for id in leaving {
            // Room for all of them may be in pieces that are too small for some.
            if self.swap_out(id)? {
                self.suspended.0.push(id);
            }
        }
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        streams.synchronize()?;
        pool.poll(streams)?;
        pool.give_back_idle(streams)?;
        let held_bytes = pool.held_bytes();
        self.note_segments();
        Ok(held_bytes)
    }

    /// Of blocks that the host has no copy of.
    fn bytes_to_copy(&self, blocks: &[BlockId]) -> Result<u64, Error> {
        let mut size_bytes = 0;
        for &id in blocks {
            if self.entry(id)?.host_copy.is_none() {
                size_bytes += self.memory.pool.size_bytes(id);
            }
        }
        Ok(size_bytes)
    }

    fn resume(&mut self) -> Result<(), Error> {
        while let Some(id) = self.suspended.0.pop() {
            // It may have been freed since, or have come back.
            let entry = self.entry(id);
            let is_away = entry.is_ok_and(|entry| matches!(entry.state, State::Away { .. }));
            if is_away && !self.swap_in(id, false)? {
                // No room for the rest: ops bring it back.
                self.suspended.0.clear();
            }
        }
        Ok(())
    }
}
