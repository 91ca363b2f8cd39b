//! Random work under random plans and layouts, legal and illegal: whatever they say, no op sees a
//! wrong byte, the cap holds, everything is ordered, and memory runs out only where it must.
//!
//! Workload: training steps of a few dozen ops on two streams with nested ops, in-place updates,
//! short-lived blocks, recipes, exceptions and step ends at odd places. Most blocks have the same
//! small size and half of the host arenas are short, so that memory changes hands all the time and
//! a run takes milliseconds; nothing in the engine knows sizes. Smaller steps are found not to
//! pay: what goes wrong takes several blocks under way at once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestCaseError, TestRng, TestRunner};
use swap_core::Engine;
use swap_core::devices::{CheckConfig, CheckDriver, FaultDriver, HostConfig, RecordDriver};

use super::lots::random_lots;
use super::script::{Random, Script, branch, random_plan, script};
use super::world::{GRANULARITY, Setup, Tally, World, host};

const GENEROUS: u64 = 1 << 30;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Device {
    Seeded(u64),
    ByTime,
    Threads,
    MappedAhead,
}

impl Device {
    fn config(self, capacity_bytes: u64) -> HostConfig {
        match self {
            Device::Seeded(seed) => HostConfig::lockstep(capacity_bytes, seed),
            Device::ByTime => HostConfig::by_time(capacity_bytes),
            Device::Threads => HostConfig::threads(capacity_bytes),
            // Another thread of the engine maps.
            Device::MappedAhead => {
                HostConfig { map_waits_for_copies: true, ..HostConfig::threads(capacity_bytes) }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) script: Script,
    device: Device,
    /// How much of what lies between the largest working set and everything is under the cap.
    room_percent: u64,
    /// The host arena in regions of 16 units; `None`: enough for all.
    arena_regions: Option<u64>,
    pub(super) plan_seed: u64,
    pub(super) illegal: bool,
    /// Rescues know next uses.
    with_trace: bool,
    probe: bool,
    /// Blocks also have random lots.
    pub(super) lays_out: bool,
    /// Every other step under a plan differs from the recorded one.
    branches: bool,
}

impl Case {
    /// Its device with a cap, on which it has a good chance to need plans.
    pub(super) fn setup(&self, granularity_bytes: u64) -> Result<Setup, String> {
        let limit_bytes = cap(self, granularity_bytes)?;
        let region_bytes = 16 * granularity_bytes;
        let arena_bytes = self.arena_regions.map_or(GENEROUS, |regions| regions * region_bytes);
        let host = self.device.config(2 * limit_bytes);
        let probe = self.probe;
        Ok(Setup { host, granularity_bytes, limit_bytes, arena_bytes, probe, faults: false })
    }

    /// Makes the blocks that outlive steps. False if the host arena is too small to move anything:
    /// legitimate, and the run is over.
    pub(super) fn open(&self, world: &mut World) -> Result<bool, String> {
        match world.open(&self.script) {
            Ok(()) => Ok(true),
            Err(_) if self.arena_regions.is_some() => Ok(false),
            Err(stop) => Err(format!("{stop:?}")),
        }
    }
}

fn device() -> impl Strategy<Value = Device> {
    prop_oneof![
        12 => any::<u64>().prop_map(Device::Seeded),
        2 => Just(Device::ByTime),
        1 => Just(Device::Threads),
        1 => Just(Device::MappedAhead),
    ]
}

pub(super) fn case() -> impl Strategy<Value = Case> {
    let room = prop_oneof![2 => Just(0u64), 3 => 0u64..30, 2 => 30u64..110];
    let arena = prop_oneof![1 => Just(None), 1 => (0u64..4).prop_map(Some)];
    let options = (any::<u64>(), prop::bool::weighted(0.3), any::<bool>(), any::<bool>());
    (script(24), device(), room, arena, options).prop_map(
        |(script, device, room_percent, arena_regions, options)| Case {
            script,
            device,
            room_percent,
            arena_regions,
            plan_seed: options.0,
            illegal: options.1,
            with_trace: options.2,
            probe: options.3,
            lays_out: false,
            branches: false,
        },
    )
}

/// The cap between the largest working set and all that ever lives, found by a run without one.
fn cap(case: &Case, granularity_bytes: u64) -> Result<u64, String> {
    let setup = Setup {
        host: HostConfig::by_time(2 * GENEROUS),
        granularity_bytes,
        limit_bytes: GENEROUS,
        arena_bytes: GENEROUS,
        probe: false,
        faults: false,
    };
    let mut world = World::new(setup);
    world.open(&case.script).map_err(|stop| format!("{stop:?}"))?;
    world.step(&case.script.step)?;
    let least = world.working_bytes_peak + world.segment_bytes_peak;
    let most = world.live_bytes_peak + world.segment_bytes_peak;
    world.close()?;
    let room = most.saturating_sub(least) * case.room_percent / 100;
    let room = room / granularity_bytes * granularity_bytes;
    Ok((least + room).max(64 << 10))
}

fn run(case: &Case) -> Result<Tally, String> {
    run_with(case, |_| ())
}

/// As above; `prepare` gets the engine before anything happens.
pub(super) fn run_with(case: &Case, prepare: impl FnOnce(&Engine)) -> Result<Tally, String> {
    run_on(case, GRANULARITY, |setup| {
        let world = World::new(setup);
        prepare(&world.engine);
        world
    })
}

/// As above, in the world that `open` makes.
pub(super) fn run_on(
    case: &Case,
    granularity_bytes: u64,
    open: impl FnOnce(Setup) -> World,
) -> Result<Tally, String> {
    let mut world = open(case.setup(granularity_bytes)?);
    if case.plan_seed.is_multiple_of(2) {
        world.engine.hold_by_need().map_err(|error| error.to_string())?;
    }
    let mut random = Random(case.plan_seed);
    let mut lots_random = Random(!case.plan_seed);
    if !case.open(&mut world)? {
        return world.close();
    }
    let steps = &case.script.step;
    world.step(steps)?;
    for round in 0..2 {
        let trace = world.trace.clone();
        let plan = trace.as_ref().map(|trace| random_plan(trace, &mut random, case.illegal));
        let orders = plan.as_ref().map(|plan| (plan, trace.as_ref().filter(|_| case.with_trace)));
        for part in 0..2 {
            // Another layout, or none, while blocks are away.
            let changes = case.lays_out && (part == 0 || lots_random.chance(40));
            if let Some(trace) = trace.as_ref().filter(|_| changes) {
                world.lots = random_lots(trace, &mut lots_random, granularity_bytes);
            }
            if part == 0 || changes {
                world.set_orders(round == 1, orders).map_err(|stop| format!("{stop:?}"))?;
            }
            world.step(steps)?;
            if case.branches {
                world.step(&branch(steps, &mut random))?;
                world.step(&branch(steps, &mut random))?;
                world.step(steps)?;
            }
        }
    }
    world.read_all()?;
    world.close()
}

/// As [`run`], with steps that branch off from the recorded one, which plans know.
pub(super) fn run_branching(case: &Case) -> Result<Tally, String> {
    run(&Case { lays_out: true, branches: true, with_trace: true, ..case.clone() })
}

fn assert_busy(tally: &Tally) {
    println!("{tally:#?}");
    let counters = &tally.counters;
    for (what, count) in [
        ("bytes out", counters.swapped_out_bytes),
        ("bytes in", counters.swapped_in_bytes),
        ("clean swap outs", counters.clean_swap_outs),
        ("recomputed ops", counters.recomputed_ops),
        ("misses", counters.misses),
        ("rescues", counters.rescues),
        ("host waits", counters.host_waits),
        ("drifts", tally.drifted),
        ("out of memory", tally.out_of_memory),
        ("full arenas", tally.host_full),
        ("retakes", tally.retakes),
        ("swap-ins put off", tally.put_off),
        ("abandoned ops", tally.abandoned),
        ("times that all was suspended", tally.suspended),
        ("copies that were measured", tally.measured_copies),
        ("ops that were measured", tally.measured_ops),
        ("ops on the side stream", tally.side_ops),
        ("nested ops", tally.nested_ops),
        ("waits of the owner", tally.ordered),
        ("words checked", tally.words_checked),
    ] {
        assert!(count > 0, "{what} never happened");
    }
    for state in ["resident", "leaving", "away", "arriving", "discarded"] {
        assert!(tally.touches.contains_key(state), "no touch of a block that was {state}");
        assert!(tally.frees.contains_key(state), "no free of a block that was {state}");
    }
}

/// Runs random cases, the same each time, and adds up what they did.
pub(super) fn run_all(cases: u32, run: impl Fn(&Case) -> Result<Tally, String>) -> Tally {
    let config =
        Runs { cases, failure_persistence: None, max_shrink_iters: 3000, ..Runs::default() };
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let total = RefCell::new(Tally::default());
    let result = runner.run(&case(), |case| match run(&case) {
        Ok(tally) => {
            total.borrow_mut().add(&tally);
            Ok(())
        }
        Err(what) => Err(TestCaseError::fail(what)),
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    total.into_inner()
}

#[test]
fn no_plan_breaks_a_promise() {
    let cases = std::env::var("ENGINE_CASES").ok().and_then(|text| text.parse().ok());
    assert_busy(&run_all(cases.unwrap_or(3000), run));
}

/// What the driver's log says about tiles. No block is as small as the tiles that are counted.
#[derive(Default)]
struct Tiles {
    made: Cell<usize>,
    /// Given back before the last work.
    reclaimed: Cell<usize>,
}

impl Tiles {
    fn count(&self, record: &RecordDriver) {
        let calls = record.calls();
        let last = calls.iter().rposition(|call| call.name == "launch_host").unwrap_or(0);
        let mut tiles = BTreeSet::new();
        for call in &calls[..last] {
            match &call.outcome {
                Ok(handle)
                    if call.name == "create_chunk"
                        && call.arguments == format!("{GRANULARITY} bytes") =>
                {
                    tiles.insert(handle.clone());
                    self.made.set(self.made.get() + 1);
                }
                Ok(_) if call.name == "release_chunk" && tiles.remove(&call.arguments) => {
                    self.reclaimed.set(self.reclaimed.get() + 1);
                }
                _ => {}
            }
        }
    }
}

fn run_laid_out(case: &Case, tiles: &Tiles) -> Result<Tally, String> {
    let case = Case { lays_out: true, ..case.clone() };
    let record = RefCell::new(None);
    let tally = run_on(&case, GRANULARITY, |setup| {
        let host = host(setup.host.clone());
        let log = Arc::new(RecordDriver::new(host.clone()));
        *record.borrow_mut() = Some(log.clone());
        let check = Arc::new(CheckDriver::new(log, CheckConfig::ORDER));
        let fault = Arc::new(FaultDriver::new(check.clone()));
        World::behind(host, check, fault, setup).expect("an engine opens")
    })?;
    tiles.count(&record.into_inner().expect("the run opened a world"));
    Ok(tally)
}

#[test]
fn no_layout_breaks_a_promise() {
    let cases = std::env::var("ENGINE_CASES").ok().and_then(|text| text.parse().ok());
    let tiles = Tiles::default();
    assert_busy(&run_all(cases.unwrap_or(2000), |case| run_laid_out(case, &tiles)));
    let Tiles { made, reclaimed } = tiles;
    println!("{} tiles, {} reclaimed", made.get(), reclaimed.get());
    assert!(made.get() > 500 && reclaimed.get() > 100);
}
