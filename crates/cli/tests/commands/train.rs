//! `train`: the same bits under every cap and strategy, and reports that others can read.

use std::fs;

use serde_json::Value;

use crate::rig::{names_in, number, train};

/// Enough for three tries, each a step longer than it need be.
const STEPS: &str = "24";

const STRATEGIES: [&str; 4] = ["keep", "swap", "recompute", "joint"];

/// What the tiny model takes without a cap.
fn uncapped_bytes() -> u64 {
    number(&train(&["--steps", "1", "--json"]).json(), "peak_uncapped_bytes")
}

/// A cap of this share of the step leaves every planner something to choose from.
const AMPLE_PERCENT: u64 = 50;

/// How often a step under a plan, or one without where none was found, moved a block on demand.
fn on_demand_per_step(object: &Value) -> f64 {
    let modes = object["mode_by_step"].as_array().expect("a list");
    let stable = modes.iter().filter(|mode| *mode == "Stable").count();
    let steps = if stable > 0 { stable } else { modes.len() };
    (number(object, "misses") + number(object, "rescues")) as f64 / steps as f64
}

fn check_verified(object: &Value, limit_bytes: u64, strategy: &str) {
    assert_eq!(object["bit_identical"], true, "{object}");
    assert!(number(object, "memory_limit_bytes") <= limit_bytes);
    assert!(number(object, "peak_device_bytes") <= number(object, "memory_limit_bytes"));
    let modes = object["mode_by_step"].as_array().expect("a list");
    assert_eq!(modes.len().to_string(), STEPS);
    assert_eq!(object["losses"].as_array().map(Vec::len), Some(modes.len()));
    // A loaded machine may make a Stable step so slow that the search is taken up again.
    assert!(modes[0] == "WarmUp" && modes.contains(&Value::from("Stable")), "{modes:?}");
    let is_short = number(object, "peak_uncapped_bytes") > limit_bytes;
    let moved =
        number(object, "swapped_out_bytes_per_step") + number(object, "recomputed_ops_per_step");
    assert_eq!(moved > 0, is_short, "{strategy} at {limit_bytes}: {object}");
}

#[test]
fn large_caps_and_strategies_change_no_bit() {
    check_caps(&[100, 70]);
}

#[test]
fn small_caps_and_strategies_change_no_bit() {
    check_caps(&[50, 35]);
}

/// Trains under caps, in percent of what the training needs, with each strategy.
fn check_caps(percents: &[u64]) {
    let uncapped_bytes = uncapped_bytes();
    for &percent in percents {
        let limit_bytes = uncapped_bytes * percent / 100;
        let mut without_plan = 0.0;
        for strategy in STRATEGIES {
            let memory = limit_bytes.to_string();
            let ran = train(&[
                "--memory",
                &memory,
                "--strategy",
                strategy,
                "--steps",
                STEPS,
                "--verify",
                "--json",
            ]);
            if ran.code == 2 {
                let line = ran.refusal();
                assert!(line.contains("out of device memory"), "{line}");
                assert!(percent < AMPLE_PERCENT, "{percent} % must do for {strategy}: {line}");
                continue;
            }
            let object = ran.json();
            check_verified(&object, limit_bytes, strategy);
            let on_demand = on_demand_per_step(&object);
            if strategy == "keep" {
                assert_eq!(on_demand > 0.0, percent < 100, "{object}");
                without_plan = on_demand;
            } else if percent >= AMPLE_PERCENT {
                assert_eq!(on_demand, 0.0, "{strategy} at {percent} %: {object}");
            } else {
                // Where little can be recomputed at all, the best plan may leave some to demand.
                assert!(on_demand < without_plan / 2.0, "{strategy} at {percent} %: {object}");
            }
        }
    }
}

#[test]
fn a_cap_at_which_nothing_can_help_is_refused_with_the_least_that_works() {
    let refused = train(&["--memory", "2MiB", "--json"]);
    let line = refused.refusal();
    assert!(line.contains("too small") && line.contains("out of device memory"), "{line}");
    let least = line.split("--memory ").nth(1).and_then(|rest| rest.split(' ').next());
    let least = least.unwrap_or_else(|| panic!("no way out is named: {line}"));
    let ran = train(&["--memory", least, "--steps", "8", "--verify", "--json"]);
    assert_eq!(ran.json()["bit_identical"], true);
    let below = (least.parse::<u64>().unwrap() - 65_536).to_string();
    train(&["--memory", &below, "--json"]).refusal();
}

#[test]
fn the_object_has_exactly_the_documented_fields() {
    let ran = train(&["--steps", "6", "--json"]);
    assert_eq!(ran.stderr, "", "no progress bar without a terminal");
    let object = ran.json();
    let fields: Vec<&String> = object.as_object().unwrap().keys().collect();
    let mut expected = [
        "mode_by_step",
        "losses",
        "bit_identical",
        "memory_limit_bytes",
        "peak_device_bytes",
        "peak_uncapped_bytes",
        "swapped_out_bytes_per_step",
        "swapped_in_bytes_per_step",
        "recomputed_ops_per_step",
        "misses",
        "rescues",
        "step_ms",
        "step_ms_uncapped",
    ];
    expected.sort_unstable();
    let mut found = fields;
    found.sort();
    assert_eq!(found, expected);
    assert!(object["bit_identical"].is_null(), "nothing was compared");
    let half = number(&object, "peak_uncapped_bytes") / 2;
    let limit_bytes = number(&object, "memory_limit_bytes");
    assert!(limit_bytes <= half && half - limit_bytes < 65_536, "the default is half");
}

#[test]
fn a_person_sees_the_plan_of_the_run_and_a_table() {
    let ran = train(&["--steps", "6"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for expect in ["half of that; see --memory", "time per step", "rescues", "of the memory"] {
        assert!(ran.stdout.contains(expect), "{}", ran.stdout);
    }
    assert!(!ran.stdout.contains('\u{1b}'), "no colours without a terminal");
}

#[test]
fn the_same_seed_gives_the_same_losses_and_another_does_not() {
    let losses = |args: &[&str]| train(args).json()["losses"].clone();
    let first = losses(&["--steps", "4", "--json"]);
    assert_eq!(first, losses(&["--steps", "4", "--json", "--strategy", "keep"]));
    assert_ne!(first, losses(&["--steps", "4", "--json", "--seed", "2"]));
    assert_ne!(first, losses(&["--steps", "4", "--json", "--untied"]));
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    fs::write(&text, "the same words again and again, ".repeat(20)).unwrap();
    let text = text.to_str().unwrap();
    assert_ne!(first, losses(&["--steps", "4", "--json", "--text", text]));
}

#[test]
fn out_holds_four_files_that_parse() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("new/out");
    let path = out.to_str().unwrap();
    // No step is slow: on a busy machine a new search would begin, and no last step be drawn.
    let config = folder.path().join("patient.toml");
    fs::write(&config, "slow_ratio = 1000000.0\n").unwrap();
    let config = ["--config", config.to_str().unwrap()];
    let flags = ["--steps", STEPS, "--strategy", "swap", "--out", path, "--json"];
    let object = train(&[&config[..], &flags].concat()).json();
    assert_eq!(object["mode_by_step"].as_array().unwrap().last().unwrap(), "Stable");
    assert_eq!(names_in(&out), ["plan.json", "report.html", "timeline.json", "trace.json"]);
    let read = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let parse = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();

    let plan = parse("plan.json");
    assert_eq!(plan["format"], "smartswap-plan");
    assert!(!plan["body"]["actions"].as_array().unwrap().is_empty());
    let trace = parse("trace.json");
    let tensors = trace["tensors"].as_array().unwrap();

    let timeline = parse("timeline.json");
    let events = timeline["traceEvents"].as_array().unwrap();
    let copied = |category: &str| -> u64 {
        let copies = events.iter().filter(|event| event["cat"] == category);
        copies
            .map(|copy| {
                let is_it = |tensor: &Value| {
                    tensor["name"] == copy["args"]["tensor"]
                        && tensor["bytes"] == copy["args"]["bytes"]
                };
                assert!(tensors.iter().any(is_it), "{copy} is of no tensor");
                number(&copy["args"], "bytes")
            })
            .sum()
    };
    assert_eq!(copied("swap-out"), number(&object, "swapped_out_bytes_per_step"));
    assert_eq!(copied("swap-in"), number(&object, "swapped_in_bytes_per_step"));
    let ops = events.iter().filter(|event| event["cat"] == "op").count();
    assert!(ops > 0);
    assert_eq!(ops, trace["ops"].as_array().unwrap().len());

    let page = read("report.html");
    assert!(page.starts_with("<!doctype html>") || page.starts_with("<!DOCTYPE html>"));
    assert!(page.trim_end().ends_with("</html>") && page.contains("<svg"));
}

#[test]
fn a_saved_plan_saves_the_search() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    train(&["--steps", "10", "--out", path, "--json"]).json();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    // A busy machine may take many steps to see that no other plan is better.
    let again = train(&["--steps", "40", "--plan", plan, "--verify", "--json"]).json();
    let modes = again["mode_by_step"].as_array().unwrap();
    assert!(!modes.contains(&Value::from("WarmUp")), "{modes:?}");
    assert!(modes.contains(&Value::from("Stable")), "{modes:?}");
    assert_eq!(again["bit_identical"], true);
    // Another model's plan is refused before anything runs.
    let other = train(&["--plan", plan, "--batch", "17", "--json"]);
    assert!(other.refusal().contains("another model"), "{other:?}");
}

#[test]
fn moments_stay_when_asked_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let moved = |place: &str| -> usize {
        // A model of mostly weights and moments, under a cap that holds with or without moving
        // the moments, and so low that they move whatever the operators' times were.
        let model = ["--hidden", "256", "--batch", "4", "--memory", "26MiB"];
        let args = [&model[..], &["--optimizer-state", place]].concat();
        let more = ["--steps", "10", "--strategy", "swap", "--verify", "--json", "--out", path];
        let object = train(&[&args[..], &more].concat()).json();
        assert_eq!(object["bit_identical"], true);
        let parse = |name: &str| -> Value {
            serde_json::from_str(&fs::read_to_string(folder.path().join(name)).unwrap()).unwrap()
        };
        let (plan, trace) = (parse("plan.json"), parse("trace.json"));
        let actions = plan["body"]["actions"].as_array().unwrap();
        assert!(!actions.is_empty(), "there is a plan");
        let name = |action: &Value| {
            let tensor = &trace["tensors"][number(action, "block") as usize];
            tensor["name"].as_str().unwrap().to_owned()
        };
        actions.iter().filter(|action| name(action).starts_with("adamw.")).count()
    };
    assert!(moved("swap") > 0, "moments are what is easiest to move here");
    assert_eq!(moved("device"), 0);
}
