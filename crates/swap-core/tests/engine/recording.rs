//! What a recorded step says of its ops.

use swap_core::{AccessMode, BlockId, BlockIndex, OpIndex, StepReport, Trace, TraceEvent};

use super::lab::{BLOCK, Lab, OP, read, recipe, work, write};

pub(super) fn record(lab: &mut Lab, run: impl FnOnce(&mut Lab)) -> (Trace, StepReport) {
    lab.total();
    lab.engine.set_orders(true, None).expect("between steps");
    run(lab);
    let mut report = lab.engine.end_step().expect("ends").pop().expect("recorded steps report");
    lab.engine.set_orders(false, None).expect("between steps");
    (report.trace.take().expect("it was recorded"), report)
}

/// Virtual time, so the device times are exact.
#[test]
fn the_time_of_an_op_is_that_of_its_work_without_its_waits() {
    let mut lab = Lab::new(2 * BLOCK);
    let away = lab.make(1);
    let others = [lab.make(2), lab.make(3)];
    lab.complete_all();
    let (trace, report) = record(&mut lab, |lab| {
        lab.op(&[read(others[1], 3)]).expect("reads");
        // The second op has work before it waits for a block that must be copied in.
        lab.ops.begin(OP).expect("begins");
        work(&mut lab.ops, &[read(others[1], 3)], &lab.errors).expect("works");
        lab.ops.touch(away, AccessMode::Read).expect("comes back");
        lab.ops.launch(5.0, |_| ()).expect("launches");
        lab.ops.end().expect("ends");
    });
    let times: Vec<f64> = trace.ops.iter().map(|op| op.device_us).collect();
    assert!((times[0] - 5.0).abs() < 0.01 && (times[1] - 10.0).abs() < 0.01, "{times:?}");
    assert!(report.counters.misses == 1 && report.counters.stall_us > 10.0, "{report:?}");
    lab.finish();
}

#[test]
fn ops_with_a_recipe_are_known_as_replayable() {
    let mut lab = Lab::new(4 * BLOCK);
    let block = lab.make(1);
    let (trace, _) = record(&mut lab, |lab| {
        lab.op(&[read(block, 1)]).expect("reads");
        lab.ops.begin(OP).expect("begins");
        work(&mut lab.ops, &[write(block, 2)], &lab.errors).expect("works");
        lab.ops.recipe(recipe(&[write(block, 2)], &lab.errors)).expect("an op is open");
        lab.ops.end().expect("ends");
    });
    let replayable: Vec<bool> = trace.ops.iter().map(|op| op.replayable).collect();
    assert_eq!(replayable, [false, true]);
    lab.finish();
}

/// A recorded step has no small blocks, so it says what they mean for others.
#[test]
fn what_a_change_of_a_small_block_puts_out_of_date_is_known() {
    let mut lab = Lab::new(4 * BLOCK);
    let [small, other] = [(); 2].map(|()| lab.engine.allocate(1024, "small").expect("room"));
    lab.op(&[write(small, 1), write(other, 1)]).expect("writes");
    let (trace, _) = record(&mut lab, |lab| {
        lab.derive(&[read(small, 1)], 2);
        lab.derive(&[read(other, 1)], 3);
        lab.op(&[write(small, 4)]).expect("writes");
        lab.derive(&[read(small, 4), read(other, 1)], 5);
        lab.op(&[write(small, 6)]).expect("writes");
    });
    let outdated_by: Vec<_> = trace.ops.iter().map(|op| op.outdated_by).collect();
    let [first, last] = [2, 4].map(|op| Some(OpIndex(op)));
    assert_eq!(outdated_by, [first, None, None, last, None]);
    lab.finish();
}

/// Sizes of the blocks, and the events.
type Recorded = (Vec<u64>, Vec<TraceEvent>);

/// Steps that follow each other, from the second one on.
fn record_in_a_row(lab: &mut Lab, mut step: impl FnMut(&mut Lab)) -> Vec<Recorded> {
    lab.total();
    lab.engine.set_orders(true, None).expect("between steps");
    let recorded: Vec<Recorded> = (0..4)
        .map(|_| {
            step(lab);
            let reports = lab.engine.end_step().expect("ends");
            let trace = reports.into_iter().next_back().and_then(|report| report.trace);
            let trace = trace.expect("recorded steps report at once");
            (trace.blocks.iter().map(|block| block.size_bytes).collect(), trace.events)
        })
        .collect();
    lab.engine.set_orders(false, None).expect("between steps");
    recorded[1..].to_vec()
}

/// The places of the blocks that a step frees, in its order.
fn freed((_, events): &Recorded) -> Vec<u32> {
    let freed = events.iter().filter_map(|event| match *event {
        TraceEvent::Free(BlockIndex(block)) => Some(block),
        _ => None,
    });
    freed.collect()
}

/// What an optimizer keeps is made in the first step, behind what the second one frees.
#[test]
fn a_step_is_recorded_like_the_next_although_what_stays_is_younger_than_what_it_frees() {
    let mut lab = Lab::new(16 * BLOCK);
    let weight = lab.make(1);
    let (mut gradient, mut state): (Option<BlockId>, Option<BlockId>) = (None, None);
    // Made for the next step.
    let mut batch = lab.make_sized(3 * BLOCK, 2);
    let steps = record_in_a_row(&mut lab, |lab| {
        gradient.take().into_iter().for_each(|block| lab.free(block));
        lab.op(&[read(weight, 1), read(batch, 2)]).expect("reads");
        let ahead = lab.make_sized(3 * BLOCK, 2);
        lab.free(std::mem::replace(&mut batch, ahead));
        gradient = Some(lab.make(3));
        let state = *state.get_or_insert_with(|| lab.make_sized(2 * BLOCK, 4));
        lab.op(&[read(state, 4)]).expect("reads");
    });
    assert_eq!(freed(&steps[0]), [3, 2], "the gradient, then the batch, behind what stays");
    assert_eq!(steps[0], steps[1]);
    assert_eq!(steps[1], steps[2]);
    lab.finish();
}

/// As many are always there, and the oldest one goes: all come in order as they are.
#[test]
fn what_lives_through_two_steps_is_recorded_behind_what_is_older() {
    let mut lab = Lab::new(16 * BLOCK);
    let weight = lab.make(1);
    let mut batches = std::collections::VecDeque::from([lab.make(2), lab.make(2)]);
    let steps = record_in_a_row(&mut lab, |lab| {
        lab.op(&[read(weight, 1), read(batches[0], 2)]).expect("reads");
        batches.push_back(lab.make(2));
        lab.free(batches.pop_front().expect("two are there"));
    });
    for step in &steps {
        assert_eq!(freed(step), [1]);
        assert_eq!(step, &steps[0]);
    }
    lab.finish();
}

/// The first step makes two batches, and what stays behind them.
#[test]
fn what_is_made_behind_batches_that_are_loaded_ahead_is_recorded_before_them() {
    let mut lab = Lab::new(16 * BLOCK);
    let weight = lab.make(1);
    let mut batches = std::collections::VecDeque::new();
    let mut state = None;
    let steps = record_in_a_row(&mut lab, |lab| {
        if batches.is_empty() {
            batches.push_back(lab.make(2));
        }
        batches.push_back(lab.make(2));
        if batches.len() > 2 {
            lab.free(batches.pop_front().expect("three are there"));
        }
        lab.op(&[read(weight, 1), read(batches[0], 2)]).expect("reads");
        let state = *state.get_or_insert_with(|| lab.make(3));
        lab.op(&[read(state, 3)]).expect("reads");
    });
    assert_eq!(freed(&steps[1]), [2], "behind the weight and the state");
    assert_eq!(steps[1], steps[2]);
    lab.finish();
}
