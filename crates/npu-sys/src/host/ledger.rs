//! What the host driver itself counts: the independent judge of what the layers above claim.

/// What is held of a [`HostDriver`](crate::devices::HostDriver) at one moment, and what was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ledger {
    /// Physical bytes of the device.
    pub capacity_bytes: u64,
    /// Physical bytes of chunks.
    pub chunk_bytes: u64,
    /// The most [`chunk_bytes`](Ledger::chunk_bytes) since the last `reset_peaks`.
    pub chunk_bytes_peak: u64,
    /// Number of chunks.
    pub chunk_count: u64,
    /// Bytes of addresses with memory behind them. A chunk counts once for each mapping.
    pub mapped_bytes: u64,
    /// Number of mappings.
    pub mapping_count: u64,
    /// Bytes of reserved addresses.
    pub reserved_bytes: u64,
    /// Number of reserved ranges.
    pub range_count: u64,
    /// Bytes of host memory from `allocate_pinned`, in whole pages.
    pub pinned_bytes: u64,
    /// The most [`pinned_bytes`](Ledger::pinned_bytes) since the last `reset_peaks`.
    pub pinned_bytes_peak: u64,
    /// Bytes of host memory under `register_host`.
    pub registered_bytes: u64,
    /// The most [`registered_bytes`](Ledger::registered_bytes) since the last `reset_peaks`.
    pub registered_bytes_peak: u64,
    /// Number of streams that are not destroyed.
    pub stream_count: u64,
    /// Number of events that are not destroyed.
    pub event_count: u64,
    /// Bytes copied from the device to the host so far.
    pub copied_out_bytes: u64,
    /// Bytes copied from the host to the device so far.
    pub copied_in_bytes: u64,
}

impl Ledger {
    /// Whether nothing is held: no memory, no addresses, no stream, no event.
    pub fn is_empty(&self) -> bool {
        let held = [
            self.chunk_count,
            self.mapping_count,
            self.range_count,
            self.pinned_bytes,
            self.registered_bytes,
            self.stream_count,
            self.event_count,
        ];
        held.iter().all(|&count| count == 0)
    }
}
