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
//! Nothing relies on it. A lot that is taken is refused, and so is one whose tiles find no room:
//! the block then gets a chunk of its own, as without a layout. Idle tiles go back to the driver
//! where others need their room, one by one, as cached chunks do.

use std::ops::Range;

use super::physical::unmap_unused;
use super::*;
use crate::block::PlannedLot;

/// The memory of one layout.
#[derive(Debug)]
pub(super) struct Planned {
    number: u32,
    home: VaRange,
    /// Where each tile starts, and where the last one ends.
    bounds: Vec<u64>,
    tiles: Vec<Tile>,
    /// Addresses of no block that show a lot.
    shown: BTreeMap<Lot, Vec<VaRange>>,
}

/// A part of planned memory that no lot cuts.
#[derive(Clone, Debug, Default)]
struct Tile {
    /// Its memory, once somebody needed it.
    chunk: Option<ChunkHandle>,
    is_taken: bool,
    /// Its next user waits for these.
    ready: Uses,
    /// How it was given away, if it was.
    departure: Option<Departure>,
    /// Counts what is given back, so that the longest idle one is known.
    idle_since: u64,
}

impl Planned {
    fn tile_range(&self, tile: usize) -> VaRange {
        self.range_at(self.home, 0, tile)
    }

    /// Where a tile is in addresses that show the tiles from `first` on.
    fn range_at(&self, range: VaRange, first: usize, tile: usize) -> VaRange {
        let start = DevicePtr(range.start.0 + self.bounds[tile] - self.bounds[first]);
        VaRange { start, size_bytes: self.bounds[tile + 1] - self.bounds[tile] }
    }

    fn tiles_of(&self, lot: Lot) -> Option<Range<usize>> {
        let first = self.bounds.binary_search(&lot.offset_bytes).ok()?;
        let end = self.bounds.binary_search(&lot.end_bytes()).ok()?;
        (first < end).then_some(first..end)
    }

    fn home_of(&self, lot: Lot) -> VaRange {
        let start = DevicePtr(self.home.start.0 + lot.offset_bytes - self.bounds[0]);
        VaRange { start, size_bytes: lot.size_bytes }
    }

    fn is_idle(&self, tile: usize) -> bool {
        self.tiles[tile].chunk.is_some() && !self.tiles[tile].is_taken
    }

    fn lot_of(&self, tiles: Range<usize>) -> Lot {
        let offset_bytes = self.bounds[tiles.start];
        Lot { offset_bytes, size_bytes: self.bounds[tiles.end] - offset_bytes }
    }

    /// The smallest run of idle tiles that has so many bytes, but not twice as many.
    fn idle_run(&self, size_bytes: u64) -> Option<Lot> {
        let mut best: Option<Lot> = None;
        for first in 0..self.tiles.len() {
            let idle = (first..self.tiles.len()).take_while(|&tile| self.is_idle(tile));
            let enough = |&tile: &usize| self.bounds[tile + 1] - self.bounds[first] >= size_bytes;
            let Some(last) = { idle }.find(enough) else { continue };
            let lot = self.lot_of(first..last + 1);
            if lot.size_bytes < 2 * size_bytes
                && best.is_none_or(|best| lot.size_bytes < best.size_bytes)
            {
                best = Some(lot);
            }
        }
        best
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
    /// this device can be are refused like those that are taken.
    ///
    /// # Errors
    /// If the driver has no addresses.
    pub fn lay_out(&mut self, lots: &[Lot]) -> Result<(), DriverError> {
        let lots = lots.iter().filter(|lot| self.can_be(**lot));
        let mut bounds: Vec<u64> = lots.flat_map(|l| [l.offset_bytes, l.end_bytes()]).collect();
        bounds.sort_unstable();
        bounds.dedup();
        if let Some(current) = self.layout.and_then(|number| self.planned_index(number))
            && self.planned[current].bounds == bounds
        {
            return Ok(());
        }
        self.layout = None;
        if bounds.len() < 2 || !self.has_virtual_memory {
            return Ok(());
        }
        let home = self.take_range(bounds[bounds.len() - 1] - bounds[0])?;
        let tiles = vec![Tile::default(); bounds.len() - 1];
        self.layouts += 1;
        let number = self.layouts;
        self.planned.push(Planned { number, home, bounds, tiles, shown: BTreeMap::new() });
        self.layout = Some(number);
        Ok(())
    }

    /// Whether the lot is a piece of memory that this device can have.
    fn can_be(&self, lot: Lot) -> bool {
        let Lot { offset_bytes, size_bytes } = lot;
        let is_whole = |bytes: u64| bytes.is_multiple_of(self.granularity_bytes);
        let total_bytes = self.driver.properties().total_bytes;
        let end_bytes = offset_bytes.checked_add(size_bytes);
        size_bytes > 0
            && is_whole(offset_bytes)
            && is_whole(size_bytes)
            && end_bytes.is_some_and(|end_bytes| end_bytes <= total_bytes)
    }

    fn planned_index(&self, number: u32) -> Option<usize> {
        self.planned.iter().position(|planned| planned.number == number)
    }

    fn planned_of(&mut self, lot: PlannedLot) -> (&mut Planned, Range<usize>) {
        let index = self.planned_index(lot.layout).expect("layouts outlive their lots");
        let planned = &mut self.planned[index];
        let tiles = planned.tiles_of(lot.lot).expect("the lot was taken");
        (planned, tiles)
    }

    /// Takes a lot of the present layout, and what its first user waits for. `None` if it is
    /// taken, or there is no room for its tiles.
    pub(super) fn take_lot(
        &mut self,
        streams: &mut Streams,
        lot: Lot,
    ) -> Result<Option<(Backing, Uses)>, MemoryError> {
        let Some(layout) = self.layout else { return Ok(None) };
        let index = self.planned_index(layout).expect("the present layout is kept");
        let Some(tiles) = self.planned[index].tiles_of(lot) else { return Ok(None) };
        if self.planned[index].tiles[tiles.clone()].iter().any(|tile| tile.is_taken) {
            return Ok(None);
        }
        let lot = PlannedLot { layout, lot };
        // Taken first: making room for one must not give another back.
        self.planned[index].tiles[tiles.clone()].iter_mut().for_each(|tile| tile.is_taken = true);
        for tile in tiles.clone() {
            if let Err(error) = self.fill_tile(streams, layout, tile) {
                let (planned, tiles) = self.planned_of(lot);
                planned.tiles[tiles].iter_mut().for_each(|tile| tile.is_taken = false);
                let is_short = matches!(error, MemoryError::DeviceFull { .. });
                return if is_short { Ok(None) } else { Err(error) };
            }
        }
        let (planned, tiles) = self.planned_of(lot);
        let mut ready = Uses::default();
        planned.tiles[tiles].iter().for_each(|tile| ready.merge(&tile.ready));
        let home = planned.home_of(lot.lot);
        ready.prune(streams);
        Ok(Some((Backing::Lot { lot, home }, ready)))
    }

    /// Whether the present layout has the lot, and the block's addresses are as long.
    ///
    /// # Panics
    /// If the block is not live or not swappable.
    pub fn could_lie_in(&self, id: BlockId, lot: Lot) -> bool {
        let index = self.layout.and_then(|number| self.planned_index(number));
        let has = index.is_some_and(|index| self.planned[index].tiles_of(lot).is_some());
        has && self.block(id).fit().chunk_bytes == lot.size_bytes
    }

    /// A lot of idle tiles for a block that goes before anybody else asks for one, as scratch does.
    pub fn idle_lot(&self, size_bytes: u64) -> Option<Lot> {
        let size_bytes = size_bytes.checked_next_multiple_of(self.granularity_bytes)?;
        let index = self.layout.and_then(|number| self.planned_index(number))?;
        self.planned[index].idle_run(size_bytes)
    }

    /// Gives a tile its memory, if it has none.
    fn fill_tile(
        &mut self,
        streams: &mut Streams,
        layout: u32,
        tile: usize,
    ) -> Result<(), MemoryError> {
        let index = self.planned_index(layout).expect("its lot is being taken");
        if self.planned[index].tiles[tile].chunk.is_some() {
            return Ok(());
        }
        let range = self.planned[index].tile_range(tile);
        self.make_room(streams, range.size_bytes)?;
        let handle = self.driver.create_chunk(range.size_bytes).map_err(|error| {
            let limit_bytes = self.config.limit_bytes;
            match error.kind {
                ErrorKind::OutOfMemory => {
                    MemoryError::DeviceFull { missing_bytes: range.size_bytes, limit_bytes }
                }
                _ => error.into(),
            }
        })?;
        self.cache.charge(Fit::exact(range.size_bytes));
        self.note_held();
        if let Err(failure) = self.try_map(range, handle) {
            let mapped = if failure.still_mapped { vec![range] } else { Vec::new() };
            let chunk = Some((handle, range.size_bytes));
            self.unreleased.push(Leftover { mapped, chunk, range: None });
            self.release_leftovers();
            return Err(failure.error.into());
        }
        // Making room may have ended an earlier layout.
        let index = self.planned_index(layout).expect("its lot is being taken");
        self.planned[index].tiles[tile] =
            Tile { chunk: Some(handle), is_taken: true, ..Tile::default() };
        Ok(())
    }

    /// Gives a lot back; its next user waits for `ready`.
    pub(super) fn vacate(&mut self, lot: PlannedLot, ready: &Uses, departure: Option<Departure>) {
        self.idle_count += 1;
        let idle_since = self.idle_count;
        let (planned, tiles) = self.planned_of(lot);
        for tile in &mut planned.tiles[tiles] {
            tile.is_taken = false;
            tile.ready = ready.clone();
            tile.departure = departure;
            tile.idle_since = idle_since;
        }
    }

    /// Takes a lot back that was given away by `departure`, if nobody had any of it since. Returns
    /// what was under way.
    pub(super) fn retake_lot(&mut self, lot: PlannedLot, departure: Departure) -> Option<Uses> {
        let (planned, tiles) = self.planned_of(lot);
        let tiles = &mut planned.tiles[tiles];
        let is_own = |tile: &Tile| {
            tile.chunk.is_some() && !tile.is_taken && tile.departure == Some(departure)
        };
        if !tiles.iter().all(is_own) {
            return None;
        }
        tiles.iter_mut().for_each(|tile| tile.is_taken = true);
        Some(tiles[0].ready.clone())
    }

    pub(super) fn home_of_lot(&self, lot: PlannedLot) -> VaRange {
        let index = self.planned_index(lot.layout).expect("layouts outlive their lots");
        self.planned[index].home_of(lot.lot)
    }

    /// Addresses that show a lot which the caller has taken.
    pub(super) fn show_lot(&mut self, lot: PlannedLot) -> Result<VaRange, DriverError> {
        let (planned, _) = self.planned_of(lot);
        if let Some(range) = planned.shown.get_mut(&lot.lot).and_then(Vec::pop) {
            return Ok(range);
        }
        let range = self.take_range(lot.lot.size_bytes)?;
        match self.map_lot(range, lot) {
            Ok(()) => Ok(range),
            Err((error, mapped)) if mapped.is_empty() => {
                self.keep_range(range);
                Err(error)
            }
            Err((error, mapped)) => {
                self.unreleased.push(Leftover { mapped, chunk: None, range: Some(range) });
                Err(error)
            }
        }
    }

    /// Keeps addresses that show a lot for the next block there.
    pub(super) fn keep_shown(&mut self, lot: PlannedLot, range: VaRange) {
        let (planned, _) = self.planned_of(lot);
        planned.shown.entry(lot.lot).or_default().push(range);
    }

    /// Maps a lot at a range. On failure it says which mappings could not be taken back.
    pub(super) fn map_lot(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
    ) -> Result<(), (DriverError, Vec<VaRange>)> {
        let (planned, tiles) = self.planned_of(lot);
        let pieces: Vec<(VaRange, ChunkHandle)> = tiles
            .clone()
            .map(|tile| {
                let handle = planned.tiles[tile].chunk.expect("a taken lot has its memory");
                (planned.range_at(range, tiles.start, tile), handle)
            })
            .collect();
        let mut mapped = Vec::new();
        let mut result = Ok(());
        for &(piece, handle) in &pieces {
            result = self.driver.map(piece, handle);
            if result.is_err() {
                break;
            }
            mapped.push(piece);
        }
        let result = result.and_then(|()| self.driver.set_access(range));
        result.map_err(|error| {
            // Nothing has used the mappings yet.
            mapped.retain(|&piece| unmap_unused(&self.driver, piece).is_err());
            (error, mapped)
        })
    }

    /// Takes away the mappings of a lot at a range. The caller made sure that the uses there are
    /// complete. Mappings that stay are tried again later; `then` is kept when all are gone.
    pub(super) fn unmap_lot(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
        then: Option<VaRange>,
    ) -> Result<(), DriverError> {
        let (planned, tiles) = self.planned_of(lot);
        let mut pieces: Vec<VaRange> =
            tiles.clone().map(|tile| planned.range_at(range, tiles.start, tile)).collect();
        let mut result = Ok(());
        pieces.retain(|&piece| match unmap_unused(&self.driver, piece) {
            Ok(()) => false,
            Err(error) => {
                result = Err(error);
                true
            }
        });
        if result.is_ok() {
            then.into_iter().for_each(|range| self.keep_range(range));
        } else {
            self.unreleased.push(Leftover { mapped: pieces, chunk: None, range: then });
        }
        result
    }

    /// Gives the tile that has been idle the longest back to the driver, waiting on the host for
    /// its last users; tiles of earlier layouts first. Returns whether there was one.
    pub(super) fn release_idle_tile(&mut self, streams: &mut Streams) -> Result<bool, DriverError> {
        let idle = |planned: &Planned| {
            let key = |tile: usize| (planned.number, planned.tiles[tile].idle_since, tile);
            (0..planned.tiles.len()).filter(|&tile| planned.is_idle(tile)).map(key).min()
        };
        // Layouts are in their order.
        let Some((number, _, tile)) = self.planned.iter().find_map(idle) else { return Ok(false) };
        self.release_tile(streams, number, tile).map(|()| true)
    }

    /// Gives an idle tile back. On failure it has its memory still, or that is left over.
    fn release_tile(
        &mut self,
        streams: &mut Streams,
        number: u32,
        tile: usize,
    ) -> Result<(), DriverError> {
        let index = self.planned_index(number).expect("the caller found it");
        let ready = self.planned[index].tiles[tile].ready.clone();
        streams.wait_host(&ready, Site::ReleaseAfterUse)?;
        self.unmap_shown(number, tile)?;
        self.forget_kept(streams, number, tile)?;
        // Memory that is mapped anywhere else stays with the device.
        self.release_leftovers().map_or(Ok(()), Err)?;
        let planned = &mut self.planned[index];
        let range = planned.tile_range(tile);
        let handle = planned.tiles[tile].chunk.take().expect("idle tiles have memory");
        let chunk = Some((handle, range.size_bytes));
        self.unreleased.push(Leftover { mapped: vec![range], chunk, range: None });
        self.release_leftovers().map_or(Ok(()), Err)
    }

    /// Takes the mappings of a tile away from addresses of no block.
    fn unmap_shown(&mut self, number: u32, tile: usize) -> Result<(), DriverError> {
        let index = self.planned_index(number).expect("the caller has it");
        let planned = &self.planned[index];
        let shows = |lot: &Lot| planned.tiles_of(*lot).is_some_and(|tiles| tiles.contains(&tile));
        let lots: Vec<Lot> = planned.shown.keys().copied().filter(shows).collect();
        let mut result = Ok(());
        for lot in lots {
            let ranges = self.planned[index].shown.remove(&lot).unwrap_or_default();
            for range in ranges {
                let lot = PlannedLot { layout: number, lot };
                result = result.and(self.unmap_lot(range, lot, Some(range)));
            }
        }
        result
    }

    /// Unmaps what live blocks keep of a tile for their return.
    fn forget_kept(
        &mut self,
        streams: &mut Streams,
        number: u32,
        tile: usize,
    ) -> Result<(), DriverError> {
        let index = self.planned_index(number).expect("the caller has it");
        let planned = &self.planned[index];
        let keeps = |block: &Block| match &block.place {
            Place::Swappable { mapping: Mapping::Kept { lot, .. }, .. } => {
                lot.layout == number
                    && planned.tiles_of(lot.lot).is_some_and(|tiles| tiles.contains(&tile))
            }
            _ => false,
        };
        let kept: Vec<u32> =
            (0..).zip(&self.blocks).filter(|(_, block)| keeps(block)).map(|(at, _)| at).collect();
        let mut result = Ok(());
        for index in kept {
            let id = BlockId { index, generation: self.blocks[index as usize].generation };
            result = result.and(self.unmap_kept(streams, id));
        }
        result
    }

    /// Unmaps a lot that a block has given away, once its uses there are complete.
    pub(super) fn unmap_kept(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<(), DriverError> {
        let Place::Swappable { range, mapping: Mapping::Kept { lot, uses }, .. } =
            &self.block(id).place
        else {
            return Ok(());
        };
        let (range, lot, uses) = (*range, *lot, uses.clone());
        streams.wait_host(&uses, Site::RemapAfterUse)?;
        self.set_mapping(id, Mapping::Unmapped);
        self.unmap_lot(range, lot, None)
    }

    /// Gives back what is idle of earlier layouts and that the device is known to be done with.
    pub(super) fn release_earlier_layouts(
        &mut self,
        streams: &mut Streams,
        waits: bool,
    ) -> Result<(), DriverError> {
        let present = self.layout;
        let earlier = |number: &u32| present != Some(*number);
        let numbers = self.planned.iter().map(|planned| planned.number).filter(earlier);
        for number in numbers.collect::<Vec<u32>>() {
            let index = self.planned_index(number).expect("just seen");
            for tile in 0..self.planned[index].tiles.len() {
                let planned = &self.planned[index];
                let ready = &planned.tiles[tile].ready;
                if planned.is_idle(tile)
                    && (waits || streams.are_complete(ready, Site::ReleaseAfterUse)?)
                {
                    self.release_tile(streams, number, tile)?;
                }
            }
            let is_empty = |planned: &Planned| planned.tiles.iter().all(|t| t.chunk.is_none());
            if is_empty(&self.planned[index]) {
                let planned = self.planned.remove(index);
                self.keep_range(planned.home);
            }
        }
        Ok(())
    }
}
