//! Settings from a file: one TOML file for every front end, in which every key is known by name.
//!
//! Our own keys stand at the top, those that one command alone takes in a table of its name, and
//! the keys of SmartSwap for Ascend in the table `smartswap`. What a key of ours says overrides
//! what a key of `smartswap` says, so a ported file can be refined key by key. All of them are
//! listed in `docs/configuration.md`.
//!
//! Each setting is an `Option`: nothing means that the front end decides. [`Settings`] then lays
//! itself over the front end's own [`LoopConfig`], [`JointConfig`] and [`Machine`].

use std::fmt;
use std::path::Path;

use policy::{Error, GenerateConfig, Link, LoopConfig, Machine, MarginConfig, SmartSwapConfig};

use crate::joint::{JointConfig, Prefer};
use crate::smartswap::SmartSwapStrategy;

mod error;
mod keys;
mod kind;
mod read;

pub use error::{Location, SettingsError};
pub use keys::{
    CompareSettings, PlanSettings, Settings, SimulateSettings, SmartSwapSettings, TrainSettings,
};
pub use kind::{Budget, OptimizerState, PrintLevel};
use read::Given;

/// A key that a file may hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Key {
    /// The table that it stands in; empty at the top.
    pub table: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What may stand behind it, in words.
    pub accepts: String,
    /// What holds without it, in words or as it would be written.
    pub default: &'static str,
}

impl fmt::Display for Key {
    /// As [`Settings::set`] takes it: `smartswap.warmup_step`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.table {
            "" => f.write_str(self.name),
            table => write!(f, "{table}.{}", self.name),
        }
    }
}

/// `target_memory` where the key is left out.
const TARGET_BYTES: u64 = 40 << 30;
/// `reduction_memory` where the key is left out.
const REDUCTION_BYTES: u64 = 3 << 30;
/// Link rates as measured over PCIe 5: alone, and each way while copies run both ways.
const LINK_BYTES_PER_US: [f64; 2] = [55_300.0, 49_500.0];
/// More host memory than any machine has.
const HOST_BYTES_ENDLESS: u64 = 1 << 50;

impl Settings {
    /// Settings from a TOML file.
    ///
    /// # Errors
    /// [`SettingsError`]: the file cannot be read, is not TOML, holds a key that nobody knows or a
    /// value that its key cannot have, or contradicts itself.
    pub fn load(path: &Path) -> Result<Settings, SettingsError> {
        let bytes = policy::load_bytes(path, "settings", FILE_BYTES_MAX)?;
        let text = std::str::from_utf8(&bytes).map_err(|error| {
            let lines = bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n');
            let place = Location { path: path.to_owned(), line: Some(1 + lines.count()) };
            SettingsError::Syntax { place, what: "it is not UTF-8 text".to_owned() }
        })?;
        Settings::parse(text, path)
    }

    /// Settings from the text of a TOML file. `path` is for messages only.
    ///
    /// # Errors
    /// As [`load`](Settings::load), but for reading.
    pub fn parse(text: &str, path: &Path) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        read::read(text, path, &mut settings)?;
        settings.check().map_err(|what| {
            let place = Location { path: path.to_owned(), line: None };
            SettingsError::Conflict { place: Some(place), what }
        })?;
        Ok(settings)
    }

    /// Sets one key from text: `set("smartswap.warmup_step", "3")`. Text stands for itself, without
    /// quotes. Check with [`check`](Settings::check) when all are set.
    ///
    /// # Errors
    /// [`SettingsError::UnknownKey`] and [`SettingsError::Value`].
    ///
    /// # Examples
    /// ```
    /// use adaptive::{Budget, Settings};
    ///
    /// let mut settings = Settings::default();
    /// settings.set("memory", "24GiB")?;
    /// settings.set("smartswap.policy_pref", "BETTER_MEMORY_SAVING")?;
    /// assert_eq!(settings.budget(), Some(Budget::Bytes(24 << 30)));
    ///
    /// let error = settings.set("smartswap.warmup_stpe", "3").unwrap_err();
    /// let expect = "unknown key `warmup_stpe`: did you mean `warmup_step`?";
    /// assert_eq!(error.to_string(), expect);
    /// # Ok::<(), adaptive::SettingsError>(())
    /// ```
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), SettingsError> {
        let (table, name) = key.split_once('.').unwrap_or(("", key));
        read::assign(self, table, name, &Given::Untyped(text), None)
    }

    /// Every key, in the order of the documents.
    pub fn keys() -> Vec<Key> {
        keys::all()
    }

    /// Whether the settings go together.
    ///
    /// # Errors
    /// What does not, and how to fix it, in one line.
    pub fn check(&self) -> Result<(), String> {
        let smartswap = &self.smartswap;
        let warmup_step = smartswap.warmup_step.unwrap_or(WARMUP_STEPS);
        if let Some(stable_step) = smartswap.stable_step
            && stable_step <= warmup_step
        {
            return Err(format!(
                "`stable_step` is {stable_step} and `warmup_step` {warmup_step}: it must be \
                 larger, or no plan is ever tried"
            ));
        }
        if smartswap.target_memory.is_some() && smartswap.target_mode.is_none() {
            return Err("`target_memory` says nothing unless `target_mode = true`: add that, or \
                        write `memory` at the top"
                .to_owned());
        }
        Ok(())
    }

    /// The memory budget, if one is set: `memory`, or else what the keys `target_mode`,
    /// `target_memory` and `reduction_memory` come to.
    pub fn budget(&self) -> Option<Budget> {
        let smartswap = &self.smartswap;
        let asked = smartswap.target_mode.is_some() || smartswap.reduction_memory.is_some();
        let theirs = || match smartswap.target_mode {
            Some(true) => Budget::Bytes(smartswap.target_memory.unwrap_or(TARGET_BYTES)),
            _ => Budget::BelowPeak(smartswap.reduction_memory.unwrap_or(REDUCTION_BYTES)),
        };
        self.memory.or_else(|| asked.then(theirs))
    }

    /// Which blocks may leave, if that is set: `prefer`, or else `policy_pref`.
    pub fn prefer(&self) -> Option<Prefer> {
        self.prefer.or(self.smartswap.policy_pref)
    }

    /// The smallest block that moves, if that is set: `min_size`, or else `tensor_size_filter`.
    pub fn min_block_bytes(&self) -> Option<u64> {
        self.min_size.or(self.smartswap.tensor_size_filter)
    }

    /// How much to print.
    pub fn print_level(&self) -> PrintLevel {
        self.smartswap.print_level.unwrap_or_default()
    }

    /// Whether plans are to be saved although no file is named for them.
    pub fn save_policy(&self) -> bool {
        self.smartswap.save_policy.unwrap_or(false)
    }

    /// Lays the settings of the loop over those of a front end.
    pub fn loop_config(&self, base: LoopConfig) -> LoopConfig {
        let smartswap = &self.smartswap;
        let warmup_step = smartswap.warmup_step.unwrap_or(WARMUP_STEPS);
        let tries = smartswap.stable_step.map(|step| step.saturating_sub(warmup_step).max(1));
        let count = |own: Option<u64>, theirs: Option<u64>, base: u32| {
            own.or(theirs).map_or(base, |count| u32::try_from(count).unwrap_or(u32::MAX))
        };
        LoopConfig {
            limit_bytes: base.limit_bytes,
            warmup_steps: count(self.warmup_steps, smartswap.warmup_step, base.warmup_steps),
            search_steps: count(self.search_steps, tries, base.search_steps),
            slow_ratio: self.slow_ratio.unwrap_or(base.slow_ratio),
            slow_steps: count(self.slow_steps, None, base.slow_steps),
            failed_searches: count(self.failed_searches, None, base.failed_searches),
            calm_steps: count(self.calm_steps, None, base.calm_steps),
            cached_signatures: self
                .cached_signatures
                .map_or(base.cached_signatures, |count| count as usize),
            op_diff_share: smartswap.op_diff_thresh.unwrap_or(base.op_diff_share),
            margin: MarginConfig {
                first_bytes: smartswap.redundant_memory.or(base.margin.first_bytes),
                more_bytes: smartswap.adjust_memory.or(base.margin.more_bytes),
            },
            lays_out: self.strict.map_or(base.lays_out, |strict| !strict),
            unmap_every_steps: count(self.unmap_every, None, base.unmap_every_steps),
        }
    }

    /// Lays the settings of the planner over those of a front end.
    pub fn joint_config(&self, base: JointConfig) -> JointConfig {
        let bucket_bytes = match self.bucket {
            None => base.generate.swap_bytes_max,
            Some(0) => u64::MAX,
            Some(bytes) => bytes,
        };
        JointConfig {
            strategy: self.strategy.unwrap_or(base.strategy),
            prefer: self.prefer().or(base.prefer),
            generate: GenerateConfig {
                min_block_bytes: self.min_block_bytes().unwrap_or(base.generate.min_block_bytes),
                swap_bytes_max: bucket_bytes,
                reserve_bytes: self.reserve.unwrap_or(base.generate.reserve_bytes),
                effort: self.effort.map_or(base.generate.effort, |effort| effort as u32),
                ..base.generate
            },
            smartswap: SmartSwapStrategy {
                policy_v2: self.smartswap.policy_v2.unwrap_or(base.smartswap.policy_v2),
                config: self.smartswap_config(),
            },
            fits_layout: base.fits_layout && self.strict != Some(true),
            ..base
        }
    }

    /// Settings of SmartSwap's own generators.
    pub fn smartswap_config(&self) -> SmartSwapConfig {
        let base = SmartSwapConfig::default();
        let smartswap = &self.smartswap;
        let warmup_step = smartswap.warmup_step.unwrap_or(WARMUP_STEPS);
        let tries = smartswap.stable_step.map(|step| step.saturating_sub(warmup_step).max(1));
        SmartSwapConfig {
            block_bytes_min: self.min_block_bytes().unwrap_or(base.block_bytes_min),
            size_weight: smartswap.size_coverage_weight.unwrap_or(base.size_weight),
            redundant_bytes: smartswap.redundant_memory.unwrap_or(base.redundant_bytes),
            adjust_bytes: smartswap.adjust_memory.unwrap_or(base.adjust_bytes),
            search_steps: tries.map_or(base.search_steps, |tries| tries as u32),
            bucket_bytes: smartswap.swap_bucket_size.unwrap_or(base.bucket_bytes),
            layers_per_stage: smartswap
                .num_attn_layers_per_stage
                .map_or(base.layers_per_stage, |layers| layers as u32),
            optimizer_state: self.prefer() == Some(Prefer::Memory),
            reserve_bytes: base.reserve_bytes,
        }
    }

    /// Lays the settings of the machine over what is known of it. Its device limit stays.
    pub fn machine(&self, base: Machine) -> Machine {
        let rate =
            |own: Option<u64>, base: f64| own.map_or(base, |bytes_per_s| bytes_per_s as f64 / 1e6);
        Machine {
            host_limit_bytes: self.host_memory.unwrap_or(base.host_limit_bytes),
            link: Link {
                out_bytes_per_us: rate(self.link_out, base.link.out_bytes_per_us),
                in_bytes_per_us: rate(self.link_in, base.link.in_bytes_per_us),
                both_bytes_per_us: rate(self.link_both, base.link.both_bytes_per_us),
            },
            ..base
        }
    }

    /// The machine that recorded steps are planned for, with this much device memory: a link over
    /// PCIe 5 and host memory without end, as far as nothing else is set.
    pub fn machine_of(&self, limit_bytes: u64) -> Machine {
        let [alone, both] = LINK_BYTES_PER_US;
        self.machine(Machine {
            limit_bytes,
            host_limit_bytes: HOST_BYTES_ENDLESS,
            link: Link { out_bytes_per_us: alone, in_bytes_per_us: alone, both_bytes_per_us: both },
            copy_submit_us: Machine::COPY_SUBMIT_US,
        })
    }
}

/// What names the setting to raise, to be put behind an error: ` (--host-memory)`, or nothing. The
/// layers below do not know what settings are called.
pub fn setting_hint(error: &Error) -> &'static str {
    if error.is_short_of_host() { " (--host-memory)" } else { "" }
}

/// `warmup_step` where the key is left out.
const WARMUP_STEPS: u64 = 2;
/// No file of settings is larger.
const FILE_BYTES_MAX: u64 = 1 << 20;
