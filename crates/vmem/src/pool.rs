//! The device pool: every physical byte of the device that the engine holds.
//!
//! A block at or above the swap threshold has addresses and a chunk of its own, and can give the
//! chunk away while it keeps the addresses. Smaller blocks are pieces of segments. Freed chunks
//! are cached by size with the addresses at which they are mapped, so that the common allocation
//! makes no driver call at all. Reuse is ordered by stream waits, never by the host.
//!
//! On a device without virtual memory nothing can give its memory away under an address: there all
//! blocks are pieces of segments (`plain.rs`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use npu_sys::{ChunkHandle, DeviceProperties, DevicePtr, Driver, DriverError, ErrorKind, VaRange};

use crate::block::{Backing, Block, BlockId, BlockMemory, Chunk, Departure, Mapping, Spare};
use crate::block_table::BlockTable;
use crate::carver::{Carver, EmptyRegion, PieceId};
use crate::chunk_cache::{self, ChunkCache, Fit, Room};
use crate::error::MemoryError;
use crate::lot::Lot;
use crate::point::{Point, Site, StreamId, Uses};
use crate::stats::{MemoryStats, Peak};
use crate::streams::Streams;

use caller::Caller;
use mapper::{Mapper, Need, Progress, RangeState, Task};
use physical::MapFailure;

use self::leaving::Leaving;
use self::planned::{Layouts, Leftover};
use self::ranges::{SpareRanges, Stale, StaleRange};
use self::segments::Segments;

mod caller;
mod leaving;
mod mapper;
mod mapping;
mod moves;
mod outside;
mod physical;
mod planned;
mod query;
mod ranges;
mod segments;

/// Sizes of small blocks are multiples of this.
const PIECE_BYTES: u64 = 512;

/// Settings of a [`Pool`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolConfig {
    /// The cap: physical bytes held never exceed it.
    pub limit_bytes: u64,
    /// Blocks of at least this size are swappable.
    pub swap_threshold_bytes: u64,
    /// Size of a segment for small blocks; at least the threshold.
    pub segment_bytes: u64,
}

impl PoolConfig {
    /// Whether a block of `size_bytes` gets addresses and a chunk of its own, where the device has
    /// virtual memory.
    pub fn is_swappable_size(&self, size_bytes: u64) -> bool {
        size_bytes >= self.swap_threshold_bytes
    }

    /// Bytes in use from which on the cap is near. While nothing leaves there is room for so much,
    /// whatever chunks serve.
    pub fn near_bytes(&self) -> u64 {
        chunk_cache::near_bytes(self.limit_bytes)
    }
}

/// The device pool. See the module's first lines.
pub struct Pool {
    driver: Arc<Caller>,
    mapper: Mapper,
    /// Whether a chunk that was given away was last taken by an allocation.
    allocations_follow: bool,
    config: PoolConfig,
    granularity_bytes: u64,
    has_virtual_memory: bool,
    cache: ChunkCache<Spare>,
    blocks: BlockTable,
    spare_ranges: SpareRanges,
    stale: Stale,
    segments: Segments,
    leaving: Leaving,
    /// What the driver failed to take back; tried again later.
    unreleased: Vec<Leftover>,
    departures: u64,
    layouts: Layouts,
    stats: MemoryStats,
}

/// The least whole number of units that is not less, and not 0.
fn in_units(size_bytes: u64, unit_bytes: u64) -> Result<u64, MemoryError> {
    size_bytes
        .max(1)
        .checked_next_multiple_of(unit_bytes)
        .filter(|&bytes| i64::try_from(bytes).is_ok())
        .ok_or(MemoryError::BadSize { requested_bytes: size_bytes })
}

impl Pool {
    /// An empty pool.
    ///
    /// # Errors
    /// [`BadConfig`](MemoryError::BadConfig) if the settings contradict each other.
    pub fn new(driver: Arc<dyn Driver>, config: PoolConfig) -> Result<Pool, MemoryError> {
        let DeviceProperties { granularity_bytes, has_virtual_memory, .. } = driver.properties();
        let bad = |what: String| Err(MemoryError::BadConfig { what });
        if config.swap_threshold_bytes == 0 {
            return bad("the swap threshold is 0; use at least the granularity".to_owned());
        }
        if config.segment_bytes < config.swap_threshold_bytes {
            return bad(format!(
                "segments of {} bytes cannot hold blocks below the swap threshold of {} bytes",
                config.segment_bytes, config.swap_threshold_bytes
            ));
        }
        if config.limit_bytes < granularity_bytes {
            return bad(format!(
                "a cap of {} bytes is below the device's granularity of {granularity_bytes} bytes",
                config.limit_bytes
            ));
        }
        let driver = Arc::new(Caller::new(driver));
        Ok(Pool {
            mapper: Mapper::new(&driver),
            allocations_follow: false,
            driver,
            config,
            granularity_bytes,
            has_virtual_memory,
            cache: ChunkCache::new(config.limit_bytes),
            blocks: BlockTable::default(),
            spare_ranges: SpareRanges::default(),
            stale: Stale::default(),
            segments: Segments::default(),
            leaving: Leaving::default(),
            unreleased: Vec::new(),
            departures: 0,
            layouts: Layouts::default(),
            stats: MemoryStats::default(),
        })
    }

    /// The settings.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Holds little more than the last steps needed from here on, while the cap is far: for a cap
    /// that nobody asked for.
    pub fn hold_by_need(&mut self) {
        self.cache.hold_by_need();
    }

    /// Whether all blocks fit, and stay until they are freed: a chunk then serves smaller ones too.
    pub fn let_nothing_leave(&mut self, nothing_leaves: bool) {
        self.cache.let_nothing_leave(nothing_leaves);
    }

    /// Whether what the last steps needed leaves the cap far away, which nobody asked for.
    pub fn is_cap_far(&self) -> bool {
        self.cache.is_cap_far()
    }

    /// Whether a block of `size_bytes` gets addresses and a chunk of its own.
    pub fn is_swappable_size(&self, size_bytes: u64) -> bool {
        self.has_virtual_memory && self.config.is_swappable_size(size_bytes)
    }

    /// Allocates for use on `stream`, which waits for the memory's earlier users.
    ///
    /// # Errors
    /// [`DeviceFull`](MemoryError::DeviceFull) if the cap leaves no room even without the cache.
    pub fn allocate(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<BlockId, MemoryError> {
        if self.is_swappable_size(size_bytes) {
            return self.allocate_swappable(streams, size_bytes, stream, None);
        }
        let physical_bytes = self.physical_bytes(size_bytes)?;
        let placed = self.place_small(streams, physical_bytes, stream)?;
        Ok(self.insert(size_bytes, physical_bytes, placed))
    }

    /// Allocates a block with addresses of its own, also where it is below the swap threshold: in
    /// a lot of the layout if that is free, else with a chunk. On a device without virtual memory
    /// it is as any other.
    ///
    /// # Errors
    /// As for [`allocate`](Pool::allocate).
    pub fn allocate_swappable(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
        stream: StreamId,
        lot: Option<Lot>,
    ) -> Result<BlockId, MemoryError> {
        if !self.has_virtual_memory {
            return self.allocate(streams, size_bytes, stream);
        }
        let physical_bytes = self.swappable_bytes(size_bytes)?;
        let lot = lot.filter(|lot| lot.size_bytes >= physical_bytes);
        let placed = match self.place_planned(streams, lot, physical_bytes, stream)? {
            Some(placed) => placed,
            None => self.place_swappable(streams, physical_bytes, stream)?,
        };
        Ok(self.insert(size_bytes, physical_bytes, placed))
    }

    /// What a block of `size_bytes` takes.
    ///
    /// # Errors
    /// [`BadSize`](MemoryError::BadSize) if no device has so much.
    pub fn physical_bytes(&self, size_bytes: u64) -> Result<u64, MemoryError> {
        let is_swappable = self.is_swappable_size(size_bytes);
        in_units(size_bytes, if is_swappable { self.granularity_bytes } else { PIECE_BYTES })
    }

    /// What a block of `size_bytes` takes with addresses of its own.
    ///
    /// # Errors
    /// As for [`physical_bytes`](Pool::physical_bytes).
    pub fn swappable_bytes(&self, size_bytes: u64) -> Result<u64, MemoryError> {
        in_units(size_bytes, self.granularity_bytes)
    }

    fn insert(
        &mut self,
        requested_bytes: u64,
        size_bytes: u64,
        (memory, uses): (BlockMemory, Uses),
    ) -> BlockId {
        self.stats.requested_bytes.grow(requested_bytes);
        self.stats.allocated_bytes.grow(size_bytes);
        self.stats.active_bytes.grow(size_bytes);
        self.stats.allocations += 1;
        self.blocks.insert(requested_bytes, size_bytes, memory, uses)
    }

    fn place_planned(
        &mut self,
        streams: &mut Streams,
        lot: Option<Lot>,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<Option<(BlockMemory, Uses)>, MemoryError> {
        let Some(lot) = lot else { return Ok(None) };
        let taken = self.take_lot(streams, lot, size_bytes)?;
        let Some((backing, ready)) = taken else { return Ok(None) };
        let Backing::Lot { lot, .. } = backing else { unreachable!("a lot was asked for") };
        let mut waits = ready.points().iter();
        let waited =
            waits.try_for_each(|&p| streams.order_after(stream, p, Site::AllocateAfterRelease));
        match waited.and_then(|()| self.show_lot(lot)) {
            Ok(range) => Ok(Some((
                BlockMemory::Swappable { range, backing, mapping: Mapping::Mapped },
                ready,
            ))),
            Err(error) => {
                self.vacate(lot, size_bytes, &ready, None);
                Err(error.into())
            }
        }
    }

    fn place_swappable(
        &mut self,
        streams: &mut Streams,
        size_bytes: u64,
        stream: StreamId,
    ) -> Result<(BlockMemory, Uses), MemoryError> {
        let fit = self.cache.best_fit(size_bytes);
        let mut spare = self.take_spare(streams, fit)?;
        match self.prepare(streams, &mut spare, stream) {
            Ok(range) => {
                let backing = Backing::Chunk(spare.chunk);
                Ok((
                    BlockMemory::Swappable { range, backing, mapping: Mapping::Mapped },
                    spare.ready,
                ))
            }
            Err(error) => {
                self.cache.put(fit, spare);
                Err(error.into())
            }
        }
    }

    /// Maps a spare chunk somewhere and orders `stream` after its earlier users.
    fn prepare(
        &mut self,
        streams: &mut Streams,
        spare: &mut Spare,
        stream: StreamId,
    ) -> Result<VaRange, DriverError> {
        spare.ready.prune(streams);
        for &point in spare.ready.points() {
            streams.order_after(stream, point, Site::AllocateAfterRelease)?;
        }
        self.allocations_follow = spare.departure.is_some();
        if let Some(range) = spare.range.take() {
            match self.mapper.take(range) {
                None | Some(RangeState::Mapped) => return Ok(range),
                Some(RangeState::Failed(failure)) if failure.still_mapped => {
                    let chunk = spare.chunk.handle;
                    self.stale.push_range(range, chunk, Uses::default());
                }
                Some(RangeState::Unmapped | RangeState::Failed(_)) => self.keep_range(range),
            }
        }
        let range = self.take_range(spare.chunk.home.size_bytes)?;
        self.map(range, spare.chunk.handle)?;
        Ok(range)
    }

    /// Takes note that its owner has freed a block, whose memory is still needed. It no longer
    /// counts as allocated.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn disown(&mut self, id: BlockId) {
        let block = self.blocks.get_mut(id);
        if !std::mem::replace(&mut block.is_disowned, true) {
            self.stats.requested_bytes.shrink(block.requested_bytes);
            self.stats.allocated_bytes.shrink(block.size_bytes);
            self.stats.disowned_bytes += block.size_bytes;
        }
    }

    /// Frees a block. Its memory is reused only after the uses noted for it.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn free(&mut self, id: BlockId) {
        self.disown(id);
        let (size_bytes, memory, uses) = self.blocks.remove(id);
        self.stats.disowned_bytes -= size_bytes;
        match memory {
            BlockMemory::Freed => unreachable!("only live blocks are taken out"),
            BlockMemory::Piece { piece, .. } => {
                self.stats.active_bytes.shrink(size_bytes);
                self.segments.give_back(piece, uses);
            }
            BlockMemory::Swappable { range, backing, mapping } => {
                if !matches!(backing, Backing::Nothing) {
                    self.stats.active_bytes.shrink(size_bytes);
                }
                let fit = Fit { wanted_bytes: size_bytes, chunk_bytes: range.size_bytes };
                self.retire(fit, range, backing, mapping, uses);
            }
        }
    }

    /// Caches what a freed swappable block leaves behind.
    fn retire(&mut self, fit: Fit, range: VaRange, backing: Backing, mapping: Mapping, uses: Uses) {
        let mapped = matches!(mapping, Mapping::Mapped | Mapping::Coming);
        match mapping {
            Mapping::Mapped | Mapping::Coming => {}
            Mapping::Unmapped => self.keep_range(range),
            Mapping::Stale { chunk, uses, .. } => {
                self.stale.push_range(range, chunk, uses);
            }
            Mapping::Kept { lot, .. } => self.keep_shown(lot, range),
        }
        match backing {
            Backing::Nothing => assert!(!mapped, "a mapped block has something behind it"),
            Backing::Chunk(chunk) => {
                let range = mapped.then_some(range);
                self.cache.put(fit, Spare { chunk, range, ready: uses, departure: None });
            }
            Backing::Lot { lot, .. } => {
                if mapped {
                    self.keep_shown(lot, range);
                }
                self.vacate(lot, fit.wanted_bytes, &uses, None);
            }
        }
    }

    fn block(&self, id: BlockId) -> &Block {
        self.blocks.get(id)
    }

    fn block_mut(&mut self, id: BlockId) -> &mut Block {
        self.blocks.get_mut(id)
    }
}
