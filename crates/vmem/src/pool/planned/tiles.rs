//! Tiles: planned memory cut wherever a lot starts or ends, and who has which part of it.
//!
//! Where a lot is in pieces, its tiles have no memory of their own: they show that of others.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use npu_sys::{ChunkHandle, DevicePtr, VaRange};

use crate::block::Departure;
use crate::lot::{Lot, LotPiece};
use crate::point::Uses;

/// The tiles of one layout. A lot of it is a run of them.
#[derive(Debug)]
pub(super) struct Tiles {
    /// Where each tile starts, and where the last one ends.
    bounds: Vec<u64>,
    /// What is known of the memory of each; nothing of one that shows another's.
    tiles: Vec<Tile>,
    /// By tile: the one whose memory it shows, mostly itself.
    sources: Vec<usize>,
    /// By tile: how many before it show another's.
    shown_before: Vec<usize>,
    /// By tile: how many lots have its memory.
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
    /// Cuts memory for these lots. `None` without any. Pieces that show what others show, or what
    /// is only shown, count as memory of their own.
    pub(super) fn cut(lots: impl Iterator<Item = Lot>, pieces: &[LotPiece]) -> Option<Tiles> {
        let mut lots: Vec<Lot> = lots.collect();
        lots.sort_unstable();
        lots.dedup();
        if lots.is_empty() {
            return None;
        }
        let pieces = well_formed(pieces);
        let bounds = bounds(&lots, &pieces);
        let count = bounds.len() - 1;
        let sources: Vec<usize> = (0..count).map(|tile| source(&bounds, &pieces, tile)).collect();
        let mut shown_before = vec![0; count + 1];
        for (tile, &source) in sources.iter().enumerate() {
            shown_before[tile + 1] = shown_before[tile] + usize::from(source != tile);
        }
        let (sharers, tiles) = (vec![0; count], vec![Tile::default(); count]);
        let mut tiles = Tiles { bounds, tiles, sources, shown_before, sharers, vacated: 0 };
        for lot in lots {
            let run = tiles.of(lot).into_iter().flatten();
            let own: BTreeSet<usize> = run.map(|tile| tiles.sources[tile]).collect();
            own.into_iter().for_each(|tile| tiles.sharers[tile] += 1);
        }
        Some(tiles)
    }

    pub(super) fn is_cut_like(&self, other: &Tiles) -> bool {
        self.bounds == other.bounds && self.sources == other.sources
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

    /// Those with memory of their own.
    pub(super) fn own(&self) -> impl Iterator<Item = usize> {
        (0..self.tiles.len()).filter(|&tile| self.sources[tile] == tile)
    }

    /// The one of [`own`](Tiles::own) whose memory a tile shows.
    pub(super) fn source(&self, tile: usize) -> usize {
        self.sources[tile]
    }

    /// Those that show the memory of one of [`own`](Tiles::own), itself included.
    pub(super) fn showing(&self, own: usize) -> impl Iterator<Item = usize> {
        (0..self.tiles.len()).filter(move |&tile| self.sources[tile] == own)
    }

    /// Which of these tiles shows the memory of one of [`own`](Tiles::own).
    pub(super) fn find(&self, mut tiles: Range<usize>, own: usize) -> Option<usize> {
        // Hardly any lot is in pieces.
        if self.shown_before[tiles.end] == self.shown_before[tiles.start] {
            return tiles.contains(&own).then_some(own);
        }
        tiles.find(|&tile| self.sources[tile] == own)
    }

    fn memory(&self, tile: usize) -> &Tile {
        &self.tiles[self.sources[tile]]
    }

    fn memory_mut(&mut self, tile: usize) -> &mut Tile {
        &mut self.tiles[self.sources[tile]]
    }

    /// Where tiles are in addresses that show those from `first` on.
    pub(super) fn range_at(&self, range: VaRange, first: usize, tiles: Range<usize>) -> VaRange {
        let start = DevicePtr(range.start.0 + self.bounds[tiles.start] - self.bounds[first]);
        VaRange { start, size_bytes: self.bounds[tiles.end] - self.bounds[tiles.start] }
    }

    pub(super) fn chunk(&self, tile: usize) -> Option<ChunkHandle> {
        self.memory(tile).chunk
    }

    /// What those of these tiles have that have no memory.
    pub(super) fn missing_bytes(&self, tiles: Range<usize>) -> u64 {
        let missing = tiles.filter(|&tile| self.memory(tile).chunk.is_none());
        missing.map(|tile| self.size_of(tile)).sum()
    }

    /// What idle tiles have.
    pub(super) fn idle_bytes(&self) -> u64 {
        let idle = self.own().filter(|&tile| self.is_idle(tile));
        idle.map(|tile| self.size_of(tile)).sum()
    }

    fn size_of(&self, tile: usize) -> u64 {
        self.bounds[tile + 1] - self.bounds[tile]
    }

    /// A tile gets memory that nobody had yet.
    pub(super) fn fill(&mut self, tile: usize, chunk: ChunkHandle) {
        let memory = self.memory_mut(tile);
        *memory = Tile { chunk: Some(chunk), is_taken: memory.is_taken, ..Tile::default() };
    }

    /// Takes the memory from a tile that is idle.
    pub(super) fn empty(&mut self, tile: usize) -> ChunkHandle {
        assert!(self.is_idle(tile), "somebody has the tile");
        self.memory_mut(tile).chunk.take().expect("idle tiles have memory")
    }

    pub(super) fn are_empty(&self) -> bool {
        self.tiles.iter().all(|tile| tile.chunk.is_none())
    }

    /// Whether nobody has the tile, but it has memory.
    pub(super) fn is_idle(&self, tile: usize) -> bool {
        self.memory(tile).chunk.is_some() && !self.memory(tile).is_taken
    }

    /// When the last of these was given back, in the order of all that are; `None` unless all are
    /// idle.
    pub(super) fn left_at(&self, mut tiles: Range<usize>) -> Option<u64> {
        let last = tiles.clone().map(|tile| self.idle_since(tile)).max();
        last.filter(|_| tiles.all(|tile| self.is_idle(tile)))
    }

    /// The tiles with memory of their own that are idle: those that the fewest lots share first, as
    /// whoever takes one from a layout takes its mappings from all these, then those left last. A
    /// step needs its lots in the same order each time, so what was left last is needed last.
    pub(super) fn idle(&self) -> Vec<usize> {
        let mut idle: Vec<usize> = self.own().filter(|&tile| self.is_idle(tile)).collect();
        idle.sort_by_key(|&tile| (self.sharers[tile], Reverse(self.tiles[tile].idle_since)));
        idle
    }

    /// When the tile was given back, in the order of all that are.
    pub(super) fn idle_since(&self, tile: usize) -> u64 {
        self.memory(tile).idle_since
    }

    /// What the next user of these waits for.
    pub(super) fn ready(&self, tiles: Range<usize>) -> Uses {
        let mut ready = Uses::default();
        tiles.for_each(|tile| ready.merge(&self.memory(tile).ready));
        ready
    }

    /// Takes tiles, with memory or without. Returns whether nobody has any of them.
    pub(super) fn take(&mut self, tiles: Range<usize>) -> bool {
        for tile in tiles.clone() {
            // Pieces of one lot may show the same.
            if std::mem::replace(&mut self.memory_mut(tile).is_taken, true) {
                self.put_back(tiles.start..tile);
                return false;
            }
        }
        true
    }

    /// Takes tiles back that were given away by `departure`, if nobody had any of them since.
    pub(super) fn retake(&mut self, tiles: Range<usize>, departure: Departure) -> bool {
        let is_own = |tile: &Tile| tile.chunk.is_some() && tile.departure == Some(departure);
        tiles.clone().all(|tile| is_own(self.memory(tile))) && self.take(tiles)
    }

    /// Undoes [`take`](Tiles::take): nobody has used them.
    pub(super) fn put_back(&mut self, tiles: Range<usize>) {
        tiles.for_each(|tile| self.memory_mut(tile).is_taken = false);
    }

    /// Gives tiles back; their next user waits for `ready`.
    pub(super) fn vacate(
        &mut self,
        tiles: Range<usize>,
        ready: &Uses,
        departure: Option<Departure>,
    ) {
        self.vacated += 1;
        let idle_since = self.vacated;
        for tile in tiles {
            let memory = self.memory_mut(tile);
            let (chunk, ready) = (memory.chunk, ready.clone());
            *memory = Tile { chunk, is_taken: false, ready, departure, idle_since };
        }
    }

    /// The smallest run of idle tiles, all with memory of their own, that has so many bytes, but
    /// not twice as many.
    pub(super) fn idle_run(&self, size_bytes: u64) -> Option<Lot> {
        let run_from = |first: usize| {
            let offset_bytes = self.bounds[first];
            let is_own = |tile: usize| self.sources[tile] == tile && self.is_idle(tile);
            let mut idle = (first..self.tiles.len()).take_while(|&tile| is_own(tile));
            let last = idle.find(|&tile| self.bounds[tile + 1] - offset_bytes >= size_bytes)?;
            Some(Lot { offset_bytes, size_bytes: self.bounds[last + 1] - offset_bytes })
        };
        let is_close = |lot: &Lot| lot.size_bytes < size_bytes.saturating_mul(2);
        let runs = self.own().filter_map(run_from).filter(is_close);
        runs.min_by_key(|lot| lot.size_bytes)
    }
}

/// Those of these pieces of which each shows memory that is not only shown, where no other is; in
/// order.
fn well_formed(pieces: &[LotPiece]) -> Vec<LotPiece> {
    let mut kept: Vec<LotPiece> = Vec::with_capacity(pieces.len());
    let mut pieces = pieces.to_vec();
    pieces.sort_by_key(|piece| piece.shown_at_bytes);
    for piece in pieces {
        if kept.last().is_none_or(|last| piece.shown().is_apart_from(last.shown())) {
            kept.push(piece);
        }
    }
    let shown: Vec<Lot> = kept.iter().map(|piece| piece.shown()).collect();
    kept.retain(|piece| {
        let next = shown.partition_point(|shown| shown.end_bytes() <= piece.memory.offset_bytes);
        shown.get(next).is_none_or(|&shown| piece.memory.is_apart_from(shown))
    });
    kept
}

/// Where lots and pieces start and end. What shows memory is cut where that is.
fn bounds(lots: &[Lot], pieces: &[LotPiece]) -> Vec<u64> {
    let of_pieces = pieces.iter().flat_map(|piece| [piece.memory, piece.shown()]);
    let all = lots.iter().copied().chain(of_pieces);
    let mut bounds: Vec<u64> = all.flat_map(|lot| [lot.offset_bytes, lot.end_bytes()]).collect();
    loop {
        bounds.sort_unstable();
        bounds.dedup();
        let mut more: Vec<u64> = Vec::new();
        for piece in pieces {
            let (memory, shown) = (piece.memory, piece.shown());
            for (from, to) in [(memory, shown), (shown, memory)] {
                let first = bounds.partition_point(|&bound| bound <= from.offset_bytes);
                let inside = bounds[first..].iter().take_while(|&&end| end < from.end_bytes());
                let cuts = inside.map(|bound| to.offset_bytes + (bound - from.offset_bytes));
                more.extend(cuts.filter(|cut| bounds.binary_search(cut).is_err()));
            }
        }
        if more.is_empty() {
            return bounds;
        }
        bounds.extend(more);
    }
}

/// The tile whose memory one shows.
fn source(bounds: &[u64], pieces: &[LotPiece], tile: usize) -> usize {
    let start = bounds[tile];
    let next = pieces.partition_point(|piece| piece.shown_at_bytes <= start);
    let before = next.checked_sub(1).map(|at| pieces[at]);
    before.filter(|piece| start < piece.shown().end_bytes()).map_or(tile, |piece| {
        let bytes = piece.memory.offset_bytes + (start - piece.shown_at_bytes);
        bounds.binary_search(&bytes).expect("what shows memory is cut where that is")
    })
}

#[cfg(test)]
mod tests;
