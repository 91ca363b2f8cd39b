//! The tiles against a map of single bytes, under random lots and calls.

use super::*;

/// How long the memory of a model is.
const LENGTH: u64 = 24;

/// A small generator of numbers that only need to look mixed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.0 >> 33) % end
    }

    fn lot(&mut self) -> Lot {
        let offset_bytes = self.below(LENGTH);
        Lot { offset_bytes, size_bytes: 1 + self.below(LENGTH - offset_bytes) }
    }
}

/// One byte as the model knows it.
#[derive(Clone, Copy, Default)]
struct Byte {
    has_memory: bool,
    is_taken: bool,
    departure: Option<Departure>,
}

/// Lots in one place, and some beyond them in pieces.
struct World {
    known: Vec<Lot>,
    pieces: Vec<LotPiece>,
}

impl World {
    fn random(random: &mut Random) -> World {
        let known: Vec<Lot> = (0..1 + random.below(6)).map(|_| random.lot()).collect();
        let mut world = World { known, pieces: Vec::new() };
        let mut shown_at_bytes = LENGTH;
        for _ in 0..random.below(4) {
            let offset_bytes = shown_at_bytes;
            for _ in 0..1 + random.below(3) {
                let piece = LotPiece { shown_at_bytes, memory: random.lot() };
                shown_at_bytes = piece.shown().end_bytes();
                world.pieces.push(piece);
            }
            world.known.push(Lot { offset_bytes, size_bytes: shown_at_bytes - offset_bytes });
        }
        world
    }

    fn tiles(&self) -> Tiles {
        Tiles::cut(self.known.iter().copied(), &self.pieces).expect("there are lots")
    }

    /// The bytes of a lot; some more than once if its pieces share them.
    fn bytes_of(&self, lot: Lot) -> Vec<usize> {
        let memory = lot.memory(&self.pieces);
        memory.flat_map(|lot| lot.offset_bytes as usize..lot.end_bytes() as usize).collect()
    }
}

/// What each tile is, by its lot.
fn lots(tiles: &Tiles) -> Vec<Lot> {
    let lot = |ends: &[u64]| Lot { offset_bytes: ends[0], size_bytes: ends[1] - ends[0] };
    tiles.bounds.windows(2).map(lot).collect()
}

/// The shortest idle run of tiles, by trying all.
fn idle_run(tiles: &Tiles, bytes: &[Byte], size_bytes: u64) -> Option<u64> {
    let pieces = lots(tiles);
    let runs =
        (0..pieces.len()).flat_map(|first| (first..pieces.len()).map(move |last| (first, last)));
    let own = |tile: usize| tiles.source(tile) == tile;
    let runs = runs.filter(|&(first, last)| (first..=last).all(own));
    let sizes = runs.filter_map(|(first, last)| {
        let (start, end) = (pieces[first].offset_bytes, pieces[last].end_bytes());
        let is_idle = |byte: &Byte| byte.has_memory && !byte.is_taken;
        bytes[start as usize..end as usize].iter().all(is_idle).then_some(end - start)
    });
    sizes.filter(|&size| size >= size_bytes && size < 2 * size_bytes).min()
}

/// How many of the lots have a tile.
fn sharers(tiles: &Tiles, known: &[Lot], tile: usize) -> usize {
    let known: BTreeSet<Lot> = known.iter().copied().collect();
    let has =
        |lot: &&Lot| tiles.of(**lot).is_some_and(|mut run| run.any(|it| tiles.source(it) == tile));
    known.iter().filter(has).count()
}

#[test]
fn tiles_agree_with_a_map_of_bytes() {
    let (mut taken, mut refused, mut retaken, mut emptied, mut in_pieces) = (0, 0, 0, 0, 0);
    for seed in 0..500 {
        let mut random = Random(seed);
        let world = World::random(&mut random);
        let known = &world.known;
        let mut tiles = world.tiles();
        let mut bytes = vec![Byte::default(); tiles.bounds[tiles.tiles.len()] as usize];
        let mut held: Vec<Lot> = Vec::new();
        let mut gone: Vec<(Lot, Departure)> = Vec::new();
        for call in 0..60 {
            let lot = known[random.below(known.len() as u64) as usize];
            let run = tiles.of(lot).expect("a lot is a run of tiles");
            let own = world.bytes_of(lot);
            let distinct: BTreeSet<usize> = own.iter().copied().collect();
            let is_free =
                distinct.len() == own.len() && own.iter().all(|&byte| !bytes[byte].is_taken);
            match random.below(5) {
                0 | 1 => {
                    assert_eq!(tiles.take(run.clone()), is_free);
                    if !is_free {
                        refused += 1;
                        continue;
                    }
                    run.filter(|&tile| tiles.chunk(tile).is_none())
                        .collect::<Vec<usize>>()
                        .into_iter()
                        .for_each(|tile| tiles.fill(tile, ChunkHandle(call)));
                    for byte in own {
                        bytes[byte] = Byte { has_memory: true, is_taken: true, departure: None };
                    }
                    held.push(lot);
                    taken += 1;
                    in_pieces += u32::from(lot.offset_bytes >= LENGTH);
                }
                2 if !held.is_empty() => {
                    let lot = held.swap_remove(random.below(held.len() as u64) as usize);
                    let departure = Departure(call);
                    let run = tiles.of(lot).expect("it is held");
                    tiles.vacate(run, &Uses::default(), Some(departure));
                    for byte in world.bytes_of(lot) {
                        (bytes[byte].is_taken, bytes[byte].departure) = (false, Some(departure));
                    }
                    gone.push((lot, departure));
                }
                3 if !gone.is_empty() => {
                    let (lot, departure) = gone[random.below(gone.len() as u64) as usize];
                    let is_own = |byte: &usize| {
                        let byte = bytes[*byte];
                        byte.has_memory && !byte.is_taken && byte.departure == Some(departure)
                    };
                    let is_there = world.bytes_of(lot).iter().all(is_own);
                    let run = tiles.of(lot).expect("it was held");
                    assert_eq!(tiles.retake(run, departure), is_there);
                    if is_there {
                        let own = world.bytes_of(lot);
                        own.into_iter().for_each(|byte| bytes[byte].is_taken = true);
                        held.push(lot);
                        retaken += 1;
                    }
                }
                _ => {
                    let Some(&tile) = tiles.idle().first() else { continue };
                    assert!(tiles.idle().is_sorted_by_key(|&idle| sharers(&tiles, known, idle)));
                    let piece = lots(&tiles)[tile];
                    let range = piece.offset_bytes as usize..piece.end_bytes() as usize;
                    assert!(bytes[range.clone()].iter().all(|byte| !byte.is_taken));
                    tiles.empty(tile);
                    bytes[range].iter_mut().for_each(|byte| byte.has_memory = false);
                    emptied += 1;
                }
            }
            for size_bytes in 1..LENGTH {
                let found = tiles.idle_run(size_bytes).map(|lot| lot.size_bytes);
                assert_eq!(found, idle_run(&tiles, &bytes, size_bytes));
            }
            assert_eq!(tiles.are_empty(), bytes.iter().all(|byte| !byte.has_memory));
        }
    }
    println!("{taken} taken, {in_pieces} of them in pieces, {refused} refused, {retaken} retaken");
    assert!(taken > 500 && in_pieces > 500 && refused > 500 && retaken > 200 && emptied > 500);
}

#[test]
fn tiles_lie_side_by_side_wherever_they_are_shown() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let World { known, pieces } = World::random(&mut random);
        let tiles = Tiles::cut(known.iter().copied(), &pieces).expect("there are lots");
        let all = || known.iter().copied().chain(pieces.iter().map(|piece| piece.memory));
        let first = all().map(|lot| lot.offset_bytes).min();
        let end = all().map(|lot| lot.end_bytes()).max();
        assert_eq!(Some(tiles.size_bytes()), end.zip(first).map(|(end, first)| end - first));
        for &lot in &known {
            let run = tiles.of(lot).expect("a lot is a run of tiles");
            let shown = VaRange { start: DevicePtr(1000), size_bytes: lot.size_bytes };
            assert_eq!(tiles.range_at(shown, run.start, run.clone()), shown);
            let mut next = shown.start.0;
            for tile in run.clone() {
                let piece = tiles.range_at(shown, run.start, tile..tile + 1);
                assert_eq!(piece.start.0, next);
                next += piece.size_bytes;
                let own = tiles.source(tile);
                let of_own = tiles.range_at(shown, own, own..own + 1);
                assert_eq!((tiles.source(own), of_own.size_bytes), (own, piece.size_bytes));
                assert_eq!(tiles.find(run.clone(), own).map(|it| tiles.source(it)), Some(own));
            }
            assert_eq!(next, shown.start.0 + shown.size_bytes);
        }
        let wrong = [
            Lot { offset_bytes: 100 * LENGTH, size_bytes: 1 },
            Lot { offset_bytes: known[0].offset_bytes, size_bytes: 0 },
            Lot { offset_bytes: known[0].offset_bytes, size_bytes: u64::MAX },
        ];
        assert!(wrong.iter().all(|&lot| tiles.of(lot).is_none()));
    }
    assert!(Tiles::cut(std::iter::empty(), &[]).is_none());
}

#[test]
fn pieces_of_what_is_only_shown_count_as_memory() {
    let lot = |offset_bytes, size_bytes| Lot { offset_bytes, size_bytes };
    let piece = |shown_at_bytes, memory| LotPiece { shown_at_bytes, memory };
    // The second shows itself in part, the third what the first shows, the last where that is.
    let pieces =
        [piece(10, lot(0, 4)), piece(20, lot(18, 4)), piece(30, lot(10, 4)), piece(12, lot(4, 4))];
    let lots = [lot(0, 8), lot(10, 4), lot(20, 4), lot(30, 4)];
    let mut tiles = Tiles::cut(lots.into_iter(), &pieces).expect("there are lots");
    let takes = lots.map(|lot| tiles.of(lot).is_some_and(|run| tiles.take(run)));
    assert_eq!(takes, [true, false, true, true]);
}
