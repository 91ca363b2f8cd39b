//! Tests of the loop: every stage meets every event, and runs under random disturbances.

use std::sync::Arc;

use proptest::prelude::*;
use swap_core::{
    MEMORY_CALLS_IGNORED, MemoryCalls, OpIndex, Plan, Signature, StepCounters, StepReport, Trace,
};

use super::*;
use crate::check::TraceFault;
use crate::search::Proposal;

mod branches;
mod course;
mod failing;
mod families;
mod news;
mod ranks;
mod settings;

/// Offers plans `1, 2, 3, ...`, told apart by their op count, up to a last one.
#[derive(Debug)]
struct Counting {
    made: u32,
    last: u32,
    margins: Vec<u64>,
}

impl Planner for Counting {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.margins.push(feedback.margin_bytes);
        if self.made == self.last {
            return Ok(None);
        }
        self.made += 1;
        let plan = Plan { signature: trace.signature, op_count: self.made, ..Plan::default() };
        Ok(Some(Proposal { plan, ..Proposal::default() }))
    }
}

const A: Signature = Signature(0xa);
const B: Signature = Signature(0xb);
const LIMIT_BYTES: u64 = 1 << 20;

fn config() -> LoopConfig {
    LoopConfig { limit_bytes: LIMIT_BYTES, ..LoopConfig::default() }
}

fn looping(plans: u32) -> Loop<Counting> {
    Loop::new(config(), Counting { made: 0, last: plans, margins: Vec::new() })
}

/// A clean step of 100 us.
fn step(signature: Signature) -> StepReport {
    StepReport {
        step: 0,
        signature,
        family: Signature::default(),
        probes: Vec::new(),
        op_count: 0,
        counters: StepCounters::default(),
        device_us: 100.0,
        held_bytes_peak: LIMIT_BYTES,
        resident_bytes_peak: LIMIT_BYTES,
        drifted_at: None,
        strayed_ops: 0,
        moves: Vec::new(),
        trace: Some(Trace { signature, ..Trace::default() }),
        lanes: None,
    }
}

fn rescued(signature: Signature) -> StepReport {
    let counters = StepCounters { rescues: 1, ..StepCounters::default() };
    StepReport { counters, ..step(signature) }
}

fn mapping(signature: Signature, mapped: u64) -> StepReport {
    let memory_calls = MemoryCalls { mapped, ..MemoryCalls::default() };
    let counters = StepCounters { memory_calls, ..StepCounters::default() };
    StepReport { counters, ..step(signature) }
}

fn missed(signature: Signature) -> StepReport {
    let counters = StepCounters { misses: 1, ..StepCounters::default() };
    StepReport { counters, ..step(signature) }
}

fn taking(signature: Signature, device_us: f64) -> StepReport {
    // Half of it is waiting, so that there is something to gain.
    let counters = StepCounters { stall_us: device_us / 2.0, ..StepCounters::default() };
    StepReport { device_us, counters, ..step(signature) }
}

fn drifted(signature: Signature) -> StepReport {
    StepReport { drifted_at: Some(OpIndex(1)), ..step(signature) }
}

fn plan_number(directive: &Directive) -> u32 {
    directive.plan.as_ref().map_or(0, |plan| plan.op_count)
}

/// A loop that has met the steps.
fn after(plans: u32, steps: &[StepReport]) -> Loop<Counting> {
    let mut under_test = looping(plans);
    for report in steps {
        under_test.observe(report);
    }
    under_test
}

#[test]
fn every_stage_meets_every_event() {
    use Stage::{SearchPolicy, Stable, WarmUp};
    // One counted step short of leaving WarmUp.
    let warm = || after(9, &[rescued(A)]);
    // Plan 1 has run its transition step and will be judged next.
    let searching = || after(9, &[rescued(A), rescued(A), step(A)]);
    // Plan 1 was judged clean and has run one settled Stable step.
    let stable = || after(9, &[rescued(A), rescued(A), step(A), step(A), step(A)]);
    assert_eq!(warm().stage(), WarmUp);
    assert_eq!((searching().stage(), plan_number(&searching().directive())), (SearchPolicy, 1));
    assert_eq!((stable().stage(), plan_number(&stable().directive())), (Stable, 1));

    let check = |mut under_test: Loop<Counting>, event: StepReport, expect: (Stage, u32)| {
        let before = under_test.stage();
        let directive = under_test.observe(&event);
        let found = (directive.stage, plan_number(&directive));
        assert_eq!(found, expect, "{before:?} met {event:?}");
        assert_eq!(directive.record, directive.stage != Stable);
    };
    // The same step again, clean. (In WarmUp an earlier one was rescued: no fit.)
    check(warm(), step(A), (SearchPolicy, 1));
    check(searching(), step(A), (Stable, 1));
    check(stable(), step(A), (Stable, 1));
    // A step with a rescue, with a miss.
    for event in [rescued(A), missed(A)] {
        check(warm(), event.clone(), (SearchPolicy, 1));
        check(searching(), event.clone(), (SearchPolicy, 2));
        check(stable(), event, (SearchPolicy, 1));
    }
    // A slow step, for the first time.
    check(warm(), taking(A, 200.0), (SearchPolicy, 1));
    check(searching(), taking(A, 200.0), (SearchPolicy, 2));
    check(stable(), taking(A, 200.0), (Stable, 1));
    // A step that left the plan.
    check(warm(), drifted(A), (WarmUp, 0));
    check(searching(), drifted(A), (SearchPolicy, 2));
    check(stable(), drifted(A), (WarmUp, 0));
    // A step of a kind that was never seen.
    check(warm(), step(B), (WarmUp, 0));
    check(searching(), step(B), (WarmUp, 0));
    check(stable(), step(B), (WarmUp, 0));
    // A step that was not recorded.
    let unrecorded = || StepReport { trace: None, ..step(A) };
    check(warm(), unrecorded(), (WarmUp, 0));
    check(searching(), unrecorded(), (Stable, 1));
    check(stable(), unrecorded(), (Stable, 1));
}

#[test]
fn one_other_step_behind_a_long_row_changes_nothing_and_two_do() {
    let settled = || after(9, &[&[rescued(A), rescued(A)][..], &vec![step(A); 8]].concat());
    let before = settled().directive();
    assert_eq!((before.stage, plan_number(&before)), (Stage::Stable, 1));
    // The last step of an epoch, each time of another size.
    let mut under_test = settled();
    for epoch in 0..5 {
        let last = rescued(Signature(0x100 + epoch));
        assert_eq!(under_test.observe(&last), before, "epoch {epoch}");
        assert_eq!(under_test.observe(&step(A)), before);
    }
    // Steps of another kind from here on.
    assert_eq!(under_test.observe(&rescued(B)), before);
    assert_eq!(under_test.observe(&rescued(B)).stage, Stage::WarmUp);
    let stages = [rescued(B), rescued(B), step(B), step(B)].map(|b| under_test.observe(&b).stage);
    assert!(stages.contains(&Stage::SearchPolicy), "{stages:?}");
    assert_eq!(under_test.stage(), Stage::Stable);
}

#[test]
fn a_model_that_fits_is_left_alone() {
    let under_test = after(9, &[step(A), step(A)]);
    let expect = Directive { stage: Stage::Stable, record: false, plan: None, sizes: None };
    assert_eq!(under_test.directive(), expect);
    assert_eq!(under_test.planner().made, 0, "nobody asked for a plan");
    // Until it no longer fits.
    let mut under_test = after(9, &[step(A), step(A), step(A), rescued(A)]);
    assert_eq!(under_test.stage(), Stage::SearchPolicy);
    assert_eq!([0; 2].map(|_| plan_number(&under_test.observe(&rescued(A)))), [0, 1]);
}

#[test]
fn a_model_that_fits_and_maps_in_each_step_is_laid_out() {
    let few = mapping(A, MEMORY_CALLS_IGNORED);
    assert_eq!(after(9, &[few.clone(), few]).stage(), Stage::Stable);
    let many = mapping(A, MEMORY_CALLS_IGNORED + 1);
    let under_test = after(9, &[many.clone(), many.clone()]);
    assert_eq!(under_test.stage(), Stage::SearchPolicy);
    assert_eq!(plan_number(&under_test.directive()), 1);
    // A planner that has none leaves it as it is.
    assert_eq!(after(0, &[many.clone(), many.clone()]).stage(), Stage::Stable);
    // Where nothing is laid out there is nothing to look for.
    let mut plain = looping(9);
    plain.config.lays_out = false;
    let stages = [many.clone(), many].map(|report| plain.observe(&report).stage);
    assert_eq!(stages, [Stage::WarmUp, Stage::Stable]);
}

#[test]
fn warm_up_counts_only_steps_in_a_row() {
    let mut under_test = looping(9);
    assert!(under_test.directive().record);
    for signature in [A, B, A, B] {
        assert_eq!(under_test.observe(&rescued(signature)).stage, Stage::WarmUp);
    }
    assert_eq!(under_test.observe(&rescued(B)).stage, Stage::SearchPolicy);
}

#[test]
fn without_a_plan_on_offer_it_runs_on_demand() {
    let under_test = after(0, &[rescued(A), rescued(A)]);
    let expect = Directive { stage: Stage::Stable, record: false, plan: None, sizes: None };
    assert_eq!(under_test.directive(), expect);
    assert_eq!(under_test.planner().margins, [0]);
}

#[test]
fn the_best_measured_try_wins() {
    // Each plan's transition step is terrible and must not count.
    let mut under_test = after(9, &[rescued(A), rescued(A)]);
    for judged in [taking(A, 300.0), taking(A, 200.0), rescued(A)] {
        assert!(under_test.directive().record);
        let directive = under_test.observe(&taking(A, 5000.0));
        assert!(!directive.record, "recording takes time, so the step that counts is not");
        under_test.observe(&judged);
    }
    // The best was not the last: the step that moves in to it is not Stable yet.
    assert_eq!(
        (under_test.stage(), plan_number(&under_test.directive())),
        (Stage::SearchPolicy, 2)
    );
    under_test.observe(&missed(A));
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 2));
    let (best, plan) = under_test.best(A).expect("it was searched");
    assert_eq!((best.step_us, plan.map(|plan| plan.op_count)), (200.0, Some(2)));
    let feedback = under_test.feedback(A).expect("it was searched");
    assert_eq!((feedback.tries, feedback.margin_bytes), (3, LIMIT_BYTES / 32));
}

#[test]
fn running_on_demand_beats_plans_that_are_worse() {
    let mut under_test = after(9, &[rescued(A), rescued(A)]);
    for _ in 0..3 {
        under_test.observe(&rescued(A));
        let worse = StepReport { device_us: 400.0, ..rescued(A) };
        under_test.observe(&worse);
    }
    let directive = under_test.observe(&rescued(A));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 0));
}

#[test]
fn slow_steps_start_a_search_when_there_are_two_in_a_row() {
    let stable = [rescued(A), rescued(A), step(A), step(A), step(A)];
    let mut under_test = after(9, &stable);
    for event in [taking(A, 200.0), step(A), taking(A, 200.0)] {
        assert_eq!(under_test.observe(&event).stage, Stage::Stable);
    }
    assert_eq!(under_test.observe(&taking(A, 200.0)).stage, Stage::SearchPolicy);
    // Recorded, then measured once more: it was a passing cloud.
    assert!(under_test.directive().record);
    assert!(!under_test.observe(&taking(A, 200.0)).record);
    let directive = under_test.observe(&step(A));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 1));
    // This time it stays slow, so the next plan gets its chance, and wins.
    for _ in 0..3 {
        under_test.observe(&taking(A, 200.0));
    }
    assert_eq!(plan_number(&under_test.observe(&taking(A, 200.0))), 2);
    under_test.observe(&step(A));
    let directive = under_test.observe(&taking(A, 90.0));
    assert_eq!(plan_number(&directive), 3, "it still stalls");
    under_test.observe(&step(A));
    let directive = under_test.observe(&taking(A, 95.0));
    assert_eq!(plan_number(&directive), 4);
    under_test.observe(&step(A));
    let directive = under_test.observe(&taking(A, 99.0));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::SearchPolicy, 2));
    let directive = under_test.observe(&taking(A, 200.0));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 2), "it has moved in");
}

#[test]
fn transition_steps_are_not_held_against_a_stable_plan() {
    let warm_b = [rescued(B), rescued(B), step(B), step(B)];
    let stable_a = [rescued(A), rescued(A), step(A), step(A)];
    let mut under_test = after(9, &[&stable_a[..], &warm_b[..]].concat());
    assert_eq!(under_test.stage(), Stage::Stable);
    // A comes as a surprise, then runs first after a foreign step: neither is judged.
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::Stable);
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::Stable);
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::SearchPolicy);
}

#[test]
fn alternating_shapes_find_their_plans_and_get_them_at_once() {
    let mut under_test = looping(99);
    let mut stable_since = None;
    for index in 0..60 {
        let signature = if index % 2 == 0 { A } else { B };
        let directive = under_test.directive();
        let planned = directive.plan.as_ref().map(|plan| plan.signature);
        match (directive.stage, stable_since) {
            (Stage::Stable, None) => stable_since = Some(index),
            (Stage::Stable, Some(_)) => assert_eq!(planned, Some(signature), "step {index}"),
            _ => stable_since = None,
        }
        let report = if planned == Some(signature) { step(signature) } else { rescued(signature) };
        under_test.observe(&report);
    }
    assert!(stable_since.is_some_and(|since| since < 30), "{stable_since:?}");
}

#[test]
fn a_plan_from_a_file_is_tried_first() {
    let plan = Arc::new(Plan { signature: A, op_count: 77, ..Plan::default() });
    let mut under_test = looping(9);
    under_test.adopt(Arc::clone(&plan));
    assert_eq!(under_test.stage(), Stage::SearchPolicy);
    assert_eq!(plan_number(&under_test.directive()), 77);
    under_test.observe(&rescued(A));
    let directive = under_test.observe(&step(A));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 77));
    // It comes too late for a kind of step that is known.
    under_test.adopt(Arc::new(Plan { op_count: 78, ..(*plan).clone() }));
    let directive = under_test.observe(&step(A));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::Stable, 77));
    // One that does not suit the step loses against what the search finds.
    let mut under_test = looping(9);
    under_test.adopt(plan);
    assert_eq!(plan_number(&under_test.observe(&drifted(A))), 1);
    under_test.observe(&step(A));
    assert_eq!(plan_number(&under_test.observe(&step(A))), 1);
}

#[test]
fn only_so_many_kinds_of_steps_are_remembered() {
    let mut under_test = looping(0);
    for kind in 0..1000 {
        under_test.observe(&rescued(Signature(kind)));
    }
    assert_eq!(under_test.tracks.len(), config().cached_signatures);
    assert!(under_test.tracks.contains_key(&Signature(999)));
    assert!(!under_test.tracks.contains_key(&Signature(1)));
}

#[test]
fn searches_that_never_help_come_to_an_end() {
    let bad: [fn(Signature) -> StepReport; 4] =
        [rescued, missed, drifted, |signature| taking(signature, 1e3)];
    for event in bad {
        let mut under_test = after(u32::MAX, &[rescued(A), rescued(A), step(A), step(A)]);
        let stages: Vec<Stage> = (0..2000).map(|_| under_test.observe(&event(A)).stage).collect();
        let searching = stages.iter().filter(|&&stage| stage != Stage::Stable).count();
        assert!(searching > 0, "it never searched");
        // Drifted steps cannot be recorded, so WarmUp waits for a whole one.
        if event(A).drifted_at.is_none() {
            assert!(searching <= 30, "{searching}");
            assert_eq!(stages.last(), Some(&Stage::Stable));
        }
    }
}

/// What a random step meets.
#[derive(Clone, Copy, Debug)]
enum Weather {
    Fair,
    Rescue,
    Miss,
    Slow,
    Drift,
    Other(u64),
}

fn weather() -> impl Strategy<Value = Weather> {
    prop_oneof![
        4 => Just(Weather::Fair),
        1 => Just(Weather::Rescue),
        1 => Just(Weather::Miss),
        1 => Just(Weather::Slow),
        1 => Just(Weather::Drift),
        1 => (0..3_u64).prop_map(Weather::Other),
    ]
}

/// The step that follows from what ran and what it met. Without a plan a step needs rescues;
/// every plan has its own speed.
fn outcome(directive: &Directive, weather: Weather) -> StepReport {
    let signature = match weather {
        Weather::Other(kind) => Signature(0x100 + kind),
        _ => A,
    };
    let planned = directive.plan.as_ref().filter(|plan| plan.signature == signature);
    let mut report = match planned {
        Some(plan) => taking(signature, 100.0 + f64::from(plan.op_count * 37 % 11)),
        None => rescued(signature),
    };
    match weather {
        Weather::Rescue => report.counters.rescues += 1,
        Weather::Miss => report.counters.misses += 1,
        Weather::Slow => report.device_us *= 2.0,
        Weather::Drift => report.drifted_at = Some(OpIndex(0)),
        Weather::Fair | Weather::Other(_) => {}
    }
    if directive.plan.is_some() && planned.is_none() {
        report.drifted_at = Some(OpIndex(0));
    }
    report.trace = report.trace.filter(|_| directive.record);
    report
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn it_is_stable_again_soon_after_the_last_disturbance(
        storm in prop::collection::vec(weather(), 0..80),
        plans in 0..40_u32,
    ) {
        let mut under_test = looping(plans);
        for &weather in &storm {
            under_test.observe(&outcome(&under_test.directive(), weather));
        }
        // Two steps after the storm may still come as a surprise: the first, and the next when
        // the storm had taught it to expect another kind then.
        for _ in 0..2 {
            under_test.observe(&outcome(&under_test.directive(), Weather::Fair));
        }
        let mut needed = 0;
        while under_test.stage() != Stage::Stable {
            under_test.observe(&outcome(&under_test.directive(), Weather::Fair));
            needed += 1;
            // As many as three tries, each judged by its third step.
            prop_assert!(needed <= 9, "still in {:?}", under_test.stage());
        }
        // And stays: nothing happens any more. Only where no plan is left, so that every step is
        // rescued, it looks for one a few times more.
        let mut plan = under_test.directive().plan;
        if plan.is_none() {
            for _ in 0..30 {
                under_test.observe(&outcome(&under_test.directive(), Weather::Fair));
            }
            plan = under_test.directive().plan;
        }
        for _ in 0..100 {
            let directive = under_test.observe(&outcome(&under_test.directive(), Weather::Fair));
            prop_assert_eq!(directive.stage, Stage::Stable);
            prop_assert_eq!(&directive.plan, &plan);
        }
    }

    #[test]
    fn an_abandoned_plan_never_comes_back(
        storm in prop::collection::vec(weather(), 40..300),
    ) {
        let mut under_test = looping(u32::MAX);
        let mut adopted: Vec<u32> = Vec::new();
        for &weather in &storm {
            let directive = under_test.observe(&outcome(&under_test.directive(), weather));
            let number = plan_number(&directive);
            let is_a = directive.plan.as_ref().is_some_and(|plan| plan.signature == A);
            if directive.stage == Stage::Stable && is_a && adopted.last() != Some(&number) {
                prop_assert!(!adopted.contains(&number), "{number} again after {adopted:?}");
                adopted.push(number);
            }
        }
    }

    #[test]
    fn the_share_of_searching_is_bounded_in_any_weather(
        storm in prop::collection::vec(weather(), 8),
    ) {
        // The same weather for ever, without changes of shape.
        let mut under_test = looping(u32::MAX);
        let mut searching = 0;
        for &weather in storm.iter().cycle().take(2000) {
            let weather = match weather {
                Weather::Other(_) | Weather::Drift => Weather::Miss,
                other => other,
            };
            let directive = under_test.observe(&outcome(&under_test.directive(), weather));
            searching += u32::from(directive.stage != Stage::Stable);
        }
        prop_assert!(searching >= 2, "it searched at least once");
        prop_assert!(searching <= 40, "{searching} of 2000 steps");
    }
}
