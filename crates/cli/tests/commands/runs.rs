//! `compare-runs`: two reports beside each other.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::plan::{on, recorded};
use crate::rig::{float, number, smartswap};

/// A report as a training leaves it, of the recorded step at a share of its peak.
fn report(folder: &Path, percent: u64) -> Value {
    fs::create_dir_all(folder).expect("a folder");
    let step = recorded();
    let plan = folder.join("plan.json");
    let share = format!("{percent}%");
    let args =
        ["--memory", &share, "--out", plan.to_str().expect("paths of tests are text"), "--json"];
    let planned = on("plan", &step, &args).json();
    fs::copy(&step, folder.join("trace.json")).expect("it is copied");
    let explained = json!({
        "limit_bytes": number(&planned, "budget_bytes"), "host_limit_bytes": 1u64 << 40,
        "link": { "out_bytes_per_s": 55.3e9, "in_bytes_per_s": 55.3e9, "both_bytes_per_s": 49.5e9 },
        "steps": 9, "steps_by_stage": { "WarmUp": 2, "SearchPolicy": 3, "Stable": 4 },
        "plan_actions": 7, "measured": { "step_us": 2e6, "resident_bytes_peak": 5 },
        "memory": { "allocated_bytes_peak": 11, "reserved_bytes_peak": 10 * percent },
        "prediction": {
            "step_us": float(&planned, "step_us"), "unlimited_us": 1e6, "stall_us": 0.0,
            "swapped_out_bytes": number(&planned, "swapped_out_bytes"), "swapped_in_bytes": 3,
            "recomputed_us": 5.0,
        },
        "decisions": [{ "size_bytes": 100, "treatment": "swap" }],
    });
    fs::write(folder.join("explain.json"), explained.to_string()).expect("it is written");
    planned
}

#[test]
fn two_reports_are_told_figure_by_figure_and_drawn_to_one_scale() {
    let root = tempfile::tempdir().unwrap();
    let [first, second] = ["wide", "tight"].map(|name| root.path().join(name));
    let plans = [report(&first, 90), report(&second, 60)];
    let page = root.path().join("runs.html");
    let folders = [first.to_str().unwrap(), second.to_str().unwrap()];
    let args = ["compare-runs", folders[0], folders[1], "--report", page.to_str().unwrap()];
    let ran = smartswap(&args);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let line = |name: &str| {
        let found = ran.stdout.lines().find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("{name}: {}", ran.stdout)).trim_end()
    };
    assert!(line("cap").ends_with("0.67x"), "{}", line("cap"));
    assert!(line("held at most").contains("900 B") && line("held at most").ends_with("0.67x"));
    assert!(line("step, measured").ends_with("same"));
    let object = smartswap(&[&args[..3], &["--json"]].concat()).json();
    let figures = object["figures"].as_array().unwrap();
    let moved = figures.iter().find(|figure| figure["name"] == "moved out a step").unwrap();
    for (value, plan) in moved["values"].as_array().unwrap().iter().zip(&plans) {
        assert_eq!(value.as_f64().unwrap() as u64, number(plan, "swapped_out_bytes"));
    }
    assert!(number(&plans[1], "swapped_out_bytes") > number(&plans[0], "swapped_out_bytes"));
    // Both drawings have the same marks on their axes, and each its own cap.
    let text = fs::read_to_string(page).unwrap();
    let drawings: Vec<&str> = text.split("<figure").skip(1).collect();
    assert_eq!(drawings.len(), 2);
    let marks = |drawing: &str| -> Vec<String> {
        let svg = drawing.split("</figure>").next().unwrap();
        let ticks = svg.split("class=\"tick").skip(1);
        ticks.map(|tick| tick.split("</text>").next().unwrap().to_owned()).collect()
    };
    assert!(marks(drawings[0]).len() > 4);
    assert_eq!(marks(drawings[0]), marks(drawings[1]));
    let cap = |drawing: &str| {
        let label = drawing.split("cap-label").nth(1).unwrap();
        label.split("</text>").next().unwrap().to_owned()
    };
    assert_ne!(cap(drawings[0]), cap(drawings[1]));
    assert!(!text.contains("http://") && !text.contains("https://"), "needs nothing but itself");
}

#[test]
fn a_folder_without_a_report_is_named() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().to_str().unwrap();
    let line = smartswap(&["compare-runs", folder, folder]).refusal().to_owned();
    assert!(line.contains("there is no report in") && line.contains("--report FOLDER"), "{line}");
    fs::write(root.path().join("explain.json"), "{}").unwrap();
    let line = smartswap(&["compare-runs", folder, folder]).refusal().to_owned();
    assert!(line.contains("is not a report of this version"), "{line}");
}
