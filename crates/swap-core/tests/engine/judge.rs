//! Who says what a device holds, besides the engine: the host driver's ledger, or for a device
//! without one the log of the calls that reached it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use swap_core::devices::{HostDriver, Ledger, RecordDriver};

/// An account of a device's memory that the engine has no part in.
pub(crate) enum Judge {
    Ledger(Arc<HostDriver>),
    Log(Arc<RecordDriver>, Box<Mutex<Account>>),
}

impl From<Arc<HostDriver>> for Judge {
    fn from(host: Arc<HostDriver>) -> Judge {
        Judge::Ledger(host)
    }
}

impl From<Arc<RecordDriver>> for Judge {
    fn from(record: Arc<RecordDriver>) -> Judge {
        Judge::Log(record, Box::default())
    }
}

impl Judge {
    pub(crate) fn ledger(&self) -> Ledger {
        match self {
            Judge::Ledger(host) => host.ledger(),
            Judge::Log(record, account) => {
                let mut account = account.lock().expect("nobody panics with it");
                account.read(record);
                account.ledger
            }
        }
    }
}

/// What the calls so far come to.
#[derive(Default)]
pub(crate) struct Account {
    ledger: Ledger,
    /// Bytes by the text of a chunk or a host address.
    chunks: BTreeMap<String, u64>,
    pinned: BTreeMap<String, u64>,
    registered: BTreeMap<String, u64>,
}

/// The bytes in a text like `4096 bytes` or `host:0x1000 + 4096 bytes`.
fn bytes(arguments: &str) -> u64 {
    let number = arguments.strip_suffix(" bytes").and_then(|text| text.rsplit(' ').next());
    number.and_then(|text| text.parse().ok()).expect("the log writes sizes so")
}

impl Account {
    /// Adds up the calls since the last time.
    fn read(&mut self, record: &RecordDriver) {
        let calls = record.calls();
        record.clear();
        for call in calls {
            let Ok(outcome) = call.outcome else { continue };
            let arguments = call.arguments.as_str();
            let ledger = &mut self.ledger;
            match call.name {
                "create_chunk" => drop(self.chunks.insert(outcome, bytes(arguments))),
                "release_chunk" => drop(self.chunks.remove(arguments).expect("it was created")),
                "allocate_pinned" => drop(self.pinned.insert(outcome, bytes(arguments))),
                "free_pinned" => drop(self.pinned.remove(arguments).expect("it was allocated")),
                "register_host" => {
                    let start = arguments.split(' ').next().unwrap_or_default().to_owned();
                    self.registered.insert(start, bytes(arguments));
                }
                "unregister_host" => {
                    self.registered.remove(arguments).expect("it was registered");
                }
                "map" => ledger.mapping_count += 1,
                "unmap" => ledger.mapping_count -= 1,
                "reserve" => ledger.range_count += 1,
                "free_range" => ledger.range_count -= 1,
                "create_stream" => ledger.stream_count += 1,
                "destroy_stream" => ledger.stream_count -= 1,
                "create_event" => ledger.event_count += 1,
                "destroy_event" => ledger.event_count -= 1,
                _ => {}
            }
            ledger.chunk_count = self.chunks.len() as u64;
            ledger.chunk_bytes = self.chunks.values().sum();
            ledger.pinned_bytes = self.pinned.values().sum();
            ledger.registered_bytes = self.registered.values().sum();
            let peaks = [
                (&mut ledger.chunk_bytes_peak, ledger.chunk_bytes),
                (&mut ledger.pinned_bytes_peak, ledger.pinned_bytes),
                (&mut ledger.registered_bytes_peak, ledger.registered_bytes),
            ];
            peaks.into_iter().for_each(|(peak, now)| *peak = now.max(*peak));
        }
    }
}
