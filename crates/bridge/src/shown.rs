//! The step that reports show, with the trace, the plan and the reasons that belong to it.

use std::collections::VecDeque;
use std::sync::Arc;

use adaptive::{
    FinishedStep, Generated, HostCosts, Lanes, Machine, Plan, Signature, Simulation, Stage, Trace,
    predicted_lanes, simulate, unlimited_us,
};

/// Stable steps of which the median time is told.
const TIMES_KEPT: usize = 64;

/// The last Stable step that followed a plan; while there is none the last Stable one, or the last
/// that was recorded.
///
/// A training may end with any step: a shorter batch, one more evaluation. Such a step has a trace
/// that no plan is for, or a plan that it did not follow, or is so small that it needs none.
#[derive(Debug)]
pub(crate) struct ShownStep {
    is_stable: bool,
    kind: Signature,
    trace: Arc<Trace>,
    /// What the engine's own work has cost the host since it was recorded.
    host_costs: HostCosts,
    /// The plan that it followed.
    pub(crate) plan: Option<Arc<Plan>>,
    /// What the planner knows of this plan.
    pub(crate) made: Option<Arc<Generated>>,
    resident_bytes: u64,
    held_bytes: u64,
    /// What the driver was asked for in the last of them.
    memory_calls: u64,
    /// Of the last Stable steps under this plan, in microseconds.
    times_us: VecDeque<f64>,
    /// What it would take with memory for all, in microseconds.
    unlimited_us: f64,
    /// When what ran in the last of them that was measured so far.
    pub(crate) lanes: Option<Arc<Lanes>>,
}

/// What Stable steps came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MeasuredStep {
    /// The median time, in microseconds.
    pub(crate) step_us: f64,
    /// The number of steps that it is the median of.
    pub(crate) steps: usize,
    /// The most that was resident in the last of them.
    pub(crate) resident_bytes: u64,
    /// The same with caches.
    pub(crate) held_bytes: u64,
    /// What the driver was asked for in it.
    pub(crate) memory_calls: u64,
}

impl ShownStep {
    /// What to show after one more step. `trace` is the last recorded step of its kind.
    pub(crate) fn after(
        before: Option<ShownStep>,
        step: &FinishedStep,
        trace: Option<&Arc<Trace>>,
    ) -> Option<ShownStep> {
        let report = &step.report;
        let is_stable = step.stage == Stage::Stable;
        let sizes = step.sizes.as_ref();
        // A branch has a trace that the plan is not for.
        let is_own = |plan: &&Arc<Plan>| match sizes {
            Some(_) => report.drifted_at.is_none() && !report.probes.is_empty(),
            None => plan.signature == report.signature && report.followed(plan),
        };
        let plan = step.plan.as_ref().filter(is_own);
        // Of steps of all sizes the one is shown that the plan was made for, and where the last one
        // has other blocks than the plan knows.
        let kind = sizes.map_or(report.signature, |sizes| sizes.kind());
        let is_known =
            |trace: &&Arc<Trace>| sizes.is_none() && plan.is_none_or(|plan| plan.knows(trace));
        let made_for = step.made_for.as_ref().filter(|_| plan.is_some() || sizes.is_some());
        let trace = trace.filter(is_known).or(made_for);
        let tells = match is_stable {
            true => plan.is_some() == step.plan.is_some(),
            false => report.trace.is_some(),
        };
        let outdoes = |before: &ShownStep| (is_stable, plan.is_some()) >= before.rank();
        let shows = tells && before.as_ref().is_none_or(outdoes);
        let Some(trace) = trace.filter(|_| shows) else { return before };
        let same_trace = before.as_ref().filter(|before| Arc::ptr_eq(&before.trace, trace));
        let unlimited_us = same_trace.map_or_else(|| unlimited_us(trace), |same| same.unlimited_us);
        let (mut times_us, mut lanes) = (VecDeque::new(), None);
        let mut host_costs = HostCosts::default();
        if is_stable && sizes.is_none() {
            let same = before.filter(|before| before.is_like(kind, plan));
            let known = same.as_ref().map(|before| before.host_costs).unwrap_or_default();
            host_costs = report.counters.host_costs().or(known);
            let own = report.lanes.clone().filter(|_| report.strayed_ops == 0);
            let own = own.map(|lanes| Arc::new(lanes.named_by(trace)));
            lanes = own.or_else(|| same.as_ref()?.lanes.clone());
            times_us = same.map(|before| before.times_us).unwrap_or_default();
            times_us.push_back(report.device_us);
            times_us.drain(..times_us.len().saturating_sub(TIMES_KEPT));
        }
        Some(ShownStep {
            is_stable,
            kind,
            trace: Arc::clone(trace),
            host_costs,
            plan: plan.cloned(),
            made: plan.and(step.made.clone()),
            resident_bytes: report.resident_bytes_peak,
            held_bytes: report.held_bytes_peak,
            memory_calls: report.counters.memory_calls.total(),
            times_us,
            unlimited_us,
            lanes,
        })
    }

    /// What tells more is more.
    fn rank(&self) -> (bool, bool) {
        (self.is_stable, self.plan.is_some())
    }

    fn is_like(&self, kind: Signature, plan: Option<&Arc<Plan>>) -> bool {
        self.kind == kind
            && match (&self.plan, plan) {
                (Some(own), Some(other)) => Arc::ptr_eq(own, other),
                (own, other) => own.is_none() && other.is_none(),
            }
    }

    /// Whether what a planner knows of its last plan is about this step, which has none.
    pub(crate) fn is_about(&self, made: &Generated) -> bool {
        self.plan.is_none() && made.plan.signature == self.kind && made.plan.actions.is_empty()
    }

    /// What it would take with memory for all, in microseconds; 0 if no plan is known.
    pub(crate) fn unlimited_us(&self) -> f64 {
        self.made.as_ref().map_or(0.0, |_| self.unlimited_us)
    }

    /// As it was recorded, with what its engine's work costs the host by now.
    pub(crate) fn trace(&self) -> Arc<Trace> {
        Trace::with_host_costs(&self.trace, self.host_costs)
    }

    /// What it should come to, as it was recorded last: plans are made early, of steps that seemed
    /// to take longer.
    pub(crate) fn simulation(&self, machine: &Machine) -> Simulation {
        let none = Plan::default();
        simulate(&self.trace(), self.plan.as_deref().unwrap_or(&none), machine)
    }

    /// When what should run in it.
    pub(crate) fn predicted(&self, machine: &Machine) -> Lanes {
        predicted_lanes(&self.trace(), &self.simulation(machine))
    }

    /// What was measured, if Stable steps were.
    pub(crate) fn measured(&self) -> Option<MeasuredStep> {
        let mut sorted: Vec<f64> = self.times_us.iter().copied().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Some(MeasuredStep {
            step_us: *sorted.get(sorted.len() / 2)?,
            steps: sorted.len(),
            resident_bytes: self.resident_bytes,
            held_bytes: self.held_bytes,
            memory_calls: self.memory_calls,
        })
    }
}
