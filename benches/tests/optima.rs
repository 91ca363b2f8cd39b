//! Promise: the planner's bound is never above the best plan of a small step, no plan beats the
//! suite's optima, and its search finds them again.

use adaptive::synthetic::Numbers;
use adaptive::{
    Action, ActionKind, BlockIndex, GenerateConfig, JointConfig, JointPlanner, OpIndex, Phase,
    Trace, assemble,
};
use benches::optima::{Entry, Kind, added_us, machine, optimum, step, suite};

/// Every so many entries of the suite are looked at.
const EVERY: usize = 3;
/// Rounding in the file.
const ROUNDING_US: f64 = 2e-3;
/// Plans that are made from the best one of an entry by changes.
const CHANGED: u64 = 150;

#[test]
fn the_bound_is_below_all_certified_optima_and_not_far() {
    let all = suite();
    assert!(all.len() >= 200, "{} entries", all.len());
    let generate = GenerateConfig { effort: 1, ..GenerateConfig::default() };
    let config = JointConfig { generate, ..JointConfig::default() };
    let mut shares = Vec::new();
    for entry in &all {
        let trace = step(entry.kind, entry.number);
        let machine = machine(entry.limit_bytes);
        let bound_us = JointPlanner::new(machine, config).bound_us(&trace);
        assert!(bound_us <= entry.added_us + ROUNDING_US, "{bound_us} {}", entry.line());
        shares.push(bound_us / entry.added_us);
    }
    shares.sort_by(f64::total_cmp);
    let median = shares[shares.len() / 2];
    assert!(median > 0.7, "half of the bounds are below {median} of the optimum");
}

#[test]
fn the_plan_of_a_certified_optimum_reaches_it_and_ours_is_no_faster() {
    for entry in suite().iter().step_by(EVERY) {
        let trace = step(entry.kind, entry.number);
        let machine = machine(entry.limit_bytes);
        let found_us = added_us(&trace, &machine, &entry.plan).expect("its plan fits");
        assert!((found_us - entry.added_us).abs() <= ROUNDING_US, "{}", entry.line());
        let made = JointPlanner::new(machine, JointConfig::default()).make(&trace);
        let ours_us = added_us(&trace, &machine, &made.plan).unwrap_or(f64::INFINITY);
        assert!(ours_us >= found_us - ROUNDING_US, "{ours_us} {}", entry.line());
    }
}

#[test]
fn no_change_of_a_best_plan_makes_it_faster() {
    let (mut fitting, mut even) = (0, 0);
    for (seed, entry) in (0..).zip(suite()).step_by(EVERY) {
        let trace = step(entry.kind, entry.number);
        let machine = machine(entry.limit_bytes);
        let mut numbers = Numbers::new(seed);
        let mut line = entry.plan.actions.clone();
        for _ in 0..CHANGED {
            let mut actions = line.clone();
            for _ in 0..=numbers.below(3) {
                change(&mut actions, &trace, &mut numbers);
            }
            actions.sort_by_key(|action| (action.op, action.phase));
            let plan = assemble(&trace, actions);
            let Some(us) = added_us(&trace, &machine, &plan) else { continue };
            assert!(us >= entry.added_us - ROUNDING_US, "{us} {:?} {}", plan, entry.line());
            fitting += 1;
            // What is as fast, or nearly, leads to others.
            if us <= entry.added_us * 1.05 + ROUNDING_US {
                even += 1;
                line = plan.actions;
            }
        }
    }
    assert!(fitting > 2_000 && even > 500, "{fitting} plans fit, {even} were as fast");
}

/// Takes a move away, puts it elsewhere, swaps two, or adds a block's way out and back.
fn change(actions: &mut Vec<Action>, trace: &Trace, numbers: &mut Numbers) {
    let ops = trace.ops.len() as u64;
    let op = |number: u64| OpIndex((number % ops) as u32);
    let kind = numbers.below(5);
    if kind < 4 && actions.len() > 1 {
        let place = numbers.below(actions.len() as u64 - 1) as usize;
        match kind {
            0 => drop(actions.remove(place)),
            1 => actions.swap(place, place + 1),
            _ => {
                let action = &mut actions[place];
                action.op = op(u64::from(action.op.0) + ops - 1 + numbers.below(3));
                action.due = op(u64::from(action.op.0) + 1);
            }
        }
        return;
    }
    let block = BlockIndex(numbers.below(trace.blocks.len() as u64) as u32);
    let (left, back) = (numbers.below(ops), 1 + numbers.below(ops - 1));
    let phase = if numbers.chance(50) { Phase::Begin } else { Phase::End };
    let [out, home] = match numbers.chance(60) {
        true => [ActionKind::SwapOut, ActionKind::SwapIn],
        false => [ActionKind::Discard, ActionKind::Replay],
    };
    let (at, until) = (op(left), op(left + back));
    actions.push(Action { op: at, phase, kind: out, block, due: op(left + 1) });
    actions.push(Action { op: until, phase: Phase::Begin, kind: home, block, due: until });
}

#[test]
fn the_search_finds_the_optima_again() {
    for kind in Kind::ALL {
        let entry: Entry = suite().into_iter().find(|entry| entry.kind == kind).expect("one each");
        let trace = step(kind, entry.number);
        let best = optimum(&trace, &machine(entry.limit_bytes)).expect("it was found before");
        assert!((best.added_us - entry.added_us).abs() <= ROUNDING_US, "{}", entry.line());
        assert!(best.looked_at > 0);
    }
}
