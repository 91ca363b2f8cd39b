//! The command `max-model`: the largest model under a cap, without and with swapping.
//!
//! Sizes are tried by pretended steps, which take the memory of real ones and next to no time.
//! Then a few real steps at both sizes show what they cost.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

use adaptive::{Bytes, Error, OptimizerState, Settings, Strategy, TrainSettings};
use anyhow::{Context as _, bail};
use serde::Serialize;

use crate::args::{Grow, MaxModelArgs};
use crate::compare;
use crate::device::{Ground, Setup, available_bytes, round_down};
use crate::gpt::shape::Shape;
use crate::preflight;
use crate::progress::{Meter, Search};
use crate::text::Text;
use crate::train::say;
use crate::training::{Course, Job, train};

/// The search ends here even if larger models would train.
const SIZE_MAX: usize = 1 << 16;
/// A size whose step takes longer than this, by the model of one core, counts as too large: the
/// command ends within minutes.
const STEP_US_MAX: f64 = 5e6;
/// Real steps at each size: enough to find a plan and see it run.
const STEPS: u64 = 9;

/// What keeps a size from being larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Limit {
    DeviceMemory,
    HostMemory,
    StepTime,
    SearchBound,
}

impl Limit {
    fn explain(self) -> String {
        match self {
            Limit::DeviceMemory => "device memory: one op's tensors fill it".to_owned(),
            Limit::HostMemory => "the memory of this machine".to_owned(),
            Limit::StepTime => {
                format!("time: larger ones take over {} s a step", STEP_US_MAX / 1e6)
            }
            Limit::SearchBound => "the bound of this search; larger ones may train".to_owned(),
        }
    }
}

/// What a pretended run of one size showed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    /// It trains and nothing has to move.
    Fits,
    /// It trains if blocks move.
    Moves,
    /// It does not train.
    Not(Limit),
}

/// The largest size that passes, and what stopped the next one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Largest {
    /// `None` if not even 1 passes.
    size: Option<usize>,
    stopped_by: Limit,
}

/// A size that was trained for real.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Trained {
    size: usize,
    parameters: u64,
    peak_device_bytes: u64,
    step_ms: f64,
    tokens_per_s: f64,
}

/// The object that `--json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Answer {
    grow: &'static str,
    memory_limit_bytes: u64,
    without_swapping: Option<Trained>,
    with_swapping: Trained,
    /// How many times larger; `null` if nothing trains without swapping.
    ratio: Option<f64>,
    stopped_by: Limit,
}

/// Runs the command.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &MaxModelArgs) -> anyhow::Result<ExitCode> {
    let shape = args.model.shape(&TrainSettings::default())?;
    let text = Text::open(None)?;
    let room_bytes = available_bytes().unwrap_or(u64::MAX / 4);
    if round_down(args.memory) == 0 || args.memory > room_bytes / 2 {
        bail!(
            "a cap of {} is of no use here: this machine has {} free, and half of that is the \
             most that can play the device; choose another --memory",
            Bytes(args.memory),
            Bytes(room_bytes)
        );
    }
    let setup = Setup {
        limit_bytes: Some(args.memory),
        // The rest of the machine's memory, but for a quarter.
        host_limit_bytes: round_down((room_bytes - args.memory) / 4 * 3),
        link_bytes_per_s: args.link,
        ground: Ground::SOFTWARE,
    };
    let bound = match args.grow {
        Grow::Layers | Grow::Batch => SIZE_MAX,
        Grow::Seq => SIZE_MAX.min(text.longest_seq()),
    };
    let mut trial = Trial { setup, grow: args.grow, shape, room_bytes, known: BTreeMap::new() };
    let search = Search::new();
    let swapping = largest(bound, |size| {
        search.tries(args.grow.name(), size);
        trial.verdict(size).map(|verdict| match verdict {
            Verdict::Not(limit) => Some(limit),
            Verdict::Fits | Verdict::Moves => None,
        })
    })?;
    let keeping = largest(bound, |size| {
        search.tries(args.grow.name(), size);
        trial.verdict(size).map(|verdict| match verdict {
            Verdict::Not(limit) => Some(limit),
            Verdict::Moves => Some(Limit::DeviceMemory),
            Verdict::Fits => None,
        })
    })?;
    drop(search);
    let Some(size) = swapping.size else {
        bail!(nothing_trains(args, &trial, swapping.stopped_by))
    };
    let measure = |size, strategy| measure(args, &text, &setup, size, strategy);
    let without_swapping = keeping.size.map(|size| measure(size, Strategy::Keep)).transpose()?;
    let with_swapping = measure(size, Strategy::Joint)?;
    let answer = Answer {
        grow: args.grow.name(),
        memory_limit_bytes: setup.enforced_bytes(),
        ratio: keeping.size.map(|keeping| size as f64 / keeping as f64),
        without_swapping,
        with_swapping,
        stopped_by: swapping.stopped_by,
    };
    let text =
        if args.json { serde_json::to_string_pretty(&answer)? + "\n" } else { table(&answer)? };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn nothing_trains(args: &MaxModelArgs, trial: &Trial, limit: Limit) -> String {
    let least = match limit {
        Limit::DeviceMemory => {
            preflight::smallest_limit(args.grow.apply(trial.shape, 1), &trial.setup)
        }
        Limit::HostMemory | Limit::StepTime | Limit::SearchBound => None,
    };
    let fix = match least {
        Some(bytes) => format!("the least that works is --memory {bytes} ({})", Bytes(bytes)),
        None => "make the other sizes smaller".to_owned(),
    };
    format!(
        "not even --{} 1 trains under {}, because of {}; {fix}",
        args.grow.name(),
        Bytes(args.memory),
        limit.explain()
    )
}

/// Tries sizes by pretended steps, each once.
struct Trial {
    setup: Setup,
    grow: Grow,
    shape: Shape,
    room_bytes: u64,
    known: BTreeMap<usize, Verdict>,
}

impl Trial {
    fn verdict(&mut self, size: usize) -> anyhow::Result<Verdict> {
        if let Some(&verdict) = self.known.get(&size) {
            return Ok(verdict);
        }
        let shape = self.grow.apply(self.shape, size);
        // The estimate is rough: it only keeps the op count within reason.
        let is_absurd = shape.validate().is_err() || shape.estimated_bytes() / 2 > self.room_bytes;
        let verdict = if is_absurd {
            Verdict::Not(Limit::HostMemory)
        } else {
            match preflight::measure(shape, &self.setup) {
                Ok(need) if need.step_us > STEP_US_MAX => Verdict::Not(Limit::StepTime),
                Ok(need) if need.is_short => Verdict::Moves,
                Ok(_) => Verdict::Fits,
                Err(Error::OutOfMemory(report)) if report.host_full => {
                    Verdict::Not(Limit::HostMemory)
                }
                Err(Error::OutOfMemory(_)) => Verdict::Not(Limit::DeviceMemory),
                // The system has limits of its own, such as that on mappings.
                Err(Error::Memory(_)) => Verdict::Not(Limit::HostMemory),
                Err(error) => return Err(error).context("cannot size a model"),
            }
        };
        self.known.insert(size, verdict);
        Ok(verdict)
    }
}

/// The largest size up to `bound` that nothing stops: by doubling, then by halving the gap.
fn largest(
    bound: usize,
    mut stops: impl FnMut(usize) -> anyhow::Result<Option<Limit>>,
) -> anyhow::Result<Largest> {
    let (mut good, mut bad, mut stopped_by) = (0, None, Limit::SearchBound);
    while bad.is_none() && good < bound {
        let next = (2 * good).clamp(1, bound);
        match stops(next)? {
            None => good = next,
            Some(limit) => (bad, stopped_by) = (Some(next), limit),
        }
    }
    let mut bad = bad.unwrap_or(good + 1);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match stops(middle)? {
            None => good = middle,
            Some(limit) => (bad, stopped_by) = (middle, limit),
        }
    }
    Ok(Largest { size: (good > 0).then_some(good), stopped_by })
}

/// Trains a size for real.
fn measure(
    args: &MaxModelArgs,
    text: &Text,
    setup: &Setup,
    size: usize,
    strategy: Strategy,
) -> anyhow::Result<Trained> {
    let shape = args.grow.apply(args.model.shape(&TrainSettings::default())?, size);
    let job = Job { shape, text, seed: args.seed, steps: STEPS };
    let course = Course {
        setup: *setup,
        accelerator: None,
        strategy,
        optimizer_state: OptimizerState::Swap,
        plan: None,
        warmup_steps: adaptive::LoopConfig::default().warmup_steps,
        settings: Settings::default(),
        timeline: false,
        weights: false,
    };
    let what = if strategy == Strategy::Keep { "no swapping" } else { "swapping" };
    let meter = Meter::new(what, STEPS);
    let outcome = train(job, &course, &mut |progress| meter.step(&progress))
        .with_context(|| format!("training with --{} {size} failed", args.grow.name()))?;
    let step_us = compare::stable_step_us(&outcome).expect("some steps have run");
    let tokens = (shape.batch * shape.seq) as f64;
    Ok(Trained {
        size,
        parameters: shape.parameter_count(),
        peak_device_bytes: outcome.peak_bytes,
        step_ms: step_us / 1e3,
        tokens_per_s: tokens * 1e6 / step_us,
    })
}

fn table(answer: &Answer) -> anyhow::Result<String> {
    let mut text = format!(
        "{:<18}{:>10}{:>14}{:>14}{:>12}{:>12}\n",
        "", answer.grow, "parameters", "peak memory", "step", "tokens/s"
    );
    let none = "without swapping            -\n";
    for (name, row) in [
        ("without swapping", answer.without_swapping.as_ref()),
        ("with swapping", Some(&answer.with_swapping)),
    ] {
        let Some(row) = row else {
            text.push_str(none);
            continue;
        };
        writeln!(
            text,
            "{name:<18}{:>10}{:>14}{:>14}{:>12}{:>12.0}",
            row.size,
            row.parameters,
            Bytes(row.peak_device_bytes).to_string(),
            format!("{:.0} ms", row.step_ms),
            row.tokens_per_s,
        )?;
    }
    let ratio = answer.ratio.map_or_else(
        || "nothing trains without swapping".to_owned(),
        |ratio| format!("{ratio:.2}x the {}", answer.grow),
    );
    writeln!(
        text,
        "\n{ratio} under a cap of {}; what ends it is {}",
        Bytes(answer.memory_limit_bytes),
        answer.stopped_by.explain()
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_finds_the_last_size_that_passes() {
        for last in 0..40 {
            for bound in 1..40 {
                let mut tries = 0;
                let found = largest(bound, |size| {
                    assert!((1..=bound).contains(&size));
                    tries += 1;
                    Ok((size > last).then_some(Limit::HostMemory))
                })
                .unwrap();
                assert_eq!(found.size.unwrap_or(0), last.min(bound), "{last} of {bound}");
                let at_bound = last >= bound;
                assert_eq!(found.stopped_by == Limit::SearchBound, at_bound);
                assert!(tries <= 14, "{tries} tries for {last} of {bound}");
            }
        }
    }

    #[test]
    fn the_table_has_both_rows_and_says_what_ended_it() {
        let row = |size| Trained {
            size,
            parameters: 1_000,
            peak_device_bytes: 64 << 20,
            step_ms: 12.4,
            tokens_per_s: 1_234.5,
        };
        let mut answer = Answer {
            grow: "layers",
            memory_limit_bytes: 64 << 20,
            without_swapping: Some(row(4)),
            with_swapping: row(10),
            ratio: Some(2.5),
            stopped_by: Limit::StepTime,
        };
        let text = table(&answer).unwrap();
        assert!(text.contains("2.50x the layers under a cap of 64.0 MiB"), "{text}");
        assert!(text.contains("over 5 s a step"), "{text}");
        let width = |line: &&str| line.len();
        let widths: Vec<usize> =
            text.lines().take(3).collect::<Vec<_>>().iter().map(width).collect();
        assert_eq!(widths, [widths[0]; 3]);
        (answer.without_swapping, answer.ratio) = (None, None);
        assert!(table(&answer).unwrap().contains("nothing trains without"));
    }
}
