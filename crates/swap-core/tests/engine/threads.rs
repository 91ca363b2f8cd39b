//! Threads with op stacks of their own, as autograd's are: one engine, one cap, and now and then
//! the same replay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use swap_core::devices::HostConfig;
use swap_core::{
    AccessMode, BlockId, Engine, Error, Lot, OpName, OpStack, Orders, Origin, Plan, Recipe, Trace,
    TraceEvent,
};

use super::lab::{BLOCK, ENOUGH, Errors, Lab, OP, read, recipe, work, write};
use super::script::Random;

/// What one thread does with blocks of its own, beside the others.
fn toil(engine: &Engine, errors: &Errors, seed: u64, starved: &AtomicU64) {
    let mut random = Random(seed);
    let mut ops = engine.op_stack();
    let mut blocks: Vec<(BlockId, u64)> = Vec::new();
    for turn in 0..150 {
        let tag = seed * 1000 + turn;
        let drawn = random.next() as usize;
        let held = blocks.get(drawn % blocks.len().max(1)).copied();
        let result = match (held, random.below(4)) {
            (Some((block, old)), 0) => op(&mut ops, &[read(block, old)], errors),
            (Some((block, _)), 1) => {
                let result = op(&mut ops, &[write(block, tag)], errors);
                if result.is_ok() {
                    let at = drawn % blocks.len();
                    blocks[at].1 = tag;
                }
                result
            }
            (Some(_), 2) if blocks.len() > 6 => {
                let at = drawn % blocks.len();
                engine.free(blocks.swap_remove(at).0)
            }
            (held, _) => {
                let made = derive(&mut ops, held, tag, errors);
                made.map(|block| blocks.push((block, tag)))
            }
        };
        match result {
            Ok(()) => {}
            // The others hold what this op needs. It may try again.
            Err(Error::OutOfMemory(_)) => {
                starved.fetch_add(1, Ordering::Relaxed);
                ops = engine.op_stack();
                thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    for (block, tag) in blocks {
        // Where both sides are full of blocks without a recipe, only a free makes room.
        for _ in 0..20 {
            match op(&mut ops, &[read(block, tag)], errors) {
                Ok(()) => break,
                Err(Error::OutOfMemory(_)) => {
                    starved.fetch_add(1, Ordering::Relaxed);
                    ops = engine.op_stack();
                    thread::yield_now();
                }
                Err(error) => panic!("{error}"),
            }
        }
        engine.free(block).expect("lives");
    }
}

fn op(ops: &mut OpStack, operands: &[super::lab::Operand], errors: &Errors) -> Result<(), Error> {
    ops.begin(OP)?;
    work(ops, operands, errors)?;
    ops.end()
}

fn derive(
    ops: &mut OpStack,
    input: Option<(BlockId, u64)>,
    tag: u64,
    errors: &Errors,
) -> Result<BlockId, Error> {
    let mut operands: Vec<_> = input.map(|(block, tag)| read(block, tag)).into_iter().collect();
    ops.begin(OP)?;
    let block = ops.allocate(BLOCK, "derived")?;
    operands.push(write(block, tag));
    let made = work(ops, &operands, errors)
        .and_then(|()| ops.recipe(recipe(&operands, errors)))
        .and_then(|()| ops.end());
    match made {
        Ok(()) => Ok(block),
        Err(error) => {
            ops.free(block)?;
            Err(error)
        }
    }
}

#[test]
fn threads_share_a_device_without_seeing_each_other() {
    let mut rescued = 0;
    let mut replayed = 0;
    let mut tiled = 0;
    let starved = AtomicU64::new(0);
    for seed in 0..24 {
        let limit = 8 * BLOCK;
        let device = match seed % 3 {
            0 => HostConfig::threads(2 * limit),
            1 => HostConfig::lockstep(2 * limit, seed),
            _ => HostConfig::by_time(2 * limit),
        };
        // A small arena makes some blocks leave by discarding.
        let arena = if seed % 2 == 0 { ENOUGH } else { 6 * BLOCK };
        let mut lab = Lab::with(limit, arena, device);
        if seed >= 12 {
            lay_out(&lab.engine);
        }
        thread::scope(|scope| {
            for number in 0..3 {
                let (engine, errors, starved) = (&lab.engine, &lab.errors, &starved);
                scope.spawn(move || toil(engine, errors, seed * 10 + number, starved));
            }
        });
        let total = lab.total();
        rescued += total.rescues;
        replayed += total.recomputed_ops;
        // More chunks than the cap has room for, if each were a block.
        tiled += u64::from(lab.host.ledger().chunk_count > limit / BLOCK);
        lab.finish();
    }
    println!("{rescued} rescues, {replayed} replays, {starved:?} ops starved by others");
    assert!(rescued > 0 && replayed > 0 && tiled > 0);
}

/// Lots for whoever comes, of which each overlaps two others.
fn lay_out(engine: &Engine) {
    let lot = |at: u64| Lot { offset_bytes: at % 11 * (BLOCK / 2), size_bytes: BLOCK };
    let lots = (0..400).map(|at| Some(lot(at))).collect();
    let orders = Orders::new(&Plan::default()).with_lots(vec![lots]);
    engine.set_orders(false, Some(Arc::new(orders))).expect("between steps");
}

/// A recipe that, once it runs, lets others start and gives them time to collide with it.
fn slow(operands: Vec<super::lab::Operand>, errors: &Errors, running: &Arc<Barrier>) -> Recipe {
    let (errors, running) = (Arc::clone(errors), Arc::clone(running));
    let first = AtomicBool::new(true);
    Recipe::new(move |ops, _| {
        if first.swap(false, Ordering::Relaxed) {
            running.wait();
            (0..2000).for_each(|_| thread::yield_now());
        }
        op(ops, &operands, &errors)
    })
}

#[test]
fn two_threads_that_need_the_same_replay_get_it_once() {
    for _ in 0..20 {
        let mut lab = Lab::new(ENOUGH);
        let block = lab.make(1);
        let running = Arc::new(Barrier::new(2));
        lab.ops.begin(OP).expect("begins");
        work(&mut lab.ops, &[write(block, 2)], &lab.errors).expect("works");
        lab.ops.recipe(slow(vec![write(block, 2)], &lab.errors, &running)).expect("open");
        lab.ops.end().expect("ends");
        lab.discard(block);
        thread::scope(|scope| {
            let (engine, errors) = (&lab.engine, &lab.errors);
            scope.spawn(move || {
                op(&mut engine.op_stack(), &[read(block, 2)], errors).expect("replays");
            });
            running.wait();
            op(&mut engine.op_stack(), &[read(block, 2)], errors).expect("waits for it");
        });
        assert_eq!(lab.total().recomputed_ops, 1);
        assert!(lab.total().misses <= 2);
        lab.finish();
    }
}

#[test]
fn a_replay_waits_for_the_replay_of_its_input_by_another_thread() {
    for _ in 0..20 {
        let mut lab = Lab::new(ENOUGH);
        let input = lab.make(1);
        let running = Arc::new(Barrier::new(2));
        lab.ops.begin(OP).expect("begins");
        work(&mut lab.ops, &[write(input, 2)], &lab.errors).expect("works");
        lab.ops.recipe(slow(vec![write(input, 2)], &lab.errors, &running)).expect("open");
        lab.ops.end().expect("ends");
        let derived = lab.derive(&[read(input, 2)], 3);
        lab.discard(derived);
        lab.discard(input);
        thread::scope(|scope| {
            let (engine, errors) = (&lab.engine, &lab.errors);
            scope.spawn(move || {
                op(&mut engine.op_stack(), &[read(input, 2)], errors).expect("replays");
            });
            running.wait();
            op(&mut engine.op_stack(), &[read(derived, 3)], errors).expect("replays behind it");
        });
        assert_eq!(lab.total().recomputed_ops, 2);
        lab.finish();
    }
}

#[test]
fn a_block_may_be_freed_or_its_input_written_while_another_thread_replays_it() {
    for _ in 0..20 {
        let mut lab = Lab::new(ENOUGH);
        let input = lab.make(1);
        let block = lab.make(2);
        let running = Arc::new(Barrier::new(2));
        let operands = vec![read(input, 1), write(block, 3)];
        lab.ops.begin(OP).expect("begins");
        work(&mut lab.ops, &operands, &lab.errors).expect("works");
        lab.ops.recipe(slow(operands, &lab.errors, &running)).expect("open");
        lab.ops.end().expect("ends");
        lab.discard(block);
        thread::scope(|scope| {
            let (engine, errors) = (&lab.engine, &lab.errors);
            let replaying = scope.spawn(move || {
                let mut ops = engine.op_stack();
                ops.begin(OP).expect("begins");
                // The write to the input needs the block; then its owner frees it.
                let touched = ops.touch(input, AccessMode::Write);
                touched.expect("replays");
                ops.end().expect("ends");
            });
            running.wait();
            engine.free(block).expect("lives");
            assert_eq!(engine.free(block), Err(Error::Freed));
            op(&mut engine.op_stack(), &[write(input, 5)], errors).expect("waits, then writes");
            replaying.join().expect("no panic");
        });
        let stats = lab.engine.memory_stats().expect("stats");
        assert_eq!(stats.requested_bytes.current, BLOCK);
        lab.op(&[read(input, 5)]).expect("reads");
        lab.finish();
    }
}

/// Begins and ends pair up, at the depths that the ops say, and allocations are where they say.
fn assert_nests(trace: &Trace) {
    let mut open = Vec::new();
    let mut begun = 0;
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(op) => {
                assert_eq!(op.0, begun);
                assert_eq!(trace.ops[begun as usize].depth as usize, open.len());
                begun += 1;
                open.push(op);
            }
            TraceEvent::End(op) => assert_eq!(open.pop(), Some(op)),
            TraceEvent::Allocate(block) => {
                let origin = trace.blocks[block.0 as usize].origin;
                assert_eq!(matches!(origin, Origin::Op(_)), !open.is_empty());
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "an op never ended");
    assert_eq!(begun as usize, trace.ops.len());
}

/// Ops of two threads at once: the events of those that are the step's nest all the same, and
/// those of the other thread are beside it.
#[test]
fn ops_of_two_threads_at_once_leave_a_step_that_nests() {
    let mut lab = Lab::new(16 * BLOCK);
    lab.engine.set_orders(true, None).expect("open");
    lab.end_step();
    let mine = lab.make(1);
    let mut other = lab.engine.op_stack();
    lab.ops.begin(OP).expect("open");
    lab.ops.touch(mine, AccessMode::ReadWrite).expect("fits");
    other.begin(OpName::new("other")).expect("open");
    let theirs = other.allocate(BLOCK, "theirs").expect("fits");
    let loose = lab.engine.allocate(BLOCK, "loose").expect("fits");
    lab.ops.begin(OP).expect("open");
    lab.ops.end().expect("open");
    lab.ops.end().expect("open");
    // Now the other thread's ops may be the step's, but not inside one that is beside it.
    other.begin(OP).expect("open");
    other.end().expect("open");
    other.end().expect("open");
    other.begin(OP).expect("open");
    other.touch(theirs, AccessMode::ReadWrite).expect("fits");
    // The step ends inside it.
    let mut reports = lab.engine.end_step().expect("open");
    other.begin(OP).expect("open");
    other.end().expect("open");
    other.end().expect("open");
    lab.free(mine);
    lab.free(theirs);
    lab.free(loose);
    reports.extend(lab.engine.end_step().expect("open"));
    reports.extend(lab.engine.drain_reports().expect("open"));
    let traces: Vec<Trace> = reports.into_iter().filter_map(|report| report.trace).collect();
    let ops: Vec<usize> = traces.iter().map(|trace| trace.ops.len()).collect();
    assert_eq!(ops, [4, 0]);
    traces.iter().for_each(assert_nests);
    drop(other);
    lab.finish();
}
