//! Flags of the command that holds strategies against each other.

use std::path::PathBuf;

use adaptive::{Budget, JointConfig, Machine, Settings};
use anyhow::bail;
use clap::Args;

use super::config::{self, ConfigArgs, put};
use super::memory;
use super::step::{MachineArgs, effort};

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Recorded steps: trace.json of `train --out`, or recorded by a framework; gzip or not.
    /// Several in one file are steps of other sizes, under one budget
    #[arg(value_name = "TRACE", required = true)]
    traces: Vec<PathBuf>,
    /// Memory budgets: 24GiB, plain bytes, or shares of each step's own peak, such as 80% 60%
    #[arg(
        long,
        value_name = "SIZE|PERCENT%",
        value_parser = memory,
        num_args = 1..,
        value_delimiter = ','
    )]
    memory: Vec<Budget>,
    #[command(flatten)]
    machine: MachineArgs,
    /// Placements that our own planner tries; more take longer and may find a faster plan
    /// [default: 8]
    #[arg(long, value_name = "N", value_parser = effort())]
    effort: Option<u64>,
    /// File for a drawing of step time against memory, for each strategy, from 100% down to the
    /// least that fits
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// What is to be compared.
#[derive(Debug)]
pub(crate) struct CompareOptions {
    pub(crate) traces: Vec<PathBuf>,
    pub(crate) budgets: Vec<Budget>,
    pub(crate) plot: Option<PathBuf>,
    pub(crate) json: bool,
    pub(crate) speaks: bool,
    /// Settings of the planner, but for the strategy.
    pub(crate) planner: JointConfig,
    settings: Settings,
}

impl CompareOptions {
    /// The machine under a budget.
    pub(crate) fn machine(&self, budget_bytes: u64) -> Machine {
        config::planned_machine(&self.settings, budget_bytes)
    }
}

impl CompareArgs {
    /// What the flags and the file come to.
    ///
    /// # Errors
    /// One line that says what is wrong and how to fix it.
    pub(crate) fn options(&self) -> anyhow::Result<CompareOptions> {
        let mut settings = self.config.load()?;
        self.machine.put_into(&mut settings);
        put(&mut settings.effort, &self.effort);
        put(&mut settings.compare.plot, &self.plot);
        let budgets = match &self.memory[..] {
            [] => settings.budget().into_iter().collect(),
            budgets => budgets.to_vec(),
        };
        if budgets.is_empty() {
            bail!("{}", super::step::NO_BUDGET);
        }
        Ok(CompareOptions {
            traces: self.traces.clone(),
            budgets,
            plot: settings.compare.plot.clone(),
            json: config::json(&settings),
            speaks: config::speaks(&settings),
            planner: config::planner(&settings),
            settings,
        })
    }
}
