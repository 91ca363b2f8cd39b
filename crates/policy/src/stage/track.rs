//! The place of one kind of step in the loop.

use std::collections::BTreeSet;
use std::sync::Arc;

use swap_core::{Signature, StepReport, Trace};

use super::guarded::Guarded;
use super::trial::{Outcome, Try};
use super::{Event, LoopConfig, NumberedPlan, Seen, Stage, Why};
use crate::host::unlimited_us;
use crate::machine::Machine;
use crate::search::{Feedback, Measured, Planner, Prediction};

/// A try is judged by its settled steps; from this step on any counts as settled. Steps whose kinds
/// alternate never are, yet their search has to end.
const RUNS_BEFORE_JUDGED: u32 = 3;

/// Ops that take less than this part of what a plan was made for make another plan worth a try.
/// Short steps differ by a few percent without a reason.
const KNOWN: f64 = 0.9;

/// What takes no longer than this part of the step with all memory leaves little to gain.
const HARDLY_LONGER: f64 = 1.02;

/// A sketch that adds more than this part of the step leaves something to look for.
const ROUGH: f64 = 0.01;

/// One kind of step.
#[derive(Debug)]
pub(crate) struct Track {
    state: State,
    /// The best step measured.
    best: Option<Outcome>,
    feedback: Feedback,
    /// Numbers of the plans that were tried. None of them is tried again, so two plans cannot
    /// take turns for ever.
    tried: BTreeSet<u64>,
    /// Searches since the last long calm that were begun because the one before did not last.
    failed: u32,
    /// The last two kinds of steps that came after this one.
    followers: [Option<Signature>; 2],
    /// Ops of its first step, or of the plan that it began with.
    op_count: u32,
    seen_at: u64,
    /// What was done with it and not told yet.
    events: Vec<Event>,
}

#[derive(Debug)]
enum State {
    WarmUp {
        /// Steps in a row that came as expected.
        matched: u32,
        /// Whether all of those ran without rescues and misses.
        clean: bool,
    },
    Search(Try),
    Stable {
        /// Slow steps in a row.
        slow: u32,
        /// Undisturbed steps in a row.
        calm: u32,
        /// The next step comes from another plan: blocks still have to find their places.
        moving_in: bool,
    },
}

impl State {
    /// Where the kind stands, apart from moving in.
    fn stage(&self) -> Stage {
        match self {
            State::WarmUp { .. } => Stage::WarmUp,
            State::Search(_) => Stage::SearchPolicy,
            State::Stable { .. } => Stage::Stable,
        }
    }
}

impl Track {
    pub(crate) fn new(op_count: u32, seen_at: u64) -> Track {
        Track {
            state: State::WarmUp { matched: 0, clean: true },
            best: None,
            feedback: Feedback::default(),
            tried: BTreeSet::new(),
            failed: 0,
            followers: [None; 2],
            op_count,
            seen_at,
            events: vec![Event::Met],
        }
    }

    /// A kind of step that was not seen yet, with a plan to try first.
    pub(crate) fn adopted(numbered: NumberedPlan, seen_at: u64) -> Track {
        let op_count = numbered.plan.as_ref().map_or(0, |plan| plan.op_count);
        let mut track = Track { events: Vec::new(), ..Track::new(op_count, seen_at) };
        track.start_try(numbered, Prediction::default(), 1, false);
        track
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.state {
            State::Stable { moving_in: true, .. } => Stage::SearchPolicy,
            ref state => state.stage(),
        }
    }

    /// The stage whose rules judge the next step: Stable while blocks move in, too.
    pub(crate) fn stage_of_judging(&self) -> Stage {
        self.state.stage()
    }

    /// Whether its next step is to be recorded: recording costs time, so not while a plan is made
    /// for one that was, nor once there is one that tells of the plan being tried, nor while other
    /// ranks search.
    pub(crate) fn records(&self) -> bool {
        match &self.state {
            State::Search(Try { holds: None, waits: None, is_recorded, .. }) => !is_recorded,
            State::Search(_) => false,
            _ => self.stage() != Stage::Stable,
        }
    }

    /// Whether a plan is being tried to see how it does, or made.
    pub(crate) fn is_seeking(&self) -> bool {
        matches!(&self.state, State::Search(search) if search.holds.is_none())
    }

    /// Whether a plan is being tried of which a step was recorded: the next one is judged.
    pub(crate) fn is_judged_next(&self) -> bool {
        matches!(&self.state, State::Search(search) if search.is_recorded)
    }

    /// What the next step of this kind runs under.
    pub(crate) fn numbered_plan(&self) -> NumberedPlan {
        match &self.state {
            State::WarmUp { .. } => NumberedPlan::default(),
            State::Search(search) => search.numbered.clone(),
            State::Stable { .. } => self.best_plan(),
        }
    }

    pub(crate) fn best(&self) -> Option<(&Measured, &NumberedPlan)> {
        self.best.as_ref().map(|best| (&best.measured, &best.numbered))
    }

    pub(crate) fn feedback(&self) -> &Feedback {
        &self.feedback
    }

    /// Whether a step of `op_count` ops differs from this kind by less than `share` of its ops.
    pub(crate) fn resembles(&self, op_count: u32, share: f64) -> bool {
        let differ = f64::from(self.op_count.abs_diff(op_count));
        differ < share * f64::from(self.op_count)
    }

    /// What was done since the last call, oldest first.
    pub(crate) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(crate) fn seen_at(&self) -> u64 {
        self.seen_at
    }

    /// A branch of this kind went by its plan, so its blocks have found their places.
    pub(crate) fn branched(&mut self, step: u64) {
        self.seen_at = step;
        if let State::Stable { moving_in, .. } = &mut self.state {
            *moving_in = false;
        }
    }

    /// Its plan no longer serves the branches of this kind, which are all that comes.
    pub(crate) fn outlived_its_plan(&mut self, config: &LoopConfig, measured: Measured) {
        if self.stage() == Stage::Stable && self.warms_up_again(config, measured) {
            self.events.push(Event::Moved { from: Stage::Stable, to: Stage::WarmUp });
        }
    }

    pub(crate) fn was_followed_by(&mut self, signature: Signature) {
        self.followers = [self.followers[1], Some(signature)];
    }

    /// The kind of step that came after this one twice in a row.
    pub(crate) fn usual_successor(&self) -> Option<Signature> {
        self.followers[0].filter(|_| self.followers[0] == self.followers[1])
    }

    /// Takes in a finished step of this kind.
    pub(crate) fn observe(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        seen: Seen,
        step: u64,
    ) {
        self.seen_at = step;
        let from = self.stage();
        self.take_in(config, planner, report, seen);
        let to = self.stage();
        if from != to {
            self.events.push(Event::Moved { from, to });
        }
    }

    fn take_in(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        seen: Seen,
    ) {
        let judged = seen.judged(report, self.state.stage());
        match &mut self.state {
            State::WarmUp { .. } | State::Search(Try { waits: None, holds: None, .. })
                if seen.is_put_off() => {}
            State::WarmUp { .. } => self.warm_up(config, planner, report, seen),
            // It ran under a plan for other steps, which says nothing about this kind.
            State::Search(_) | State::Stable { .. } if seen.surprise => {}
            &mut State::Search(Try { holds: Some(why), .. }) => {
                if !seen.is_sought() {
                    self.become_stable(why);
                }
            }
            State::Search(_) if seen.is_void() => {}
            // Ranks take what they had made in the same step.
            State::Search(Try { waits: Some(_), .. }) if seen.is_planned_for() => {}
            State::Search(Try { waits: Some(trace), number, .. }) => {
                let (trace, number) = (Arc::clone(trace), *number);
                self.try_next(config, planner, &trace, number, seen.worst.is_some());
            }
            State::Search(search) => {
                search.runs += 1;
                let own = report.trace.as_ref().filter(|_| !seen.similar && seen.worst.is_none());
                if search.keep_recorded(own, &judged) && !judged.drifted {
                    return;
                }
                let is_whole = seen.is_settled(Stage::SearchPolicy) || judged.drifted;
                let telling = !seen.similar && is_whole && seen.is_common(Stage::SearchPolicy);
                if telling || search.runs >= RUNS_BEFORE_JUDGED {
                    // Ranks judge in the same step, whatever each expected.
                    let judged = match seen.worst {
                        None => search.judged(judged, config.slow_ratio),
                        Some(_) => Some(judged),
                    };
                    if let Some(measured) = judged {
                        self.judge(config, planner, report, seen, measured);
                    }
                }
            }
            // To be taken for the same although it is not: no sign that anything has changed.
            State::Stable { moving_in, .. } if seen.similar => *moving_in &= !seen.branch,
            State::Stable { .. } if judged.drifted => {
                // The plan no longer fits the step although the fingerprint does.
                self.warms_up_again(config, judged);
            }
            State::Stable { moving_in, .. } if !seen.is_settled(Stage::Stable) => {
                *moving_in = false;
            }
            State::Stable { .. } => self.watch(config, judged),
        }
    }

    fn warm_up(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        seen: Seen,
    ) {
        let State::WarmUp { matched, clean } = &mut self.state else {
            unreachable!("called in WarmUp only");
        };
        let measured = seen.judged(report, Stage::WarmUp);
        let trace = report.trace.as_ref().filter(|_| !measured.drifted);
        if seen.surprise || trace.is_none() {
            (*matched, *clean) = (0, true);
        }
        let Some(trace) = trace else { return };
        *matched += 1;
        *clean &= measured.is_clean();
        if *matched < config.warmup_steps && (*clean || !seen.roams) {
            return;
        }
        if !*clean {
            self.feedback = self.feedback.after_rescues(config.margin, config.limit_bytes);
        }
        let fits = *clean && report.held_bytes_peak <= config.limit_bytes;
        // Running on demand competes with every plan.
        let predicted = Prediction { step_us: trace.step_us, ..Prediction::default() };
        self.best = Some(Outcome { numbered: NumberedPlan::default(), predicted, measured });
        if fits && !self.lacks_layout(config) {
            self.become_stable(Why::Fits);
        } else {
            let trace = Arc::new(trace.clone());
            self.try_next(config, planner, &trace, 1, seen.worst.is_some());
        }
    }

    /// Judges the plan being tried by the step that just ran under it, or one before.
    fn judge(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        seen: Seen,
        measured: Measured,
    ) {
        let State::Search(search) = &self.state else {
            unreachable!("called in SearchPolicy only");
        };
        let (number, has_others) = (search.number, seen.worst.is_some());
        let recorded = search.known(report, has_others);
        let made = search.numbered.made.as_ref();
        let knew_us = made.map_or(0.0, |made| made.unlimited_us);
        let is_rough =
            search.is_sketch && made.is_none_or(|made| made.added_us() > ROUGH * made.unlimited_us);
        let (numbered, predicted) = (search.numbered.clone(), search.predicted);
        let (margin, limit_bytes) = (config.margin, config.limit_bytes);
        self.feedback = self.feedback.after(predicted, measured, margin, limit_bytes);
        let as_before = !self.is_unplanned(&measured) && !self.is_slow(config, &measured);
        if number == 0 && as_before {
            return self.end_search(Why::FalseAlarm, has_others);
        }
        // An old figure that no longer holds must not outdo the tries to come.
        let is_better = |best: &Outcome| {
            // Nothing waits under it, so no noise of one step speaks against it.
            let saves_calls = numbered.only_lays_out()
                && measured.is_clean()
                && measured.memory_calls < best.measured.memory_calls;
            let stays = saves_calls || best.is_matched_by(&predicted, &measured);
            seen.worst.is_none() && stays || measured.is_better_than(&best.measured)
        };
        let is_best = number == 0 || self.best.as_ref().is_none_or(is_better);
        self.events.push(Event::Tried { number, predicted, measured, is_best });
        if is_best {
            self.best = Some(Outcome { numbered, predicted, measured });
        }
        // It was made for ops that seemed to take longer, so there was more time for copies.
        let learnt = recorded.as_ref().is_some_and(|trace| unlimited_us(trace) < KNOWN * knew_us);
        // Blocks that are made again take time that other plans need not take.
        let is_short =
            made.is_none_or(|made| measured.step_us <= HARDLY_LONGER * made.unlimited_us);
        let nothing_to_gain =
            measured.is_clean() && measured.hardly_stalls() && is_short && !learnt && !is_rough;
        match recorded {
            Some(_) if nothing_to_gain => self.end_search(Why::HardlyLonger, has_others),
            Some(trace) => self.try_next(config, planner, &trace, number + 1, has_others),
            // Without a record there is nothing to plan by.
            None => self.end_search(Why::NoOtherPlan, has_others),
        }
    }

    /// Asks for a plan. Without a new one the search is over, unless other ranks go on.
    fn try_next(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        trace: &Arc<Trace>,
        number: u32,
        has_others: bool,
    ) {
        if number > config.search_steps {
            return self.end_search(Why::NoTriesLeft, has_others);
        }
        if let Some(proposal) = planner.plan(trace, &self.feedback) {
            let made = planner.inner.latest().cloned().map(Arc::new);
            let layout = proposal.layout.map(Arc::new);
            let for_trace = NumberedPlan::made_for(trace, proposal.plan);
            let numbered = NumberedPlan { made, layout, ..for_trace };
            let serves = !numbered.only_lays_out() || self.lacks_layout(config);
            let is_new = serves && !self.tried.contains(&numbered.print);
            // Simulated last: that takes the training's own time.
            let may_gain = || {
                let (Some(best), Some(link)) = (&self.best, planner.inner.link()) else {
                    return true;
                };
                let machine = Machine::of_loop(config.limit_bytes, Some(link));
                best.may_be_outdone(numbered.plan.as_deref(), trace, &machine)
            };
            if is_new && (has_others || may_gain()) {
                return self.start_try(numbered, proposal.predicted, number, proposal.is_sketch);
            }
        }
        if planner.is_busy(trace.signature) {
            return self.keep_best(number, |search| search.waits = Some(Arc::clone(trace)));
        }
        self.end_search(Why::NoOtherPlan, has_others);
    }

    /// Whether the best so far asks the driver for memory in each step, as it does where the cap
    /// leaves none to keep: a layout saves that.
    fn lacks_layout(&self, config: &LoopConfig) -> bool {
        config.lays_out && self.best.as_ref().is_some_and(|best| best.measured.maps())
    }

    /// There is nothing more to try, here. Other ranks may still have something: until then this
    /// one runs what it settles on, so that they measure that.
    fn end_search(&mut self, why: Why, has_others: bool) {
        match has_others {
            true => self.keep_best(0, |search| search.holds = Some(why)),
            false => self.become_stable(why),
        }
    }

    /// Keeps the best so far while nothing else is to be tried.
    fn keep_best(&mut self, number: u32, why: impl FnOnce(&mut Try)) {
        let predicted = self.best.as_ref().map(|best| best.predicted).unwrap_or_default();
        let mut search = Try::new(self.best_plan(), predicted, number);
        why(&mut search);
        self.state = State::Search(search);
    }

    fn start_try(
        &mut self,
        numbered: NumberedPlan,
        predicted: Prediction,
        number: u32,
        is_sketch: bool,
    ) {
        if number > 0 {
            self.tried.insert(numbered.print);
        }
        let actions = numbered.plan.as_ref().map_or(0, |plan| plan.actions.len());
        self.events.push(Event::Tries { number, actions, predicted });
        let mut search = Try::new(numbered, predicted, number);
        search.is_sketch = is_sketch;
        self.state = State::Search(search);
    }

    /// Watches a settled Stable step for signs that the plan no longer serves.
    fn watch(&mut self, config: &LoopConfig, measured: Measured) {
        let is_slow = self.is_slow(config, &measured);
        let is_unplanned = self.is_unplanned(&measured);
        let State::Stable { slow, calm, moving_in } = &mut self.state else {
            unreachable!("called in Stable only");
        };
        *moving_in = false;
        *slow = if is_slow { *slow + 1 } else { 0 };
        *calm = if is_slow || is_unplanned { 0 } else { *calm + 1 };
        let disturbed = *slow >= config.slow_steps || is_unplanned;
        if *calm >= config.calm_steps {
            self.failed = 0;
        }
        if disturbed && self.may_search_again(config) {
            self.events.push(Event::Disturbed { measured });
            let predicted = self.best.as_ref().map(|best| best.predicted).unwrap_or_default();
            self.start_try(self.best_plan(), predicted, 0, false);
        }
    }

    /// Whether a step left its plan, had to make room, or missed more than when the plan was
    /// adopted. Where no plan was good enough, another may be.
    fn is_unplanned(&self, measured: &Measured) -> bool {
        let is_plan = |best: &&Outcome| best.numbered.plan.is_some() && best.measured.rescues == 0;
        let known = self.best.as_ref().filter(is_plan).map_or(0, |best| best.measured.misses);
        measured.drifted || measured.rescues > 0 || measured.misses > known
    }

    fn is_slow(&self, config: &LoopConfig, measured: &Measured) -> bool {
        let best = self.best.as_ref();
        best.is_some_and(|best| measured.step_us > best.measured.step_us * config.slow_ratio)
    }

    /// Begins anew without a plan, if there may be another search. Says whether it did.
    fn warms_up_again(&mut self, config: &LoopConfig, measured: Measured) -> bool {
        let may = self.may_search_again(config);
        if may {
            self.events.push(Event::Disturbed { measured });
            self.state = State::WarmUp { matched: 0, clean: true };
        }
        may
    }

    /// Counts one more search that did not last, if there may be another.
    fn may_search_again(&mut self, config: &LoopConfig) -> bool {
        if self.failed >= config.failed_searches {
            return false;
        }
        self.failed += 1;
        true
    }

    fn become_stable(&mut self, why: Why) {
        let measured = self.best.as_ref().map(|best| best.measured).unwrap_or_default();
        let NumberedPlan { print, plan, .. } = self.best_plan();
        let actions = plan.map(|plan| plan.actions.len());
        self.events.push(Event::Adopted { actions, measured, why });
        let moving_in = matches!(&self.state, State::Search(last) if last.numbered.print != print);
        self.state = State::Stable { slow: 0, calm: 0, moving_in };
    }

    fn best_plan(&self) -> NumberedPlan {
        self.best.as_ref().map(|best| best.numbered.clone()).unwrap_or_default()
    }
}
