//! Streams of the caller that capture what they are given, to run it later.

use crate::engine::Engine;
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

    /// One of the captures is over.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn capture_ended(&self) -> Result<(), Error> {
        self.shared().lock()?.memory.streams.capture_ended();
        Ok(())
    }
}
