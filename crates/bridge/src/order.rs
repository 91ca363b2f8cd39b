//! The check of order: what a framework orders past the engine, and what was looked at.

use std::ffi::c_int;
use std::sync::Arc;

use adaptive::devices::{CheckDriver, ForeignCall};
use adaptive::{EventHandle, StreamHandle};
use serde_json::{Value, json};

use crate::context::Context;
use crate::device::Device;
use crate::failure::Failure;

impl Context {
    fn checker(&self) -> Option<&Arc<CheckDriver>> {
        self.settings.checker.as_ref()
    }

    /// Whether the order of all work is checked.
    pub(crate) fn checks_order(&self) -> bool {
        self.checker().is_some()
    }

    /// Learns of a call, by its number in `smartswap_order_call`, with which a framework orders its
    /// own streams.
    pub(crate) fn note_order(&self, call: c_int, event: u64, stream: u64) -> Result<(), Failure> {
        let device = &self.settings.device;
        // The software device's ops run on the calling thread, and the host knows of each.
        let checker = self.checker().filter(|_| !matches!(device, Device::Host(_)));
        let stream = || -> Result<StreamHandle, Failure> {
            let adopted = checker.map_or(Ok(None), |_| device.adopt(stream))?;
            Ok(adopted.unwrap_or(StreamHandle(stream)))
        };
        let event = EventHandle(event);
        let call = match call {
            0 => ForeignCall::Record { event, stream: stream()? },
            1 => ForeignCall::Wait { stream: stream()?, event },
            2 => ForeignCall::DestroyEvent(event),
            3 => ForeignCall::SynchronizeEvent(event),
            4 => ForeignCall::SynchronizeStream(stream()?),
            5 => ForeignCall::SynchronizeDevice,
            _ => {
                let text = format!("{call} is no smartswap_order_call: they are 0 to 5");
                return Err(Failure::usage(text));
            }
        };
        checker.into_iter().for_each(|checker| checker.note_foreign(call));
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
