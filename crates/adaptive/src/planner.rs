//! The planner of all front ends: of recorded steps on the command line, and of the loop in
//! training.

use std::collections::BTreeMap;
use std::panic;
use std::thread::{self, JoinHandle};

use policy::{
    Feedback, Generated, Layout, Link, Machine, Movable, Planner, Prediction, Proposal, Signature,
    Trace, TraceFault, both, check_trace, has_spare_cores, lay_out,
};

use crate::joint::{Joint, JointConfig, Prefer, Strategy, better};
use crate::rivals::{Rivals, against};

/// Steps with more ops than this for each unit of effort get one plan, in which everything may
/// leave: that is mostly the faster one, and planning is to be in nobody's way.
const LOOKS_OPS_MAX: usize = 1_250;
/// A step that is longer than the bound by less than this share is as good as any.
const AT_BOUND: f64 = 1e-9;

/// A plan is made for less memory at most so often until its layout fits.
const TIGHTER_PLANS: usize = 3;
/// What an action without a lot costs at least: a mapping beside copies takes a millisecond, of
/// which a part is hidden.
const UNPLACED_ACTION_US: f64 = 300.0;

/// Makes the best plan that the settings allow.
///
/// Under [`Joint`](Strategy::Joint) the choices for each block are also held against those of the
/// two pure strategies. With an effort of 1, which is for the largest steps, swapping alone is
/// tried up to 20,000 ops, and making blocks again alone is not.
///
/// Without a wish for what may leave, the plan that moves activations alone is held against the
/// one that moves everything. The plans of others that the settings allow compete as well, and so
/// does no plan at all, so the step is never slower than theirs in the simulation; some moves may
/// so be left to demand. Steps of more than 1,250 ops for each unit of effort get one plan, in
/// which everything may leave.
///
/// In the loop, a plan of others must leave nothing to demand: steps that run without one are
/// measured there anyway, and steps that need nothing on demand are preferred. Where a plan's
/// layout does not fit, one for a little less memory is taken instead, if it costs less than the
/// mappings that it saves.
#[derive(Debug)]
pub struct JointPlanner {
    machine: Machine,
    config: JointConfig,
    latest: Option<Generated>,
    beside: bool,
    /// By kind of step.
    jobs: BTreeMap<Signature, Job>,
}

/// A plan that is being made beside the training.
#[derive(Debug)]
struct Job {
    asked: Asked,
    thread: JoinHandle<(Generated, Option<Layout>)>,
}

/// What a plan was asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Asked {
    link: Link,
    reserve_bytes: u64,
}

impl JointPlanner {
    /// A planner for a machine.
    pub fn new(machine: Machine, config: JointConfig) -> JointPlanner {
        JointPlanner { machine, config, latest: None, beside: false, jobs: BTreeMap::new() }
    }

    /// In the loop, the first plan of a kind of step is made with the least effort, and others on
    /// a thread of their own while the training goes on. Which step gets a plan then depends on
    /// the clock; what the steps compute does not.
    #[must_use]
    pub fn beside_training(mut self) -> JointPlanner {
        self.beside = true;
        self
    }

    /// The best plan for a step.
    ///
    /// # Panics
    /// If the trace is not well formed ([`check_trace`]), or if a rate of the link is not above 0.
    pub fn make(&self, trace: &Trace) -> Generated {
        best(&Joint::new(trace, &self.machine, &self.config), Rivals::Any)
    }

    /// The machine and the settings that earlier tries speak for.
    fn after(&self, feedback: &Feedback) -> (Machine, JointConfig) {
        let link = self.machine.link;
        let scale = feedback.link_scale;
        let link = Link {
            out_bytes_per_us: link.out_bytes_per_us * scale,
            in_bytes_per_us: link.in_bytes_per_us * scale,
            both_bytes_per_us: link.both_bytes_per_us * scale,
        };
        let mut config = self.config;
        let reserve_bytes = &mut config.generate.reserve_bytes;
        *reserve_bytes = reserve_bytes.saturating_add(feedback.margin_bytes);
        (Machine { link, ..self.machine }, config)
    }

    /// What the job for a kind of step has come to, if it was for this.
    fn collect(&mut self, kind: Signature, asked: Asked) -> Option<(Generated, Option<Layout>)> {
        let job = self.jobs.remove(&kind)?;
        match job.thread.join() {
            Ok(made) => (job.asked == asked).then_some(made),
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// A plan that takes little time, if the little is enough for one that fits.
    fn sketch(trace: &Trace, machine: &Machine, mut config: JointConfig) -> Option<Made> {
        config.generate.effort = 1;
        config.fits_layout = false;
        let (made, layout) = with_layout(trace, machine, config);
        let is_plan = made.infeasible.is_none() && !made.plan.actions.is_empty();
        is_plan.then_some(Made { made, layout, is_sketch: true })
    }

    /// What there is to offer without keeping the training waiting.
    fn without_waiting(
        &mut self,
        trace: &Trace,
        machine: Machine,
        config: JointConfig,
        is_first: bool,
    ) -> Option<Made> {
        let reserve_bytes = config.generate.reserve_bytes;
        let asked = Asked { link: machine.link, reserve_bytes };
        let kind = trace.signature;
        if let Some((made, layout)) = self.collect(kind, asked) {
            return Some(Made { made, layout, is_sketch: false });
        }
        if is_first && let Some(sketch) = JointPlanner::sketch(trace, &machine, config) {
            return Some(sketch);
        }
        let trace = trace.clone();
        let thread = thread::spawn(move || with_layout(&trace, &machine, config));
        self.jobs.insert(kind, Job { asked, thread });
        None
    }
}

/// A plan with what is known of it.
struct Made {
    made: Generated,
    layout: Option<Layout>,
    is_sketch: bool,
}

impl Planner for JointPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        if self.jobs.get(&trace.signature).is_some_and(|job| !job.thread.is_finished()) {
            return Ok(None);
        }
        check_trace(trace)?;
        let (machine, config) = self.after(feedback);
        let made = if self.beside {
            self.without_waiting(trace, machine, config, feedback.tries == 0)
        } else {
            let (made, layout) = with_layout(trace, &machine, config);
            Some(Made { made, layout, is_sketch: false })
        };
        let Some(Made { made, layout, is_sketch }) = made else { return Ok(None) };
        let offer = !made.plan.actions.is_empty();
        let predicted = predict(&made);
        let proposal = Proposal { plan: made.plan.clone(), predicted, layout, is_sketch };
        self.latest = Some(made);
        Ok(offer.then_some(proposal))
    }

    fn latest(&self) -> Option<&Generated> {
        self.latest.as_ref()
    }

    fn link(&self) -> Option<Link> {
        Some(self.machine.link)
    }

    fn set_link(&mut self, link: Link) {
        self.machine.link = link;
    }

    fn is_busy(&self, kind: Signature) -> bool {
        self.jobs.contains_key(&kind)
    }

    fn stop_working_beside(&mut self) {
        self.beside = false;
        self.jobs.clear();
    }
}

/// The best plan whose layout fits, or the best of all if that is too dear; with its layout, if
/// layouts count.
fn with_layout(
    trace: &Trace,
    machine: &Machine,
    mut config: JointConfig,
) -> (Generated, Option<Layout>) {
    let plan =
        |config: &JointConfig| best(&Joint::new(trace, machine, config), Rivals::WithoutDemand);
    let first = plan(&config);
    if !config.fits_layout {
        return (first, None);
    }
    let limit_bytes = machine.limit_bytes.saturating_sub(config.generate.reserve_bytes);
    let actions = first.plan.actions.len() as f64;
    let most_us = first.simulation.step_us + actions * UNPLACED_ACTION_US;
    let first_layout = lay_out(trace, &first.plan);
    let mut excess_bytes = first_layout.excess_bytes(limit_bytes);
    for _ in 0..TIGHTER_PLANS {
        if excess_bytes == 0 || first.infeasible.is_some() {
            break;
        }
        let reserve_bytes = &mut config.generate.reserve_bytes;
        *reserve_bytes = reserve_bytes.saturating_add(excess_bytes);
        let made = plan(&config);
        if made.infeasible.is_some() || made.simulation.step_us > most_us {
            break;
        }
        let layout = lay_out(trace, &made.plan);
        excess_bytes = layout.excess_bytes(limit_bytes);
        if excess_bytes == 0 {
            return (made, Some(layout));
        }
    }
    (first, Some(first_layout))
}

fn best(joint: &Joint<'_>, rivals: Rivals) -> Generated {
    let one_look = joint.exceeds(LOOKS_OPS_MAX);
    let made = match (joint.config.strategy, joint.config.prefer) {
        // Nothing but moves on demand, or all that somebody else decides.
        (Strategy::Keep | Strategy::SmartSwap, _) => return joint.plan(Movable::All),
        (_, Some(Prefer::Memory)) => joint.plan(Movable::All),
        (_, Some(Prefer::Performance)) => {
            let made = joint.plan(Movable::Activations);
            if made.infeasible.is_some() { joint.plan(Movable::All) } else { made }
        }
        (_, None) if one_look => joint.plan(Movable::All),
        (_, None) => {
            let [some, all] = [Movable::Activations, Movable::All];
            let (made, all) = match has_spare_cores() {
                true => both(|| joint.plan(some), || Some(joint.plan(all))),
                false => (joint.plan(some), None),
            };
            if is_at_bound(&made) {
                made
            } else {
                better(made, all.unwrap_or_else(|| joint.plan(Movable::All)))
            }
        }
    };
    if one_look || is_at_bound(&made) { made } else { against(joint, made, rivals) }
}

fn is_at_bound(made: &Generated) -> bool {
    let least_us = made.unlimited_us + made.bound_us;
    made.infeasible.is_none() && made.simulation.step_us <= least_us * (1.0 + AT_BOUND)
}

fn predict(made: &Generated) -> Prediction {
    let simulation = &made.simulation;
    let mut link_us = [0.0; 2];
    for copy in &simulation.copies {
        link_us[copy.direction as usize] += copy.span.end_us - copy.span.start_us;
    }
    Prediction {
        step_us: simulation.step_us,
        stall_us: simulation.stall_us,
        link_us: link_us[0].max(link_us[1]),
        peak_bytes: simulation.held_bytes_peak,
    }
}
