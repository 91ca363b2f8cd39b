//! Which memory is behind which address, and who used it.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::shadow::{Frontier, Shadow};
use super::violation::{Address, Memory};
use crate::types::{ChunkHandle, DevicePtr, HostPtr, VaRange};

/// Bytes of one piece of memory, and the mapping by which they were reached.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    pub(super) memory: Memory,
    pub(super) bytes: Range<u64>,
    pub(super) window: Option<u64>,
}

/// Pieces of one access, in order of address.
pub(super) type Pieces = SmallVec<[Piece; 1]>;

/// A chunk or a piece of host memory.
#[derive(Debug, Default)]
pub(super) struct Tracked {
    pub(super) shadow: Shadow,
    pub(super) uses: Frontier,
    size_bytes: u64,
    windows: usize,
}

/// Device addresses with memory behind them.
#[derive(Debug)]
struct Window {
    size_bytes: u64,
    memory: Memory,
    accessible: bool,
    uses: Frontier,
}

/// All memory that the driver gave out.
#[derive(Debug, Default)]
pub(super) struct Space {
    /// By first device address.
    windows: BTreeMap<u64, Window>,
    tracked: BTreeMap<Memory, Tracked>,
}

impl Space {
    /// The memory that an access reaches, or what is missing.
    pub(super) fn resolve(
        &self,
        address: Address,
        size_bytes: u64,
    ) -> Result<Pieces, &'static str> {
        match address {
            Address::Device(start) => self.resolve_device(start, size_bytes),
            Address::Host(start) => self.resolve_host(start, size_bytes),
        }
    }

    fn resolve_device(&self, start: DevicePtr, size_bytes: u64) -> Result<Pieces, &'static str> {
        let end = start.0.checked_add(size_bytes).ok_or("the addresses overflow")?;
        let mut pieces = Pieces::new();
        let mut at = start.0;
        while at < end {
            let (&base, window) = self
                .windows
                .range(..=at)
                .next_back()
                .filter(|(base, window)| at - **base < window.size_bytes)
                .ok_or("not all of it is mapped")?;
            if !window.accessible {
                return Err("not all of it was given access to");
            }
            let stop = end.min(base + window.size_bytes);
            let bytes = at - base..stop - base;
            pieces.push(Piece { memory: window.memory, bytes, window: Some(base) });
            at = stop;
        }
        Ok(pieces)
    }

    fn resolve_host(&self, start: HostPtr, size_bytes: u64) -> Result<Pieces, &'static str> {
        if size_bytes == 0 {
            return Ok(Pieces::new());
        }
        let (region, tracked) = self.host_region(start).ok_or("it is not pinned")?;
        let offset = start.0 - region.0;
        if size_bytes > tracked.size_bytes - offset {
            return Err("not all of it is pinned");
        }
        let bytes = offset..offset + size_bytes;
        Ok(smallvec![Piece { memory: Memory::Host(region), bytes, window: None }])
    }

    fn host_region(&self, start: HostPtr) -> Option<(HostPtr, &Tracked)> {
        // Host memory sorts behind all other, by address.
        let (&memory, tracked) = self.tracked.range(..=Memory::Host(start)).next_back()?;
        match memory {
            Memory::Host(region) if start.0 - region.0 < tracked.size_bytes => {
                Some((region, tracked))
            }
            _ => None,
        }
    }

    pub(super) fn tracked(&self, memory: Memory) -> Option<&Tracked> {
        self.tracked.get(&memory)
    }

    /// The past of `piece`, to be added to: of its memory, and of its window if it has one.
    pub(super) fn touched(&mut self, piece: &Piece) -> (&mut Tracked, Option<&mut Frontier>) {
        let tracked = self.tracked.get_mut(&piece.memory).expect("a piece was just resolved");
        let window = piece.window.and_then(|base| self.windows.get_mut(&base));
        (tracked, window.map(|window| &mut window.uses))
    }

    /// Starts to track fresh memory. What its handle or address stood for before is forgotten.
    pub(super) fn add(&mut self, memory: Memory, size_bytes: u64) {
        self.tracked.insert(memory, Tracked { size_bytes, ..Tracked::default() });
    }

    /// Starts to track fresh memory that has its address from birth.
    pub(super) fn add_plain(&mut self, range: VaRange) {
        let memory = Memory::Plain(range.start);
        self.add(memory, range.size_bytes);
        self.open(range, memory, true);
    }

    /// Stops to track memory that was given back.
    pub(super) fn remove(&mut self, memory: Memory) {
        let windows = self.tracked.remove(&memory).map_or(0, |tracked| tracked.windows);
        if windows > 0 {
            self.windows.retain(|_, window| window.memory != memory);
        }
    }

    /// How many mappings a chunk has.
    pub(super) fn windows_of(&self, memory: Memory) -> usize {
        self.tracked.get(&memory).map_or(0, |tracked| tracked.windows)
    }

    /// Whether any memory is behind the addresses of `range`.
    pub(super) fn is_mapped(&self, range: VaRange) -> bool {
        let end = range.start.0.saturating_add(range.size_bytes);
        self.windows
            .range(..end)
            .next_back()
            .is_some_and(|(base, window)| range.start.0 < base + window.size_bytes)
    }

    /// The chunk of the mapping that is exactly `range`, and who used it by these addresses.
    pub(super) fn mapping(&self, range: VaRange) -> Option<(Memory, &Frontier)> {
        let window = self.windows.get(&range.start.0)?;
        let is_chunk = matches!(window.memory, Memory::Chunk(_));
        (is_chunk && window.size_bytes == range.size_bytes).then_some((window.memory, &window.uses))
    }

    pub(super) fn map(&mut self, range: VaRange, chunk: ChunkHandle) {
        // A chunk that was created elsewhere gets its past here.
        let memory = Memory::Chunk(chunk);
        self.tracked.entry(memory).or_default().size_bytes = range.size_bytes;
        self.open(range, memory, false);
    }

    pub(super) fn set_access(&mut self, range: VaRange) {
        let end = range.start.0.saturating_add(range.size_bytes);
        for (_, window) in self.windows.range_mut(range.start.0..end) {
            window.accessible = true;
        }
    }

    pub(super) fn unmap(&mut self, range: VaRange) {
        let window = self.windows.remove(&range.start.0).expect("it was found before the call");
        if let Some(tracked) = self.tracked.get_mut(&window.memory) {
            tracked.windows -= 1;
        }
    }

    /// Notes that the device reaches the host address `start` at `device`.
    pub(super) fn map_host(&mut self, start: HostPtr, device: DevicePtr) {
        let Some((region, tracked)) = self.host_region(start) else { return };
        let base = DevicePtr(device.0 - (start.0 - region.0));
        let range = VaRange { start: base, size_bytes: tracked.size_bytes };
        let memory = Memory::Host(region);
        if self.windows.get(&base.0).is_none_or(|window| window.memory != memory) {
            self.open(range, memory, true);
        }
    }

    fn open(&mut self, range: VaRange, memory: Memory, accessible: bool) {
        let uses = Frontier::default();
        let window = Window { size_bytes: range.size_bytes, memory, accessible, uses };
        self.windows.insert(range.start.0, window);
        self.tracked.entry(memory).or_default().windows += 1;
    }
}
