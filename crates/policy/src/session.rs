//! Ties the engine to the loop: each finished step goes in, the orders for the next come out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use swap_core::{Engine, Error, HostCosts, Orders, Plan, Signature, StepReport, Trace};

use crate::generate::Generated;
use crate::ranks::Figures;
use crate::search::{Planner, fingerprint};
use crate::stage::{Directive, Loop, LoopConfig, News, Sizes, Stage};

pub(crate) mod agreed;
mod layouts;
mod measuring;
mod ranks;

use layouts::Layouts;
use measuring::Measuring;

/// Recorded steps kept, to choose victims by next use.
const TRACES_KEPT: usize = 16;

/// An engine that plans for itself.
#[derive(Debug)]
pub struct Session<P> {
    engine: Engine,
    policy: Loop<P>,
    /// The steps whose reports are owed, oldest first.
    owed: VecDeque<Owed>,
    /// Number of the current directive.
    directives: u64,
    /// The last recorded step of each kind.
    traces: BTreeMap<Signature, Recorded>,
    current: Directive,
    /// Whether the engine was told to record: not while a layout is being mapped.
    records: bool,
    /// What its planner knows of the current plan.
    made: Option<Arc<Generated>>,
    /// The recorded step that the current plan was made for, if it was here.
    made_for: Option<Arc<Trace>>,
    /// Set while this rank judges steps together with others.
    shared: Option<Shared>,
    /// What a report that came in the middle of a step has led to: it waits for the step's end.
    put_off: Option<Directive>,
    layouts: Layouts,
    measuring: Measuring,
    /// The engine has no orders since nobody told of ops.
    slept: bool,
}

/// A recorded step.
#[derive(Debug)]
struct Recorded {
    /// When it was.
    step: u64,
    trace: Arc<Trace>,
    /// What the engine's own work costs the host, as steps of its kind have told since. Each tells
    /// another figure, and others hold the trace: in there, it would be copied after each step.
    host_costs: HostCosts,
}

/// What a step ran under whose report is owed.
#[derive(Debug)]
struct Owed {
    /// The number of the directive.
    directive: u64,
    /// It maps a layout, so its time says nothing.
    is_moving_in: bool,
    stage: Stage,
    plan: Option<Arc<Plan>>,
    made: Option<Arc<Generated>>,
    made_for: Option<Arc<Trace>>,
    sizes: Option<Arc<Sizes>>,
}

/// What a rank that judges steps together with others has still to judge.
#[derive(Debug, Default)]
struct Shared {
    /// One for each step that ended since the ranks began to share, oldest first, so that all
    /// ranks tell of the same step.
    waiting: VecDeque<Waiting>,
    /// What all told of the oldest, while its times are being agreed on.
    worst: Option<Figures>,
    /// Steps are not told op by op, at least the last one was not.
    asleep: bool,
    /// All plan for what this rank's ops touch.
    leads: bool,
    /// In how many steps in a row the ranks had different blocks.
    put_off_steps: u32,
}

/// A step that has to be judged.
#[derive(Debug)]
enum Waiting {
    /// Nobody told of its ops.
    Asleep,
    /// Somebody did.
    Finished(Box<Told>),
}

/// A step that was told op by op, and what it ran under.
#[derive(Debug)]
struct Told {
    /// The number of the directive.
    directive: u64,
    /// It mapped its plan's layout, so its time says nothing.
    is_moving_in: bool,
    report: StepReport,
}

/// A finished step and what it ran under.
#[derive(Clone, Debug, PartialEq)]
pub struct FinishedStep {
    /// The stage.
    pub stage: Stage,
    /// The plan, if there was one. It may be for another kind of step.
    pub plan: Option<Arc<Plan>>,
    /// What its planner knows of the plan.
    pub made: Option<Arc<Generated>>,
    /// The recorded step that the plan was made for, if it was here.
    pub made_for: Option<Arc<Trace>>,
    /// Set if the plan is for steps of any size.
    pub sizes: Option<Arc<Sizes>>,
    /// What happened.
    pub report: StepReport,
}

impl<P: Planner> Session<P> {
    /// Puts `engine` under the loop. Call it before the first step.
    ///
    /// # Errors
    /// [`Error::Usage`] if a step has begun.
    pub fn new(engine: Engine, config: LoopConfig, planner: P) -> Result<Session<P>, Error> {
        let policy = Loop::new(config, planner);
        let current = policy.directive();
        engine.set_orders(current.record, None)?;
        Ok(Session {
            engine,
            policy,
            owed: VecDeque::new(),
            directives: 0,
            traces: BTreeMap::new(),
            records: current.record,
            current,
            made: None,
            made_for: None,
            shared: None,
            put_off: None,
            layouts: Layouts::default(),
            measuring: Measuring::new(),
            slept: false,
        })
    }

    /// The engine, for ops and allocations.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The loop.
    pub fn policy(&self) -> &Loop<P> {
        &self.policy
    }

    /// The stage of the step that is running.
    pub fn stage(&self) -> Stage {
        self.current.stage
    }

    /// The plan of the step that is running.
    pub fn plan(&self) -> Option<&Arc<Plan>> {
        self.current.plan.as_ref()
    }

    /// A number that tells the plan of the running step from others; 0 without one.
    pub fn plan_number(&self) -> u64 {
        self.plan().map_or(0, |plan| fingerprint(plan))
    }

    /// The last recorded step of a kind, as it was then.
    pub fn trace(&self, signature: Signature) -> Option<&Arc<Trace>> {
        self.traces.get(&signature).map(|recorded| &recorded.trace)
    }

    /// What has gone wrong in planning since the last call: see [`Loop::take_failures`].
    pub fn take_failures(&mut self) -> Vec<String> {
        self.policy.take_failures()
    }

    /// What the loop did since the last call: see [`Loop::take_news`].
    pub fn take_news(&mut self) -> Vec<News> {
        self.policy.take_news()
    }

    /// Starts with a plan from elsewhere instead of a search. Call it before the first step.
    ///
    /// # Errors
    /// [`Error::Usage`] if a step has begun.
    pub fn adopt(&mut self, plan: Arc<Plan>) -> Result<(), Error> {
        self.policy.adopt(plan);
        self.follow(self.policy.directive())
    }

    /// Ends the step: call it after each optimizer step. Returns the steps whose device work has
    /// become complete, oldest first; a recorded step is among them at once.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn end_step(&mut self) -> Result<Vec<FinishedStep>, Error> {
        self.owed.push_back(Owed {
            directive: self.directives,
            is_moving_in: self.layouts.end_step(),
            stage: self.current.stage,
            plan: self.current.plan.clone(),
            made: self.made.clone(),
            made_for: self.made_for.clone(),
            sizes: self.current.sizes.clone(),
        });
        if let Some(shared) = &mut self.shared {
            shared.asleep = false;
        }
        let mut reports = self.engine.end_step()?;
        if self.policy.judges_next() {
            // The device stands still for a moment, as it does after a recorded step.
            reports.extend(self.engine.drain_reports()?);
        }
        if let Some(directive) = self.put_off.take() {
            self.follow(directive)?;
        }
        let finished = self.observe(reports)?;
        let is_due = self.current.plan.is_some() && self.is_layout_due();
        let may_record = self.current.record && !self.records && !self.layouts.is_moving_in();
        if (is_due || may_record || self.slept) && !self.engine.is_inside_step()? {
            let current = self.current.clone();
            self.order(&current)?;
        }
        if self.layouts.unmaps(self.policy.config().unmap_every_steps) {
            self.engine.hide_away()?;
        }
        let is_calm = self.current.stage == Stage::Stable && !self.layouts.is_moving_in();
        if is_calm {
            self.engine.stop_growing_host()?;
        }
        if is_calm && self.measuring.end_step() && !self.engine.measure_lanes()? {
            self.measuring.ask();
        }
        Ok(finished)
    }

    /// Asks for the [`lanes`](StepReport::lanes) of the next Stable step. Some are measured anyway,
    /// fewer as time goes by.
    pub fn measure_lanes(&mut self) {
        self.measuring.ask();
    }

    /// Waits for the device and returns the steps that are still owed.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn drain(&mut self) -> Result<Vec<FinishedStep>, Error> {
        let reports = self.engine.drain_reports()?;
        self.observe(reports)
    }

    fn observe(&mut self, reports: Vec<StepReport>) -> Result<Vec<FinishedStep>, Error> {
        let mut finished = Vec::with_capacity(reports.len());
        for mut report in reports {
            let owed = self.owed.pop_front().expect("noted when the step ended");
            let Owed { directive, is_moving_in, stage, plan, made, made_for, sizes } = owed;
            let is_as_planned = plan.as_ref().is_some_and(|plan| report.followed(plan));
            let is_telling = is_as_planned && !is_moving_in;
            let is_moving_in = is_moving_in && is_as_planned;
            match &mut report.trace {
                Some(trace) => self.keep_trace(report.step, trace),
                None if is_telling && self.shared.is_none() => self.learn_host_costs(&report),
                None => {}
            }
            match &mut self.shared {
                Some(shared) => {
                    let told = Told { directive, is_moving_in, report: report.clone() };
                    shared.waiting.push_back(Waiting::Finished(Box::new(told)));
                }
                None if is_moving_in => self.policy.pass_over(&report),
                None => self.judge(directive, &report, None)?,
            }
            finished.push(FinishedStep { stage, plan, made, made_for, sizes, report });
        }
        Ok(finished)
    }

    /// Judges a step that ran under the directive of this number.
    fn judge(
        &mut self,
        directive: u64,
        report: &StepReport,
        worst: Option<Figures>,
    ) -> Result<(), Error> {
        // A report can come late. One of a step that began before the orders changed would be
        // taken for a step under the new ones.
        if directive != self.directives || self.put_off.is_some() {
            self.policy.note_size(report);
            return Ok(());
        }
        let next = match worst {
            Some(worst) => self.policy.observe_together(report, &worst),
            None => self.policy.observe(report),
        };
        if next == self.current { Ok(()) } else { self.follow(next) }
    }

    /// Keeps a recorded step. Its ops, and the engine's work, take the least that they ever took.
    fn keep_trace(&mut self, step: u64, trace: &mut Trace) {
        if let Some(before) = self.traces.get(&trace.signature)
            && before.trace.ops.len() == trace.ops.len()
        {
            for (op, before) in trace.ops.iter_mut().zip(&before.trace.ops) {
                op.take_least(before);
            }
            trace.host_costs = before.host_costs.least(trace.host_costs);
        }
        let host_costs = trace.host_costs;
        let recorded = Recorded { step, trace: Arc::new(trace.clone()), host_costs };
        self.traces.insert(trace.signature, recorded);
        while self.traces.len() > TRACES_KEPT {
            let oldest = self.traces.iter().min_by_key(|(_, recorded)| recorded.step);
            let signature = *oldest.expect("more than some are kept").0;
            self.traces.remove(&signature);
        }
    }

    /// What the engine's own work costs the host is known best from a step that nobody recorded.
    fn learn_host_costs(&mut self, report: &StepReport) {
        if let Some(recorded) = self.traces.get_mut(&report.signature) {
            recorded.host_costs = report.counters.host_costs().or(recorded.host_costs);
        }
    }

    /// Steps run under `directive` from the next one on that begins.
    fn follow(&mut self, directive: Directive) -> Result<(), Error> {
        if self.engine.is_inside_step()? {
            self.put_off = Some(directive);
            return Ok(());
        }
        self.layouts.change(&self.current, &directive);
        if directive.plan != self.current.plan {
            self.measuring.change();
        }
        self.order(&directive)?;
        self.current = directive;
        self.made = self.policy.made().cloned();
        self.made_for = self.policy.trace().cloned();
        self.directives += 1;
        Ok(())
    }

    /// Gives the engine the orders of a directive, laid out if that is due. What would be recorded
    /// while a layout is being mapped says more of that than of the step.
    fn order(&mut self, directive: &Directive) -> Result<(), Error> {
        let layout = directive.plan.as_deref().and_then(|plan| self.laid_out(plan));
        let orders = directive.plan.as_ref().map(|plan| {
            let orders = match (&directive.sizes, self.step_of(plan)) {
                (Some(sizes), Some(trace)) => sizes.orders(plan, trace),
                (None, Some(trace)) => Orders::with_trace(plan, trace),
                (_, None) => Orders::new(plan),
            };
            Arc::new(match layout {
                Some(layout) => {
                    orders.with_lots(layout.turns.clone()).with_pieces(layout.pieces.clone())
                }
                None => orders,
            })
        });
        self.records = directive.record && !self.layouts.is_moving_in();
        self.slept = false;
        self.engine.set_orders(self.records, orders)
    }

    /// The recorded step that the plan of the last directive was made for; of one from elsewhere,
    /// the last of its kind. Others of the kind may have other blocks besides.
    fn step_of(&self, plan: &Plan) -> Option<&Arc<Trace>> {
        self.policy.trace().or_else(|| self.trace(plan.signature))
    }

    /// Whether a step that is larger than most would have to move anything.
    pub fn may_outgrow(&self) -> bool {
        self.current.sizes.as_ref().is_some_and(|sizes| sizes.may_move())
    }

    /// Whether one of the last steps was larger than most.
    pub fn has_outgrown(&self) -> bool {
        self.policy.has_outgrown()
    }
}
