//! Whatever is wrong with a request: one clear line, exit code 2, nothing half-written.

use std::fs;

use crate::rig::{names_in, smartswap, train};

#[track_caller]
fn check(args: &[&str], expect: &[&str]) {
    let ran = smartswap(args);
    let line = ran.refusal();
    for part in expect {
        assert!(line.contains(part), "{args:?}: '{line}' does not say '{part}'");
    }
}

#[test]
fn wrong_flags_are_explained_in_one_line() {
    check(&[], &["train, max-model, doctor, stress, plan"]);
    check(&["trian"], &["train"]);
    check(&["train", "--memroy", "1GiB"], &["--memory"]);
    check(&["train", "--memory", "lots"], &["'lots' is not a size", "24GiB"]);
    check(&["train", "--memory", "99999999999GiB"], &["too large"]);
    check(&["train", "--memory", "99999999999999999999"], &["too large"]);
    check(&["train", "--memory", "-1"], &["--memory"]);
    check(&["train", "--memory", "0"], &["more than 0"]);
    check(&["train", "--memory"], &["--memory"]);
    check(&["train", "--steps", "0"], &["at least 1"]);
    check(&["train", "--steps", "many"], &["whole number"]);
    check(&["train", "--link", "0/s"], &["1MiB/s"]);
    check(&["train", "--link", "fast"], &["2GiB/s"]);
    check(&["train", "--strategy", "guess"], &["joint"]);
    check(&["train", "--optimizer-state", "cloud"], &["device"]);
    check(&["max-model"], &["--memory"]);
    check(&["max-model", "--memory", "1GiB", "--grow", "up"], &["layers"]);
}

#[test]
fn wrong_sizes_are_explained_in_one_line() {
    check(&["train", "--layers", "0"], &["--layers is 0"]);
    check(&["train", "--heads", "0"], &["--heads is 0"]);
    check(&["train", "--heads", "7"], &["7 heads do not divide", "192", "nearest"]);
    check(&["train", "--layers", "99999999999999999999999"], &["--layers"]);
    check(&["train", "--layers", "18446744073709551615"], &["smaller"]);
    check(&["train", "--hidden", "24576", "--layers", "96"], &["memory", "smaller"]);
    check(&["train", "--batch", "100000000"], &["smaller"]);
    check(&["train", "--memory", "1"], &["too small", "least that works"]);
    check(&["train", "--memory", "1MiB"], &["too small", "least that works"]);
    check(&["max-model", "--memory", "1MiB"], &["not even", "least that works"]);
    check(&["max-model", "--memory", "16EiB"], &["not a size"]);
    check(&["max-model", "--memory", "1000TiB"], &["this machine has"]);
    check(&["max-model", "--memory", "1GiB", "--heads", "5"], &["do not divide"]);
}

#[test]
fn a_text_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let short = folder.path().join("short");
    fs::write(&short, "too short").unwrap();
    check(&["train", "--text", "/nonexistent/text"], &["/nonexistent/text", "--text"]);
    check(&["train", "--text", folder.path().to_str().unwrap()], &["--text"]);
    check(&["train", "--text", short.to_str().unwrap()], &["9 bytes", "--seq"]);
}

#[test]
fn an_out_folder_that_cannot_be_written_is_named_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "in the way").unwrap();
    let file = file.to_str().unwrap();
    // Even a run of many hours is refused at once.
    let hours = ["--steps", "1000000000"];
    for out in [file, "/proc/no-such-folder"] {
        let ran = train(&[&hours[..], &["--out", out]].concat());
        assert!(ran.refusal().contains("--out"), "{ran:?}");
    }
    assert_eq!(fs::read_to_string(file).unwrap(), "in the way");
    assert_eq!(names_in(folder.path()), ["file"]);
}

#[test]
fn a_refused_request_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let path = out.to_str().unwrap();
    for wrong in [["--memory", "1MiB"], ["--plan", "/nonexistent"], ["--text", "/nonexistent"]] {
        train(&[&wrong[..], &["--out", path]].concat()).refusal();
        assert!(!out.exists() || names_in(&out).is_empty(), "{wrong:?} left files");
    }
}

#[test]
fn plan_files_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let out = folder.path().join("out");
    train(&["--steps", "8", "--out", out.to_str().unwrap(), "--json"]).json();
    let good = fs::read_to_string(out.join("plan.json")).unwrap();
    let digit = good.find("\"op_count\"").unwrap();
    let damaged = good[..digit].to_owned() + &good[digit..].replacen('1', "2", 3);
    assert_ne!(damaged, good);
    for (content, what) in [
        (good[..good.len() / 2].to_owned(), "truncated"),
        (damaged, "damaged"),
        ("{\"format\": \"something else\"}".to_owned(), "foreign"),
        (String::new(), "empty"),
        ("\u{0}\u{1}".to_owned(), "binary"),
    ] {
        fs::write(&path, content).unwrap();
        let ran = train(&["--plan", path.to_str().unwrap()]);
        assert!(ran.refusal().contains("plan.json"), "{what}: {ran:?}");
    }
    let kept = train(&["--plan", out.join("plan.json").to_str().unwrap(), "--strategy", "keep"]);
    assert!(kept.refusal().contains("--strategy"), "{kept:?}");
}

#[test]
fn help_and_version_are_no_errors() {
    for args in [&["--help"][..], &["train", "--help"], &["max-model", "--help"], &["--version"]] {
        let ran = smartswap(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
        assert!(!ran.stdout.is_empty());
    }
}
