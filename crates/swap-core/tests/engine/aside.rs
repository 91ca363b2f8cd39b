//! Ops beside the step: safe as all are, and unknown to signatures, traces and plans.

use std::sync::Arc;

use swap_core::{
    Action, ActionKind, BlockId, BlockIndex, Error, OpIndex, OpName, Orders, Origin, Phase, Plan,
    PlanBlock, Residency, Trace,
};

use super::lab::{BLOCK, Lab, Operand, read, work, write};

const BESIDE: OpName = OpName::new("beside");

/// One op beside the step.
fn aside(lab: &mut Lab, operands: &[Operand]) -> Result<(), Error> {
    lab.ops.begin_aside(BESIDE, lab.engine.compute_stream())?;
    work(&mut lab.ops, operands, &lab.errors)?;
    lab.ops.end()
}

/// An evaluation: it reads what is there, and makes and frees blocks of its own, in ops in ops.
fn evaluate(lab: &mut Lab, blocks: &[(BlockId, u64)]) {
    for &(block, tag) in blocks {
        lab.ops.begin_aside(BESIDE, lab.engine.compute_stream()).expect("begins");
        let own = lab.ops.allocate(BLOCK, "own").expect("there is room");
        lab.ops.begin(BESIDE).expect("begins");
        work(&mut lab.ops, &[read(block, tag), write(own, 50)], &lab.errors).expect("works");
        lab.ops.end().expect("ends");
        lab.ops.end().expect("ends");
        aside(lab, &[read(own, 50)]).expect("reads");
        lab.engine.free(own).expect("lives");
    }
}

/// Records a step, with an evaluation at each place where there can be one.
fn record(lab: &mut Lab, blocks: &[(BlockId, u64)], asides: bool) -> Trace {
    lab.engine.end_step().expect("ends");
    lab.engine.set_orders(true, None).expect("between steps");
    for &(block, tag) in blocks {
        if asides {
            evaluate(lab, blocks);
        }
        lab.op(&[read(block, tag)]).expect("reads");
        let made = lab.derive(&[read(block, tag)], 80);
        if asides {
            aside(lab, &[read(made, 80)]).expect("reads");
        }
        lab.free(made);
    }
    if asides {
        evaluate(lab, blocks);
    }
    let reports = lab.engine.end_step().expect("ends");
    lab.engine.set_orders(false, None).expect("between steps");
    reports.into_iter().find_map(|report| report.trace).expect("it was recorded")
}

#[test]
fn signature_and_trace_are_those_of_the_step_alone() {
    let mut lab = Lab::new(4 * BLOCK);
    let blocks: Vec<_> = (1..7).map(|tag| (lab.make(tag), tag)).collect();
    let alone = record(&mut lab, &blocks, false);
    let beside = record(&mut lab, &blocks, true);
    assert_eq!(alone.ops.len(), 2 * blocks.len());
    assert_eq!(beside.signature, alone.signature);
    let names = |trace: &Trace| {
        let ops = trace.ops.iter().map(|op| (op.name.clone(), op.depth));
        ops.collect::<Vec<_>>()
    };
    assert_eq!(names(&beside), names(&alone));
    assert_eq!(beside.blocks, alone.blocks);
    assert_eq!(beside.events, alone.events);
    lab.finish();
}

#[test]
fn ops_aside_are_resident_and_right_under_pressure() {
    let mut lab = Lab::new(3 * BLOCK);
    let mut blocks: Vec<_> = (1..9).map(|tag| (lab.make(tag), tag)).collect();
    let mut away = 0;
    for round in 0..4 {
        for (block, tag) in &mut blocks {
            away += u32::from(lab.state(*block) != Residency::Resident);
            aside(&mut lab, &[read(*block, *tag)]).expect("reads");
            assert!(matches!(lab.state(*block), Residency::Resident | Residency::Arriving));
            // What is written beside the step is there in the step, and the other way round.
            *tag += 100;
            if round % 2 == 0 {
                aside(&mut lab, &[write(*block, *tag)]).expect("writes");
            } else {
                lab.op(&[write(*block, *tag)]).expect("writes");
            }
        }
    }
    for &(block, tag) in &blocks {
        lab.op(&[read(block, tag)]).expect("reads");
    }
    assert!(away > 16, "{away}");
    lab.finish();
}

#[test]
fn a_plan_counts_the_ops_of_the_step_alone() {
    let mut lab = Lab::new(8 * BLOCK);
    let (leaves, stays) = (lab.make(1), lab.make(2));
    lab.end_step();
    let place = |index| PlanBlock {
        index: BlockIndex(index),
        size_bytes: BLOCK,
        origin: Origin::Persistent,
    };
    let out = Action {
        op: OpIndex(2),
        phase: Phase::Begin,
        kind: ActionKind::SwapOut,
        block: BlockIndex(0),
        due: OpIndex(2),
    };
    let plan = Plan { blocks: vec![place(0), place(1)], actions: vec![out], ..Plan::default() };
    lab.engine.set_orders(false, Some(Arc::new(Orders::new(&plan)))).expect("between steps");
    for op in 0..4 {
        for _ in 0..3 {
            aside(&mut lab, &[read(stays, 2)]).expect("reads");
        }
        let expect = if op <= 2 { Residency::Resident } else { Residency::Leaving };
        assert_eq!(lab.state(leaves), expect, "before op {op}");
        lab.tick();
    }
    assert_eq!(lab.end_step(), None, "it went by the plan");
    lab.engine.set_orders(false, None).expect("between steps");
    lab.op(&[read(leaves, 1), read(stays, 2)]).expect("reads");
    lab.finish();
}
