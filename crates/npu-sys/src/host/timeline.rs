//! What has run: the timeline, the totals of copies, and the first failure.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::DriverError;
use crate::host::failure;
use crate::host_function::FirstFailure;
use crate::sync::lock;
use crate::types::{DevicePtr, StreamHandle};

/// One executed piece of work.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DeviceSpan {
    /// The stream that it ran on.
    pub stream: StreamHandle,
    /// What it was.
    pub kind: SpanKind,
    /// The host function's own name, or a word for other work.
    pub name: &'static str,
    /// The device address of a copy or fill (of the target when both sides are the device's), or
    /// of a host function's first access.
    pub address: Option<DevicePtr>,
    /// Bytes copied, filled, or declared.
    pub size_bytes: u64,
    /// When it began, on the driver's clock, in microseconds.
    pub start_us: f64,
    /// When it was complete.
    pub end_us: f64,
}

/// What a [`DeviceSpan`] was.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SpanKind {
    /// A host function.
    Compute,
    /// A copy from the device to the host.
    CopyOut,
    /// A copy from the host to the device.
    CopyIn,
    /// A copy inside the device.
    CopyWithin,
    /// A fill.
    Fill,
}

/// Where both schedulers write down what they ran.
#[derive(Debug, Default)]
pub(super) struct Journal {
    out_bytes: AtomicU64,
    in_bytes: AtomicU64,
    failed: FirstFailure,
    recording: AtomicBool,
    spans: Mutex<Vec<DeviceSpan>>,
}

impl Journal {
    /// Notes that work has run.
    pub(super) fn note(&self, span: DeviceSpan, outcome: Result<(), String>) {
        match span.kind {
            SpanKind::CopyOut => self.out_bytes.fetch_add(span.size_bytes, Ordering::Relaxed),
            SpanKind::CopyIn => self.in_bytes.fetch_add(span.size_bytes, Ordering::Relaxed),
            SpanKind::Compute | SpanKind::CopyWithin | SpanKind::Fill => 0,
        };
        self.failed.note(outcome);
        if self.recording.load(Ordering::Relaxed) {
            lock(&self.spans).push(span);
        }
    }

    /// The failure of work that ran earlier, as an error of `call`.
    pub(super) fn check(&self, call: &'static str) -> Result<(), DriverError> {
        self.failed.check(call, failure::FAILED)
    }

    pub(super) fn copied_out_bytes(&self) -> u64 {
        self.out_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn copied_in_bytes(&self) -> u64 {
        self.in_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn start(&self) {
        lock(&self.spans).clear();
        self.recording.store(true, Ordering::Relaxed);
    }

    pub(super) fn take(&self) -> Vec<DeviceSpan> {
        self.recording.store(false, Ordering::Relaxed);
        std::mem::take(&mut lock(&self.spans))
    }
}
