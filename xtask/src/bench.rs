//! `bench`: runs the benchmarks and prints one table of medians beside their targets.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;
use xshell::{Shell, cmd};

use crate::metadata;

/// A benchmark of the `benches` crate and what it may take.
struct Target {
    name: &'static str,
    limit_ns: f64,
}

/// Every benchmark with a target.
const TARGETS: [Target; 7] = [
    Target { name: "resident_touch", limit_ns: 60.0 },
    Target { name: "op_with_three_touches", limit_ns: 250.0 },
    Target { name: "cached_allocate_free", limit_ns: 200.0 },
    Target { name: "plan_10k_ops", limit_ns: 0.5e9 },
    Target { name: "plan_large/10k_ops", limit_ns: 0.3e9 },
    Target { name: "plan_large/100k_ops", limit_ns: 3e9 },
    Target { name: "plan_large/1m_ops", limit_ns: 60e9 },
];

/// Runs all benchmarks.
///
/// # Errors
/// If one did not run, or took more than its target.
pub(crate) fn run(shell: &Shell) -> anyhow::Result<()> {
    let results = metadata::workspace(shell)?.target_folder.join("criterion");
    for target in &TARGETS {
        // A figure of an earlier run must not pass for one of this run.
        if let Some(old) = find(&results, target.name) {
            fs::remove_file(&old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    cmd!(shell, "cargo bench -p benches --locked").env("CRITERION_HOME", &results).run()?;
    let medians: Vec<Option<f64>> =
        TARGETS.iter().map(|target| read_median_ns(&results, target.name)).collect();
    println!("\n{}", table(&medians));
    let kept = TARGETS.iter().zip(&medians).filter(|(target, median)| keeps(target, **median));
    if kept.count() < TARGETS.len() {
        bail!("not every target is met");
    }
    Ok(())
}

fn keeps(target: &Target, median_ns: Option<f64>) -> bool {
    median_ns.is_some_and(|median_ns| median_ns <= target.limit_ns)
}

fn table(medians_ns: &[Option<f64>]) -> String {
    let mut lines = format!("{:<24}{:>12}{:>12}  \n", "benchmark", "median", "target");
    for (target, &median_ns) in TARGETS.iter().zip(medians_ns) {
        let (median, verdict) = match median_ns {
            None => ("-".to_owned(), "did not run"),
            Some(ns) if keeps(target, median_ns) => (duration(ns), "ok"),
            Some(ns) => (duration(ns), "OVER"),
        };
        let limit = duration(target.limit_ns);
        lines += &format!("{:<24}{median:>12}{limit:>12}  {verdict}\n", target.name);
    }
    lines
}

fn duration(ns: f64) -> String {
    match ns {
        ..1e3 => format!("{ns:.1} ns"),
        1e3..1e6 => format!("{:.2} us", ns / 1e3),
        1e6..1e9 => format!("{:.1} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// The file with the latest estimates of a benchmark, alone or in a group.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let own = folder.join(name).join("new/estimates.json");
    if own.is_file() {
        return Some(own);
    }
    let folders = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders.iter().find_map(|folder| find(folder, name))
}

fn read_median_ns(folder: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(find(folder, name)?).ok()?;
    let value: Value = serde_json::from_str(&text).ok()?;
    value["median"]["point_estimate"].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_is_over_and_what_is_missing() {
        let text = table(&[Some(59.94), Some(1234.0), None, Some(0.6e9)]);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["resident_touch", "59.9", "ns", "60.0", "ns", "ok"]);
        assert_eq!(lines[2], ["op_with_three_touches", "1.23", "us", "250.0", "ns", "OVER"]);
        assert_eq!(lines[3], ["cached_allocate_free", "-", "200.0", "ns", "did", "not", "run"]);
        assert_eq!(lines[4], ["plan_10k_ops", "600.0", "ms", "500.0", "ms", "OVER"]);
    }

    #[test]
    fn estimates_are_found_in_groups_too() {
        let folder = std::env::temp_dir().join(format!("xtask-bench-{}", std::process::id()));
        let new = folder.join("a group/resident_touch/new");
        fs::create_dir_all(&new).expect("the folder for temporary files can be written");
        fs::write(new.join("estimates.json"), r#"{"median": {"point_estimate": 41.5}}"#)
            .expect("the folder was just made");
        assert_eq!(read_median_ns(&folder, "resident_touch"), Some(41.5));
        assert_eq!(read_median_ns(&folder, "touch"), None);
        fs::remove_dir_all(&folder).expect("it was just made");
    }
}
