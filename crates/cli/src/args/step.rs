//! Flags of the commands that plan on recorded steps, and the units in which they are given.

use std::path::PathBuf;

use adaptive::{Budget, JointConfig, Machine, Named, Prefer, PrintLevel, Settings, Strategy};
use anyhow::Context as _;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use super::config::{self, ConfigArgs, put};
use super::{memory, rate, size, size_or_none};

/// What is said where no budget is given.
pub(super) const NO_BUDGET: &str = "no memory budget: give --memory, such as --memory 60% or \
                                    --memory 24GiB, or write `memory` into the file of --config";

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// Recorded step: trace.json of `train --out`, or one that a framework recorded; gzip or not.
    /// Several in one file are steps of other sizes: the plan is for the largest, and serves all
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Memory budget: 24GiB, 512MiB, plain bytes, or a share of the step's own peak, such as 60%
    #[arg(long, value_name = "SIZE|PERCENT%", value_parser = memory)]
    memory: Option<Budget>,
    #[command(flatten)]
    machine: MachineArgs,
    /// What may leave the device [default: whichever makes the faster step]
    #[arg(long, value_name = "WHAT", value_parser = named::<Prefer>())]
    prefer: Option<Prefer>,
    /// Tensors below this stay; those below 8MiB of a step that a framework recorded share segments
    /// and stay in any case [default: 1MiB]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// The most bytes that swaps of one step may send to the host; 0 for no such cap [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    bucket: Option<u64>,
    /// Memory to leave unused below the budget [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size_or_none)]
    reserve: Option<u64>,
    /// Placements to try; more take longer and may find a faster plan [default: 8]
    #[arg(long, value_name = "N", value_parser = effort())]
    effort: Option<u64>,
    /// How blocks may leave the device [default: joint]
    #[arg(long, value_name = "HOW", value_parser = named::<Strategy>())]
    strategy: Option<Strategy>,
    /// File for the plan
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What is to be planned, and how.
#[derive(Debug)]
pub(crate) struct PlanOptions {
    pub(crate) trace: PathBuf,
    pub(crate) budget: Budget,
    pub(crate) strategy: Strategy,
    /// File for the plan.
    pub(crate) out: Option<PathBuf>,
    /// Folder for the plan, which may have to be made first, if no file is named.
    pub(crate) save: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) print_level: PrintLevel,
    pub(crate) planner: JointConfig,
    /// The smallest block that moves, where that was asked for.
    pub(crate) min_size_bytes: Option<u64>,
    /// Everything else that the planner goes by.
    pub(crate) settings: Settings,
}

impl PlanArgs {
    /// What the flags and the file come to.
    ///
    /// # Errors
    /// One line that says what is wrong and how to fix it.
    pub(crate) fn options(&self) -> anyhow::Result<PlanOptions> {
        let mut settings = self.config.load()?;
        self.machine.put_into(&mut settings);
        put(&mut settings.memory, &self.memory);
        put(&mut settings.prefer, &self.prefer);
        put(&mut settings.min_size, &self.min_size);
        put(&mut settings.bucket, &self.bucket);
        put(&mut settings.reserve, &self.reserve);
        put(&mut settings.effort, &self.effort);
        put(&mut settings.strategy, &self.strategy);
        put(&mut settings.plan.out, &self.out);
        let out = settings.plan.out.clone();
        Ok(PlanOptions {
            trace: self.trace.clone(),
            budget: settings.budget().context(NO_BUDGET)?,
            strategy: settings.strategy.unwrap_or_default(),
            save: config::save_folder(&settings).filter(|_| out.is_none()),
            out,
            json: config::json(&settings),
            print_level: settings.print_level(),
            planner: config::planner(&settings),
            min_size_bytes: settings.min_block_bytes(),
            settings,
        })
    }
}

#[derive(Args, Debug)]
pub(crate) struct SimulateArgs {
    /// Recorded step: trace.json of `train --out`, or one that a framework recorded; gzip or not.
    /// Several in one file are steps of other sizes: the plan is for the largest, and serves all
    #[arg(value_name = "TRACE")]
    trace: PathBuf,
    /// Plan for that step, as `plan --out` writes it [default: none: everything stays]
    #[arg(long, value_name = "FILE")]
    plan: Option<PathBuf>,
    /// Memory budget: 24GiB, plain bytes, or a share of the step's own peak [default: none]
    #[arg(long, value_name = "SIZE|PERCENT%", value_parser = memory)]
    memory: Option<Budget>,
    #[command(flatten)]
    machine: MachineArgs,
    /// File for the step's timeline, which Perfetto opens
    #[arg(long, value_name = "FILE")]
    timeline: Option<PathBuf>,
    /// File for a page with the step's drawing and what becomes of each tensor
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// What the step took where it ran, in milliseconds: the page then says that first
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    measured_ms: Option<f64>,
    /// The most memory of tensors that it had on the device there
    #[arg(long, value_name = "SIZE", value_parser = size)]
    measured_peak: Option<u64>,
    /// lanes.json of the report that the step is of: page and timeline then show what was measured
    /// below what is predicted
    #[arg(long, value_name = "FILE")]
    lanes: Option<PathBuf>,
    /// caps.json of that report: the page then shows what the step would take under other caps
    #[arg(long, value_name = "FILE")]
    caps: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What is to be simulated.
#[derive(Debug)]
pub(crate) struct SimulateOptions {
    pub(crate) trace: PathBuf,
    pub(crate) plan: Option<PathBuf>,
    pub(crate) memory: Option<Budget>,
    pub(crate) timeline: Option<PathBuf>,
    pub(crate) report: Option<PathBuf>,
    /// What was measured where the step ran.
    pub(crate) measured_us: Option<f64>,
    pub(crate) measured_bytes: Option<u64>,
    pub(crate) lanes: Option<PathBuf>,
    pub(crate) caps: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) speaks: bool,
    settings: Settings,
}

impl SimulateOptions {
    /// A report's step, under its plan if it has one, on the machine of `settings` with the cap of
    /// its run. `measured` is the step's time in microseconds and its most bytes there.
    pub(crate) fn of_report(
        trace: PathBuf,
        plan: Option<PathBuf>,
        limit_bytes: u64,
        measured: Option<(f64, u64)>,
        settings: Settings,
    ) -> SimulateOptions {
        SimulateOptions {
            trace,
            plan,
            memory: Some(Budget::Bytes(limit_bytes)),
            timeline: None,
            report: None,
            measured_us: measured.map(|(us, _)| us),
            measured_bytes: measured.map(|(_, bytes)| bytes),
            lanes: None,
            caps: None,
            json: false,
            speaks: false,
            settings,
        }
    }

    /// The machine with this much device memory.
    pub(crate) fn machine(&self, limit_bytes: u64) -> Machine {
        self.settings.machine_of(limit_bytes)
    }
}

impl SimulateArgs {
    /// What the flags and the file come to.
    ///
    /// # Errors
    /// One line that says what is wrong and how to fix it.
    pub(crate) fn options(&self) -> anyhow::Result<SimulateOptions> {
        let mut settings = self.config.load()?;
        self.machine.put_into(&mut settings);
        put(&mut settings.memory, &self.memory);
        put(&mut settings.simulate.plan, &self.plan);
        put(&mut settings.simulate.timeline, &self.timeline);
        put(&mut settings.simulate.report, &self.report);
        put(&mut settings.simulate.measured_ms, &self.measured_ms);
        put(&mut settings.simulate.measured_peak, &self.measured_peak);
        put(&mut settings.simulate.lanes, &self.lanes);
        put(&mut settings.simulate.caps, &self.caps);
        let simulate = settings.simulate.clone();
        Ok(SimulateOptions {
            trace: self.trace.clone(),
            plan: simulate.plan,
            memory: settings.budget(),
            timeline: simulate.timeline,
            report: simulate.report,
            measured_us: simulate.measured_ms.map(|ms| 1e3 * ms),
            measured_bytes: simulate.measured_peak,
            lanes: simulate.lanes,
            caps: simulate.caps,
            json: config::json(&settings),
            speaks: config::speaks(&settings),
            settings,
        })
    }
}

/// The machine that steps are planned for.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct MachineArgs {
    /// Speed of copies to the host, alone [default: 55.3GB/s]
    #[arg(long, value_name = "SIZE/s", value_parser = rate)]
    link_out: Option<u64>,
    /// Speed of copies from the host, alone [default: 55.3GB/s]
    #[arg(long, value_name = "SIZE/s", value_parser = rate)]
    link_in: Option<u64>,
    /// Speed each way while copies run both ways [default: 49.5GB/s]
    #[arg(long, value_name = "SIZE/s", value_parser = rate)]
    link_both: Option<u64>,
    /// Host memory for swapped blocks [default: no cap]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    host_memory: Option<u64>,
}

impl MachineArgs {
    pub(super) fn put_into(&self, settings: &mut Settings) {
        put(&mut settings.link_out, &self.link_out);
        put(&mut settings.link_in, &self.link_in);
        put(&mut settings.link_both, &self.link_both);
        put(&mut settings.host_memory, &self.host_memory);
    }
}

/// A value by its name; the help lists them all.
pub(super) fn named<T: Named>() -> impl TypedValueParser<Value = T> {
    let values = T::ALL.iter().map(|&(_, name, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).try_map(|name| T::named(&name))
}

pub(super) fn effort() -> impl TypedValueParser<Value = u64> {
    clap::value_parser!(u64).range(1..=100_000)
}

fn milliseconds(text: &str) -> Result<f64, String> {
    let ms = text.parse::<f64>().ok().filter(|&ms| ms.is_finite() && ms > 0.0);
    ms.ok_or_else(|| "it is a time above 0, such as 35.2".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_time_is_a_time() {
        assert_eq!(milliseconds("35.2"), Ok(35.2));
        for text in ["0", "-1", "inf", "NaN", "35ms", ""] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_may_be_none() {
        assert_eq!((size_or_none("0"), size_or_none("1KiB")), (Ok(0), Ok(1024)));
        assert!(size_or_none("some").is_err());
    }
}
