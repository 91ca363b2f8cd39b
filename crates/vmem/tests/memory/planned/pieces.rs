//! Lots in pieces: for a block that finds no room in one place, though enough is free.

use super::*;

/// Where the wide block is shown: beyond all memory.
const WIDE: Lot = Lot { offset_bytes: 8 * UNIT, size_bytes: 4 * UNIT };

/// Two at the ends, and one between them that stays.
const LOTS: [(u64, u64); 3] = [(0, 2), (2, 4), (6, 2)];

fn lay_out(bench: &mut Bench) {
    let lots = LOTS.map(|(at, units)| lot(at, units));
    let piece = |shown: u64, memory| LotPiece { shown_at_bytes: shown * UNIT, memory };
    let pieces = [piece(8, lots[2]), piece(10, lots[0])];
    bench.lay_out_in_pieces(&[lots[0], lots[1], lots[2], WIDE], &pieces);
}

#[test]
fn a_block_in_pieces_has_the_memory_of_two_and_makes_no_calls_from_the_third_step_on() {
    let mut bench = Bench::new(8);
    lay_out(&mut bench);
    let [low, stays, high] = LOTS.map(|(at, units)| bench.allocate(units, lot(at, units)));
    bench.free(low);
    bench.free(high);
    let calls: Vec<u64> = (0..8)
        .map(|_| {
            let before = bench.calls();
            lay_out(&mut bench);
            let wide = bench.allocate(4, WIDE);
            bench.use_(wide);
            assert!(bench.try_allocate(2, lot(0, 2), 0).is_err(), "it is a piece of the wide one");
            bench.detach(wide);
            let [low, high] = [LOTS[0], LOTS[2]].map(|(at, n)| bench.allocate(n, lot(at, n)));
            for block in [low, stays, high] {
                bench.use_(block);
            }
            bench.free(low);
            bench.free(high);
            assert!(bench.bring_back(wide, WIDE));
            bench.use_(wide);
            bench.free(wide);
            bench.end_step();
            bench.calls() - before
        })
        .collect();
    assert_eq!(calls[2..], [0; 6], "{calls:?}");
    assert_eq!(bench.held_units(), 8);
    bench.close();
}

#[test]
fn a_piece_goes_where_its_room_is_needed_and_the_lot_works_again() {
    let mut bench = Bench::new(8);
    lay_out(&mut bench);
    let stays = bench.allocate(4, lot(2, 4));
    let wide = bench.allocate(4, WIDE);
    bench.detach(wide);
    let count = |bench: &Bench, name| bench.record.count(name);
    let before = count(&bench, "unmap");
    let other = bench.allocate(2, None);
    assert_eq!(count(&bench, "unmap"), before + 3, "its two homes, and what showed it");
    assert_eq!(bench.held_units(), 8);
    bench.free(other);
    assert!(bench.bring_back(wide, WIDE));
    bench.use_(wide);
    bench.use_(stays);
    // Its pieces become lots of another layout.
    bench.detach(wide);
    bench.lay_out(&[lot(0, 4), lot(4, 4)]);
    assert!(bench.bring_back(wide, lot(0, 4)));
    bench.use_(wide);
    bench.close();
}

#[test]
fn a_lot_without_all_of_its_pieces_is_refused() {
    let mut bench = Bench::new(8);
    let lots = LOTS.map(|(at, units)| lot(at, units));
    let piece = |shown: u64, memory| LotPiece { shown_at_bytes: shown * UNIT, memory };
    for pieces in [vec![piece(8, lots[0])], vec![piece(8, lots[0]), piece(10, lot(90, 2))]] {
        bench.lay_out_in_pieces(&[lots[0], lots[1], lots[2], WIDE], &pieces);
        let block = bench.allocate(4, None);
        assert!(!bench.memory.pool.could_lie_in(block, WIDE));
        assert!(bench.memory.pool.could_lie_in(block, lots[1]));
        bench.free(block);
    }
    bench.close();
}
