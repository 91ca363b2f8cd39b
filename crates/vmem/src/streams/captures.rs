//! Streams that somebody captures: what they are given is run later, so nobody can wait for it.

use npu_sys::DriverError;

use super::Streams;
use crate::point::StreamId;

impl Streams {
    /// Waits for all work, as somebody is about to capture what some stream is given. Until
    /// [`capture_ended`](Streams::capture_ended) a stream that is captured has nothing that could
    /// be waited for: what it was given before is complete, and what it is given does not run.
    ///
    /// # Errors
    /// If the driver fails; then nothing changes.
    pub fn capture_begins(&mut self) -> Result<(), DriverError> {
        self.synchronize()?;
        self.captures += 1;
        Ok(())
    }

    /// One of the captures is over.
    pub fn capture_ended(&mut self) {
        self.captures = self.captures.saturating_sub(1);
    }

    /// Whether a capture goes on.
    pub fn is_capturing(&self) -> bool {
        self.captures > 0
    }

    pub(super) fn is_captured(&self, stream: StreamId) -> Result<bool, DriverError> {
        // The driver is asked at every event, but only where it may matter.
        Ok(self.is_capturing() && self.driver.is_captured(self.lane(stream).handle)?)
    }
}
