//! One level of a family: what is in hand for steps up to a size.

use std::sync::Arc;

use swap_core::{BlockIndex, Orders, Plan, Signature, Trace};

use super::super::guarded::Guarded;
use super::super::{Event, Measured, NumberedPlan};
use crate::host::unlimited_us;
use crate::search::{Feedback, Planner, Prediction};

/// A plan takes the place of another for so much of its cost: moving into its layout takes about as
/// long as one to three steps.
const WORTHWHILE: f64 = 0.99;

/// What steps of other sizes than their plan's run under.
#[derive(Clone, Debug)]
pub struct Sizes {
    number: u64,
    kind: Signature,
    probes: Arc<[BlockIndex]>,
    /// In order of their sizes.
    larger: Vec<(Arc<Plan>, Arc<Trace>)>,
}

/// The same number is given once.
impl PartialEq for Sizes {
    fn eq(&self, other: &Sizes) -> bool {
        self.number == other.number
    }
}

impl Sizes {
    /// What is in hand of these levels, the lowest first, as the plan for steps that begin.
    /// `None` without any.
    pub(super) fn numbered_plan(
        levels: &[Level],
        number: u64,
        kind: Signature,
        probe: BlockIndex,
    ) -> Option<NumberedPlan> {
        // What was made when another block was the probe would be told of by that.
        let is_told = |made: &&Made| made.probes.first() == Some(&probe);
        let mut in_hand = levels.iter().filter_map(Level::made).filter(is_told);
        let lowest = in_hand.next()?;
        let larger = in_hand.filter_map(|made| {
            let NumberedPlan { plan, trace, .. } = &made.numbered;
            Some((Arc::clone(plan.as_ref()?), Arc::clone(trace.as_ref()?)))
        });
        let probes = Arc::clone(&lowest.probes);
        let sizes = Sizes { number, kind, probes, larger: larger.collect() };
        Some(NumberedPlan { sizes: Some(Arc::new(sizes)), ..lowest.numbered.clone() })
    }

    /// The blocks whose sizes tell how large a step is; the first as it begins.
    pub fn probes(&self) -> &[BlockIndex] {
        &self.probes
    }

    /// The kind that all those steps count as.
    pub fn kind(&self) -> Signature {
        self.kind
    }

    /// Whether a larger step would have to move anything.
    pub(crate) fn may_move(&self) -> bool {
        self.larger.iter().any(|(plan, _)| !plan.actions.is_empty())
    }

    /// `trace` is the step that the plan was made for: larger than those that run under it.
    pub(crate) fn orders(&self, plan: &Plan, trace: &Trace) -> Orders {
        let up_to = |plan: &Plan, trace: &Trace| Orders::for_sizes_up_to(plan, trace, &self.probes);
        let larger = self.larger.iter().map(|(plan, trace)| up_to(plan, trace));
        up_to(plan, trace).or_larger(larger)
    }
}

/// What is in hand, or asked for, up to a size.
#[derive(Debug)]
pub(super) struct Level {
    pub(super) probe_bytes: u64,
    probes: Arc<[BlockIndex]>,
    /// Ways to plan for the step of this size.
    variants: Vec<Variant>,
    /// What serves: of another level until there is a plan for this one.
    in_use: Option<Made>,
    counted: Counted,
}

/// What came of the steps that a level served.
#[derive(Clone, Copy, Default, Debug)]
struct Counted {
    steps: u64,
    misses: u64,
    rescues: u64,
    /// Their times, each of that with all memory, added up.
    ratios: f64,
}

/// What is in hand for steps up to a size, and what came of it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LevelSummary {
    /// What the block that tells their size has in the largest.
    pub probe_bytes: u64,
    /// Actions of its plan, if there is one.
    pub actions: Option<usize>,
    /// What the plan makes of ordinary steps: their time, of that with all memory.
    pub predicted_ratio: Option<f64>,
    /// The mean of what was measured.
    pub measured_ratio: Option<f64>,
    /// Steps that it served.
    pub steps: u64,
    /// Touches of blocks that nobody had asked for, in these.
    pub misses: u64,
    /// Allocations that evicted somebody on the spot, in these.
    pub rescues: u64,
}

/// The step of a level as one plan sees it.
#[derive(Debug)]
struct Variant {
    trace: Arc<Trace>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// It is asked for, or is to be. Meanwhile there may be a sketch.
    Open(Option<Made>),
    Done(Made),
    /// There is none.
    Never,
}

/// A plan and the step that it was made for.
#[derive(Clone, Debug)]
pub(super) struct Made {
    numbered: NumberedPlan,
    probes: Arc<[BlockIndex]>,
    pub(super) predicted: Prediction,
    /// What it makes of ordinary steps: their time, of that with all memory.
    cost: f64,
}

impl Level {
    /// For steps that fit as they are.
    pub(super) fn that_fits(
        (probes, probe_bytes): (&Arc<[BlockIndex]>, u64),
        trace: Trace,
    ) -> Level {
        let (probes, trace) = (Arc::clone(probes), Arc::new(trace));
        let in_use = Some(Made::nothing(&trace, &probes));
        Level { probe_bytes, probes, variants: Vec::new(), in_use, counted: Counted::default() }
    }

    /// To be planned for, in each of these ways, of which the best is taken.
    pub(super) fn to_plan(
        (probes, probe_bytes): (&Arc<[BlockIndex]>, u64),
        variants: impl Iterator<Item = Trace>,
        before: Option<Made>,
    ) -> Level {
        let open = |trace| Variant { trace: Arc::new(trace), state: State::Open(None) };
        let (variants, counted) = (variants.map(open).collect(), Counted::default());
        // What was made when another block was the probe says nothing of this one.
        let in_use = before.filter(|made| made.probes.first() == probes.first());
        Level { probe_bytes, probes: Arc::clone(probes), variants, in_use, counted }
    }

    /// What serves.
    pub(super) fn made(&self) -> Option<&Made> {
        self.in_use.as_ref()
    }

    /// Tells what serves from anything else.
    pub(super) fn print(&self) -> Option<u64> {
        self.in_use.as_ref().map(|made| made.numbered.print)
    }

    /// Takes what was made into use: the first that is there, and then the best, once nothing is
    /// missing. With each change blocks have to find their places again, so it has to be worth it.
    fn choose(&mut self) {
        let is_done = self.is_done();
        if self.in_use.is_some() && !is_done {
            return;
        }
        let made = self.variants.iter().filter_map(Variant::made);
        let best = made.reduce(|best, made| if made.cost < best.cost { made } else { best });
        let is_final = |used: &Made| {
            let kind = used.numbered.trace.as_ref().map(|trace| trace.signature);
            let of_level = |variant: &Variant| Some(variant.trace.signature) == kind;
            !used.numbered.is_sketch && self.variants.iter().any(of_level)
        };
        let used = self.in_use.as_ref().filter(|used| is_final(used));
        let Some(best) = best else { return };
        if used.is_none_or(|used| best.cost < used.cost * WORTHWHILE) {
            self.in_use = Some(best.clone());
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.variants.iter().all(Variant::is_done)
    }

    /// Whether there is nothing in hand, and something to come.
    pub(super) fn is_bare(&self) -> bool {
        self.made().is_none() && !self.is_done()
    }

    /// Counts a step that it served. `ratio` is its time, of that with all memory.
    pub(super) fn count(&mut self, measured: &Measured, ratio: f64) {
        let counted = &mut self.counted;
        counted.steps += 1;
        counted.misses += measured.misses;
        counted.rescues += measured.rescues;
        counted.ratios += ratio;
    }

    pub(super) fn summary(&self) -> LevelSummary {
        let Counted { steps, misses, rescues, ratios } = self.counted;
        let made = self.made();
        let plan = made.and_then(|made| made.numbered.plan.as_ref());
        LevelSummary {
            probe_bytes: self.probe_bytes,
            actions: plan.map(|plan| plan.actions.len()),
            predicted_ratio: made.map(|made| made.cost),
            measured_ratio: (steps > 0).then(|| ratios / steps as f64),
            steps,
            misses,
            rescues,
        }
    }

    /// Whether its steps move anything.
    pub(super) fn moves(&self) -> bool {
        let plan = self.made().and_then(|made| made.numbered.plan.as_ref());
        plan.is_some_and(|plan| !plan.actions.is_empty())
    }

    /// Asks for its plans. They may come later. `cost` says what one makes of ordinary steps.
    pub(super) fn plan(
        &mut self,
        planner: &mut Guarded<impl Planner>,
        feedback: &Feedback,
        cost: impl Fn(&Plan, &Trace) -> f64,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for variant in self.variants.iter_mut().filter(|variant| !variant.is_done()) {
            let Some(predicted) = variant.plan(planner, feedback, &self.probes, &cost) else {
                continue;
            };
            let plan = variant.made().and_then(|made| made.numbered.plan.as_ref());
            let actions = plan.map_or(0, |plan| plan.actions.len());
            events.push(Event::PlannedUpTo { probe_bytes: self.probe_bytes, actions, predicted });
            if feedback.tries == 0 {
                // A step is about to begin: one is enough for it.
                break;
            }
        }
        self.choose();
        events
    }
}

impl Variant {
    fn plan(
        &mut self,
        planner: &mut Guarded<impl Planner>,
        feedback: &Feedback,
        probes: &Arc<[BlockIndex]>,
        cost: &impl Fn(&Plan, &Trace) -> f64,
    ) -> Option<Prediction> {
        let proposal = planner.plan(&self.trace, feedback);
        let made = planner.inner.latest().filter(|_| proposal.is_some()).cloned();
        let fits = made.as_ref().is_none_or(|made| made.infeasible.is_none());
        let Some(proposal) = proposal.filter(|_| fits) else {
            if !planner.is_busy(self.trace.signature) {
                self.state = self.made().cloned().map_or(State::Never, State::Done);
            }
            return None;
        };
        let (cost, predicted) = (cost(&proposal.plan, &self.trace), proposal.predicted);
        let numbered = NumberedPlan {
            made: made.map(Arc::new),
            layout: proposal.layout.map(Arc::new),
            is_sketch: proposal.is_sketch,
            ..NumberedPlan::made_for(&self.trace, proposal.plan)
        };
        let made = Made { numbered, probes: Arc::clone(probes), predicted, cost };
        self.state = match proposal.is_sketch {
            true => State::Open(Some(made)),
            false => State::Done(made),
        };
        Some(predicted)
    }

    fn made(&self) -> Option<&Made> {
        match &self.state {
            State::Open(made) => made.as_ref(),
            State::Done(made) => Some(made),
            State::Never => None,
        }
    }

    fn is_done(&self) -> bool {
        !matches!(self.state, State::Open(_))
    }
}

impl Made {
    /// For steps that fit.
    fn nothing(trace: &Arc<Trace>, probes: &Arc<[BlockIndex]>) -> Made {
        let op_count = u32::try_from(trace.ops.len()).expect("ops of a step are counted so");
        let plan = Plan { signature: trace.signature, op_count, ..Plan::default() };
        let step_us = unlimited_us(trace);
        let predicted = Prediction { step_us, ..Prediction::default() };
        let numbered = NumberedPlan::made_for(trace, plan);
        Made { numbered, probes: Arc::clone(probes), predicted, cost: 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::TraceFault;
    use crate::search::Proposal;

    /// Says of each kind of step, one call after the other, what its plan costs and whether it is
    /// a sketch.
    #[derive(Debug)]
    struct Script(Vec<(u64, f64, bool)>);

    impl Planner for Script {
        fn plan(&mut self, trace: &Trace, _: &Feedback) -> Result<Option<Proposal>, TraceFault> {
            let is_next = |said: &(u64, f64, bool)| said.0 == trace.signature.0;
            let Some(at) = self.0.iter().position(is_next) else { return Ok(None) };
            let (_, cost, is_sketch) = self.0.remove(at);
            // Told apart by a number that nobody looks at otherwise, which is the cost as well.
            let op_count = (cost * 1e3) as u32;
            let plan = Plan { signature: trace.signature, op_count, ..Plan::default() };
            Ok(Some(Proposal { plan, is_sketch, ..Proposal::default() }))
        }

        fn is_busy(&self, kind: Signature) -> bool {
            self.0.iter().any(|said| said.0 == kind.0)
        }
    }

    fn level(variants: &[u64], before: Option<Made>) -> Level {
        let trace = |&kind: &u64| Trace { signature: Signature(kind), ..Trace::default() };
        Level::to_plan((&Arc::from([BlockIndex(0)]), 1), variants.iter().map(trace), before)
    }

    /// The costs of what serves, behind each of so many calls.
    fn served(level: &mut Level, said: &[(u64, f64, bool)], calls: u32) -> Vec<Option<f64>> {
        let mut planner = Guarded::new(Script(said.to_vec()));
        let mut cost_behind = |tries| {
            let feedback = Feedback { tries, ..Feedback::default() };
            level.plan(&mut planner, &feedback, |plan, _| f64::from(plan.op_count) / 1e3);
            level.made().map(|made| made.cost)
        };
        (0..calls).map(|call| cost_behind(call.min(1))).collect()
    }

    #[test]
    fn the_first_plan_serves_until_there_is_a_clearly_better_one() {
        let costs = |said| served(&mut level(&[1, 2], None), said, 3);
        let better = [(1, 1.2, true), (1, 1.1, false), (2, 1.05, false)];
        assert_eq!(costs(&better), [Some(1.2), Some(1.05), Some(1.05)], "one change, not two");
        let hardly = [(1, 1.1, false), (2, 1.095, false)];
        assert_eq!(costs(&hardly), [Some(1.1); 3], "moving costs more than that");
        let sketched = [(1, 1.1, true), (1, 1.095, false), (2, 1.2, false)];
        assert_eq!(costs(&sketched), [Some(1.1), Some(1.095), Some(1.095)], "no sketch stays");
    }

    #[test]
    fn what_was_made_for_another_level_serves_until_all_plans_are_there() {
        let mut smaller = level(&[7], None);
        assert_eq!(served(&mut smaller, &[(7, 1.01, false)], 1), [Some(1.01)]);
        let mut level = level(&[1, 2], smaller.made().cloned());
        let said = [(1, 1.3, true), (1, 1.3, false), (2, 1.2, false)];
        assert_eq!(served(&mut level, &said, 2), [Some(1.01), Some(1.2)]);
    }
}
