//! Every driver call of a scripted run fails, once and for good, each in turn.
//!
//! The script opens an engine, fills blocks, runs a recorded step under rescue, steps under a plan
//! with swaps and replays, a trim, all suspended and resumed, and shuts down; it does so again with
//! layouts, the later of which is nonsense. A failure must be a typed error or a fallback: the run
//! goes on, no byte is lost, and in the end nothing is left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config as Runs, TestRng, TestRunner};
use swap_core::devices::{
    CheckConfig, CheckDriver, FALLIBLE_CALLS, FaultDriver, FaultPlan, HostConfig, Lasting,
};
use swap_core::{ErrorKind, StepCounters};

use super::lots::{nonsense, shared};
use super::script::{Command, Random, Script, random_plan, script};
use super::world::{GRANULARITY, Setup, Tally, World, host};

const LIMIT: u64 = 96 << 10;

fn setup(seed: u64) -> Setup {
    Setup {
        host: HostConfig::lockstep(2 * LIMIT, seed),
        granularity_bytes: GRANULARITY,
        limit_bytes: LIMIT,
        arena_bytes: 1 << 30,
        probe: false,
        faults: true,
    }
}

/// The run, under a fault and perhaps a second one, which counts the calls that the first lets
/// through. With a fault for good, the driver is mended after the second step.
fn run(
    script: &Script,
    seed: u64,
    lays_out: bool,
    fault: Option<FaultPlan>,
    second: Option<FaultPlan>,
) -> Result<(Tally, Arc<FaultDriver>), String> {
    let setup = setup(seed);
    let mut random = Random(!seed);
    let host = host(setup.host.clone());
    let check = Arc::new(CheckDriver::new(host.clone(), CheckConfig::ORDER));
    let behind = Arc::new(FaultDriver::new(check.clone()));
    if let Some(plan) = second {
        behind.arm(plan);
    }
    let driver = Arc::new(FaultDriver::new(behind.clone()));
    if let Some(plan) = fault {
        driver.arm(plan);
    }
    let mut world = match World::behind(host.clone(), check, driver.clone(), setup) {
        Ok(world) => world,
        Err(error) if !host.ledger().is_empty() => {
            // What a driver does not take back while it fails for good is lost to it.
            let lasting = fault.map(|plan| plan.lasting);
            return match lasting {
                Some(Lasting::ForGood) => Ok((Tally::default(), driver)),
                _ => Err(format!("{error}, and left {:?}", host.ledger())),
            };
        }
        Err(_) => return Ok((Tally::default(), driver)),
    };
    world.open_anyway(script)?;
    world.step(&script.step)?;
    let trace = world.trace.clone();
    let plan = trace.as_ref().map(|trace| random_plan(trace, &mut Random(seed), false));
    let orders = plan.as_ref().map(|plan| (plan, trace.as_ref()));
    if let Some(trace) = trace.as_ref().filter(|_| lays_out) {
        world.lots = shared(trace, &mut random);
    }
    let ordered = world.set_orders(false, orders);
    if fault.is_none() {
        ordered.map_err(|stop| format!("{stop:?}"))?;
    }
    world.step(&script.step)?;
    if fault.is_none_or(|plan| plan.lasting == Lasting::ForGood) {
        world.expect_no_faults();
    }
    if let Some(trace) = trace.as_ref().filter(|_| lays_out) {
        world.lots = nonsense(trace, &mut random, GRANULARITY);
        let ordered = world.set_orders(false, orders);
        // A step whose end failed goes on.
        if fault.is_none() {
            ordered.map_err(|stop| format!("{stop:?}"))?;
        }
    }
    let mut again = script.step.clone();
    again.extend([Command::Trim, Command::Suspend(true)]);
    world.step(&again)?;
    world.step(&script.step)?;
    if second.is_some() {
        // What a driver refuses twice at the end is lost to it.
        driver.disarm();
        behind.disarm();
    }
    world.read_all()?;
    Ok((world.close()?, driver))
}

/// The kinds of driver calls that an engine makes.
const CALL_KINDS: usize = 22;

/// Two scripts that between them do everything.
fn scripts() -> Vec<(Script, u64)> {
    let rng = TestRng::deterministic_rng(Runs::default().rng_algorithm);
    let mut runner = TestRunner::new_with_rng(Runs::default(), rng);
    let mut chosen = Vec::new();
    let mut seen = StepCounters::default();
    let mut calls: BTreeSet<&str> = BTreeSet::new();
    for seed in 0..400 {
        let script = script(14).new_tree(&mut runner).expect("a script").current();
        let Ok((tally, driver)) = run(&script, seed, false, None, None) else { continue };
        let c = tally.counters;
        let new = [
            (seen.recomputed_ops, c.recomputed_ops),
            (seen.rescues, c.rescues),
            (seen.swapped_in_bytes, c.swapped_in_bytes),
            (seen.clean_swap_outs, c.clean_swap_outs),
            (seen.host_waits, c.host_waits),
        ];
        let all =
            c.recomputed_ops > 0 && c.rescues > 0 && c.clean_swap_outs > 0 && c.host_waits > 0;
        let with_these: BTreeSet<&str> =
            calls.iter().copied().chain(driver.calls_by_name().into_keys()).collect();
        let last = chosen.len() == 1;
        let more = new.iter().any(|&(before, now)| now > before);
        if all && if last { with_these.len() == CALL_KINDS } else { more } {
            seen = c;
            calls = with_these;
            chosen.push((script, seed));
        }
        if chosen.len() == 2 {
            break;
        }
    }
    assert!(chosen.len() == 2, "no script does everything");
    chosen
}

#[test]
fn any_driver_call_may_fail() {
    let mut made: BTreeMap<&str, u64> = BTreeMap::new();
    let mut hits: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut runs, mut stopped) = (0, 0);
    let scripts = scripts();
    for ((script, seed), lays_out) in scripts.iter().flat_map(|it| [(it, false), (it, true)]) {
        let run = |fault| run(script, *seed, lays_out, fault, None);
        let (_, driver) = run(None).expect("without faults all is well");
        let calls = driver.calls();
        for (name, count) in driver.calls_by_name() {
            *made.entry(name).or_default() += count;
        }
        for call in 1..=calls {
            for lasting in [Lasting::Once, Lasting::ForGood] {
                let kinds = [ErrorKind::OutOfMemory, ErrorKind::Failed];
                // With layouts only every other call of each kind, for time.
                let some = kinds.iter().zip(0..).filter(|it| !lays_out || (call + it.1) % 2 == 0);
                for (&kind, _) in some {
                    let fault = FaultPlan { call, lasting, kind, only: None };
                    let (_, driver) = run(Some(fault))
                        .unwrap_or_else(|what| panic!("{fault:?} of {calls}: {what}"));
                    runs += 1;
                    stopped += u64::from(driver.injected() > 0);
                    for (name, count) in driver.hits() {
                        *hits.entry(name).or_default() += count;
                    }
                }
            }
        }
    }
    println!("{runs} runs, {stopped} with faults; calls {made:?}; injected {hits:?}");
    for name in FALLIBLE_CALLS.iter().filter(|name| made.contains_key(**name)) {
        assert!(hits.contains_key(name), "{name} never failed");
    }
    assert_eq!(made.len(), CALL_KINDS, "the script makes other calls than it did: {made:?}");
}

#[test]
fn any_two_driver_calls_may_fail() {
    let (mut runs, mut both) = (0, 0);
    let mut random = Random(7);
    for (script, seed) in scripts() {
        let (_, driver) = run(&script, seed, true, None, None).expect("without faults all is well");
        let calls = driver.calls();
        for _ in 0..1000 {
            let kinds = match random.below(2) {
                0 => [ErrorKind::OutOfMemory, ErrorKind::Failed],
                _ => [ErrorKind::Failed, ErrorKind::OutOfMemory],
            };
            // Most often the second stands in the way of mending the first.
            let first = random.below(calls) + 1;
            let reach = if random.chance(70) { 12 } else { calls };
            let second = first + random.below(reach);
            let faults = [FaultPlan::once(first, kinds[0]), FaultPlan::once(second, kinds[1])];
            let (_, driver) = run(&script, seed, true, Some(faults[0]), Some(faults[1]))
                .unwrap_or_else(|what| panic!("{faults:?} of {calls}: {what}"));
            runs += 1;
            both += u64::from(driver.injected() > 0 && driver.calls() > second);
        }
    }
    println!("{runs} runs, {both} with both faults");
    assert!(both > runs / 2);
}
