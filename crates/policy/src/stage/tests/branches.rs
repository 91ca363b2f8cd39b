//! Tests of steps that go by the plan of another kind, apart from a few ops.

use super::super::branches::Branches;
use super::*;

/// A step of another signature that left the plan and found it again. It missed and took long.
fn strayed(signature: Signature) -> StepReport {
    let counters = StepCounters { misses: 2, rescues: 1, ..StepCounters::default() };
    StepReport { strayed_ops: 5, device_us: 900.0, counters, ..step(signature) }
}

/// A loop that is Stable under plan 1 of kind A.
fn stable() -> Loop<Counting> {
    let mut under_test = after(9, &[rescued(A), rescued(A), step(A), step(A), step(A)]);
    assert_eq!((under_test.stage(), plan_number(&under_test.directive())), (Stage::Stable, 1));
    under_test.take_news();
    under_test
}

#[test]
fn a_loop_in_which_some_steps_have_more_ops_stays_stable_and_keeps_its_plan() {
    let mut under_test = stable();
    let before = under_test.directive();
    for index in 1..200_u64 {
        let report = match index % 12 {
            // Evaluations of changing lengths.
            6 => strayed(Signature(0x1000 + index)),
            at if at % 4 == 0 => strayed(B),
            _ => step(A),
        };
        assert_eq!(under_test.observe(&report), before, "step {index}");
    }
    let told: Vec<News> = under_test.take_news();
    let kinds: Vec<Signature> = told.iter().map(|news| news.kind).collect();
    assert_eq!(kinds.iter().filter(|&&kind| kind == B).count(), 1, "each kind is told of once");
    assert_eq!(kinds.len(), 1 + 17);
    let line = "follows the plan of another kind, except for 5 ops";
    assert!(told.iter().all(|news| news.event.to_string() == line));
    assert_eq!(under_test.tracks.len(), 1);
}

#[test]
fn what_comes_behind_such_a_step_is_not_judged_by_what_that_left() {
    let mut under_test = stable();
    for _ in 0..9 {
        under_test.observe(&strayed(B));
        assert_eq!(under_test.observe(&missed(A)).stage, Stage::Stable);
    }
    // The one behind that is.
    assert_eq!(under_test.observe(&missed(A)).stage, Stage::SearchPolicy);
}

#[test]
fn a_step_that_left_the_plan_for_good_or_ran_without_one_is_of_its_own_kind() {
    let gone = StepReport { drifted_at: Some(OpIndex(3)), ..strayed(B) };
    assert_eq!(stable().observe(&gone).stage, Stage::WarmUp);
    assert_eq!(stable().observe(&step(B)).stage, Stage::WarmUp);
    let mut under_test = after(9, &[step(A), step(A), step(A)]);
    assert_eq!(under_test.directive().plan, None, "it fits");
    assert_eq!(under_test.observe(&strayed(B)).stage, Stage::WarmUp);
}

#[test]
fn a_kind_that_was_only_recorded_is_taken_in_and_one_with_a_plan_stays() {
    // B was met first, and never got further.
    let mut under_test = after(9, &[rescued(B), rescued(A), rescued(A), step(A), step(A), step(A)]);
    assert_eq!(under_test.stage(), Stage::Stable);
    assert_eq!(under_test.observe(&strayed(B)).stage, Stage::Stable);
    assert_eq!(under_test.directive().plan.map(|plan| plan.signature), Some(A));
    // Here it has a plan, which is taken for the next one.
    let both = [rescued(B), rescued(B), step(B), step(B), rescued(A), rescued(A), step(A), step(A)];
    let mut under_test = after(9, &both);
    let directive = under_test.observe(&strayed(B));
    assert_eq!(directive.plan.map(|plan| plan.signature), Some(B));
}

#[test]
fn what_comes_again_and_again_gets_a_plan_of_its_own() {
    let mut under_test = stable();
    let stages: Vec<Stage> = (0..10).map(|_| under_test.observe(&strayed(B)).stage).collect();
    assert_eq!(stages[..4], [Stage::Stable; 4]);
    assert_eq!(stages[4..6], [Stage::WarmUp, Stage::SearchPolicy]);
}

#[test]
fn what_waits_longer_than_the_planned_step_takes_gets_a_plan_when_it_comes_again() {
    let waiting = |signature, stall_us| {
        let strayed = strayed(signature);
        let counters = StepCounters { stall_us, ..strayed.counters };
        StepReport { counters, ..strayed }
    };
    // Steps of A take 100 us.
    let mut under_test = stable();
    let stages: Vec<Stage> = (0..3).map(|_| under_test.observe(&waiting(B, 101.0)).stage).collect();
    assert_eq!(stages, [Stage::Stable, Stage::WarmUp, Stage::SearchPolicy]);
    let mut under_test = stable();
    let stages: Vec<Stage> = (0..3).map(|_| under_test.observe(&waiting(B, 99.0)).stage).collect();
    assert_eq!(stages, [Stage::Stable; 3], "as other branches");
    let mut under_test = stable();
    for step in 0..9 {
        under_test.observe(&waiting(Signature(0x1000 + step), 101.0));
        assert_eq!(under_test.stage(), Stage::Stable, "another one each time");
    }
}

#[test]
fn what_is_near_the_expected_kind_gets_a_plan_of_its_own_too_if_it_stays() {
    let of = |ops, signature| StepReport { op_count: ops, ..step(signature) };
    let first = StepReport { op_count: 100, ..rescued(A) };
    let mut under_test = after(9, &[first.clone(), first, of(100, A), of(100, A), of(100, A)]);
    assert_eq!(under_test.stage(), Stage::Stable);
    let near = StepReport { op_count: 101, ..strayed(B) };
    let stages: Vec<Stage> = (0..6).map(|_| under_test.observe(&near).stage).collect();
    assert_eq!(stages[..4], [Stage::Stable; 4]);
    assert_eq!(stages[4..], [Stage::WarmUp, Stage::SearchPolicy]);
}

#[test]
fn a_plan_that_serves_none_of_many_branches_in_a_row_is_given_up() {
    // Steps of A take 100 us.
    let taking = |device_us: f64, number: u64| StepReport {
        device_us,
        counters: StepCounters::default(),
        ..strayed(Signature(0x1000 + number))
    };
    // One that it serves, or of its own, and all begins anew.
    for other in [taking(124.0, 99), step(A)] {
        let mut under_test = stable();
        for number in (0..15).chain(100..115) {
            under_test.observe(&taking(126.0, number));
            assert_eq!(under_test.stage(), Stage::Stable, "branch {number}");
            if number == 14 {
                under_test.observe(&other);
            }
        }
        let directive = under_test.observe(&taking(126.0, 115));
        assert_eq!((directive.stage, directive.plan), (Stage::WarmUp, None));
        let told: Vec<String> =
            under_test.take_news().iter().map(|news| news.event.to_string()).collect();
        assert!(told.iter().any(|line| line.starts_with("searches again")), "{told:?}");
        // What comes is known to differ, so it is planned for soon.
        let stages = [200, 201].map(|number| under_test.observe(&roaming(number)).stage);
        assert_eq!(stages, [Stage::WarmUp, Stage::SearchPolicy]);
    }
}

/// From some step on, each branch does what no plan knows: it takes no longer, and maps each time.
#[test]
fn a_plan_whose_branches_all_make_memory_calls_is_given_up() {
    let calling = |mapped: u64, number: u64| {
        let memory_calls = MemoryCalls { mapped, ..MemoryCalls::default() };
        let counters = StepCounters { memory_calls, ..StepCounters::default() };
        StepReport { device_us: 100.0, counters, ..strayed(Signature(0x1000 + number)) }
    };
    let mut under_test = stable();
    for number in 0..40 {
        under_test.observe(&calling(16, number));
        assert_eq!(under_test.stage(), Stage::Stable, "branch {number} makes few");
    }
    for number in 40..55 {
        under_test.observe(&calling(17, number));
        assert_eq!(under_test.stage(), Stage::Stable, "branch {number}");
    }
    assert_eq!(under_test.observe(&calling(17, 55)).stage, Stage::WarmUp);
}

#[test]
fn each_plan_that_is_given_up_makes_the_next_one_last_longer() {
    let mut branches = Branches::default();
    for least in [16, 32, 64] {
        for number in 1..=least {
            assert!(!branches.are_unserved(), "after {number} of {least}");
            branches.came(Signature(number), false, false);
        }
        assert!(branches.are_unserved());
        branches.give_up();
    }
}

#[test]
fn a_search_ends_although_no_step_is_like_another() {
    let mut under_test = after(9, &[rescued(A), rescued(A)]);
    assert_eq!(under_test.stage(), Stage::SearchPolicy);
    for steps in 0..60 {
        let faster = StepReport { device_us: 90.0, ..strayed(Signature(0x1000 + steps)) };
        under_test.observe(&faster);
    }
    let is_end = |news: &News| matches!(news.event, Event::Adopted { .. });
    assert!(under_test.take_news().iter().any(is_end), "it goes on for ever");
    assert!(under_test.directive().plan.is_some());
}

/// A step of a kind that never comes again.
fn roaming(number: u64) -> StepReport {
    let kind = Signature(0x1000 + number);
    StepReport { family: kind, ..rescued(kind) }
}

/// The same, by the plan of another kind.
fn straying(number: u64) -> StepReport {
    StepReport { strayed_ops: 5, device_us: 90.0, ..roaming(number) }
}

#[test]
fn where_no_kind_comes_again_the_last_one_is_planned_for_and_the_others_follow() {
    let mut under_test = looping(9);
    for number in 0..5 {
        assert_eq!(under_test.observe(&roaming(number)).stage, Stage::WarmUp, "{number}");
    }
    let directive = under_test.observe(&roaming(5));
    assert_eq!((directive.stage, plan_number(&directive)), (Stage::SearchPolicy, 1));
    for number in 6..60 {
        assert!(under_test.observe(&straying(number)).plan.is_some(), "{number}");
    }
    assert_eq!(under_test.stage(), Stage::Stable);
    // One that does not follow is not what the next ones are like.
    let plan = under_test.directive().plan;
    assert_eq!(under_test.observe(&roaming(60)).plan, plan);
    // But if it comes again it is.
    assert_eq!(under_test.observe(&roaming(60)).plan, None);
}

#[test]
fn a_few_kinds_that_come_in_any_order_are_planned_for_as_soon() {
    let mut under_test = looping(9);
    for (at, number) in [0, 1, 2, 0, 2].into_iter().enumerate() {
        assert_eq!(under_test.observe(&roaming(number)).plan, None, "{at}");
    }
    let planned = under_test.observe(&roaming(1)).plan;
    assert_eq!(planned.map(|plan| plan.signature), Some(roaming(1).signature));
}

#[test]
fn plans_that_no_step_follows_are_made_less_and_less_often() {
    let mut under_test = looping(u32::MAX);
    let mut planned = Vec::new();
    for number in 0..200 {
        let made = under_test.planner().made;
        under_test.observe(&roaming(number));
        if under_test.planner().made > made {
            planned.push(number + 1);
        }
    }
    assert_eq!(planned, [6, 6 + 12, 6 + 12 + 24, 6 + 12 + 24 + 48, 6 + 12 + 24 + 48 + 96]);
}

#[test]
fn what_fits_or_differs_in_its_sizes_alone_is_not_planned_for_so() {
    let fits = |number| StepReport { family: Signature(number), ..step(Signature(number)) };
    let sized = |number| StepReport { family: A, ..roaming(number) };
    for report in [fits, sized] {
        let mut under_test = looping(9);
        for number in 0..20 {
            let directive = under_test.observe(&report(number));
            assert_eq!((directive.stage, directive.plan), (Stage::WarmUp, None), "{number}");
        }
    }
}

#[test]
fn blocks_find_their_places_in_such_steps_as_well() {
    // Three plans are tried, and the first was the fastest.
    let tries = [50.0, 50.0, 500.0, 500.0, 500.0, 500.0].map(|device_us| taking(A, device_us));
    let mut under_test = after(9, &[&[rescued(A), rescued(A)][..], &tries].concat());
    let directive = under_test.directive();
    assert_eq!((plan_number(&directive), directive.stage), (1, Stage::SearchPolicy), "moves in");
    assert!(directive.record);
    let directive = under_test.observe(&strayed(B));
    assert_eq!((plan_number(&directive), directive.stage), (1, Stage::Stable));
    assert!(!directive.record);
}
