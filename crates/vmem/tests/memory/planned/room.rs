//! Idle tiles go where their room is needed, and what showed them works again.

use super::*;

#[test]
fn a_tile_that_is_idle_goes_where_its_room_is_needed_and_its_lot_works_again() {
    let mut bench = Bench::new(8);
    bench.lay_out(&[lot(0, 4), lot(4, 2), lot(6, 2)]);
    let stays = bench.allocate(4, lot(0, 4));
    let away = bench.allocate(2, lot(4, 2));
    let freed = bench.allocate(2, lot(6, 2));
    let departure = bench.detach(away);
    bench.free(freed);
    assert_eq!(bench.held_units(), 8);
    let ordinary = bench.allocate(3, None);
    assert_eq!(bench.held_units(), 7, "both tiles went");
    assert!(!bench.memory.pool.retake(away, departure), "its bytes are gone");
    assert!(bench.try_allocate(2, lot(4, 2), 0).is_err(), "there is no room for its tile");
    bench.free(ordinary);
    assert!(bench.bring_back(away, lot(4, 2)), "the chunk makes room for the tile");
    bench.use_(away);
    bench.use_(stays);
    let again = bench.allocate(2, lot(6, 2));
    assert_eq!(bench.home(again).0, bench.home(away).0 + 2 * UNIT);
    bench.close();
}

#[test]
fn a_tile_that_goes_leaves_a_gap_and_the_rest_of_its_lots_stays_mapped() {
    for map_waits_for_copies in [false, true] {
        let mut bench = Bench::on(HostConfig { map_waits_for_copies, ..device(8) }, 8);
        // Tiles of 3, 1 and 4 units; two lots share that of 1.
        bench.lay_out(&[lot(0, 4), lot(3, 1), lot(4, 4)]);
        let stays = bench.allocate(4, lot(4, 4));
        let freed = bench.allocate(4, lot(0, 4));
        bench.free(freed);
        let away = bench.allocate(4, lot(0, 4));
        bench.detach(away);
        let small = bench.allocate(1, lot(3, 1));
        bench.free(small);
        let count = |bench: &Bench, name| bench.record.count(name);
        let before = ["unmap", "release_chunk"].map(|name| count(&bench, name));
        let other = bench.allocate(3, None);
        let after = ["unmap", "release_chunk"].map(|name| count(&bench, name));
        assert_eq!(after, [before[0] + 2, before[1] + 1], "its home, and what showed it");
        let calls = bench.calls();
        let small = bench.allocate(1, lot(3, 1));
        assert_eq!(bench.calls(), calls, "its tile is where it was");
        bench.free(small);
        bench.free(other);
        let before = ["map", "set_access"].map(|name| count(&bench, name));
        assert!(bench.bring_back(away, lot(0, 4)));
        bench.use_(away);
        bench.use_(stays);
        let after = ["map", "set_access"].map(|name| count(&bench, name));
        assert_eq!(after, before.map(|calls| calls + 2), "at home, and in the gap");
        // Again, while nobody has the addresses.
        bench.free(away);
        let other = bench.allocate(3, None);
        bench.free(other);
        let before = count(&bench, "map");
        let again = bench.allocate(4, lot(0, 4));
        bench.use_(again);
        assert_eq!(count(&bench, "map"), before + 2);
        bench.close();
    }
}

#[test]
fn nothing_is_made_of_a_lot_for_which_there_is_no_room() {
    let mut bench = Bench::new(8);
    // Tiles of 1 and 3 units, of which one would fit.
    bench.lay_out(&[lot(0, 1), lot(0, 4)]);
    let ordinary = bench.allocate(6, None);
    let calls = bench.calls();
    assert!(bench.try_allocate(4, lot(0, 4), 0).is_err());
    assert_eq!(bench.calls(), calls);
    bench.free(ordinary);
    let block = bench.allocate(4, lot(0, 4));
    bench.use_(block);
    bench.close();
}

#[test]
fn idle_tiles_go_where_the_device_has_less_than_the_cap() {
    let mut bench = Bench::on(device(4), 16);
    bench.lay_out(&[lot(0, 2), lot(2, 2)]);
    let blocks = [lot(0, 2), lot(2, 2)].map(|lot| bench.allocate(2, lot));
    blocks.into_iter().for_each(|block| bench.free(block));
    let whole = bench.allocate(4, None);
    assert_eq!(bench.held_units(), 4);
    bench.free(whole);
    // Nor can a lot be had there while chunks are cached; the block has a chunk.
    let part = bench.allocate(2, lot(0, 2));
    bench.use_(part);
    bench.close();
}

#[test]
fn trimming_leaves_the_present_layout_and_gives_back_what_is_idle_of_earlier_ones() {
    let mut bench = Bench::new(32);
    bench.lay_out(&[lot(0, 4), lot(2, 6), lot(10, 2)]);
    let stays = bench.allocate(2, lot(10, 2));
    let first = bench.allocate(4, lot(0, 4));
    bench.free(first);
    let second = bench.allocate(6, lot(2, 6));
    bench.detach(second);
    let calls = bench.calls();
    bench.trim();
    assert_eq!((bench.held_units(), bench.calls()), (10, calls));
    bench.lay_out(&[lot(0, 6)]);
    bench.trim();
    assert_eq!(bench.held_units(), 2, "what is idle of the earlier layout is gone");
    bench.use_(stays);
    assert!(bench.bring_back(second, lot(0, 6)));
    bench.use_(second);
    bench.free(second);
    bench.trim();
    assert_eq!(bench.held_units(), 8);
    bench.close();
}
