//! Tests of loops on several ranks that judge each step together.

use super::*;
use crate::ranks::{Figure, Figures};

/// One step on all ranks: each tells its figures, and all judge by the worst.
fn together<P: Planner>(ranks: &mut [Loop<P>], reports: &[StepReport]) -> Vec<Directive> {
    assert_eq!(ranks.len(), reports.len());
    let told = ranks.iter().zip(reports).map(|(rank, report)| rank.figures(report));
    let worst = told.reduce(Figures::worst).expect("there is a rank");
    let judged = ranks.iter_mut().zip(reports);
    judged.map(|(rank, report)| rank.observe_together(report, &worst)).collect()
}

fn numbers(directives: &[Directive]) -> Vec<u32> {
    directives.iter().map(plan_number).collect()
}

fn stages(directives: &[Directive]) -> Vec<Stage> {
    directives.iter().map(|directive| directive.stage).collect()
}

/// Ranks that have met these steps, all alike.
fn both_after(plans: [u32; 2], steps: &[StepReport]) -> [Loop<Counting>; 2] {
    let mut ranks = plans.map(looping);
    for report in steps {
        together(&mut ranks, &[report.clone(), report.clone()]);
    }
    ranks
}

#[test]
fn the_slowest_rank_decides_which_plan_is_best() {
    let times = [[100.0, 300.0], [200.0, 210.0], [250.0, 100.0]];
    let mut ranks = both_after([9, 9], &[rescued(A), rescued(A)]);
    for pair in times {
        let reports = pair.map(|device_us| taking(A, device_us));
        together(&mut ranks, &reports);
        together(&mut ranks, &reports);
    }
    assert_eq!(numbers(&ranks.each_ref().map(Loop::directive)), [2, 2]);
    for rank in &ranks {
        let (best, _) = rank.best(A).expect("judged");
        assert_eq!(best.step_us, 210.0);
        let (_, measured) = rank.feedback(A).expect("known").latest.expect("tried");
        assert_eq!((measured.step_us, measured.stall_us), (250.0, 125.0));
    }
    // Each by itself would have chosen another.
    for (place, expect) in [(0, 1), (1, 3)] {
        let mut alone = after(9, &[rescued(A), rescued(A)]);
        for pair in times {
            alone.observe(&taking(A, pair[place]));
            alone.observe(&taking(A, pair[place]));
        }
        assert_eq!(plan_number(&alone.directive()), expect);
    }
}

#[test]
fn no_plan_is_made_or_judged_by_a_step_of_which_ranks_recorded_other_blocks() {
    let mut rank = looping(9);
    let mut after = |report: &StepReport, again: bool| {
        let worst = rank.figures(report).with_flag(Figure::Again, again);
        let directive = rank.observe_together(report, &worst);
        (directive.stage, plan_number(&directive))
    };
    let course = [
        (rescued(A), false, (Stage::WarmUp, 0)),
        (rescued(A), true, (Stage::WarmUp, 0)),
        (rescued(A), false, (Stage::SearchPolicy, 1)),
        (taking(A, 100.0), false, (Stage::SearchPolicy, 1)),
        (taking(A, 100.0), true, (Stage::SearchPolicy, 1)),
        (taking(A, 100.0), false, (Stage::SearchPolicy, 2)),
    ];
    for (place, (report, again, expect)) in course.into_iter().enumerate() {
        assert_eq!(after(&report, again), expect, "step {place}");
    }
}

#[test]
fn what_one_rank_meets_counts_on_all() {
    let check = |event: StepReport, stage: Stage, plan: u32| {
        let mut ranks =
            both_after([9, 9], &[rescued(A), rescued(A), step(A), step(A), step(A), step(A)]);
        assert_eq!(stages(&ranks.each_ref().map(Loop::directive)), [Stage::Stable; 2]);
        let directives = together(&mut ranks, &[step(A), event]);
        assert_eq!(directives[0], directives[1]);
        assert_eq!((directives[0].stage, plan_number(&directives[0])), (stage, plan));
    };
    check(step(A), Stage::Stable, 1);
    check(rescued(A), Stage::SearchPolicy, 1);
    check(missed(A), Stage::SearchPolicy, 1);
    check(drifted(A), Stage::WarmUp, 0);
    // In WarmUp a rank that fits joins the search of one that does not.
    let mut ranks = [looping(9), looping(9)];
    together(&mut ranks, &[step(A), rescued(A)]);
    let directives = together(&mut ranks, &[step(A), rescued(A)]);
    assert_eq!(stages(&directives), [Stage::SearchPolicy; 2]);
}

#[test]
fn a_rank_without_plans_holds_its_best_until_all_have_tried_theirs() {
    // Of different models, which have nothing in common but their times.
    let pair = |one: f64, two: f64| [taking(A, one), taking(B, two)];
    let mut ranks = [looping(1), looping(3)];
    for _ in 0..2 {
        together(&mut ranks, &[rescued(A), rescued(B)]);
    }
    let mut tried = Vec::new();
    for worst in [100.0, 90.0, 80.0] {
        tried.push(numbers(&ranks.each_ref().map(Loop::directive)));
        for _ in 0..2 {
            assert!(ranks.iter().all(|rank| rank.stage() == Stage::SearchPolicy));
            together(&mut ranks, &pair(50.0, worst));
        }
    }
    assert_eq!(tried, [[1, 1], [1, 2], [1, 3]]);
    together(&mut ranks, &pair(50.0, 80.0));
    let settled = ranks.each_ref().map(Loop::directive);
    assert_eq!((stages(&settled), numbers(&settled)), (vec![Stage::Stable; 2], vec![1, 3]));
    // When nobody has anything left, nobody waits for the last number.
    let mut ranks = [looping(0), looping(1)];
    for _ in 0..2 {
        together(&mut ranks, &[rescued(A), rescued(B)]);
    }
    for _ in 0..2 {
        together(&mut ranks, &pair(50.0, 100.0));
    }
    let directives = together(&mut ranks, &pair(50.0, 100.0));
    assert_eq!((stages(&directives), numbers(&directives)), (vec![Stage::Stable; 2], vec![0, 1]));
}

#[test]
fn a_shape_that_one_rank_alone_meets_disturbs_no_other() {
    let warm = [rescued(A), rescued(A), step(A), step(A), step(A), step(A)];
    let mut ranks = both_after([9, 9], &warm);
    for _ in 0..4 {
        // One rank warms up for its new shape, searches, and judges by all; the other waits.
        let directives = together(&mut ranks, &[taking(A, 900.0), rescued(B)]);
        assert_eq!((directives[0].stage, plan_number(&directives[0])), (Stage::Stable, 1));
    }
    assert_eq!(ranks[1].stage(), Stage::SearchPolicy);
    // What it has to rescue itself it does not put down to the others.
    let directives = together(&mut ranks, &[rescued(A), rescued(B)]);
    assert_eq!(directives[0].stage, Stage::SearchPolicy);
}

#[test]
fn steps_from_before_the_orders_are_no_try() {
    let mut ranks = both_after([9, 9], &[rescued(A), rescued(A), step(A)]);
    assert_eq!(numbers(&ranks.each_ref().map(Loop::directive)), [1, 1]);
    // The other rank's step began under other orders: it observes nothing, and neither does this.
    let void = ranks[1].void_figures();
    for _ in 0..5 {
        let worst = ranks[0].figures(&missed(A)).worst(void);
        assert_eq!(plan_number(&ranks[0].observe_together(&missed(A), &worst)), 1);
    }
    // Now both are under the same.
    assert_eq!(numbers(&together(&mut ranks, &[missed(A), missed(A)])), [2, 2]);
}

#[test]
fn what_a_rank_meets_itself_counts_while_another_is_under_older_orders() {
    let warm = [rescued(A), rescued(A), step(A), step(A), step(A), step(A)];
    let mut ranks = both_after([9, 9], &warm);
    assert_eq!(stages(&ranks.each_ref().map(Loop::directive)), [Stage::Stable; 2]);
    let worst = ranks[0].figures(&rescued(A)).worst(ranks[1].void_figures());
    assert_eq!(ranks[0].observe_together(&rescued(A), &worst).stage, Stage::SearchPolicy);
}

#[test]
fn figures_are_combined_by_the_largest() {
    let link = |rate: f64| crate::Link {
        out_bytes_per_us: rate,
        in_bytes_per_us: 2.0 * rate,
        both_bytes_per_us: rate / 2.0,
    };
    let told = |device_us: f64, rate: f64| {
        let report = taking(A, device_us);
        let figures = looping(0).figures(&report).with_link(Some(link(rate)));
        figures.with(Figure::Touches, 1.0)
    };
    let worst = told(100.0, 8.0).worst(told(70.0, 4.0));
    assert_eq!(worst.get(Figure::StepUs), 100.0);
    assert_eq!(worst.link(), Some(link(4.0)), "the slowest");
    assert!(worst.are_of_one_kind());
    assert!(!worst.with(Figure::Touches, 0.0).are_of_one_kind(), "nobody leads");
    let elsewhere = worst.with(Figure::Blocks, worst.get(Figure::Blocks) + 1.0);
    assert!(elsewhere.differ_in_blocks() && !elsewhere.are_of_one_kind());
    assert!(!worst.differ_in_blocks());
    let other = looping(0).figures(&step(B));
    assert!(!worst.worst(other).are_of_one_kind());
    let unrecorded = looping(0).figures(&StepReport { trace: None, ..step(A) });
    assert!(!worst.worst(unrecorded).are_of_one_kind());
    assert!(!unrecorded.are_of_one_kind());
    assert_eq!(unrecorded.link(), None);
    assert_eq!(Figures::from_numbers(*worst.numbers()), worst);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn ranks_with_the_same_steps_run_alike_in_any_weather(
        storm in prop::collection::vec((weather(), weather()), 1..200),
        plans in 0..20_u32,
    ) {
        let mut ranks = both_after([plans; 2], &[rescued(A), rescued(A)]);
        prop_assert_eq!(ranks[1].planner().margins.len(), 1, "it searches");
        for (one, two) in storm {
            // A step of another kind comes to both.
            let two = if matches!(one, Weather::Other(_)) { one } else { two };
            let one = if matches!(two, Weather::Other(_)) { two } else { one };
            let [first, second] = ranks.each_ref().map(Loop::directive);
            let reports = [outcome(&first, one), outcome(&second, two)];
            let directives = together(&mut ranks, &reports);
            prop_assert_eq!(&directives[0], &directives[1]);
        }
        prop_assert_eq!(ranks[0].feedback(A), ranks[1].feedback(A));
    }

    #[test]
    fn ranks_with_different_plans_settle_together_soon_after_the_last_disturbance(
        storm in prop::collection::vec((weather(), weather()), 0..80),
        plans in [0..40_u32, 0..40_u32],
    ) {
        let mut ranks = both_after(plans, &[rescued(A), rescued(A)]);
        let mut step = |one, two| {
            let [first, second] = ranks.each_ref().map(Loop::directive);
            stages(&together(&mut ranks, &[outcome(&first, one), outcome(&second, two)]))
        };
        for (one, two) in storm {
            step(one, two);
        }
        let mut calm = 0;
        for _ in 0..100 {
            let is_stable = step(Weather::Fair, Weather::Fair) == [Stage::Stable; 2];
            calm = if is_stable { calm + 1 } else { 0 };
        }
        // Without plans every step is rescued, so they look for one a few times more.
        prop_assert!(calm >= 50, "{} calm steps", calm);
    }
}

/// Has each plan made beside the training, which takes this rank so many looks.
#[derive(Debug)]
struct Beside {
    offers: Counting,
    looks: u32,
    looks_left: std::cell::Cell<Option<u32>>,
}

impl Planner for Beside {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        if self.looks_left.get().is_none() {
            self.looks_left.set(Some(self.looks));
            return Ok(None);
        }
        assert_eq!(self.looks_left.take(), Some(0), "asked before it is there");
        self.offers.plan(trace, feedback)
    }

    fn is_busy(&self, _: Signature) -> bool {
        self.looks_left.get().is_some()
    }

    fn is_at_work(&self, _: Signature) -> bool {
        let Some(left) = self.looks_left.get() else { return false };
        self.looks_left.set(Some(left.saturating_sub(1)));
        left > 0
    }
}

#[test]
fn a_plan_that_is_made_beside_the_training_is_taken_once_all_ranks_have_it() {
    let looping = |looks| {
        let offers = Counting { made: 0, last: 2, margins: Vec::new() };
        Loop::new(config(), Beside { offers, looks, looks_left: None.into() })
    };
    let mut ranks = [looping(1), looping(5)];
    let (mut plans, mut waited) = (vec![0], 0);
    for number in 0..40 {
        let report = if number < 2 { rescued(A) } else { taking(A, 100.0) };
        let directives = together(&mut ranks, &[report.clone(), report]);
        assert_eq!(directives[0], directives[1]);
        waited += u32::from(directives[0].stage == Stage::SearchPolicy && plans.len() == 1);
        if plans.last() != Some(&plan_number(&directives[0])) {
            plans.push(plan_number(&directives[0]));
        }
    }
    assert!(waited >= 5, "the slower rank was waited for: {waited}");
    assert!(plans.starts_with(&[0, 1, 2]), "{plans:?}");
    assert_eq!(stages(&ranks.each_ref().map(Loop::directive)), [Stage::Stable; 2]);
}

#[test]
fn a_rank_that_has_tried_all_it_has_holds_its_best_while_another_has_a_plan_made() {
    let looping = |looks, last| {
        let offers = Counting { made: 0, last, margins: Vec::new() };
        Loop::new(config(), Beside { offers, looks, looks_left: None.into() })
    };
    let mut ranks = [looping(0, 1), looping(20, 2)];
    for _ in 0..2 {
        together(&mut ranks, &[rescued(A), rescued(B)]);
    }
    let mut searched = [0; 2];
    for _ in 0..100 {
        let directives = together(&mut ranks, &[taking(A, 50.0), taking(B, 100.0)]);
        for (searched, stage) in searched.iter_mut().zip(stages(&directives)) {
            *searched += u32::from(stage == Stage::SearchPolicy);
        }
    }
    let settled = ranks.each_ref().map(Loop::directive);
    assert_eq!((stages(&settled), numbers(&settled)), (vec![Stage::Stable; 2], vec![1, 1]));
    assert!(searched[0] > 40, "the other rank made two plans: {searched:?}");
    assert_eq!(searched[0], searched[1]);
}

#[test]
fn a_rank_with_nothing_to_gain_holds_its_best_until_others_have_tried_theirs() {
    let mut ranks = [looping(9), looping(9)];
    for _ in 0..2 {
        together(&mut ranks, &[rescued(A), rescued(B)]);
    }
    // Nothing waits, but one rank has no record to plan by, and the other has.
    let unrecorded = StepReport { trace: None, ..taking(A, 100.0) };
    let mut course = Vec::new();
    for _ in 0..10 {
        let directives = together(&mut ranks, &[unrecorded.clone(), taking(B, 100.0)]);
        assert_eq!(directives[0].stage, directives[1].stage);
        course.push(numbers(&directives));
    }
    assert!(course.contains(&vec![1, 3]), "one tried all it may: {course:?}");
    assert_eq!(ranks[0].stage(), Stage::Stable);
}
