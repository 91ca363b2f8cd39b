//! Runs the binary.

use std::fs;
use std::path::Path;
use std::time::Duration;

use assert_cmd::Command;
use serde_json::Value;

/// A model of which a step takes milliseconds, yet most of whose tensors can leave.
pub(crate) const TINY: [&str; 10] =
    ["--layers", "3", "--hidden", "64", "--heads", "2", "--seq", "64", "--batch", "16"];

/// What a run left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// The one JSON object that stdout holds.
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self.object()
    }

    /// The one JSON object of a step that does not run in its budget.
    pub(crate) fn short_json(&self) -> Value {
        assert_eq!((self.code, self.stderr.as_str()), (1, ""));
        let object = self.object();
        assert!(object["infeasible"].as_u64().is_some_and(|bytes| bytes > 0), "{object}");
        object
    }

    fn object(&self) -> Value {
        serde_json::from_str(&self.stdout).expect("stdout is one JSON object and nothing else")
    }

    /// The one line of an error.
    pub(crate) fn refusal(&self) -> &str {
        assert_eq!(self.code, 2, "{self:?}");
        assert_eq!(self.stdout, "", "nothing is printed before the request is known to be sound");
        let line = self.stderr.strip_suffix('\n').expect("a whole line");
        assert!(line.starts_with("error: ") && !line.contains('\n'), "{line}");
        line
    }
}

/// Runs `smartswap`. A run that hangs fails.
pub(crate) fn smartswap(args: &[&str]) -> Ran {
    smartswap_in(&[], args)
}

/// Runs `smartswap` with variables of the environment.
pub(crate) fn smartswap_in(variables: &[(&str, &str)], args: &[&str]) -> Ran {
    let mut command = Command::cargo_bin("smartswap").expect("it is built with its tests");
    command.envs(variables.iter().copied());
    let output = command.args(args).timeout(Duration::from_secs(300)).output().expect("it runs");
    Ran {
        code: output.status.code().expect("it ends by itself"),
        stdout: String::from_utf8(output.stdout).expect("it prints text"),
        stderr: String::from_utf8(output.stderr).expect("it prints text"),
    }
}

/// Runs `smartswap train` on the tiny model.
pub(crate) fn train(args: &[&str]) -> Ran {
    let all: Vec<&str> = ["train"].iter().chain(&TINY).chain(args).copied().collect();
    smartswap(&all)
}

/// The names in a folder, sorted.
pub(crate) fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the folder is there");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("names are text");
    let mut names: Vec<String> =
        entries.map(|entry| name(entry.expect("it can be read"))).collect();
    names.sort();
    names
}

/// A number of an object.
pub(crate) fn number(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap_or_else(|| panic!("{field} is not a number: {object}"))
}

/// A field that may have a fraction.
pub(crate) fn float(object: &Value, field: &str) -> f64 {
    object[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number: {object}"))
}
