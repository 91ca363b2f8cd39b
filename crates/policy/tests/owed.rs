//! Promise: memory that goes back while it is copied serves nobody before the copy is over.

use policy::synthetic::TraceBuilder;
use policy::{
    Action, ActionKind, BlockIndex, Direction, Link, Machine, OpIndex, Phase, assemble, simulate,
};

/// A large block leaves, a small one comes back into a part of its memory, and the next op makes
/// something in the rest of it.
#[test]
fn the_rest_of_a_chunk_is_free_when_its_copy_is_over() {
    let mut builder = TraceBuilder::new();
    let (large, small) = (builder.persistent("large", 10_000), builder.persistent("small", 4_000));
    builder.begin("first", 100.0, false);
    builder.update(large);
    builder.end();
    builder.begin("second", 100.0, false);
    let other = builder.allocate("other", 5_000);
    builder.write(other);
    builder.end();
    builder.free(other);
    builder.begin("third", 100.0, false);
    builder.update(small);
    builder.end();
    let trace = builder.finish();
    let act = |op, phase, kind, block: BlockIndex| {
        let op = OpIndex(op);
        Action { op, phase, kind, block, due: op }
    };
    let actions = vec![
        act(0, Phase::Begin, ActionKind::SwapIn, large),
        act(0, Phase::End, ActionKind::SwapOut, large),
        act(1, Phase::Begin, ActionKind::SwapIn, small),
        act(2, Phase::End, ActionKind::SwapOut, small),
    ];
    let link = Link { out_bytes_per_us: 10.0, in_bytes_per_us: 10.0, both_bytes_per_us: 10.0 };
    let machine =
        Machine { limit_bytes: 10_500, host_limit_bytes: 1 << 20, link, copy_submit_us: 0.0 };
    let step = simulate(&trace, &assemble(&trace, actions), &machine);
    assert!(step.went_to_plan(), "{step:?}");
    let is_out = |block: BlockIndex, direction| {
        move |copy: &&policy::CopySpan| copy.block == block && copy.direction == direction
    };
    let out = step.copies.iter().find(is_out(large, Direction::Out)).expect("it is copied out");
    let back = step.copies.iter().find(is_out(small, Direction::In)).expect("it is copied back");
    assert!(back.span.start_us >= out.span.end_us, "{step:?}");
    assert!(step.ops[1].start_us >= out.span.end_us, "{step:?}");
}
