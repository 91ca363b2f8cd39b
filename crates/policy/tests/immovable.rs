//! Promise: what cannot move is on the device all the time in a simulated step, and what cannot
//! move yet is no candidate.

use policy::synthetic::TraceBuilder;
use policy::{
    Action, ActionKind, BlockIndex, Link, Machine, OpIndex, Phase, Simulation, Trace, assemble,
    candidates, simulate,
};

/// A block that nobody may move behind one that may, and an op that makes something.
fn step() -> (Trace, BlockIndex) {
    let mut builder = TraceBuilder::new();
    let weight = builder.persistent("weight", 6_000);
    let workspace = builder.persistent("workspace", 3_000);
    builder.begin("make", 100.0, false);
    let made = builder.allocate("made", 4_000);
    builder.write(made);
    builder.end();
    builder.free(made);
    builder.begin("use", 100.0, false);
    builder.read(weight);
    builder.end();
    let mut trace = builder.finish();
    trace.blocks[workspace.0 as usize].held = true;
    (trace, workspace)
}

fn simulated(
    trace: &Trace,
    limit_bytes: u64,
    moves: &[(u32, Phase, ActionKind, u32)],
) -> Simulation {
    let link = Link { out_bytes_per_us: 10.0, in_bytes_per_us: 10.0, both_bytes_per_us: 10.0 };
    let machine = Machine { limit_bytes, host_limit_bytes: 1 << 20, link, copy_submit_us: 0.0 };
    let action = |&(op, phase, kind, block)| {
        let (op, block) = (OpIndex(op), BlockIndex(block));
        Action { op, phase, kind, block, due: op }
    };
    simulate(trace, &assemble(trace, moves.iter().map(action).collect()), &machine)
}

#[test]
fn what_cannot_move_is_there_from_the_start() {
    let (trace, _) = step();
    // The weight alone would fit beside what is made, the workspace would not.
    let step = simulated(&trace, 10_000, &[]);
    assert!(step.shortfall.is_none() && step.rescues > 0, "{step:?}");
    assert!(step.resident_bytes_by_event.iter().all(|&bytes| bytes >= 3_000), "{step:?}");
    assert!(step.copies.iter().all(|copy| copy.block == BlockIndex(0)), "{step:?}");
    // It has its memory before the weight, which then finds none to be used in.
    assert!(simulated(&trace, 8_000, &[]).shortfall.is_some());
}

#[test]
fn what_cannot_move_is_moved_by_no_plan() {
    let (trace, workspace) = step();
    let moves = [
        (0, Phase::Begin, ActionKind::SwapOut, workspace.0),
        (1, Phase::Begin, ActionKind::SwapIn, workspace.0),
    ];
    let step = simulated(&trace, 1 << 20, &moves);
    assert!(step.copies.is_empty() && step.clean_swap_outs == 0, "{step:?}");
    assert_eq!(step.resident_bytes_peak, 13_000);
}

/// As what an operator that is told of as a whole keeps for its backward pass.
#[test]
fn what_an_op_leaves_untouched_stays_until_an_op_touches_it() {
    let mut builder = TraceBuilder::new();
    let input = builder.persistent("input", 1_000);
    let [first, second] = ["first", "second"].map(|name| builder.allocate(name, 64_000));
    builder.begin("forward", 100.0, false);
    builder.read(input);
    let kept = builder.allocate("kept", 64_000);
    builder.write(first);
    builder.end();
    builder.compute("forward", 100.0, &[first], second);
    builder.compute("backward", 100.0, &[second, kept], first);
    builder.compute("backward", 100.0, &[first], second);
    builder.compute("backward", 100.0, &[kept], second);
    for block in [kept, first, second] {
        builder.free(block);
    }
    let all = candidates(&builder.finish());
    let returning = |gap: &&policy::Candidate| gap.block == kept && gap.returns_before.is_some();
    let gaps: Vec<_> = all.iter().filter(returning).collect();
    let [gap] = gaps[..] else { panic!("it may leave between its two uses alone: {all:?}") };
    assert_eq!((gap.leaves_after, gap.returns_before), (Some(OpIndex(2)), Some(OpIndex(4))));
}
