//! Tests of what the loop tells of itself.

use super::*;

/// What was told until now, without its head.
fn told(under_test: &mut Loop<Counting>) -> Vec<String> {
    under_test.take_news().iter().map(|news| news.event.to_string()).collect()
}

#[test]
fn a_search_is_told_from_its_first_step_to_what_is_adopted() {
    let mut under_test = looping(2);
    for report in [rescued(A), rescued(A), step(A), taking(A, 120.0), step(A), taking(A, 90.0)] {
        under_test.observe(&report);
    }
    assert_eq!(
        told(&mut under_test),
        [
            "new, in WarmUp",
            "tries plan 1: 0 actions, 0.000 ms predicted",
            "WarmUp -> SearchPolicy",
            "plan 1: 0.120 ms measured, 0.060 ms of it waiting, 0.000 ms predicted: the best so \
             far",
            "tries plan 2: 0 actions, 0.000 ms predicted",
            "plan 2: 0.090 ms measured, 0.045 ms of it waiting, 0.000 ms predicted: the best so \
             far",
            "adopts a plan of 0 actions, 0.090 ms measured, 0.045 ms of it waiting: there is no \
             other plan to try",
            "SearchPolicy -> Stable",
        ]
    );
    // What was told is not told again.
    assert_eq!(told(&mut under_test), [""; 0]);
    under_test.observe(&step(A));
    assert_eq!(told(&mut under_test), [""; 0], "a calm step is no news");
    under_test.observe(&missed(A));
    assert_eq!(
        told(&mut under_test),
        [
            "searches again: 0.100 ms measured, 0.000 ms of it waiting, 1 missed, 0 rescued",
            "measures the adopted plan again",
            "Stable -> SearchPolicy",
        ]
    );
    // One is recorded, the other judged.
    for _ in 0..2 {
        under_test.observe(&step(A));
    }
    assert_eq!(
        told(&mut under_test),
        [
            "adopts a plan of 0 actions, 0.090 ms measured, 0.045 ms of it waiting: the step has \
             not changed",
            "SearchPolicy -> Stable",
        ]
    );
}

#[test]
fn a_plan_that_is_no_better_is_told_as_such_and_not_adopted() {
    let mut under_test = after(9, &[rescued(A), rescued(A)]);
    for device_us in [300.0, 90.0, 90.0, 200.0, 200.0, 200.0, 200.0] {
        under_test.observe(&taking(A, device_us));
    }
    let told = told(&mut under_test);
    let adopted: Vec<&String> = told.iter().filter(|line| line.starts_with("adopts")).collect();
    assert_eq!(
        adopted,
        ["adopts a plan of 0 actions, 0.090 ms measured, 0.045 ms of it waiting: the best of all \
          tries"]
    );
    assert_eq!(told.iter().filter(|line| line.ends_with(": no better")).count(), 2, "{told:?}");
}

#[test]
fn each_kind_of_step_is_told_by_its_name_and_what_fits_is_left_alone() {
    let mut under_test = looping(9);
    for signature in [A, Signature(0xb << 60)] {
        for _ in 0..2 {
            under_test.observe(&StepReport { op_count: 7, ..step(signature) });
        }
    }
    let lines: Vec<String> = under_test.take_news().iter().map(News::to_string).collect();
    assert_eq!(lines[0], "step 1, kind 00000000 of 7 ops: new, in WarmUp");
    assert_eq!(
        lines[1],
        "step 2, kind 00000000 of 7 ops: adopts no plan, 0.100 ms measured, 0.000 ms of it \
         waiting: everything fits"
    );
    assert!(lines.contains(&"step 3, kind b0000000 of 7 ops: new, in WarmUp".to_owned()));
}

#[test]
fn news_that_nobody_takes_do_not_pile_up() {
    let mut under_test = looping(9);
    for number in 0..3 * NEWS_KEPT as u64 {
        under_test.observe(&step(Signature(number)));
    }
    let news = under_test.take_news();
    assert_eq!(news.len(), NEWS_KEPT);
    assert_eq!(news.last().map(|last| last.step), Some(3 * NEWS_KEPT as u64));
}
