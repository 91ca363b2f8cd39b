//! Tiles: planned memory cut wherever a lot starts or ends, and who has which part of it.

use std::cmp::Reverse;
use std::ops::Range;

use npu_sys::{ChunkHandle, DevicePtr, VaRange};

use crate::block::Departure;
use crate::lot::Lot;
use crate::point::Uses;

/// The tiles of one layout. A lot of it is a run of them.
#[derive(Debug)]
pub(super) struct Tiles {
    /// Where each tile starts, and where the last one ends.
    bounds: Vec<u64>,
    tiles: Vec<Tile>,
    /// By tile: how many lots it is a part of.
    sharers: Vec<u32>,
    /// Counts what is given back, so that it is known in which order tiles were.
    vacated: u64,
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
    idle_since: u64,
}

impl Tiles {
    /// Cuts memory for these lots. `None` without any.
    pub(super) fn cut(lots: impl Iterator<Item = Lot>) -> Option<Tiles> {
        let mut lots: Vec<Lot> = lots.collect();
        lots.sort_unstable();
        lots.dedup();
        let ends = |lot: &Lot| [lot.offset_bytes, lot.end_bytes()];
        let mut bounds: Vec<u64> = lots.iter().flat_map(ends).collect();
        bounds.sort_unstable();
        bounds.dedup();
        let count = bounds.len().checked_sub(1)?;
        let sharers = vec![0; count];
        let mut tiles = Tiles { bounds, tiles: vec![Tile::default(); count], sharers, vacated: 0 };
        for lot in lots {
            let run = tiles.of(lot).into_iter().flatten();
            run.for_each(|tile| tiles.sharers[tile] += 1);
        }
        Some(tiles)
    }

    pub(super) fn is_cut_like(&self, other: &Tiles) -> bool {
        self.bounds == other.bounds
    }

    pub(super) fn size_bytes(&self) -> u64 {
        self.bounds[self.tiles.len()] - self.bounds[0]
    }

    /// The tiles of a lot; `None` if it is not a run of them.
    pub(super) fn of(&self, lot: Lot) -> Option<Range<usize>> {
        let first = self.bounds.binary_search(&lot.offset_bytes).ok()?;
        let end = self.bounds.binary_search(&lot.end_bytes()).ok()?;
        (first < end).then_some(first..end)
    }

    pub(super) fn all(&self) -> Range<usize> {
        0..self.tiles.len()
    }

    /// Where tiles are in addresses that show those from `first` on.
    pub(super) fn range_at(&self, range: VaRange, first: usize, tiles: Range<usize>) -> VaRange {
        let start = DevicePtr(range.start.0 + self.bounds[tiles.start] - self.bounds[first]);
        VaRange { start, size_bytes: self.bounds[tiles.end] - self.bounds[tiles.start] }
    }

    pub(super) fn chunk(&self, tile: usize) -> Option<ChunkHandle> {
        self.tiles[tile].chunk
    }

    /// What those of these tiles have that have no memory.
    pub(super) fn missing_bytes(&self, tiles: Range<usize>) -> u64 {
        let missing = tiles.filter(|&tile| self.tiles[tile].chunk.is_none());
        missing.map(|tile| self.size_of(tile)).sum()
    }

    /// What idle tiles have.
    pub(super) fn idle_bytes(&self) -> u64 {
        let idle = self.all().filter(|&tile| self.is_idle(tile));
        idle.map(|tile| self.size_of(tile)).sum()
    }

    fn size_of(&self, tile: usize) -> u64 {
        self.bounds[tile + 1] - self.bounds[tile]
    }

    /// A tile gets memory that nobody had yet.
    pub(super) fn fill(&mut self, tile: usize, chunk: ChunkHandle) {
        let is_taken = self.tiles[tile].is_taken;
        self.tiles[tile] = Tile { chunk: Some(chunk), is_taken, ..Tile::default() };
    }

    /// Takes the memory from a tile that is idle.
    pub(super) fn empty(&mut self, tile: usize) -> ChunkHandle {
        assert!(self.is_idle(tile), "somebody has the tile");
        self.tiles[tile].chunk.take().expect("idle tiles have memory")
    }

    pub(super) fn are_empty(&self) -> bool {
        self.tiles.iter().all(|tile| tile.chunk.is_none())
    }

    /// Whether nobody has the tile, but it has memory.
    pub(super) fn is_idle(&self, tile: usize) -> bool {
        self.tiles[tile].chunk.is_some() && !self.tiles[tile].is_taken
    }

    /// When the last of these was given back, in the order of all that are; `None` unless all are
    /// idle.
    pub(super) fn left_at(&self, mut tiles: Range<usize>) -> Option<u64> {
        let last = self.tiles[tiles.clone()].iter().map(|tile| tile.idle_since).max();
        last.filter(|_| tiles.all(|tile| self.is_idle(tile)))
    }

    /// The tiles that are idle: those that the fewest lots share first, as whoever takes one from
    /// a layout takes its mappings from all these, then those left last. A step needs its lots in
    /// the same order each time, so what was left last is needed last.
    pub(super) fn idle(&self) -> Vec<usize> {
        let mut idle: Vec<usize> = self.all().filter(|&tile| self.is_idle(tile)).collect();
        idle.sort_by_key(|&tile| (self.sharers[tile], Reverse(self.tiles[tile].idle_since)));
        idle
    }

    /// When the tile was given back, in the order of all that are.
    pub(super) fn idle_since(&self, tile: usize) -> u64 {
        self.tiles[tile].idle_since
    }

    /// What the next user of these waits for.
    pub(super) fn ready(&self, tiles: Range<usize>) -> Uses {
        let mut ready = Uses::default();
        self.tiles[tiles].iter().for_each(|tile| ready.merge(&tile.ready));
        ready
    }

    /// Takes tiles, with memory or without. Returns whether nobody has any of them.
    pub(super) fn take(&mut self, tiles: Range<usize>) -> bool {
        let tiles = &mut self.tiles[tiles];
        let are_free = tiles.iter().all(|tile| !tile.is_taken);
        if are_free {
            tiles.iter_mut().for_each(|tile| tile.is_taken = true);
        }
        are_free
    }

    /// Takes tiles back that were given away by `departure`, if nobody had any of them since.
    pub(super) fn retake(&mut self, tiles: Range<usize>, departure: Departure) -> bool {
        let is_own = |tile: &Tile| tile.chunk.is_some() && tile.departure == Some(departure);
        self.tiles[tiles.clone()].iter().all(is_own) && self.take(tiles)
    }

    /// Undoes [`take`](Tiles::take): nobody has used them.
    pub(super) fn put_back(&mut self, tiles: Range<usize>) {
        self.tiles[tiles].iter_mut().for_each(|tile| tile.is_taken = false);
    }

    /// Gives tiles back; their next user waits for `ready`.
    pub(super) fn vacate(
        &mut self,
        tiles: Range<usize>,
        ready: &Uses,
        departure: Option<Departure>,
    ) {
        self.vacated += 1;
        for tile in &mut self.tiles[tiles] {
            tile.is_taken = false;
            tile.ready = ready.clone();
            tile.departure = departure;
            tile.idle_since = self.vacated;
        }
    }

    /// The smallest run of idle tiles that has so many bytes, but not twice as many.
    pub(super) fn idle_run(&self, size_bytes: u64) -> Option<Lot> {
        let run_from = |first: usize| {
            let offset_bytes = self.bounds[first];
            let mut idle = (first..self.tiles.len()).take_while(|&tile| self.is_idle(tile));
            let last = idle.find(|&tile| self.bounds[tile + 1] - offset_bytes >= size_bytes)?;
            Some(Lot { offset_bytes, size_bytes: self.bounds[last + 1] - offset_bytes })
        };
        let is_close = |lot: &Lot| lot.size_bytes < size_bytes.saturating_mul(2);
        let runs = self.all().filter_map(run_from).filter(is_close);
        runs.min_by_key(|lot| lot.size_bytes)
    }
}

#[cfg(test)]
mod tests;
