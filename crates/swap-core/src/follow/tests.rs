//! Tests of the follower: steps that differ from the recorded one in all the ways that steps do.

use vmem::devices::{HostConfig, HostDriver};
use vmem::{ArenaConfig, PoolConfig};

use crate::engine::{Compute, Config, Engine};
use crate::name::OpName;
use crate::trace::{Origin, Signature, Trace, TraceBlock, TraceEvent, TraceOp};

use super::*;

mod sizes;

/// What is smaller is swappable only where the path has it so: those of 0.
const SWAPPABLE_BYTES: u64 = 1;

/// An op by its name, and what it allocates.
type Op = (&'static str, &'static [u64]);

/// What a step did on the path: for each of its ops, the path's.
struct Run {
    follower: Follower,
    ops: Vec<Option<u32>>,
    skipped: Vec<Range<u32>>,
    made: Vec<BlockId>,
    /// What stood in for nothing.
    released: Vec<BlockId>,
}

impl Run {
    fn drifted(&self) -> bool {
        self.follower.drifted_at().is_some()
    }

    /// The block of the step at a place of the path, as the number of its allocation.
    fn block(&self, place: u32) -> Option<usize> {
        let id = self.follower.block(BlockIndex(place))?;
        self.made.iter().position(|&made| made == id)
    }
}

fn trace(persistent: &[u64], ops: &[Op]) -> Trace {
    let mut trace = Trace::default();
    let block = |size_bytes, origin, nth| TraceBlock {
        size_bytes,
        origin,
        name: String::new(),
        held: false,
        nth,
    };
    trace.blocks.extend(persistent.iter().map(|&size| block(size, Origin::Persistent, 0)));
    for (&(name, sizes), op) in ops.iter().zip((0..).map(OpIndex)) {
        trace.ops.push(TraceOp { name: name.to_owned(), device_us: 1.0, ..TraceOp::default() });
        trace.events.push(TraceEvent::Begin(op));
        // Small ones are not blocks of it.
        for (nth, &size_bytes) in (0..).zip(sizes).filter(|&(_, &size)| size >= SWAPPABLE_BYTES) {
            trace.events.push(TraceEvent::Allocate(BlockIndex(trace.blocks.len() as u32)));
            trace.blocks.push(block(size_bytes, Origin::Op(op), nth));
        }
        trace.events.push(TraceEvent::End(op));
    }
    trace
}

/// Runs `ops` where `recorded` was recorded.
fn run(recorded: &[Op], ops: &[Op]) -> Run {
    run_expecting(recorded, Sizes::Same, ops)
}

fn run_expecting(recorded: &[Op], sizes: Sizes, ops: &[Op]) -> Run {
    let path = Path::of(&trace(&[], recorded), sizes).expect("ops in order");
    let (follower, _) = Follower::new(Some(Arc::new(path)), &[]);
    let mut run = Run {
        follower,
        ops: Vec::new(),
        skipped: Vec::new(),
        made: Vec::new(),
        released: Vec::new(),
    };
    let ids = ids();
    let mut events = 0;
    for &(name, sizes) in ops {
        let key = OpKey::new(OpName::hash_of(name), 0);
        let coming = run.follower.coming_op(key);
        assert_eq!(run.follower.coming_op(key), coming, "to ask twice changes nothing");
        if let Some(rejoined) = run.follower.take_rejoined() {
            run.skipped.extend(Some(rejoined.skipped).filter(|skipped| !skipped.is_empty()));
            run.released.extend(rejoined.released);
        }
        assert_eq!(run.follower.begun(key, events), coming);
        run.ops.push(coming.map(|op| op.0));
        for (nth, &size_bytes) in (0..).zip(sizes) {
            let fresh = fresh(size_bytes, nth);
            let id = ids[run.made.len()];
            run.made.push(id);
            let coming = run.follower.coming_block(fresh);
            let stand_in = || run.follower.coming_stand_in(fresh);
            let expected = coming.or_else(stand_in);
            if fresh.is_small && expected.is_none() {
                continue;
            }
            assert_eq!(run.follower.allocated(id, fresh), coming);
            if coming.is_none() {
                assert_eq!(run.follower.stand_in(id, fresh), expected);
            }
        }
        events += 2 + sizes.len() as u64;
    }
    run
}

fn fresh(size_bytes: u64, nth: u32) -> Fresh {
    let is_small = size_bytes < SWAPPABLE_BYTES;
    Fresh { requested_bytes: size_bytes, size_bytes, is_small, nth }
}

/// Names of blocks, which only an engine gives.
fn ids() -> Vec<BlockId> {
    let limit_bytes = 1 << 24;
    let pool = PoolConfig { limit_bytes, swap_threshold_bytes: 1 << 20, segment_bytes: 1 << 20 };
    let device = HostDriver::new(HostConfig::by_time(limit_bytes)).expect("a host device opens");
    let config = Config { pool, arena: ArenaConfig::new(0), compute: Compute::Own, record: false };
    let engine = Engine::new(device, config).expect("an engine opens");
    (0..1000).map(|_| engine.allocate(64, "").expect("there is room")).collect()
}

/// Three layers forward, three backward, and an optimizer.
fn step() -> Vec<Op> {
    let mut ops: Vec<Op> = vec![("batch", &[64])];
    for _ in 0..3 {
        ops.extend([("norm", &[4][..]), ("mul", &[32]), ("gelu", &[16]), ("add", &[])]);
    }
    ops.extend([("head", &[128][..]), ("loss", &[])]);
    for _ in 0..3 {
        ops.extend([("gelu_back", &[16][..]), ("mul_back", &[32, 8]), ("sum", &[])]);
        ops.push(("norm_back", &[4]));
    }
    ops.extend([("moment", &[][..]), ("moment", &[]), ("weight", &[]), ("zero", &[])]);
    ops
}

fn all(ops: &[Op]) -> Vec<Option<u32>> {
    (0..ops.len() as u32).map(Some).collect()
}

#[test]
fn a_step_like_the_recorded_one_is_followed_from_end_to_end() {
    let step = step();
    let run = run(&step, &step);
    assert_eq!(run.ops, all(&step));
    assert_eq!((run.follower.strayed_ops(), run.drifted()), (0, false));
    assert!((0..run.made.len()).all(|at| run.block(at as u32) == Some(at)));
}

#[test]
fn a_loop_that_runs_more_or_less_often_is_followed_and_told_from_the_recorded_step() {
    let looping = |count: usize| {
        let mut ops = step();
        ops.splice(13..13, [("take", &[][..]), ("copy", &[12]), ("keep", &[])].repeat(count));
        ops
    };
    let recorded = looping(6);
    let mut found_at_once = 0;
    for count in (2..12).filter(|count| *count != 6) {
        let run = run(&recorded, &looping(count));
        assert!(!run.drifted(), "{count}");
        assert!(run.follower.strayed_ops() > 0, "{count}");
        found_at_once += u32::from(run.ops.iter().all(Option::is_some));
    }
    assert!(found_at_once > 2, "{found_at_once}");
}

#[test]
fn ops_that_are_put_in_are_passed_over_wherever_they_are() {
    let recorded = step();
    let logging: &[Op] = &[("mean", &[]), ("copy", &[12]), ("item", &[])];
    for at in 0..=recorded.len() {
        let mut ops = recorded.clone();
        ops.splice(at..at, logging.iter().copied());
        let run = run(&recorded, &ops);
        let mut expected = all(&recorded);
        expected.splice(at..at, [None; 3]);
        assert_eq!(run.ops, expected, "at {at}");
        assert_eq!((run.follower.strayed_ops(), run.drifted()), (3, false));
        assert_eq!(run.skipped, [0..0; 0], "nothing was left out");
        // All but the block that was put in.
        let own: usize = recorded[..at].iter().map(|op| op.1.len()).sum();
        let is_own =
            |place: usize| run.block(place as u32) == Some(place + usize::from(place >= own));
        assert!((0..run.made.len() - 1).all(is_own), "at {at}");
    }
}

#[test]
fn a_name_that_comes_by_chance_is_taken_back() {
    let recorded = step();
    let mut ops = recorded.clone();
    // The op that is to come is `gelu`, and so is one of those that are put in.
    ops.splice(3..3, [("mean", &[][..]), ("gelu", &[16]), ("item", &[])]);
    let run = run(&recorded, &ops);
    let mut expected = all(&recorded);
    expected.splice(3..3, [None, Some(3), None]);
    assert_eq!(run.ops, expected);
    // The real one has its place: three blocks come before it, and one by chance.
    assert_eq!(run.block(3), Some(4));
    assert!(!run.drifted());
}

#[test]
fn ops_that_are_left_out_are_caught_up_with() {
    let recorded = step();
    for at in 0..recorded.len() - 6 {
        let mut ops = recorded.clone();
        ops.remove(at);
        let run = run(&recorded, &ops);
        // A few ops tell the place, unless the one before told it.
        let found = run.ops.iter().skip(at).position(Option::is_some).expect("found again");
        assert!(found <= CONTEXT_OPS, "at {at}: {:?}", run.ops);
        let tail: Vec<Option<u32>> =
            (at + found + 1..recorded.len()).map(|op| Some(op as u32)).collect();
        assert_eq!(run.ops[at + found..], tail, "at {at}");
        assert!(!run.drifted());
        let skipped = at as u32..(at + found + 1) as u32;
        assert_eq!(run.skipped, [skipped], "at {at}");
    }
}

#[test]
fn blocks_of_the_ops_that_told_the_place_are_known() {
    let recorded = step();
    let mut ops = recorded.clone();
    // Without the first `mul`; the `norm`, `mul` and `gelu` behind it tell the place.
    ops.remove(2);
    let run = run(&recorded, &ops);
    assert_eq!(run.block(2), None, "never made");
    let others = (0..recorded.iter().map(|op| op.1.len()).sum::<usize>()).filter(|&at| at != 2);
    for place in others {
        assert_eq!(run.block(place as u32), Some(place - usize::from(place > 2)), "{place}");
    }
}

#[test]
fn a_block_of_another_op_stands_in_for_one_as_large() {
    let recorded = step();
    let replaced = |op: Op| {
        let mut ops = recorded.clone();
        ops[2] = op;
        let run = run(&recorded, &ops);
        assert!(!run.drifted());
        assert!(run.released.is_empty());
        (3..run.made.len()).for_each(|at| assert_eq!(run.block(at as u32), Some(at)));
        run.block(2)
    };
    assert_eq!(replaced(("fused", &[32])), Some(2));
    assert_eq!(replaced(("fused", &[33])), None);
    // Where its op comes after all, nothing was stood in for.
    let mut ops = recorded.clone();
    ops.insert(3, ("extra", &[16]));
    let run = run(&recorded, &ops);
    assert_eq!((run.block(3), &run.released[..]), (Some(4), &run.made[3..4]));
    let many: Vec<Op> = recorded[..2].iter().copied().chain([("fused", &[32][..]); 30]).collect();
    let run = run_expecting(&recorded, Sizes::Same, &many);
    let stood_in = (0..run.made.len()).filter(|&at| run.block(at as u32).is_some()).count();
    assert!(stood_in < 2 + STAND_IN_OPS as usize, "only near where the path was left");
}

#[test]
fn a_layer_less_or_more_is_a_jump() {
    let recorded = step();
    let mut fewer = recorded.clone();
    fewer.drain(5..9);
    let run_fewer = run(&recorded, &fewer);
    assert!(!run_fewer.drifted());
    assert_eq!(run_fewer.ops.last(), Some(&Some(recorded.len() as u32 - 1)));
    assert!(run_fewer.follower.strayed_ops() <= 3, "{:?}", run_fewer.ops);
    let mut more = recorded.clone();
    more.splice(9..9, recorded[5..9].iter().copied());
    let run_more = run(&recorded, &more);
    assert!(!run_more.drifted());
    assert_eq!(run_more.ops.last(), Some(&Some(recorded.len() as u32 - 1)));
    assert!(run_more.follower.strayed_ops() <= 4, "{:?}", run_more.ops);
}

#[test]
fn an_evaluation_before_the_step_is_followed_back_and_forth() {
    let recorded = step();
    let forward = &recorded[..14];
    let mut ops: Vec<Op> = Vec::new();
    for _ in 0..5 {
        ops.extend(forward);
        ops.push(("item", &[]));
    }
    let begins = ops.len();
    ops.extend(&recorded);
    let run = run(&recorded, &ops);
    assert!(!run.drifted(), "{:?}", run.ops);
    let on_its_way = begins + FAR_CONTEXT_OPS;
    let expected: Vec<Option<u32>> =
        (on_its_way - begins..recorded.len()).map(|op| Some(op as u32)).collect();
    assert_eq!(run.ops[on_its_way..], expected);
    // The blocks are those of the step, not of the evaluation.
    let evaluated: usize = 5 * forward.iter().map(|op| op.1.len()).sum::<usize>();
    let count = recorded.iter().map(|op| op.1.len()).sum::<usize>();
    assert!((0..count).all(|at| run.block(at as u32) == Some(evaluated + at)));
}

#[test]
fn sampling_before_the_step_leaves_the_plan_alone() {
    let recorded = step();
    let mut ops: Vec<Op> = Vec::new();
    for _ in 0..100 {
        ops.extend([
            ("embed", &[2][..]),
            ("norm", &[1]),
            ("mul", &[3]),
            ("gelu", &[5]),
            ("add", &[]),
        ]);
    }
    let begins = ops.len();
    ops.extend(&recorded);
    let run = run(&recorded, &ops);
    assert_eq!(run.ops[..begins], vec![None; begins], "nothing of it is the step's");
    assert!(!run.drifted());
    let told = begins + CONTEXT_OPS;
    assert_eq!(run.ops[told..], all(&recorded)[CONTEXT_OPS..]);
}

#[test]
fn other_sizes_are_lost_and_stay_lost() {
    let recorded = step();
    let longer: Vec<Op> = recorded
        .iter()
        .map(|&(name, sizes)| (name, if sizes.is_empty() { &[7][..] } else { &[1000][..] }))
        .collect();
    let run = run(&recorded, &longer);
    assert!(run.drifted());
    // The first op has begun before it allocated.
    let mut expected = vec![None; longer.len()];
    expected[0] = Some(0);
    assert_eq!(run.ops, expected);
}

#[test]
fn a_step_whose_blocks_are_others_has_not_followed_although_most_ops_have() {
    let small = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"];
    let layers = |sizes: &'static [u64]| -> Vec<Op> {
        let layer = || std::iter::once(("mul", sizes)).chain(small.map(|name| (name, &[][..])));
        (0..6).flat_map(|_| layer()).collect()
    };
    let run = run(&layers(&[32]), &layers(&[1000]));
    let followed = run.ops.iter().flatten().count();
    assert!(4 * followed > 3 * run.ops.len(), "{:?}", run.ops);
    assert_eq!(run.follower.drifted_at(), Some(OpIndex(0)));
}

#[test]
fn another_step_is_drifted_and_says_where() {
    let recorded = step();
    let mut ops = recorded[..9].to_vec();
    ops.extend([("other", &[1][..]); 30]);
    assert_eq!(run(&recorded, &ops).follower.drifted_at(), Some(OpIndex(9)));
    assert_eq!(run(&recorded, &[]).follower.drifted_at(), Some(OpIndex(0)));
    // One that breaks off shortly before its end has followed.
    assert_eq!(run(&recorded, &recorded[..26]).follower.drifted_at(), None);
}

#[test]
fn the_position_among_events_is_that_of_the_path() {
    let recorded = step();
    let mut ops = recorded.clone();
    ops.splice(5..5, [("mean", &[][..]); 20]);
    let mut under_test = run(&recorded, &ops[..5]).follower;
    assert_eq!(under_test.position(100), Some(100 - 12 + event_of(&recorded, 4)));
    under_test = run(&recorded, &ops[..6]).follower;
    assert_eq!(under_test.position(100), None);
    under_test = run(&recorded, &ops[..26]).follower;
    let now = event_of(&recorded, 5) + 40;
    assert_eq!(under_test.position(now), Some(event_of(&recorded, 5)));
}

/// Where an op begins.
fn event_of(ops: &[Op], op: usize) -> u64 {
    ops[..op].iter().map(|op| 2 + op.1.len() as u64).sum()
}

#[test]
fn blocks_of_the_start_are_aligned() {
    let some = |places: &[i64]| -> Vec<Option<u32>> {
        places.iter().map(|&place| u32::try_from(place).ok()).collect()
    };
    assert_eq!(align(&[1, 2, 2, 3], &[1, 2, 2, 3]), some(&[0, 1, 2, 3]));
    assert_eq!(align(&[1, 2, 2, 3], &[1, 2, 9, 2, 3]), some(&[0, 1, -1, 2, 3]));
    assert_eq!(align(&[1, 2, 2, 3], &[9, 9, 1, 2, 2, 3]), some(&[-1, -1, 0, 1, 2, 3]));
    assert_eq!(align(&[1, 2, 2, 3], &[1, 2, 2, 3, 9]), some(&[0, 1, 2, 3, -1]));
    assert_eq!(align(&[1, 2, 2, 3], &[1, 3]), some(&[0, 3]));
    assert_eq!(align(&[1, 8, 2, 2, 3], &[1, 2, 2, 3]), some(&[0, 2, 3, 4]));
    assert_eq!(align(&[1, 8, 2, 3], &[1, 9, 2, 3]), some(&[0, -1, 2, 3]));
    assert_eq!(align(&[], &[1]), some(&[-1]));
    assert_eq!(align(&[1], &[]), some(&[]));
}

#[test]
fn without_a_recorded_step_ops_and_blocks_count_by_their_place() {
    let ids = ids();
    let live: Vec<(BlockId, u64)> = ids[..2].iter().map(|&id| (id, 64)).collect();
    let (mut follower, places) = Follower::new(None, &live);
    assert_eq!(places, [Some(BlockIndex(0)), Some(BlockIndex(1))]);
    let key = OpKey::new(1, 0);
    assert_eq!(follower.coming_op(key), Some(OpIndex(0)));
    assert_eq!(follower.begun(key, 0), Some(OpIndex(0)));
    assert_eq!(follower.allocated(ids[2], fresh(5, 0)), Some(BlockIndex(2)));
    assert_eq!(follower.block(BlockIndex(2)), Some(ids[2]));
    assert_eq!(follower.drifted_at(), None);
    follower.give_up(OpIndex(1));
    assert_eq!(follower.coming_op(key), None);
    assert_eq!((follower.acts(), follower.drifted_at()), (false, Some(OpIndex(1))));
}

#[test]
fn traces_that_are_out_of_order_are_no_path() {
    let mut swapped = trace(&[1], &[("a", &[2]), ("b", &[3])]);
    swapped.signature = Signature(1);
    assert!(Path::of(&swapped, Sizes::Same).is_some());
    swapped.events.swap(1, 4);
    assert!(Path::of(&swapped, Sizes::Same).is_none());
    assert!(Path::of(&Trace::default(), Sizes::Same).is_none());
}
