//! A model that fits needs to say nothing, until it does not fit any more.

use std::ffi::c_void;

use super::rig::{
    ASIDE, BLOCK, MIB, OK, OUT_OF_MEMORY, Rig, assert_fails, assert_holds, begin, begin_named,
    check, fill, find, free, last_error, make, smartswap_allocate, smartswap_awake, smartswap_end,
    smartswap_is_swapped, smartswap_may_sleep, smartswap_should_wake, smartswap_sleep,
    smartswap_step_begun, smartswap_touch, smartswap_use_on, smartswap_wake, stats, step,
};

/// Ops that use all of them, and see what was written there.
fn check_all(weights: &[*mut c_void]) {
    for (tag, &weight) in weights.iter().enumerate() {
        check(weight, BLOCK, tag as u64);
    }
}

/// All of them hold what was written there, although no op asks for it.
fn assert_all_hold(weights: &[*mut c_void]) {
    for (tag, &weight) in weights.iter().enumerate() {
        assert_holds(weight, BLOCK, tag as u64);
    }
}

/// A step that fits, told op by op.
fn told(weights: &[*mut c_void]) {
    check_all(weights);
    step();
}

/// When the search ends depends on how steady steps are.
fn told_until_they_may_sleep(weights: &[*mut c_void]) {
    while smartswap_may_sleep() == 0 {
        assert!(stats().steps < 200, "{:?}", stats());
        told(weights);
    }
}

#[test]
fn memory_is_right_asleep_and_after_waking() {
    let rig = Rig::open(16 * MIB);
    let weights: Vec<_> = (0..4).map(|tag| make(BLOCK, tag)).collect();
    // A library's, which no op ever shows.
    let library = smartswap_allocate(BLOCK, 0);
    fill(library, BLOCK, 80);
    assert_eq!(smartswap_may_sleep(), 0, "nothing is known of the steps yet");
    told_until_they_may_sleep(&weights);
    let told_steps = stats().steps;
    assert_eq!(smartswap_sleep(), OK);
    // Asleep nobody tells of anything, and all is there.
    for _ in 0..3 {
        let workspace = smartswap_allocate(BLOCK, 0);
        fill(workspace, BLOCK, 50);
        assert_all_hold(&weights);
        assert_holds(workspace, BLOCK, 50);
        free(workspace);
        // Operators with hooks of their own do no harm.
        check(weights[0], BLOCK, 0);
        assert_eq!(smartswap_step_begun(), 0);
        step();
    }
    assert_eq!(stats().steps, told_steps + 3);
    // At four fifths of the cap, while there is room for the op that runs.
    assert_eq!([1, 7, 8, 15].map(|n| smartswap_should_wake(n * MIB)), [0, 0, 1, 1]);
    assert_eq!(smartswap_wake(), OK);
    // Until all ops that run have been told of, nothing leaves. What finds no room is on the host.
    let beside = smartswap_allocate(14 * MIB, 0);
    assert_eq!(smartswap_is_swapped(beside), 1, "{}", last_error());
    assert_eq!(smartswap_use_on(beside, 0), OK);
    assert_eq!(find(beside.wrapping_byte_add(MIB as usize)), Ok((beside, 14 * MIB)));
    fill(beside, 14 * MIB, 70);
    assert_all_hold(&weights);
    assert_eq!(smartswap_awake(), OK);
    assert_holds(beside, 14 * MIB, 70);
    free(beside);
    assert_eq!(smartswap_is_swapped(beside), 0);
    // From then on what no op holds makes room, although no op has touched it since.
    let large = smartswap_allocate(14 * MIB, 0);
    assert!(!large.is_null(), "{}", last_error());
    assert_eq!(smartswap_is_swapped(large), 0);
    assert_holds(library, BLOCK, 80);
    free(large);
    told(&weights);
    free(library);
    weights.into_iter().for_each(free);
    rig.close();
}

/// A step that makes a few blocks of this size beside the weights.
fn told_with(weights: &[*mut c_void], activation_bytes: u64) {
    let activations: Vec<_> = (60..66).map(|tag| (make(activation_bytes, tag), tag)).collect();
    for (activation, tag) in activations.into_iter().rev() {
        check(activation, activation_bytes, tag);
        free(activation);
    }
    told(weights);
}

/// Ops that do nothing, more than a host could tell of beside so short a step.
fn busy_host() {
    for _ in 0..4000 {
        assert_eq!(begin("nothing"), OK);
        assert_eq!(smartswap_end(), OK);
    }
}

#[test]
fn steps_of_changing_sizes_may_sleep_until_one_is_too_large() {
    let rig = Rig::open(16 * MIB);
    let weights: Vec<_> = (0..2).map(|tag| make(BLOCK, tag)).collect();
    let sizes = [2, 3, 4, 5].map(|n| n * BLOCK / 4);
    let mut coming = sizes.into_iter().cycle();
    let mut next = || coming.next().expect("it goes round");
    while smartswap_may_sleep() == 0 {
        assert!(stats().steps < 200, "{:?}", stats());
        busy_host();
        told_with(&weights, next());
    }
    assert_eq!(smartswap_sleep(), OK);
    for _ in 0..3 {
        let activation = smartswap_allocate(next(), 0);
        free(activation);
        step();
    }
    assert_eq!([4, 14].map(|n| smartswap_should_wake(n * MIB)), [0, 1]);
    smartswap_wake();
    assert_eq!(smartswap_awake(), OK);
    // What is as large as that has come unseen once. It is planned for, so that nobody sleeps now.
    for _ in 0..20 {
        told_with(&weights, next());
        assert_eq!((smartswap_may_sleep(), stats().swapped_out_bytes), (0, 0));
    }
    weights.into_iter().for_each(free);
    rig.close();
}

#[test]
fn asleep_a_step_larger_than_all_before_lies_on_the_device() {
    let rig = Rig::open(16 * MIB);
    let weights: Vec<_> = (0..2).map(|tag| make(BLOCK, tag)).collect();
    told_until_they_may_sleep(&weights);
    assert_eq!(smartswap_sleep(), OK);
    let blocks_of = |sizes: &[u64]| -> Vec<_> {
        sizes.iter().map(|&size_bytes| smartswap_allocate(size_bytes, 0)).collect()
    };
    blocks_of(&[4 * MIB; 2]).into_iter().for_each(free);
    step();
    // Larger chunks may serve these two, but the third one finds room all the same: the cap is not
    // near before 12.8 MiB are in use.
    let small = blocks_of(&[2 * MIB; 2]);
    let large_bytes = 13 * MIB / 2;
    assert_eq!(smartswap_should_wake(large_bytes), 0);
    let large = smartswap_allocate(large_bytes, 0);
    assert_eq!(smartswap_is_swapped(large), 0);
    fill(large, large_bytes, 70);
    assert_all_hold(&weights);
    assert_holds(large, large_bytes, 70);
    small.into_iter().chain(weights).chain([large]).for_each(free);
    rig.close();
}

/// A step of this many blocks, one after the other: ops that no other number has.
fn told_for(count: u64) {
    for tag in 0..count {
        let made = make(BLOCK, tag);
        check(made, BLOCK, tag);
        free(made);
    }
    step();
}

#[test]
fn steps_of_which_no_two_are_alike_may_sleep_until_one_is_too_large() {
    let rig = Rig::open(16 * MIB);
    let weights: Vec<_> = (0..2).map(|tag| make(BLOCK, tag)).collect();
    for count in 1.. {
        told_for(count);
        assert_eq!(stats().steps_by_stage[1..], [0; 2], "some were taken to be alike");
        if smartswap_may_sleep() != 0 {
            break;
        }
        assert!(count < 40, "{:?}", stats());
    }
    assert!(stats().steps >= 16, "{:?}", stats());
    assert_eq!(smartswap_sleep(), OK);
    let activation = smartswap_allocate(4 * MIB, 0);
    free(activation);
    step();
    assert_eq!((stats().stage, stats().steps_by_stage[2]), (2, 1), "they fit");
    assert_eq!([4, 14].map(|n| smartswap_should_wake(n * MIB)), [0, 1]);
    smartswap_wake();
    assert_eq!(smartswap_awake(), OK);
    assert_eq!(stats().stage, 0);
    assert_all_hold(&weights);
    // Nobody knows when the next large one comes.
    for count in 50..90 {
        told_for(count);
        assert_eq!(smartswap_may_sleep(), 0);
    }
    weights.into_iter().for_each(free);
    rig.close();
}

#[test]
fn steps_that_always_differ_and_move_may_not_sleep() {
    let rig = Rig::open(8 * MIB);
    let weights: Vec<_> = (0..8).map(|tag| make(BLOCK, tag)).collect();
    for count in 1..40 {
        told_for(count);
        check_all(&weights);
        assert_eq!(smartswap_may_sleep(), 0);
    }
    assert!(stats().swapped_out_bytes > 0, "nothing moved");
    weights.into_iter().for_each(free);
    rig.close();
}

#[test]
fn a_model_that_just_fits_may_not_sleep() {
    let rig = Rig::open(16 * MIB);
    let mut weights: Vec<_> = (0..14).map(|tag| make(BLOCK, tag)).collect();
    let mut steps_stable = 0;
    while steps_stable < 3 {
        assert!(stats().steps < 200, "{:?}", stats());
        told(&weights);
        assert_eq!(smartswap_may_sleep(), 0);
        steps_stable += u32::from(stats().stage == 2);
    }
    assert_eq!(stats().swapped_out_bytes, 0, "it fits");
    // With less it may, but not while what is away would fill the cap again.
    weights.drain(12..).for_each(free);
    while smartswap_may_sleep() == 0 {
        assert!(stats().steps < 400, "{:?}", stats());
        told(&weights);
    }
    let large = make(14 * MIB, 90);
    free(large);
    assert!(stats().active.current < stats().allocated.current, "nothing is away");
    assert_eq!(smartswap_may_sleep(), 0);
    // Where it is made to, all of it comes back.
    assert_eq!(smartswap_sleep(), OK, "{}", last_error());
    assert_all_hold(&weights);
    weights.into_iter().for_each(free);
    rig.close();
}

#[test]
fn a_model_that_does_not_fit_may_not_sleep() {
    let rig = Rig::open(4 * MIB);
    let weights: Vec<_> = (0..8).map(|tag| make(BLOCK, tag)).collect();
    for _ in 0..12 {
        told(&weights);
        assert_eq!(smartswap_may_sleep(), 0);
    }
    assert_eq!(begin_named(Some(c"aside"), ASIDE), OK);
    assert_eq!(smartswap_touch(weights[0], 0), OK);
    assert_eq!(smartswap_end(), OK);
    // Nor can it be made to. It goes on as before.
    assert_fails(smartswap_sleep(), OUT_OF_MEMORY, "out of device memory");
    told(&weights);
    weights.into_iter().for_each(free);
    rig.close();
}
