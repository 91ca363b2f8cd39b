//! Files of several steps: one plan for all sizes, each step beside what was predicted of it, and
//! steps of other ops refused.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::plan::{on, stacked};
use crate::rig::{float, number};

const LAYERS: usize = 10;

/// Steps whose activations have so many eighths of the largest's 64 MiB, one behind the other.
fn record(folder: &Path, eighths: &[u64]) -> PathBuf {
    let step = |&eighths: &u64| {
        let mut step = stacked(LAYERS);
        let made = |tensor: &&mut Value| tensor["alloc"] != json!(-1);
        for tensor in step["tensors"].as_array_mut().expect("a list").iter_mut().filter(made) {
            tensor["bytes"] = json!(number(tensor, "bytes") * eighths / 8);
        }
        for op in step["ops"].as_array_mut().expect("a list") {
            op["us"] = json!(float(op, "us") * eighths as f64 / 8.0);
        }
        step.to_string() + "\n"
    };
    let path = folder.join("steps.json");
    fs::write(&path, eighths.iter().map(step).collect::<String>())
        .expect("the folder can be written");
    path
}

#[test]
fn one_plan_serves_all_sizes() {
    let folder = tempfile::tempdir().unwrap();
    let steps = record(folder.path(), &[4, 8, 6, 5]);
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let args = ["--memory", "75%", "--strategy", "swap"];
    let planned = on("plan", &steps, &[&args[..], &["--out", file, "--json"]].concat()).json();
    let members = planned["members"].as_array().unwrap();
    assert_eq!(members.len(), 4);
    assert_eq!(float(&planned, "step_us"), float(&members[1], "step_us"), "the largest");
    assert!(number(&planned, "swapped_out_bytes") > 0);
    for (index, member) in members.iter().enumerate() {
        assert_eq!(number(member, "step"), index as u64 + 1);
        let figure = |name: &str| {
            [
                float(member, &format!("recorded_{name}")),
                float(member, &format!("predicted_{name}")),
            ]
        };
        let [recorded, predicted] = figure("peak_bytes");
        assert!((predicted / recorded - 1.0).abs() < 0.02, "{member}");
        let [recorded, predicted] = figure("us");
        assert!((predicted / recorded - 1.0).abs() < 0.02, "{member}");
        assert!(float(member, "ratio") >= 1.0 - 1e-9, "{member}");
        assert!(float(member, "step_us") <= float(&planned, "step_us"));
    }
    // The simulation finds the step that the plan is for, and the others with it.
    let simulated = on("simulate", &steps, &["--memory", "75%", "--plan", file, "--json"]).json();
    assert_eq!(simulated["members"], planned["members"]);
    assert_eq!(simulated["step_us"], planned["step_us"]);
    // People see a row for each.
    for command in ["plan", "simulate"] {
        let args: &[&str] = if command == "plan" { &args } else { &["--plan", file] };
        let said = on(command, &steps, args);
        assert_eq!(said.code, 0, "{said:?}");
        let rows = said.stdout.lines().filter(|line| line.trim_end().ends_with('x')).count();
        assert_eq!(rows, 4, "{}", said.stdout);
    }
}

#[test]
fn a_step_alone_has_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let step = record(folder.path(), &[8]);
    let planned = on("plan", &step, &["--memory", "75%", "--json"]).json();
    assert_eq!(planned["members"], json!([]));
    assert!(!on("plan", &step, &["--memory", "75%"]).stdout.contains("under the plan"));
}

#[test]
fn strategies_are_held_against_the_plan_of_the_largest() {
    let folder = tempfile::tempdir().unwrap();
    let steps = record(folder.path(), &[4, 8, 6]);
    let plot = folder.path().join("plot.svg");
    let args = ["--memory", "75%", "--plot", plot.to_str().unwrap(), "--json"];
    let answer = on("compare", &steps, &args).json();
    let contests = answer["contests"].as_array().unwrap();
    let names: Vec<&str> = contests.iter().filter_map(|one| one["trace"].as_str()).collect();
    assert_eq!(names, ["steps, step 1", "steps, step 2", "steps, step 3"]);
    let row = |contest: &Value, name: &str| {
        let rows = contest["strategies"].as_array().unwrap();
        rows.iter().find(|row| row["strategy"] == name).unwrap().clone()
    };
    for contest in contests {
        assert_eq!(contest["budget_bytes"], contests[0]["budget_bytes"], "one for all");
        let (own, of_largest) = (row(contest, "joint"), row(contest, "joint-of-largest"));
        assert_eq!(of_largest["fits"], json!(true));
        assert!(float(&of_largest, "step_us") >= float(&own, "step_us") * 0.999, "{contest}");
    }
    let largest = &contests[1];
    assert_eq!(row(largest, "joint")["step_us"], row(largest, "joint-of-largest")["step_us"]);
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
}

#[test]
fn steps_of_other_ops_need_plans_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let steps = record(folder.path(), &[8, 4]);
    let text = fs::read_to_string(&steps).unwrap();
    let (first, second) = text.split_once('\n').unwrap();
    let other = second.replacen("forward2", "elsewhere", 1);
    fs::write(&steps, format!("{first}\n{other}")).unwrap();
    for command in ["plan", "simulate", "compare"] {
        let refused = on(command, &steps, &["--memory", "75%"]);
        let line = refused.refusal();
        assert!(line.contains("step 2 has other ops than step 1, from op 2 on"), "{line}");
        assert!(line.contains("one line of it at a time"), "{line}");
    }
    // One that is cut short is not passed over.
    fs::write(&steps, &text[..text.len() - 20]).unwrap();
    let refused = on("plan", &steps, &["--memory", "75%"]);
    assert!(refused.refusal().contains("is damaged: EOF"), "{refused:?}");
}
