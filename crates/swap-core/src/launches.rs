//! Order between launches: what the next one on a block has to wait for.
//!
//! Safe code may launch over the same block on several streams, and a kernel gets the block as a
//! slice that nobody else may be writing. So the engine orders launches by itself: by events
//! between streams, and only those in conflict.

use vmem::{AccessMode, BlockId, Point, Site, StreamId, Uses};

use crate::core::Core;
use crate::error::Error;

/// The launches on a block that later ones may be in conflict with.
#[derive(Debug)]
pub(crate) struct Launches {
    /// The last that wrote it; at first, its allocation.
    written: Point,
    /// Those that have read it since.
    read: Uses,
}

impl Launches {
    /// None yet. Whoever comes first waits for what the allocation waited for.
    pub(crate) fn behind(allocated: Point) -> Launches {
        Launches { written: allocated, read: Uses::default() }
    }

    /// What a launch in this mode is in conflict with.
    fn before(&self, mode: AccessMode) -> Uses {
        let mut before = if mode.writes() { self.read.clone() } else { Uses::default() };
        before.add(self.written);
        before
    }

    fn note(&mut self, mode: AccessMode, launched: Point) {
        if mode.writes() {
            *self = Launches::behind(launched);
        } else {
            self.read.add(launched);
        }
    }
}

impl Core {
    /// Makes a launch on `stream` wait for those before it that it is in conflict with.
    pub(crate) fn order_launch(
        &mut self,
        stream: StreamId,
        touched: impl Iterator<Item = (BlockId, AccessMode)>,
    ) -> Result<(), Error> {
        for (block, mode) in touched {
            for &point in self.entry(block)?.launches.before(mode).points() {
                self.wait(stream, point, Site::LaunchAfterLaunch)?;
            }
        }
        Ok(())
    }

    /// Notes a launch for those that come behind it.
    pub(crate) fn note_launch(
        &mut self,
        stream: StreamId,
        touched: impl Iterator<Item = (BlockId, AccessMode)>,
    ) -> Result<(), Error> {
        let launched = self.memory.streams.advance(stream);
        for (block, mode) in touched {
            self.entry_mut(block)?.launches.note(mode, launched);
        }
        Ok(())
    }

    /// Refuses streams that ops cannot run on: those that nobody adopted, and the engine's own
    /// for copies, whose work does not count as a block's use.
    pub(crate) fn check_stream(&self, stream: StreamId) -> Result<(), Error> {
        if stream == self.streams.compute || self.compute_streams().any(|known| known == stream) {
            return Ok(());
        }
        Err(Error::Usage("ops run on the compute stream and on adopted streams only"))
    }
}
