//! The planner of all front ends: of recorded steps on the command line, and of the loop in
//! training.

use std::collections::BTreeMap;
use std::panic;
use std::thread::{self, JoinHandle};

use policy::{
    Feedback, Generated, Layout, Link, Machine, Movable, Plan, Planner, Prediction, Proposal,
    Signature, Trace, TraceFault, both, check_trace, has_spare_cores, lay_out, nested,
};

use crate::joint::{Joint, JointConfig, Prefer, Strategy, better, bound_us};
use crate::rivals::{Rivals, against};

/// Steps with more ops than this for each unit of effort get one plan, in which everything may
/// leave: that is mostly the faster one, and planning is to be in nobody's way.
const LOOKS_OPS_MAX: usize = 1_250;
/// A step that is longer than the bound by less than this share is as good as any.
const AT_BOUND: f64 = 1e-9;

/// A plan is made for less memory at most so often until its layout fits.
const TIGHTER_PLANS: usize = 4;
/// The same for the first plan of the loop, for which training waits, and for steps up to
/// [`SKETCHES_OPS_MAX`] alone: those of larger ones take seconds each.
const TIGHTER_SKETCHES: usize = 3;
const SKETCHES_OPS_MAX: usize = 5_000;
/// What an action without a lot costs at least: a mapping beside copies takes a millisecond, of
/// which a part is hidden.
const UNPLACED_ACTION_US: f64 = 300.0;
/// A layout for which a twentieth of a cap is missing costs as much as none: what is missing goes
/// and comes several times a step. On a recorded step of nanoGPT 0.5 % cost 8 % of the calls that
/// it takes without a layout, 1.7 % cost 26 %, and 2.2 % cost 39 %.
const UNPLACED_SHARE: f64 = 20.0;
/// Most of what an effort gains, it gains below this: more takes several times as long for less
/// than a hundredth of the step.
const QUICK_EFFORT: u32 = 2;
/// The plan of a search that gets the whole effort: by then the ops' times are known well.
const WHOLE_EFFORT_TRY: u32 = 2;
/// So a plan is made for less memory by this part of the cap, if lots are waited for.
const ROOM_DIVISOR: u64 = 64;
/// By no more than this part of the cap at once, but for the last time: where one large block lies
/// too high, less often does than its bytes. nanoGPT under 6.2 GiB, whose logits take 2.3 GiB, was
/// planned with 149 ms instead of 94 otherwise.
const LEAP_DIVISOR: u64 = 16;
/// This part of the cap is left to small memory and to what operators that run again need
/// meanwhile, which differ from step to step. With less than 30 MiB of 6.2 GiB to spare, each step
/// of nanoGPT made 16 to 48 memory calls on an H100. What a step takes beyond it is missing at its
/// peak, where blocks without a lot are in the way of others: on the software device, 80 MiB more
/// made 4,500 calls a step and a miss where a hundredth of 6.4 GiB was spare, and none with this.
const SPARE_DIVISOR: u64 = 50;
/// Waiting for lots is not worth another plan up to this part of a step.
const WAITS_IGNORED: f64 = 0.005;

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
/// measured there anyway, and steps without rescues are preferred. Plans are made for what a layout
/// may take, a fiftieth less than the cap. Where a plan's layout does not
/// fit, or blocks would wait for their lots, plans for a little less memory are tried, and the one
/// that is the fastest where it lies is taken.
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
    thread: JoinHandle<Made>,
}

/// What a plan was asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Asked {
    link: Link,
    reserve_bytes: u64,
}

impl JointPlanner {
    /// The machine that it plans for.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// A planner for a machine.
    pub fn new(machine: Machine, config: JointConfig) -> JointPlanner {
        JointPlanner { machine, config, latest: None, beside: false, jobs: BTreeMap::new() }
    }

    /// In the loop, the first plan of a kind of step is made with the least effort, the second with
    /// little, and all but the first on a thread of their own while the training goes on. Which
    /// step gets a plan then depends on the clock; what the steps compute does not.
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

    /// No plan that the settings allow adds less than this to a step, in microseconds. It is never
    /// higher for more memory. No plan needs it to be made: it is looked for where it is told.
    ///
    /// # Panics
    /// As [`make`](JointPlanner::make).
    pub fn bound_us(&self, trace: &Trace) -> f64 {
        bound_us(trace, &self.machine, &self.config)
    }

    /// Where the blocks of a step would lie under a plan, in the loop.
    ///
    /// # Panics
    /// As [`make`](JointPlanner::make).
    pub fn lay_out(&self, trace: &Trace, plan: &Plan) -> Layout {
        lay_out(trace, plan, &self.machine)
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

    /// With less effort, as long as much is still to be learnt about the step.
    fn quickly(mut config: JointConfig, tries: u32) -> JointConfig {
        if tries < WHOLE_EFFORT_TRY {
            config.generate.effort = config.generate.effort.min(QUICK_EFFORT);
        }
        config
    }

    /// What the job for a kind of step has come to, if it was for this.
    fn collect(&mut self, kind: Signature, asked: Asked) -> Option<Made> {
        let job = self.jobs.remove(&kind)?;
        match job.thread.join() {
            Ok(made) => (job.asked == asked).then_some(made),
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// A plan that takes little time, if the little is enough for one that fits. One whose layout
    /// does not fit is made again: a step that maps at each turn takes several times as long.
    fn sketch(trace: &Trace, machine: &Machine, mut config: JointConfig) -> Option<Made> {
        config.generate.effort = 1;
        let bears_another = trace.ops.len() <= SKETCHES_OPS_MAX;
        let tighter = if bears_another { TIGHTER_SKETCHES } else { 0 };
        let sketch = with_layout(trace, machine, config, tighter);
        sketch.made.infeasible.is_none().then_some(Made { is_sketch: true, ..sketch })
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
        if let Some(made) = self.collect(kind, asked) {
            return Some(made);
        }
        if is_first && let Some(sketch) = JointPlanner::sketch(trace, &machine, config) {
            return Some(sketch);
        }
        let trace = trace.clone();
        let thread = thread::spawn(move || whole(&trace, &machine, config));
        self.jobs.insert(kind, Job { asked, thread });
        None
    }
}

/// A plan with what is known of it.
#[derive(Debug)]
struct Made {
    made: Generated,
    layout: Option<Layout>,
    is_sketch: bool,
}

impl Planner for JointPlanner {
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault> {
        if self.is_at_work(trace.signature) {
            return Ok(None);
        }
        check_trace(trace)?;
        let (machine, config) = self.after(feedback);
        let made = if self.beside {
            let config = JointPlanner::quickly(config, feedback.tries);
            self.without_waiting(trace, machine, config, feedback.tries == 0)
        } else {
            Some(whole(trace, &machine, config))
        };
        let Some(Made { made, layout, is_sketch }) = made else { return Ok(None) };
        // Without actions it still says where all lies.
        let is_laid_out =
            layout.as_ref().is_some_and(|layout| layout.is_useful(machine.limit_bytes));
        let offer = is_laid_out && made.infeasible.is_none() || !made.plan.actions.is_empty();
        let predicted = predict(&made, layout.as_ref(), machine.limit_bytes);
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

    fn is_at_work(&self, kind: Signature) -> bool {
        self.jobs.get(&kind).is_some_and(|job| !job.thread.is_finished())
    }

    fn begin_anew(&mut self) {
        self.jobs.clear();
    }
}

/// The plan that the loop is offered, with all the effort that the settings say.
fn whole(trace: &Trace, machine: &Machine, config: JointConfig) -> Made {
    with_layout(trace, machine, config, TIGHTER_PLANS)
}

/// The best plan that leaves nothing to demand, wherever its blocks may lie.
fn offered(trace: &Trace, machine: &Machine, config: &JointConfig) -> Generated {
    best(&Joint::new(trace, machine, config), Rivals::WithoutDemand)
}

/// The plan that is the fastest as laid out, with its layout: the first, or one of `tighter`
/// at most that are made for less memory. Without a layout, if layouts do not count.
fn with_layout(trace: &Trace, machine: &Machine, mut config: JointConfig, tighter: usize) -> Made {
    if !config.fits_layout {
        let made = offered(trace, machine, &config);
        return Made { made, layout: None, is_sketch: false };
    }
    let limit_bytes = machine.limit_bytes.saturating_sub(config.generate.reserve_bytes);
    let spare_bytes = limit_bytes / SPARE_DIVISOR;
    let limit_bytes = limit_bytes - spare_bytes;
    let first = with_spare(trace, machine, &mut config, spare_bytes);
    // What is reserved from here on makes room for the layout of what fits in it.
    let roomier = machine.with_limit(limit_bytes);
    let mut best = Laid::out(trace, first, machine, &roomier);
    let mut excess_bytes = best.layout.excess_bytes(limit_bytes);
    // A large step bears to wait rather than to be planned over and over.
    let is_large = gets_one_look(trace, &config);
    for left in (0..tighter).rev() {
        let fits = best.layout.excess_bytes(limit_bytes) == 0;
        let is_good = fits && (is_large || best.hardly_waits());
        if is_good || best.made.infeasible.is_some() {
            break;
        }
        let leap_bytes = if left == 0 { excess_bytes } else { limit_bytes / LEAP_DIVISOR };
        let more_bytes = excess_bytes.min(leap_bytes).max(limit_bytes / ROOM_DIVISOR);
        let reserve_bytes = &mut config.generate.reserve_bytes;
        *reserve_bytes = reserve_bytes.saturating_add(more_bytes);
        let made = offered(trace, machine, &config);
        if made.infeasible.is_some() || made.simulation.step_us > best.step_us(limit_bytes) {
            break;
        }
        let laid = Laid::out(trace, made, machine, &roomier);
        excess_bytes = laid.layout.excess_bytes(limit_bytes);
        if laid.step_us(limit_bytes) < best.step_us(limit_bytes) {
            best = laid;
        }
    }
    Made { made: best.made, layout: Some(best.layout), is_sketch: false }
}

/// A plan that leaves so much more memory to what layouts do not know, if there is one.
fn with_spare(
    trace: &Trace,
    machine: &Machine,
    config: &mut JointConfig,
    spare_bytes: u64,
) -> Generated {
    let without = *config;
    let reserve_bytes = &mut config.generate.reserve_bytes;
    *reserve_bytes = reserve_bytes.saturating_add(spare_bytes);
    let made = offered(trace, machine, config);
    if made.infeasible.is_none() {
        return made;
    }
    *config = without;
    offered(trace, machine, config)
}

/// A plan and where its blocks lie.
struct Laid {
    made: Generated,
    layout: Layout,
}

impl Laid {
    /// What comes back may do so in another order, if its blocks lie too high otherwise.
    fn out(trace: &Trace, mut made: Generated, machine: &Machine, roomier: &Machine) -> Laid {
        let layout = lay_out(trace, &made.plan, roomier);
        let excess_bytes = layout.excess_bytes(roomier.limit_bytes);
        if excess_bytes > 0
            && let Some((plan, simulation)) = nested(trace, &made.plan, &made.simulation, machine)
        {
            let lower = lay_out(trace, &plan, roomier);
            if lower.excess_bytes(roomier.limit_bytes) < excess_bytes {
                (made.plan, made.simulation) = (plan, simulation);
                return Laid { made, layout: lower };
            }
        }
        Laid { made, layout }
    }

    /// Whether hardly anything waits for a lot.
    fn hardly_waits(&self) -> bool {
        self.layout.step_us <= self.made.simulation.step_us * (1.0 + WAITS_IGNORED)
    }

    /// What the step will take, mappings included.
    fn step_us(&self, limit_bytes: u64) -> f64 {
        let actions = self.made.plan.actions.len() as f64;
        let us = |share: f64| actions * share * UNPLACED_ACTION_US;
        let missing = self.layout.excess_bytes(limit_bytes) as f64 / limit_bytes as f64;
        match self.layout.is_useful(limit_bytes) {
            true => self.layout.step_us + us(UNPLACED_SHARE * missing),
            false => self.made.simulation.step_us + us(1.0),
        }
    }
}

/// Whether a step is large for the effort that it gets.
fn gets_one_look(trace: &Trace, config: &JointConfig) -> bool {
    let effort = config.generate.effort.max(1) as usize;
    trace.ops.len() > LOOKS_OPS_MAX.saturating_mul(effort)
}

fn best(joint: &Joint<'_>, rivals: Rivals) -> Generated {
    let one_look = gets_one_look(joint.trace, joint.config);
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
    let least_us = made.unlimited_us + made.windows_us;
    made.infeasible.is_none() && made.simulation.step_us <= least_us * (1.0 + AT_BOUND)
}

/// What a plan comes to, where its blocks lie as laid out if they do.
fn predict(made: &Generated, layout: Option<&Layout>, limit_bytes: u64) -> Prediction {
    let simulation = &made.simulation;
    let useful = layout.filter(|layout| layout.is_useful(limit_bytes));
    let step_us = useful.map_or(simulation.step_us, |layout| layout.step_us);
    let mut link_us = [0.0; 2];
    for copy in &simulation.copies {
        link_us[copy.direction as usize] += copy.span.end_us - copy.span.start_us;
    }
    Prediction {
        step_us,
        stall_us: (simulation.stall_us + step_us - simulation.step_us).max(0.0),
        link_us: link_us[0].max(link_us[1]),
        peak_bytes: simulation.held_bytes_peak,
    }
}
