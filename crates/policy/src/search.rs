//! What one try of a plan showed, and what the next one should learn from it.

use swap_core::{MEMORY_CALLS_IGNORED, Plan, Signature, StepReport, Trace};

use crate::check::TraceFault;
use crate::generate::Generated;
use crate::layout::Layout;
use crate::machine::Link;

/// Makes plans. The loop calls it, the layer above implements it.
pub trait Planner {
    /// A plan for the recorded step, given what earlier tries showed.
    ///
    /// `None` means that there is nothing to offer: the step fits as it is, or no plan that the
    /// feedback allows exists.
    ///
    /// # Errors
    /// If the trace is not well formed. The loop then goes on without a plan, as it does after a
    /// panic.
    fn plan(&mut self, trace: &Trace, feedback: &Feedback) -> Result<Option<Proposal>, TraceFault>;

    /// What it knows of the plan that it offered last.
    fn latest(&self) -> Option<&Generated> {
        None
    }

    /// The link that it plans for, if it knows one.
    fn link(&self) -> Option<Link> {
        None
    }

    /// Plans for this link from now on: the slowest among ranks that choose alike.
    fn set_link(&mut self, _link: Link) {}

    /// Whether it is at work beside the training, for a plan of this kind of step that it was
    /// asked for and did not have: whoever asks again later gets it.
    fn is_busy(&self, _kind: Signature) -> bool {
        false
    }

    /// Whether what it is busy with, for this kind of step, is not done yet.
    fn is_at_work(&self, _kind: Signature) -> bool {
        false
    }

    /// Lets go of what it is busy with: ranks that choose alike from now on begin anew together.
    fn begin_anew(&mut self) {}
}

/// A plan and what its planner expects of it.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Proposal {
    /// What to run.
    pub plan: Plan,
    /// What should come of it.
    pub predicted: Prediction,
    /// Where its blocks lie, if the planner laid it out; else whoever runs the plan does.
    pub layout: Option<Layout>,
    /// Made in little time: a better one may follow.
    pub is_sketch: bool,
}

/// What a planner expects of a step under its plan.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Prediction {
    /// Device time of the step, in microseconds.
    pub step_us: f64,
    /// Device time spent waiting for copies, in microseconds.
    pub stall_us: f64,
    /// Time that the busier link direction is in use, in microseconds.
    pub link_us: f64,
    /// The most physical bytes held.
    pub peak_bytes: u64,
}

/// What a step under a plan turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct Measured {
    /// Device time of the step, in microseconds.
    pub step_us: f64,
    /// Device time spent waiting for copies, in microseconds.
    pub stall_us: f64,
    /// Touches of blocks that nobody had asked for.
    pub misses: u64,
    /// Allocations that evicted somebody on the spot.
    pub rescues: u64,
    /// Whether the step left the plan before its end.
    pub drifted: bool,
    /// The most physical bytes held.
    pub peak_bytes: u64,
    /// Calls of the driver for memory: none in a step that lies where it was laid out.
    pub memory_calls: u64,
}

impl Measured {
    /// The figures of a finished step.
    pub fn of(report: &StepReport) -> Measured {
        Measured {
            step_us: report.device_us,
            stall_us: report.counters.stall_us,
            misses: report.counters.misses,
            rescues: report.counters.rescues,
            drifted: report.drifted_at.is_some(),
            peak_bytes: report.held_bytes_peak,
            memory_calls: report.counters.memory_calls.total(),
        }
    }

    /// Whether everything that the step needed had been planned.
    pub fn is_clean(&self) -> bool {
        self.misses == 0 && self.rescues == 0 && !self.drifted
    }

    /// Whether this step is to be preferred. Steps for which room had to be made on the spot, or
    /// that left their plan, come behind all others: the next may take any time. Then time counts,
    /// and a step that missed anything has to be faster by a part. Of equals neither is better, so
    /// the earlier one stays.
    pub fn is_better_than(&self, other: &Measured) -> bool {
        let rank = |step: &Measured| {
            let factor = if step.misses > 0 { MISSED_FACTOR } else { 1.0 };
            (step.rescues > 0 || step.drifted, step.step_us * factor)
        };
        rank(self) < rank(other)
    }

    /// Whether it asked the driver for more memory than costs next to nothing.
    pub fn maps(&self) -> bool {
        self.memory_calls > MEMORY_CALLS_IGNORED
    }

    /// Whether waiting for copies costs so little that another plan could gain nothing.
    pub fn hardly_stalls(&self) -> bool {
        self.stall_us <= STALL_SHARE_IGNORED * self.step_us
    }
}

/// A step that missed anything counts as so much longer than it was.
const MISSED_FACTOR: f64 = 1.02;
/// Stalls below this share of the step are noise.
const STALL_SHARE_IGNORED: f64 = 0.01;
/// The first margin is this part of the limit; each further one doubles it.
const MARGIN_FIRST_DIVISOR: u64 = 32;
/// No margin exceeds this part of the limit.
const MARGIN_LAST_DIVISOR: u64 = 4;
/// One step's stalls change the believed link rate by at most this factor.
const LINK_FACTOR_MIN: f64 = 0.5;
/// Below this the link is not what slows the step.
const LINK_SCALE_MIN: f64 = 0.05;

/// How much memory to leave free once steps have needed rescues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct MarginConfig {
    /// The first margin, left free from the first plan on if recording needed rescues. Without it
    /// plans begin with none, and the first try that needs rescues gives a 32nd of the limit.
    pub first_bytes: Option<u64>,
    /// What each step that needed rescues adds, the first too. Without it the margin doubles.
    pub more_bytes: Option<u64>,
}

impl MarginConfig {
    /// The margin after one more step that needed rescues. Margins that grow by themselves end at
    /// a quarter of the limit, those that were asked for at all of it.
    fn widened(self, margin_bytes: u64, limit_bytes: u64) -> u64 {
        let more_bytes = self.more_bytes.unwrap_or(0);
        let (first_bytes, most_bytes) = match self {
            MarginConfig { first_bytes: None, more_bytes: None } => {
                (limit_bytes / MARGIN_FIRST_DIVISOR, limit_bytes / MARGIN_LAST_DIVISOR)
            }
            MarginConfig { first_bytes: None, .. } => (more_bytes, limit_bytes),
            MarginConfig { first_bytes: Some(first_bytes), .. } => {
                (first_bytes.saturating_add(more_bytes), limit_bytes)
            }
        };
        let wider_bytes = match self.more_bytes {
            Some(more_bytes) => margin_bytes.saturating_add(more_bytes),
            None => margin_bytes.saturating_mul(2),
        };
        wider_bytes.max(first_bytes).min(most_bytes)
    }
}

/// What earlier tries showed, for the planner.
#[derive(Clone, Debug, PartialEq)]
pub struct Feedback {
    /// Tries judged so far for this kind of step.
    pub tries: u32,
    /// Bytes to leave free below the limit. It grows when a try needed rescues.
    pub margin_bytes: u64,
    /// What to multiply the assumed link rates with, at most 1. It falls when copies took longer
    /// than predicted.
    pub link_scale: f64,
    /// The latest try: what was predicted and what came of it.
    pub latest: Option<(Prediction, Measured)>,
}

impl Default for Feedback {
    fn default() -> Feedback {
        Feedback { tries: 0, margin_bytes: 0, link_scale: 1.0, latest: None }
    }
}

impl Feedback {
    /// The feedback after recording needed rescues under a cap of `limit_bytes`.
    pub(crate) fn after_rescues(&self, margin: MarginConfig, limit_bytes: u64) -> Feedback {
        match margin.first_bytes {
            Some(_) => {
                let margin_bytes = margin.widened(self.margin_bytes, limit_bytes);
                Feedback { margin_bytes, ..self.clone() }
            }
            // Recording has no plan that could have counted on memory in vain.
            None => self.clone(),
        }
    }

    /// The feedback after one more try under a cap of `limit_bytes`.
    #[must_use]
    pub fn after(
        &self,
        predicted: Prediction,
        measured: Measured,
        margin: MarginConfig,
        limit_bytes: u64,
    ) -> Feedback {
        let mut next =
            Feedback { tries: self.tries + 1, latest: Some((predicted, measured)), ..self.clone() };
        if measured.rescues > 0 {
            // The memory was not there when the plan counted on it: plan for less. A miss alone
            // says nothing of memory.
            next.margin_bytes = margin.widened(self.margin_bytes, limit_bytes);
            return next;
        }
        let late_us = measured.stall_us - predicted.stall_us;
        if late_us > STALL_SHARE_IGNORED * measured.step_us && predicted.link_us > 0.0 {
            // What should have taken link_us took so much longer.
            let factor = predicted.link_us / (predicted.link_us + late_us);
            next.link_scale = (self.link_scale * factor.max(LINK_FACTOR_MIN)).max(LINK_SCALE_MIN);
        }
        next
    }
}

/// A number that tells plans apart. Equal plans have equal numbers, and no plan has 0, which
/// stands for running without one.
pub(crate) fn fingerprint(plan: &Plan) -> u64 {
    let mut print = Signature(plan.signature.0).mix(u64::from(plan.op_count));
    for block in &plan.blocks {
        print = print.mix(u64::from(block.index.0)).mix(block.size_bytes);
    }
    for action in &plan.actions {
        let when = u64::from(action.op.0) << 3 | (action.phase as u64) << 2 | action.kind as u64;
        print = print.mix(when).mix(u64::from(action.block.0));
    }
    print.0.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_BYTES: u64 = 1 << 30;

    fn measured(step_us: f64, rescues: u64, misses: u64) -> Measured {
        Measured { step_us, rescues, misses, ..Measured::default() }
    }

    fn after(feedback: &Feedback, predicted: Prediction, measured: Measured) -> Feedback {
        feedback.after(predicted, measured, MarginConfig::default(), LIMIT_BYTES)
    }

    #[test]
    fn a_clean_try_beats_a_faster_one_that_was_rescued() {
        let check = |left: Measured, right: Measured, expect: (bool, bool)| {
            assert_eq!((left.is_better_than(&right), right.is_better_than(&left)), expect);
        };
        check(measured(20.0, 0, 0), measured(10.0, 1, 0), (true, false));
        check(measured(20.0, 0, 1), measured(10.0, 1, 0), (true, false));
        check(measured(10.0, 0, 0), measured(20.0, 0, 0), (true, false));
        check(measured(10.0, 2, 0), measured(20.0, 1, 0), (true, false));
        check(measured(10.0, 0, 0), measured(10.0, 0, 0), (false, false));
        let drifted = Measured { drifted: true, ..measured(10.0, 0, 0) };
        check(measured(20.0, 0, 0), drifted, (true, false));
    }

    #[test]
    fn a_step_that_missed_a_block_is_preferred_if_it_is_faster_by_a_part() {
        let missed = measured(10.0, 0, 1);
        for (clean_us, expect) in [(10.0, false), (10.19, false), (10.21, true), (30.0, true)] {
            let clean = measured(clean_us, 0, 0);
            assert_eq!(missed.is_better_than(&clean), expect, "{clean_us}");
            assert_eq!(clean.is_better_than(&missed), !expect, "{clean_us}");
        }
    }

    #[test]
    fn rescues_widen_the_margin_up_to_a_quarter() {
        let mut feedback = Feedback::default();
        let mut margins = Vec::new();
        for step in [measured(1.0, 1, 0), measured(1.0, 2, 0), measured(1.0, 1, 1)] {
            feedback = after(&feedback, Prediction::default(), step);
            margins.push(LIMIT_BYTES / feedback.margin_bytes);
        }
        assert_eq!(margins, [32, 16, 8]);
        for _ in 0..9 {
            feedback = after(&feedback, Prediction::default(), measured(1.0, 1, 0));
        }
        assert_eq!(feedback.margin_bytes, LIMIT_BYTES / 4);
        let calm = after(&feedback, Prediction::default(), measured(1.0, 0, 0));
        assert_eq!(calm.margin_bytes, LIMIT_BYTES / 4, "a clean step widens nothing");
        assert_eq!((calm.tries, calm.link_scale), (13, 1.0));
        let missed = after(&Feedback::default(), Prediction::default(), measured(1.0, 0, 1));
        assert_eq!(missed.margin_bytes, 0, "a miss says nothing of memory");
    }

    #[test]
    fn margins_that_were_asked_for_are_added_up() {
        let margins = |first_bytes: Option<u64>, more_bytes: Option<u64>| {
            let margin = MarginConfig { first_bytes, more_bytes };
            let mut feedback = Feedback::default().after_rescues(margin, LIMIT_BYTES);
            let mut margins = vec![feedback.margin_bytes];
            for _ in 0..2 {
                let step = measured(1.0, 1, 0);
                feedback = feedback.after(Prediction::default(), step, margin, LIMIT_BYTES);
                margins.push(feedback.margin_bytes);
            }
            margins
        };
        assert_eq!(margins(Some(500), Some(70)), [570, 640, 710]);
        assert_eq!(margins(Some(500), None), [500, 1000, 2000]);
        assert_eq!(margins(None, Some(70)), [0, 70, 140]);
        assert_eq!(margins(Some(0), Some(0)), [0, 0, 0]);
        assert_eq!(margins(Some(u64::MAX), Some(1)), [LIMIT_BYTES; 3]);
    }

    #[test]
    fn stalls_beyond_the_prediction_slow_the_link_down() {
        let predicted = Prediction { step_us: 100.0, link_us: 60.0, ..Prediction::default() };
        let check = |stall_us: f64, expect: f64| {
            let step = Measured { stall_us, ..measured(100.0 + stall_us, 0, 0) };
            let scale = after(&Feedback::default(), predicted, step).link_scale;
            assert!((scale - expect).abs() < 1e-9, "{stall_us}: {scale}");
        };
        check(0.0, 1.0);
        check(0.5, 1.0);
        check(20.0, 0.75);
        check(600.0, 0.5);
        let mut feedback = Feedback::default();
        for _ in 0..20 {
            let step = Measured { stall_us: 600.0, ..measured(700.0, 0, 0) };
            feedback = after(&feedback, predicted, step);
        }
        assert!((feedback.link_scale - LINK_SCALE_MIN).abs() < 1e-9);
    }

    #[test]
    fn different_plans_have_different_numbers() {
        use swap_core::{Action, ActionKind, BlockIndex, OpIndex, Phase};
        let action = Action {
            op: OpIndex(3),
            phase: Phase::Begin,
            kind: ActionKind::SwapOut,
            block: BlockIndex(1),
            due: OpIndex(3),
        };
        let plans = [
            Plan::default(),
            Plan { op_count: 1, ..Plan::default() },
            Plan { actions: vec![action], ..Plan::default() },
            Plan { actions: vec![Action { phase: Phase::End, ..action }], ..Plan::default() },
            Plan {
                actions: vec![Action { kind: ActionKind::SwapIn, ..action }],
                ..Plan::default()
            },
            Plan { actions: vec![action, action], ..Plan::default() },
        ];
        let mut prints: Vec<u64> = plans.iter().map(fingerprint).collect();
        assert!(prints.iter().all(|&print| print != 0));
        prints.sort_unstable();
        prints.dedup();
        assert_eq!(prints.len(), plans.len());
        assert_eq!(fingerprint(&plans[2]), fingerprint(&plans[2].clone()));
    }
}
