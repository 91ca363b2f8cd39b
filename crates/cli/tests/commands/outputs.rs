//! Files that commands write: onto what is not a file nothing is put in its place.
//!
//! Devices are reached by links of the tests' own, so that a mistake cannot harm the system's.

use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::plan::recorded;

/// Plans the recorded step to `out`.
fn plan(out: &Path, stdout: Stdio) -> Output {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("smartswap"));
    command.arg("plan").arg(recorded()).args(["--memory", "85%", "--out"]).arg(out);
    command.stdout(stdout).output().expect("it runs")
}

fn is_plan(line: &str) -> bool {
    line.contains("\"format\":\"smartswap-plan\"")
}

#[test]
fn a_plan_for_the_standard_output_goes_there_before_what_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("printed");
    fs::write(&path, "before\n").unwrap();
    let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    // What `/dev/stdout` is.
    let stdout = folder.path().join("stdout");
    symlink("/proc/self/fd/1", &stdout).unwrap();
    let piped = plan(&stdout, Stdio::piped());
    let appended = plan(&stdout, file.into());
    let printed = fs::read_to_string(&path).unwrap();
    let printed = printed.strip_prefix("before\n").expect("it was there before");
    for (ran, text) in [(&piped, str::from_utf8(&piped.stdout).unwrap()), (&appended, printed)] {
        assert!(ran.status.success(), "{ran:?}");
        assert!(is_plan(text.lines().next().unwrap()) && text.contains("budget"), "{text}");
    }
    assert!(fs::symlink_metadata(&stdout).unwrap().is_symlink());
}

#[test]
fn a_device_stays_a_device_and_a_full_one_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let [null, full] = ["null", "full"].map(|name| {
        let link = folder.path().join(name);
        symlink(Path::new("/dev").join(name), &link).unwrap();
        link
    });
    assert!(plan(&null, Stdio::null()).status.success());
    let failed = plan(&full, Stdio::null());
    let errors = String::from_utf8(failed.stderr).unwrap();
    assert!(!failed.status.success() && errors.contains("No space left"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    for device in [&null, &full] {
        assert!(device.metadata().unwrap().file_type().is_char_device());
    }
    let refused = plan(folder.path(), Stdio::null());
    let errors = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && errors.contains("is a folder"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
