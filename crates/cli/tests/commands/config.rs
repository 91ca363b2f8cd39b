//! `--config`: one file of settings for the commands, flags that override it, and one line where
//! it is wrong.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::plan::{on, stacked};
use crate::rig::{Ran, TINY, names_in, number, smartswap, train};

/// A folder with a trace and a file of settings in it.
struct Inputs {
    folder: tempfile::TempDir,
    trace: PathBuf,
}

impl Inputs {
    fn new() -> Inputs {
        let folder = tempfile::tempdir().expect("there is room for a folder");
        let trace = folder.path().join("step.json");
        fs::write(&trace, stacked(10).to_string()).expect("the folder can be written");
        Inputs { folder, trace }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("paths of tests are text").to_owned()
    }

    /// Runs a command on the trace with a file and with flags.
    fn run(&self, command: &str, file: &str, flags: &[&str]) -> Ran {
        let config = self.path("run.toml");
        fs::write(&config, file).expect("the folder can be written");
        on(command, &self.trace, &[&["--config", config.as_str()], flags].concat())
    }

    fn json(&self, command: &str, file: &str, flags: &[&str]) -> Value {
        self.run(command, file, &[flags, &["--json"]].concat()).json()
    }
}

fn train_with(file: &Path, text: &str, flags: &[&str]) -> Ran {
    fs::write(file, text).expect("the folder can be written");
    let config = file.to_str().expect("paths of tests are text");
    train(&[&["--config", config], flags].concat())
}

#[test]
fn whatever_is_wrong_with_a_file_is_one_line_with_the_place() {
    let place = Inputs::new();
    let check = |file: &str, expect: &[&str]| {
        for command in ["plan", "simulate", "compare"] {
            let ran = place.run(command, file, &["--memory", "80%"]);
            let line = ran.refusal();
            for part in expect {
                assert!(line.contains(part), "{line}");
            }
        }
    };
    let unknown = "unknown key `warmup_stpe` in ";
    let nearest = "run.toml line 2: did you mean `warmup_step`?";
    check("[smartswap]\nwarmup_stpe = 2\n", &[unknown, nearest]);
    check(
        "\n\neffort = \"much\"\n",
        &["`effort` in ", "run.toml line 3 is \"much\": write a whole"],
    );
    check("effort = 0\n", &["run.toml line 1 is 0", "1 to 100000"]);
    check("memory: 3\n", &["run.toml line 1 is not TOML"]);
    check("smartswap.stable_step = 2\n", &["run.toml: `stable_step` is 2"]);
    let gone = ["--memory", "80%", "--config", "/nonexistent/run.toml"];
    assert!(on("plan", &place.trace, &gone).refusal().contains("/nonexistent/run.toml"));
    let file = place.folder.path().join("train.toml");
    let line = train_with(&file, "[train]\nstep = 2\n", &[]);
    assert!(line.refusal().contains("train.toml line 2: did you mean `steps`?"));
    let line = train_with(&file, "[train]\nheads = 7\nhidden = 64\n", &["--heads", "7"]);
    assert!(line.refusal().contains("7 heads do not divide"));
    assert!(smartswap(&["doctor", "--config", "x"]).refusal().contains("--config"));
}

#[test]
fn flags_go_before_the_file_and_the_file_before_the_default() {
    let place = Inputs::new();
    let file = "memory = \"80%\"\nstrategy = \"swap\"\nprefer = \"memory\"\n\
                link_out = \"20GB/s\"\n";
    let from_file = place.json("plan", file, &[]);
    let from_flags = on(
        "plan",
        &place.trace,
        &[
            "--memory",
            "80%",
            "--strategy",
            "swap",
            "--prefer",
            "memory",
            "--link-out",
            "20GB/s",
            "--json",
        ],
    );
    let without_time = |mut object: Value| {
        object.as_object_mut().unwrap().remove("plan_ms");
        object
    };
    assert_eq!(without_time(from_file.clone()), without_time(from_flags.json()));
    let over = place.json("plan", file, &["--memory", "90%", "--strategy", "joint"]);
    assert_eq!(
        (over["strategy"].as_str(), over["prefer"].as_str()),
        (Some("joint"), Some("memory"))
    );
    assert!(number(&over, "budget_bytes") > number(&from_file, "budget_bytes"));
    // Without a budget anywhere there is nothing to plan for.
    assert!(place.run("plan", "effort = 1\n", &[]).refusal().contains("`memory` into the file"));
    assert!(place.run("compare", "", &[]).refusal().contains("--memory"));
    let free = place.json("simulate", "", &[]);
    assert_eq!(free["budget_bytes"], Value::Null);
    let half = place.json("simulate", "memory = \"50%\"", &[]);
    assert!(number(&half, "rescues") > 0, "{half}");
}

#[test]
fn the_budget_can_be_given_as_the_originals_do() {
    let place = Inputs::new();
    let budget = |file: &str| number(&place.json("plan", file, &[]), "budget_bytes");
    let peak = number(&place.json("plan", "memory = \"90%\"", &[]), "peak_before_bytes");
    assert_eq!(budget("smartswap.reduction_memory = \"100MiB\""), peak - (100 << 20));
    let absolute = "[smartswap]\ntarget_mode = true\ntarget_memory = \"1700MiB\"\n";
    assert_eq!(budget(absolute), 1700 << 20);
    let ran = place.run("plan", "smartswap.reduction_memory = \"1TiB\"", &[]);
    assert!(ran.refusal().contains("`reduction_memory` is 1024.00 GiB"), "{ran:?}");
}

#[test]
fn plans_are_saved_where_asked_for() {
    let place = Inputs::new();
    let out = place.path("own.json");
    let file = format!("memory = \"80%\"\n[plan]\nout = \"{out}\"\n");
    place.json("plan", &file, &[]);
    let simulated = place.json("simulate", "memory = \"80%\"", &["--plan", &out]);
    assert!(number(&simulated, "swapped_out_bytes") > 0);
    // A folder of the original's name, in the folder that the command runs in.
    let file = place.path("save.toml");
    fs::write(&file, "memory = \"80%\"\nsmartswap.save_policy = true\n").unwrap();
    let mut command = assert_cmd::Command::cargo_bin("smartswap").unwrap();
    let trace = place.trace.to_str().unwrap();
    let run = command.current_dir(place.folder.path()).args(["plan", trace, "--config", &file]);
    run.assert().success();
    assert_eq!(names_in(&place.folder.path().join("swap_output")), ["plan.json"]);
}

#[test]
fn print_level_says_how_much_is_shown() {
    let place = Inputs::new();
    let shown = |level: &str, command: &str, flags: &[&str]| {
        let file = format!("memory = \"80%\"\nsmartswap.print_level = {level}\n");
        let ran = place.run(command, &file, flags);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        ran.stdout
    };
    for command in ["plan", "simulate", "compare"] {
        assert_eq!(shown("2", command, &[]), "", "{command}");
        assert!(shown("1", command, &[]).len() > 100, "{command}");
        assert!(shown("\"NONE\"", command, &["--json"]).starts_with('{'), "{command}");
    }
    // The step has few tensors, so that all of them are shown at any level.
    assert_eq!(shown("0", "plan", &[]).lines().count(), shown("1", "plan", &[]).lines().count());
    let recorded = crate::plan::recorded();
    let rows = |level: &str| {
        let file = place.path("level.toml");
        fs::write(&file, format!("memory = \"90%\"\nsmartswap.print_level = {level}\n")).unwrap();
        on("plan", &recorded, &["--config", &file]).stdout.lines().count()
    };
    assert!(rows("0") > rows("1"));
}

#[test]
fn compare_takes_the_originals_constants_from_the_file() {
    let place = Inputs::new();
    let row = |file: &str, strategy: &str| {
        let all = place.json("compare", file, &["--memory", "80%"]);
        let rows = all["contests"][0]["strategies"].as_array().unwrap().clone();
        rows.into_iter().find(|row| row["strategy"] == strategy).unwrap()
    };
    let none = row("", "smartswap-v1");
    assert!(number(&none, "swapped_out_bytes") > 0);
    let filtered = row("smartswap.tensor_size_filter = \"1GiB\"", "smartswap-v1");
    assert_ne!(none, filtered);
    let budgets = place.json(
        "compare",
        "memory = \"70%\"\n[compare]\nplot = \"/dev/null/x\"",
        &["--plot", &place.path("plot.svg")],
    );
    assert_eq!(budgets["contests"].as_array().unwrap().len(), 1);
    assert!(fs::read_to_string(place.path("plot.svg")).unwrap().contains("<svg"));
}

#[test]
fn training_follows_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let out = folder.path().join("out");
    let text = format!(
        "warmup_steps = 4\nmemory = \"60%\"\nstrategy = \"swap\"\njson = true\n\
         [train]\nsteps = 12\n\
         seed = 3\nverify = true\nout = \"{}\"\n[smartswap]\nwarmup_step = 1\n",
        out.display()
    );
    let ran = train_with(&file, &text, &["--steps", "14"]);
    let run = ran.json();
    assert_eq!(run["bit_identical"], true);
    let modes = run["mode_by_step"].as_array().unwrap();
    assert_eq!(modes.len(), 14, "the flag goes before the file");
    let warm = modes.iter().filter(|mode| **mode == "WarmUp").count();
    // Our key goes before theirs. Reports come a step late at most.
    assert!((4..=5).contains(&warm), "{warm}");
    assert_eq!(number(&run, "recomputed_ops_per_step"), 0, "swaps alone");
    let (cap, peak) = (number(&run, "memory_limit_bytes"), number(&run, "peak_uncapped_bytes"));
    assert!(cap <= peak * 60 / 100 && cap > peak / 2, "{cap} of {peak}");
    assert!(names_in(&out).contains(&"plan.json".to_owned()));
}

#[test]
fn the_originals_generators_can_be_trained_with_and_change_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    for (keys, pref) in
        [("policy_v2 = false", "memory"), ("op_diff_thresh = 0.05", "BETTER_PERFORMANCE")]
    {
        let text = format!(
            "strategy = \"smartswap\"\n[smartswap]\n{keys}\npolicy_pref = \"{pref}\"\n\
             tensor_size_filter = \"1KiB\"\nredundant_memory = \"64KiB\"\nprint_level = 0\n"
        );
        let run = train_with(&file, &text, &["--verify", "--json", "--steps", "9"]).json();
        assert_eq!(run["bit_identical"], true, "{keys}");
        let cap = number(&run, "memory_limit_bytes");
        assert!(number(&run, "peak_device_bytes") <= cap, "{keys}");
        assert!(number(&run, "swapped_out_bytes_per_step") > 0, "{keys}");
    }
    let text = "[smartswap]\nprint_level = 0\n";
    let ran = train_with(&file, text, &["--steps", "3"]);
    let lines = ran.stdout.lines().filter(|line| line.starts_with("step "));
    assert_eq!((ran.code, lines.count()), (0, 3), "{}", ran.stdout);
    let ran = train_with(&file, "smartswap.print_level = 2\n", &["--steps", "3"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
}

#[test]
fn a_file_with_all_that_the_originals_document_trains_and_saves_its_plan() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.toml");
    let text = "[smartswap]\nwarmup_step = 2\nstable_step = 3\nop_diff_thresh = 0.05\n\
                tensor_size_filter = 20971520\nredundant_memory = 2147483648\n\
                adjust_memory = 314572800\ntarget_mode = false\ntarget_memory = 42949672960\n\
                reduction_memory = 3221225472\nsize_coverage_weight = 2\npolicy_v2 = true\n\
                policy_pref = \"BETTER_PERFORMANCE\"\nswap_bucket_size = -1\n\
                num_attn_layers_per_stage = 1\nsave_policy = true\nprint_level = 1\n";
    // The model is much smaller than what they would take off.
    assert!(train_with(&file, text, &[]).refusal().contains("`reduction_memory` is 3.00 GiB"));
    let mut command = assert_cmd::Command::cargo_bin("smartswap").unwrap();
    let config = file.to_str().unwrap();
    let flags = ["--memory", "50%", "--steps", "8", "--verify", "--config", config];
    let all = [&["train"], &TINY[..], &flags].concat();
    let output = command.current_dir(folder.path()).args(all).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && stdout.contains("identical bit for bit"), "{stdout}");
    assert_eq!(names_in(&folder.path().join("swap_output")), ["plan.json"]);
}
