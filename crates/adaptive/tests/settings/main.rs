//! Promises of settings files: each key changes what it says, and whatever is wrong with a file is
//! one line that names the place.

mod documented;
mod keys;
mod refused;
mod theirs;

use std::path::Path;

use adaptive::{
    Generated, JointConfig, JointPlanner, Machine, Origin, Settings, SettingsError, Trace,
};
use policy::synthetic::{TransformerShape, transformer_trace};
use policy::{Plan, simulate};

/// What a file says.
fn try_parse(text: &str) -> Result<Settings, SettingsError> {
    Settings::parse(text, Path::new("run.toml"))
}

fn parse(text: &str) -> Settings {
    try_parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn transformer() -> Trace {
    let shape =
        TransformerShape { layers: 12, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
    transformer_trace(&shape)
}

/// A step of which weights and optimizer state are the largest blocks.
fn heavy() -> Trace {
    let shape =
        TransformerShape { layers: 6, weight_mib: 512, activation_mib: 32, forward_us: 9_000.0 };
    transformer_trace(&shape)
}

/// The machine of a file, with so many hundredths of what a step needs.
fn machine(settings: &Settings, trace: &Trace, percent: u64) -> Machine {
    let roomy = settings.machine_of(u64::MAX / 8);
    let peak_bytes = simulate(trace, &Plan::default(), &roomy).resident_bytes_peak;
    roomy.with_limit(peak_bytes * percent / 100)
}

/// How many blocks that live from step to step leave in what a file makes of [`heavy`].
fn persistent(text: &str, percent: u64) -> usize {
    let (settings, trace) = (parse(text), heavy());
    let machine = machine(&settings, &trace, percent);
    let config = settings.joint_config(JointConfig::default());
    let made = JointPlanner::new(machine, config).make(&trace);
    made.plan.blocks.iter().filter(|block| block.origin == Origin::Persistent).count()
}

/// What a file makes of the step at so many hundredths of its peak.
fn plan(text: &str, percent: u64) -> Generated {
    let (settings, trace) = (parse(text), transformer());
    let machine = machine(&settings, &trace, percent);
    JointPlanner::new(machine, settings.joint_config(JointConfig::default())).make(&trace)
}
