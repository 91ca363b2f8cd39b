//! Wrong arguments and calls out of order: one clear text each, and the engine goes on.

use std::ffi::c_void;
use std::ptr;

use super::rig::{
    BLOCK, MIB, OK, OUT_OF_MEMORY, READ, Rig, SETTINGS, STEP, Settings, Stats, Touched, Turn,
    UNKNOWN, USAGE, assert_fails, assert_holds, begin, begin_named, check, default_settings, find,
    find_nothing, free, get_stats, last_error, make, open, save_report, save_trace,
    smartswap_allocate, smartswap_allocate_swapped, smartswap_close, smartswap_depth,
    smartswap_end, smartswap_free, smartswap_free_swapped, smartswap_is_open, smartswap_is_swapped,
    smartswap_step, smartswap_touch, smartswap_touch_all, stats,
};

#[test]
fn null_arguments() {
    let rig = Rig::open(16 * MIB);
    assert_fails(get_stats(None), USAGE, "stats is NULL");
    assert_fails(begin_named(None, STEP), USAGE, "the name of an op is NULL");
    assert_fails(save_trace(None), USAGE, "the path is NULL");
    assert_fails(save_report(None), USAGE, "the path is NULL");
    assert_fails(smartswap_free(ptr::null_mut()), USAGE, "0x0 is not a live allocation");
    assert_fails(smartswap_free_swapped(ptr::null_mut(), 0), USAGE, "not live swapped memory");
    assert_eq!(smartswap_is_swapped(ptr::null()), 0);
    assert_eq!(begin("op"), OK);
    // Memory of others is passed over, and nobody's is.
    assert_eq!(smartswap_touch(ptr::null(), READ), OK);
    assert_eq!(smartswap_end(), OK);
    rig.close();
    let _turn = Turn::take();
    assert_fails(open(None), USAGE, "settings is NULL");
}

#[test]
fn sizes_of_other_versions() {
    let turn = Turn::take();
    let defaults = default_settings();
    for struct_size in [0, defaults.struct_size - 8, defaults.struct_size + 8] {
        let settings = Settings { struct_size, memory_bytes: MIB, ..defaults };
        assert_fails(open(Some(&settings)), USAGE, "sizeof(smartswap_settings)");
    }
    assert_eq!(smartswap_is_open(), 0);
    drop(turn);
    let rig = Rig::open(16 * MIB);
    let right = size_of::<Stats>() as u32;
    for struct_size in [0, right - 8, right + 8] {
        let mut stats = Stats { struct_size, steps: 77, ..Stats::default() };
        assert_fails(get_stats(Some(&mut stats)), USAGE, "sizeof(smartswap_stats)");
        assert_eq!(stats.steps, 77, "nothing was written");
    }
    rig.close();
}

#[test]
fn settings_that_cannot_be() {
    let _turn = Turn::take();
    let base = Settings { memory_bytes: 16 * MIB, ..default_settings() };
    let not_text = c"\xff\xfe";
    for (settings, words) in [
        (Settings { device: c"tpu".as_ptr(), ..base }, "'tpu' is not a device: write host, cuda"),
        (Settings { device: c"host:1".as_ptr(), ..base }, "'host:1' is not a device"),
        (Settings { device: c"cuda:x".as_ptr(), ..base }, "'cuda:x' is not a device"),
        (Settings { device: not_text.as_ptr(), ..base }, "device is not UTF-8"),
        (
            Settings { prefer: c"speed".as_ptr(), ..base },
            "prefer is `performance` or `memory`, not 'speed'",
        ),
        (Settings { strategy: c"magic".as_ptr(), ..base }, "strategy is `keep`, `swap`"),
        (Settings { record_file: not_text.as_ptr(), ..base }, "record_file is not UTF-8"),
        (Settings { memory_bytes: 1, ..base }, "below the device's granularity"),
    ] {
        let code = open(Some(&settings));
        assert!(last_error().contains(words), "'{}' has no '{words}'", last_error());
        assert_eq!((code, smartswap_is_open()), (SETTINGS, 0), "{words}");
    }
}

#[test]
fn a_device_that_is_not_there() {
    let _turn = Turn::take();
    let settings = Settings { device: c"acl:77".as_ptr(), ..default_settings() };
    assert_ne!(open(Some(&settings)), OK);
    assert!(!last_error().is_empty());
    assert_eq!(smartswap_is_open(), 0);
}

#[test]
fn ops_out_of_order() {
    let rig = Rig::open(16 * MIB);
    assert_fails(smartswap_end(), USAGE, "end without begin");
    assert_fails(smartswap_touch(ptr::null(), READ), USAGE, "call begin first");
    assert_fails(begin_named(Some(c"op"), 7), USAGE, "7 is not a smartswap_part");
    assert_fails(begin_named(Some(c"\xff"), STEP), USAGE, "not UTF-8");
    assert_eq!(smartswap_depth(), 0, "no op was begun");
    assert_eq!(begin("outer"), OK);
    assert_eq!(begin("inner"), OK);
    assert_fails(smartswap_touch(ptr::null(), 9), USAGE, "9 is not a smartswap_access");
    assert_fails(smartswap_step(), USAGE, "a step cannot end inside an op");
    assert_eq!(smartswap_depth(), 2);
    assert_eq!(smartswap_end(), OK);
    assert_eq!(smartswap_end(), OK);
    assert_fails(smartswap_end(), USAGE, "end without begin");
    assert_eq!(smartswap_step(), OK);
    rig.close();
}

#[test]
fn memory_that_is_freed_or_of_others() {
    let rig = Rig::open(16 * MIB);
    for size_bytes in [256, BLOCK] {
        let memory = make(size_bytes, 1);
        let inside = memory.wrapping_byte_add(64);
        assert_eq!(find(inside), Ok((memory, size_bytes)));
        assert_eq!(find_nothing(memory), OK);
        let behind = memory.wrapping_byte_add(size_bytes as usize);
        assert_fails(find_nothing(behind), USAGE, "lies in no live allocation");
        assert_fails(smartswap_free(inside), USAGE, "is not a live allocation");
        check(memory, size_bytes, 1);
        free(memory);
        assert_fails(smartswap_free(memory), USAGE, "is not a live allocation");
        assert_fails(find_nothing(memory), USAGE, "lies in no live allocation");
    }
    let foreign: *mut c_void = Box::into_raw(Box::new(0u64)).cast();
    assert_fails(smartswap_free(foreign), USAGE, "is not a live allocation");
    // SAFETY: it came from `Box::into_raw`, and nobody freed it.
    drop(unsafe { Box::from_raw(foreign.cast::<u64>()) });
    let swapped = smartswap_allocate_swapped(256, 0);
    assert_eq!(smartswap_free(swapped), OK);
    assert_fails(smartswap_free(swapped), USAGE, "is not a live allocation");
    let swapped = smartswap_allocate_swapped(256, 0);
    assert_eq!(smartswap_free_swapped(swapped, 0), OK);
    assert_fails(smartswap_free_swapped(swapped, 0), USAGE, "not live swapped memory");
    rig.close();
}

#[test]
fn what_cannot_fit_says_what_is_missing() {
    let rig = Rig::open(16 * MIB);
    let kept = make(BLOCK, 3);
    assert!(smartswap_allocate(17 * MIB, 0).is_null());
    let text = last_error();
    for words in ["17.0 MiB asked for", "the cap of 16.0 MiB", "would have helped"] {
        assert!(text.contains(words), "'{text}' has no '{words}'");
    }
    // More than any machine has is no different, and nothing overflows.
    for size_bytes in [1 << 50, u64::MAX - 4096, u64::MAX] {
        assert!(smartswap_allocate(size_bytes, 0).is_null());
        assert!(smartswap_allocate_swapped(size_bytes, 0).is_null());
        assert!(!last_error().contains("internal error"), "{}", last_error());
    }
    // In an op whose inputs fill the cap there is none for its output, and a smaller one is.
    let inputs: Vec<_> = (0..15).map(|tag| make(BLOCK, tag)).collect();
    assert_eq!(begin("full"), OK);
    for &input in &inputs {
        assert_eq!(smartswap_touch(input, UNKNOWN), OK, "{}", last_error());
    }
    assert!(smartswap_allocate(2 * BLOCK, 0).is_null());
    assert!(last_error().contains("held by running ops"), "{}", last_error());
    for (tag, &input) in inputs.iter().enumerate() {
        assert_holds(input, BLOCK, tag as u64);
    }
    assert_eq!(smartswap_end(), OK);
    check(kept, BLOCK, 3);
    inputs.into_iter().for_each(free);
    free(kept);
    rig.close();
}

#[test]
fn a_touch_that_finds_no_room_is_out_of_memory_and_the_op_goes_on() {
    let rig = Rig::open(4 * MIB);
    let blocks: Vec<_> = (0..5).map(|tag| make(BLOCK, tag)).collect();
    assert_eq!(begin("too_many"), OK);
    let codes: Vec<_> = blocks.iter().map(|&block| smartswap_touch(block, READ)).collect();
    assert_eq!(codes[..3], [OK; 3]);
    assert!(codes.contains(&OUT_OF_MEMORY), "{codes:?}");
    let words = "'too_many' needs all that it uses at once";
    assert!(last_error().contains(words), "{}", last_error());
    assert_eq!(smartswap_end(), OK);
    for (tag, &block) in blocks.iter().enumerate() {
        check(block, BLOCK, tag as u64);
    }
    blocks.into_iter().for_each(free);
    rig.close();
}

/// Touches all of these for reading.
fn touch_all(blocks: &[*mut c_void]) -> i32 {
    let touched: Vec<_> = blocks.iter().map(|&b| Touched { address: b, access: READ }).collect();
    // SAFETY: a list of so many.
    unsafe { smartswap_touch_all(touched.as_ptr(), touched.len() as u32) }
}

#[test]
fn a_list_that_does_not_fit_is_touched_anew_once_there_is_room() {
    let rig = Rig::open(4 * MIB);
    // SAFETY: a list of none.
    assert_eq!(unsafe { smartswap_touch_all(ptr::null(), 0) }, USAGE, "no op is open");
    let blocks: Vec<_> = (0..5).map(|tag| make(BLOCK, tag)).collect();
    assert_eq!(begin("list"), OK);
    // SAFETY: NULL is allowed for a list.
    assert_fails(unsafe { smartswap_touch_all(ptr::null(), 1) }, USAGE, "is NULL");
    let wrong = Touched { address: blocks[0], access: 9 };
    // SAFETY: a list of one.
    assert_fails(unsafe { smartswap_touch_all(&raw const wrong, 1) }, USAGE, "9 is no");
    assert_fails(touch_all(&blocks), OUT_OF_MEMORY, "needs all that it uses at once");
    assert_eq!(smartswap_end(), OK);
    assert_eq!(begin("retry"), OK);
    assert_fails(touch_all(&blocks), OUT_OF_MEMORY, "needs all that it uses at once");
    // The last ones were not reached, and the op may have let none of them go.
    for &block in &blocks[..3] {
        free(block);
    }
    assert_eq!(touch_all(&blocks[3..]), OK, "{}", last_error());
    for tag in 3..5 {
        assert_holds(blocks[tag as usize], BLOCK, tag);
    }
    assert_eq!(smartswap_end(), OK);
    free(blocks[3]);
    free(blocks[4]);
    rig.close();
}

#[test]
fn one_engine_at_a_time_and_none_closes_over_live_memory() {
    let rig = Rig::open(16 * MIB);
    let second = Settings { memory_bytes: MIB, ..default_settings() };
    assert_fails(open(Some(&second)), USAGE, "an engine is open already");
    let (small, large) = (make(100, 1), make(BLOCK, 2));
    let swapped = smartswap_allocate_swapped(BLOCK, 0);
    assert_fails(smartswap_close(), USAGE, "3 allocations of 2.0 MiB");
    assert_eq!(smartswap_is_open(), 1);
    // It is as it was.
    check(large, BLOCK, 2);
    free(small);
    free(large);
    assert_fails(smartswap_close(), USAGE, "1 allocations of 1.0 MiB");
    assert_eq!(smartswap_free_swapped(swapped, 0), OK);
    assert_eq!(stats().requested.current, 0);
    rig.close();
}

#[test]
fn an_engine_that_was_closed_with_an_op_open_is_forgotten() {
    let rig = Rig::open(4 * MIB);
    assert_eq!(begin("open"), OK);
    rig.close();
    // The next one knows nothing of it.
    let rig = Rig::open(4 * MIB);
    assert_eq!(smartswap_depth(), 0);
    let memory = make(BLOCK, 1);
    check(memory, BLOCK, 1);
    free(memory);
    rig.close();
}
