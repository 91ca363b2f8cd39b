//! Work that the engine does not launch: on streams of the caller, on the calling thread, in
//! swapped memory.

use std::sync::Arc;

use swap_core::devices::{HostConfig, HostDriver, HostLink};
use swap_core::{
    Access, AccessMode, BlockId, Compute, DevicePtr, Driver, Engine, Error, ErrorKind, MemoryError,
    OpStack, Recipe, StepCounters, StreamId,
};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, write};
use super::world::{config, host, word};

/// How a block gives its memory up.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ends {
    Freed,
    /// Copied out for want of room.
    Rescued,
    Discarded,
}

/// A side stream uses a block without an op; then the block gives its memory up, which serves
/// another. Fails where a checker finds that nothing orders the two.
fn reuse_after_side_work(told: bool, mode: AccessMode, ends: Ends, seed: u64) -> Result<(), Error> {
    let limit_bytes = if ends == Ends::Rescued { BLOCK } else { ENOUGH };
    let device = HostConfig::lockstep(2 * limit_bytes, seed);
    let mut lab = Lab::with(limit_bytes, ENOUGH, device);
    let (side, side_id) = lab.check_stream();
    let block = lab.derive(&[], 1);
    lab.errors();
    lab.order(side);
    let start = lab.engine.address(block)?;
    lab.check.note_access(side, &[Access { start, size_bytes: BLOCK, mode }])?;
    if told {
        lab.engine.use_on(block, side_id)?;
    }
    match ends {
        Ends::Freed => lab.free(block),
        Ends::Rescued => {}
        Ends::Discarded => lab.discard(block),
    }
    let fresh = lab.engine.allocate(BLOCK, "fresh")?;
    lab.places.push((fresh, BLOCK));
    lab.op(&[write(fresh, 2)])?;
    lab.op(&[read(fresh, 2)])?;
    if ends == Ends::Freed {
        // Not too late: it is the very memory.
        assert_eq!(lab.engine.address(fresh), Ok(start));
    } else {
        lab.op(&[read(block, 1)])?;
    }
    lab.errors();
    lab.close_with(side);
    Ok(())
}

#[test]
fn memory_is_reused_only_after_the_streams_that_were_named() {
    for seed in 0..10 {
        // The copy out of a block that leaves is no earlier than what a side stream writes.
        for (mode, ends) in [
            (AccessMode::Read, Ends::Freed),
            (AccessMode::ReadWrite, Ends::Freed),
            (AccessMode::ReadWrite, Ends::Rescued),
            (AccessMode::Read, Ends::Discarded),
        ] {
            assert_eq!(reuse_after_side_work(true, mode, ends, seed), Ok(()));
            if ends == Ends::Discarded {
                // Its address is unmapped at once, and without a word that is what fails.
                continue;
            }
            // Without a word the checker sees it, so it would see a wait that is missing.
            let Err(Error::Memory(MemoryError::Driver(error))) =
                reuse_after_side_work(false, mode, ends, seed)
            else {
                panic!("nothing ordered them, {mode:?}, {ends:?}");
            };
            assert_eq!(error.kind, ErrorKind::Race);
        }
    }
}

#[test]
fn a_stream_can_be_named_twice_and_not_for_a_freed_block() {
    let mut lab = Lab::new(ENOUGH);
    let (side, side_id) = lab.check_stream();
    let block = lab.make(1);
    for _ in 0..2 {
        lab.engine.use_on(block, side_id).expect("lives");
    }
    lab.free(block);
    assert_eq!(lab.engine.use_on(block, side_id), Err(Error::Freed));
    lab.close_with(side);
}

/// An engine whose ops run on this thread. Copies run only when somebody waits for them.
fn on_this_thread(limit_bytes: u64, seed: u64) -> (Arc<HostDriver>, Engine) {
    let mut device = HostConfig::lockstep(2 * limit_bytes, seed);
    device.link = Some(HostLink::duplex(1 << 30));
    let driver = host(device);
    let mut settings = config(limit_bytes, ENOUGH);
    settings.compute = Compute::HostThread;
    settings.record = false;
    let engine = Engine::new(driver.clone(), settings).expect("an engine opens");
    (driver, engine)
}

fn words(address: DevicePtr) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(usize::try_from(address.0).expect("fits"))
}

fn fill(address: DevicePtr, tag: u64) {
    for at in 0..BLOCK as usize / 8 {
        // SAFETY: the block was touched or allocated by an open op of this thread, so its whole
        // range is mapped, and no copy of it is under way: that is what the test is about.
        unsafe { words(address).wrapping_add(at).write_volatile(word(tag, at)) };
    }
}

fn assert_holds(address: DevicePtr, tag: u64) {
    for at in 0..BLOCK as usize / 8 {
        // SAFETY: as in `fill`.
        let is = unsafe { words(address).wrapping_add(at).read_volatile() };
        assert_eq!(is, word(tag, at), "word {at} of pattern {tag}");
    }
}

fn make(ops: &mut OpStack, tag: u64) -> (BlockId, u64) {
    ops.begin(OP).expect("begins");
    let block = ops.allocate(BLOCK, "made").expect("there is room");
    let address = ops.touch(block, AccessMode::Write).expect("it is there");
    fill(address, tag);
    ops.end().expect("ends");
    (block, tag)
}

#[test]
fn on_the_calling_thread_a_touch_returns_after_its_copy() {
    const LIMIT: u64 = 3 * BLOCK;
    for seed in 0..20 {
        let (driver, engine) = on_this_thread(LIMIT, seed);
        let mut ops = engine.op_stack();
        // Each gets memory that a copy of another may still be leaving.
        let mut blocks: Vec<_> = (1..9).map(|tag| make(&mut ops, tag)).collect();
        for round in 0..4 {
            for (block, tag) in &mut blocks {
                ops.begin(OP).expect("begins");
                let address = ops.touch(*block, AccessMode::ReadWrite).expect("there is room");
                assert_holds(address, *tag);
                if round % 2 == 1 {
                    *tag += 100;
                    fill(address, *tag);
                }
                ops.end().expect("ends");
            }
        }
        let ledger = driver.ledger();
        assert!(ledger.chunk_bytes_peak <= LIMIT);
        assert!(ledger.copied_in_bytes >= 20 * BLOCK, "{ledger:?}");
        drop(ops);
        drop(engine);
        assert!(driver.ledger().is_empty(), "{:?}", driver.ledger());
    }
}

#[test]
fn swapped_memory_does_not_count_towards_the_cap_and_is_given_back() {
    let lab = Lab::new(3 * BLOCK);
    let stream = lab.engine.compute_stream();
    let swapped: Vec<_> = (0..8)
        .map(|_| lab.engine.allocate_swapped(BLOCK, stream).expect("the host has room"))
        .collect();
    for (tag, block) in swapped.iter().enumerate() {
        fill(block.address(), tag as u64);
    }
    for (tag, block) in swapped.iter().enumerate() {
        assert_holds(block.address(), tag as u64);
        assert!(block.size_bytes() >= BLOCK && block.requested_bytes() == BLOCK);
    }
    let stats = lab.engine.memory_stats().expect("stats");
    assert_eq!((stats.reserved_bytes.current, lab.host.ledger().chunk_bytes), (0, 0));
    let first = swapped[0].address();
    for block in swapped {
        lab.engine.free_swapped(block, stream).expect("freed");
    }
    lab.engine.synchronize().expect("the device works");
    // It serves again.
    let again = lab.engine.allocate_swapped(BLOCK, stream).expect("the host has room");
    assert_eq!(again.address(), first);
    lab.engine.free_swapped(again, stream).expect("freed");
    lab.finish();
}

#[test]
fn swapped_memory_ends_at_its_limit_with_a_typed_error() {
    let lab = Lab::with(ENOUGH, 4 * BLOCK, HostConfig::by_time(2 * ENOUGH));
    let stream = lab.engine.compute_stream();
    let mut swapped = Vec::new();
    let error = loop {
        match lab.engine.allocate_swapped(BLOCK, stream) {
            Ok(block) => swapped.push(block),
            Err(error) => break error,
        }
        assert!(swapped.len() < 100, "there is no limit");
    };
    assert!(!swapped.is_empty());
    assert!(matches!(error, Error::Memory(_)), "{error:?}");
    for block in swapped {
        lab.engine.free_swapped(block, stream).expect("freed");
    }
    lab.finish();
}

/// Makes a block and brings one back while there is room for four, in an op beside the step or of
/// it. Returns what the step's report then says.
fn press(aside: bool) -> StepCounters {
    let mut lab = Lab::new(4 * BLOCK);
    let blocks: Vec<BlockId> = (0..5).map(|tag| lab.make(tag)).collect();
    lab.total();
    let stream = lab.engine.compute_stream();
    let begin = |ops: &mut OpStack| match aside {
        true => ops.begin_aside(OP, stream),
        false => ops.begin(OP),
    };
    begin(&mut lab.ops).expect("begins");
    let made = lab.ops.allocate(BLOCK, "made").expect("there is room");
    lab.ops.end().expect("ends");
    begin(&mut lab.ops).expect("begins");
    lab.ops.touch(blocks[0], AccessMode::Read).expect("there is room");
    lab.ops.end().expect("ends");
    lab.free(made);
    let mut reports = lab.engine.end_step().expect("ends");
    reports.extend(lab.engine.drain_reports().expect("ends"));
    lab.finish();
    reports[0].counters
}

/// An evaluation that needs room says nothing about the step's plan.
#[test]
fn what_runs_beside_the_step_counts_no_misses_and_no_rescues() {
    let of_step = press(false);
    assert_eq!((of_step.misses, of_step.rescues), (1, 2));
    let beside = press(true);
    assert_eq!((beside.misses, beside.rescues), (0, 0));
    assert_eq!(beside.swapped_out_bytes, of_step.swapped_out_bytes);
    assert_eq!(beside.swapped_in_bytes, of_step.swapped_in_bytes);
    assert!(beside.swapped_out_bytes > 0 && beside.swapped_in_bytes > 0);
}

/// A block that an op makes from `input`, which the engine is only told of; `inside` runs in the
/// middle of its replay.
fn told_of(
    lab: &mut Lab,
    stream: StreamId,
    input: BlockId,
    inside: impl Fn() + Send + Sync + 'static,
) -> BlockId {
    lab.ops.begin_on(OP, stream).expect("begins");
    lab.ops.touch(input, AccessMode::Read).expect("is there");
    let made = lab.ops.allocate(BLOCK, "made").expect("there is room");
    lab.ops.touch(made, AccessMode::Write).expect("is there");
    lab.places.push((made, BLOCK));
    let again = Recipe::new(move |ops, output| {
        ops.begin_on(OP, stream)?;
        ops.touch(input, AccessMode::Read)?;
        ops.touch(output, AccessMode::Write)?;
        inside();
        ops.end()
    });
    lab.ops.recipe(again).expect("an op is open");
    lab.ops.end().expect("ends");
    made
}

#[test]
fn who_writes_an_input_waits_for_all_replays_that_read_it_at_once() {
    let mut lab = Lab::new(ENOUGH);
    let compute = lab.engine.compute_stream();
    let side = lab.check_stream();
    let input = lab.make(1);
    lab.order(side.0);
    let on_side = told_of(&mut lab, side.1, input, || ());
    // Another thread, with an op on the side stream.
    let engine = lab.engine.clone();
    let other = move || {
        let mut ops = engine.op_stack();
        ops.begin_on(OP, side.1).expect("begins");
        ops.touch(on_side, AccessMode::Read).expect("comes back");
        ops.end().expect("ends");
    };
    let on_compute = told_of(&mut lab, compute, input, other);
    lab.order(side.0);
    lab.discard(on_side);
    lab.discard(on_compute);
    // Its replay reads the input on one stream, and meanwhile that of the other thread on another.
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(on_compute, AccessMode::Read).expect("comes back");
    lab.ops.end().expect("ends");
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(input, AccessMode::Write).expect("is there");
    lab.ops.end().expect("its owner knows of no replay");
    assert_eq!(lab.total().recomputed_ops, 2);
    lab.errors();
    // A recipe has the engine.
    [on_side, on_compute].into_iter().for_each(|block| lab.free(block));
    lab.close_with(side.0);
}
