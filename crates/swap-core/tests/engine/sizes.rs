//! Steps of one family: smaller ones go by the plan of the largest, and a larger one goes on under
//! the orders for larger ones.

use std::sync::Arc;

use swap_core::devices::HostConfig;
use swap_core::{
    AccessMode, Action, ActionKind, BlockId, BlockIndex, Lot, OpIndex, OpName, Orders, Origin,
    Phase, Plan, PlanBlock, StepReport, Trace,
};

use super::lab::{BLOCK, ENOUGH, Lab, read, work, write};
use super::world::{THRESHOLD, physical};

const OPS: [OpName; 5] = [
    OpName::new("make"),
    OpName::new("between"),
    OpName::new("other"),
    OpName::new("back"),
    OpName::new("last"),
];

fn step(lab: &mut Lab, units: u64, tag: u64) -> (String, StepReport) {
    step_of(lab, units * BLOCK, tag)
}

/// A step in which the first op makes a block of so many bytes, behind a small one, that the last
/// one reads, and the third makes one as large for itself. Says whether the first was there in each
/// op.
fn step_of(lab: &mut Lab, size_bytes: u64, tag: u64) -> (String, StepReport) {
    let mut there = String::new();
    let mut made: Option<BlockId> = None;
    for (at, &op) in OPS.iter().enumerate() {
        lab.ops.begin(op).expect("begins");
        match at {
            0 => {
                let small = lab.ops.allocate(64, "small").expect("there is room");
                let block = lab.ops.allocate(size_bytes, "made").expect("there is room");
                lab.ops.free(small).expect("lives");
                work(&mut lab.ops, &[write(*made.insert(block), tag)], &lab.errors).expect("works");
            }
            2 => {
                let block = lab.ops.allocate(size_bytes, "other").expect("there is room");
                lab.ops.touch(block, AccessMode::Write).expect("is there");
                lab.ops.free(block).expect("lives");
            }
            4 => {
                let block = made.expect("made above");
                work(&mut lab.ops, &[read(block, tag)], &lab.errors).expect("works");
            }
            _ => {}
        }
        let block = made.expect("made in the first op");
        there.push(if lab.is_there(block) { '+' } else { '-' });
        lab.ops.end().expect("ends");
        lab.complete_all();
    }
    lab.ops.free(made.expect("made above")).expect("lives");
    let mut reports = lab.engine.end_step().expect("ends");
    reports.extend(lab.engine.drain_reports().expect("reports"));
    (there, reports.pop().expect("each step reports"))
}

/// A plan by which the first block leaves after op `out` and is asked for before op 4.
fn plan(trace: &Trace, out: u32) -> Plan {
    let block = BlockIndex(0);
    let action = |op, phase, kind| {
        let op = OpIndex(op);
        Action { op, phase, kind, block, due: op }
    };
    let size_bytes = trace.blocks[0].size_bytes;
    Plan {
        signature: trace.signature,
        op_count: 5,
        blocks: vec![PlanBlock { index: block, size_bytes, origin: Origin::Op(OpIndex(0)) }],
        actions: vec![
            action(out, Phase::End, ActionKind::SwapOut),
            action(4, Phase::Begin, ActionKind::SwapIn),
        ],
    }
}

/// The step of another size.
fn resized(trace: &Trace, units: u64) -> Trace {
    let mut trace = trace.clone();
    trace.blocks.iter_mut().for_each(|block| block.size_bytes = units * BLOCK);
    trace
}

/// A lab and a recorded step of 4 units.
fn lab() -> (Lab, Trace) {
    let mut lab = Lab::with(32 * BLOCK, ENOUGH, HostConfig::by_time(64 * BLOCK));
    lab.end_step();
    lab.engine.set_orders(true, None).expect("between steps");
    let trace = step(&mut lab, 4, 1).1.trace.expect("it was recorded");
    assert_eq!(trace.blocks.len(), 2);
    (lab, trace)
}

#[test]
fn smaller_steps_go_by_the_plan_of_the_largest_in_its_lots() {
    let (mut lab, trace) = lab();
    // Both lie in the same place: the second comes while the first is away.
    let lot = Some(Lot { offset_bytes: 0, size_bytes: 4 * BLOCK });
    let probe = BlockIndex(0);
    let orders = Orders::for_sizes_up_to(&plan(&trace, 0), &trace, &[probe]);
    let orders = orders.with_lots(vec![vec![lot, lot]]);
    lab.engine.set_orders(false, Some(Arc::new(orders))).expect("between steps");
    let family = step(&mut lab, 4, 2).1.family;
    for (tag, units) in (3..).zip([4, 1, 3, 2, 4, 1]) {
        let (there, report) = step(&mut lab, units, tag);
        assert_eq!(there, "+---+", "{units} units");
        assert_eq!(report.probes, [(probe, units * BLOCK)]);
        assert_eq!((report.drifted_at, report.family), (None, family));
        let counters = report.counters;
        assert_eq!((counters.misses, counters.rescues), (0, 0));
        assert_eq!(counters.memory_calls.total(), 0, "{units} units");
        assert_eq!(counters.swapped_out_bytes, units * BLOCK);
    }
    lab.finish();
}

#[test]
fn what_is_too_small_to_be_swappable_by_itself_is_so_where_the_plan_has_it_larger() {
    for is_laid_out in [true, false] {
        let (mut lab, trace) = lab();
        let nths: Vec<u32> = trace.blocks.iter().map(|block| block.nth).collect();
        assert_eq!(nths, [1, 0], "one small block came before the first");
        let lot = Some(Lot { offset_bytes: 0, size_bytes: 4 * BLOCK }).filter(|_| is_laid_out);
        let orders = Orders::for_sizes_up_to(&plan(&trace, 0), &trace, &[BlockIndex(0)]);
        let orders = Arc::new(orders.with_lots(vec![vec![lot, lot]]));
        lab.engine.set_orders(false, Some(orders.clone())).expect("between steps");
        step(&mut lab, 4, 2);
        let segment_bytes = lab.engine.memory_stats().expect("counts").segment_bytes.current;
        for (tag, size_bytes) in (3..).zip([4 * BLOCK, THRESHOLD - 8, 104, BLOCK, 5000, 104]) {
            let (there, report) = step_of(&mut lab, size_bytes, tag);
            assert_eq!(there, "+---+", "{size_bytes} bytes");
            let counters = report.counters;
            assert_eq!((report.drifted_at, counters.misses, counters.rescues), (None, 0, 0));
            assert_eq!(report.probes, [(BlockIndex(0), physical(size_bytes))]);
            assert_eq!(counters.swapped_out_bytes, physical(size_bytes));
            let calls = counters.memory_calls.total();
            assert!(calls == 0 || !is_laid_out, "{size_bytes} bytes: {calls} calls");
        }
        // A recorded one has all blocks, and the small one lies where it always did.
        lab.engine.set_orders(true, Some(orders)).expect("between steps");
        let trace = step_of(&mut lab, 104, 9).1.trace.expect("it was recorded");
        let sizes: Vec<(u64, u32)> =
            trace.blocks.iter().map(|block| (block.size_bytes, block.nth)).collect();
        assert_eq!(sizes, [(physical(104), 1), (physical(104), 0)]);
        let stats = lab.engine.memory_stats().expect("counts");
        assert_eq!(stats.segment_bytes.current, segment_bytes);
        lab.finish();
    }
}

#[test]
fn a_larger_step_goes_on_under_the_orders_for_it_and_the_next_begins_as_before() {
    let (mut lab, trace) = lab();
    let probes = [BlockIndex(0), BlockIndex(1)];
    let orders = |units: u64, out: Option<u32>| {
        let trace = resized(&trace, units);
        let plan = out.map_or_else(Plan::default, |out| plan(&trace, out));
        Orders::for_sizes_up_to(&plan, &trace, &probes)
    };
    // Up to 2 units nothing moves; then the block leaves, later the larger the step is.
    let larger = [orders(4, Some(1)), orders(8, Some(2))];
    let all = orders(2, None).or_larger(larger.into_iter());
    lab.engine.set_orders(false, Some(Arc::new(all))).expect("between steps");
    let expected = [(1, "+++++"), (3, "++--+"), (2, "+++++"), (7, "+++-+"), (4, "++--+")];
    for (tag, (units, expect)) in (2..).zip(expected) {
        let (there, report) = step(&mut lab, units, tag);
        assert_eq!(there, expect, "{units} units");
        assert_eq!(report.probes, probes.map(|probe| (probe, units * BLOCK)));
        assert_eq!((report.drifted_at, report.counters.misses), (None, 0));
    }
    // Larger than all: under the last.
    let (there, report) = step(&mut lab, 9, 9);
    assert_eq!((there.as_str(), report.drifted_at), ("+++-+", None));
    lab.finish();
}

#[test]
fn orders_for_another_step_are_left_out() {
    let (mut lab, trace) = lab();
    let probe = BlockIndex(0);
    let mut other = resized(&trace, 8);
    other.blocks.push(other.blocks[0].clone());
    let other = Orders::for_sizes_up_to(&Plan::default(), &other, &[probe]);
    let trace = resized(&trace, 2);
    let own = Orders::for_sizes_up_to(&plan(&trace, 1), &trace, &[probe]);
    let orders = own.or_larger([other].into_iter());
    lab.engine.set_orders(false, Some(Arc::new(orders))).expect("between steps");
    assert_eq!(step(&mut lab, 5, 2).0, "++--+", "by the only plan that there is");
    lab.finish();
}
