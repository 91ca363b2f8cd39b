//! Budgets that a step reaches because its optimizer runs in parts, as `plan`, `simulate` and
//! `compare` see them.

use std::fs;

use serde_json::{Value, json};

use crate::plan::{on, recorded, stacked};
use crate::rig::number;

/// Below what the optimizer of the recorded step touches at once.
const TIGHT: &str = "20%";

#[test]
fn a_plan_in_parts_is_simulated_on_the_same_step_in_any_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let args = ["--memory", TIGHT, "--out", file, "--json"];
    let plan = on("plan", &recorded(), &args).json();
    let budget_bytes = number(&plan, "budget_bytes");
    assert!(number(&plan, "held_bytes_peak") <= budget_bytes);
    let parts = json!({"part_bytes": budget_bytes / 16, "op_names": ["aten::_fused_adamw_"],
        "split_ops": 1, "parts": 17});
    assert_eq!(plan["in_parts"], parts);
    let whole = on("simulate", &recorded(), &["--json"]).json();
    assert_eq!(whole["in_parts"], Value::Null);
    assert_eq!(number(&plan, "op_count"), number(&whole, "op_count") + 16);
    assert_eq!(plan["peak_before_bytes"], whole["peak_before_bytes"]);
    // With the memory that it was made for it does what was said; with others it is for the same
    // step still.
    let simulated = |args: &[&str]| {
        let ran = on("simulate", &recorded(), &[&["--plan", file, "--json"], args].concat());
        let simulated = ran.json();
        assert_eq!(simulated["in_parts"], parts, "{args:?}");
        simulated
    };
    let same = simulated(&["--memory", &budget_bytes.to_string()]);
    for field in ["op_count", "step_us", "peak_bytes", "held_bytes_peak", "stall_us", "misses"] {
        assert_eq!(same[field], plan[field], "{field}");
    }
    for memory in ["19%", "30%", "90%", "100%", "200%"] {
        simulated(&["--memory", memory]);
    }
    simulated(&[]);
    let other = folder.path().join("other.json");
    fs::write(&other, stacked(10).to_string()).unwrap();
    let refused = on("simulate", &other, &["--plan", file]);
    assert!(refused.refusal().contains("was made for another step"), "{refused:?}");
}

#[test]
fn a_plan_without_parts_is_for_the_step_as_it_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let plan = on("plan", &recorded(), &["--memory", "100%", "--out", file, "--json"]).json();
    assert_eq!(plan["in_parts"], Value::Null);
    assert!(fs::read_to_string(file).unwrap().contains("\"version\":1,"));
    let short = on("simulate", &recorded(), &["--plan", file, "--memory", TIGHT, "--json"]);
    assert_eq!(short.short_json()["in_parts"], Value::Null);
    // Without a plan it is the step that would be planned for.
    let planned = on("plan", &recorded(), &["--memory", TIGHT, "--json"]).json();
    let demand = on("simulate", &recorded(), &["--memory", TIGHT, "--json"]).json();
    assert_eq!(demand["in_parts"], planned["in_parts"]);
    assert!(number(&demand, "rescues") > 0 && demand["in_parts"].is_object(), "{demand}");
    // A step with nothing to split is planned for as before.
    let plain = folder.path().join("plain.json");
    fs::write(&plain, stacked(10).to_string()).unwrap();
    assert_eq!(on("plan", &plain, &["--memory", "50%", "--json"]).json()["in_parts"], Value::Null);
}

#[test]
fn people_are_told_in_one_line_and_all_strategies_run_the_same_step() {
    let line = "aten::_fused_adamw_ in 17 parts";
    for command in ["plan", "simulate", "compare"] {
        let ran = on(command, &recorded(), &["--memory", TIGHT]);
        assert_eq!((ran.code, ran.stdout.matches(line).count()), (0, 1), "{command}: {ran:?}");
        let free = on(command, &recorded(), &["--memory", "100%"]);
        assert!(!free.stdout.contains("parts"), "{command}: {free:?}");
    }
    let object = on("compare", &recorded(), &["--memory", TIGHT, "--json"]).json();
    let contest = &object["contests"][0];
    assert_eq!(number(&contest["in_parts"], "parts"), 17);
    let rows = contest["strategies"].as_array().unwrap();
    for name in ["swap", "joint", "keep"] {
        let row = rows.iter().find(|row| row["strategy"] == name).unwrap();
        assert_eq!(row["fits"], true, "{row}");
    }
}
