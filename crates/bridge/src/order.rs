//! The check of order: what a framework orders past the engine, and what was looked at.

use std::sync::Arc;

use adaptive::devices::{CheckDriver, ForeignCall};
use adaptive::{EventHandle, StreamHandle};
use serde_json::{Value, json};

use crate::context::Context;
use crate::device::Device;
use crate::failure::Failure;

/// Calls of a framework, as the C interface numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Record,
    Wait,
    DestroyEvent,
    SynchronizeEvent,
    SynchronizeStream,
    SynchronizeDevice,
}

impl Told {
    /// By the numbers of `smartswap_order_call`.
    pub(crate) const ALL: [Told; 6] = [
        Told::Record,
        Told::Wait,
        Told::DestroyEvent,
        Told::SynchronizeEvent,
        Told::SynchronizeStream,
        Told::SynchronizeDevice,
    ];

    fn call(self, event: EventHandle, stream: StreamHandle) -> ForeignCall {
        match self {
            Told::Record => ForeignCall::Record { event, stream },
            Told::Wait => ForeignCall::Wait { stream, event },
            Told::DestroyEvent => ForeignCall::DestroyEvent(event),
            Told::SynchronizeEvent => ForeignCall::SynchronizeEvent(event),
            Told::SynchronizeStream => ForeignCall::SynchronizeStream(stream),
            Told::SynchronizeDevice => ForeignCall::SynchronizeDevice,
        }
    }
}

impl Context {
    fn checker(&self) -> Option<&Arc<CheckDriver>> {
        self.settings.checker.as_ref()
    }

    /// Whether the order of all work is checked.
    pub(crate) fn checks_order(&self) -> bool {
        self.checker().is_some()
    }

    /// Learns how a framework orders its own streams.
    pub(crate) fn note_order(&self, told: Told, event: u64, stream: u64) -> Result<(), Failure> {
        let (Some(checker), device) = (self.checker(), &self.settings.device) else {
            return Ok(());
        };
        // The software device's ops run on the calling thread, and the host knows of each.
        if matches!(device, Device::Host(_)) {
            return Ok(());
        }
        let needs_stream = matches!(told, Told::Record | Told::Wait | Told::SynchronizeStream);
        let stream = match needs_stream {
            true => device.adopt(stream)?.unwrap_or(StreamHandle(stream)),
            false => StreamHandle(stream),
        };
        checker.note_foreign(told.call(EventHandle(event), stream));
        Ok(())
    }

    /// What was looked at, for who reads that nothing was found; null without the check.
    pub(crate) fn order_checked(&self) -> Value {
        self.checker().map_or(Value::Null, |checker| {
            json!({
                "accesses": checker.accesses_checked(),
                "waits": checker.waits_seen(),
                "foreign_calls": checker.foreign_calls(),
                "violations": checker.violation_count(),
            })
        })
    }
}
