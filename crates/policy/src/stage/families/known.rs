//! One family: how large its steps are, and which levels that asks for.

use std::collections::VecDeque;
use std::sync::Arc;

use swap_core::{BlockIndex, Plan, Signature, StepReport, Trace};

use super::super::guarded::Guarded;
use super::super::{Event, LoopConfig, Measured, NumberedPlan, Stage};
use super::FamilySummary;
use super::level::{Level, Sizes};
use crate::family::{Family, StepSize, peak_bytes, plan_for_member, with_state_held};
use crate::host::unlimited_us;
use crate::machine::Machine;
use crate::search::{Feedback, Planner};
use crate::simulate::simulate;

/// So many recorded sizes make a family: two would be a step and the last one of its epoch.
const MEMBERS_MIN: usize = 3;
/// After so many there is little left to learn.
const MEMBERS_ENOUGH: usize = 6;
/// Steps whose sizes say what is ordinary.
const RECENT_STEPS: usize = 32;
/// One of so many may outgrow the lowest level.
const RARE_DIVISOR: usize = 5;
/// How much larger steps are planned for than the ordinary ones.
const OUTLIERS: [u64; 3] = [2, 4, 8];
/// A level serves what would ask for one up to this part lower.
const NEAR_DIVISOR: u64 = 8;
/// Beyond what was seen there is room for this part more.
const ROOM_DIVISOR: u64 = 24;
/// Plans that are made at once, beside the training.
const PLANNED_AT_ONCE: usize = 2;
/// How much larger a branch may be than all steps before it.
const BRANCH_RATIO: u64 = 2;
/// Levels that are kept.
const LEVELS_MAX: usize = 8;
/// So many steps in a row that were short of memory ask for another plan.
const SHORT_STEPS: u32 = 2;
/// The first steps under other plans say nothing: blocks have to find their places.
const MOVING_IN_STEPS: u32 = 3;
/// Plans are made anew for want of memory so often.
const WIDENED_MAX: u32 = 4;

#[derive(Debug)]
pub(super) struct Known {
    kind: Signature,
    family: Family,
    seen_at: u64,
    /// Sizes of the last steps, in order.
    recent: VecDeque<u64>,
    /// In order of their sizes.
    levels: Vec<Level>,
    /// The members that they were predicted from, up to enough; 0 if they have to be anew.
    learnt_from: usize,
    numbered: NumberedPlan,
    /// Steps under this plan.
    steady_steps: u32,
    /// Steps in a row that were short of memory under the lowest level.
    short: u32,
    widened: u32,
    feedback: Feedback,
}

impl Known {
    pub(super) fn new(kind: Signature) -> Known {
        Known {
            kind,
            family: Family::default(),
            seen_at: 0,
            recent: VecDeque::new(),
            levels: Vec::new(),
            learnt_from: 0,
            numbered: NumberedPlan::default(),
            steady_steps: 0,
            short: 0,
            widened: 0,
            feedback: Feedback::default(),
        }
    }

    pub(super) fn learn(&mut self, trace: &Trace, step: u64) {
        self.seen_at = step;
        let probe = self.family.probe();
        self.family.learn(trace);
        if self.family.probe() != probe {
            // Sizes of another block say nothing of this one.
            self.recent = self.family.recorded_bytes().iter().copied().collect();
            self.learnt_from = 0;
        }
    }

    pub(super) fn kind(&self) -> Signature {
        self.kind
    }

    pub(super) fn recorded(&self) -> &[Arc<Trace>] {
        self.family.recorded()
    }

    pub(super) fn seen_at(&self) -> u64 {
        self.seen_at
    }

    pub(super) fn varies(&self) -> bool {
        self.family.member_count() >= MEMBERS_MIN
    }

    pub(super) fn records(&self) -> bool {
        self.family.member_count() < MEMBERS_ENOUGH
    }

    pub(super) fn stage(&self) -> Stage {
        let is_done = self.levels.iter().all(Level::is_done);
        if is_done { Stage::Stable } else { Stage::SearchPolicy }
    }

    pub(super) fn summary(&self) -> FamilySummary {
        FamilySummary {
            kind: self.kind,
            recorded_bytes: self.family.recorded_bytes().to_vec(),
            recent_bytes: self.recent.iter().copied().collect(),
            levels: self.levels.iter().map(Level::summary).collect(),
        }
    }

    pub(super) fn numbered_plan(&self) -> &NumberedPlan {
        &self.numbered
    }

    /// Takes in a finished step, and whether the one before was of this family: behind another
    /// kind, blocks have to find their places again. `given` counts what was chosen.
    pub(super) fn observe(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        (step, follows_its_like): (u64, bool),
        given: &mut u64,
    ) -> Vec<Event> {
        self.seen_at = step;
        let mut events = Vec::new();
        events.extend(self.note(config, report, follows_its_like));
        let changes = self.set_levels(config);
        if changes {
            events.push(Event::Varies {
                members: self.family.member_count(),
                ordinary_bytes: self.lowest_bytes(),
                levels: self.levels.len(),
            });
        }
        let prints = |levels: &[Level]| levels.iter().map(Level::print).collect::<Vec<_>>();
        let before = prints(&self.levels);
        let planned = self.plan(config, planner);
        if changes || prints(&self.levels) != before {
            self.choose(given);
        }
        events.extend(planned);
        events
    }

    /// Notes how large a step was, and, if it followed one of its family, whether memory was short.
    fn note(
        &mut self,
        config: &LoopConfig,
        report: &StepReport,
        follows_its_like: bool,
    ) -> Option<Event> {
        let size = self.note_size(report)?;
        self.steady_steps = self.steady_steps.saturating_add(1);
        let measured = Measured::of(report);
        let is_settled = self.steady_steps > MOVING_IN_STEPS && follows_its_like;
        if is_settled {
            self.count(&measured, &size);
        }
        let is_settled = is_settled && self.numbered.plan.is_some();
        let is_ordinary = size.probe_bytes <= self.lowest_bytes();
        let is_short = is_ordinary && is_settled && !measured.is_clean();
        if follows_its_like {
            self.short = if is_short { self.short + 1 } else { 0 };
        }
        if self.short < SHORT_STEPS || self.widened == WIDENED_MAX {
            return None;
        }
        let made = self.levels.first().and_then(Level::made);
        let predicted = made.map(|made| made.predicted).unwrap_or_default();
        self.feedback = self.feedback.after(predicted, measured, config.margin, config.limit_bytes);
        (self.short, self.widened, self.learnt_from) = (0, self.widened + 1, 0);
        Some(Event::Disturbed { measured })
    }

    /// Notes how large a step was, if it can be told.
    pub(super) fn note_size(&mut self, report: &StepReport) -> Option<StepSize> {
        // By its number, another block may be the probe where small ones are missing before it.
        let recorded = || self.family.size_of(report.trace.as_ref()?);
        let size = recorded().or_else(|| self.family.size_told(&report.probes))?;
        self.came(size.probe_bytes);
        Some(size)
    }

    /// Notes how large a step was that leaves or adds some ops and goes by the plans all the same.
    /// What is far larger than all others may be another block, taken for the probe.
    pub(super) fn branched(&mut self, probe_bytes: u64) {
        if probe_bytes / BRANCH_RATIO <= self.largest_bytes() {
            self.came(probe_bytes);
        }
    }

    fn came(&mut self, probe_bytes: u64) {
        if self.recent.len() == RECENT_STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(probe_bytes);
    }

    /// Counts a step to the level that served it.
    fn count(&mut self, measured: &Measured, size: &StepSize) {
        let Some(unlimited_us) = self.family.unlimited_us(size) else { return };
        let ratio = measured.step_us / unlimited_us.max(1.0);
        let serves =
            |level: &&mut Level| level.probe_bytes >= size.probe_bytes && level.made().is_some();
        if let Some(level) = self.levels.iter_mut().find(serves) {
            level.count(measured, ratio);
        }
    }

    /// Whether some of the last steps were larger than the lowest level.
    pub(super) fn has_outgrown(&self) -> bool {
        let lowest_bytes = self.lowest_bytes();
        self.recent.iter().any(|&bytes| bytes > lowest_bytes)
    }

    /// The largest step that came.
    fn largest_bytes(&self) -> u64 {
        let recent = self.recent.iter().copied().max();
        recent.into_iter().chain(self.family.largest_bytes()).max().unwrap_or(0)
    }

    fn lowest_bytes(&self) -> u64 {
        self.levels.first().map_or(0, |level| level.probe_bytes)
    }

    /// Chooses the sizes to have plans for. Says whether they are others than before.
    fn set_levels(&mut self, config: &LoopConfig) -> bool {
        let members = self.family.member_count();
        let learnt_from = if members < MEMBERS_ENOUGH { MEMBERS_MIN } else { MEMBERS_ENOUGH };
        let is_stale = learnt_from > self.learnt_from
            || self.levels.first().is_none_or(|lowest| self.outgrows(lowest));
        if !is_stale && self.is_covered() {
            return false;
        }
        self.learnt_from = learnt_from;
        let probes: Arc<[BlockIndex]> = self.family.probes().into();
        if probes.is_empty() {
            return false;
        }
        let margin_bytes = self.feedback.margin_bytes;
        let limit_bytes = config.limit_bytes.saturating_sub(margin_bytes);
        let before = std::mem::take(&mut self.levels);
        let (mut levels, stale) =
            if is_stale { (Vec::new(), before) } else { (before, Vec::new()) };
        for probe_bytes in self.wanted(limit_bytes) {
            if levels.len() >= LEVELS_MAX || levels.iter().any(|level| serves(level, probe_bytes)) {
                continue;
            }
            let signature = self.kind.mix(probe_bytes).mix(margin_bytes).mix(members as u64);
            let Some(trace) = self.family.member(probe_bytes, signature) else { continue };
            if peak_bytes(&trace) <= limit_bytes {
                levels.push(Level::that_fits((&probes, probe_bytes), trace));
                continue;
            }
            let is_close = |level: &&Level| is_near(level.probe_bytes, probe_bytes);
            let before = stale.iter().find(is_close).and_then(Level::made).cloned();
            // What is as large in all steps takes as long to move in short ones.
            let is_lowest = levels.is_empty();
            let keeping = is_lowest.then(|| with_state_held(&trace));
            let variants = keeping.into_iter().chain([trace]);
            levels.push(Level::to_plan((&probes, probe_bytes), variants, before));
        }
        levels.sort_by_key(|level| level.probe_bytes);
        self.levels = levels;
        true
    }

    /// Whether there is a level for the largest step, and not one for far larger ones.
    fn is_covered(&self) -> bool {
        let largest_bytes = self.largest_bytes();
        let is_ordinary = largest_bytes <= self.lowest_bytes();
        is_ordinary || self.levels.iter().any(|level| serves(level, largest_bytes))
    }

    /// Whether the lowest level is too low: many steps are larger, or one a little where others
    /// would cost as much as this one.
    fn outgrows(&self, lowest: &Level) -> bool {
        let bytes = lowest.probe_bytes;
        let larger = self.recent.iter().filter(|&&recent| recent > bytes);
        let one_is_near = larger.clone().any(|&recent| is_near(recent, bytes));
        lowest.moves() && one_is_near || larger.count() * RARE_DIVISOR > self.recent.len()
    }

    /// The sizes to have plans for, the lowest first. Where most steps fit as they are, these are
    /// the ordinary ones.
    fn wanted(&self, limit_bytes: u64) -> Vec<u64> {
        let largest_bytes = self.largest_bytes();
        let with_room = largest_bytes + largest_bytes / ROOM_DIVISOR;
        let most_bytes = with_room.saturating_mul(OUTLIERS[2]);
        let fitting_bytes = self.fits_up_to(limit_bytes, most_bytes);
        let outgrow = self.recent.iter().filter(|&&bytes| bytes > fitting_bytes).count();
        let most_fit = outgrow * RARE_DIVISOR <= self.recent.len() && fitting_bytes > 0;
        let lowest = if most_fit { fitting_bytes } else { with_room };
        // Often lengths are doubled: what is twice as long as the longest is to have its level.
        let base = lowest.max(with_room);
        let outliers = OUTLIERS.iter().map(|times| base.saturating_mul(*times));
        let above = [with_room].into_iter().chain(outliers);
        let above = above.filter(|&bytes| bytes > lowest && bytes <= most_bytes);
        [lowest].into_iter().chain(above).collect()
    }

    /// The largest step that needs no plan; at most `most_bytes`, 0 if none is so small.
    fn fits_up_to(&self, limit_bytes: u64, most_bytes: u64) -> u64 {
        const HALVINGS: u32 = 12;
        let fits = |probe_bytes: u64| {
            let member = self.family.member(probe_bytes, Signature::default());
            member.is_some_and(|member| peak_bytes(&member) <= limit_bytes)
        };
        if fits(most_bytes) {
            return most_bytes;
        }
        let (mut low, mut high) = (0, most_bytes);
        for _ in 0..HALVINGS {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        low
    }

    /// Asks for plans that are missing.
    fn plan(&mut self, config: &LoopConfig, planner: &mut Guarded<impl Planner>) -> Vec<Event> {
        if self.levels.iter().all(Level::is_done) {
            return Vec::new();
        }
        let mut events = Vec::new();
        // The step that comes next needs the lowest; all else is made beside the training.
        let is_needed = self.levels.first().is_some_and(Level::is_bare);
        let machine = Machine::of_loop(config.limit_bytes, planner.inner.link());
        let Known { family, recent, levels, .. } = self;
        let cost = |plan: &Plan, trace: &Trace| {
            let ordinary = ordinary(family, recent, trace);
            let costs = ordinary.iter().map(|member| cost_of(member, plan, &machine));
            costs.sum::<f64>() / ordinary.len() as f64
        };
        let missing = levels.iter_mut().filter(|level| !level.is_done());
        for level in missing.take(if is_needed { 1 } else { PLANNED_AT_ONCE }) {
            let tries = if is_needed { 0 } else { self.feedback.tries.max(1) };
            let feedback = Feedback { tries, ..self.feedback.clone() };
            events.extend(level.plan(planner, &feedback, cost));
        }
        events
    }

    /// What the next step runs under, of what is in hand.
    fn choose(&mut self, given: &mut u64) {
        let Some(probe) = self.family.probe() else { return };
        *given += 1;
        let numbered =
            Sizes::numbered_plan(&self.levels, *given, self.kind, probe).unwrap_or_default();
        if numbered.print != self.numbered.print {
            self.steady_steps = 0;
        }
        self.numbered = numbered;
    }
}

/// Steps as they mostly come: of the sizes below which a quarter is, a half, and all. If others are
/// known by now than those that `planned` was predicted from, that is the only one.
fn ordinary(family: &Family, recent: &VecDeque<u64>, planned: &Trace) -> Vec<Trace> {
    let mut recent: Vec<u64> = recent.iter().copied().collect();
    recent.sort_unstable();
    let last = recent.len().saturating_sub(1);
    let sizes = [last / 4, last / 2, last].into_iter().filter_map(|at| recent.get(at));
    let members = sizes.filter_map(|&bytes| family.member(bytes, Signature::default()));
    let alike = members.filter(|member| member.events == planned.events);
    let found: Vec<Trace> = alike.collect();
    if found.is_empty() { vec![planned.clone()] } else { found }
}

/// The time of a step under the plan of a larger one, of that with all memory.
fn cost_of(member: &Trace, plan: &Plan, machine: &Machine) -> f64 {
    let simulated = simulate(member, &plan_for_member(plan, member), machine);
    let is_whole = simulated.shortfall.is_none();
    if is_whole { simulated.step_us / unlimited_us(member).max(1.0) } else { f64::INFINITY }
}

/// Whether a level serves steps of this size, and is not for far larger ones.
fn serves(level: &Level, probe_bytes: u64) -> bool {
    level.probe_bytes >= probe_bytes && is_near(level.probe_bytes, probe_bytes)
}

fn is_near(one_bytes: u64, other_bytes: u64) -> bool {
    one_bytes.abs_diff(other_bytes) <= other_bytes / NEAR_DIVISOR
}
