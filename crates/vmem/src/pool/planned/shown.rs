//! Addresses that show lots, those of blocks and those kept for the next block there.
//!
//! A tile that goes back to the driver leaves a *gap* in them. All else stays mapped, and the gap
//! is filled when somebody is to use the addresses again.

use std::collections::{BTreeMap, BTreeSet};

use super::super::physical::unmap_unused;
use super::super::*;
use super::Planned;
use crate::block::PlannedLot;

/// The addresses of no block that show lots, and what any addresses leave out.
#[derive(Debug, Default)]
pub(super) struct Shown {
    spare: BTreeMap<Lot, Vec<VaRange>>,
    /// By where addresses start that show a lot, of a block or not: the tiles that they do not.
    gaps: BTreeMap<DevicePtr, BTreeSet<usize>>,
}

impl Shown {
    /// Lots that spare addresses show.
    pub(super) fn spare_lots(&self) -> impl Iterator<Item = Lot> {
        self.spare.iter().filter(|(_, ranges)| !ranges.is_empty()).map(|(&lot, _)| lot)
    }

    fn is_gap(&self, range: VaRange, tile: usize) -> bool {
        self.gaps.get(&range.start).is_some_and(|gaps| gaps.contains(&tile))
    }

    /// Forgets addresses that leave out all `tiles_count` tiles of their lot, if they do.
    fn forget_empty(&mut self, range: VaRange, tiles_count: usize) -> bool {
        let is_empty = self.gaps.get(&range.start).is_some_and(|gaps| gaps.len() == tiles_count);
        if is_empty {
            self.gaps.remove(&range.start);
        }
        is_empty
    }
}

impl Planned {
    /// Where each tile of a lot is in addresses that show it, gaps or not.
    fn pieces(&self, range: VaRange, lot: Lot) -> Vec<(usize, VaRange)> {
        let tiles = self.tiles.of(lot).expect("the lot was taken");
        let first = tiles.start;
        tiles.map(|tile| (tile, self.tiles.range_at(range, first, tile..tile + 1))).collect()
    }

    /// The tile of a lot that shows the memory of this one.
    fn showing_in(&self, lot: Lot, own: usize) -> Option<usize> {
        self.tiles.of(lot).and_then(|tiles| self.tiles.find(tiles, own))
    }
}

impl Pool {
    /// Addresses that show a lot which the caller has taken.
    pub(in crate::pool) fn show_lot(&mut self, lot: PlannedLot) -> Result<VaRange, DriverError> {
        let shown = &mut self.layouts.get_mut(lot.layout).shown;
        if let Some(range) = shown.spare.get_mut(&lot.lot).and_then(Vec::pop) {
            self.fill_gaps(range, lot).inspect_err(|_| self.keep_shown(lot, range))?;
            return Ok(range);
        }
        let range = self.take_range(lot.lot.size_bytes)?;
        self.map_lot(range, lot).inspect_err(|_| self.keep_range(range))?;
        Ok(range)
    }

    /// Keeps addresses that show a lot for the next block there.
    pub(in crate::pool) fn keep_shown(&mut self, lot: PlannedLot, range: VaRange) {
        let shown = &mut self.layouts.get_mut(lot.layout).shown;
        shown.spare.entry(lot.lot).or_default().push(range);
    }

    /// Whether addresses that show a lot leave out some of it.
    pub(in crate::pool) fn has_gaps(&self, range: VaRange, lot: PlannedLot) -> bool {
        self.layouts.get(lot.layout).shown.gaps.contains_key(&range.start)
    }

    /// The addresses of a block that is back in a lot of which they do not show all.
    pub(in crate::pool) fn partly_shown(&self, id: BlockId) -> Option<(VaRange, PlannedLot)> {
        match &self.block(id).memory {
            BlockMemory::Swappable {
                range,
                backing: Backing::Lot { lot, .. },
                mapping: Mapping::Kept { lot: kept, .. },
            } if lot == kept => Some((*range, *lot)),
            _ => None,
        }
    }

    /// Maps a lot at addresses that show nothing.
    pub(in crate::pool) fn map_lot(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
    ) -> Result<(), DriverError> {
        let pieces = self.layouts.get(lot.layout).pieces(range, lot.lot);
        self.map_pieces(lot, &pieces)
    }

    /// Maps what addresses that show a lot leave out. The caller has taken the lot.
    pub(in crate::pool) fn fill_gaps(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
    ) -> Result<(), DriverError> {
        if !self.has_gaps(range, lot) {
            return Ok(());
        }
        if !self.unreleased.is_empty() {
            // Part of what was here may be. If it stays, the call below says so.
            let _ = self.release_leftovers();
        }
        let planned = self.layouts.get(lot.layout);
        let mut pieces = planned.pieces(range, lot.lot);
        pieces.retain(|&(tile, _)| planned.shown.is_gap(range, tile));
        self.map_pieces(lot, &pieces)?;
        self.layouts.get_mut(lot.layout).shown.gaps.remove(&range.start);
        Ok(())
    }

    /// Maps tiles, all or none. What could be mapped and not taken back is left over.
    fn map_pieces(
        &mut self,
        lot: PlannedLot,
        pieces: &[(usize, VaRange)],
    ) -> Result<(), DriverError> {
        let tiles = &self.layouts.get(lot.layout).tiles;
        let chunk = |tile| tiles.chunk(tile).expect("a taken lot has its memory");
        let mut mapped = Vec::new();
        let mut result = pieces.iter().try_for_each(|&(tile, piece)| {
            self.driver.map(piece, chunk(tile)).map(|()| mapped.push(piece))
        });
        if result.is_ok() {
            result = joined(&mapped).into_iter().try_for_each(|run| self.driver.set_access(run));
        }
        if result.is_err() {
            // SAFETY: nothing has used the mappings yet.
            mapped.retain(|&piece| unsafe { unmap_unused(&self.driver, piece) }.is_err());
            if !mapped.is_empty() {
                self.unreleased.push(Leftover { mapped, chunk: None, range: None });
            }
        }
        result
    }

    /// Takes away the mappings of a lot at a range. Those that stay are left over.
    ///
    /// # Safety
    /// The uses there are complete, and the host knows it.
    pub(super) unsafe fn unmap_lot(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
    ) -> Result<(), DriverError> {
        let planned = self.layouts.get_mut(lot.layout);
        let gaps = planned.shown.gaps.remove(&range.start).unwrap_or_default();
        let mut pieces = planned.pieces(range, lot.lot);
        let mut result = Ok(());
        pieces.retain(|&(tile, piece)| {
            if gaps.contains(&tile) {
                return false;
            }
            // SAFETY: the caller promises it.
            let unmapped = unsafe { unmap_unused(&self.driver, piece) };
            let is_mapped = unmapped.is_err();
            result = unmapped.and(result.clone());
            is_mapped
        });
        if result.is_err() {
            let mapped = pieces.into_iter().map(|(_, piece)| piece).collect();
            self.unreleased.push(Leftover { mapped, chunk: None, range: None });
        }
        result
    }

    /// Unmaps a lot that a block has given away, once its uses there are complete.
    pub(in crate::pool) fn unmap_kept(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
    ) -> Result<(), DriverError> {
        let BlockMemory::Swappable { range, mapping: Mapping::Kept { lot, uses }, .. } =
            &self.block(id).memory
        else {
            return Ok(());
        };
        let (range, lot, uses) = (*range, *lot, uses.clone());
        streams.wait_host(&uses, Site::RemapAfterUse)?;
        self.set_mapping(id, Mapping::Unmapped);
        // SAFETY: waited for just now.
        unsafe { self.unmap_lot(range, lot) }
    }

    /// Leaves a gap wherever addresses show an idle tile. On failure some show it still.
    ///
    /// # Safety
    /// The tile's uses are complete, and the host knows it.
    pub(super) unsafe fn hide_tile(
        &mut self,
        streams: &mut Streams,
        number: u32,
        tile: usize,
    ) -> Result<(), DriverError> {
        let planned = self.layouts.get(number);
        let spare =
            planned.shown.spare.iter().filter(|(lot, _)| planned.showing_in(**lot, tile).is_some());
        let spare: Vec<(Lot, Vec<VaRange>)> =
            spare.map(|(&lot, ranges)| (lot, ranges.clone())).collect();
        for (lot, ranges) in spare {
            let lot = PlannedLot { layout: number, lot };
            for range in ranges {
                // SAFETY: uses of the lot are uses of its tiles; the caller promises the rest.
                if unsafe { self.leave_gap(range, lot, tile) }? {
                    self.drop_spare(range, lot);
                }
            }
        }
        let planned = self.layouts.get(number);
        let keeps = |block: &Block| match &block.memory {
            BlockMemory::Swappable { mapping: Mapping::Kept { lot, .. }, .. } => {
                lot.layout == number && planned.showing_in(lot.lot, tile).is_some()
            }
            _ => false,
        };
        let kept: Vec<BlockId> = self.blocks.ids(keeps).collect();
        kept.into_iter().try_for_each(|id| self.leave_gap_in_block(streams, id, tile))
    }

    /// Leaves a gap where the addresses of a block show a tile of the lot that it gave away.
    fn leave_gap_in_block(
        &mut self,
        streams: &mut Streams,
        id: BlockId,
        tile: usize,
    ) -> Result<(), DriverError> {
        let BlockMemory::Swappable { range, mapping: Mapping::Kept { lot, uses }, .. } =
            &self.block(id).memory
        else {
            unreachable!("the caller found it so")
        };
        let (range, lot, uses) = (*range, *lot, uses.clone());
        streams.wait_host(&uses, Site::RemapAfterUse)?;
        // SAFETY: waited for just now.
        if unsafe { self.leave_gap(range, lot, tile) }? {
            self.set_mapping(id, Mapping::Unmapped);
        }
        Ok(())
    }

    /// Unmaps a tile's memory at addresses that show a lot, unless there is a gap. Returns whether
    /// they show nothing any more, and have no gaps then.
    ///
    /// # Safety
    /// The uses of the tile there are complete, and the host knows it.
    unsafe fn leave_gap(
        &mut self,
        range: VaRange,
        lot: PlannedLot,
        tile: usize,
    ) -> Result<bool, DriverError> {
        let planned = self.layouts.get(lot.layout);
        let tiles = planned.tiles.of(lot.lot).expect("the lot was taken");
        let tile = planned.tiles.find(tiles.clone(), tile).expect("the caller found it there");
        if planned.shown.is_gap(range, tile) {
            return Ok(false);
        }
        let piece = planned.tiles.range_at(range, tiles.start, tile..tile + 1);
        // SAFETY: the caller promises it.
        unsafe { unmap_unused(&self.driver, piece) }?;
        let shown = &mut self.layouts.get_mut(lot.layout).shown;
        shown.gaps.entry(range.start).or_default().insert(tile);
        Ok(shown.forget_empty(range, tiles.len()))
    }

    /// Leaves spare addresses that show nothing any more to others.
    fn drop_spare(&mut self, range: VaRange, lot: PlannedLot) {
        let ranges = self.layouts.get_mut(lot.layout).shown.spare.get_mut(&lot.lot);
        ranges.expect("it is there").retain(|&other| other != range);
        self.keep_range(range);
    }
}

/// Ranges that lie side by side made one, so that each takes one call.
pub(super) fn joined(pieces: &[VaRange]) -> Vec<VaRange> {
    let mut runs: Vec<VaRange> = Vec::new();
    for &piece in pieces {
        match runs.last_mut() {
            Some(run) if run.start.0 + run.size_bytes == piece.start.0 => {
                run.size_bytes += piece.size_bytes;
            }
            _ => runs.push(piece),
        }
    }
    runs
}
