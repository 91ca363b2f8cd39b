//! What only tests call: the judge's view of a device.

use npu_sys::devices::Ledger;

use crate::abi::Out;
use crate::entry::exports;
use crate::runtime;

/// What a device holds, as its host driver counts it; the fields are those of
/// [`npu_sys::devices::Ledger`], in its order. The library's own streams and events are left out.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)] // As in `npu_sys::devices::Ledger`.
pub struct StandinLedger {
    pub capacity_bytes: u64,
    pub chunk_bytes: u64,
    pub chunk_bytes_peak: u64,
    pub chunk_count: u64,
    pub mapped_bytes: u64,
    pub mapping_count: u64,
    pub reserved_bytes: u64,
    pub range_count: u64,
    pub pinned_bytes: u64,
    pub pinned_bytes_peak: u64,
    pub registered_bytes: u64,
    pub stream_count: u64,
    pub event_count: u64,
    pub copied_out_bytes: u64,
    pub copied_in_bytes: u64,
}

impl From<Ledger> for StandinLedger {
    fn from(ledger: Ledger) -> StandinLedger {
        StandinLedger {
            capacity_bytes: ledger.capacity_bytes,
            chunk_bytes: ledger.chunk_bytes,
            chunk_bytes_peak: ledger.chunk_bytes_peak,
            chunk_count: ledger.chunk_count,
            mapped_bytes: ledger.mapped_bytes,
            mapping_count: ledger.mapping_count,
            reserved_bytes: ledger.reserved_bytes,
            range_count: ledger.range_count,
            pinned_bytes: ledger.pinned_bytes,
            pinned_bytes_peak: ledger.pinned_bytes_peak,
            registered_bytes: ledger.registered_bytes,
            stream_count: ledger.stream_count,
            event_count: ledger.event_count,
            copied_out_bytes: ledger.copied_out_bytes,
            copied_in_bytes: ledger.copied_in_bytes,
        }
    }
}

exports! {
    /// What a device holds. Not a function of ACL.
    fn standin_ledger(device: i32, ledger: Out<StandinLedger>) {
        ledger.check("ledger")?;
        let runtime = runtime::runtime()?;
        let device = runtime.device(i64::from(device))?;
        let tables = runtime.tables();
        ledger.put(runtime.ledger(&tables, device).into());
        Ok(())
    }

    /// Starts a new measurement of a device's peaks. Not a function of ACL.
    fn standin_reset_peaks(device: i32) {
        let runtime = runtime::runtime()?;
        let device = runtime.device(i64::from(device))?;
        runtime.drivers[device].reset_peaks();
        Ok(())
    }
}
