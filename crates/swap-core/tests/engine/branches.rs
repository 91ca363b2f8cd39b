//! Steps that branch off from the recorded one and come back to it: what its plan still does for
//! them, and that it can do no harm.

use std::sync::Arc;

use swap_core::devices::HostConfig;
use swap_core::{
    AccessMode, Action, ActionKind, BlockId, BlockIndex, Lot, MemoryCalls, OpIndex, OpName, Orders,
    Origin, Phase, Plan, PlanBlock, StepReport,
};

use super::lab::{BLOCK, ENOUGH, Lab, read, work, write};
use super::random_plans::{run_all, run_branching};

const A: OpName = OpName::new("a");
const B: OpName = OpName::new("b");
const C: OpName = OpName::new("c");
const D: OpName = OpName::new("d");
const E: OpName = OpName::new("e");
const F: OpName = OpName::new("f");
const G: OpName = OpName::new("g");
const H: OpName = OpName::new("h");
const I: OpName = OpName::new("i");
const LOG: OpName = OpName::new("log");
const LIKE: OpName = OpName::new("like");
const ASIDE: OpName = OpName::new("aside");

const RECORDED: [OpName; 9] = [A, B, C, D, E, F, G, H, I];

/// A step of these ops: `a` and `i` read the block that stays, `c` makes one that `h` reads, and
/// `log` makes one for itself, and so does `like`, which is as large as the others; so large is
/// what another thread takes during `aside`. Says whether the first was there in each op.
fn step(lab: &mut Lab, stays: BlockId, ops: &[OpName]) -> (String, StepReport) {
    let mut there = String::new();
    let mut made = None;
    for &op in ops {
        lab.ops.begin(op).expect("begins");
        let operands = match op {
            A | I => vec![read(stays, 1)],
            H => made.iter().map(|&block| read(block, 2)).collect(),
            C => {
                let block = lab.ops.allocate(BLOCK, "made").expect("there is room");
                vec![write(*made.insert(block), 2)]
            }
            _ => Vec::new(),
        };
        work(&mut lab.ops, &operands, &lab.errors).expect("works");
        if op == LOG || op == LIKE {
            let size_bytes = if op == LIKE { BLOCK } else { 2 * BLOCK };
            let block = lab.ops.allocate(size_bytes, "log").expect("there is room");
            lab.ops.touch(block, AccessMode::Write).expect("is there");
            lab.ops.free(block).expect("lives");
        }
        if op == ASIDE {
            let stream = lab.engine.compute_stream();
            let taken = lab.engine.allocate_aside(BLOCK, stream).expect("there is room");
            lab.engine.free(taken.block).expect("lives");
        }
        there.push(if lab.is_there(stays) { '+' } else { '-' });
        lab.ops.end().expect("ends");
        lab.complete_all();
    }
    made.into_iter().for_each(|block| lab.ops.free(block).expect("lives"));
    let mut reports = lab.engine.end_step().expect("ends");
    reports.extend(lab.engine.drain_reports().expect("reports"));
    (there, reports.pop().expect("each step reports"))
}

/// A lab with a block that stays. It leaves after `b`, and comes back for `h`. Says too what a step
/// asks of the driver.
fn planned() -> (Lab, BlockId, Plan, MemoryCalls) {
    let mut lab = Lab::with(8 * BLOCK, ENOUGH, HostConfig::by_time(16 * BLOCK));
    let stays = lab.make(1);
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    let trace = step(&mut lab, stays, &RECORDED).1.trace.expect("it was recorded");
    let block = BlockIndex(0);
    let action = |op, phase, kind| {
        let op = OpIndex(op);
        Action { op, phase, kind, block, due: op }
    };
    let plan = Plan {
        signature: trace.signature,
        op_count: 9,
        blocks: vec![PlanBlock { index: block, size_bytes: BLOCK, origin: Origin::Persistent }],
        actions: vec![
            action(1, Phase::End, ActionKind::SwapOut),
            action(7, Phase::Begin, ActionKind::SwapIn),
        ],
    };
    let lot = |number: u64| Some(Lot { offset_bytes: number * BLOCK, size_bytes: BLOCK });
    let orders = Orders::with_trace(&plan, &trace).with_lots(vec![vec![lot(0), lot(1)]]);
    lab.engine.set_orders(false, Some(Arc::new(orders))).expect("between steps");
    let mut calls = MemoryCalls::default();
    for _ in 0..3 {
        let (there, report) = step(&mut lab, stays, &RECORDED);
        assert_eq!(there, "++-----++");
        calls = report.counters.memory_calls;
        assert_eq!((report.strayed_ops, report.followed(&plan)), (0, true));
    }
    (lab, stays, plan, calls)
}

#[test]
fn a_step_with_more_ops_goes_by_the_plan_before_and_behind_them() {
    for at in 0..=RECORDED.len() {
        let (mut lab, stays, plan, calls) = planned();
        let mut ops = RECORDED.to_vec();
        ops.splice(at..at, [LOG; 4]);
        let (there, report) = step(&mut lab, stays, &ops);
        let mut expected = "++-----++".to_owned();
        let between = if (2..8).contains(&at) { "----" } else { "++++" };
        expected.insert_str(at, between);
        assert_eq!(there, expected, "at {at}");
        assert_ne!(report.signature, plan.signature);
        assert_eq!((report.strayed_ops, report.followed(&plan)), (4, true));
        assert_eq!((report.counters.misses, report.counters.rescues), (0, 0));
        // Nor does it disturb the layout: the step behind it finds all memory where it was.
        let (there, report) = step(&mut lab, stays, &RECORDED);
        assert_eq!((there.as_str(), report.counters.memory_calls), ("++-----++", calls));
        lab.finish();
    }
}

/// The first of them stands in for the block that `c` makes, if that is still to come.
#[test]
fn what_the_plan_does_not_know_makes_no_memory_calls_where_a_lot_of_its_size_is_free() {
    // Until `c` the lot of what that makes is, and then that of the block that has left.
    for (at, op) in (0..=7).flat_map(|at| [(at, LIKE), (at, ASIDE)]) {
        let (mut lab, stays, plan, calls) = planned();
        let mut ops = RECORDED.to_vec();
        ops.splice(at..at, [op; 4]);
        // No chunk of its size is kept beside the layout.
        lab.engine.trim().expect("gives back");
        let (_, report) = step(&mut lab, stays, &ops);
        let MemoryCalls { created, mapped, .. } = report.counters.memory_calls;
        assert_eq!(created, 0, "{op:?} at {at}");
        assert!(mapped <= 1, "addresses of nobody come to show it, once");
        for ops in [&ops[..], &RECORDED] {
            let (_, report) = step(&mut lab, stays, ops);
            assert_eq!(report.counters.memory_calls, calls, "{op:?} at {at}");
            assert_eq!((report.counters.misses, report.counters.rescues), (0, 0));
            assert!(report.followed(&plan));
        }
        lab.finish();
    }
}

#[test]
fn what_a_step_left_out_is_caught_up_with() {
    let (mut lab, stays, plan, _) = planned();
    // Without `b` the block does not leave, until the step is found again at `f`.
    let (there, report) = step(&mut lab, stays, &[A, C, D, E, F, G, H, I]);
    assert_eq!(there, "++++--++");
    // Four of nine ops ran on demand.
    assert_eq!((report.strayed_ops, report.followed(&plan)), (3, false));
    assert_eq!(report.drifted_at, Some(OpIndex(1)));
    assert_eq!(report.counters.misses, 0);
    lab.finish();
}

#[test]
fn another_step_moves_nothing_by_the_plan() {
    let (mut lab, stays, plan, _) = planned();
    let (there, report) = step(&mut lab, stays, &[LOG, H, B, G, LOG, D, I, C]);
    assert_eq!(there, "++++++++");
    assert_eq!((report.drifted_at, report.followed(&plan)), (Some(OpIndex(0)), false));
    lab.finish();
}

#[test]
fn a_block_more_at_the_start_is_passed_over() {
    let (mut lab, stays, plan, _) = planned();
    let others = [7, 8].map(|tag| lab.make_sized(3 * BLOCK, tag));
    lab.engine.end_step().expect("ends");
    let (there, report) = step(&mut lab, stays, &RECORDED);
    assert_eq!((there.as_str(), report.followed(&plan)), ("++-----++", true));
    lab.op(&[read(others[0], 7), read(others[1], 8)]).expect("reads");
    lab.finish();
}

#[test]
fn no_branch_breaks_a_promise() {
    let cases = std::env::var("ENGINE_CASES").ok().and_then(|text| text.parse().ok());
    let tally = run_all(cases.unwrap_or(600), run_branching);
    println!("{tally:#?}");
    assert!(tally.rejoined > 500, "{} steps found their plan again", tally.rejoined);
    assert!(tally.strayed_ops > 5_000 && tally.drifted > 500);
    assert!(tally.counters.swapped_out_bytes > 0 && tally.counters.recomputed_ops > 0);
    assert!(tally.words_checked > 0 && tally.out_of_memory > 0);
}
