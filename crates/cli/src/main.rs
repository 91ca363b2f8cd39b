//! `smartswap`: trains models in less device memory than they ask for.
//!
//! | command | what it does |
//! |---|---|
//! | `train` | trains a small GPT under a cap, and reports what that took |
//! | `max-model` | finds the largest model that trains under a cap, without and with swapping |
//! | `doctor` | says what this machine and its devices can do |
//! | `stress` | moves more data than fits through a device, and compares each word |
//! | `plan` | plans a recorded step for a memory budget |
//! | `simulate` | shows time and memory of a recorded step under a plan |
//! | `compare` | holds our plans against those of others |
//! | `compare-runs` | holds the reports of two runs side by side |
//! | `top` | shows memory, copies and stalls of a running training |
//!
//! The model is written against the public crates alone, so it is also the longest example of
//! their use. Without an accelerator everything runs on the embedded software device.
//!
//! Exit codes: 0 for success, 1 if `--verify` or `stress` finds a difference or a recorded step
//! does not run in its budget, 2 for anything that is wrong with the request, with one line on
//! stderr that says what and how to fix it.
#![deny(unsafe_code)] // Only `stress::pattern` submits work by itself.

use std::process::ExitCode;

use adaptive::setting_hint;
use clap::Parser as _;

mod args;
mod caps;
mod collect;
mod compare;
mod contest;
mod device;
mod doctor;
mod gpt;
mod max_model;
mod measured;
mod open;
mod pace;
mod plan;
mod planner;
mod preflight;
mod progress;
mod report;
mod runs;
mod simulate;
mod stress;
mod text;
mod top;
mod train;
mod training;

use args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are what was asked for.
        Err(error) if !error.use_stderr() => {
            return if error.print().is_ok() { ExitCode::SUCCESS } else { ExitCode::from(2) };
        }
        Err(error) => {
            eprintln!("{}", args::one_line(&error));
            return ExitCode::from(2);
        }
    };
    let result = match &cli.command {
        Command::Train(args) => train::run(args),
        Command::MaxModel(args) => max_model::run(args),
        Command::Doctor(args) => doctor::run(args),
        Command::Stress(args) => stress::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Simulate(args) => simulate::run(args),
        Command::Compare(args) => contest::run(args),
        Command::CompareRuns(args) => runs::run(args),
        Command::Top(args) => top::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", one_line(&error));
        ExitCode::from(2)
    })
}

/// An error and its causes in one line. A cause that the line already names is not said twice.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    let engine_errors = error.chain().filter_map(|cause| cause.downcast_ref());
    line.extend(engine_errors.map(setting_hint));
    line
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::one_line;

    #[test]
    fn an_error_is_one_line_without_repeats() {
        let error = anyhow!("no\nroom").context("cannot write: no room; fix it").context("top");
        assert_eq!(one_line(&error), "top: cannot write: no room; fix it");
    }
}
