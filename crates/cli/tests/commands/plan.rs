//! `plan` and `simulate`: plans for recorded steps hold their budget, and say what they cost.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::rig::{Ran, float, names_in, number, smartswap};

/// A step recorded on a GPU.
pub(crate) fn recorded() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policy/tests/data/gpt12k.json.gz")
}

/// Runs a command on a trace.
pub(crate) fn on(command: &str, trace: &Path, args: &[&str]) -> Ran {
    let trace = trace.to_str().expect("paths of tests are text");
    smartswap(&[&[command, trace], args].concat())
}

/// `layers` layers with one activation of 64 MiB each, forward and backward, and an optimizer
/// whose state is larger than the activations but used by one small op each.
pub(crate) fn stacked(layers: usize) -> Value {
    let op = |name: String, us: f64, reads: Vec<usize>, writes: Vec<usize>, outputs: Vec<usize>| {
        json!({"name": name, "depth": 0, "us": us, "reads": reads, "writes": writes,
            "outputs": outputs})
    };
    let (mut ops, mut tensors) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let reads = if layer == 0 { vec![] } else { vec![layer - 1] };
        ops.push(op(format!("forward{layer}"), 2000.0, reads, vec![], vec![layer]));
        let free = 2 * layers - layer;
        tensors.push(json!({"bytes": 64 << 20, "alloc": layer + 1, "free": free}));
    }
    for layer in (0..layers).rev() {
        ops.push(op(format!("backward{layer}"), 4000.0, vec![layer], vec![], vec![]));
    }
    for layer in 0..layers {
        let state = layers + layer;
        ops.push(op(format!("adam{layer}"), 500.0, vec![state], vec![state], vec![]));
        tensors.push(json!({"bytes": 128 << 20, "alloc": -1, "free": -1}));
    }
    json!({"meta": {"step_ms": 70.0}, "ops": ops, "tensors": tensors})
}

fn write_stacked(folder: &Path) -> PathBuf {
    let path = folder.join("step.json");
    fs::write(&path, stacked(10).to_string()).expect("the folder can be written");
    path
}

#[test]
fn a_plan_holds_its_budget_and_the_simulation_agrees() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    for trace in [write_stacked(folder.path()), recorded()] {
        for strategy in ["swap", "joint", "recompute"] {
            let args = ["--memory", "85%", "--strategy", strategy, "--out", file, "--json"];
            let plan = on("plan", &trace, &args).json();
            assert_eq!(plan["infeasible"], Value::Null, "{strategy}");
            let (budget, before) =
                (number(&plan, "budget_bytes"), number(&plan, "peak_before_bytes"));
            assert!(budget.abs_diff(before * 85 / 100) <= 1, "{budget} of {before}");
            assert!(
                number(&plan, "peak_bytes") <= budget && number(&plan, "held_bytes_peak") <= budget
            );
            let moved = number(&plan, "swapped_out_bytes") + number(&plan, "recomputed_ops");
            assert!(moved > 0, "{strategy}: {plan}");
            assert!(float(&plan, "step_us") >= float(&plan, "baseline_us") - 1e-6);
            let added_us = float(&plan, "step_us") - float(&plan, "baseline_us");
            assert!(added_us + 1e-6 >= float(&plan, "bound_us"), "{strategy}: {plan}");
            assert!(float(&plan, "plan_ms") > 0.0);
            let layout_bytes = number(&plan, "layout_bytes");
            assert!(layout_bytes >= number(&plan, "peak_bytes"), "{strategy}: {plan}");
            assert!(float(&plan, "layout_ratio") < 1.2, "{strategy}: {plan}");
            let args = ["--memory", &budget.to_string(), "--plan", file, "--json"];
            let simulated = on("simulate", &trace, &args).json();
            for field in [
                "op_count",
                "budget_bytes",
                "peak_before_bytes",
                "peak_bytes",
                "held_bytes_peak",
                "baseline_us",
                "step_us",
                "stall_us",
                "swapped_out_bytes",
                "swapped_in_bytes",
                "recomputed_us",
                "misses",
                "rescues",
            ] {
                assert_eq!(simulated[field], plan[field], "{strategy}: {field}");
            }
            assert_eq!(simulated["infeasible"], Value::Null);
        }
    }
}

#[test]
fn the_object_has_exactly_the_documented_fields() {
    let plan = on("plan", &recorded(), &["--memory", "90%", "--json"]).json();
    let fields: Vec<&str> = plan.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = [
        "trace",
        "op_count",
        "in_parts",
        "strategy",
        "prefer",
        "budget_bytes",
        "peak_before_bytes",
        "peak_bytes",
        "held_bytes_peak",
        "host_bytes_peak",
        "layout_bytes",
        "layout_ratio",
        "recorded_us",
        "baseline_us",
        "step_us",
        "bound_us",
        "gap_fraction",
        "gap_reason",
        "swapped_out_bytes",
        "swapped_in_bytes",
        "recomputed_ops",
        "recomputed_us",
        "stall_us",
        "misses",
        "rescues",
        "plan_ms",
        "infeasible",
        "short_at",
        "members",
        "decisions",
    ];
    expected.sort_unstable();
    let mut fields = fields;
    fields.sort_unstable();
    assert_eq!(fields, expected);
    let decision = &plan["decisions"][0];
    assert!(decision["name"].as_str().unwrap().starts_with("tensor "), "{decision}");
}

#[test]
fn activations_move_first_and_optimizer_state_where_those_cannot_do() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_stacked(folder.path());
    let plan = |args: &[&str]| on("plan", &trace, &[args, &["--json"]].concat()).json();
    let first = ["--prefer", "performance"];
    let moves_state = |plan: &Value| {
        let decisions = plan["decisions"].as_array().unwrap().iter();
        decisions.filter(|row| row["treatment"] != "keep").any(|row| row["size_bytes"] == 128 << 20)
    };
    // All activations are a third of the peak.
    let some = plan(&[&["--memory", "80%"], &first[..]].concat());
    assert_eq!((some["prefer"].as_str(), moves_state(&some)), (Some("performance"), false));
    let all = plan(&[&["--memory", "40%"], &first[..]].concat());
    assert_eq!((all["prefer"].as_str(), moves_state(&all)), (Some("memory"), true));
    assert_eq!(all["infeasible"], Value::Null);
    let asked = plan(&["--memory", "80%", "--prefer", "memory"]);
    assert_eq!(asked["prefer"], "memory");
    // Without a wish, what is faster stands.
    let either = plan(&["--memory", "80%"]);
    let fastest_us = float(&some, "step_us").min(float(&asked, "step_us"));
    assert!(float(&either, "step_us") <= fastest_us, "{either}");
    let words = on("plan", &trace, &[&["--memory", "40%"], &first[..]].concat());
    assert!(words.stdout.contains("activations alone cannot reach the budget"), "{}", words.stdout);
}

#[test]
fn limits_on_what_moves_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_stacked(folder.path());
    let ran = |args: &[&str]| {
        let fixed = ["--memory", "80%", "--strategy", "swap", "--json"];
        on("plan", &trace, &[&fixed[..], args].concat())
    };
    let plan = |args: &[&str]| ran(args).json();
    let free = plan(&[]);
    let moved = number(&free, "swapped_out_bytes");
    assert!(moved >= 5 * (64 << 20), "{free}");
    // Two blocks are not enough.
    let capped = ran(&["--bucket", "128MiB"]).short_json();
    let planned: u64 = capped["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["treatment"] == "swap")
        .map(|row| number(row, "size_bytes"))
        .sum();
    assert_eq!(planned, 128 << 20);
    // Activations are too small to move, so the state has to.
    let large = plan(&["--min-size", "100MiB"]);
    assert_eq!((large["prefer"].as_str(), &large["infeasible"]), (Some("memory"), &Value::Null));
    let small = |row: &Value| row["size_bytes"] == 64 << 20 && row["treatment"] != "keep";
    assert!(!large["decisions"].as_array().unwrap().iter().any(small));
    // The host holds all that is away at once.
    ran(&["--host-memory", "128MiB"]).short_json();
    let host_bytes = number(&free, "host_bytes_peak");
    let host = plan(&["--host-memory", &host_bytes.to_string()]);
    assert!(number(&host, "host_bytes_peak") <= host_bytes, "{host}");
    let reserve = plan(&["--reserve", "200MiB"]);
    assert!(number(&reserve, "peak_bytes") + (200 << 20) <= number(&reserve, "budget_bytes"));
    let slow = plan(&["--link-out", "2GB/s", "--link-in", "2GB/s", "--link-both", "1GB/s"]);
    assert!(float(&slow, "step_us") > float(&free, "step_us"));
}

#[test]
fn a_size_below_all_that_can_move_is_said_to_change_nothing() {
    let words = |size| on("plan", &recorded(), &["--memory", "90%", "--min-size", size]).stdout;
    assert!(words("1MiB").contains("1 MiB changes nothing"));
    assert!(!words("16MiB").contains("changes nothing"));
}

#[test]
fn a_budget_out_of_reach_names_what_holds_the_memory() {
    let trace = recorded();
    let args = ["--memory", "8%", "--strategy", "swap"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let out = [&args[..], &["--out", file.to_str().unwrap()]].concat();
    let ran = on("plan", &trace, &out);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    let line = ran.stderr.strip_suffix('\n').expect("a whole line");
    assert!(!line.contains('\n') && line.contains("more are needed at autograd::"), "{line}");
    assert!(line.contains("tensor ") && line.contains("in use"), "{line}");
    assert!(names_in(folder.path()).is_empty(), "there is no plan to keep");
    let object = on("plan", &trace, &[&args[..], &["--json"]].concat()).short_json();
    let missing = number(&object, "infeasible");
    assert!(object["step_us"].is_null() && object["peak_bytes"].is_null(), "{object}");
    let largest = object["short_at"]["largest_blocks"].as_array().unwrap();
    assert!(!largest.is_empty() && largest[0]["size_bytes"].as_u64() > Some(8 << 20), "{object}");
    // With what it says is missing, there is a plan.
    let enough = (number(&object, "budget_bytes") + missing).to_string();
    assert!(line.ends_with(&enough), "{line}");
    let ran = on("plan", &trace, &["--memory", &enough, "--strategy", "swap", "--json"]);
    assert_eq!(ran.json()["infeasible"], Value::Null);
}

#[test]
fn the_setting_that_is_short_is_named_and_what_is_named_is_enough() {
    let folder = tempfile::tempdir().unwrap();
    let trace = write_stacked(folder.path());
    let peak_bytes =
        number(&on("plan", &trace, &["--memory", "100%", "--json"]).json(), "peak_before_bytes");
    let swap = ["--strategy", "swap"];
    let tight = [
        ["--host-memory", "64MiB", "raise --host-memory to at least "],
        ["--bucket", "64MiB", "raise --bucket to at least "],
        ["--min-size", "1GiB", "lower --min-size to at most "],
        ["--reserve", "1100MiB", "leave out --reserve"],
    ];
    for [flag, value, expect] in tight {
        // With a cap on what leaves, nothing is left to demand.
        let cap = if flag == "--bucket" { &[][..] } else { &["--bucket", "1TiB"] };
        let fixed = [&swap[..], cap, &["--memory", "60%"]].concat();
        let ran = on("plan", &trace, &[&fixed[..], &[flag, value]].concat());
        let line = ran.stderr.strip_suffix('\n').expect("a whole line");
        let (_, advice) = line.split_once(expect).unwrap_or_else(|| panic!("{flag}: {line}"));
        let eased: String = advice.chars().take_while(char::is_ascii_digit).collect();
        if !eased.is_empty() {
            let args = [&fixed[..], &[flag, &eased, "--json"]].concat();
            assert_eq!(on("plan", &trace, &args).json()["infeasible"], Value::Null, "{line}");
        }
        let (_, memory) = line.rsplit_once(' ').expect("there are words");
        let memory_bytes: u64 = memory.parse().expect("it ends with a size");
        assert!(memory_bytes <= peak_bytes + (1100 << 20), "{line}");
        assert!(memory_bytes <= peak_bytes || flag == "--reserve", "{line}");
        let args = [&swap[..], cap, &["--memory", memory, flag, value, "--json"]].concat();
        assert_eq!(on("plan", &trace, &args).json()["infeasible"], Value::Null, "{line}");
    }
    // One alone does not help.
    let fixed = ["--memory", "60%", "--strategy", "swap"];
    let both = on(
        "plan",
        &trace,
        &[&fixed[..], &["--host-memory", "1MiB", "--reserve", "1100MiB"]].concat(),
    );
    assert!(
        both.stderr.contains("leave out --host-memory and --reserve and --strategy, or raise"),
        "{both:?}"
    );
}

#[test]
fn names_of_a_file_reach_the_terminal_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("step.json");
    let mut file = stacked(10);
    for op in file["ops"].as_array_mut().unwrap() {
        op["name"] = json!("bad\n\u{1b}[31mred\rname");
    }
    fs::write(&trace, file.to_string()).unwrap();
    let shown = on("plan", &trace, &["--memory", "80%"]);
    let short = on("plan", &trace, &["--memory", "1%"]);
    let compared = on("compare", &trace, &["--memory", "60%"]);
    for (ran, text) in
        [(&shown, &shown.stdout), (&short, &short.stderr), (&compared, &compared.stdout)]
    {
        assert!(!text.contains(['\u{1b}', '\r']), "{ran:?}");
    }
    assert!(shown.stdout.contains(r"bad\n\u{1b}[31mred\rname #"), "{}", shown.stdout);
    assert_eq!(short.stderr.matches('\n').count(), 1, "{short:?}");
}

#[test]
fn a_plan_that_moves_nothing_is_one_for_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    for trace in [write_stacked(folder.path()), recorded()] {
        // Everything is left to demand, or everything fits.
        for args in
            [["--strategy", "keep", "--memory", "80%"], ["--strategy", "joint", "--memory", "100%"]]
        {
            let planned = on("plan", &trace, &[&args[..], &["--out", file, "--json"]].concat());
            let planned = planned.json();
            assert_eq!(number(&planned, "swapped_out_bytes") > 0, args[1] == "keep", "{planned}");
            let args = ["--memory", args[3], "--plan", file, "--json"];
            let simulated = on("simulate", &trace, &args).json();
            assert_eq!(simulated["step_us"], planned["step_us"]);
        }
    }
}

#[test]
fn people_get_figures_and_reasons() {
    let ran = on("plan", &recorded(), &["--memory", "85%"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for expect in ["budget", "85 %", "step time", "no plan adds less than", "tensor 157", "swap"] {
        assert!(ran.stdout.contains(expect), "no '{expect}' in {}", ran.stdout);
    }
    let swap = on("plan", &recorded(), &["--memory", "85%", "--strategy", "swap"]);
    assert!(swap.stdout.contains("no plan of copies alone adds less than"), "{}", swap.stdout);
}

#[test]
fn the_same_request_gives_the_same_plan() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |name: &str| {
        let path = folder.path().join(name);
        let args = ["--memory", "80%", "--out", path.to_str().unwrap(), "--json"];
        on("plan", &recorded(), &args).json();
        fs::read(path).unwrap()
    };
    assert_eq!(plan("one"), plan("two"));
}

#[test]
fn whatever_is_wrong_with_a_trace_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.json");
    let check = |content: &[u8], expect: &str| {
        fs::write(&path, content).unwrap();
        for args in [&["plan", "--memory", "50%"][..], &["simulate"]] {
            let ran = on(args[0], &path, &args[1..]);
            let line = ran.refusal();
            assert!(line.contains("step.json") && line.contains(expect), "{line}");
        }
    };
    check(b"no trace", "not a trace file");
    check(b"{}", "not a trace file");
    let packed = fs::read(recorded()).unwrap();
    check(&packed[..packed.len() / 2], "in the middle");
    let mut file = stacked(2);
    file["tensors"][1]["free"] = json!(1);
    check(file.to_string().as_bytes(), "tensors[1].free");
    let mut file = stacked(2);
    file["ops"][3]["reads"] = json!([99]);
    check(file.to_string().as_bytes(), "ops[3].reads");
    let mut file = stacked(2);
    file["ops"][3]["us"] = json!(-4);
    check(file.to_string().as_bytes(), "ops[3].us");
    let text = stacked(2).to_string();
    check(&text.as_bytes()[..text.len() / 2], "line 1 column");
    let gone = folder.path().join("gone.json");
    assert!(on("simulate", &gone, &[]).refusal().contains("gone.json"));
}

#[test]
fn wrong_flags_are_one_line() {
    let trace = recorded();
    let check = |args: &[&str], expect: &str| {
        let ran = on("plan", &trace, args);
        assert!(ran.refusal().contains(expect), "{args:?}: {ran:?}");
    };
    check(&[], "--memory");
    check(&["--memory", "0%"], "60%");
    check(&["--memory", "lots"], "24GiB");
    check(&["--memory", "50%", "--prefer", "luck"], "performance");
    check(&["--memory", "50%", "--link-out", "0/s"], "1MiB/s");
    check(&["--memory", "50%", "--effort", "0"], "--effort");
    check(&["--memory", "90%", "--out", "/proc/no-such-folder/plan.json"], "/proc/no-such-folder");
}
