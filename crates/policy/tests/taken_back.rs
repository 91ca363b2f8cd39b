//! Promise: who takes its own memory back waits for the copy that was under way in it.

use policy::{Action, ActionKind, Direction, OpIndex, Phase, Plan, Trace, assemble, simulate};

#[path = "peak/step.rs"]
mod peak;

/// A weight makes room for something as large, and is used again.
fn step() -> Trace {
    let (mut builder, weight) = peak::begin_step();
    builder.begin("backward", 100.0, false);
    builder.read(weight);
    builder.end();
    builder.finish()
}

#[test]
fn a_copy_under_way_is_waited_for_by_who_takes_its_memory_back() {
    let trace = step();
    let machine = peak::machine();
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
