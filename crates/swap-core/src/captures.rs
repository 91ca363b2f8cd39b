//! Streams of the caller that capture what they are given, to run it later.

use std::collections::BTreeSet;

use vmem::{BlockId, DeviceMemory, Site};

use crate::core::Core;
use crate::engine::Engine;
use crate::entry::State;
use crate::error::Error;

impl Engine {
    /// Waits for all work, as a stream is about to be captured, and until
    /// [`capture_ended`](Engine::capture_ended) records nothing on a stream that is, nor waits for
    /// it. Begin no op on it meanwhile: what it is given does not run.
    ///
    /// # Errors
    /// If the driver fails; then nothing changes.
    pub fn capture_begins(&self) -> Result<(), Error> {
        Ok(self.shared().lock()?.memory.streams.capture_begins()?)
    }

    /// Brings a block to the device that captured work uses, waits until its bytes are there, and
    /// keeps it until no capture goes on: a driver may look at the memory of a copy when it is
    /// captured. The captured stream is left alone.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] if there is no room beside what is kept already; [`Error::Freed`];
    /// [`Error::Usage`] if no capture goes on, or for a block that an op must make again, which
    /// cannot run now.
    pub fn keep_for_captures(&self, block: BlockId) -> Result<(), Error> {
        let kept = self.shared().lock()?.keep_for_captures(block);
        kept.map_err(|error| error.within("a capture"))
    }

    /// One of the captures is over. With the last of them, what was kept may leave again.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn capture_ended(&self) -> Result<(), Error> {
        self.shared().lock()?.capture_ended();
        Ok(())
    }
}

/// Blocks that are pinned until no capture goes on. Some may be free by now.
#[derive(Debug, Default)]
pub(crate) struct Captured(BTreeSet<BlockId>);

impl Core {
    fn keep_for_captures(&mut self, id: BlockId) -> Result<(), Error> {
        if !self.memory.streams.is_capturing() {
            return Err(Error::Usage("no capture goes on"));
        }
        let entry = self.entry(id)?;
        if self.captured.0.contains(&id) || !self.memory.pool.is_swappable(id) {
            return Ok(());
        }
        match entry.state {
            State::Resident => {}
            State::Away { .. } => {
                // No op of the step asks for it.
                let rescues = self.step.counters.rescues;
                let came = self.swap_in(id, true);
                self.step.counters.rescues = rescues;
                came?;
            }
            State::Discarded | State::Replaying { .. } => {
                return Err(Error::Usage(
                    "captured work uses memory that an op must make again, which cannot run now: \
                     use it once before the capture",
                ));
            }
        }
        let arrived = self.entry(id)?.arrived.clone();
        let DeviceMemory { pool, streams, .. } = &mut self.memory;
        // Not by the stream that will use it: that would be captured too.
        streams.wait_host(&arrived, Site::TouchAfterArrival)?;
        pool.map_block(streams, id)?;
        let now = self.entries.tick();
        let entry = self.entry_mut(id)?;
        entry.pins += 1;
        entry.last_touch = now;
        self.captured.0.insert(id);
        Ok(())
    }

    fn capture_ended(&mut self) {
        self.memory.streams.capture_ended();
        if self.memory.streams.is_capturing() {
            return;
        }
        for id in std::mem::take(&mut self.captured.0) {
            if let Ok(entry) = self.entry_mut(id) {
                entry.pins -= 1;
            }
        }
    }
}
