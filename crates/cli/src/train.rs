//! The command `train`: without a cap, then under it, then the reports.

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use adaptive::{
    Budget, Bytes, DeviceName, Error, FinishedStep, Named, OptimizerState, Plan, PrintLevel,
    Settings, Strategy,
};
use anyhow::{Context as _, bail};

use crate::args::{TrainArgs, TrainOptions, budget_bytes};
use crate::collect;
use crate::compare::{self, Difference};
use crate::device::{Ground, Setup, available_bytes};
use crate::gpt::shape::Shape;
use crate::open::Accelerator;
use crate::preflight::{self, Need};
use crate::progress::Meter;
use crate::report::files::OutFolder;
use crate::report::run::{MemoryCurves, Model, Run};
use crate::report::{html, json, table, timeline, units};
use crate::text::Text;
use crate::training::{Course, Job, Outcome, Progress, train};

/// Steps without a cap when nothing is compared: enough for a median.
const REFERENCE_STEPS: u64 = 6;

/// All that was checked before anything runs.
struct Request<'a> {
    args: &'a TrainOptions,
    shape: Shape,
    text: Text,
    plan: Option<Arc<Plan>>,
    out: Option<OutFolder>,
    /// The folder for the plan alone.
    save: Option<OutFolder>,
    accelerator: Option<Accelerator>,
    ground: Ground,
    /// Speed of the link, as planners are to reckon with it.
    link_bytes_per_s: u64,
}

/// Runs the command. Exit code 1 says that `--verify` found a difference.
///
/// # Errors
/// One line that says what is wrong and how to fix it.
pub(crate) fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let args = &args.options()?;
    let request = check(args)?;
    let need = need(&request)?;
    let setup = capped(&request, &need)?;
    announce(&request, &need, &setup)?;

    let reference = reference(&request, &need)?;
    let outcome = train_capped(&request, setup)?;
    let difference = args.verify.then(|| compare::first_difference(&reference, &outcome));
    let run = record(&request, &setup, &reference, &outcome, difference.as_ref());
    if let Some(out) = &request.out {
        write_files(out, &run, &outcome)?;
    }
    if let Some(folder) = &request.save {
        save_plan(folder, &outcome)?;
    }
    say(&match args.print_level {
        _ if args.json => json::text(&run)? + "\n",
        PrintLevel::Debug => each_step(&outcome) + &table::text(&run),
        PrintLevel::Info => table::text(&run),
        PrintLevel::None => String::new(),
    })?;
    match difference.flatten() {
        Some(difference) => {
            eprintln!("error: {difference}");
            Ok(ExitCode::from(1))
        }
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Everything that can be wrong with the request itself.
fn check(args: &TrainOptions) -> anyhow::Result<Request<'_>> {
    let shape = args.shape;
    let text = Text::open(args.text.as_deref())?;
    text.check(shape.seq)?;
    let plan = args.plan.as_deref().map(adaptive::load).transpose()?;
    // Nothing that is trained here runs in parts; other steps leave a plan, safely.
    let plan = plan.map(|saved| Arc::new(saved.plan));
    if plan.is_some() && args.strategy == Strategy::Keep {
        bail!("--strategy keep runs without a plan; leave out --plan or use another strategy");
    }
    let accelerator = accelerator(args.device)?;
    let (ground, link_bytes_per_s) = match &accelerator {
        None => (Ground::SOFTWARE, args.link),
        Some(accelerator) => {
            let driver = accelerator.driver();
            let ground = Ground::of(&*driver)?;
            (ground, ground.link_bytes_per_s(&driver).context("cannot measure the link")?)
        }
    };
    if let Some(Budget::Bytes(limit_bytes)) = args.memory
        && accelerator.is_some()
        && limit_bytes > ground.capacity_bytes
    {
        let (limit, free) = (Bytes(limit_bytes), Bytes(ground.capacity_bytes));
        bail!("--memory {limit} is more than the {free} that are free on {}", args.device);
    }
    let out = args.out.as_deref().map(OutFolder::prepare).transpose()?;
    let save = args.save.as_deref().map(OutFolder::prepare).transpose()?;
    Ok(Request { args, shape, text, plan, out, save, accelerator, ground, link_bytes_per_s })
}

/// Opens the device, if it is one that can run the operators.
fn accelerator(name: DeviceName) -> anyhow::Result<Option<Accelerator>> {
    let accelerator = Accelerator::open(name)?;
    if let Some(accelerator) = &accelerator {
        let properties = accelerator.driver().properties();
        if !properties.is_host_addressable {
            bail!(
                "train cannot use --device {name} ({}): its operators are functions of the host, \
                 which cannot address that device's memory; leave out --device, or try the \
                 device with stress",
                properties.name
            );
        }
    }
    Ok(accelerator)
}

/// What the model takes without a cap.
///
/// # Errors
/// If this machine, or the device, does not have it.
fn need(request: &Request<'_>) -> anyhow::Result<Need> {
    let &Request { args, shape, ground, link_bytes_per_s, .. } = request;
    let room_bytes = available_bytes().unwrap_or(u64::MAX);
    let refuse = |bytes: u64| {
        format!(
            "the model needs about {} of this machine's memory and {} are free; make --layers, \
             --hidden, --seq or --batch smaller",
            Bytes(bytes),
            Bytes(room_bytes)
        )
    };
    // The estimate is rough, but good enough not to run a model out of all reason, even in
    // pretence.
    let estimated_bytes = shape.estimated_bytes();
    if shape.persistent_bytes() > room_bytes || estimated_bytes / 4 > room_bytes {
        bail!(refuse(estimated_bytes));
    }
    // Where the device ends, this asks for more than it has instead of failing.
    let endless = Ground { capacity_bytes: Ground::SOFTWARE.capacity_bytes, ..ground };
    let roomy = Setup { limit_bytes: None, host_limit_bytes: 0, link_bytes_per_s, ground: endless };
    let need = preflight::measure(shape, &roomy).context("cannot size the model")?;
    if need.peak_bytes > room_bytes {
        bail!(refuse(need.peak_bytes));
    }
    if need.peak_bytes > ground.capacity_bytes {
        bail!(
            "without a cap, with which every run is compared, the model needs {} and {} are free \
             on {}; make --layers, --hidden, --seq or --batch smaller",
            Bytes(need.peak_bytes),
            Bytes(ground.capacity_bytes),
            args.device
        );
    }
    Ok(need)
}

/// The device under its cap.
///
/// # Errors
/// If the model cannot train under it whatever moves, or the plan file is of another model.
fn capped(request: &Request<'_>, need: &Need) -> anyhow::Result<Setup> {
    let Request { args, shape, plan, ground, .. } = request;
    let budget = args.memory.map(|budget| budget_bytes(budget, need.peak_bytes)).transpose()?;
    let limit_bytes = budget.unwrap_or(need.peak_bytes / 2);
    // Blocks that came back keep their host copy, so all of them may be there at once.
    let host_bytes = ground.round_up(need.peak_bytes.saturating_mul(2));
    let setup = Setup {
        limit_bytes: Some(limit_bytes),
        host_limit_bytes: args.settings.host_memory.unwrap_or(host_bytes),
        link_bytes_per_s: request.link_bytes_per_s,
        ground: *ground,
    };
    if let (Some(plan), Some(path)) = (plan, &args.plan)
        && plan.signature != need.signature
    {
        bail!(
            "the plan '{}' was made for another model or batch; give the sizes of the run that \
             made it, or leave out --plan",
            path.display()
        );
    }
    if setup.enforced_bytes() >= need.peak_bytes {
        return Ok(setup);
    }
    if setup.enforced_bytes() == 0 {
        bail!(too_small(*shape, &setup, "not even one chunk fits"));
    }
    match preflight::measure(*shape, &setup) {
        Ok(_) => Ok(setup),
        Err(Error::OutOfMemory(report)) => {
            let why = format!(
                "{} asked for, {} missing, with {} held by running ops, {} of small blocks and {} \
                 away",
                Bytes(report.requested_bytes),
                Bytes(report.missing_bytes),
                Bytes(report.pinned_bytes),
                Bytes(report.segment_bytes),
                Bytes(report.away_bytes),
            );
            bail!(too_small(*shape, &setup, &why))
        }
        Err(error) => Err(error).context("cannot size the model under its cap"),
    }
}

fn too_small(shape: Shape, setup: &Setup, why: &str) -> String {
    let least = preflight::smallest_limit(shape, setup).map_or_else(
        || "raise --memory".to_owned(),
        |bytes| format!("the least that works is --memory {bytes} ({})", Bytes(bytes)),
    );
    let limit = Bytes(setup.limit_bytes.unwrap_or_default());
    format!("a cap of {limit} is too small for this model: out of device memory: {why}; {least}")
}

fn announce(request: &Request<'_>, need: &Need, setup: &Setup) -> anyhow::Result<()> {
    let Request { args, shape, .. } = request;
    if args.json || args.print_level == PrintLevel::None {
        return Ok(());
    }
    let Shape { layers, hidden, heads, seq, batch, .. } = shape;
    let chosen = if args.memory.is_some() { "as asked for" } else { "half of that; see --memory" };
    say(&format!(
        "GPT of {} parameters: layers {layers}, hidden {hidden}, heads {heads}, batches of \
         {batch} x {seq} tokens\nneeds {} of device memory, gets {} ({chosen}), strategy {}\n\n",
        shape.parameter_count(),
        Bytes(need.peak_bytes),
        Bytes(setup.enforced_bytes()),
        args.strategy.name(),
    ))
}

/// Trains without a cap.
fn reference(request: &Request<'_>, need: &Need) -> anyhow::Result<Outcome> {
    let Request { args, shape, text, .. } = request;
    let steps = if args.verify { args.steps } else { REFERENCE_STEPS };
    let job = Job { shape: *shape, text, seed: args.seed, steps };
    let course = Course {
        setup: Setup {
            limit_bytes: None,
            host_limit_bytes: need.peak_bytes,
            link_bytes_per_s: request.link_bytes_per_s,
            ground: request.ground,
        },
        accelerator: request.accelerator.clone(),
        strategy: Strategy::Keep,
        optimizer_state: OptimizerState::Device,
        plan: None,
        warmup_steps: 1,
        settings: Settings::default(),
        timeline: false,
        weights: args.verify,
    };
    let meter = Meter::new("without a cap", steps);
    let outcome = train(job, &course, &mut |progress| meter.step(&progress));
    outcome.context("training without a cap failed")
}

fn train_capped(request: &Request<'_>, setup: Setup) -> anyhow::Result<Outcome> {
    let Request { args, shape, text, plan, .. } = request;
    let job = Job { shape: *shape, text, seed: args.seed, steps: args.steps };
    let course = Course {
        setup,
        accelerator: request.accelerator.clone(),
        strategy: args.strategy,
        optimizer_state: args.optimizer_state,
        plan: plan.clone(),
        warmup_steps: adaptive::LoopConfig::default().warmup_steps,
        settings: args.settings.clone(),
        timeline: args.out.is_some(),
        weights: args.verify,
    };
    let meter = Meter::new("under the cap", args.steps);
    let outcome = train(job, &course, &mut |progress| meter.step(&progress));
    outcome.context("training under the cap failed")
}

/// The run as reports know it.
fn record(
    request: &Request<'_>,
    setup: &Setup,
    reference: &Outcome,
    outcome: &Outcome,
    difference: Option<&Option<Difference>>,
) -> Run {
    let Request { args, shape, .. } = request;
    let spans = outcome.timeline.as_ref().map(collect::spans).unwrap_or_default();
    let (memory, decisions) = match &outcome.trace {
        Some(trace) => {
            let plan = outcome.plan.as_deref();
            let memory = collect::memory(trace, plan, &setup.machine(), &spans);
            let fits = reference.peak_bytes <= setup.enforced_bytes();
            (memory, collect::decisions(outcome, trace, fits, args.optimizer_state))
        }
        None => (MemoryCurves::default(), Vec::new()),
    };
    Run {
        model: Model {
            layers: shape.layers as u64,
            hidden: shape.hidden as u64,
            heads: shape.heads as u64,
            seq: shape.seq as u64,
            batch: shape.batch as u64,
            parameters: shape.parameter_count(),
        },
        strategy: args.strategy.name().to_owned(),
        seed: args.seed,
        command_line: command_line(),
        memory_limit_bytes: setup.enforced_bytes(),
        peak_device_bytes: outcome.peak_bytes,
        peak_uncapped_bytes: Some(reference.peak_bytes),
        step_us_uncapped: compare::stable_step_us(reference),
        bit_identical: difference.map(Option::is_none),
        steps: collect::steps(outcome),
        memory,
        spans,
        decisions,
    }
}

/// The command as typed.
pub(crate) fn command_line() -> String {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    format!("smartswap {}", args.join(" "))
}

fn write_files(out: &OutFolder, run: &Run, outcome: &Outcome) -> anyhow::Result<()> {
    save_plan(out, outcome)?;
    if let Some(trace) = &outcome.trace {
        adaptive::save_trace(&out.path("trace.json"), trace)?;
    }
    out.write("timeline.json", timeline::text(run)?.as_bytes())?;
    out.write("report.html", html::text(run)?.as_bytes())?;
    Ok(())
}

/// Saves the plan. The file of a run that never had one says so: it is empty.
fn save_plan(folder: &OutFolder, outcome: &Outcome) -> anyhow::Result<()> {
    let signature = outcome.trace.as_ref().map(|trace| trace.signature).unwrap_or_default();
    let op_count = outcome.trace.as_ref().map_or(0, |trace| trace.ops.len() as u32);
    let none = Plan { signature, op_count, ..Plan::default() };
    Ok(adaptive::save(&folder.path("plan.json"), outcome.plan.as_deref().unwrap_or(&none))?)
}

/// A line for each step.
fn each_step(outcome: &Outcome) -> String {
    let line = |(index, (progress, finished)): (usize, &(Progress, FinishedStep))| {
        let counters = finished.report.counters;
        let loss = progress.loss.map_or_else(|| "-".to_owned(), |loss| format!("{loss:.6}"));
        format!(
            "step {index:>4}  {:<12}  loss {loss}  {}  {} out, {} in, stalled {}, {} misses, {} \
             rescues\n",
            collect::mode(progress.stage).name(),
            units::time(progress.step_us),
            units::bytes(counters.swapped_out_bytes),
            units::bytes(counters.swapped_in_bytes),
            units::time(counters.stall_us),
            counters.misses,
            counters.rescues,
        )
    };
    outcome.steps.iter().enumerate().map(line).collect::<String>() + "\n"
}

/// Prints to stdout. A reader that has seen enough and gone away is not an error.
pub(crate) fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to stdout"),
    }
}
