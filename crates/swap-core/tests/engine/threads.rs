//! Threads with op stacks of their own, as autograd's are: one engine, one cap, and now and then
//! the same replay.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

use swap_core::{AccessMode, BlockId, Engine, Error, HostConfig, OpStack, Recipe};

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
    let starved = AtomicU64::new(0);
    for seed in 0..12 {
        let limit = 8 * BLOCK;
        let device = match seed % 3 {
            0 => HostConfig::threads(2 * limit),
            1 => HostConfig::lockstep(2 * limit, seed),
            _ => HostConfig::by_time(2 * limit),
        };
        // A small arena makes some blocks leave by discarding.
        let arena = if seed % 2 == 0 { ENOUGH } else { 6 * BLOCK };
        let mut lab = Lab::with(limit, arena, device);
        thread::scope(|scope| {
            for number in 0..3 {
                let (engine, errors, starved) = (&lab.engine, &lab.errors, &starved);
                scope.spawn(move || toil(engine, errors, seed * 10 + number, starved));
            }
        });
        let total = lab.total();
        rescued += total.rescues;
        replayed += total.recomputed_ops;
        lab.finish();
    }
    println!("{rescued} rescues, {replayed} replays, {starved:?} ops starved by others");
    assert!(rescued > 0 && replayed > 0);
}

/// A recipe that, once it runs, lets others start and gives them time to collide with it.
fn slow(operands: Vec<super::lab::Operand>, errors: &Errors, running: &Arc<Barrier>) -> Recipe {
    let (errors, running) = (Arc::clone(errors), Arc::clone(running));
    let first = AtomicBool::new(true);
    Recipe::new(move |ops| {
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
