//! Planned memory: blocks of a step like the last find their bytes and addresses where they were.
//!
//! ```text
//!   home addresses   |  tile 0  | tile 1 |      tile 2      | tile 3 |   one chunk each
//!   a block's        |      lot A        |
//!   another's                   |           lot B           |
//! ```
//!
//! A layout gives each block of a step a [`Lot`] of one contiguous memory. *Tiles* are the chunks
//! of that memory, cut wherever a lot starts or ends, so that a lot is a run of tiles. They lie
//! side by side at home addresses, where copies run. A block's own addresses show its lot for as
//! long as the layout lasts, also while the block is away and others are in the lot, and go to the
//! next block with that lot. So a step that is like the planned one maps nothing.
//!
//! A lot for which there is no room in one place is in pieces ([`LotPiece`]): its tiles, beyond all
//! memory, show that of others, at their home as well.
//!
//! Nothing relies on it. A lot that is taken is refused, and so is one whose tiles find no room:
//! the block then gets a chunk of its own, as without a layout. Idle tiles go back to the driver
//! where others need their room, one by one, as cached chunks do. Addresses then have a gap where
//! the tile was ([`shown`]).

use std::ops::Range;

use super::mapping::UNMAPS_PER_POLL;
use super::*;
use crate::block::PlannedLot;
use crate::lot::LotPiece;

use self::shown::{Shown, joined};
use self::tiles::Tiles;

pub(super) use self::layouts::Layouts;

mod layouts;
mod shown;
mod tiles;

/// Lots in pieces lie below so many times the device's memory, or are refused: all addresses of a
/// layout are reserved.
const SHOWN_MEMORIES_MAX: u64 = 64;

/// To find one that the device is done with, so many idle tiles are asked about.
const IDLE_LOOKED_AT: usize = 64;

/// The memory of one layout.
#[derive(Debug)]
pub(super) struct Planned {
    number: u32,
    home: VaRange,
    tiles: Tiles,
    shown: Shown,
}

impl Planned {
    fn home_of(&self, tiles: Range<usize>) -> VaRange {
        self.tiles.range_at(self.home, 0, tiles)
    }

    /// The homes of all tiles that show the memory of this one.
    fn homes_of(&self, own: usize) -> Vec<VaRange> {
        self.tiles.showing(own).map(|tile| self.home_of(tile..tile + 1)).collect()
    }
}

/// Memory that the driver failed to take back, and what is still in its way.
#[derive(Debug, Default)]
pub(super) struct Leftover {
    /// Mappings to take away first.
    pub(super) mapped: Vec<VaRange>,
    /// What is released then.
    pub(super) chunk: Option<(ChunkHandle, u64)>,
    /// What is free then.
    pub(super) range: Option<VaRange>,
}

impl Pool {
    /// Blocks come to lie in these lots from here on, if they ask for them; those in earlier ones
    /// stay until they leave. No lots: each block gets a chunk of its own. Lots that no memory of
    /// this device can be, by themselves or in pieces, are refused like those that are taken.
    ///
    /// # Errors
    /// If the driver has no addresses.
    pub fn lay_out(&mut self, lots: &[Lot], pieces: &[LotPiece]) -> Result<(), DriverError> {
        let can_be = |piece: &LotPiece| self.can_be(piece.memory);
        let mut pieces: Vec<LotPiece> = pieces.iter().copied().filter(can_be).collect();
        pieces.sort_by_key(|piece| piece.shown_at_bytes);
        let can_be = |lot: &Lot| self.can_be(*lot) || self.is_in_pieces(*lot, &pieces);
        let lots = lots.iter().copied().filter(can_be);
        let tiles = Tiles::cut(lots, &pieces).filter(|_| self.has_virtual_memory);
        let present = self.layouts.present().map(|planned| &planned.tiles);
        if let (Some(tiles), Some(present)) = (&tiles, present)
            && present.is_cut_like(tiles)
        {
            return Ok(());
        }
        self.layouts.end_present();
        let Some(tiles) = tiles else { return Ok(()) };
        let home = self.take_range(tiles.size_bytes())?;
        self.layouts.begin(home, tiles);
        Ok(())
    }

    /// Whether the lot is a piece of memory that this device can have.
    fn can_be(&self, lot: Lot) -> bool {
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.granularity_bytes);
        lot.size_bytes > 0
            && is_whole(lot.offset_bytes)
            && is_whole(lot.size_bytes)
            && lot.end_bytes() <= self.driver.properties().total_bytes
    }

    /// Whether the lot is made of some of these pieces, which are in order.
    fn is_in_pieces(&self, lot: Lot, pieces: &[LotPiece]) -> bool {
        let of_lot = pieces.iter().map(|piece| piece.shown()).filter(|it| !it.is_apart_from(lot));
        let (mut end_bytes, mut are_side_by_side) = (lot.offset_bytes, true);
        for shown in of_lot {
            are_side_by_side &= shown.offset_bytes == end_bytes;
            end_bytes = shown.end_bytes();
        }
        let end_bytes_max = self.driver.properties().total_bytes.saturating_mul(SHOWN_MEMORIES_MAX);
        let is_near = lot.end_bytes() <= end_bytes_max;
        is_near && are_side_by_side && end_bytes > lot.offset_bytes && end_bytes == lot.end_bytes()
    }

    fn planned_of(&mut self, lot: PlannedLot) -> (&mut Planned, Range<usize>) {
        let planned = self.layouts.get_mut(lot.layout);
        let tiles = planned.tiles.of(lot.lot).expect("the lot was taken");
        (planned, tiles)
    }

    /// Takes a lot of the present layout for a block of `size_bytes`, and what its first user waits
    /// for. `None` if it is taken, or there is no room for its tiles.
    pub(super) fn take_lot(
        &mut self,
        streams: &mut Streams,
        lot: Lot,
        size_bytes: u64,
    ) -> Result<Option<(Backing, Uses)>, MemoryError> {
        let Some(layout) = self.layouts.present else { return Ok(None) };
        let present = &mut self.layouts.get_mut(layout).tiles;
        // Taken first: making room for one must not give another back.
        let Some(tiles) = present.of(lot).filter(|tiles| present.take(tiles.clone())) else {
            return Ok(None);
        };
        let lot = PlannedLot { layout, lot };
        if let Err(error) = self.fill_tiles(streams, layout, tiles) {
            let (planned, tiles) = self.planned_of(lot);
            planned.tiles.put_back(tiles);
            let is_short = matches!(error, MemoryError::DeviceFull { .. });
            return if is_short { Ok(None) } else { Err(error) };
        }
        self.cache.use_idle(size_bytes);
        let (planned, tiles) = self.planned_of(lot);
        let mut ready = planned.tiles.ready(tiles.clone());
        let home = planned.home_of(tiles);
        ready.prune(streams);
        Ok(Some((Backing::Lot { lot, home }, ready)))
    }

    /// Whether the present layout has the lot, and the block's addresses are as long.
    ///
    /// # Panics
    /// If the block is not live or not swappable.
    pub fn could_lie_in(&self, id: BlockId, lot: Lot) -> bool {
        let has = self.layouts.present().is_some_and(|planned| planned.tiles.of(lot).is_some());
        has && self.block(id).fit().chunk_bytes == lot.size_bytes
    }

    /// Whether the block is away from this lot of the present layout, and from no other memory.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn left(&self, id: BlockId, lot: Lot) -> bool {
        match &self.block(id).memory {
            BlockMemory::Swappable { mapping: Mapping::Kept { lot: kept, .. }, .. } => {
                self.is_at_present(*kept, lot)
            }
            _ => false,
        }
    }

    /// Whether the block lies in this lot of the present layout, or left it and no other memory.
    ///
    /// # Panics
    /// If the block is not live.
    pub fn is_of(&self, id: BlockId, lot: Lot) -> bool {
        match &self.block(id).memory {
            BlockMemory::Swappable { backing: Backing::Lot { lot: has, .. }, .. } => {
                self.is_at_present(*has, lot)
            }
            _ => self.left(id, lot),
        }
    }

    /// Whether a planned lot is this one of the present layout.
    fn is_at_present(&self, planned: PlannedLot, lot: Lot) -> bool {
        Some(planned.layout) == self.layouts.present && planned.lot == lot
    }

    /// A lot of idle tiles for a block that goes before anybody else asks for one, as scratch does.
    pub fn idle_lot(&self, size_bytes: u64) -> Option<Lot> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.granularity_bytes)?;
        self.layouts.present()?.tiles.idle_run(size_bytes)
    }

    /// Memory of the layout for a block that is none of it: a lot of just this size in which nobody
    /// is. Rather one that was left last and that addresses show, since that takes no call.
    pub fn spare_lot(&self, size_bytes: u64) -> Option<Lot> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.granularity_bytes)?;
        let Planned { tiles, shown, .. } = self.layouts.present()?;
        let left = |lot: Lot| Some((tiles.left_at(tiles.of(lot)?)?, lot));
        let as_large = shown.spare_lots().filter(|lot| lot.size_bytes == size_bytes);
        let shown = as_large.filter_map(left).max();
        let run = || tiles.idle_run(size_bytes).filter(|lot| lot.size_bytes == size_bytes);
        shown.map(|(_, lot)| lot).or_else(run)
    }

    /// Whether so much can be had for tiles. What could not be had in whole would be made in part,
    /// and given back for whoever asks next.
    fn has_room(&mut self, streams: &mut Streams, size_bytes: u64) -> Result<bool, DriverError> {
        loop {
            let idle_bytes: u64 = self.layouts.all.iter().map(|all| all.tiles.idle_bytes()).sum();
            let kept_bytes = self.cache.held_bytes() - self.cache.cached_bytes() - idle_bytes;
            if size_bytes <= self.config.limit_bytes.saturating_sub(kept_bytes) {
                return Ok(true);
            }
            if !self.release_empty_segment(streams)? {
                return Ok(false);
            }
        }
    }

    /// Gives memory to those of these tiles that have none; to all or none.
    fn fill_tiles(
        &mut self,
        streams: &mut Streams,
        layout: u32,
        tiles: Range<usize>,
    ) -> Result<(), MemoryError> {
        let missing_bytes = self.layouts.get(layout).tiles.missing_bytes(tiles.clone());
        // Most have their memory already.
        if missing_bytes == 0 {
            return Ok(());
        }
        if !self.has_room(streams, missing_bytes)? {
            let limit_bytes = self.config.limit_bytes;
            return Err(MemoryError::DeviceFull { missing_bytes, limit_bytes });
        }
        let mut made = Vec::new();
        let mut result = Ok(());
        for tile in tiles {
            let planned = self.layouts.get(layout);
            if planned.tiles.chunk(tile).is_some() {
                continue;
            }
            let homes = planned.homes_of(planned.tiles.source(tile));
            match self.make_tile(streams, &homes) {
                Ok(handle) => made.push((tile, homes, handle)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        if result.is_ok() {
            let homes = made.iter().flat_map(|(_, homes, _)| homes).copied();
            let mut homes: Vec<VaRange> = homes.collect();
            homes.sort_unstable_by_key(|home| home.start);
            let mut runs = joined(&homes).into_iter();
            result = runs.try_for_each(|run| Ok(self.driver.set_access(run)?));
        }
        for (tile, mapped, handle) in made {
            if result.is_ok() {
                self.layouts.get_mut(layout).tiles.fill(tile, handle);
                self.cache.put_idle(mapped[0].size_bytes);
            } else {
                let chunk = Some((handle, mapped[0].size_bytes));
                self.unreleased.push(Leftover { mapped, chunk, range: None });
            }
        }
        if result.is_err() {
            self.release_leftovers();
        }
        result
    }

    /// Memory for a tile, mapped at the homes of all that show it, which nothing may access yet.
    fn make_tile(
        &mut self,
        streams: &mut Streams,
        homes: &[VaRange],
    ) -> Result<ChunkHandle, MemoryError> {
        let size_bytes = homes[0].size_bytes;
        self.make_room(streams, size_bytes)?;
        let created = self.driver.create_chunk(size_bytes);
        let handle = created.map_err(|error| self.not_created(error, size_bytes))?;
        self.cache.hold(size_bytes);
        self.note_held();
        for (count, &home) in homes.iter().enumerate() {
            if let Err(error) = self.driver.map(home, handle) {
                let (mapped, chunk) = (homes[..count].to_vec(), Some((handle, size_bytes)));
                self.unreleased.push(Leftover { mapped, chunk, range: None });
                self.release_leftovers();
                return Err(error.into());
            }
        }
        Ok(handle)
    }

    /// Gives a lot back in which a block of `size_bytes` lay; its next user waits for `ready`.
    pub(super) fn vacate(
        &mut self,
        lot: PlannedLot,
        size_bytes: u64,
        ready: &Uses,
        departure: Option<Departure>,
    ) {
        let (planned, tiles) = self.planned_of(lot);
        planned.tiles.vacate(tiles, ready, departure);
        self.cache.put_idle(size_bytes);
    }

    /// Takes a lot back for a block of `size_bytes` that gave it away by `departure`, if nobody had
    /// any of it since. Returns what was under way.
    pub(super) fn retake_lot(
        &mut self,
        lot: PlannedLot,
        size_bytes: u64,
        departure: Departure,
    ) -> Option<Uses> {
        let (planned, tiles) = self.planned_of(lot);
        let retaken = planned.tiles.retake(tiles.clone(), departure);
        let ready = retaken.then(|| planned.tiles.ready(tiles))?;
        self.cache.use_idle(size_bytes);
        Some(ready)
    }

    pub(super) fn home_of_lot(&mut self, lot: PlannedLot) -> VaRange {
        let (planned, tiles) = self.planned_of(lot);
        planned.home_of(tiles)
    }

    /// Gives an idle tile back to the driver; tiles of earlier layouts first. Rather one that the
    /// device is done with: otherwise the host waits. Returns whether there was one.
    pub(super) fn release_idle_tile(&mut self, streams: &mut Streams) -> Result<bool, DriverError> {
        for planned in &self.layouts.all {
            let idle = planned.tiles.idle();
            // The device is done with that first.
            let oldest = idle.iter().copied().min_by_key(|&tile| planned.tiles.idle_since(tile));
            let Some(mut chosen) = oldest else { continue };
            for tile in idle.into_iter().take(IDLE_LOOKED_AT) {
                let ready = planned.tiles.ready(tile..tile + 1);
                if streams.are_complete(&ready, Site::ReleaseAfterUse)? {
                    chosen = tile;
                    break;
                }
            }
            let number = planned.number;
            return self.release_tile(streams, number, chosen).map(|()| true);
        }
        Ok(false)
    }

    /// Gives an idle tile back. On failure it has its memory still, or that is left over.
    fn release_tile(
        &mut self,
        streams: &mut Streams,
        number: u32,
        tile: usize,
    ) -> Result<(), DriverError> {
        let ready = self.layouts.get(number).tiles.ready(tile..tile + 1);
        streams.wait_host(&ready, Site::ReleaseAfterUse)?;
        // SAFETY: waited for just now.
        unsafe { self.hide_tile(streams, number, tile) }?;
        // Memory that is mapped anywhere else stays with the device.
        self.release_leftovers().map_or(Ok(()), Err)?;
        let planned = self.layouts.get_mut(number);
        let mapped = planned.homes_of(tile);
        let chunk = Some((planned.tiles.empty(tile), mapped[0].size_bytes));
        self.cache.take_idle(mapped[0].size_bytes);
        self.unreleased.push(Leftover { mapped, chunk, range: None });
        self.release_leftovers().map_or(Ok(()), Err)
    }

    /// Whether the addresses of blocks that are away show nothing from here on, as soon as the
    /// device is known to be done with them ([`poll`](Pool::poll)). Otherwise they show the lot
    /// that the block had, in which others are now: a use that nobody told of then goes unnoticed.
    pub fn hide_away(&mut self, hides: bool) {
        let keeps = |block: &Block| {
            matches!(block.memory, BlockMemory::Swappable { mapping: Mapping::Kept { .. }, .. })
        };
        self.layouts.hiding = hides.then(|| self.blocks.ids(keeps).collect());
    }

    /// Unmaps what is to be hidden and out of use.
    pub(super) fn poll_hiding(&mut self, streams: &mut Streams) -> Result<(), DriverError> {
        for _ in 0..UNMAPS_PER_POLL {
            let oldest = self.layouts.hiding.as_ref().and_then(VecDeque::front).copied();
            let Some(id) = oldest.filter(|_| self.unreleased.is_empty()) else { break };
            let kept = self.blocks.find(id).map(|block| &block.memory);
            if let Some(BlockMemory::Swappable { mapping: Mapping::Kept { uses, .. }, .. }) = kept {
                let uses = uses.clone();
                if !streams.are_complete(&uses, Site::UnmapBlockAfterUse)? {
                    break;
                }
                self.unmap_kept(streams, id)?;
            }
            self.layouts.hiding.as_mut().and_then(VecDeque::pop_front);
        }
        Ok(())
    }

    /// Gives back what is idle of earlier layouts and that the device is known to be done with.
    pub(super) fn release_earlier_layouts(
        &mut self,
        streams: &mut Streams,
        waits: bool,
    ) -> Result<(), DriverError> {
        for number in self.layouts.earlier() {
            let own: Vec<usize> = self.layouts.get(number).tiles.own().collect();
            for tile in own {
                let tiles = &self.layouts.get(number).tiles;
                let ready = tiles.ready(tile..tile + 1);
                if tiles.is_idle(tile)
                    && (waits || streams.are_complete(&ready, Site::ReleaseAfterUse)?)
                {
                    self.release_tile(streams, number, tile)?;
                }
            }
            if let Some(home) = self.layouts.remove_empty(number) {
                self.keep_range(home);
            }
        }
        Ok(())
    }
}
