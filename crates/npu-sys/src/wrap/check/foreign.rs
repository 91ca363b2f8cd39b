//! Order that others make past the driver, as a framework does between its own streams.

use super::CheckDriver;
use crate::types::{EventHandle, StreamHandle};

/// A call that somebody else made of the device, and that orders work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignCall {
    /// The event stands for all work of the stream so far.
    Record {
        /// Recorded.
        event: EventHandle,
        /// In which it was.
        stream: StreamHandle,
    },
    /// Later work of the stream comes after what the event stands for.
    Wait {
        /// Which waits.
        stream: StreamHandle,
        /// Waited for.
        event: EventHandle,
    },
    /// The event is gone; another may get its handle.
    DestroyEvent(EventHandle),
    /// The host waited for what the event stands for.
    SynchronizeEvent(EventHandle),
    /// The host waited for all work of the stream.
    SynchronizeStream(StreamHandle),
    /// The host waited for all work of all streams.
    SynchronizeDevice,
}

impl CheckDriver {
    /// Learns of order that a call past the driver makes. Tell of each when it was made, by the
    /// thread that made it: what is submitted in between is taken for unordered.
    ///
    /// Handles are the driver's, or the device's own where an adopted stream has none.
    pub fn note_foreign(&self, call: ForeignCall) {
        let mut checker = self.lock();
        let checker = &mut *checker;
        checker.foreign_calls += 1;
        let clocks = &mut checker.clocks;
        match call {
            ForeignCall::Record { event, stream } => clocks.record(event, stream),
            ForeignCall::Wait { stream, event } => clocks.wait(stream, event),
            ForeignCall::DestroyEvent(event) => clocks.remove_event(event),
            ForeignCall::SynchronizeEvent(event) => {
                let clock = clocks.of_event(event);
                clocks.host_learns(&clock);
            }
            ForeignCall::SynchronizeStream(stream) => {
                let clock = clocks.of_stream(stream);
                clocks.host_learns(&clock);
            }
            ForeignCall::SynchronizeDevice => clocks.host_learns_all(),
        }
    }

    /// Calls past the driver that it was told of.
    pub fn foreign_calls(&self) -> u64 {
        self.lock().foreign_calls
    }
}
