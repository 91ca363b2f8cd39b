//! Flags of the command that holds strategies against each other.

use std::path::PathBuf;

use clap::Args;

use super::step::{MachineArgs, MemoryArg, memory};

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Recorded steps: trace.json of `train --out`, or recorded by a framework; gzip or not
    #[arg(value_name = "TRACE", required = true)]
    pub(crate) traces: Vec<PathBuf>,
    /// Memory budgets: 24GiB, plain bytes, or shares of each step's own peak, such as 80% 60%
    #[arg(
        long,
        value_name = "SIZE|PERCENT%",
        value_parser = memory,
        num_args = 1..,
        value_delimiter = ',',
        required = true
    )]
    pub(crate) memory: Vec<MemoryArg>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Placements that our own planner tries; more take longer and may find a faster plan
    #[arg(
        long,
        default_value_t = 8,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub(crate) effort: u32,
    /// File for a drawing of step time against memory, for each strategy, from 100% down to the
    /// least that fits
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}
