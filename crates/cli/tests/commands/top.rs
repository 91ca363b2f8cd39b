//! `top`: what trainings tell of themselves, and which of them are there.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::rig::{Ran, number, smartswap_in};

/// When this process started, as the system counts.
fn started() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux");
    let (_, fields) = text.rsplit_once(')').expect("a name");
    let field = fields.split_whitespace().nth(19).expect("a start");
    field.parse().expect("a number")
}

fn tell(folder: &Path, pid: u32, started: u64) {
    let level = json!({ "current": 1u64 << 30, "peak": 2u64 << 30 });
    let told = json!({
        "pid": pid, "started": started, "command": ["python", "train.py"], "device": "cuda:0",
        "rank": 0, "n_ranks": 1, "written_s": 1.0, "stage": "Stable", "steps": 12,
        "steps_by_stage": { "WarmUp": 2, "SearchPolicy": 3, "Stable": 7 }, "plan": 5,
        "limit_bytes": 2u64 << 30, "outside_bytes": 0, "requested_bytes": level,
        "active_bytes": level, "reserved_bytes": level, "pinned_host_bytes": level,
        "swapped_out_bytes": 3u64 << 30, "swapped_in_bytes": 3u64 << 30, "recomputed_ops": 0,
        "misses": 0, "rescues": 0, "stall_us": 1.5, "last_step_us": 5e3, "unlimited_us": 4e3,
    });
    fs::create_dir_all(folder.join("smartswap")).expect("a folder");
    fs::write(folder.join(format!("smartswap/{pid}.json")), told.to_string())
        .expect("it is written");
}

fn top(folder: &Path, args: &[&str]) -> Ran {
    let runtime = folder.to_str().expect("paths of tests are text");
    let variables = [("XDG_RUNTIME_DIR", runtime), ("TMPDIR", runtime)];
    smartswap_in(&variables, &[&["top"], args].concat())
}

#[test]
fn a_training_is_shown_as_it_told_last() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    let number_of = pid.to_string();
    assert!(top(folder.path(), &[]).refusal().contains("no training of yours"));
    assert!(top(folder.path(), &[&number_of]).refusal().contains("has told nothing"));
    tell(folder.path(), pid, started());
    let ran = top(folder.path(), &[&number_of]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert!(ran.stdout.contains("on cuda:0: python train.py"), "{}", ran.stdout);
    assert!(ran.stdout.contains("1 GiB held of 2 GiB") && !ran.stdout.contains('\x1b'));
    assert!(ran.stdout.contains("5 ms, 1.25x of 4 ms"), "{}", ran.stdout);
    let object = top(folder.path(), &[&number_of, "--json"]).json();
    assert_eq!((number(&object, "steps"), number(&object, "limit_bytes")), (12, 2 << 30));
    let list: Value = top(folder.path(), &["--json"]).json();
    assert_eq!(list.as_array().map(Vec::len), Some(1));
}

#[test]
fn one_that_was_killed_is_dead_although_its_number_is_somebody_elses() {
    let folder = tempfile::tempdir().unwrap();
    let pid = std::process::id();
    // No process has the largest number; ours is another one than it was.
    for (dead, started) in [(u32::MAX, 1), (pid, started() - 1)] {
        tell(folder.path(), dead, started);
        let ran = top(folder.path(), &[&dead.to_string()]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stdout.contains("ended      without a word"), "{}", ran.stdout);
    }
    let listed = top(folder.path(), &[]);
    assert_eq!(listed.stdout.matches(" dead ").count(), 2, "{}", listed.stdout);
    assert!(top(folder.path(), &["4294967294"]).refusal().contains("is not there"));
}

#[test]
fn what_is_no_status_is_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    tell(folder.path(), std::process::id(), started());
    let home = folder.path().join("smartswap");
    fs::write(home.join("1.json"), "{").unwrap();
    fs::write(home.join("notes.json"), "{}").unwrap();
    fs::create_dir(home.join("2.json")).unwrap();
    std::os::unix::fs::symlink("/proc/self/status", home.join("3.json")).unwrap();
    assert_eq!(top(folder.path(), &[]).stdout.lines().count(), 2);
}
