//! What a recorded step says of its ops.

use swap_core::{AccessMode, StepReport, Trace};

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
