//! Tests of what the loop remembers from step to step: tries, old figures, searches in vain, and
//! what ran before.

use swap_core::{Action, ActionKind, BlockIndex, Phase, TraceOp};

use super::*;
use crate::generate::{GenerateConfig, Generated, generate};
use crate::machine::{Link, Machine};
use crate::search::Prediction;
use crate::simulate::simulate;
use crate::synthetic::{RandomShape, random_trace};

/// Offers the same plan again and again.
#[derive(Debug)]
struct Stubborn {
    asked: u32,
}

impl Planner for Stubborn {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked += 1;
        let plan = Plan { signature: trace.signature, op_count: 1, ..Plan::default() };
        Ok(Some(Proposal { plan, ..Proposal::default() }))
    }
}

#[test]
fn a_plan_that_was_tried_is_not_tried_again() {
    let mut under_test = Loop::new(config(), Stubborn { asked: 0 });
    // Half of each step is waiting, so another plan would be welcome.
    for report in [rescued(A), rescued(A), step(A), taking(A, 90.0)] {
        under_test.observe(&report);
    }
    assert_eq!((under_test.stage(), under_test.planner().asked), (Stage::Stable, 2));
    // Nor in a new search.
    for _ in 0..4 {
        under_test.observe(&taking(A, 200.0));
    }
    assert_eq!((under_test.stage(), under_test.planner().asked), (Stage::Stable, 3));
    assert_eq!(plan_number(&under_test.directive()), 1);
}

#[test]
fn an_old_figure_that_no_longer_holds_outdoes_no_try() {
    let mut under_test = after(2, &[rescued(A), rescued(A), step(A), step(A), step(A)]);
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 1));
    // What took 100 takes 300 for good, which the next plan makes better, though not as it was.
    for _ in 0..4 {
        under_test.observe(&taking(A, 300.0));
    }
    assert_eq!(plan_number(&under_test.directive()), 2);
    for _ in 0..2 {
        under_test.observe(&taking(A, 200.0));
    }
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 2));
    let (best, _) = under_test.best(A).expect("it was searched");
    assert_eq!(best.step_us, 200.0);
}

#[test]
fn after_a_long_calm_a_disturbed_plan_is_searched_anew() {
    let calm_steps = config().calm_steps;
    let searches_after = |calm: u32| {
        let mut under_test = after(99, &[rescued(A), rescued(A), step(A), step(A), step(A)]);
        let disturb = |under_test: &mut Loop<Counting>| {
            let found = under_test.observe(&rescued(A)).stage == Stage::SearchPolicy;
            // Whatever was begun ends.
            while under_test.stage() != Stage::Stable {
                under_test.observe(&step(A));
            }
            under_test.observe(&step(A));
            found
        };
        for _ in 0..config().failed_searches {
            assert!(disturb(&mut under_test));
        }
        assert!(!disturb(&mut under_test), "it has been searched often enough");
        // The last step of the disturbance was calm already.
        for _ in 1..calm {
            under_test.observe(&step(A));
        }
        disturb(&mut under_test)
    };
    assert!(!searches_after(calm_steps - 1));
    assert!(searches_after(calm_steps));
}

#[test]
fn a_try_that_never_settles_is_judged_by_its_third_step() {
    let mut under_test = looping(9);
    // B comes after each A, and each is expected.
    for _ in 0..3 {
        for kind in [A, B] {
            under_test.observe(&step(kind));
        }
    }
    assert_eq!(under_test.stage(), Stage::WarmUp, "kinds that alternate are new to it");
    let mut plans = Vec::new();
    for _ in 0..12 {
        let directive = under_test.directive();
        if directive.stage == Stage::SearchPolicy {
            plans.push(plan_number(&directive));
        }
        under_test.observe(&missed(A));
        under_test.observe(&step(B));
    }
    let runs: Vec<usize> = plans.chunk_by(|one, next| one == next).map(<[u32]>::len).collect();
    assert_eq!(runs[..3], [3, 3, 3], "{plans:?}");
}

#[test]
fn a_step_after_one_that_left_its_plan_is_not_held_against_it() {
    // The only plan is left in the middle, and is better than none even so.
    let left = StepReport { device_us: 50.0, ..drifted(A) };
    let mut under_test = after(1, &[rescued(A), rescued(A), left]);
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 1));
    // Blocks are not where it leaves them yet.
    assert_eq!(under_test.observe(&rescued(A)).stage, Stage::Stable);
    assert_eq!(under_test.observe(&rescued(A)).stage, Stage::SearchPolicy);
}

const SWAP_OUT: Action = Action {
    op: OpIndex(0),
    phase: Phase::End,
    kind: ActionKind::SwapOut,
    block: BlockIndex(0),
    due: OpIndex(0),
};

/// Expects 100 us of each plan.
#[derive(Debug, Default)]
struct Expecting {
    made: u32,
    layout: Option<Layout>,
}

impl Planner for Expecting {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.made += 1;
        let actions = vec![SWAP_OUT];
        let signature = trace.signature;
        let plan = Plan { signature, op_count: self.made, actions, ..Plan::default() };
        let predicted = Prediction { step_us: 100.0, ..Prediction::default() };
        let layout = self.layout.clone();
        Ok(Some(Proposal { plan, predicted, layout, ..Proposal::default() }))
    }
}

#[test]
fn a_plan_is_judged_once_its_blocks_lie_where_it_laid_them() {
    let planner = Expecting { layout: Some(Layout::default()), made: 0 };
    let mut under_test = Loop::new(config(), planner);
    under_test.observe(&rescued(A));
    assert_eq!(plan_number(&under_test.observe(&rescued(A))), 1);
    let mut observe = |device_us: f64, mapped: u64| {
        let mut report = taking(A, device_us);
        report.counters.memory_calls.mapped = mapped;
        plan_number(&under_test.observe(&report))
    };
    let mut tried = |steps: &[(f64, u64)]| -> Vec<u32> {
        steps.iter().map(|&(device_us, mapped)| observe(device_us, mapped)).collect()
    };
    // Recorded until it hardly maps, then judged.
    assert_eq!(tried(&[(400.0, 3000), (120.0, 400), (106.0, 0), (105.0, 0)]), [1, 1, 1, 2]);
    // This one maps in each step, so it is not getting there.
    assert_eq!(tried(&[(400.0, 3000), (110.0, 66), (105.0, 64), (109.0, 64)]), [2, 2, 2, 3]);
    // Recorded at once; then something made room, and blocks came back to their lots.
    assert_eq!(tried(&[(111.0, 0), (180.0, 3000), (112.0, 48), (110.0, 0)]), [3, 3, 3, 1]);
    let news: Vec<String> = under_test.take_news().iter().map(ToString::to_string).collect();
    for told in ["plan 1: 0.105 ms", "plan 2: 0.109 ms", "plan 3: 0.110 ms"] {
        assert!(news.iter().any(|line| line.contains(told)), "{told}: {news:?}");
    }
}

#[test]
fn a_step_that_takes_far_longer_than_predicted_is_measured_once_more() {
    let mut under_test = Loop::new(config(), Expecting::default());
    under_test.observe(&rescued(A));
    assert_eq!(plan_number(&under_test.observe(&rescued(A))), 1);
    let mut observe = |device_us: f64| plan_number(&under_test.observe(&taking(A, device_us)));
    // The first step moves in, the second was disturbed, the third is as good as expected.
    assert_eq!([900.0, 500.0, 120.0].map(&mut observe), [1, 1, 2]);
    // Both are late: the better one counts.
    assert_eq!([900.0, 300.0, 400.0].map(&mut observe), [2, 2, 3]);
    // Near enough: one says all. The search is over.
    assert_eq!([900.0, 124.0].map(&mut observe), [3, 1]);
    let news: Vec<String> = under_test.take_news().iter().map(ToString::to_string).collect();
    let measured = |plan: u32, ms: &str| {
        let begins = format!("plan {plan}: {ms} ms measured");
        assert!(news.iter().any(|line| line.contains(&begins)), "{begins}: {news:?}");
    };
    measured(1, "0.120");
    measured(2, "0.300");
    measured(3, "0.124");
}

#[test]
fn a_plan_that_promises_more_stays_where_it_is_as_fast() {
    let last_plan = |device_us: [f64; 3]| {
        let mut under_test = Loop::new(config(), Expecting::default());
        let both = [rescued(A), rescued(A)];
        both.iter().for_each(|report| drop(under_test.observe(report)));
        for device_us in device_us {
            under_test.observe(&taking(A, 900.0));
            under_test.observe(&taking(A, device_us));
        }
        let directive = under_test.observe(&taking(A, 100.0));
        assert_eq!(directive.stage, Stage::Stable);
        plan_number(&directive)
    };
    assert_eq!(last_plan([110.0, 111.0, 124.0]), 2);
    assert_eq!(last_plan([110.0, 113.0, 124.0]), 1);
    // What was as fast as it promised is not given up for the same promise.
    assert_eq!(last_plan([100.0, 101.0, 124.0]), 1);
}

#[test]
fn what_a_plan_missed_when_it_was_adopted_it_may_miss_again() {
    // The only plan misses a block in each step, and is better than rescues even so.
    let mut under_test = after(1, &[rescued(A), rescued(A), missed(A), missed(A)]);
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 1));
    for _ in 0..9 {
        assert_eq!(under_test.observe(&missed(A)).stage, Stage::Stable);
    }
    let misses = StepCounters { misses: 2, ..StepCounters::default() };
    let more = StepReport { counters: misses, ..step(A) };
    assert_eq!(under_test.observe(&more).stage, Stage::SearchPolicy);
    // It does as it did, so the plan is not to blame.
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::SearchPolicy, "that was recorded");
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::Stable);
}

#[test]
fn steps_without_a_plan_that_have_to_make_room_are_searched_again() {
    // No plan is offered, so steps go on as they are.
    let mut under_test = after(0, &[rescued(A), rescued(A)]);
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 0));
    under_test.observe(&step(A));
    assert_eq!(under_test.observe(&rescued(A)).stage, Stage::SearchPolicy);
}

#[test]
fn a_step_that_ran_clean_above_the_limit_does_not_fit() {
    let high = StepReport { held_bytes_peak: LIMIT_BYTES + 1, ..step(A) };
    assert_eq!(after(9, &[high.clone(), high]).stage(), Stage::SearchPolicy);
}

/// Has a sketch at once, and a better plan when it was asked so many times more.
#[derive(Debug)]
struct Late {
    asked: u32,
    ready_when_asked: u32,
}

impl Planner for Late {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked += 1;
        let is_sketch = self.asked == 1;
        let is_ready = is_sketch || self.asked == self.ready_when_asked;
        let plan = Plan { signature: trace.signature, op_count: self.asked, ..Plan::default() };
        Ok(is_ready.then_some(Proposal { plan, is_sketch, ..Proposal::default() }))
    }

    fn is_busy(&self, kind: Signature) -> bool {
        kind == A && (2..self.ready_when_asked).contains(&self.asked)
    }
}

#[test]
fn the_best_so_far_runs_while_the_next_plan_is_made() {
    let mut under_test = Loop::new(config(), Late { asked: 0, ready_when_asked: 9 });
    let (mut ran, mut unrecorded) = (Vec::new(), 0);
    under_test.observe(&rescued(A));
    under_test.observe(&rescued(A));
    for _ in 0..14 {
        // A sketch that hardly waits is no reason to stop: nobody knows what it might have been.
        let directive = under_test.observe(&step(A));
        ran.push((directive.stage, plan_number(&directive)));
        unrecorded += u32::from(!directive.record && directive.stage != Stage::Stable);
    }
    let waiting = ran.iter().filter(|&&it| it == (Stage::SearchPolicy, 1)).count();
    assert!((7..10).contains(&waiting), "{ran:?}");
    // Nor is the second step of either plan, by which it is judged.
    assert!((8..11).contains(&unrecorded), "meanwhile nothing is recorded: {unrecorded}");
    assert!(ran.contains(&(Stage::SearchPolicy, 9)), "{ran:?}");
    assert_eq!(under_test.stage(), Stage::Stable, "{ran:?}");
    assert_eq!(under_test.planner().asked, 9, "a plan that hardly waits ends the search");
}

/// Has another plan each time, and knows what the step takes with all memory.
#[derive(Debug)]
struct Knowing {
    asked: u32,
    made: Generated,
}

impl Planner for Knowing {
    fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        self.asked += 1;
        let plan = Plan { signature: trace.signature, op_count: self.asked, ..Plan::default() };
        Ok(Some(Proposal { plan, ..Proposal::default() }))
    }

    fn latest(&self) -> Option<&Generated> {
        Some(&self.made)
    }
}

#[test]
fn a_plan_that_waits_for_nothing_is_the_last_only_if_it_takes_no_time_otherwise() {
    let trace = random_trace(1, &RandomShape::small());
    let link = Link { out_bytes_per_us: 1.0, in_bytes_per_us: 1.0, both_bytes_per_us: 1.0 };
    let machine =
        Machine { limit_bytes: 1 << 50, host_limit_bytes: 1 << 50, link, copy_submit_us: 0.0 };
    let made = generate(&trace, &machine, &GenerateConfig::default(), &[]);
    let plans_tried = |unlimited_us: f64| {
        let made = Generated { unlimited_us, ..made.clone() };
        let mut under_test = Loop::new(config(), Knowing { asked: 0, made });
        let op = TraceOp { device_us: unlimited_us, ..trace.ops[0].clone() };
        let known = Trace { signature: A, ops: vec![op], ..Trace::default() };
        under_test.observe(&rescued(A));
        under_test.observe(&rescued(A));
        while under_test.stage() != Stage::Stable {
            under_test.observe(&StepReport { trace: Some(known.clone()), ..step(A) });
        }
        under_test.planner().asked
    };
    let took_us = step(A).device_us;
    assert_eq!(plans_tried(took_us), 1, "there is nothing to gain");
    // What is made again takes the rest.
    assert_eq!(plans_tried(0.9 * took_us), config().search_steps);
}

/// Offers these plans, one after the other.
#[derive(Debug)]
struct Listed {
    plans: Vec<Plan>,
    machine: Machine,
}

impl Planner for Listed {
    fn plan(&mut self, _: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        let plan = self.plans.pop();
        Ok(plan.map(|plan| Proposal { plan, ..Proposal::default() }))
    }

    fn link(&self) -> Option<Link> {
        Some(self.machine.link)
    }
}

#[test]
fn a_plan_that_promises_nothing_is_tried_only_if_the_best_is_not_as_it_should_be() {
    let trace = random_trace(3, &RandomShape::small());
    let trace = Trace { signature: A, ..trace };
    let link = Link { out_bytes_per_us: 1e3, in_bytes_per_us: 1e3, both_bytes_per_us: 1e3 };
    let machine = Machine::of_loop(0, Some(link));
    let roomy = simulate(&trace, &Plan::default(), &machine.with_limit(u64::MAX / 2));
    let machine = machine.with_limit(roomy.resident_bytes_peak * 3 / 5);
    let good = generate(&trace, &machine, &GenerateConfig::default(), &[]).plan;
    let good_us = simulate(&trace, &good, &machine).step_us;
    // It lets the first thing that the good plan sends away find its room by itself.
    let mut worse = good.clone();
    worse.actions.remove(0);
    assert!(simulate(&trace, &worse, &machine).step_us >= good_us, "it is no better");
    let tried = |ratio: f64| {
        let planner = Listed { plans: vec![worse.clone(), good.clone()], machine };
        let config = LoopConfig { limit_bytes: machine.limit_bytes, ..config() };
        let mut under_test = Loop::new(config, planner);
        let known = StepReport { trace: Some(trace.clone()), ..rescued(A) };
        under_test.observe(&known);
        under_test.observe(&known);
        while under_test.stage() != Stage::Stable {
            let took = taking(A, ratio * good_us);
            under_test.observe(&StepReport { trace: Some(trace.clone()), ..took });
        }
        let news = under_test.take_news();
        news.iter().filter(|news| matches!(news.event, Event::Tries { .. })).count()
    };
    assert_eq!(tried(1.0), 1, "the second promises nothing");
    // Whatever makes it slower, or faster, is not known to the simulator.
    assert_eq!((tried(1.5), tried(0.5)), (2, 2));
}
