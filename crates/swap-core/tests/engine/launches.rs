//! What safe code may do: threads, streams and recipes of any kind get no two kernels on the same
//! bytes in conflict, and no handle leads to memory that is not theirs.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use swap_core::devices::{CheckConfig, CheckDriver, HostConfig};
use swap_core::{
    AccessMode, BlockId, Driver, Engine, Error, OpStack, Operands, Recipe, Residency, StreamId,
};

use super::lab::{BLOCK, ENOUGH, Lab, OP, read, recipe, work, write};
use super::script::Random;
use super::world::{config, host};

/// What kernels saw of each other.
#[derive(Debug, Default)]
struct Seen {
    kernels: AtomicU64,
    foreign: AtomicU64,
}

impl Seen {
    /// A kernel that notices when another is on its bytes: what it wrote stays while it looks, and
    /// what it reads does not change.
    fn kernel(
        self: &Arc<Seen>,
        modes: &[AccessMode],
        tag: u64,
    ) -> impl FnOnce(&Operands<'_>) + Send + 'static {
        let (seen, modes) = (Arc::clone(self), modes.to_vec());
        move |operands| {
            let mut foreign = 0;
            for (index, mode) in modes.iter().enumerate() {
                let mut look = |words: &[u64], tag: u64| {
                    thread::yield_now();
                    foreign += words.iter().filter(|&&word| word != tag).count() as u64;
                };
                if mode.writes() {
                    let words = operands.write::<u64>(index);
                    words.fill(tag);
                    look(words, tag);
                } else {
                    let words = operands.read::<u64>(index);
                    // Each kernel fills whole blocks.
                    look(words, words[0]);
                }
            }
            seen.foreign.fetch_add(foreign, Ordering::Relaxed);
            seen.kernels.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Ops on blocks that other threads use at the same time, on streams that nobody orders.
fn toil(engine: &Engine, blocks: &[BlockId], streams: &[StreamId], seed: u64, seen: &Arc<Seen>) {
    let mut random = Random(seed);
    let mut ops = engine.op_stack();
    for turn in 0..120 {
        if let Err(error) = turn_of(&mut ops, blocks, streams, &mut random, seed + turn, seen) {
            let expected = matches!(error, Error::OutOfMemory(_) | Error::Freed);
            assert!(expected, "{error}");
            ops = engine.op_stack();
        }
    }
}

fn turn_of(
    ops: &mut OpStack,
    blocks: &[BlockId],
    streams: &[StreamId],
    random: &mut Random,
    tag: u64,
    seen: &Arc<Seen>,
) -> Result<(), Error> {
    let modes = [AccessMode::Read, AccessMode::Write, AccessMode::ReadWrite];
    let stream = |random: &mut Random| streams[random.below(streams.len() as u64) as usize];
    let draw = |random: &mut Random| {
        (blocks[random.below(blocks.len() as u64) as usize], modes[random.below(3) as usize])
    };
    ops.begin_on(OP, stream(random))?;
    let (block, mode) = draw(random);
    ops.touch(block, mode)?;
    ops.launch(1.0, seen.kernel(&[mode], tag))?;
    if random.chance(30) {
        let (inner, inner_mode) = draw(random);
        ops.begin_on(OP, stream(random))?;
        ops.touch(inner, inner_mode)?;
        ops.launch(1.0, seen.kernel(&[inner_mode], tag + 1000))?;
        ops.end()?;
        // The outer op goes on with its own block.
        ops.launch(1.0, seen.kernel(&[mode], tag + 2000))?;
    }
    if random.chance(30) {
        // Memory that somebody else's work may still be on, used on another stream first.
        let fresh = ops.allocate(BLOCK, "fresh")?;
        ops.begin_on(OP, stream(random))?;
        ops.touch(fresh, AccessMode::Write)?;
        ops.launch(1.0, seen.kernel(&[AccessMode::Write], tag))?;
        ops.free(fresh)?;
        ops.end()?;
    }
    ops.end()
}

/// Four threads on three streams that share six blocks, of which four fit.
fn share(driver: Arc<dyn Driver>, seed: u64) -> Arc<Seen> {
    let seen = Arc::new(Seen::default());
    let mut settings = config(8 * BLOCK, ENOUGH);
    settings.record = false;
    let engine = Engine::new(driver.clone(), settings).expect("an engine opens");
    let handles = [0; 2].map(|_| driver.create_stream().expect("a stream"));
    let mut streams = vec![engine.compute_stream()];
    streams.extend(handles.map(|handle| engine.adopt_stream(handle).expect("known")));
    let blocks: Vec<BlockId> =
        (0..10).map(|_| engine.allocate(BLOCK, "shared").expect("fits or leaves")).collect();
    thread::scope(|scope| {
        for number in 0..4 {
            let (engine, blocks, streams, seen) = (&engine, &blocks, &streams, &seen);
            scope.spawn(move || toil(engine, blocks, streams, seed * 100 + number, seen));
        }
    });
    engine.synchronize().expect("no kernel panicked");
    drop(engine);
    handles.into_iter().for_each(|handle| driver.destroy_stream(handle).expect("destroys"));
    seen
}

#[test]
fn kernels_of_safe_code_never_share_bytes_in_conflict() {
    for seed in 0..8 {
        let device = host(HostConfig::threads(16 * BLOCK));
        let seen = share(device.clone(), seed);
        assert_eq!(seen.foreign.load(Ordering::Relaxed), 0, "seed {seed}");
        assert!(seen.kernels.load(Ordering::Relaxed) > 400);
        assert!(device.ledger().copied_in_bytes > 0, "nothing moved");
        assert!(device.ledger().is_empty());
    }
}

#[test]
fn the_checker_finds_launches_of_safe_code_ordered() {
    for seed in 0..12 {
        let device = match seed % 2 {
            0 => host(HostConfig::threads(16 * BLOCK)),
            _ => host(HostConfig::lockstep(16 * BLOCK, seed)),
        };
        let check = Arc::new(CheckDriver::new(device, CheckConfig::ORDER));
        let seen = share(check.clone(), seed);
        assert_eq!(check.violations().first(), None, "seed {seed}");
        assert_eq!(seen.foreign.load(Ordering::Relaxed), 0, "seed {seed}");
        assert!(check.accesses_checked() > 400);
    }
}

#[test]
fn launches_on_the_same_block_wait_only_where_they_are_in_conflict() {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let block = lab.make(1);
    let mut waits = Vec::new();
    for (stream, operand) in [
        (lab.engine.compute_stream(), write(block, 1)),
        (side.1, read(block, 1)),
        (lab.engine.compute_stream(), read(block, 1)),
        (side.1, read(block, 1)),
        (lab.engine.compute_stream(), write(block, 2)),
        (side.1, write(block, 3)),
        (side.1, read(block, 3)),
        (lab.engine.compute_stream(), read(block, 3)),
    ] {
        let before = lab.check.waits_seen();
        lab.ops.begin_on(OP, stream).expect("begins");
        work(&mut lab.ops, &[operand], &lab.errors).expect("works");
        lab.ops.end().expect("ends");
        waits.push(lab.check.waits_seen() - before);
    }
    assert_eq!(waits, [0, 1, 0, 0, 1, 1, 0, 1]);
    lab.errors();
    lab.close_with(side.0);
}

#[test]
fn ops_run_on_no_stream_that_is_not_for_them() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let [_, copy_out, copy_in] = lab.engine.stream_handles().expect("open");
    let copies = [copy_out, copy_in].map(|handle| lab.engine.adopt_stream(handle).expect("open"));
    for stream in [copies[0], copies[1], StreamId(99)] {
        assert!(matches!(lab.ops.begin_on(OP, stream), Err(Error::Usage(_))));
        assert!(matches!(lab.ops.begin_aside(OP, stream), Err(Error::Usage(_))));
        assert!(matches!(lab.engine.allocate_on(BLOCK, "", stream), Err(Error::Usage(_))));
        assert!(matches!(lab.engine.allocate_swapped(BLOCK, stream), Err(Error::Usage(_))));
        let unshown = lab.engine.allocate_unshown(BLOCK, stream, true);
        assert!(matches!(unshown, Err(Error::Usage(_))));
        assert!(matches!(lab.engine.use_on(block, stream), Err(Error::Usage(_))));
    }
    lab.op(&[read(block, 1)]).expect("all is as it was");
    lab.finish();
}

#[test]
fn a_closed_engine_fails_and_does_nothing_else() {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(block, AccessMode::Read).expect("touches");
    lab.engine.close().expect("closes");
    assert!(matches!(lab.ops.launch(1.0, |_| {}), Err(Error::Usage(_))));
    assert!(matches!(lab.ops.touch(block, AccessMode::Read), Err(Error::Usage(_))));
    assert!(matches!(lab.ops.end(), Err(Error::Usage(_))));
    assert!(matches!(lab.engine.allocate(BLOCK, ""), Err(Error::Usage(_))));
    assert!(matches!(lab.engine.free(block), Err(Error::Usage(_))));
    assert_eq!(lab.engine.close(), Ok(()));
    drop(lab.ops);
    drop(lab.engine);
    assert!(lab.host.ledger().is_empty());
}

/// A block with a recipe that does something else, discarded, and touched.
fn replay_by(run: impl Fn(&mut OpStack, BlockId) -> Result<(), Error> + Send + Sync + 'static) {
    let mut lab = Lab::new(ENOUGH);
    let block = lab.make(1);
    let good = recipe(&[write(block, 2)], &lab.errors);
    let bad = Recipe::new(run);
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 2)], &lab.errors).expect("works");
    lab.ops.recipe(bad).expect("open");
    lab.ops.end().expect("ends");
    lab.discard(block);
    lab.ops.begin(OP).expect("begins");
    let other = lab.ops.allocate(BLOCK, "other").expect("fits");
    // The second time is as the first.
    for _ in 0..2 {
        let touched = lab.ops.touch(block, AccessMode::Read);
        assert!(matches!(touched, Err(Error::Usage(_) | Error::Replay { .. })), "{touched:?}");
        assert_eq!(lab.state(block), Residency::Discarded);
    }
    // The op around it is as it was.
    assert_eq!(lab.ops.depth(), 1);
    work(&mut lab.ops, &[write(other, 3)], &lab.errors).expect("works");
    lab.ops.recipe(good).expect("open");
    lab.ops.end().expect("ends");
    lab.engine.free(other).expect("lives");
    lab.finish();
}

#[test]
fn a_recipe_can_neither_use_nor_end_the_ops_around_its_replay() {
    replay_by(|ops, _| ops.end());
    replay_by(|ops, block| ops.touch(block, AccessMode::Write).map(|_| ()));
    replay_by(|ops, _| ops.launch(1.0, |_| {}));
    replay_by(|ops, _| ops.recipe(Recipe::new(|_, _| Ok(()))));
}

#[test]
fn a_recipe_that_leaves_out_its_block_is_an_error() {
    replay_by(|_, _| Ok(()));
    replay_by(|ops, _| {
        ops.begin(OP)?;
        ops.end()
    });
}

/// A recipe that reads, on another stream, the memory that its block got for the replay.
#[test]
fn a_recipe_that_only_reads_its_block_is_ordered_too() {
    let mut lab = Lab::new(ENOUGH);
    let side = lab.check_stream();
    let (block, thief) = (lab.make(1), lab.make(2));
    lab.ops.begin(OP).expect("begins");
    work(&mut lab.ops, &[write(block, 3)], &lab.errors).expect("works");
    let on = side.1;
    let reads = move |ops: &mut OpStack, block| {
        ops.begin_on(OP, on)?;
        ops.touch(block, AccessMode::Read)?;
        ops.launch(1.0, |_| {})?;
        ops.end()
    };
    lab.ops.recipe(Recipe::new(reads)).expect("open");
    lab.ops.end().expect("ends");
    lab.discard(block);
    // The next chunk in the cache is this one, whose last use is on the compute stream.
    lab.op(&[write(thief, 4)]).expect("works");
    lab.free(thief);
    lab.ops.begin(OP).expect("begins");
    lab.ops.touch(block, AccessMode::Read).expect("it was replayed, to whatever bytes");
    lab.ops.end().expect("ends");
    lab.errors();
    lab.close_with(side.0);
}

/// What a failed replay touched does not count for the next.
#[test]
fn a_recipe_that_failed_and_then_leaves_out_its_block_is_an_error() {
    let calls = AtomicU64::new(0);
    replay_by(move |ops, block| {
        if calls.fetch_add(1, Ordering::Relaxed) > 0 {
            return Ok(());
        }
        ops.begin(OP)?;
        ops.touch(block, AccessMode::Write)?;
        ops.end()?;
        Err(Error::Usage("not now"))
    });
}
