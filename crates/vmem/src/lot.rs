//! A layout's answer: where in planned memory a block has its bytes.

/// Part of memory that was laid out for a whole step. A block finds its bytes in the same lot in
/// each of its stays on the device, and in each step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lot {
    /// From the start of the memory; a multiple of the granularity.
    pub offset_bytes: u64,
    /// A multiple of the granularity, and not 0.
    pub size_bytes: u64,
}

impl Lot {
    /// Where it ends, if memory went so far.
    pub fn end_bytes(self) -> u64 {
        self.offset_bytes.saturating_add(self.size_bytes)
    }
}
