//! The command line: flags, their units and their help.

use std::path::PathBuf;

use adaptive::{Budget, Bytes, DeviceName};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::gpt::shape::Shape;

mod config;
mod contest;
mod step;
mod train;

pub(crate) use config::{budget_bytes, joint_planner};
pub(crate) use contest::{CompareArgs, CompareOptions};
pub(crate) use step::{PlanArgs, PlanOptions, SimulateArgs, SimulateOptions};
pub(crate) use train::{ModelArgs, TrainArgs, TrainOptions};

/// Trains models in less device memory than they ask for, without changing a bit of the result.
#[derive(Debug, Parser)]
#[command(name = "smartswap", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a small GPT under a cap on device memory
    ///
    /// Unless --device says otherwise, the device is software: its memory is this machine's, its
    /// link to the host has a speed that can be set, and its cap is enforced. The model is trained
    /// twice: some steps without a cap to measure what it needs, then under the cap.
    #[command(allow_negative_numbers = true, args_override_self = true)]
    Train(TrainArgs),
    /// Find the largest model that trains under a cap, without and with swapping
    #[command(allow_negative_numbers = true, args_override_self = true)]
    MaxModel(MaxModelArgs),
    /// Say what this machine and its devices can do: drivers, memory, link, cost of calls
    ///
    /// With --device it also tries what swapping asks of the device. What it prints is meant to be
    /// pasted into an issue. Exit code 1 says that the device cannot be used, or that a step
    /// failed.
    Doctor(DoctorArgs),
    /// Move more data than fits through a device, and compare each word that comes back
    ///
    /// Blocks are written, swapped out, swapped in, compared and rewritten by the engine, under a
    /// cap. It shows the speed of swapping, what it costs the host, and that nothing is lost.
    Stress(StressArgs),
    /// Plan a recorded step for a memory budget, and say what that costs and why
    ///
    /// The step is one that `train --out` wrote or that a framework recorded. The plan says which
    /// tensors leave the device, when, and how they come back. Exit code 1 says that no plan
    /// reaches the budget.
    Plan(PlanArgs),
    /// Show time and memory of a recorded step under a plan
    Simulate(SimulateArgs),
    /// Hold our plans against those of others, on the same recorded steps and budgets
    ///
    /// vDNN, Capuchin, SmartSwap for Ascend and activation checkpointing plan the same step, and
    /// one simulator judges them all. What a strategy did not plan for is moved on demand and
    /// counted.
    Compare(CompareArgs),
    /// Hold the reports of two runs side by side: figures, and a step of each
    CompareRuns(CompareRunsArgs),
    /// Show memory, copies and stalls of a running training
    ///
    /// The training tells them in a file as its steps end. On a terminal they are shown anew until
    /// it ends. Exit code 1 says that it ended without a word.
    Top(TopArgs),
}

#[derive(Args, Debug)]
pub(crate) struct CompareRunsArgs {
    /// Folder of the first run's report, which training with --report FOLDER leaves
    pub(crate) first: PathBuf,
    /// Folder of the second run's
    pub(crate) second: PathBuf,
    /// File for a page with a step of each, drawn to the same scales
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TopArgs {
    /// The training's process; without it all trainings of this user are listed
    pub(crate) pid: Option<u32>,
    /// Show it once
    #[arg(long)]
    pub(crate) once: bool,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct MaxModelArgs {
    /// Cap on device memory: 24GiB, 512MiB or plain bytes
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) memory: u64,
    /// What to grow; the other sizes stay as given
    #[arg(long, default_value = "layers", value_name = "WHAT")]
    pub(crate) grow: Grow,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Seed of weights and batches
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) seed: u64,
    /// Speed of the link between device and host, each way
    #[arg(long, default_value = "512MiB/s", value_name = "SIZE/s", value_parser = rate)]
    pub(crate) link: u64,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Examine this device alone, and try what swapping asks of it, step by step: host, cuda,
    /// cuda:1, acl or npu:1
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceName>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct StressArgs {
    /// Device: host, cuda, cuda:1, acl or acl:1
    #[arg(long, default_value = "host", value_name = "DEVICE")]
    pub(crate) device: DeviceName,
    /// Data in all, which also is what host memory it may take
    #[arg(long, default_value = "1GiB", value_name = "SIZE", value_parser = size)]
    pub(crate) data: u64,
    /// Cap on device memory
    #[arg(long, default_value = "256MiB", value_name = "SIZE", value_parser = size)]
    pub(crate) memory: u64,
    /// Size of a block
    #[arg(long, default_value = "16MiB", value_name = "SIZE", value_parser = size)]
    pub(crate) block: u64,
    /// Times that all data is compared and rewritten
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = positive)]
    pub(crate) rounds: u64,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which size of the model grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Grow {
    /// Transformer layers
    Layers,
    /// Sequences in a batch
    Batch,
    /// Tokens in a sequence
    Seq,
}

impl Grow {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Grow::Layers => "layers",
            Grow::Batch => "batch",
            Grow::Seq => "seq",
        }
    }

    /// `shape` with another value of the size that grows.
    pub(crate) fn apply(self, shape: Shape, value: usize) -> Shape {
        match self {
            Grow::Layers => Shape { layers: value, ..shape },
            Grow::Batch => Shape { batch: value, ..shape },
            Grow::Seq => Shape { seq: value, ..shape },
        }
    }
}

fn size_or_none(text: &str) -> Result<u64, String> {
    let Bytes(bytes) =
        text.parse().map_err(|error: adaptive::ParseBytesError| error.to_string())?;
    Ok(bytes)
}

fn size(text: &str) -> Result<u64, String> {
    let bytes = size_or_none(text)?;
    if bytes == 0 {
        return Err("it must be more than 0, such as 512MiB".to_owned());
    }
    Ok(bytes)
}

/// A memory budget: bytes, or a share of the step's own peak.
fn memory(text: &str) -> Result<Budget, String> {
    text.parse()
}

fn rate(text: &str) -> Result<u64, String> {
    let per_second = text.trim().strip_suffix("/s").unwrap_or(text);
    let explain = |_| format!("'{text}' is not a speed: write 2GiB/s or 500MB/s");
    let Bytes(bytes) = per_second.parse().map_err(explain)?;
    if bytes < LINK_BYTES_PER_S_MIN {
        return Err("it must be at least 1MiB/s".to_owned());
    }
    Ok(bytes)
}

/// Below this a single copy takes minutes, which nobody means.
const LINK_BYTES_PER_S_MIN: u64 = 1 << 20;

fn positive(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(0) => Err("it must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("write a whole number: {error}")),
    }
}

/// A usage error in one line: what is wrong, and what clap suggests.
pub(crate) fn one_line(error: &clap::Error) -> String {
    use clap::error::ErrorKind;
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return "error: name a command: train, max-model, doctor, stress, plan, simulate, compare, \
                compare-runs or top (see smartswap --help)"
            .to_owned();
    }
    let text = error.to_string();
    let first = text.lines().take_while(|line| !line.is_empty()).map(str::trim);
    let tips = text.lines().map(str::trim).filter(|line| line.starts_with("tip:"));
    let words: Vec<&str> = first.chain(tips).collect();
    format!("{} (see --help)", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_speeds_are_checked() {
        assert_eq!(size("1MiB"), Ok(1 << 20));
        assert!(size("0").unwrap_err().contains("more than 0"));
        assert!(size("99999999999GiB").unwrap_err().contains("too large"));
        assert!(size("lots").unwrap_err().contains("24GiB"));
        assert_eq!(rate("2GiB/s"), Ok(2 << 30));
        assert_eq!(rate("500MB"), Ok(500_000_000));
        assert!(rate("1KiB/s").unwrap_err().contains("at least"));
        assert!(rate("fast/s").unwrap_err().contains("2GiB/s"));
        assert!(positive("0").is_err() && positive("-1").is_err());
        assert_eq!(positive("7"), Ok(7));
    }

    #[test]
    fn usage_errors_are_one_line() {
        let line = |args: &[&str]| one_line(&Cli::try_parse_from(args).unwrap_err());
        let check = |args: &[&str], expect: &str| {
            let line = line(args);
            assert!(line.starts_with("error: ") && line.contains(expect), "{line}");
            assert!(!line.contains('\n'), "{line}");
        };
        check(&["smartswap"], "name a command");
        check(&["smartswap", "max-model"], "--memory <SIZE>");
        check(&["smartswap", "train", "--memroy", "1"], "--memory");
        check(&["smartswap", "train", "--memory", "x"], "24GiB");
        check(&["smartswap", "train", "--strategy", "x"], "joint");
        check(&["smartswap", "train", "--layers", "-1"], "--layers");
    }

    #[test]
    fn each_flag_is_a_key_of_the_file_with_the_same_default() {
        use clap::CommandFactory as _;
        let (mut flags, mut defaults) = (0, 0);
        for command in ["train", "plan", "simulate", "compare"] {
            let cli = Cli::command();
            let own = cli.find_subcommand(command).expect("it is a command");
            let is_flag = |arg: &&clap::Arg| {
                !["trace", "traces", "config", "help", "version"].contains(&arg.get_id().as_str())
            };
            for arg in own.get_arguments().filter(is_flag) {
                let name = arg.get_id().as_str();
                let key = adaptive::Settings::keys()
                    .into_iter()
                    .find(|key| key.name == name && (key.table == command || key.table.is_empty()));
                let key = key.unwrap_or_else(|| panic!("{command} --{name} is not a key"));
                flags += 1;
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                if let Some((_, rest)) = help.split_once("[default: ") {
                    let shown = rest.strip_suffix(']').expect("it ends the help");
                    assert!(key.default.contains(shown), "{command} --{name}: {shown}");
                    defaults += 1;
                }
                assert!(arg.get_default_values().is_empty(), "it would hide what the file says");
            }
        }
        assert!(flags >= 40 && defaults >= 20, "{flags} {defaults}");
    }

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert_eq!(memory("2MiB"), Ok(Budget::Bytes(2 << 20)));
        assert_eq!(memory(" 62.5 %"), Ok(Budget::Percent(62.5)));
        for wrong in ["%", "0%", "-5%", "nan%", "inf%", "1001%", "x%", "half"] {
            let error = memory(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        assert!(memory("0").unwrap_err().contains("more than 0"));
    }
}
