//! Promise: where dropping blocks through chains of replays is the best that can be done, the plan
//! does just that, and what nobody needs again is dropped for nothing.

use policy::synthetic::TraceBuilder;
use policy::{
    ActionKind, BlockIndex, GenerateConfig, Generated, Generator, Link, Machine, OpIndex,
    RecomputeOption, Trace, generate, replayable_blocks, simulate,
};

const MIB: u64 = 1 << 20;

/// A link so slow that no copy pays.
fn machine(limit_mib: u64) -> Machine {
    let rate = MIB as f64 / 1_000_000.0;
    let link = Link { out_bytes_per_us: rate, in_bytes_per_us: rate, both_bytes_per_us: rate };
    let limit_bytes = limit_mib * MIB;
    Machine { limit_bytes, host_limit_bytes: 1 << 40, link, copy_submit_us: 8.0 }
}

fn plan(trace: &Trace, limit_mib: u64) -> Generated {
    let machine = machine(limit_mib);
    let limit_bytes = machine.limit_bytes;
    let options: Vec<RecomputeOption> = replayable_blocks(trace)
        .into_iter()
        .map(|one| RecomputeOption { block: one.block, replay_us: one.device_us })
        .collect();
    let made = generate(trace, &machine, &GenerateConfig::default(), &options);
    assert!(made.infeasible.is_none() && made.simulation.went_to_plan(), "{made:?}");
    assert!(made.simulation.held_bytes_peak <= limit_bytes);
    let bound_us = Generator::new(trace, &machine).bound_us(&options);
    assert!(made.added_us() >= bound_us.max(made.windows_us) - 1e-6);
    made
}

fn make(builder: &mut TraceBuilder, name: &str, us: f64, mib: u64, from: BlockIndex) -> BlockIndex {
    builder.begin(name, us, true);
    let made = builder.allocate(name, mib * MIB);
    builder.read(from);
    builder.write(made);
    builder.end();
    made
}

fn use_once(builder: &mut TraceBuilder, name: &str, block: BlockIndex) {
    builder.begin(name, 100.0, false);
    builder.read(block);
    builder.end();
}

/// An op that needs a lot for itself.
fn peak(builder: &mut TraceBuilder, mib: u64) {
    builder.begin("peak", 100.0, false);
    let large = builder.allocate("large", mib * MIB);
    builder.write(large);
    builder.end();
    builder.free(large);
}

fn actions(made: &Generated, kind: ActionKind) -> Vec<u32> {
    let of_kind = made.plan.actions.iter().filter(|action| action.kind == kind);
    of_kind.map(|action| action.block.0).collect()
}

/// From `start` through `links` blocks that are freed at once to one that is needed after the peak.
fn chain(links: usize, replayable: bool) -> (Trace, BlockIndex) {
    let mut builder = TraceBuilder::new();
    let start = builder.persistent("start", MIB);
    let mut last = start;
    for link in 0..links {
        builder.begin("link", 10.0 * (link + 1) as f64, replayable);
        let made = builder.allocate("link", 2 * MIB);
        builder.read(last);
        builder.write(made);
        builder.end();
        if last != start {
            builder.free(last);
        }
        last = made;
    }
    let end = make(&mut builder, "end", 5.0, 8, last);
    builder.free(last);
    use_once(&mut builder, "first use", end);
    peak(&mut builder, 9);
    use_once(&mut builder, "last use", end);
    builder.free(end);
    (builder.finish(), end)
}

#[test]
fn a_chain_through_freed_blocks_costs_its_ops_and_nothing_else() {
    for links in 1..=3 {
        let (trace, end) = chain(links, true);
        let made = plan(&trace, 15);
        // The start and the peak leave no room for the end, and a copy takes seconds.
        let ops_us = 5.0 + (1..=links).map(|link| 10.0 * link as f64).sum::<f64>();
        assert!((made.added_us() - ops_us).abs() < 1e-6, "{links}: {}", made.added_us());
        assert_eq!(made.simulation.recomputed_ops, links as u64 + 1);
        assert_eq!(made.simulation.swapped_out_bytes, 0);
        assert_eq!(actions(&made, ActionKind::Replay), [end.0]);
        assert_eq!(actions(&made, ActionKind::Discard).len(), links + 1);
    }
}

#[test]
fn a_chain_that_needs_more_memory_than_there_is_while_it_runs_is_not_taken() {
    // Each link takes its memory before it asks for the one before it.
    let (trace, _) = chain(4, true);
    let made = plan(&trace, 15);
    assert_eq!(made.simulation.recomputed_ops, 0);
    assert_eq!(made.simulation.swapped_out_bytes, 8 * MIB);
}

#[test]
fn without_recipes_for_what_was_freed_the_end_of_a_chain_is_copied() {
    let (trace, _) = chain(2, false);
    let made = plan(&trace, 15);
    assert_eq!(made.simulation.recomputed_ops, 0);
    assert_eq!(made.simulation.swapped_out_bytes, 8 * MIB);
}

#[test]
fn blocks_that_share_a_freed_one_make_it_once() {
    let mut builder = TraceBuilder::new();
    let start = builder.persistent("start", MIB);
    let shared = make(&mut builder, "shared", 100.0, 2, start);
    let ends: Vec<BlockIndex> = (0..3).map(|_| make(&mut builder, "end", 5.0, 4, shared)).collect();
    builder.free(shared);
    for &end in &ends {
        use_once(&mut builder, "first use", end);
    }
    peak(&mut builder, 12);
    for &end in ends.iter().rev() {
        use_once(&mut builder, "last use", end);
    }
    ends.iter().for_each(|&end| builder.free(end));
    let trace = builder.finish();
    let made = plan(&trace, 15);
    assert!((made.added_us() - 115.0).abs() < 1e-6, "{}", made.added_us());
    assert_eq!(made.simulation.recomputed_ops, 4);
}

#[test]
fn an_input_that_cannot_be_made_again_stays_when_it_is_freed_in_the_gap() {
    let mut builder = TraceBuilder::new();
    builder.begin("batch", 10.0, false);
    let batch = builder.allocate("batch", MIB);
    builder.write(batch);
    builder.end();
    let made_of = make(&mut builder, "made", 20.0, 8, batch);
    use_once(&mut builder, "first use", made_of);
    use_once(&mut builder, "use of the batch", batch);
    builder.free(batch);
    peak(&mut builder, 8);
    use_once(&mut builder, "last use", made_of);
    builder.free(made_of);
    let trace = builder.finish();
    let made = plan(&trace, 12);
    assert!((made.added_us() - 20.0).abs() < 1e-6, "{}", made.added_us());
    assert_eq!(actions(&made, ActionKind::Discard), [made_of.0]);
    assert_eq!(made.simulation.swapped_out_bytes, 0);
}

/// A block that nobody needs behind its only use lives beyond the peak.
fn step_with_a_dead_block() -> (Trace, BlockIndex) {
    let mut builder = TraceBuilder::new();
    let start = builder.persistent("start", MIB);
    let dead = make(&mut builder, "dead", 1000.0, 8, start);
    use_once(&mut builder, "only use", dead);
    peak(&mut builder, 8);
    use_once(&mut builder, "something else", start);
    builder.free(dead);
    (builder.finish(), dead)
}

#[test]
fn a_block_that_nobody_needs_again_is_dropped_for_nothing() {
    let (trace, dead) = step_with_a_dead_block();
    let made = plan(&trace, 12);
    assert_eq!(made.added_us(), 0.0);
    assert_eq!(actions(&made, ActionKind::Discard), [dead.0]);
    assert_eq!((made.simulation.recomputed_ops, made.simulation.swapped_out_bytes), (0, 0));
}

/// As an optimizer does that changes a bias while the script still has what was made with it.
#[test]
fn a_block_is_not_dropped_beyond_a_change_of_something_small_that_it_was_made_from() {
    let (mut trace, dead) = step_with_a_dead_block();
    let dropped = plan(&trace, 12).plan;
    let producer = trace.ops.iter().position(|op| op.name == "dead").expect("it is made");
    trace.ops[producer].outdated_by = Some(OpIndex(3));
    let made = plan(&trace, 12);
    assert!(actions(&made, ActionKind::Discard).is_empty(), "{made:?}");
    assert_eq!(actions(&made, ActionKind::SwapOut), [dead.0], "it has to leave all the same");
    // Whoever drops it has to make it again before the change.
    let simulated = simulate(&trace, &dropped, &machine(12));
    assert_eq!((simulated.misses, simulated.recomputed_ops), (1, 1), "{simulated:?}");
    assert_eq!(simulated.step_us, trace.ops_us() + 1000.0, "made twice");
}
