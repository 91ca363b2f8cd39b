//! What one call says about memory: holding, coming home, other streams, swapped memory, counters.

use std::ffi::{CString, c_void};

use super::rig::{
    ASIDE, BLOCK, MIB, OK, OUT_OF_MEMORY, OUTPUT, READ, READ_WRITE, Rig, STEP, UNKNOWN, USAGE,
    assert_fails, assert_holds, begin, begin_named, check, device_bytes, explain, fill, free, held,
    hold, keep_for_nobody, last_error, lend, make, save_report, save_trace, smartswap_allocate,
    smartswap_allocate_swapped, smartswap_bring_home, smartswap_compute_stream, smartswap_end,
    smartswap_free_swapped, smartswap_has_swapped, smartswap_is_swapped, smartswap_reset_peaks,
    smartswap_resume, smartswap_set_outside, smartswap_step_begun, smartswap_suspend,
    smartswap_touch, smartswap_trim, smartswap_use_on, stats, step,
};

/// Uses each block in turn.
fn press(blocks: &[*mut c_void]) {
    for (tag, &block) in blocks.iter().enumerate() {
        check(block, BLOCK, tag as u64);
    }
}

fn make_many(count: u64) -> Vec<*mut c_void> {
    (0..count).map(|tag| make(BLOCK, tag)).collect()
}

#[test]
fn held_memory_can_be_used_where_no_op_says_so() {
    let rig = Rig::open(4 * MIB);
    let kept = make(BLOCK, 77);
    assert_eq!(hold(kept.wrapping_byte_add(100)), OK, "any address in it will do");
    // What no op ever touched is as good as held: it may be a workspace.
    let untouched = smartswap_allocate(BLOCK, 0);
    fill(untouched, BLOCK, 78);
    let others = make_many(8);
    press(&others);
    assert_holds(kept, BLOCK, 77);
    assert_holds(untouched, BLOCK, 78);
    step();
    assert!(stats().rescues > 5);
    // Memory of others need not be held.
    assert_eq!(hold(std::ptr::null()), OK);
    others.into_iter().for_each(free);
    free(kept);
    free(untouched);
    rig.close();
}

#[test]
fn suspended_memory_is_the_systems_again() {
    let rig = Rig::open(16 * MIB);
    let blocks = make_many(8);
    let small = make(1000, 20);
    let kept = make(BLOCK, 21);
    assert_eq!(hold(kept), OK);
    press(&blocks);
    for resumes in [true, false, true] {
        assert_eq!(smartswap_suspend(), OK, "{}", last_error());
        let held = stats().reserved.current;
        assert!((BLOCK + 1000..3 * BLOCK).contains(&held), "{held}");
        assert_eq!(device_bytes(), held);
        assert_holds(kept, BLOCK, 21);
        if resumes {
            assert_eq!(smartswap_resume(), OK, "{}", last_error());
            assert!(device_bytes() >= 9 * BLOCK);
        }
        check(small, 1000, 20);
        press(&blocks);
        step();
    }
    blocks.into_iter().chain([small, kept]).for_each(free);
    rig.close();
}

#[test]
fn what_others_hold_counts_towards_the_cap() {
    let rig = Rig::open(4 * MIB);
    let blocks = make_many(4);
    assert_eq!(smartswap_set_outside(2 * MIB), OK, "{}", last_error());
    assert!(device_bytes() <= 2 * MIB);
    assert!((2 * MIB..=4 * MIB).contains(&stats().reserved.current));
    press(&blocks);
    assert!(device_bytes() <= 2 * MIB);
    assert_fails(smartswap_set_outside(5 * MIB), OUT_OF_MEMORY, "outside 2.0 MiB");
    assert_eq!(smartswap_set_outside(0), OK, "{}", last_error());
    press(&blocks);
    assert!(device_bytes() > 2 * MIB);
    blocks.into_iter().for_each(free);
    rig.close();
}

#[test]
fn lent_memory_stays_until_the_step_ends_or_room_is_short() {
    let rig = Rig::open(4 * MIB);
    let lent = make(BLOCK, 77);
    assert_eq!(lend(lent.wrapping_byte_add(100)), OK);
    // Written where no op says so.
    fill(lent, BLOCK, 78);
    let others = make_many(8);
    press(&others);
    assert_holds(lent, BLOCK, 78);
    let list = format!(r#"[{{"blocks":1,"by":"a test","bytes":{BLOCK},"until":"step end"}}]"#);
    assert_eq!(held(), Some(list));
    // Those that are lent and do not fit leave, oldest first.
    for &other in &others {
        assert_eq!(lend(other), OK);
    }
    step();
    assert!(stats().recalls >= 5, "{:?}", stats());
    assert_eq!(held().as_deref(), Some("[]"));
    check(lent, BLOCK, 78);
    press(&others);
    // Inside an op the op keeps it, whether or not it has said so before.
    assert_eq!(begin("op"), OK);
    for &block in &[lent, others[0]] {
        assert_eq!(lend(block), OK);
    }
    fill(lent, BLOCK, 79);
    assert_eq!(held().as_deref(), Some("[]"));
    assert_eq!(smartswap_end(), OK);
    press(&others);
    check(lent, BLOCK, 79);
    for code in keep_for_nobody(lent) {
        assert_fails(code, USAGE, "the holder's name is NULL");
    }
    others.into_iter().for_each(free);
    free(lent);
    rig.close();
}

#[test]
fn memory_that_came_home_stays() {
    let rig = Rig::open(8 * MIB);
    let mut blocks = make_many(12);
    press(&blocks);
    assert_fails(smartswap_bring_home(), OUT_OF_MEMORY, "the cap of 8.0 MiB");
    press(&blocks);
    blocks.drain(6..).for_each(free);
    assert_eq!(smartswap_bring_home(), OK);
    for (tag, &block) in blocks.iter().enumerate() {
        assert_holds(block, BLOCK, tag as u64);
    }
    blocks.into_iter().for_each(free);
    rig.close();
}

#[test]
fn an_unknown_use_of_fresh_memory_writes_and_of_other_memory_reads_too() {
    let rig = Rig::open(4 * MIB);
    let blocks = make_many(6);
    // An op that changes its input in place, and says no more than that it uses it.
    assert_eq!(begin("in_place"), OK);
    assert_eq!(smartswap_touch(blocks[0], UNKNOWN), OK);
    assert_holds(blocks[0], BLOCK, 0);
    fill(blocks[0], BLOCK, 50);
    let made = smartswap_allocate(BLOCK, 0);
    assert_eq!(smartswap_touch(made, UNKNOWN), OK);
    fill(made, BLOCK, 51);
    assert_eq!(smartswap_end(), OK);
    // One that only returns an input.
    assert_eq!(begin("view"), OK);
    assert_eq!(smartswap_touch(blocks[1], OUTPUT), OK);
    let output = smartswap_allocate(BLOCK, 0);
    fill(output, BLOCK, 52);
    assert_eq!(smartswap_touch(output, OUTPUT), OK);
    assert_eq!(smartswap_end(), OK);
    for (tag, &block) in blocks.iter().enumerate().skip(1) {
        check(block, BLOCK, tag as u64);
    }
    check(blocks[0], BLOCK, 50);
    check(made, BLOCK, 51);
    check(output, BLOCK, 52);
    assert!(stats().used_host.peak > 0);
    blocks.into_iter().chain([made, output]).for_each(free);
    rig.close();
}

#[test]
fn ops_inside_an_op_keep_their_memory_until_it_ends() {
    let rig = Rig::open(4 * MIB);
    let blocks = make_many(6);
    assert_eq!(begin("outer"), OK);
    for tag in [0, 1] {
        assert_eq!(begin("inner"), OK);
        assert_eq!(smartswap_touch(blocks[tag], READ), OK);
        assert_eq!(smartswap_end(), OK);
    }
    // Both are still there, however much is asked for.
    assert!(smartswap_allocate(4 * BLOCK, 0).is_null());
    assert_holds(blocks[0], BLOCK, 0);
    assert_holds(blocks[1], BLOCK, 1);
    assert_eq!(smartswap_end(), OK);
    blocks.into_iter().for_each(free);
    rig.close();
}

#[test]
fn ops_aside_are_right_and_do_not_begin_the_step() {
    let rig = Rig::open(4 * MIB);
    let mut blocks = make_many(6);
    step();
    assert_eq!(smartswap_step_begun(), 0);
    for (tag, &block) in blocks.iter().enumerate() {
        assert_eq!(begin_named(Some(c"evaluate"), ASIDE), OK);
        assert_eq!(smartswap_touch(block, READ_WRITE), OK);
        assert_holds(block, BLOCK, tag as u64);
        fill(block, BLOCK, 90 + tag as u64);
        assert_eq!(smartswap_end(), OK);
    }
    assert_eq!(smartswap_step_begun(), 0);
    assert_eq!(begin_named(Some(c"op"), STEP), OK);
    assert_eq!(smartswap_step_begun(), 1);
    assert_eq!(smartswap_end(), OK);
    for (tag, &block) in blocks.iter().enumerate() {
        check(block, BLOCK, 90 + tag as u64);
    }
    step();
    assert_eq!((smartswap_step_begun(), stats().steps), (0, 2));
    blocks.drain(..).for_each(free);
    rig.close();
}

#[test]
fn other_streams_can_be_named_for_live_memory_alone() {
    let rig = Rig::open(4 * MIB);
    let memory = make(BLOCK, 1);
    let small = make(64, 2);
    // The software device has no streams of callers: all are the calling thread.
    assert_eq!(smartswap_compute_stream(), 0);
    for stream in [0, 1, u64::MAX] {
        assert_eq!(smartswap_use_on(memory, stream), OK);
        assert_eq!(smartswap_use_on(small, stream), OK);
    }
    free(memory);
    free(small);
    assert_fails(smartswap_use_on(memory, 0), USAGE, "lies in no live allocation");
    rig.close();
}

#[test]
fn swapped_memory_is_beyond_the_cap_and_stays_where_it_is() {
    let rig = Rig::open(4 * MIB);
    assert_eq!(smartswap_has_swapped(), 1);
    let swapped: Vec<_> = (0..16).map(|_| smartswap_allocate_swapped(BLOCK, 0)).collect();
    for (tag, &memory) in swapped.iter().enumerate() {
        assert!(!memory.is_null());
        fill(memory, BLOCK, tag as u64);
    }
    let blocks = make_many(8);
    press(&blocks);
    for (tag, &memory) in swapped.iter().enumerate() {
        assert_holds(memory, BLOCK, tag as u64);
        let last = memory.wrapping_byte_add(BLOCK as usize - 1);
        assert_eq!((smartswap_is_swapped(memory), smartswap_is_swapped(last)), (1, 1));
    }
    assert_eq!(smartswap_is_swapped(blocks[0]), 0);
    assert!(device_bytes() <= rig.limit_bytes);
    for memory in swapped {
        assert_eq!(smartswap_free_swapped(memory, 0), OK);
        assert_eq!(smartswap_is_swapped(memory), 0);
    }
    blocks.into_iter().for_each(free);
    rig.close();
}

#[test]
fn counters_follow_what_happens() {
    let rig = Rig::open(16 * MIB);
    let start = stats();
    assert_eq!((start.limit_bytes, start.steps, start.stage), (16 * MIB, 0, 0));
    let (large, small) = (make(BLOCK + 1, 1), make(1000, 2));
    let made = stats();
    assert_eq!(made.requested.current, BLOCK + 1001);
    assert!(made.allocated.current > made.requested.current);
    assert!(made.active.current <= made.reserved.current);
    assert_eq!(made.allocations, start.allocations + 2);
    free(large);
    free(small);
    let freed = stats();
    assert_eq!((freed.requested.current, freed.allocated.current), (0, 0));
    assert_eq!(freed.requested.peak, BLOCK + 1001);
    // Peaks outlive steps, and end where they are told to.
    step();
    assert_eq!(stats().requested.peak, BLOCK + 1001);
    assert_eq!(smartswap_reset_peaks(), OK);
    assert_eq!(stats().requested.peak, 0);
    // Caches are given back.
    assert!(stats().reserved.current > 0);
    assert_eq!(smartswap_trim(), OK);
    assert_eq!(stats().reserved.current, 0);
    rig.close();
}

#[test]
fn traces_reports_and_reasons_are_written() {
    let rig = Rig::open(4 * MIB);
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| {
        let path = folder.path().join(name);
        CString::new(path.to_str().expect("UTF-8")).expect("no zero inside")
    };
    assert_fails(save_trace(Some(&path("early.json"))), USAGE, "no step has been recorded yet");
    let mut blocks = make_many(8);
    for _ in 0..6 {
        press(&blocks);
        step();
    }
    assert_eq!(save_trace(Some(&path("trace.json"))), OK);
    assert_eq!(save_report(Some(&path("report"))), OK);
    for file in ["trace.json", "report/explain.json", "report/trace.json"] {
        let bytes = std::fs::metadata(folder.path().join(file)).expect(file).len();
        assert!(bytes > 100, "{file}: {bytes}");
    }
    let reasons = explain().expect("an engine is open");
    for word in
        ["\"limit_bytes\":4194304", "\"stage\":", "\"decisions\":", "\"strategy\":\"joint\""]
    {
        assert!(reasons.contains(word), "no {word} in {reasons}");
    }
    let nowhere = save_trace(Some(c"/nowhere/trace.json"));
    assert_fails(nowhere, super::rig::SETTINGS, "cannot create /nowhere/trace.json");
    blocks.drain(..).for_each(free);
    rig.close();
}

/// Blocks of ever larger sizes, one after the other, beside one that stays. Returns in parts of
/// the cap, of which each size is a few, what is held then.
fn hold_ever_larger(rig: &Rig) -> u64 {
    let unit_bytes = rig.limit_bytes / 512 / MIB * MIB;
    let kept = smartswap_allocate(64 * unit_bytes, 0);
    for size in 8..16 {
        free(smartswap_allocate(size * unit_bytes, 0));
    }
    let held_bytes = stats().reserved.current;
    free(kept);
    held_bytes / unit_bytes
}

#[test]
fn a_cap_that_was_asked_for_may_be_filled_and_the_device_may_not() {
    let rig = Rig::open(1024 * MIB);
    assert_eq!(hold_ever_larger(&rig), 64 + (8..16).sum::<u64>());
    rig.close();
    let rig = Rig::open(0);
    let held = hold_ever_larger(&rig);
    assert!(held <= (64 + 15) * 11 / 10, "{held}");
    rig.close();
}
