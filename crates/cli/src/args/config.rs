//! The file of settings, and flags that override it.

use std::path::PathBuf;

use adaptive::{
    Budget, Bytes, GenerateConfig, JointConfig, JointPlanner, Machine, PrintLevel, Settings,
};
use anyhow::bail;
use clap::Args;

/// Where a plan is saved if it is to be and no place is named.
const SAVE_FOLDER: &str = "swap_output";

/// What every command takes that reads settings.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigArgs {
    /// TOML file of settings, which flags override; docs/configuration.md lists its keys
    #[arg(long, value_name = "FILE.toml")]
    config: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

impl ConfigArgs {
    /// The settings of the file, or none.
    ///
    /// # Errors
    /// One line that names the file and the place.
    pub(super) fn load(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::load(path)?,
            None => Settings::default(),
        };
        raise(&mut settings.json, self.json);
        Ok(settings)
    }
}

/// A flag with a value overrides the file.
pub(super) fn put<T: Clone>(setting: &mut Option<T>, flag: &Option<T>) {
    if flag.is_some() {
        setting.clone_from(flag);
    }
}

/// A flag without a value can only say yes.
pub(super) fn raise(setting: &mut Option<bool>, flag: bool) {
    if flag {
        *setting = Some(true);
    }
}

/// A budget in bytes, for a step that needs `peak_bytes`.
///
/// # Errors
/// If it is to lie further below the peak than the peak is high.
pub(crate) fn budget_bytes(budget: Budget, peak_bytes: u64) -> anyhow::Result<u64> {
    if let Budget::BelowPeak(bytes) = budget
        && bytes >= peak_bytes
    {
        bail!(
            "`reduction_memory` is {}, and the step needs {} in all; write less",
            Bytes(bytes),
            Bytes(peak_bytes)
        );
    }
    Ok(budget.of_peak(peak_bytes))
}

/// The machine that a recorded step is planned for under a budget.
pub(super) fn planned_machine(settings: &Settings, budget_bytes: u64) -> Machine {
    settings.machine_of(budget_bytes.saturating_sub(settings.reserve.unwrap_or(0)))
}

/// Settings of the planner for a recorded step. The machine has less memory by the reserve.
pub(super) fn planner(settings: &Settings) -> JointConfig {
    let config = settings.joint_config(JointConfig::default());
    let generate = GenerateConfig { reserve_bytes: 0, ..config.generate };
    JointConfig { generate, ..config }
}

/// The planner of a recorded step under a budget.
pub(crate) fn joint_planner(settings: &Settings, budget_bytes: u64) -> JointPlanner {
    JointPlanner::new(planned_machine(settings, budget_bytes), planner(settings))
}

/// Whether a command prints one JSON object and nothing else.
pub(super) fn json(settings: &Settings) -> bool {
    settings.json.unwrap_or(false)
}

/// Whether people are to see anything but errors.
pub(super) fn speaks(settings: &Settings) -> bool {
    settings.print_level() < PrintLevel::None
}

/// The folder for a plan that is to be saved although no place is named for it.
pub(super) fn save_folder(settings: &Settings) -> Option<PathBuf> {
    settings.save_policy().then(|| SAVE_FOLDER.into())
}
