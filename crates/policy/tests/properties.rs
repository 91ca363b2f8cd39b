//! Promises of planner and simulator that need no other judge than arithmetic: each is held
//! against ten thousand random steps.

use std::cell::Cell;

use policy::synthetic::{Numbers, RandomShape, random_trace};
use policy::{
    Action, ActionKind, BlockIndex, GenerateConfig, Generated, Generator, Link, Machine, OpIndex,
    Origin, Phase, Plan, RecomputeOption, Simulation, Simulator, Trace, TraceEvent, check_trace,
    generate, replayable_blocks, simulate,
};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

const CASES: u32 = 10_000;

fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: u64::MAX / 8,
        link: Link {
            out_bytes_per_us: 10_000.0,
            in_bytes_per_us: 9_000.0,
            both_bytes_per_us: 8_000.0,
        },
        copy_submit_us: 2.0,
    }
}

/// Holds a property against random small steps, each with a share of its peak as the limit.
fn check(test: impl Fn(u64, Trace, Machine) -> Result<(), TestCaseError>) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: CASES,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::default()
    });
    let result = runner.run(&(any::<u64>(), 40_u64..100), |(seed, percent)| {
        let shape = RandomShape { ops: 12, ..RandomShape::small() };
        let trace = random_trace(seed, &shape);
        let peak_bytes =
            simulate(&trace, &Plan::default(), &machine(u64::MAX / 8)).resident_bytes_peak;
        test(seed, trace, machine(peak_bytes * percent / 100))
    });
    result.expect("the property holds");
}

fn plan(trace: &Trace, machine: &Machine) -> Generated {
    let config = GenerateConfig { min_block_bytes: 1, effort: 2, ..GenerateConfig::default() };
    generate(trace, machine, &config, &[])
}

fn bound_us(trace: &Trace, machine: &Machine) -> f64 {
    Generator::new(trace, machine).bound_us(&[])
}

fn outermost(trace: &Trace) -> Vec<OpIndex> {
    let ops = (0..).map(OpIndex).zip(&trace.ops);
    ops.filter(|(_, op)| op.depth == 0).map(|(index, _)| index).collect()
}

/// Moves of any block at any outermost op, most of it nonsense.
fn random_plan(seed: u64, trace: &Trace) -> Plan {
    let mut numbers = Numbers::new(seed);
    let ops = outermost(trace);
    let mut actions = Vec::new();
    for _ in 0..numbers.below(30) {
        let op = ops[numbers.below(ops.len() as u64) as usize];
        let kind = if numbers.chance(50) { ActionKind::SwapOut } else { ActionKind::SwapIn };
        let phase = if numbers.chance(50) { Phase::Begin } else { Phase::End };
        let block = BlockIndex(numbers.below(trace.blocks.len() as u64) as u32);
        actions.push(Action { op, phase, kind, block, due: op });
    }
    let op_count = trace.ops.len() as u32;
    Plan { signature: trace.signature, op_count, blocks: vec![], actions }
}

/// By outermost op: the blocks that it and the ops inside it touch.
fn touched(trace: &Trace) -> Vec<(OpIndex, Vec<BlockIndex>)> {
    let (mut depth, mut list) = (0, Vec::<(OpIndex, Vec<BlockIndex>)>::new());
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(op) => {
                if depth == 0 {
                    list.push((op, Vec::new()));
                }
                depth += 1;
            }
            TraceEvent::End(_) => depth -= 1,
            TraceEvent::Touch(block, _) => {
                list.last_mut().expect("an op is open").1.push(block);
            }
            _ => {}
        }
    }
    list
}

/// Whether a block lives from step to step under the same name.
fn stays(trace: &Trace, block: BlockIndex) -> bool {
    let freed = trace.events.contains(&TraceEvent::Free(block));
    trace.blocks[block.0 as usize].origin == Origin::Persistent && !freed
}

#[test]
fn no_op_runs_while_a_block_of_it_is_on_its_way() {
    let (copies, waits) = (Cell::new(0), Cell::new(0));
    check(|seed, trace, machine| {
        let plan = match seed % 2 {
            0 => random_plan(seed, &trace),
            _ => plan(&trace, &machine).plan,
        };
        let touched = touched(&trace);
        // A rescue inside an op may send away what the op has used already.
        let steps = Simulator::new(&trace, machine).steps(&plan, 3);
        for step in steps.iter().take_while(|step| step.went_to_plan()) {
            let device_us: f64 = trace.ops.iter().map(|op| op.device_us).sum();
            let parts_us = device_us + step.stall_us + step.recomputed_us;
            prop_assert!((step.step_us - parts_us).abs() < 1e-6 * parts_us, "time is lost");
            waits.set(waits.get() + u32::from(step.stall_us > 0.0));
            for copy in &step.copies {
                copies.set(copies.get() + 1);
                for (op, _) in touched.iter().filter(|(_, list)| list.contains(&copy.block)) {
                    let (op, copy) = (step.ops[op.0 as usize], copy.span);
                    let before = op.end_us <= copy.start_us + 1e-6;
                    let after = op.start_us >= copy.end_us - 1e-6;
                    prop_assert!(before || after, "{op:?} runs beside {copy:?}");
                }
            }
        }
        Ok(())
    });
    assert!(copies.get() > CASES && waits.get() > CASES / 10, "{} {}", copies.get(), waits.get());
}

/// The same step with the touches between two other calls in the opposite order.
fn reordered(trace: &Trace) -> Trace {
    let mut other = trace.clone();
    let is_touch = |event: &TraceEvent| matches!(event, TraceEvent::Touch(..));
    for run in other.events.chunk_by_mut(|one, next| is_touch(one) && is_touch(next)) {
        run.reverse();
    }
    other
}

#[test]
fn the_order_of_touches_and_the_names_do_not_matter() {
    let (moved, planned) = (Cell::new(0), Cell::new(0));
    check(|_, trace, machine| {
        let mut renamed = reordered(&trace);
        moved.set(moved.get() + u32::from(renamed != trace));
        for (index, op) in renamed.ops.iter_mut().enumerate() {
            op.name = format!("another {}", trace.ops.len() - index);
        }
        for block in &mut renamed.blocks {
            block.name.push('x');
        }
        let (one, other) = (plan(&trace, &machine), plan(&renamed, &machine));
        planned.set(planned.get() + u32::from(!one.plan.actions.is_empty()));
        prop_assert_eq!(&one.plan, &other.plan);
        prop_assert_eq!(one.windows_us, other.windows_us);
        prop_assert_eq!(bound_us(&trace, &machine), bound_us(&renamed, &machine));
        // Without a plan that works, blocks are evicted by their last touch.
        if one.simulation.went_to_plan() {
            prop_assert_eq!(figures(&one.simulation), figures(&other.simulation));
        }
        Ok(())
    });
    assert!(moved.get() > CASES / 2 && planned.get() > CASES / 2);
}

/// A step whose persistent blocks have changed places, and the new place of each block.
fn relabelled(seed: u64, trace: &Trace) -> Option<(Trace, Vec<u32>)> {
    let persistent = trace.blocks.iter().take_while(|b| b.origin == Origin::Persistent).count();
    // Another order would be another step if one of them were freed: others move up.
    let stay = (0..persistent as u32).all(|index| stays(trace, BlockIndex(index)));
    if !stay || persistent < 2 {
        return None;
    }
    let mut numbers = Numbers::new(seed);
    let mut places: Vec<u32> = (0..trace.blocks.len() as u32).collect();
    for last in (1..persistent).rev() {
        places.swap(last, numbers.below(last as u64 + 1) as usize);
    }
    let mut other = trace.clone();
    for (block, &place) in trace.blocks.iter().zip(&places) {
        other.blocks[place as usize] = block.clone();
    }
    let new = |block: BlockIndex| BlockIndex(places[block.0 as usize]);
    for event in &mut other.events {
        *event = match *event {
            TraceEvent::Touch(block, mode) => TraceEvent::Touch(new(block), mode),
            TraceEvent::Allocate(block) => TraceEvent::Allocate(new(block)),
            TraceEvent::Free(block) => TraceEvent::Free(new(block)),
            event => event,
        };
    }
    assert_eq!(check_trace(&other), Ok(()));
    Some((other, places))
}

fn figures(simulation: &Simulation) -> (f64, f64, [u64; 6]) {
    let s = simulation;
    let counts = [
        s.held_bytes_peak,
        s.resident_bytes_peak,
        s.host_bytes_peak,
        s.swapped_out_bytes,
        s.swapped_in_bytes,
        s.clean_swap_outs,
    ];
    (s.step_us, s.stall_us, counts)
}

#[test]
fn other_places_of_blocks_change_places_in_the_result_only() {
    let (tried, alike) = (Cell::new(0_u32), Cell::new(0_u32));
    check(|seed, trace, machine| {
        let Some((other, places)) = relabelled(seed, &trace) else { return Ok(()) };
        let made = plan(&trace, &machine);
        if made.plan.actions.is_empty() || made.infeasible.is_some() {
            return Ok(());
        }
        tried.set(tried.get() + 1);
        let mut moved = made.plan.clone();
        for action in &mut moved.actions {
            action.block = BlockIndex(places[action.block.0 as usize]);
        }
        // The plan does to the other step what it did to this one.
        let simulation = simulate(&other, &moved, &machine);
        prop_assert_eq!(figures(&simulation), figures(&made.simulation));
        // The bound does not depend on places.
        let again = plan(&other, &machine);
        for (again_us, us) in [
            (again.windows_us, made.windows_us),
            (bound_us(&other, &machine), bound_us(&trace, &machine)),
        ] {
            prop_assert!((again_us - us).abs() < 1e-6 * (1.0 + us), "{again_us} {us}");
        }
        prop_assert_eq!(again.infeasible.is_none(), made.infeasible.is_none());
        alike.set(alike.get() + u32::from(figures(&again.simulation) == figures(&simulation)));
        Ok(())
    });
    println!("{} of {} plans are alike", alike.get(), tried.get());
    assert!(tried.get() > CASES / 4 && 10 * alike.get() >= 9 * tried.get());
}

/// Bytes that a plan moves if nothing that leaves is taken back before somebody has its memory.
fn planned_bytes(trace: &Trace, made: &Generated) -> u64 {
    let back = made.plan.actions.iter().filter(|action| action.kind == ActionKind::SwapIn);
    let bytes = back.map(|action| trace.blocks[action.block.0 as usize].size_bytes);
    made.simulation.swapped_out_bytes + bytes.sum::<u64>()
}

/// A plan for little memory works with more, too. It is not always as fast: a copy that had to be
/// put off may then start before a more urgent one. So more memory can cost time, of the same plan
/// and of a new one. So can what the search knows of the bound rise a little, as it is the best of
/// what was looked at: each holds for less memory, too. All that is counted, and held to be rare.
/// The bound itself never rises.
#[test]
fn more_memory_takes_no_plan_away() {
    let [pairs, faster, slower, same_slower, more, risen, high] = [(); 7].map(|()| Cell::new(0));
    check(|seed, trace, machine| {
        let roomier = machine.with_limit(machine.limit_bytes * (101 + seed % 20) / 100);
        let made = plan(&trace, &machine);
        if made.infeasible.is_some() || made.plan.actions.is_empty() {
            return Ok(());
        }
        let same = simulate(&trace, &made.plan, &roomier);
        prop_assert!(same.went_to_plan(), "{same:?}");
        let least_us = made.simulation.step_us * (1.0 + 1e-9);
        same_slower.set(same_slower.get() + u32::from(same.step_us > least_us));
        let other = plan(&trace, &roomier);
        prop_assert!(other.infeasible.is_none());
        let bounds_us = [bound_us(&trace, &machine), bound_us(&trace, &roomier)];
        prop_assert!(bounds_us[1] <= bounds_us[0], "{bounds_us:?}");
        let rise_us = other.windows_us - made.windows_us;
        // Held against a step that no planner makes shorter.
        let on_demand_us = simulate(&trace, &Plan::default(), &machine).step_us;
        prop_assert!(rise_us <= 0.016 * on_demand_us, "{rise_us} {on_demand_us} {other:?}");
        risen.set(risen.get() + u32::from(rise_us > 1e-6));
        high.set(high.get() + u32::from(rise_us > 2e-3 * made.simulation.step_us));
        pairs.set(pairs.get() + 1);
        faster.set(faster.get() + u32::from(other.simulation.step_us < made.simulation.step_us));
        slower.set(slower.get() + u32::from(other.simulation.step_us > least_us));
        let (few, many) = (planned_bytes(&trace, &made), planned_bytes(&trace, &other));
        more.set(more.get() + u32::from(many > few));
        Ok(())
    });
    let seen = [pairs, faster, slower, same_slower, more, risen, high].map(|count| count.get());
    let [pairs, faster, slower, same_slower, more, risen, high] = seen;
    println!(
        "pairs, faster, slower, slower with the same plan, moving more, risen, high: {seen:?}"
    );
    assert!(pairs > CASES / 2 && faster > pairs / 8, "{seen:?}");
    assert!(slower.max(same_slower) <= pairs / 20 && more <= pairs / 500, "{seen:?}");
    assert!(risen <= pairs / 1000 && high <= pairs / 4000, "{seen:?}");
}

/// What can be made again, for every other step.
fn options(seed: u64, trace: &Trace) -> Vec<RecomputeOption> {
    let blocks = replayable_blocks(trace).into_iter().filter(|_| seed % 2 == 1);
    blocks.map(|one| RecomputeOption { block: one.block, replay_us: one.device_us }).collect()
}

/// From as little memory as there can be to as much as the step needs, byte by byte at places.
#[test]
fn the_bound_never_rises_with_memory() {
    let (limits, falls, wide) = (Cell::new(0), Cell::new(0), Cell::new(0));
    check(|seed, trace, machine| {
        // One in ten, at more limits.
        if seed % 10 != 0 {
            return Ok(());
        }
        let options = options(seed / 10, &trace);
        let mut numbers = Numbers::new(seed);
        let mut all = Vec::new();
        for _ in 0..12 {
            let limit_bytes = numbers.below(2 * machine.limit_bytes + 1);
            all.extend([limit_bytes, limit_bytes + 1, limit_bytes + 2 + numbers.below(1 << 20)]);
        }
        all.sort_unstable();
        let mut last_us = f64::INFINITY;
        let mut seen = 0;
        for limit_bytes in all {
            let machine = machine.with_limit(limit_bytes);
            let us = Generator::new(&trace, &machine).bound_us(&options);
            prop_assert!(us <= last_us, "{us} for {limit_bytes}, {last_us} for less");
            seen += u32::from(us < last_us);
            last_us = us;
            limits.set(limits.get() + 1);
        }
        falls.set(falls.get() + seen);
        wide.set(wide.get() + u32::from(last_us == 0.0 && seen > 6));
        Ok(())
    });
    let seen = [limits, falls, wide].map(|count| count.get());
    println!("limits, falls, steps with many: {seen:?}");
    assert!(seen[0] > 10 * CASES / 10 && seen[1] > CASES && seen[2] > CASES / 50, "{seen:?}");
}
