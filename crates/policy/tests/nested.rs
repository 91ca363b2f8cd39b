//! Promise: what left first comes back last where that is as good, and what is made meanwhile then
//! finds room where state was.

use policy::synthetic::TraceBuilder;
use policy::{
    Action, ActionKind, BlockIndex, Link, Machine, OpIndex, Phase, Plan, PlanBlock, Simulation,
    Trace, lay_out, nested, simulate,
};

const LAYERS: u32 = 4;
/// Of a state, and of an activation.
const BLOCK_BYTES: u64 = 100 << 20;
/// What moving one takes, either way.
const COPY_US: f64 = 1_000.0;
const UPDATE_US: f64 = 10.0;

/// Layers of an activation and a state each; the updates of the states follow each other, so much
/// later than the last backward op.
fn step(rest_us: f64) -> Trace {
    let mut builder = TraceBuilder::new();
    let states: Vec<_> = (0..LAYERS).map(|_| builder.persistent("state", BLOCK_BYTES)).collect();
    let (mut activations, backward_us) = (Vec::new(), 2.0 * COPY_US);
    builder.begin("begin", 2.0 * COPY_US, false);
    builder.end();
    for _ in 0..LAYERS {
        builder.begin("forward", 2.0 * COPY_US, false);
        let activation = builder.allocate("activation", BLOCK_BYTES);
        builder.write(activation);
        builder.end();
        activations.push(activation);
    }
    for activation in activations.into_iter().rev() {
        builder.begin("backward", backward_us, false);
        builder.read(activation);
        builder.end();
        builder.free(activation);
    }
    builder.begin("clip", rest_us, false);
    builder.end();
    for state in states {
        builder.begin("update", UPDATE_US, false);
        builder.update(state);
        builder.end();
    }
    builder.finish()
}

/// Each state leaves before an activation is made and comes back when one is gone, in their order.
fn in_order(trace: &Trace) -> Plan {
    let action = |op: u32, phase, kind, block: u32, due: u32| Action {
        op: OpIndex(op),
        phase,
        kind,
        block: BlockIndex(block),
        due: OpIndex(due),
    };
    let leaves = |at: u32| action(at, Phase::Begin, ActionKind::SwapOut, at, at);
    let [first_backward, first_update] = [1 + LAYERS, 2 + 2 * LAYERS];
    let returns = |at: u32| {
        let op = first_backward + at;
        action(op, Phase::End, ActionKind::SwapIn, at, first_update + at)
    };
    let block = |index: u32| PlanBlock {
        index: BlockIndex(index),
        size_bytes: BLOCK_BYTES,
        origin: trace.blocks[index as usize].origin,
    };
    Plan {
        signature: trace.signature,
        op_count: trace.ops.len() as u32,
        blocks: (0..LAYERS).map(block).collect(),
        actions: (0..LAYERS).map(leaves).chain((0..LAYERS).map(returns)).collect(),
    }
}

fn machine() -> Machine {
    let rate = BLOCK_BYTES as f64 / COPY_US;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let limit_bytes = u64::from(LAYERS + 2) * BLOCK_BYTES;
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 0.0 }
}

fn returning(plan: &Plan) -> Vec<u32> {
    let back = plan.actions.iter().filter(|action| action.kind == ActionKind::SwapIn);
    back.map(|action| action.block.0).collect()
}

fn nested_from(trace: &Trace, plan: &Plan) -> (Simulation, Option<(Plan, Simulation)>) {
    let simulation = simulate(trace, plan, &machine());
    assert!(simulation.went_to_plan(), "{simulation:?}");
    let nested = nested(trace, plan, &simulation, &machine());
    (simulation, nested)
}

#[test]
fn what_left_first_comes_back_last_and_lies_lower() {
    let trace = step(2.0 * COPY_US);
    let plan = in_order(&trace);
    let (before, nested) = nested_from(&trace, &plan);
    let (nested, after) = nested.expect("there is time");
    assert_eq!(returning(&nested), [3, 2, 1, 0]);
    assert_eq!(after.step_us, before.step_us);
    assert_eq!(after.held_bytes_peak, before.held_bytes_peak);
    // Each is due where it was.
    let due = |plan: &Plan| {
        let mut due: Vec<_> = plan.actions.iter().map(|it| (it.block, it.kind, it.due)).collect();
        due.sort_unstable();
        due
    };
    assert_eq!(due(&nested), due(&plan));

    let [as_it_was, lower] = [&plan, &nested].map(|plan| lay_out(&trace, plan, &machine()));
    assert_eq!(lower.need_bytes, as_it_was.need_bytes);
    assert_eq!(lower.height_bytes, lower.need_bytes);
    assert!(as_it_was.height_bytes > lower.height_bytes, "{as_it_was:?}");
}

#[test]
fn nothing_comes_later_than_it_is_needed() {
    // The last copy ends behind the first update.
    let trace = step(0.5 * COPY_US);
    let plan = in_order(&trace);
    let (before, nested) = nested_from(&trace, &plan);
    let (nested, after) = nested.expect("three of them can change places");
    assert_eq!(returning(&nested), [2, 1, 0, 3]);
    assert!(after.step_us <= before.step_us, "{} after {}", after.step_us, before.step_us);
}

#[test]
fn where_nothing_can_be_better_the_plan_stays() {
    let trace = step(2.0 * COPY_US);
    let plan = in_order(&trace);
    let (_, nested) = nested_from(&trace, &plan);
    let (nested, _) = nested.expect("there is time");
    let (_, again) = nested_from(&trace, &nested);
    assert!(again.is_none());
}
