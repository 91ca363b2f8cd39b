//! The loop that finds and keeps a plan: WarmUp, SearchPolicy, Stable, as a pure state machine.
//!
//! Feed every finished step to [`Loop::observe`]; the [`Directive`] that comes back says how to
//! run the next one. There is no clock and no driver in it: the same reports give the same
//! directives.
//!
//! ```text
//!            steps came as expected                     best try found
//!  WarmUp ----------------------------> SearchPolicy --------------------> Stable
//!    |                                       ^                              | |
//!    | nothing to do: it fits                +---- rescue, miss, too slow --+ |
//!    +------------------------------------------------------------------->    |
//!    ^                                                                        |
//!    +----------------- the step changed: unknown signature, or drift --------+
//! ```
//!
//! Every kind of step, told by its signature, has its own place in the loop. So shapes that
//! alternate each find their plan once and come back at once. When a kind of step was followed
//! twice by the same other kind, that one is expected next; else the same again, unless it is the
//! first in a long row of another.
//!
//! A step that differs in a few ops, and yet went by the expected kind's plan, is a *branch* of
//! that kind: it counts as one of it, and changes nothing. Steps whose sizes differ from each other
//! are a *family*, which has one place for all of them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use swap_core::{Plan, Signature, StepReport, Trace};

use crate::layout::Layout;
use crate::ranks::{Figure, Figures};
use crate::search::{Feedback, MarginConfig, Measured, Planner};

mod branches;
mod families;
mod guarded;
mod news;
mod numbered;
mod roaming;
mod rows;
mod seen;
mod track;
mod trial;

#[cfg(test)]
mod tests;

use branches::Branches;
use families::Families;
pub use families::{FamilySummary, LevelSummary, Sizes};
use guarded::Guarded;
pub use news::{Event, News, Why};
use numbered::NumberedPlan;
use roaming::Roaming;
use rows::Rows;
use seen::Seen;
use track::Track;

/// News kept for whoever asks.
const NEWS_KEPT: usize = 256;

/// Where a kind of step stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// Recording, with rescues where needed, until steps repeat.
    WarmUp,
    /// Trying plans and measuring them.
    SearchPolicy,
    /// Running the best plan.
    Stable,
}

/// How patient the loop is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoopConfig {
    /// The cap on physical bytes, for margins and for telling whether a model fits.
    pub limit_bytes: u64,
    /// Expected steps in a row before planning.
    pub warmup_steps: u32,
    /// The most plans tried in one search.
    pub search_steps: u32,
    /// A Stable step is slow when it takes more than this times the measured best; a plan whose
    /// first step takes more than this times what was predicted gets a second one.
    pub slow_ratio: f64,
    /// This many slow steps in a row start a new search.
    pub slow_steps: u32,
    /// After this many new searches that did not last, the best plan stays for good.
    pub failed_searches: u32,
    /// A search has lasted when this many Stable steps went by undisturbed.
    pub calm_steps: u32,
    /// Kinds of steps that are remembered; the least recent one is forgotten first.
    pub cached_signatures: usize,
    /// A step of a kind that was never seen counts as one of the expected kind if the number of
    /// its ops differs by less than this share. The plan then runs up to where the step leaves it.
    /// With 0, kinds are told apart exactly.
    pub op_diff_share: f64,
    /// How much memory to leave free after steps that needed rescues.
    pub margin: MarginConfig,
    /// Whether Stable steps are laid out, so that what is away stays mapped.
    pub lays_out: bool,
    /// One in so many steps under a layout unmaps what is away all the same, to find uses that
    /// nobody told of. None if this is 0.
    pub unmap_every_steps: u32,
}

impl Default for LoopConfig {
    fn default() -> LoopConfig {
        LoopConfig {
            limit_bytes: u64::MAX,
            warmup_steps: 2,
            search_steps: 3,
            slow_ratio: 1.25,
            slow_steps: 2,
            failed_searches: 3,
            calm_steps: 64,
            cached_signatures: 16,
            op_diff_share: 0.0,
            margin: MarginConfig::default(),
            lays_out: true,
            unmap_every_steps: 1024,
        }
    }
}

/// How to run the next step.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// Where the expected kind of step stands.
    pub stage: Stage,
    /// Whether to record.
    pub record: bool,
    /// The plan to run. Without one, memory is found on demand.
    pub plan: Option<Arc<Plan>>,
    /// Set if the plan is for steps of any size.
    pub sizes: Option<Arc<Sizes>>,
}

/// The loop. `P` makes the plans.
#[derive(Debug)]
pub struct Loop<P> {
    config: LoopConfig,
    planner: Guarded<P>,
    tracks: BTreeMap<Signature, Track>,
    /// The kind of step that the last directive was for.
    expected: Option<Signature>,
    /// The kind and plan of the step before, if it went as directed.
    previous: Option<(Signature, u64)>,
    rows: Rows,
    running: NumberedPlan,
    steps: u64,
    branches: Branches,
    roaming: Roaming,
    families: Families,
    /// What was done, oldest first.
    news: VecDeque<News>,
}

impl<P: Planner> Loop<P> {
    /// A loop at its first step.
    ///
    /// # Panics
    /// If a count is zero that cannot be (`warmup_steps`, `slow_steps`, `cached_signatures`), or
    /// `slow_ratio` is below 1.
    pub fn new(config: LoopConfig, planner: P) -> Loop<P> {
        assert!(config.warmup_steps > 0, "a plan needs one recorded step");
        assert!(config.slow_steps > 0, "no step at all cannot be slow");
        assert!(config.cached_signatures > 0, "the step under way must be remembered");
        assert!(config.slow_ratio >= 1.0, "the best step itself would be slow");
        Loop {
            config,
            planner: Guarded::new(planner),
            tracks: BTreeMap::new(),
            expected: None,
            previous: None,
            rows: Rows::default(),
            running: NumberedPlan::default(),
            steps: 0,
            branches: Branches::default(),
            roaming: Roaming::default(),
            families: Families::default(),
            news: VecDeque::new(),
        }
    }

    /// Counts a finished step that went as directed and whose time says nothing.
    pub fn pass_over(&mut self, report: &StepReport) {
        self.steps += 1;
        self.previous = Some((report.signature, self.running.print));
        self.rows.came(self.expected.unwrap_or(report.signature));
    }

    /// The settings.
    pub fn config(&self) -> &LoopConfig {
        &self.config
    }

    /// How to run the step that comes next. Before the first report: record it, without a plan.
    pub fn directive(&self) -> Directive {
        let of_family = self.expected.and_then(|kind| self.families.records(kind));
        let expected = self.expected.and_then(|signature| self.tracks.get(&signature));
        let record = of_family.unwrap_or_else(|| expected.is_none_or(Track::records));
        let NumberedPlan { plan, sizes, .. } = self.running.clone();
        Directive { stage: self.stage(), record, plan, sizes }
    }

    /// Where the expected kind of step stands.
    pub fn stage(&self) -> Stage {
        let of_track = |kind| self.tracks.get(&kind).map(Track::stage);
        let expected = self.expected;
        let stage = expected.and_then(|kind| of_track(kind).or_else(|| self.families.stage(kind)));
        stage.unwrap_or(Stage::WarmUp)
    }

    /// Whether the step under the last directive will be judged, so that the search goes on as soon
    /// as its report is there.
    pub(crate) fn judges_next(&self) -> bool {
        let track = self.expected.and_then(|kind| self.tracks.get(&kind));
        track.is_some_and(Track::is_judged_next)
    }

    /// Whether some of the last steps were larger than those that their plan is for.
    pub(crate) fn has_outgrown(&self) -> bool {
        self.expected.is_some_and(|kind| self.families.has_outgrown(kind))
    }

    /// Notes how large a step was of which nothing else counts, as it began under other orders.
    pub(crate) fn note_size(&mut self, report: &StepReport) {
        self.families.note_size(report);
    }

    /// Tells of a plan's layout.
    pub(crate) fn laid_out(&mut self, plan: &Plan, layout: &Layout) {
        let event = Event::LaidOut {
            lots_bytes: layout.height_bytes,
            turns: layout.turns.len(),
            beside_bytes: layout.beside_bytes,
            excess_bytes: layout.excess_bytes(self.config.limit_bytes),
            is_used: layout.is_useful(self.config.limit_bytes),
        };
        self.tell(plan.signature, plan.op_count, vec![event]);
    }

    /// What is known of steps that differ in their sizes alone, those met last first.
    pub fn families(&self) -> Vec<FamilySummary> {
        self.families.summaries()
    }

    /// The recorded steps of the family that was met last, in order of their sizes; none if all
    /// steps were alike.
    pub fn recorded_sizes(&self) -> &[Arc<Trace>] {
        self.families.recorded()
    }

    /// The planner.
    pub fn planner(&self) -> &P {
        &self.planner.inner
    }

    /// The best that was measured for a kind of step, once it has been searched or found to fit.
    pub fn best(&self, signature: Signature) -> Option<(Measured, Option<Arc<Plan>>)> {
        let (measured, numbered) = self.tracks.get(&signature)?.best()?;
        Some((*measured, numbered.plan.clone()))
    }

    /// What was learnt about a kind of step.
    pub fn feedback(&self, signature: Signature) -> Option<&Feedback> {
        self.tracks.get(&signature).map(Track::feedback)
    }

    /// Puts a plan from elsewhere, such as a plan file, in place for its kind of step: that kind
    /// starts in SearchPolicy with this plan as the first try. Does nothing for a kind of step
    /// that has been seen already.
    pub fn adopt(&mut self, plan: Arc<Plan>) {
        let signature = plan.signature;
        if self.tracks.contains_key(&signature) {
            return;
        }
        let numbered = NumberedPlan::of(plan);
        if self.expected.is_none() {
            self.expected = Some(signature);
            self.running = numbered.clone();
        }
        self.tracks.insert(signature, Track::adopted(numbered, self.steps));
        self.forget_the_least_recent();
    }

    /// The planner.
    pub fn planner_mut(&mut self) -> &mut P {
        &mut self.planner.inner
    }

    /// What has gone wrong in planning since the last call, a line for each kind of step. Such
    /// steps go on with what they have, and are not planned again.
    pub fn take_failures(&mut self) -> Vec<String> {
        self.planner.take_failures()
    }

    /// What was done since the last call, oldest first; the latest of it, if that is much.
    pub fn take_news(&mut self) -> Vec<News> {
        self.news.drain(..).collect()
    }

    /// Takes in a finished step and says how to run the next one.
    pub fn observe(&mut self, report: &StepReport) -> Directive {
        self.take_in(report, None)
    }

    /// As [`observe`](Loop::observe), where several ranks train together: `worst` is what they
    /// all told of this step.
    pub fn observe_together(&mut self, report: &StepReport, worst: &Figures) -> Directive {
        self.take_in(report, Some(*worst))
    }

    /// What this rank tells the others of a step that it has not observed yet.
    pub fn figures(&self, report: &StepReport) -> Figures {
        let (signature, seen) = self.look(report);
        let place = match self.families.kind(report.family) {
            Some(family) => self.place(family),
            None => self.place(signature).with_kind(report),
        };
        place
            .with_measured(&Measured::of(report))
            .with_flag(Figure::Surprised, seen.surprise)
            .with_flag(Figure::Unsettled, !seen.settled || seen.similar)
    }

    /// What this rank tells of a step that it will not observe, since it began under other orders.
    pub fn void_figures(&self) -> Figures {
        let place = self.expected.map_or(Figures::none(), |kind| self.place(kind));
        place.with_flag(Figure::Void, true).with_flag(Figure::Unsettled, true)
    }

    fn place(&self, kind: Signature) -> Figures {
        if self.families.stage(kind).is_some() {
            return Figures::of_a_family();
        }
        let track = self.tracks.get(&kind);
        let stage = track.map_or(Stage::WarmUp, Track::stage_of_judging);
        Figures::none()
            .with_flag(Figure::Warming, stage == Stage::WarmUp)
            .with_flag(Figure::Advanced, stage != Stage::WarmUp)
            .with_flag(Figure::Searching, stage == Stage::SearchPolicy)
            .with_flag(Figure::Seeking, track.is_some_and(Track::is_seeking))
            .with_flag(Figure::Planning, self.planner.is_at_work(kind))
    }

    /// The kind that a step counts as, and what is to be known of it.
    fn look(&self, report: &StepReport) -> (Signature, Seen) {
        let signature = self.kind_of(report);
        let surprise = self.expected.is_some_and(|expected| expected != signature);
        let intact = !surprise && report.drifted_at.is_none();
        let settled = intact && self.previous == Some((signature, self.running.print));
        let similar = signature != report.signature;
        let branch = similar && self.has_followed(report);
        (signature, Seen { surprise, similar, branch, settled, roams: false, worst: None })
    }

    fn take_in(&mut self, report: &StepReport, worst: Option<Figures>) -> Directive {
        if self.take_in_family(report) {
            return self.directive();
        }
        let (signature, seen) = self.look(report);
        let is_planned = self.tracks.get(&signature).is_some_and(|t| t.stage() != Stage::WarmUp);
        // Ranks are to choose alike, whatever each of them has met.
        let roams = self.roaming.came(signature, is_planned, report.family) && worst.is_none();
        let seen = Seen { roams, worst, ..seen };
        let intact = !seen.surprise && report.drifted_at.is_none();
        let ran = (signature, self.running.print);

        self.steps += 1;
        if let Some(before) = self.rows.last().and_then(|s| self.tracks.get_mut(&s)) {
            before.was_followed_by(signature);
        }
        if seen.branch && self.passes_by(report, seen) {
            self.take_in_branch(signature, report);
            self.previous = None;
            self.rows.came(signature);
            self.expect_after(signature, None);
            return self.directive();
        }
        if !seen.branch {
            self.branches.end_row();
        }
        let new = || Track::new(report.op_count, self.steps);
        let track = self.tracks.entry(signature).or_insert_with(new);
        track.observe(&self.config, &mut self.planner, report, seen, self.steps);
        if roams && track.stage() == Stage::SearchPolicy {
            self.roaming.plans_for(signature);
        }
        let events = track.take_events();
        self.tell(signature, report.op_count, events);

        self.previous = Some(ran).filter(|_| intact && !seen.branch);
        self.rows.came(signature);
        self.forget_the_least_recent();
        // What goes by the plan of the others and is no branch of theirs is to have its own.
        let interrupted = self.rows.interrupted().or(self.roaming.serves());
        let interrupted = interrupted.filter(|_| !self.has_followed(report));
        self.expect_after(signature, interrupted);
        self.directive()
    }

    /// Takes in a step whose like come in all sizes; any other one it leaves. What such steps run
    /// under is chosen by what is predicted, so other ranks have no say in it.
    fn take_in_family(&mut self, report: &StepReport) -> bool {
        self.families.learn(report, self.steps + 1);
        let Some(kind) = self.families.kind(report.family) else { return false };
        if self.leaves_out(kind, report) {
            return false;
        }
        self.steps += 1;
        if let Some(before) = self.rows.last().and_then(|s| self.tracks.get_mut(&s)) {
            before.was_followed_by(kind);
        }
        let step = (self.steps, self.rows.last() == Some(kind));
        let events = self.families.observe(&self.config, &mut self.planner, report, step);
        self.tell(kind, report.op_count, events);
        self.branches.end_row();
        self.previous = None;
        self.rows.came(kind);
        let is_family = |other: &Signature| self.families.stage(*other).is_some();
        let interrupted = self.rows.interrupted().filter(is_family);
        self.expect(interrupted.unwrap_or(kind));
        true
    }

    fn tell(&mut self, kind: Signature, op_count: u32, events: Vec<Event>) {
        let step = self.steps;
        self.news.extend(events.into_iter().map(|event| News { step, kind, op_count, event }));
        self.news.drain(..self.news.len().saturating_sub(NEWS_KEPT));
    }

    /// The kind that a step counts as: its own, unless that is new and near the expected one, or
    /// has no plan and the expected one's did.
    fn kind_of(&self, report: &StepReport) -> Signature {
        let own = self.tracks.get(&report.signature);
        let share = self.config.op_diff_share;
        let near = |expected: &Signature| {
            let track = self.tracks.get(expected);
            own.is_none() && track.is_some_and(|track| track.resembles(report.op_count, share))
        };
        let is_unplanned = own.is_none_or(|track| track.stage() == Stage::WarmUp);
        let is_rare = self.branches.are_rare(report.signature);
        let branches = is_unplanned && self.has_followed(report);
        match self.expected {
            Some(expected) if is_rare && (branches || near(&expected)) => expected,
            _ => report.signature,
        }
    }

    /// Chooses the kind of step to prepare for, behind one that may have interrupted others.
    fn expect_after(&mut self, signature: Signature, interrupted: Option<Signature>) {
        let usual = self.tracks.get(&signature).and_then(Track::usual_successor);
        let is_known = |next: &Signature| {
            self.tracks.contains_key(next) || self.families.numbered_plan(*next).is_some()
        };
        let next = usual.or(interrupted).filter(is_known);
        self.expect(next.unwrap_or(signature));
    }

    /// Prepares for a kind of step.
    fn expect(&mut self, next: Signature) {
        self.expected = Some(next);
        let numbered = self.tracks.get(&next).map(Track::numbered_plan);
        self.running =
            numbered.or_else(|| self.families.numbered_plan(next).cloned()).unwrap_or_default();
    }

    fn forget_the_least_recent(&mut self) {
        while self.tracks.len() > self.config.cached_signatures {
            let (&oldest, _) = self
                .tracks
                .iter()
                .min_by_key(|(_, track)| track.seen_at())
                .expect("more tracks than the positive number that is kept");
            self.tracks.remove(&oldest);
        }
    }
}
