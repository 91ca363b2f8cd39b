//! `mutants`: changes the engine's code in many small ways and counts the changes that its tests
//! notice. It takes hours, so `ci` leaves it out; `.cargo/mutants.toml` says what it passes over.

use std::fs;

use anyhow::{Context, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::metadata;

/// The crates whose promises everything else rests on.
const CRATES: [&str; 2] = ["swap-core", "vmem"];
/// Of a hundred changes, so many must be noticed.
const LEAST_PERCENT: f64 = 90.0;
const HOW: &str = "cargo install cargo-mutants --locked";

/// What became of the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Outcome {
    /// Noticed, by a failed test or one that did not end.
    killed: u64,
    missed: u64,
}

/// Runs `cargo mutants`, on one of several shares of the changes (`shard` as in `3/20`, counted
/// from 0) or on all.
///
/// # Errors
/// If the tool is missing, the tests fail without a change, or too few changes are noticed.
pub(crate) fn run(shell: &Shell, shard: Option<&str>) -> anyhow::Result<()> {
    if cmd!(shell, "cargo mutants --version").quiet().ignore_stdout().ignore_stderr().run().is_err()
    {
        bail!("cargo-mutants is not installed; to install it: {HOW}");
    }
    let packages = CRATES.iter().flat_map(|name| ["--package", name]);
    let share = shard.iter().flat_map(|shard| ["--sharding", "round-robin", "--shard", shard]);
    let folder = metadata::workspace(shell)?.target_folder;
    let (_seed, results) =
        (shell.push_env("PROPTEST_RNG_SEED", "1"), folder.join("mutants.out/outcomes.json"));
    if results.exists() {
        // Those of an earlier run must not pass for this one's.
        fs::remove_file(&results)?;
    }
    // It fails where a change was missed, which is judged below.
    cmd!(shell, "cargo mutants {packages...} {share...} --output {folder}")
        .ignore_status()
        .run()?;
    let text = fs::read_to_string(&results).context("cargo mutants left no results")?;
    let outcome = read(&text).context("cargo mutants did not come to its end")?;
    println!("{}", outcome.text());
    if outcome.percent() < LEAST_PERCENT {
        bail!("too few: at least {LEAST_PERCENT} % must be noticed; see {}", results.display());
    }
    Ok(())
}

impl Outcome {
    fn percent(self) -> f64 {
        100.0 * self.killed as f64 / (self.killed + self.missed) as f64
    }

    fn text(self) -> String {
        let Outcome { killed, missed } = self;
        format!("mutants: {killed} killed, {missed} missed: {:.1} % noticed", self.percent())
    }
}

/// The counts; `None` if nothing was tried, or not all.
fn read(text: &str) -> Option<Outcome> {
    let value: Value = serde_json::from_str(text).ok()?;
    value["end_time"].as_str()?;
    let count = |name: &str| value[name].as_u64();
    let outcome =
        Outcome { killed: count("caught")? + count("timeout")?, missed: count("missed")? };
    (outcome.killed + outcome.missed > 0).then_some(outcome)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noticed_is_counted_in_percent() {
        let outcome =
            read(r#"{"caught": 8, "timeout": 1, "missed": 1, "unviable": 7, "end_time": "06:50"}"#);
        assert_eq!(outcome, Some(Outcome { killed: 9, missed: 1 }));
        let text = outcome.map(Outcome::text);
        assert_eq!(text.as_deref(), Some("mutants: 9 killed, 1 missed: 90.0 % noticed"));
    }

    #[test]
    fn results_of_nothing_or_of_an_unfinished_run_are_none() {
        assert_eq!(read("{}"), None);
        assert_eq!(read("caught"), None);
        let nothing = r#"{"caught": 0, "timeout": 0, "missed": 0, "end_time": "06:50"}"#;
        assert_eq!(read(nothing), None);
        let unfinished = r#"{"caught": 9, "timeout": 0, "missed": 0, "end_time": null}"#;
        assert_eq!(read(unfinished), None);
    }
}
