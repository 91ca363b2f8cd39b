//! What to change where no plan reaches a budget: the setting that is short, and enough memory.

use adaptive::{Generated, Settings, Shortfall, Strategy, Treatment};

use super::step::Step;
use crate::args::joint_planner;

/// More memory is tried so often before the step's own peak is named.
const MEMORY_TRIES: usize = 3;

/// A setting that can keep a step from fitting.
struct Tight {
    flag: &'static str,
    /// Takes it away. Says whether it was there.
    lift: fn(&mut Settings) -> bool,
    /// Makes it as tight as a plan without it allows, and says so.
    ease: fn(&mut Settings, &Generated) -> String,
}

const TIGHT: [Tight; 5] = [
    Tight {
        flag: "--min-size",
        lift: |settings| {
            let own = settings.min_size.take().is_some();
            settings.smartswap.tensor_size_filter.take().is_some() || own
        },
        ease: |settings, made| {
            let moved = made.decisions.iter().filter(|row| row.treatment != Treatment::Keep);
            let bytes = moved.map(|row| row.size_bytes).min().unwrap_or(1);
            settings.min_size = Some(bytes);
            format!("lower --min-size to at most {bytes}")
        },
    },
    Tight {
        flag: "--host-memory",
        lift: |settings| settings.host_memory.take().is_some(),
        ease: |settings, made| {
            let bytes = made.simulation.host_bytes_peak;
            settings.host_memory = Some(bytes);
            format!("raise --host-memory to at least {bytes}")
        },
    },
    Tight {
        flag: "--bucket",
        lift: |settings| settings.bucket.take().is_some_and(|bytes| bytes > 0),
        ease: |settings, made| {
            let swaps = made.decisions.iter().filter(|row| row.treatment == Treatment::Swap);
            let bytes = swaps.map(|row| row.size_bytes).sum();
            settings.bucket = Some(bytes);
            format!("raise --bucket to at least {bytes}")
        },
    },
    Tight {
        flag: "--reserve",
        lift: |settings| settings.reserve.take().is_some_and(|bytes| bytes > 0),
        ease: |_, _| "leave out --reserve".to_owned(),
    },
    Tight {
        flag: "--strategy",
        lift: |settings| settings.strategy.replace(Strategy::Joint) != Some(Strategy::Joint),
        ease: |_, _| "take --strategy joint".to_owned(),
    },
];

/// What makes the recorded step fit, each part tried with a quick plan.
pub(super) fn advice(
    settings: &Settings,
    step: &Step,
    budget_bytes: u64,
    short: Shortfall,
) -> String {
    let quick = Settings { effort: Some(1), ..settings.clone() };
    let memory =
        format!("raise --memory to at least {}", memory(&quick, step, budget_bytes, short));
    match setting(&quick, step, budget_bytes) {
        Some(words) => format!("{words}, or {memory}"),
        None => memory,
    }
}

/// The setting without which there is a plan.
fn setting(settings: &Settings, step: &Step, budget_bytes: u64) -> Option<String> {
    let step = step.under(budget_bytes);
    let plan = |settings: &Settings| {
        let made = joint_planner(settings, budget_bytes).make(&step.trace);
        made.infeasible.is_none().then_some(made)
    };
    let mut without_all = settings.clone();
    let mut flags = Vec::new();
    for tight in &TIGHT {
        let mut lifted = settings.clone();
        if !(tight.lift)(&mut lifted) {
            continue;
        }
        if let Some(made) = plan(&lifted) {
            let words = (tight.ease)(&mut lifted, &made);
            let enough = plan(&lifted).is_some();
            return Some(if enough { words } else { format!("leave out {}", tight.flag) });
        }
        (tight.lift)(&mut without_all);
        flags.push(tight.flag);
    }
    let several = flags.len() > 1 && plan(&without_all).is_some();
    several.then(|| format!("leave out {}", flags.join(" and ")))
}

/// A budget in which there is a plan with all settings as they are; the step's own peak always is.
fn memory(settings: &Settings, step: &Step, budget_bytes: u64, short: Shortfall) -> u64 {
    let most_bytes = step.peak_bytes.saturating_add(settings.reserve.unwrap_or(0));
    let mut bytes = budget_bytes.saturating_add(short.missing_bytes);
    for _ in 0..MEMORY_TRIES {
        if bytes >= most_bytes {
            break;
        }
        match joint_planner(settings, bytes).make(&step.under(bytes).trace).infeasible {
            None => return bytes,
            Some(short) => bytes = bytes.saturating_add(short.missing_bytes),
        }
    }
    most_bytes
}
