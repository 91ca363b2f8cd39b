//! Every function while no engine is open.

use std::ptr;

use super::rig::{
    ASIDE, FIGURES, LEADS, OK, READ, STEP, Stats, Turn, USAGE, agree, agree_times, assert_fails,
    base_alloc, begin_named, deferral, explain, figures, find, find_nothing, free_no_text,
    get_stats, held, hold, last_error, lend, save_report, save_trace, smartswap_abi_version,
    smartswap_allocate, smartswap_allocate_swapped, smartswap_awake, smartswap_bring_home,
    smartswap_capture_begins, smartswap_capture_ended, smartswap_close, smartswap_compute_stream,
    smartswap_delete, smartswap_depth, smartswap_end, smartswap_free, smartswap_free_swapped,
    smartswap_graph_forget, smartswap_graph_include, smartswap_graph_make, smartswap_graph_touch,
    smartswap_has_swapped, smartswap_is_open, smartswap_is_swapped, smartswap_malloc,
    smartswap_may_sleep, smartswap_memory_fraction, smartswap_record_stream, smartswap_reset,
    smartswap_reset_peaks, smartswap_resume, smartswap_set_outside, smartswap_share,
    smartswap_should_wake, smartswap_sleep, smartswap_stays, smartswap_step, smartswap_step_begun,
    smartswap_suspend, smartswap_touch, smartswap_trim, smartswap_use_on, smartswap_wake,
    take_news, times,
};

const NOT_OPEN: &str = "the engine is not open: call smartswap_open first";

#[test]
fn every_function_says_that_no_engine_is_open() {
    let _turn = Turn::take();
    let foreign = ptr::from_ref(&0u64).cast_mut().cast();
    let mut stats = Stats { struct_size: size_of::<Stats>() as u32, ..Stats::default() };
    let codes = [
        smartswap_bring_home(),
        smartswap_free(foreign),
        smartswap_use_on(foreign, 0),
        hold(foreign),
        lend(foreign),
        find(foreign).expect_err("nothing is found"),
        find_nothing(foreign),
        smartswap_trim(),
        smartswap_set_outside(0),
        smartswap_suspend(),
        smartswap_resume(),
        smartswap_free_swapped(foreign, 0),
        begin_named(Some(c"op"), STEP),
        begin_named(Some(c"op"), ASIDE),
        smartswap_touch(foreign, READ),
        smartswap_end(),
        smartswap_step(),
        smartswap_graph_forget(1),
        smartswap_capture_begins(),
        smartswap_capture_ended(),
        smartswap_graph_include(1, 2),
        smartswap_graph_touch(1),
        smartswap_share(LEADS),
        figures(&mut [0.0; FIGURES as usize]),
        agree(Some(&[0.0; FIGURES as usize])).expect_err("nothing is agreed on"),
        times(&mut [0.0; 2]),
        agree_times(&[0.0; 2]).expect_err("nothing is agreed on"),
        smartswap_sleep(),
        smartswap_wake(),
        smartswap_awake(),
        get_stats(Some(&mut stats)),
        smartswap_reset_peaks(),
        save_trace(Some(c"/tmp/none")),
        save_report(Some(c"/tmp/none")),
    ];
    for (index, code) in codes.into_iter().enumerate() {
        assert_eq!(code, USAGE, "function {index}");
    }
    assert_fails(smartswap_trim(), USAGE, NOT_OPEN);
}

#[test]
fn functions_without_a_code_say_it_in_their_own_way() {
    let _turn = Turn::take();
    let foreign = ptr::from_ref(&0u64).cast_mut().cast();
    for memory in [
        smartswap_allocate(64, 0),
        smartswap_allocate_swapped(64, 0),
        smartswap_malloc(64, 0, ptr::null_mut()),
        base_alloc(foreign, None),
    ] {
        assert!(memory.is_null());
        assert_eq!(last_error(), NOT_OPEN);
    }
    assert_eq!((explain(), deferral(), held(), take_news()), (None, None, None, None));
    assert_eq!((smartswap_is_open(), smartswap_is_swapped(foreign)), (0, 0));
    assert_eq!(smartswap_has_swapped(), 0);
    assert_eq!((smartswap_graph_make(), smartswap_stays(foreign)), (0, 0));
    assert_eq!((smartswap_depth(), smartswap_step_begun(), smartswap_compute_stream()), (0, 0, 0));
    assert_eq!(smartswap_abi_version(), 6);
    assert_eq!((smartswap_may_sleep(), smartswap_should_wake(u64::MAX)), (0, 0));
    free_no_text();
    smartswap_delete(foreign, 64, 0, ptr::null_mut());
    smartswap_reset();
    smartswap_memory_fraction(0.5, 0);
    smartswap_record_stream(foreign, ptr::null_mut());
    // There is nothing to close, so it is closed.
    assert_eq!(smartswap_close(), OK);
}
