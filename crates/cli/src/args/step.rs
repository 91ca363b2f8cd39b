//! Flags of the commands that plan on recorded steps, and the units in which they are given.

use std::path::PathBuf;

use adaptive::{Bytes, Link, Machine, Movable};
use clap::{Args, ValueEnum};

use super::{StrategyArg, rate, size};

/// Time of one copy before its bytes move, in microseconds, as measured over PCIe 5.
const COPY_SUBMIT_US: f64 = 8.0;
/// More host memory than any machine has.
const HOST_BYTES_ENDLESS: u64 = 1 << 50;

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Recorded step: trace.json of `train --out`, or one that a framework recorded; gzip or not
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Memory budget: 24GiB, 512MiB, plain bytes, or a share of the step's own peak, such as 60%
    #[arg(long, value_name = "SIZE|PERCENT%", value_parser = memory)]
    pub(crate) memory: MemoryArg,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// What may leave the device
    #[arg(long, default_value = "performance", value_name = "WHAT")]
    pub(crate) prefer: Prefer,
    /// Tensors below this stay; so do all below 8MiB, which share segments
    #[arg(long, default_value = "8MiB", value_name = "SIZE", value_parser = size)]
    pub(crate) min_size: u64,
    /// The most bytes that swaps of one step may send to the host; 0 for no such cap
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size_or_none)]
    pub(crate) bucket: u64,
    /// Memory to leave unused below the budget
    #[arg(long, default_value = "0", value_name = "SIZE", value_parser = size_or_none)]
    pub(crate) reserve: u64,
    /// Placements to try; more take longer and may find a faster plan
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = effort())]
    pub(crate) effort: u32,
    /// How blocks may leave the device
    #[arg(long, default_value = "joint", value_name = "HOW")]
    pub(crate) strategy: StrategyArg,
    /// File for the plan
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Recorded step: trace.json of `train --out`, or one that a framework recorded; gzip or not
    #[arg(value_name = "TRACE")]
    pub(crate) trace: PathBuf,
    /// Plan for that step, as `plan --out` writes it [default: none, everything stays]
    #[arg(long, value_name = "FILE")]
    pub(crate) plan: Option<PathBuf>,
    /// Memory budget: 24GiB, plain bytes, or a share of the step's own peak [default: no limit]
    #[arg(long, value_name = "SIZE|PERCENT%", value_parser = memory)]
    pub(crate) memory: Option<MemoryArg>,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// File for the step's timeline, which Perfetto opens
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,
    /// File for a page with the step's drawing and what becomes of each tensor
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// The machine that steps are planned for.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct MachineArgs {
    /// Speed of copies to the host, alone
    #[arg(long, default_value = "55.3GB/s", value_name = "SIZE/s", value_parser = rate)]
    link_out: u64,
    /// Speed of copies from the host, alone
    #[arg(long, default_value = "55.3GB/s", value_name = "SIZE/s", value_parser = rate)]
    link_in: u64,
    /// Speed each way while copies run both ways
    #[arg(long, default_value = "49.5GB/s", value_name = "SIZE/s", value_parser = rate)]
    link_both: u64,
    /// Host memory for swapped blocks [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_memory: Option<u64>,
}

impl MachineArgs {
    /// The machine with this much device memory.
    pub(crate) fn machine(&self, limit_bytes: u64) -> Machine {
        let bytes_per_us = |bytes_per_s: u64| bytes_per_s as f64 / 1e6;
        Machine {
            limit_bytes,
            host_limit_bytes: self.host_memory.unwrap_or(HOST_BYTES_ENDLESS),
            link: Link {
                out_bytes_per_us: bytes_per_us(self.link_out),
                in_bytes_per_us: bytes_per_us(self.link_in),
                both_bytes_per_us: bytes_per_us(self.link_both),
            },
            copy_submit_us: COPY_SUBMIT_US,
        }
    }
}

/// A memory budget.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum MemoryArg {
    /// In bytes.
    Bytes(u64),
    /// In percent of the step's own peak.
    Percent(f64),
}

impl MemoryArg {
    /// The budget in bytes, for a step that needs `peak_bytes`.
    pub(crate) fn of_peak(self, peak_bytes: u64) -> u64 {
        match self {
            MemoryArg::Bytes(bytes) => bytes,
            MemoryArg::Percent(percent) => (peak_bytes as f64 * percent / 100.0) as u64,
        }
    }
}

/// What may leave the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Prefer {
    /// Activations only; weights and optimizer state too where those cannot reach the budget
    Performance,
    /// Weights and optimizer state too
    Memory,
}

impl Prefer {
    pub(crate) fn movable(self) -> Movable {
        match self {
            Prefer::Performance => Movable::Activations,
            Prefer::Memory => Movable::All,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Prefer::Performance => "performance",
            Prefer::Memory => "memory",
        }
    }
}

/// A share of more than this is a slip of the finger.
const PERCENT_MAX: f64 = 1000.0;

/// A memory budget: bytes or a share.
pub(crate) fn memory(text: &str) -> Result<MemoryArg, String> {
    let Some(share) = text.trim().strip_suffix('%') else {
        return size(text).map(MemoryArg::Bytes);
    };
    match share.trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= PERCENT_MAX => Ok(MemoryArg::Percent(percent)),
        _ => Err(format!("'{text}' is no share: write 60%, at most {PERCENT_MAX}%")),
    }
}

fn effort() -> impl clap::builder::TypedValueParser<Value = u32> {
    clap::value_parser!(u32).range(1..=100_000)
}

fn size_or_none(text: &str) -> Result<u64, String> {
    let Bytes(bytes) =
        text.parse().map_err(|error: adaptive::ParseBytesError| error.to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sizes_or_shares() {
        assert_eq!(memory("2MiB"), Ok(MemoryArg::Bytes(2 << 20)));
        assert_eq!(memory(" 62.5 %"), Ok(MemoryArg::Percent(62.5)));
        assert_eq!(MemoryArg::Percent(62.5).of_peak(800), 500);
        assert_eq!(MemoryArg::Bytes(7).of_peak(800), 7);
        for wrong in ["%", "0%", "-5%", "nan%", "inf%", "1001%", "x%", "half"] {
            let error = memory(wrong).unwrap_err();
            assert!(error.contains(wrong), "{error}");
        }
        assert!(memory("0").unwrap_err().contains("more than 0"));
        assert_eq!((size_or_none("0"), size_or_none("1KiB")), (Ok(0), Ok(1024)));
    }
}
