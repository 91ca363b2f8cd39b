//! Steps of one family in the loop: a plan for the ordinary ones, and others in hand for those that
//! are larger.
//!
//! ```text
//!   probe    |-- recorded --|
//!            0    x  x x    x|      |           |            |
//!                            ^      ^           ^            ^
//!                       ordinary   larger, by predicted members alone
//! ```
//!
//! A *level* is a size of the probe, the member that has it, as the family predicts it, and a plan
//! for that. It serves all steps up to its size. Steps begin under the lowest level, whose plan
//! alone is laid out; one that turns out larger goes on under the next that is large enough. So
//! ordinary steps make no memory calls whatever their sizes, and an outlier is planned for before
//! it comes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use swap_core::{BlockIndex, Lot, Orders, Plan, Signature, StepReport, Trace};

use super::guarded::Guarded;
use super::{Choice, LoopConfig, Measured, Stage, Turn};
use crate::family::{Family, peak_bytes};
use crate::search::{Feedback, Planner, Prediction};

/// So many recorded sizes make a family: two would be a step and the last one of its epoch.
const MEMBERS_MIN: usize = 3;
/// After so many there is little left to learn.
const MEMBERS_ENOUGH: usize = 6;
/// Steps whose sizes say what is ordinary.
const RECENT_STEPS: usize = 32;
/// One of so many may outgrow the lowest level.
const RARE_DIVISOR: usize = 5;
/// How much larger steps are planned for than any that came.
const OUTLIERS: [u64; 3] = [2, 4, 8];
/// A level serves what would ask for one up to this part lower.
const NEAR_DIVISOR: u64 = 8;
/// Beyond what was seen there is room for this part more.
const ROOM_DIVISOR: u64 = 32;
/// Levels that are kept.
const LEVELS_MAX: usize = 8;
/// So many steps in a row that were short of memory ask for another plan.
const SHORT_STEPS: u32 = 2;
/// Plans are made anew for want of memory so often.
const WIDENED_MAX: u32 = 4;
/// Families that are remembered; the least recent one is forgotten first.
const FAMILIES_MAX: usize = 8;

/// What steps of other sizes than their plan's run under.
#[derive(Clone, Debug)]
pub struct Sizes {
    number: u64,
    probe: BlockIndex,
    trace: Arc<Trace>,
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
    /// The step that the plan was made for: larger than those that run under it.
    pub(crate) fn trace(&self) -> &Arc<Trace> {
        &self.trace
    }

    /// Whether a larger step would have to move anything.
    pub(crate) fn may_move(&self) -> bool {
        self.larger.iter().any(|(plan, _)| !plan.actions.is_empty())
    }

    pub(crate) fn orders(&self, plan: &Plan, lots: Option<Vec<Option<Lot>>>) -> Orders {
        let orders = Orders::for_sizes_up_to(plan, &self.trace, self.probe);
        let orders = match lots {
            Some(lots) => orders.with_lots(lots),
            None => orders,
        };
        let larger = self.larger.iter();
        orders
            .or_larger(larger.map(|(plan, trace)| Orders::for_sizes_up_to(plan, trace, self.probe)))
    }
}

/// All families that were met, by the fingerprint of their ops.
#[derive(Debug, Default)]
pub(super) struct Families {
    known: BTreeMap<Signature, Known>,
    /// Numbers of [`Sizes`].
    given: u64,
}

/// One family.
#[derive(Debug, Default)]
struct Known {
    family: Family,
    seen_at: u64,
    /// Sizes of the last steps, in order.
    recent: VecDeque<u64>,
    /// In order of their sizes.
    levels: Vec<Level>,
    /// Members that the levels were predicted from.
    learnt_from: usize,
    /// Steps in a row that were short of memory under the lowest level.
    short: u32,
    widened: u32,
    feedback: Feedback,
    choice: Choice,
}

/// What is in hand up to a size.
#[derive(Debug)]
struct Level {
    probe_bytes: u64,
    trace: Arc<Trace>,
    state: Planned,
}

#[derive(Debug)]
enum Planned {
    /// It is asked for, or is to be. Meanwhile there may be a sketch.
    Not(Option<Made>),
    Done(Made),
    /// There is none.
    Never,
}

#[derive(Clone, Debug)]
struct Made {
    choice: Choice,
    predicted: Prediction,
}

impl Families {
    /// Takes in a recorded step.
    pub(super) fn learn(&mut self, report: &StepReport, step: u64) {
        let Some(trace) = report.trace.as_ref().filter(|_| report.drifted_at.is_none()) else {
            return;
        };
        let known = self.known.entry(report.family).or_default();
        known.seen_at = step;
        known.family.learn(trace);
        while self.known.len() > FAMILIES_MAX {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.seen_at);
            let oldest = *oldest.expect("more than some are kept").0;
            self.known.remove(&oldest);
        }
    }

    /// The kind that steps of this family count as, once it is known that they differ.
    pub(super) fn kind(&self, family: Signature) -> Option<Signature> {
        let known = self.known.get(&family)?;
        (known.family.member_count() >= MEMBERS_MIN).then(|| kind_of(family))
    }

    fn of_kind(&self, kind: Signature) -> Option<&Known> {
        self.known.iter().find(|(family, _)| kind_of(**family) == kind).map(|(_, known)| known)
    }

    /// What the next step of this kind runs under, if it is a family's.
    pub(super) fn choice(&self, kind: Signature) -> Option<&Choice> {
        self.of_kind(kind).map(|known| &known.choice)
    }

    /// Where a family stands.
    pub(super) fn stage(&self, kind: Signature) -> Option<Stage> {
        let known = self.of_kind(kind)?;
        let is_done = known.levels.iter().all(|level| !matches!(level.state, Planned::Not(_)));
        Some(if is_done { Stage::Stable } else { Stage::SearchPolicy })
    }

    /// Whether its next step is to be recorded.
    pub(super) fn records(&self, kind: Signature) -> Option<bool> {
        self.of_kind(kind).map(|known| known.family.member_count() < MEMBERS_ENOUGH)
    }

    /// Takes in a finished step of a family that is known to vary.
    pub(super) fn observe(
        &mut self,
        config: &LoopConfig,
        planner: &mut Guarded<impl Planner>,
        report: &StepReport,
        step: u64,
    ) -> Vec<Turn> {
        let Families { known, given } = self;
        let Some(known) = known.get_mut(&report.family) else { return Vec::new() };
        known.seen_at = step;
        let mut turns = Vec::new();
        known.note(config, report);
        if known.set_levels(config, report.family) {
            turns.push(Turn::Varies {
                members: known.family.member_count(),
                ordinary_bytes: known.levels.first().map_or(0, |level| level.probe_bytes),
                levels: known.levels.len(),
            });
            known.choose(given);
        }
        if let Some(turn) = known.plan(planner) {
            turns.push(turn);
            known.choose(given);
        }
        turns
    }
}

impl Known {
    /// Notes how large a step was, and whether memory was short.
    fn note(&mut self, config: &LoopConfig, report: &StepReport) {
        let recorded = report.trace.as_ref().zip(self.family.probe());
        let recorded = recorded
            .and_then(|(trace, probe)| trace.blocks.get(probe.0 as usize))
            .map(|b| b.size_bytes);
        let Some(probe_bytes) = report.probe_bytes.or(recorded) else { return };
        if self.recent.len() == RECENT_STEPS {
            self.recent.pop_front();
        }
        self.recent.push_back(probe_bytes);
        let measured = Measured::of(report);
        let is_ordinary = self.levels.first().is_some_and(|level| probe_bytes <= level.probe_bytes);
        self.short = match is_ordinary && self.choice.plan.is_some() && !measured.is_clean() {
            true => self.short + 1,
            false => 0,
        };
        if self.short >= SHORT_STEPS && self.widened < WIDENED_MAX {
            let level = &self.levels[0];
            let predicted = level.made().map(|made| made.predicted).unwrap_or_default();
            let (margin, limit_bytes) = (config.margin, config.limit_bytes);
            self.feedback = self.feedback.after(predicted, measured, margin, limit_bytes);
            (self.short, self.widened) = (0, self.widened + 1);
            self.learnt_from = 0;
        }
    }

    /// The largest step that came.
    fn largest_bytes(&self) -> u64 {
        let recent = self.recent.iter().copied().max();
        recent.into_iter().chain(self.family.largest_bytes()).max().unwrap_or(0)
    }

    /// Chooses the sizes to have plans for. Says whether they are others than before.
    fn set_levels(&mut self, config: &LoopConfig, family: Signature) -> bool {
        let members = self.family.member_count();
        let is_better_known = members.min(MEMBERS_ENOUGH) > self.learnt_from;
        let outgrown = |level: &Level| {
            let larger = self.recent.iter().filter(|&&bytes| bytes > level.probe_bytes).count();
            larger * RARE_DIVISOR > self.recent.len()
        };
        let largest_bytes = self.largest_bytes();
        let is_outgrown = self.levels.first().is_none_or(outgrown);
        let last_bytes = self.levels.last().map_or(0, |level| level.probe_bytes);
        if !is_better_known && !is_outgrown && largest_bytes <= last_bytes / OUTLIERS[0] {
            return false;
        }
        // Those in the middle of training came by their plans at some cost.
        let keeps = !is_better_known && !is_outgrown;
        if !keeps {
            self.levels.clear();
        }
        if is_better_known {
            self.learnt_from = members.min(MEMBERS_ENOUGH);
        }
        let before = self.levels.len();
        let margin_bytes = self.feedback.margin_bytes;
        let limit_bytes = config.limit_bytes.saturating_sub(margin_bytes);
        for probe_bytes in self.wanted(limit_bytes, largest_bytes) {
            let is_there = self.levels.iter().any(|level| {
                let bytes = level.probe_bytes;
                bytes >= probe_bytes && bytes - probe_bytes <= probe_bytes / NEAR_DIVISOR
            });
            if is_there || self.levels.len() >= LEVELS_MAX {
                continue;
            }
            let signature = kind_of(family).mix(probe_bytes).mix(margin_bytes).mix(members as u64);
            let Some(trace) = self.family.member(probe_bytes, signature) else { continue };
            let fits = peak_bytes(&trace) <= limit_bytes;
            let state =
                if fits { Planned::Done(Made::nothing(&trace)) } else { Planned::Not(None) };
            self.levels.push(Level { probe_bytes, trace: Arc::new(trace), state });
        }
        self.levels.sort_by_key(|level| level.probe_bytes);
        self.levels.len() != before || !keeps
    }

    /// The sizes to have plans for, the lowest first.
    fn wanted(&self, limit_bytes: u64, largest_bytes: u64) -> Vec<u64> {
        let with_room = largest_bytes + largest_bytes / ROOM_DIVISOR;
        let fitting_bytes = self.fits_up_to(limit_bytes, with_room.saturating_mul(OUTLIERS[2]));
        let outgrow = self.recent.iter().filter(|&&bytes| bytes > fitting_bytes).count();
        let most_fit = outgrow * RARE_DIVISOR <= self.recent.len() && fitting_bytes > 0;
        let lowest = if most_fit { fitting_bytes } else { with_room };
        let outliers = OUTLIERS.iter().map(|times| largest_bytes.saturating_mul(*times));
        let above = [with_room].into_iter().chain(outliers).filter(|&bytes| bytes > lowest);
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

    /// Asks for the next plan that is missing.
    fn plan(&mut self, planner: &mut Guarded<impl Planner>) -> Option<Turn> {
        let is_lowest_open = matches!(self.levels.first()?.state, Planned::Not(None));
        let level = self.levels.iter_mut().find(|level| matches!(level.state, Planned::Not(_)))?;
        // The step that comes next needs one; the others are made beside the training.
        let tries = if is_lowest_open { 0 } else { self.feedback.tries.max(1) };
        let feedback = Feedback { tries, ..self.feedback.clone() };
        let Some(proposal) = planner.plan(&level.trace, &feedback) else {
            if !planner.is_busy(level.trace.signature) {
                let sketch = level.made().cloned();
                level.state = sketch.map_or(Planned::Never, Planned::Done);
            }
            return None;
        };
        let made = planner.inner.latest().cloned().map(Arc::new);
        let layout = proposal.layout.map(Arc::new);
        let choice = Choice { made, layout, ..Choice::of(Arc::new(proposal.plan)) };
        let actions = choice.plan.as_ref().map_or(0, |plan| plan.actions.len());
        let made = Made { choice, predicted: proposal.predicted };
        let turn = Turn::PlannedUpTo {
            probe_bytes: level.probe_bytes,
            actions,
            predicted: made.predicted,
        };
        level.state = match proposal.is_sketch {
            true => Planned::Not(Some(made)),
            false => Planned::Done(made),
        };
        Some(turn)
    }

    /// What the next step runs under, of what is in hand.
    fn choose(&mut self, given: &mut u64) {
        let Some(probe) = self.family.probe() else { return };
        let mut planned = self.levels.iter().filter_map(|level| Some((level, level.made()?)));
        let Some((lowest, made)) = planned.next() else {
            self.choice = Choice::default();
            return;
        };
        let larger = planned.filter_map(|(level, made)| {
            Some((Arc::clone(made.choice.plan.as_ref()?), Arc::clone(&level.trace)))
        });
        *given += 1;
        let trace = Arc::clone(&lowest.trace);
        let sizes = Sizes { number: *given, probe, trace, larger: larger.collect() };
        self.choice = Choice { sizes: Some(Arc::new(sizes)), ..made.choice.clone() };
    }
}

impl Level {
    fn made(&self) -> Option<&Made> {
        match &self.state {
            Planned::Not(sketch) => sketch.as_ref(),
            Planned::Done(made) => Some(made),
            Planned::Never => None,
        }
    }
}

impl Made {
    /// For steps that fit.
    fn nothing(trace: &Trace) -> Made {
        let op_count = u32::try_from(trace.ops.len()).expect("ops of a step are counted so");
        let plan = Plan { signature: trace.signature, op_count, ..Plan::default() };
        let step_us = trace.ops.iter().map(|op| op.device_us).sum();
        let predicted = Prediction { step_us, ..Prediction::default() };
        Made { choice: Choice::of(Arc::new(plan)), predicted }
    }
}

/// The kind that the steps of a family count as: none of a step's own.
fn kind_of(family: Signature) -> Signature {
    family.mix(u64::MAX)
}
