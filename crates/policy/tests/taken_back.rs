//! Promise: who takes its own memory back waits for the copy that was under way in it.

use policy::synthetic::TraceBuilder;
use policy::{
    Action, ActionKind, Direction, Link, Machine, OpIndex, Phase, Plan, Trace, assemble, simulate,
};

const MIB: u64 = 1 << 20;
const WEIGHT_BYTES: u64 = 100 * MIB;
/// What moving the weight takes, either way.
const COPY_US: f64 = 1_000.0;

/// A weight makes room for something as large, and is used again.
fn step() -> Trace {
    let mut builder = TraceBuilder::new();
    let weight = builder.persistent("weight", WEIGHT_BYTES);
    builder.begin("forward", 100.0, false);
    builder.read(weight);
    builder.end();
    builder.begin("peak", 100.0, false);
    let large = builder.allocate("large", WEIGHT_BYTES);
    builder.write(large);
    builder.end();
    builder.free(large);
    builder.begin("backward", 100.0, false);
    builder.read(weight);
    builder.end();
    builder.finish()
}

#[test]
fn a_copy_under_way_is_waited_for_by_who_takes_its_memory_back() {
    let trace = step();
    let rate = WEIGHT_BYTES as f64 / COPY_US;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let (limit_bytes, host_limit_bytes) = (WEIGHT_BYTES * 3 / 2, 1 << 40);
    let machine = Machine { limit_bytes, host_limit_bytes, link, copy_submit_us: 0.0 };
    let [out, back] = [ActionKind::SwapOut, ActionKind::SwapIn];
    let act = |op, phase, kind| {
        let (op, block) = (OpIndex(op), policy::BlockIndex(0));
        Action { op, phase, kind, block, due: op }
    };
    let plan = |last: &[ActionKind]| -> Plan {
        let last = last.iter().map(|&kind| act(2, Phase::Begin, kind));
        assemble(&trace, [act(0, Phase::End, out)].into_iter().chain(last).collect())
    };
    let plain = simulate(&trace, &plan(&[back]), &machine);
    // It leaves at once, and comes back into the memory that the copy still fills.
    let nervous = simulate(&trace, &plan(&[back, out, back]), &machine);
    for step in [&plain, &nervous] {
        assert!(step.went_to_plan() && step.copies.len() == 1, "{step:?}");
        assert_eq!(step.copies[0].direction, Direction::In);
        assert!(step.ops[2].start_us >= step.copies[0].span.end_us, "{step:?}");
    }
    assert_eq!(plain.step_us, nervous.step_us);
}
