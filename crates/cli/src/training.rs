//! Trains a model once, on one device, and keeps what reports need of it.

use std::sync::Arc;

use adaptive::devices::DeviceSpan;
use adaptive::{
    Error, FinishedStep, Generated, JointPlanner, LoopConfig, Move, OptimizerState, Plan, Session,
    Settings, Stage, Strategy, StreamHandle, Trace,
};

use crate::device::{Device, Setup};
use crate::gpt::call::{Ops, Work};
use crate::gpt::model::Model;
use crate::gpt::operators::Outbox;
use crate::gpt::shape::Shape;
use crate::open::Accelerator;
use crate::pace::Pace;
use crate::planner::TrainPlanner;
use crate::text::Text;

/// What is trained.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    pub(crate) shape: Shape,
    pub(crate) text: &'a Text,
    pub(crate) seed: u64,
    pub(crate) steps: u64,
}

/// How it is trained.
#[derive(Clone, Debug)]
pub(crate) struct Course {
    pub(crate) setup: Setup,
    /// Where; the software device if nowhere else.
    pub(crate) accelerator: Option<Accelerator>,
    pub(crate) strategy: Strategy,
    pub(crate) optimizer_state: OptimizerState,
    /// A plan to begin with.
    pub(crate) plan: Option<Arc<Plan>>,
    /// Steps recorded before planning.
    pub(crate) warmup_steps: u32,
    /// What else is set of the loop, the planner and the machine.
    pub(crate) settings: Settings,
    /// Whether to write down what the streams do in the last step.
    pub(crate) timeline: bool,
    /// Whether to keep the weights.
    pub(crate) weights: bool,
}

/// A step that has just become complete.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Progress {
    pub(crate) stage: Stage,
    pub(crate) loss: Option<f32>,
    /// From the end of the step before to its own, in microseconds.
    pub(crate) step_us: f64,
}

/// A step this much slower than the best one counts as slow. The device is software and shares
/// its cores with whatever else runs, so step times scatter more than those of a real one.
const SLOW_RATIO: f64 = 1.6;
/// So many slow steps in a row start a new search.
const SLOW_STEPS: u32 = 3;

/// A finished run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Its steps as they were shown, and what the engine counted in each.
    pub(crate) steps: Vec<(Progress, FinishedStep)>,
    /// The bits of each weight and its name, if asked for.
    pub(crate) weights: Vec<(String, Vec<u32>)>,
    /// Physical device bytes at the highest: by the software device's ledger, else by the engine's
    /// count.
    pub(crate) peak_bytes: u64,
    /// The last step that was recorded, of the kind of the last step.
    pub(crate) trace: Option<Arc<Trace>>,
    /// The plan of the last step.
    pub(crate) plan: Option<Arc<Plan>>,
    /// What its planner said about it.
    pub(crate) about: Option<Arc<Generated>>,
    /// What the streams did in the last step, if that was asked for, it was a Stable one, and the
    /// device is software: others keep no record.
    pub(crate) timeline: Option<Timeline>,
}

/// What the streams did in one step.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// When the step began, on the driver's clock.
    pub(crate) start_us: f64,
    pub(crate) spans: Vec<DeviceSpan>,
    /// The copies in order of issue.
    pub(crate) moves: Vec<Move>,
    /// The ops that were replayed, in order.
    pub(crate) replays: Vec<&'static str>,
}

/// Trains, and tells `on_step` of each step when it is complete.
///
/// # Errors
/// As the engine's; above all [`Error::OutOfMemory`].
pub(crate) fn train(
    job: Job<'_>,
    course: &Course,
    on_step: &mut dyn FnMut(Progress),
) -> Result<Outcome, Error> {
    let mut training = Training::start(job, course)?;
    for step in 0..job.steps {
        let is_last = step + 1 == job.steps;
        let draws = is_last && course.timeline && training.is_calm(on_step)?;
        if draws {
            training.start_timeline()?;
        }
        training.step(step, on_step)?;
        if draws {
            training.take_timeline(on_step)?;
        }
    }
    training.finish(course, on_step)
}

/// A run under way. Fields in the order in which they are given up.
struct Training<'a> {
    job: Job<'a>,
    pace: Pace,
    model: Model,
    ops: Ops,
    session: Session<TrainPlanner>,
    device: Device,
    compute: StreamHandle,
    /// Stages of the steps that were submitted.
    stages: Vec<Stage>,
    losses: Vec<f32>,
    shown: Vec<Progress>,
    finished: Vec<FinishedStep>,
    timeline: Option<Timeline>,
}

impl<'a> Training<'a> {
    fn start(job: Job<'a>, course: &Course) -> Result<Training<'a>, Error> {
        let device = course.setup.open_on(course.accelerator.as_ref())?;
        let engine = device.engine.clone();
        let mut ops = Ops::new(&engine, Work::Real);
        let model = Model::start(&mut ops, job.shape, job.seed)?;
        // The start values are a step of their own, which nobody plans for.
        engine.end_step()?;
        engine.drain_reports()?;
        let planner = TrainPlanner::new(
            JointPlanner::new(
                course.settings.machine(course.setup.machine()),
                course.settings.joint_config(course.setup.planning(course.strategy)),
            ),
            course.optimizer_state,
        );
        let config = course.settings.loop_config(LoopConfig {
            limit_bytes: course.setup.enforced_bytes(),
            warmup_steps: course.warmup_steps,
            slow_ratio: SLOW_RATIO,
            slow_steps: SLOW_STEPS,
            ..LoopConfig::default()
        });
        let mut session = Session::new(engine.clone(), config, planner)?;
        if let Some(plan) = &course.plan {
            session.adopt(Arc::clone(plan))?;
        }
        let [compute, ..] = engine.stream_handles()?;
        let pace = Pace::start(device.driver.clone(), compute)?;
        Ok(Training {
            job,
            pace,
            model,
            ops,
            session,
            device,
            compute,
            stages: Vec::new(),
            losses: Vec::new(),
            shown: Vec::new(),
            finished: Vec::new(),
            timeline: None,
        })
    }

    /// Submits a step, and waits for the one before it.
    fn step(&mut self, step: u64, on_step: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        let Job { shape, text, seed, .. } = self.job;
        let batch = text.batch(shape.batch, shape.seq, seed, step);
        self.stages.push(self.session.stage());
        self.model.step(&mut self.ops, batch)?;
        let finished = self.session.end_step()?;
        self.finished.extend(finished);
        for text in self.session.take_failures() {
            eprintln!("warning: {text}");
        }
        if let Some(step_us) = self.pace.submitted()? {
            self.show(step_us, on_step);
        }
        Ok(())
    }

    /// Waits until every step is complete and all have reported.
    fn wait(&mut self, on_step: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        while let Some(step_us) = self.pace.finish_one()? {
            self.show(step_us, on_step);
        }
        let finished = self.session.drain()?;
        self.finished.extend(finished);
        Ok(())
    }

    fn show(&mut self, step_us: f64, on_step: &mut dyn FnMut(Progress)) {
        self.losses.extend(self.model.losses());
        let index = self.shown.len();
        let progress =
            Progress { stage: self.stages[index], loss: self.losses.get(index).copied(), step_us };
        self.shown.push(progress);
        on_step(progress);
    }

    /// Waits for the steps under way; then says whether the next one is Stable.
    fn is_calm(&mut self, on_step: &mut dyn FnMut(Progress)) -> Result<bool, Error> {
        self.wait(on_step)?;
        Ok(self.session.stage() == Stage::Stable)
    }

    /// Writes down what the streams do from here on. The device is idle.
    fn start_timeline(&mut self) -> Result<(), Error> {
        let Some(software) = &self.device.software else { return Ok(()) };
        self.device.engine.log_moves(true)?;
        self.ops.take_replays();
        software.start_timeline();
        self.timeline = Some(Timeline {
            start_us: software.now_us(),
            spans: Vec::new(),
            moves: Vec::new(),
            replays: Vec::new(),
        });
        // The time in which the device was idle is not part of the step.
        self.pace = Pace::start(Arc::clone(&self.device.driver), self.compute)?;
        Ok(())
    }

    fn take_timeline(&mut self, on_step: &mut dyn FnMut(Progress)) -> Result<(), Error> {
        self.wait(on_step)?;
        let (Some(timeline), Some(software)) = (&mut self.timeline, &self.device.software) else {
            return Ok(());
        };
        timeline.spans = software.take_timeline();
        timeline.replays = self.ops.take_replays();
        let last = self.finished.last().expect("a step has finished");
        timeline.moves = last.report.moves.clone();
        self.device.engine.log_moves(false)
    }

    fn finish(
        mut self,
        course: &Course,
        on_step: &mut dyn FnMut(Progress),
    ) -> Result<Outcome, Error> {
        self.wait(on_step)?;
        let peak_bytes = self.device.peak_bytes()?;
        let plan = self.session.plan().cloned();
        let trace = self.finished.last().and_then(|last| {
            let trace = self.session.trace(last.report.signature)?;
            Some(Trace::with_host_costs(trace, last.report.counters.host_costs()))
        });
        let about = self.session.policy().made().cloned();
        let weights = if course.weights { self.weights()? } else { Vec::new() };
        self.model.free(&mut self.ops)?;
        let steps = self.shown.into_iter().zip(self.finished).collect();
        Ok(Outcome { steps, weights, peak_bytes, trace, plan, about, timeline: self.timeline })
    }

    fn weights(&mut self) -> Result<Vec<(String, Vec<u32>)>, Error> {
        // Fetching is not a step that a plan knows.
        self.device.engine.set_orders(false, None)?;
        let outbox = Outbox::new();
        self.model.fetch_weights(&mut self.ops, &outbox)?;
        self.device.engine.synchronize()?;
        Ok(self.model.weight_names().into_iter().zip(outbox.take()).collect())
    }
}
