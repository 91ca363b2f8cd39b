//! Graphs: what is captured is there until the capture ends, and a run uses all of it.

use std::ffi::{c_int, c_void};

use super::recording::recorded;
use super::rig::{
    BLOCK, MIB, OK, OUT_OF_MEMORY, OUTPUT, READ, READ_WRITE, Rig, STEP, Touched, UNKNOWN, USAGE,
    WRITE, assert_fails, assert_holds, begin, begin_named, check, fill, free, hold, last_error,
    make, smartswap_capture_begins, smartswap_capture_ended, smartswap_end, smartswap_graph_forget,
    smartswap_graph_include, smartswap_graph_make, smartswap_graph_note, smartswap_graph_touch,
    smartswap_stays, smartswap_suspend, smartswap_touch, stats, step,
};

fn graph() -> u64 {
    let graph = smartswap_graph_make();
    assert_ne!(graph, 0, "{}", last_error());
    graph
}

fn captured<T>(work: impl FnOnce() -> T) -> T {
    assert_eq!(smartswap_capture_begins(), OK, "{}", last_error());
    let returned = work();
    assert_eq!(smartswap_capture_ended(), OK, "{}", last_error());
    returned
}

fn note_all(graph: u64, uses: &[(*mut c_void, c_int)]) -> c_int {
    let touched: Vec<Touched> =
        uses.iter().map(|&(address, access)| Touched { address, access }).collect();
    // SAFETY: so many, which live that long.
    unsafe { smartswap_graph_note(graph, touched.as_ptr(), touched.len() as u32) }
}

/// A capture of its own.
fn note(graph: u64, address: *mut c_void, access: c_int) {
    let noted = captured(|| note_all(graph, &[(address, access)]));
    assert_eq!(noted, OK, "{}", last_error());
}

/// Runs a graph, whose work is `work`.
fn run(graph: u64, work: impl FnOnce()) {
    assert_eq!(begin("graph"), OK, "{}", last_error());
    assert_eq!(smartswap_graph_touch(graph), OK, "{}", last_error());
    work();
    assert_eq!(smartswap_end(), OK, "{}", last_error());
}

#[test]
fn what_is_away_comes_back_for_the_capture_and_for_each_run() {
    let rig = Rig::open(8 * MIB);
    let used: Vec<_> = (0..3).map(|tag| make(BLOCK, tag)).collect();
    let other = make(BLOCK, 9);
    assert_eq!(smartswap_suspend(), OK, "{}", last_error());
    let graph = graph();
    let inside = used[0].wrapping_byte_add(100);
    let elsewhere = std::ptr::from_ref(&rig).cast_mut().cast();
    let uses = [(inside, READ), (used[1], UNKNOWN), (elsewhere, WRITE), (other, OUTPUT)];
    captured(|| {
        assert_eq!(note_all(graph, &uses), OK, "{}", last_error());
        assert_eq!(stats().active.current, 2 * BLOCK, "what it uses, and no more");
        assert_eq!(note_all(graph, &[(used[2], READ)]), OK, "{}", last_error());
        assert_eq!(note_all(graph, &[(used[2], WRITE)]), OK, "{}", last_error());
        // All of it stays where it is, whoever needs room.
        free(make(5 * MIB, 50));
        assert_eq!(stats().active.current, 3 * BLOCK);
        (0..3).for_each(|at| assert_holds(used[at], BLOCK, at as u64));
    });
    free(make(8 * MIB, 50));
    assert_eq!(stats().active.current, 0, "all may leave again");
    assert_eq!(stats().misses, 0, "no op has missed anything");

    // Three runs, between which others need the memory.
    for turn in 0..3 {
        run(graph, || {
            let active = stats().active.current;
            assert_eq!(active, 3 * BLOCK, "what it does not need is away");
            assert_holds(used[0], BLOCK, 0);
            assert_holds(used[1], BLOCK, 1 + 10 * turn);
            assert_holds(used[2], BLOCK, 2 + 10 * turn);
            fill(used[1], BLOCK, 11 + 10 * turn);
            fill(used[2], BLOCK, 12 + 10 * turn);
        });
        let large = make(8 * MIB, 50);
        free(large);
        assert_eq!(stats().active.current, 0, "all had to leave");
    }
    check(used[0], BLOCK, 0);
    check(used[1], BLOCK, 31);
    check(used[2], BLOCK, 32);
    check(other, BLOCK, 9);
    assert_eq!(smartswap_graph_forget(graph), OK);
    used.into_iter().chain([other]).for_each(free);
    rig.close();
}

#[test]
fn a_run_is_recorded_with_what_all_of_the_graph_does() {
    let rig = Rig::open(16 * MIB);
    let blocks: Vec<_> = (0..4).map(|tag| make(BLOCK, tag)).collect();
    let graph = graph();
    let uses =
        [(3, READ), (0, WRITE), (0, READ), (1, READ), (2, READ_WRITE), (1, WRITE), (2, WRITE)];
    uses.into_iter().for_each(|(block, access)| note(graph, blocks[block], access));
    step();
    for _ in 0..2 {
        // As each block is seen by itself, so that its place is known.
        for &block in &blocks {
            check_use(block);
        }
        run(graph, || ());
        step();
    }
    let ops = recorded();
    let places: Vec<u64> = ops.iter().filter(|op| op.0 == "use").map(|op| op.1[0][0]).collect();
    assert_eq!(places.len(), 4, "{ops:?}");
    let [reads, writes, outputs] = &ops.iter().find(|op| op.0 == "graph").expect("a run").1;
    let sorted = |of: &[usize]| {
        let mut sorted: Vec<u64> = of.iter().map(|&block| places[block]).collect();
        sorted.sort_unstable();
        sorted
    };
    let told = [reads, writes].map(|places| {
        let mut places = places.clone();
        places.sort_unstable();
        places
    });
    assert_eq!(told, [sorted(&[1, 2, 3]), sorted(&[0, 1, 2])]);
    assert!(outputs.is_empty());
    blocks.into_iter().for_each(free);
    rig.close();
}

fn check_use(block: *mut c_void) {
    assert_eq!(begin("use"), OK, "{}", last_error());
    assert_eq!(smartswap_touch(block, READ), OK, "{}", last_error());
    assert_eq!(smartswap_end(), OK, "{}", last_error());
}

#[test]
fn what_was_freed_is_passed_over_and_its_address_is_nobodys_use() {
    let rig = Rig::open(4 * MIB);
    let kept = make(BLOCK, 1);
    let freed = make(BLOCK, 2);
    let graph = graph();
    note(graph, kept, READ);
    note(graph, freed, WRITE);
    free(freed);
    let heir = make(BLOCK, 3);
    assert_eq!(heir, freed, "the address is used again, or this test shows nothing");
    free(make(4 * MIB, 50));
    run(graph, || {
        assert_holds(kept, BLOCK, 1);
        assert_eq!(stats().active.current, BLOCK, "the heir stays away");
    });
    check(heir, BLOCK, 3);
    // With all of it gone a run uses nothing.
    free(kept);
    run(graph, || ());
    free(heir);
    rig.close();
}

#[test]
fn a_graph_that_does_not_fit_is_an_error_that_names_it_and_loses_nothing() {
    let rig = Rig::open(4 * MIB);
    let blocks: Vec<_> = (0..6).map(|tag| make(BLOCK, tag)).collect();
    let graph = graph();
    // At once, as one capture would do it.
    let uses: Vec<_> = blocks.iter().map(|&block| (block, READ)).collect();
    let noted = captured(|| note_all(graph, &uses));
    assert_fails(noted, OUT_OF_MEMORY, "'a capture' needs all that it uses at once");
    assert_eq!(begin_named(Some(c"cuda_graph::replay"), STEP), OK);
    let touched = smartswap_graph_touch(graph);
    assert_fails(touched, OUT_OF_MEMORY, "'cuda_graph::replay' needs all that it uses at once");
    assert_eq!(smartswap_end(), OK);
    for (tag, &block) in blocks.iter().enumerate() {
        check(block, BLOCK, tag as u64);
    }
    // Those that are left fit.
    let mut blocks = blocks;
    blocks.drain(4..).for_each(free);
    run(graph, || assert_holds(blocks[3], BLOCK, 3));
    blocks.into_iter().for_each(free);
    rig.close();
}

#[test]
fn a_graph_within_another_is_a_part_of_it() {
    let rig = Rig::open(4 * MIB);
    let [first, second] = [1, 2].map(|tag| make(BLOCK, tag));
    let (inner, outer) = (graph(), graph());
    note(inner, first, READ_WRITE);
    note(outer, second, READ);
    free(make(4 * MIB, 50));
    captured(|| {
        assert_eq!(smartswap_graph_include(outer, inner), OK, "{}", last_error());
        assert_eq!(stats().active.current, BLOCK);
        assert_holds(first, BLOCK, 1);
    });
    assert_eq!(smartswap_graph_forget(inner), OK);
    free(make(4 * MIB, 50));
    run(outer, || {
        assert_holds(second, BLOCK, 2);
        assert_holds(first, BLOCK, 1);
        fill(first, BLOCK, 10);
    });
    free(make(4 * MIB, 50));
    check(first, BLOCK, 10);
    free(first);
    free(second);
    rig.close();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let rig = Rig::open(4 * MIB);
    let block = make(BLOCK, 1);
    let small = make(1000, 2);
    let unknown = "7 is not a graph of this engine";
    assert_fails(note_all(7, &[(block, READ)]), USAGE, unknown);
    assert_fails(smartswap_graph_include(7, 7), USAGE, unknown);
    assert_eq!(begin("op"), OK);
    assert_fails(smartswap_graph_touch(7), USAGE, unknown);
    assert_eq!(smartswap_end(), OK);
    let graph = graph();
    assert_fails(note_all(graph, &[(block, 9)]), USAGE, "9 is not a smartswap_access");
    assert_fails(note_all(graph, &[(block, READ)]), USAGE, "no capture goes on");
    note(graph, block, READ);
    assert_fails(smartswap_graph_touch(graph), USAGE, "no op is open");
    // SAFETY: refused, as nothing is there.
    let nothing = unsafe { smartswap_graph_note(graph, std::ptr::null(), 2) };
    assert_fails(nothing, USAGE, "NULL");
    assert_eq!(smartswap_graph_forget(graph), OK);
    assert_eq!(begin("op"), OK);
    assert_fails(smartswap_graph_touch(graph), USAGE, "is not a graph");
    assert_eq!(smartswap_touch(block, READ), OK);
    assert_eq!(smartswap_end(), OK);
    assert_eq!([block, small].map(|memory| smartswap_stays(memory)), [0, 1]);
    assert_eq!(hold(block), OK);
    assert_eq!(smartswap_stays(block.wrapping_byte_add(8)), 1);
    free(block);
    free(small);
    rig.close();
}
