//! What the driver asks of whatever runs its streams.

use std::fmt;
use std::sync::Arc;

use crate::error::DriverError;
use crate::host::effect::Effect;
use crate::host::failure::invalid;
use crate::host::signal::Signal;
use crate::types::StreamHandle;

/// One entry of a stream's queue.
#[derive(Debug)]
pub(super) enum Work {
    /// Run this.
    Effect(Effect),
    /// Complete the signal: all before it is done.
    Mark(Arc<Signal>),
    /// Go on only once the signal is complete.
    Wait(Arc<Signal>),
}

/// Runs streams. Each call names the driver call on whose behalf it is made, for its errors.
pub(super) trait Schedule: Send + Sync + fmt::Debug {
    /// Creates a stream.
    fn open(&self) -> Result<StreamHandle, DriverError>;

    /// Forgets a stream once its work is done.
    fn close(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// Checks that the stream exists and is not closed.
    fn check(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError>;

    /// Handles of the streams that are not closed.
    fn streams(&self) -> Vec<StreamHandle>;

    /// Appends work to a stream.
    fn submit(
        &self,
        call: &'static str,
        stream: StreamHandle,
        work: Work,
    ) -> Result<(), DriverError>;

    /// Blocks until all work that the stream has now is done.
    fn drain(&self, call: &'static str, stream: StreamHandle) -> Result<(), DriverError>;

    /// Blocks until the signal is complete.
    fn wait(&self, call: &'static str, signal: &Signal) -> Result<(), DriverError>;

    /// Whether the host sees the signal as complete.
    fn is_complete(&self, signal: &Signal) -> bool;

    /// The host called the driver: a moment at which virtual devices get to work.
    fn tick(&self);

    /// The host's clock in microseconds.
    fn now_us(&self) -> f64;

    /// Lets virtual time pass on the host.
    fn advance(&self, us: f64) -> Result<(), DriverError>;
}

pub(super) fn unknown_stream(call: &'static str, stream: StreamHandle) -> DriverError {
    invalid(call, format!("{stream:?} does not exist"))
}
