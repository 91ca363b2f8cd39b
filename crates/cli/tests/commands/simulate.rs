//! `simulate`: figures and timelines of recorded steps, and plans of other steps refused.

use std::fs;

use serde_json::{Value, json};

use crate::plan::{on, recorded, stacked};
use crate::rig::number;

#[test]
fn without_a_plan_a_step_runs_as_it_was_recorded() {
    let object = on("simulate", &recorded(), &["--json"]).json();
    let time_us = |field: &str| object[field].as_f64().expect("a number");
    // Sums in another order differ in their last digits.
    assert!((time_us("step_us") - time_us("baseline_us")).abs() < 1e-6, "{object}");
    assert!(time_us("step_us") > 900_000.0);
    assert_eq!(number(&object, "peak_bytes"), number(&object, "peak_before_bytes"));
    assert_eq!(number(&object, "swapped_out_bytes"), 0);
    assert_eq!(object["budget_bytes"], Value::Null);
    let words = on("simulate", &recorded(), &[]);
    assert_eq!(words.code, 0);
    assert!(words.stdout.contains("no limit") && words.stdout.contains("step time"));
}

#[test]
fn a_budget_without_a_plan_moves_on_demand_or_runs_out() {
    let object = on("simulate", &recorded(), &["--memory", "80%", "--json"]).json();
    assert!(number(&object, "rescues") > 0, "{object}");
    assert!(object["step_us"].as_f64() > object["baseline_us"].as_f64());
    let short = on("simulate", &recorded(), &["--memory", "5%"]);
    assert_eq!((short.code, short.stdout.as_str()), (1, ""), "{short:?}");
    assert!(short.stderr.contains("runs out of memory at"), "{short:?}");
    on("simulate", &recorded(), &["--memory", "5%", "--json"]).short_json();
}

#[test]
fn the_timeline_shows_ops_and_copies() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let timeline = folder.path().join("timeline.json");
    let page = folder.path().join("page.html");
    let (plan, timeline) = (plan.to_str().unwrap(), timeline.to_str().unwrap());
    let page = page.to_str().unwrap();
    let args = ["--memory", "80%", "--strategy", "swap"];
    let planned = on("plan", &recorded(), &[&args[..], &["--out", plan, "--json"]].concat()).json();
    let args = ["--memory", "80%", "--plan", plan, "--timeline", timeline, "--report", page];
    assert_eq!(on("simulate", &recorded(), &args).code, 0);
    let file: Value = serde_json::from_str(&fs::read_to_string(timeline).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let of = |kind: &str| -> Vec<&Value> {
        events.iter().filter(|event| event["cat"] == kind).collect()
    };
    let bytes =
        |kind: &str| -> u64 { of(kind).iter().map(|event| number(&event["args"], "bytes")).sum() };
    assert!(!of("op").is_empty());
    assert_eq!(bytes("swap-out"), number(&planned, "swapped_out_bytes"));
    assert_eq!(bytes("swap-in"), number(&planned, "swapped_in_bytes"));
    let end_us = of("op")
        .into_iter()
        .map(|event| event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap());
    let last_us = end_us.fold(0.0, f64::max);
    assert!(last_us <= planned["step_us"].as_f64().unwrap() + 1e-3);
    let counted = events.iter().filter(|event| event["ph"] == "C");
    let most = counted.map(|event| number(&event["args"], "resident_bytes")).max();
    assert_eq!(most, Some(number(&planned, "peak_bytes")));
    // The page has a row for each block of the plan, and nothing from elsewhere.
    let page = fs::read_to_string(page).unwrap();
    let file: Value = serde_json::from_str(&fs::read_to_string(plan).unwrap()).unwrap();
    let away = file["body"]["actions"].as_array().unwrap().iter();
    let away = away.filter(|action| action["kind"] == "swap_out").count();
    assert!(away > 0);
    assert_eq!(page.matches("<span class=\"badge swap\">").count(), away);
    assert!(
        page.contains("<svg") && page.contains("aten::") && !page.contains("http-equiv=\"refresh")
    );
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
}

#[test]
fn a_page_says_what_was_measured_before_what_is_simulated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("page.html");
    let headline = |args: &[&str]| {
        let page = ["--memory", "80%", "--report", path.to_str().unwrap()];
        assert_eq!(on("simulate", &recorded(), &[&page[..], args].concat()).code, 0);
        let page = fs::read_to_string(&path).unwrap();
        let head = page.split("<h1>").nth(1).and_then(|rest| rest.split("</h1>").next());
        (head.unwrap().to_owned(), page)
    };
    let (simulated, page) = headline(&[]);
    assert!(page.contains("no plan: it leaves only to make room"));
    assert!(!page.contains("plan file"), "there is none");
    assert!(simulated.ends_with(" % more time"), "{simulated}");
    assert!(page.contains("Simulated, not measured."));
    let (measured, page) = headline(&["--measured-ms", "4321.5", "--measured-peak", "123MiB"]);
    assert!(measured.starts_with("123 MiB instead of "), "{measured}");
    assert!(measured.contains(", at 4.32 s a step; "), "{measured}");
    assert!(measured.ends_with(" in the simulation"), "{measured}");
    assert!(page.contains("but for what is said to be measured"));
    assert!(page.contains("<dt>measured</dt><dd>4.32 s a step, "), "{page}");
    assert!(page.contains("x the time of its ops; 123 MiB at most</dd>"));
    let refused = on("simulate", &recorded(), &["--measured-ms", "0"]);
    assert!(refused.stderr.contains("35.2"), "{refused:?}");
}

#[test]
fn what_was_measured_stands_below_what_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (trace, lanes) = (path("trace.json"), path("lanes.json"));
    let (page, timeline) = (path("page.html"), path("timeline.json"));
    let step = stacked(10);
    fs::write(&trace, step.to_string()).unwrap();
    let ops = step["ops"].as_array().unwrap().len() as u64;
    let op = |op: u64| {
        let start_us = 7000 * op;
        json!({
            "op": op,
            "host_us": [start_us - 5 * op, start_us + 100],
            "start_us": start_us,
            "end_us": start_us + 6000,
        })
    };
    let measured = json!({
        "step_us": 7000 * ops,
        "ops": (0..ops).map(op).collect::<Vec<_>>(),
        "replays": [],
        "copies": [],
        "waits": [{ "op": 2, "copy": null, "start_us": 13_000, "end_us": 14_000 }],
    });
    let file = json!({
        "format": "smartswap-lanes",
        "version": 1,
        "measured": measured,
        "predicted": measured,
    });
    fs::write(&lanes, file.to_string()).unwrap();
    let args = ["--lanes", &lanes, "--report", &page, "--timeline", &timeline];
    let run = on("simulate", trace.as_ref(), &args);
    assert_eq!(run.code, 0, "{run:?}");
    let drawn = fs::read_to_string(&page).unwrap();
    assert!(drawn.contains("Where measurement and prediction part"));
    assert!(drawn.contains("waits for copies 1 ms, predicted 0 µs;"), "{drawn}");
    assert!(drawn.contains("<li>op 20 adam0 took 6 ms, predicted 500 µs.</li>"), "{drawn}");
    assert!(drawn.contains(">measured</text>") && drawn.contains(">host</text>"));
    let file: Value = serde_json::from_str(&fs::read_to_string(&timeline).unwrap()).unwrap();
    let events = file["traceEvents"].as_array().unwrap();
    let starts = |process: u64, kind: &str| -> Vec<f64> {
        let own = events.iter().filter(|event| event["pid"] == process && event["cat"] == kind);
        own.map(|event| event["ts"].as_f64().unwrap()).collect()
    };
    let expected: Vec<f64> = (0..ops).map(|op| 7000.0 * op as f64).collect();
    assert_eq!(starts(2, "op"), expected);
    assert_eq!(starts(2, "host").len() as u64, ops);
    assert_eq!((starts(1, "op").len() as u64, starts(1, "host").len()), (ops, 0));
    assert_ne!(starts(1, "op"), expected);
    // Of another step.
    fs::write(&trace, stacked(3).to_string()).unwrap();
    let refused = on("simulate", trace.as_ref(), &args);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("was measured of another step"), "{refused:?}");
}

#[test]
fn the_page_shows_what_other_caps_would_cost() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (caps, page) = (path("caps.json"), path("page.html"));
    let cap = |limit_mib: u64, step_us: u64, burden: &str| {
        json!({
            "limit_bytes": limit_mib << 20,
            "step_us": step_us,
            "out_bytes": 3 << 20,
            "in_bytes": 2 << 20,
            "recomputed_us": 7,
            "burden": burden,
        })
    };
    let told = json!({
        "limit_bytes": 48 << 20,
        "peak_bytes": 64 << 20,
        "unlimited_us": 1000,
        "measured_us": 1300,
        "caps": [cap(64, 1000, "none"), cap(48, 1250, "link"), cap(32, 2000, "recompute")],
        "accumulations":
            [{ "times": 2, "peak_bytes": 64 << 20, "unlimited_us": 1900, "step_us": 2090 }],
    });
    fs::write(&caps, told.to_string()).unwrap();
    let run = on("simulate", &recorded(), &["--caps", &caps, "--report", &page]);
    assert_eq!(run.code, 0, "{run:?}");
    let drawn = fs::read_to_string(&page).unwrap();
    assert!(drawn.contains("The step takes 1 ms with memory for everything."), "{drawn}");
    assert!(drawn.contains("less than about 32 MiB."), "{drawn}");
    let row = "48 MiB (this run)</th><td class=\"number\">1.25 ms</td>\
               <td class=\"number\">1.25x</td><td>3 MiB out, 2 MiB in</td><td>copies</td>";
    assert!(drawn.contains(row), "{drawn}");
    assert!(
        drawn.contains(">2x</td><td>3 MiB out, 2 MiB in</td><td>operators that run again</td>")
    );
    let words = "With 2 times as many micro-batches a step takes 2.09 ms instead of 1.9 ms, \
                 1.1 times as long.";
    assert!(drawn.contains(words), "{drawn}");
    // Without the file there is no such section.
    assert_eq!(on("simulate", &recorded(), &["--report", &page]).code, 0);
    assert!(!fs::read_to_string(&page).unwrap().contains("Under other caps"));
    for (text, says) in [("{}", "is not the caps.json of a report"), ("", "is not the caps.json")] {
        fs::write(&caps, text).unwrap();
        let refused = on("simulate", &recorded(), &["--caps", &caps, "--report", &page]);
        assert_eq!(refused.code, 2, "{refused:?}");
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
    let mut empty = told.clone();
    empty["caps"] = json!([]);
    fs::write(&caps, empty.to_string()).unwrap();
    let refused = on("simulate", &recorded(), &["--caps", &caps, "--report", &page]);
    assert!(refused.stderr.contains("tells of no cap"), "{refused:?}");
}

#[test]
fn plans_of_other_steps_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one.json"), folder.path().join("other.json"));
    fs::write(&one, stacked(10).to_string()).unwrap();
    let plan = folder.path().join("plan.json");
    let plan = plan.to_str().unwrap();
    on("plan", &one, &["--memory", "80%", "--out", plan, "--json"]).json();
    assert_eq!(on("simulate", &one, &["--plan", plan]).code, 0);
    let refused = |expect: &str| {
        let ran = on("simulate", &other, &["--plan", plan]);
        let line = ran.refusal().to_owned();
        for expect in [expect, "plan.json", "other.json", "another step"] {
            assert!(line.contains(expect), "'{line}' does not say '{expect}'");
        }
    };
    fs::write(&other, stacked(9).to_string()).unwrap();
    refused("op_count is 30");
    let mut file = stacked(10);
    file["ops"][3]["name"] = "another".into();
    fs::write(&other, file.to_string()).unwrap();
    refused("signature");
    let ran = on("simulate", &one, &["--plan", other.to_str().unwrap()]);
    assert!(ran.refusal().contains("not a plan file"), "{ran:?}");
}
