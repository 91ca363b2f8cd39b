//! What is recorded of an op, and how an op is run again.

use std::ffi::{CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;

use super::rig::{
    BLOCK, MIB, OK, OUTPUT, READ, READ_WRITE, Replay, Rig, Settings, UNKNOWN, USAGE, WRITE,
    assert_fails, begin, check, default_settings, fill, free, hold, last_error, lend, make,
    offer_replay, save_trace, smartswap_allocate, smartswap_end, smartswap_touch, stats, step,
};

/// Reads, writes and outputs of each recorded op, as places in the trace.
pub(crate) fn recorded() -> Vec<(String, [Vec<u64>; 3])> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.json");
    let name = CString::new(path.to_str().expect("UTF-8")).expect("no zero inside");
    assert_eq!(save_trace(Some(&name)), OK, "{}", last_error());
    let text = std::fs::read_to_string(&path).expect("it was written");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let places = |op: &Value, key: &str| {
        let list = op[key].as_array().expect("a list");
        list.iter().map(|place| place.as_u64().expect("a number")).collect()
    };
    let ops = trace["ops"].as_array().expect("a list").iter();
    ops.map(|op| {
        let name = op["name"].as_str().expect("a name").to_owned();
        (name, ["reads", "writes", "outputs"].map(|key| places(op, key)))
    })
    .collect()
}

/// One op: what it touches, and whether it first allocates a block that it returns.
fn op(name: &str, touches: &[(*mut c_void, c_int)], fresh: Option<c_int>) -> *mut c_void {
    assert_eq!(begin(name), OK, "{}", last_error());
    for &(memory, access) in touches {
        assert_eq!(smartswap_touch(memory, access), OK, "{}", last_error());
    }
    let mut made = std::ptr::null_mut();
    if let Some(access) = fresh {
        made = smartswap_allocate(BLOCK, 0);
        assert_eq!(smartswap_touch(made, access), OK, "{}", last_error());
    }
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    made
}

#[test]
fn what_an_op_made_itself_is_written_and_all_else_is_what_the_caller_says() {
    let rig = Rig::open(16 * MIB);
    for _ in 0..2 {
        let a = op("makes", &[], Some(UNKNOWN));
        let b = op("uses and makes", &[(a, UNKNOWN)], Some(OUTPUT));
        op("returns its input", &[(a, OUTPUT)], None);
        op("reads", &[(b, READ)], None);
        op("changes", &[(b, READ_WRITE)], None);
        op("overwrites", &[(b, WRITE)], None);
        free(a);
        free(b);
        step();
    }
    let ops = recorded();
    let find = |name: &str| &ops.iter().find(|op| op.0 == name).expect(name).1;
    let [a_place, b_place] =
        ["makes", "uses and makes"].map(|name| *find(name)[2].last().expect("one"));
    assert_ne!(a_place, b_place);
    assert_eq!(find("makes"), &[vec![], vec![a_place], vec![a_place]]);
    assert_eq!(find("uses and makes"), &[vec![a_place], vec![a_place, b_place], vec![b_place]]);
    assert!(find("returns its input").iter().all(Vec::is_empty));
    assert_eq!(find("reads"), &[vec![b_place], vec![], vec![]]);
    assert_eq!(find("changes"), &[vec![b_place], vec![b_place], vec![]]);
    assert!(find("overwrites")[0].is_empty());
    assert_eq!(find("overwrites")[1], [b_place]);
    rig.close();
}

static RUNS: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);

struct Made {
    memory: usize,
    tag: u64,
}

extern "C" fn run(data: *mut c_void, output: *mut c_void, _: *mut c_char, _: u64) -> c_int {
    RUNS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `offer` made it, and `release` has not been called.
    let made = unsafe { &*data.cast::<Made>() };
    assert_eq!(output.expose_provenance(), made.memory);
    // Its inputs and outputs have been told of.
    assert_eq!((begin("inner"), smartswap_touch(output, WRITE), smartswap_end()), (OK, OK, OK));
    fill(output, BLOCK, made.tag);
    // It may allocate and free.
    let scratch = smartswap_allocate(BLOCK, 0);
    // Or take addresses.
    assert_eq!((lend(output), hold(scratch)), (OK, OK), "{}", last_error());
    fill(scratch, BLOCK, 99);
    free(scratch);
    0
}

extern "C" fn release(data: *mut c_void) {
    RELEASED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: it came from `Box::into_raw` in `offer`, and is released once.
    drop(unsafe { Box::from_raw(data.cast::<Made>()) });
}

/// An op that reads `input` and makes a block, which it can make again.
fn make_again(input: *mut c_void, tag: u64) -> *mut c_void {
    assert_eq!(begin("made again"), OK, "{}", last_error());
    assert_eq!(smartswap_touch(input, READ), OK, "{}", last_error());
    let memory = smartswap_allocate(BLOCK, 0);
    assert_eq!(smartswap_touch(memory, WRITE), OK, "{}", last_error());
    fill(memory, BLOCK, tag);
    let made = Box::new(Made { memory: memory.expose_provenance(), tag });
    let (outputs, data) = ([memory.cast_const()], Box::into_raw(made).cast());
    let replay = Replay {
        run,
        release,
        data,
        outputs: outputs.as_ptr(),
        output_count: 1,
        inputs: std::ptr::null(),
        input_count: 0,
    };
    assert_eq!(offer_replay(Some(&replay)), OK, "{}", last_error());
    assert_eq!(smartswap_end(), OK, "{}", last_error());
    memory
}

/// Eight blocks, made first and read last, each behind an op whose block is gone by then.
fn made_again_step(input: *mut c_void) {
    let blocks: Vec<_> = (1..=8)
        .map(|tag| {
            free(make(BLOCK, 50 + tag));
            make_again(input, tag)
        })
        .collect();
    for (place, &block) in blocks.iter().enumerate().rev() {
        check(block, BLOCK, place as u64 + 1);
    }
    blocks.into_iter().for_each(free);
    step();
}

#[test]
fn an_op_is_run_again_and_leaves_the_thread_as_it_was() {
    let settings = Settings { memory_bytes: 6 * MIB, ..default_settings() };
    let rig = Rig::with(Settings { strategy: c"recompute".as_ptr(), ..settings });
    assert_fails(offer_replay(None), USAGE, "the replay is NULL");
    let input = make(BLOCK, 40);
    while RUNS.load(Ordering::Relaxed) < 10 {
        assert!(stats().steps < 60, "nothing is made again: {:?}", stats());
        made_again_step(input);
    }
    // Another step is recorded, on the thread that ran the replays: its ops own what they make.
    let before = stats().steps;
    while stats().steps < before + 3 {
        let block = op("afterwards", &[], Some(UNKNOWN));
        free(block);
        step();
    }
    let (_, [reads, writes, _]) =
        recorded().into_iter().find(|op| op.0 == "afterwards").expect("it was recorded");
    assert_eq!((reads.len(), writes.len()), (0, 1));
    check(input, BLOCK, 40);
    free(input);
    assert!(stats().recomputed_ops > 0);
    rig.close();
    let released = RELEASED.load(Ordering::Relaxed);
    assert_eq!(released % 8, 0, "each of the eight of a step");
    assert!(released >= 8 * before);
}
