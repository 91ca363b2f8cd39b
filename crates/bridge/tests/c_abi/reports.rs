//! What reports show and the search tells: of the steps of the training, not of whatever came last.

use std::ffi::{CString, c_int, c_void};
use std::path::Path;

use adaptive::{ActionKind, Direction, Lanes, Link, Machine, Plan, Trace};
use serde_json::Value;

use super::rig::{
    BLOCK, MIB, OK, READ, READ_WRITE, Rig, begin, check, deferral, explain, free, last_error, make,
    save_report, smartswap_end, smartswap_touch, stats, step, take_news,
};

const STABLE: usize = 2;

/// A step that needs more than the cap of 8 MiB: `extra` ops more than usual at its end.
fn train(extra: u64) {
    let made: Vec<(u64, *mut c_void)> = (0..12).map(|tag| (tag, make(MIB, tag))).collect();
    for (tag, block) in made.into_iter().rev() {
        check(block, MIB, tag);
        free(block);
    }
    (0..extra).for_each(|tag| free(make(BLOCK, tag)));
    step();
}

fn use_in_op(block: *mut c_void, access: c_int) {
    assert_eq!(begin("use"), OK, "{}", last_error());
    assert_eq!(smartswap_touch(block, access), OK, "{}", last_error());
    assert_eq!(smartswap_end(), OK, "{}", last_error());
}

/// Trains until the plan has been adopted and followed for a while.
fn train_until_stable() {
    while stats().steps_by_stage[STABLE] < 5 {
        assert!(stats().steps < 400, "it does not settle: {:?}", stats());
        train(0);
    }
}

fn report(folder: &Path) -> Value {
    let path = CString::new(folder.to_str().expect("UTF-8")).expect("no zero inside");
    assert_eq!(save_report(Some(&path)), OK, "{}", last_error());
    read(&folder.join("explain.json"))
}

fn read(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("it was written");
    serde_json::from_str(&text).expect("JSON")
}

/// The plan is for the trace, and the reasons are for the plan.
fn assert_belong_together(folder: &Path) {
    let explained = report(folder);
    let trace = adaptive::load_trace(&folder.join("trace.json"), &Default::default());
    let trace = trace.expect("a trace");
    let plan = adaptive::load(&folder.join("plan.json")).expect("a plan").plan;
    assert_eq!((plan.op_count as usize, plan.signature), (trace.ops.len(), trace.signature));
    assert_eq!(trace.ops.len(), 24);
    assert!(!plan.actions.is_empty());
    assert_eq!(explained["plan_actions"], plan.actions.len());
    let decisions = explained["decisions"].as_array().expect("a list").iter();
    let moved = decisions.filter(|decision| decision["treatment"] != "keep").count();
    let leave = |action: &&adaptive::Action| {
        use adaptive::ActionKind::{Discard, SwapOut};
        matches!(action.kind, SwapOut | Discard)
    };
    assert_eq!(moved, plan.actions.iter().filter(leave).count());
    assert!(explained["measured"]["step_us"].as_f64().expect("Stable steps") > 0.0);
    assert!(explained["prediction"]["step_us"].as_f64().expect("planned") > 0.0);
}

#[test]
fn a_report_is_about_the_last_stable_step_whatever_came_after_it() {
    let rig = Rig::open(8 * MIB);
    train_until_stable();
    let folder = tempfile::tempdir().expect("a folder");
    assert_belong_together(folder.path());
    // Two more ops, under the plan of the others; then once more, under none.
    for _ in 0..2 {
        train(2);
        assert_belong_together(folder.path());
    }
    // So little that it needs no plan, until that is Stable too.
    let before = stats().steps_by_stage[STABLE];
    while stats().steps_by_stage[STABLE] < before + 5 {
        assert!(stats().steps < 400, "it does not settle: {:?}", stats());
        free(make(BLOCK, 1));
        step();
        assert_belong_together(folder.path());
    }
    rig.close();
}

/// Whether a step copied all that its plan moves, block by block. A host that is late calls some
/// back before their copies begin or before their memory has gone to others, and nothing else is
/// ever copied.
fn copies_what_is_ordered(plan: &Plan, measured: &Lanes) -> bool {
    let moved = |kind| {
        let actions = plan.actions.iter().filter(|action| action.kind == kind);
        let mut blocks: Vec<_> = actions.map(|action| Some(action.block)).collect();
        blocks.sort_unstable();
        blocks
    };
    let copied = |direction| {
        let copies = measured.copies.iter().filter(|copy| copy.direction == direction);
        let mut blocks: Vec<_> = copies.map(|copy| copy.block).collect();
        blocks.sort_unstable();
        blocks
    };
    assert!(!plan.actions.is_empty());
    let ways = [(Direction::Out, ActionKind::SwapOut), (Direction::In, ActionKind::SwapIn)];
    ways.into_iter().all(|(direction, kind)| {
        let (copied, moved) = (copied(direction), moved(kind));
        assert!(copied.iter().all(|block| moved.contains(block)), "{copied:?} of {moved:?}");
        copied == moved
    })
}

/// Trains until a step copies all that its plan moves. Not every plan has such steps: one that was
/// made while the host was busy may move what is always called back.
fn train_until_all_is_copied(folder: &Path) -> Option<(Trace, Plan, Lanes)> {
    let path = folder.join("lanes.json");
    std::fs::write(&path, "of an earlier run").expect("written");
    report(folder);
    assert!(!path.exists(), "no step was measured");
    train_until_stable();
    (0..50).find_map(|_| {
        train(0);
        report(folder);
        if !path.exists() {
            return None;
        }
        let trace = adaptive::load_trace(&folder.join("trace.json"), &Default::default());
        let trace = trace.expect("a trace");
        let plan = adaptive::load(&folder.join("plan.json")).expect("a plan").plan;
        let measured = adaptive::load_lanes(&path, &trace).expect("of this step");
        copies_what_is_ordered(&plan, &measured).then_some((trace, plan, measured))
    })
}

#[test]
fn a_report_has_a_measured_step_beside_its_prediction() {
    let folder = tempfile::tempdir().expect("a folder");
    let trained = (0..8).find_map(|_| {
        let rig = Rig::open(8 * MIB);
        match train_until_all_is_copied(folder.path()) {
            Some(found) => Some((rig, found)),
            None => {
                rig.close();
                None
            }
        }
    });
    let (rig, (trace, plan, measured)) = trained.expect("no step copies what its plan orders");
    let outermost = trace.ops.iter().filter(|op| op.depth == 0).count();
    assert_eq!(measured.ops.len(), outermost);
    assert!(measured.step_us > 0.0);
    // The same from the file itself, which has the prediction as well.
    let file = read(&folder.path().join("lanes.json"));
    let explained = report(folder.path());
    let step_us = |of: &str| file[of]["step_us"].as_f64().expect("a time");
    assert_eq!(step_us("measured"), measured.step_us);
    let number = |value: &Value| value.as_f64().expect("a number");
    let rate = |way: &str| number(&explained["link"][way]) / 1e6;
    let machine = Machine {
        limit_bytes: number(&explained["limit_bytes"]) as u64,
        host_limit_bytes: number(&explained["host_limit_bytes"]) as u64,
        link: Link {
            out_bytes_per_us: rate("out_bytes_per_s"),
            in_bytes_per_us: rate("in_bytes_per_s"),
            both_bytes_per_us: rate("both_bytes_per_s"),
        },
        copy_submit_us: Machine::COPY_SUBMIT_US,
    };
    let said_us = adaptive::simulate(&trace, &plan, &machine).step_us;
    assert!((step_us("predicted") - said_us).abs() < 1e-6 * said_us, "{said_us} {file}");
    rig.close();
}

#[test]
fn a_report_before_the_first_plan_has_none_not_even_an_earlier_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [trace, plan] = ["trace.json", "plan.json"].map(|name| folder.path().join(name));
    for stale in [&trace, &plan] {
        std::fs::write(stale, "of an earlier run").expect("written");
    }
    let rig = Rig::open(8 * MIB);
    let explained = report(folder.path());
    assert_eq!((trace.exists(), plan.exists()), (false, false));
    assert_eq!(explained["measured"], Value::Null);
    train(0);
    std::fs::write(&plan, "of an earlier run").expect("written");
    let explained = report(folder.path());
    assert_eq!(read(&trace)["ops"].as_array().map(Vec::len), Some(24));
    assert!(!plan.exists());
    assert_eq!(explained["plan_actions"], Value::Null);
    assert_eq!(explained["measured"], Value::Null, "no Stable step has run");
    // What cannot be removed is said.
    std::fs::create_dir(&plan).expect("made");
    let path = CString::new(folder.path().to_str().expect("UTF-8")).expect("no zero inside");
    assert_ne!(save_report(Some(&path)), OK);
    assert!(last_error().contains("plan.json cannot be removed"), "{}", last_error());
    rig.close();
}

#[test]
fn steps_are_counted_by_the_stage_that_they_ran_in() {
    let rig = Rig::open(8 * MIB);
    assert_eq!(stats().steps_by_stage, [0; 3]);
    train_until_stable();
    let [warm_up, search, stable] = stats().steps_by_stage;
    assert!(warm_up >= 2 && search >= 1, "{:?}", stats());
    assert_eq!(stable, 5);
    assert_eq!(stats().steps, warm_up + search + stable);
    let text = explain().expect("it is open");
    let explained: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(explained["steps_by_stage"]["Stable"], 5);
    assert_eq!(explained["steps_by_stage"]["WarmUp"], warm_up);
    rig.close();
}

#[test]
fn what_late_updates_would_save_is_told_once_there_is_a_step_with_updates() {
    let rig = Rig::open(8 * MIB);
    assert_eq!(deferral(), None);
    assert!(last_error().contains("run a few steps first"), "{}", last_error());
    train_until_stable();
    assert_eq!(deferral().as_deref(), Some("null"), "nothing lives longer than a step");
    let weights: Vec<*mut c_void> = (0..12).map(|tag| make(MIB, tag)).collect();
    let stable = stats().steps_by_stage[STABLE] + 5;
    while stats().steps_by_stage[STABLE] < stable {
        assert!(stats().steps < 400, "it does not settle: {:?}", stats());
        for &weight in &weights {
            let output = make(MIB, 1);
            use_in_op(weight, READ);
            free(output);
        }
        weights.iter().for_each(|&weight| use_in_op(weight, READ_WRITE));
        step();
    }
    let told: Value = serde_json::from_str(&deferral().expect("it is open")).expect("JSON");
    for name in ["recorded_us", "deferred_us"] {
        assert!(told[name].as_f64().is_some_and(|us| us > 0.0), "{told}");
    }
    weights.into_iter().for_each(free);
    rig.close();
}

#[test]
fn the_search_is_told_once() {
    let rig = Rig::open(8 * MIB);
    assert_eq!(take_news().as_deref(), Some(""));
    train_until_stable();
    let told = take_news().expect("it is open");
    for expect in [
        "step 1, kind ",
        " of 24 ops: new, in WarmUp\n",
        ": WarmUp -> SearchPolicy\n",
        ": tries plan 1: ",
        " ms measured, ",
        ": the best so far\n",
        ": adopts a plan of ",
        ": SearchPolicy -> Stable\n",
    ] {
        assert!(told.contains(expect), "no '{expect}' in\n{told}");
    }
    assert_eq!(take_news().as_deref(), Some(""));
    rig.close();
}

#[test]
fn a_cap_beyond_the_machine_is_left_out() {
    let rig = Rig::open(1 << 60);
    let limit_bytes = stats().limit_bytes;
    assert!((64 * MIB..1 << 50).contains(&limit_bytes), "{limit_bytes}");
    rig.close();
}
