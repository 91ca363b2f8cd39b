//! Tests of what the loop's settings change.

use super::*;

fn looping_with(config: LoopConfig) -> Loop<Counting> {
    Loop::new(config, Counting { made: 0, last: 9, margins: Vec::new() })
}

fn of_ops(report: StepReport, op_count: u32) -> StepReport {
    StepReport { op_count, ..report }
}

#[test]
fn so_many_steps_warm_up() {
    for warmup_steps in [1, 2, 5] {
        let mut under_test = looping_with(LoopConfig { warmup_steps, ..config() });
        for _ in 1..warmup_steps {
            assert_eq!(under_test.observe(&rescued(A)).stage, Stage::WarmUp);
        }
        assert_eq!(under_test.observe(&rescued(A)).stage, Stage::SearchPolicy);
    }
}

#[test]
fn so_many_plans_are_tried() {
    for search_steps in [1, 2, 4] {
        let mut under_test = looping_with(LoopConfig { search_steps, ..config() });
        for _ in 0..40 {
            under_test.observe(&rescued(A));
            if under_test.stage() == Stage::Stable {
                break;
            }
        }
        assert_eq!(under_test.planner().made, search_steps);
    }
}

#[test]
fn steps_of_almost_as_many_ops_count_as_the_same() {
    let with = |op_diff_share: f64| {
        let mut under_test = looping_with(LoopConfig { op_diff_share, ..config() });
        under_test.observe(&of_ops(rescued(A), 100));
        under_test.observe(&of_ops(rescued(B), 104)).stage
    };
    assert_eq!(with(0.0), Stage::WarmUp, "another kind, which has to warm up by itself");
    assert_eq!(with(0.04), Stage::WarmUp, "as different as the share is different");
    assert_eq!(with(0.05), Stage::SearchPolicy);
}

#[test]
fn a_similar_step_neither_drops_the_plan_nor_is_taken_for_its_measure() {
    let c = Signature(0xc);
    let mut under_test = looping_with(LoopConfig { op_diff_share: 0.05, ..config() });
    for report in [rescued(A), rescued(A), step(A), step(A), step(A)] {
        under_test.observe(&of_ops(report, 100));
    }
    let stable = |directive: Directive| (directive.stage, plan_number(&directive));
    for _ in 0..20 {
        let left_the_plan = StepReport { counters: rescued(c).counters, ..drifted(c) };
        let directive = under_test.observe(&of_ops(left_the_plan, 98));
        assert_eq!(stable(directive), (Stage::Stable, 1));
    }
    // A step that is really another one is another kind, as ever.
    under_test.observe(&of_ops(step(B), 200));
    assert_eq!(stable(under_test.observe(&of_ops(step(B), 200))), (Stage::WarmUp, 0));
    // And one that was known before it became similar keeps its own place.
    let mut under_test = looping_with(LoopConfig { op_diff_share: 0.05, ..config() });
    for (kind, ops) in [(A, 100), (B, 200), (A, 100), (B, 101)] {
        under_test.observe(&of_ops(rescued(kind), ops));
    }
    assert!(under_test.tracks.contains_key(&B));
}

#[test]
fn margins_are_those_that_were_asked_for() {
    let margins = |first_bytes: Option<u64>, more_bytes: Option<u64>| {
        let margin = MarginConfig { first_bytes, more_bytes };
        let mut under_test = looping_with(LoopConfig { margin, ..config() });
        for _ in 0..9 {
            under_test.observe(&rescued(A));
        }
        under_test.planner().margins.clone()
    };
    assert_eq!(margins(None, None), [0, LIMIT_BYTES / 32, LIMIT_BYTES / 16]);
    assert_eq!(margins(Some(5000), None), [5000, 10_000, 20_000]);
    assert_eq!(margins(None, Some(700)), [0, 700, 1400]);
    assert_eq!(margins(Some(5000), Some(700)), [5700, 6400, 7100]);
}
