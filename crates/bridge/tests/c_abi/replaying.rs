//! Ops with several outputs and small inputs, dropped and made again by hand.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::rig::{
    BLOCK, BROKEN, MIB, OK, READ, READ_WRITE, Replay, Rig, USAGE, WRITE, assert_fails, begin,
    check, fill, free, last_error, lend, make, offer_replay, say, smartswap_allocate,
    smartswap_discard, smartswap_end, smartswap_least_bytes, smartswap_moves, smartswap_replay_use,
    smartswap_touch, stats, step,
};

const SMALL: u64 = 1024;

static RUNS: AtomicU64 = AtomicU64::new(0);

static FAILS: AtomicBool = AtomicBool::new(false);

/// `data` is the number of a pattern, which all outputs get.
extern "C" fn run(data: *mut c_void, output: *mut c_void, why: *mut c_char, room: u64) -> c_int {
    if FAILS.load(Ordering::Relaxed) {
        say(c"not now", why, room);
        return 1;
    }
    RUNS.fetch_add(1, Ordering::Relaxed);
    fill(output, BLOCK, data.addr() as u64);
    0
}

extern "C" fn release(_: *mut c_void) {}

/// An op that reads memory and makes two blocks of pattern `tag`; says what its offer came to.
fn make_two(input: *mut c_void, tag: usize, told: usize) -> ([*mut c_void; 2], c_int) {
    assert_eq!(begin("two"), OK, "{}", last_error());
    assert_eq!(smartswap_replay_use(), 2, "the first step is recorded");
    assert_eq!(smartswap_touch(input, READ), OK, "{}", last_error());
    let made = [(); 2].map(|()| {
        let memory = smartswap_allocate(BLOCK, 0);
        // An op inside it may change it; as a whole the op writes it.
        assert_eq!(begin("inside"), OK, "{}", last_error());
        assert_eq!(smartswap_replay_use(), 0, "ops inside an op have no replays");
        assert_eq!(smartswap_touch(memory, READ_WRITE), OK, "{}", last_error());
        assert_eq!(smartswap_end(), OK, "{}", last_error());
        fill(memory, BLOCK, tag as u64);
        memory
    });
    let outputs = made.map(<*mut c_void>::cast_const);
    let inputs = [input.cast_const()];
    let replay = Replay {
        run,
        release,
        data: ptr::without_provenance_mut(tag),
        outputs: outputs.as_ptr(),
        output_count: told as u32,
        inputs: inputs.as_ptr(),
        input_count: u32::from(smartswap_moves(input) == 0),
    };
    let code = offer_replay(Some(&replay));
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    (made, code)
}

#[test]
fn outputs_come_back_one_by_one_before_a_small_input_changes() {
    let rig = Rig::open(8 * MIB);
    assert_eq!(smartswap_least_bytes(), 64 << 10);
    let before = RUNS.load(Ordering::Relaxed);
    let small = make(SMALL, 40);
    let ([first, second], code) = make_two(small, 7, 2);
    assert_eq!(code, OK, "{}", last_error());
    assert_eq!([first, second, small].map(|memory| smartswap_discard(memory)), [1, 1, 0]);
    check(first, BLOCK, 7);
    assert_eq!(RUNS.load(Ordering::Relaxed), before + 1);
    // A write to the input brings the other back first, and leaves nothing to make it from.
    assert_eq!(begin("changes"), OK, "{}", last_error());
    assert_eq!(smartswap_touch(small, READ_WRITE), OK, "{}", last_error());
    assert_eq!(RUNS.load(Ordering::Relaxed), before + 2);
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    assert_eq!((smartswap_discard(first), smartswap_discard(second)), (0, 0));
    check(second, BLOCK, 7);
    // Why a replay failed is the error of whoever needs the memory.
    FAILS.store(true, Ordering::Relaxed);
    let ([failing, other], code) = make_two(small, 7, 2);
    assert_eq!((code, smartswap_discard(failing)), (OK, 1), "{}", last_error());
    assert_eq!(begin("needs it"), OK, "{}", last_error());
    assert_fails(smartswap_touch(failing, READ), BROKEN, "replaying 'two' failed: not now");
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    FAILS.store(false, Ordering::Relaxed);
    check(failing, BLOCK, 7);
    [failing, other].into_iter().for_each(free);
    // Freed, a small input stays for the recipes that read it.
    let ([third, fourth], code) = make_two(small, 8, 2);
    assert_eq!(code, OK, "{}", last_error());
    free(small);
    assert_eq!(stats().kept_bytes, SMALL);
    assert_eq!(smartswap_discard(third), 1);
    check(third, BLOCK, 8);
    [third, fourth].into_iter().for_each(free);
    assert_eq!(stats().kept_bytes, 0);
    [first, second].into_iter().for_each(free);
    rig.close();
}

#[test]
fn nothing_is_made_again_from_small_memory_whose_address_is_out() {
    let rig = Rig::open(8 * MIB);
    let small = make(SMALL, 40);
    let ([before, other], code) = make_two(small, 7, 2);
    assert_eq!((code, smartswap_discard(before)), (OK, 1), "{}", last_error());
    let runs = RUNS.load(Ordering::Relaxed);
    // Whoever takes the address may write, so what is made from it comes back first.
    assert_eq!(lend(small), OK, "{}", last_error());
    assert_eq!(RUNS.load(Ordering::Relaxed), runs + 1);
    let ([first, second], code) = make_two(small, 8, 2);
    assert_eq!((code, smartswap_discard(first)), (OK, 0), "{}", last_error());
    step();
    assert_eq!(smartswap_discard(second), 0, "it was made from what may have changed since");
    [before, other, first, second, small].into_iter().for_each(free);
    rig.close();
}

#[test]
fn an_op_that_writes_more_than_it_says_is_not_made_again() {
    let rig = Rig::open(8 * MIB);
    let input = make(BLOCK, 40);
    let ([first, second], code) = make_two(input, 9, 1);
    assert_fails(code, USAGE, "not among the outputs");
    assert_eq!((smartswap_discard(first), smartswap_discard(second)), (0, 0));
    // What the engine does not know it cannot watch.
    let foreign = ptr::from_ref(&0_u64).cast_mut().cast();
    let ([third, fourth], code) = make_two(foreign, 9, 2);
    assert_fails(code, USAGE, "not a small block");
    assert_eq!(smartswap_touch(third, WRITE), USAGE, "no op is open");
    [input, first, second, third, fourth].into_iter().for_each(free);
    rig.close();
}
