//! The search for a plan, in rounds.
//!
//! ```text
//!   start ── first choices ──> lineage ─┐ in each round more placements, and changes
//!   start ── first choices ──> lineage ─┤ of wishes, kept where the step gets shorter
//!   start ── first choices ──> lineage ─┤
//!                                       └─ the best of all ──> front: early copies, and many
//!                                                              more changes
//! ```
//!
//! What a round does depends on the rounds before it alone. The effort only says how many there
//! are, so more of it never makes a worse plan. Lineages know nothing of each other, so a search
//! from several starts never finds a worse plan than one from each of them alone.

use super::choose::{Chooser, Made};
use super::moves::{Class, changed, classes};
use super::refine::Refiner;
use crate::parallel::each;

/// Changes in a round of a lineage and of the front, at most.
const CHANGES_MAX: [usize; 2] = [12, 96];
/// Events of all these changes and of the placement before them, about.
const EVENTS: [usize; 2] = [40_000, 125_000];
/// So many changes may turn out to change nothing, for each that does.
const IDLE_CHANGES: usize = 4;
/// Changes at once from where none helped in a whole round.
const LEAPS: usize = 4;
/// A change may make the step longer than the best by less than this share, on the way to others.
const SLACK: f64 = 0.001;
/// A step that is longer than the bound by less than this share is good enough.
const NEAR: f64 = 0.003;
/// Below this share of the step, others could gain nothing that can be measured.
const ADDED_SHARE_IGNORED: f64 = 0.001;

/// After so many rounds each, single blocks of the best choice are moved.
const REFINED_ROUNDS: u32 = 8;

/// What all lineages share.
struct Scene {
    classes: Vec<Class>,
    event_count: usize,
    unlimited_us: f64,
    /// No plan makes a shorter step than this.
    least_us: f64,
}

/// The choices that came of one start.
pub(super) struct Lineage<'a> {
    chooser: Chooser<'a>,
    from_round: u32,
    best: Option<Made<'a>>,
}

pub(super) struct Search<'a> {
    scene: Scene,
    lineages: Vec<Lineage<'a>>,
    /// The best of all with more changes, if there are to be some.
    front: Option<Made<'a>>,
    has_front: bool,
    /// The best of all with single blocks moved, and the time of the step that it came of.
    refined: Option<Made<'a>>,
    refined_from_us: Option<f64>,
}

impl<'a> Lineage<'a> {
    pub(super) fn new(chooser: Chooser<'a>, from_round: u32) -> Lineage<'a> {
        Lineage { chooser, from_round, best: None }
    }

    fn round(&mut self, round: u32, scene: &Scene) {
        if round < self.from_round {
            return;
        }
        self.enter(round, scene);
        let Some(best) = self.best.as_mut().filter(|best| !scene.is_unmatched(best)) else {
            return;
        };
        if round > 1 {
            best.place_again(1);
            // Copies alone stay in the order of what they cost.
            if !self.chooser.options.is_empty() {
                scene.change(best, 0);
            }
        }
    }

    /// First choices: one in the first round, and from the second on one for each way to see the
    /// link. Who enters late does both at once.
    fn enter(&mut self, round: u32, scene: &Scene) {
        let (first, others) = self.chooser.hidden_shares().split_at(1);
        if round == self.from_round {
            self.choose(first, scene);
        }
        if round == self.from_round.max(2) {
            self.choose(others, scene);
        }
    }

    fn choose(&mut self, shares: &[f64], scene: &Scene) {
        for &share in shares {
            if self.is_unmatched(scene) {
                return;
            }
            self.keep(self.chooser.first(share));
        }
        self.without_demand();
    }

    /// How much memory replays need at once depends on what others left where, so a choice may
    /// have reckoned with too much. Then more is left free, and in the end nothing is made again.
    fn without_demand(&mut self) {
        if self.chooser.options.is_empty() || !self.is_only_unsure() {
            return;
        }
        let share = self.best.as_ref().map_or(1.0, |best| best.hidden_share);
        for chooser in self.chooser.tighter() {
            self.keep(chooser.first(share));
        }
        if self.is_only_unsure() {
            self.keep(Chooser { options: &[], ..self.chooser }.first(share));
        }
    }

    fn is_only_unsure(&self) -> bool {
        self.best.as_ref().is_some_and(|best| best.rank().is_only_unsure())
    }

    fn keep(&mut self, made: Made<'a>) {
        if self.best.as_ref().is_none_or(|best| made.rank() < best.rank()) {
            self.best = Some(made);
        }
    }

    fn is_unmatched(&self, scene: &Scene) -> bool {
        self.best.as_ref().is_some_and(|best| scene.is_unmatched(best))
    }
}

impl<'a> Search<'a> {
    /// A search from some starts, of which one is for any effort.
    pub(super) fn new(
        lineages: Vec<Lineage<'a>>,
        has_front: bool,
        [unlimited_us, least_us]: [f64; 2],
    ) -> Search<'a> {
        let Chooser { trace, config, .. } = lineages[0].chooser;
        let classes = classes(trace, config.min_block_bytes);
        let scene = Scene { classes, event_count: trace.events.len(), unlimited_us, least_us };
        Search { scene, lineages, front: None, has_front, refined: None, refined_from_us: None }
    }

    /// The best choice of so many rounds.
    pub(super) fn run(mut self, effort: u32) -> Made<'a> {
        for round in 1..=effort.max(1) {
            if round == 1 {
                self.first_round();
            } else {
                let scene = &self.scene;
                each(&mut self.lineages, &|lineage: &mut Lineage<'a>| lineage.round(round, scene));
            }
            if self.scene.is_unmatched(self.best()) {
                break;
            }
            if self.has_front && round > 1 {
                let mut front = self.best().clone();
                front.place_again(1);
                front.try_early();
                self.scene.change(&mut front, 1);
                self.front = Some(front);
            }
            if self.has_front && round % REFINED_ROUNDS == 0 {
                self.refine(round);
            }
        }
        self.refined
            .take()
            .filter(|one| one.rank() < self.best().rank())
            .unwrap_or_else(|| self.best().clone())
    }

    /// The first choices one after the other, as the first can be as good as any.
    fn first_round(&mut self) {
        for lineage in &mut self.lineages {
            lineage.round(1, &self.scene);
            if lineage.is_unmatched(&self.scene) {
                break;
            }
        }
    }

    /// Moves single blocks of the best choice, or of what came of that before if there is no better
    /// one by now.
    fn refine(&mut self, round: u32) {
        let base_us = self.best().sure_us();
        let is_new = self.refined_from_us != Some(base_us);
        let mut made = match self.refined.as_ref().filter(|_| !is_new) {
            Some(refined) => refined.clone(),
            None => self.best().clone(),
        };
        let scene = &self.scene;
        let least_us = scene.least_us.max(scene.unlimited_us * (1.0 + ADDED_SHARE_IGNORED));
        let options = self.lineages.iter().map(|lineage| lineage.chooser.options);
        let options = options.max_by_key(|options| options.len()).unwrap_or_default();
        let mut refiner = Refiner::new(made.chooser, options, u64::from(round));
        refiner.run(&mut made, round as usize, least_us);
        self.refined_from_us = Some(base_us);
        if self.refined.as_ref().is_none_or(|refined| made.rank() < refined.rank()) {
            self.refined = Some(made);
        }
    }

    fn best(&self) -> &Made<'a> {
        let bests = self.lineages.iter().filter_map(|lineage| lineage.best.as_ref());
        let all = self.front.iter().chain(bests);
        all.min_by(|one, other| one.rank().order(&other.rank())).expect("one was for any effort")
    }
}

impl Scene {
    /// Tries changes one after the other, and keeps the best choice on the way.
    fn change(&self, line: &mut Made<'_>, kind: usize) {
        let rest = EVENTS[kind].saturating_sub(self.event_count);
        let count = CHANGES_MAX[kind].min(rest / self.event_count.max(1));
        let is_near = |made: &Made<'_>| made.sure_us() <= self.least_us * (1.0 + NEAR);
        if count == 0 || self.classes.is_empty() || is_near(line) {
            return;
        }
        let mut best = line.clone();
        best.is_stuck = true;
        let mut tried = 0;
        // From where no change helped, a few at once lead elsewhere.
        let mut leaps = if line.is_stuck { LEAPS.min(count) } else { 0 };
        for _ in 0..IDLE_CHANGES * count {
            if is_near(&best) || tried == count {
                break;
            }
            line.changes += 1;
            if let Some(made) = changed(line, &self.classes) {
                tried += 1;
                let is_sure = made.sure_us().is_finite();
                let is_near_best = is_sure && made.sure_us() <= best.sure_us() * (1.0 + SLACK);
                let is_leap = is_sure && leaps > 0;
                leaps -= usize::from(is_leap);
                if made.rank() < best.rank() {
                    best = made.clone();
                    best.is_stuck = false;
                }
                if made.rank() < line.rank() || is_near_best || is_leap {
                    *line = made;
                }
            }
        }
        best.changes = line.changes;
        *line = best;
    }

    /// Whether others could gain nothing.
    fn is_unmatched(&self, made: &Made<'_>) -> bool {
        let least_us = self.least_us.max(self.unlimited_us * (1.0 + ADDED_SHARE_IGNORED));
        made.sure_us() <= least_us
    }
}
