//! What ranks that train together tell one another about a step, so that they judge it alike.
//!
//! Ranks wait for each other in every step, so a rank's own time says what the others tried. Each
//! tells its [`Figures`] of the same step, and all judge it by the worst of them. Times are those
//! of the slowest rank; what one rank had to rescue, all did. Steps are matched by their number
//! since the ranks began to share.

use swap_core::{Signature, StepReport};

use crate::machine::Link;
use crate::search::Measured;
use crate::session::agreed;
use crate::stage::Stage;

/// Ranks whose steps touch more blocks plan alone.
const TOUCHES_MOST: f64 = (1_u32 << 24) as f64;

/// What a rank tells of one step: numbers, of which the ranks take the largest each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    numbers: [f64; Figures::COUNT],
}

/// The places of the numbers. Those without a unit are 1 if it is so, else 0.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Figure {
    /// The rank has no finished step to tell of, or the device is still at work on it.
    Lacks,
    /// It has finished no step behind this one.
    IsLast,
    /// It is not Stable, so it needs the others' figures before its next step.
    Hurries,
    /// Device time of the step, in microseconds.
    StepUs,
    /// Device time that it waited for copies, in microseconds.
    StallUs,
    /// A count.
    Misses,
    /// A count.
    Rescues,
    /// It left its plan.
    Drifted,
    /// It had begun before the orders under which it would be judged, or mapped a layout.
    Void,
    /// It ran under a plan for other steps.
    Surprised,
    /// Blocks were not yet where its plan leaves them.
    Unsettled,
    /// It is of a kind in WarmUp.
    Warming,
    /// It is of a kind that is past WarmUp.
    Advanced,
    /// It is of a kind in SearchPolicy.
    Searching,
    /// It tried a plan, or has one made.
    Seeking,
    /// The plan that it has made beside the training is not there yet.
    Planning,
    /// A number of what was recorded, 0 if nothing was.
    Kind,
    /// The same below zero: the largest is the smallest kind.
    KindBelowZero,
    /// A number of the blocks in it.
    Blocks,
    /// The same below zero.
    BlocksBelowZero,
    /// How many touches the leading rank recorded, 0 from the others.
    Touches,
    /// The ranks recorded the same ops, but not the same blocks. No rank tells that by itself.
    Again,
    /// Time per byte to the host, in microseconds.
    OutUs,
    /// Time per byte from the host, in microseconds.
    InUs,
    /// Time per byte of each direction while both run, in microseconds.
    BothUs,
}

/// What comes after a round in which ranks told their figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Round {
    /// All ranks are Stable: begin a round when the next step ends, and take in what came of it
    /// one step later.
    Later,
    /// Begin a round when the next step ends, and wait for it there.
    NextStep,
    /// Begin another at once, and wait for it.
    AtOnce,
    /// The ranks recorded the same step: take the largest of so many times first, and of what else
    /// tells the step.
    Times(usize),
}

impl Figures {
    /// How many numbers there are.
    pub const COUNT: usize = Figure::BothUs as usize + 1;

    /// Of a rank that has nothing to say about a step.
    pub(crate) fn none() -> Figures {
        Figures { numbers: [0.0; Figures::COUNT] }
    }

    /// Of a rank whose steps come in all sizes. Its times say nothing of the others' plans, and it
    /// waits for none of them.
    pub(crate) fn of_a_family() -> Figures {
        Figures::none().with_flag(Figure::Advanced, true).with_flag(Figure::Surprised, true)
    }

    /// From numbers that were told.
    pub fn from_numbers(numbers: [f64; Figures::COUNT]) -> Figures {
        Figures { numbers }
    }

    /// The numbers to tell.
    pub fn numbers(&self) -> &[f64; Figures::COUNT] {
        &self.numbers
    }

    /// What two ranks agree on: the larger of each number.
    #[must_use]
    pub fn worst(self, other: Figures) -> Figures {
        let mut worst = self;
        for (number, theirs) in worst.numbers.iter_mut().zip(other.numbers) {
            *number = number.max(theirs);
        }
        worst
    }

    pub(crate) fn get(&self, figure: Figure) -> f64 {
        self.numbers[figure as usize]
    }

    pub(crate) fn is(&self, figure: Figure) -> bool {
        self.get(figure) > 0.0
    }

    #[must_use]
    pub(crate) fn with(mut self, figure: Figure, number: f64) -> Figures {
        self.numbers[figure as usize] = number;
        self
    }

    #[must_use]
    pub(crate) fn with_flag(self, figure: Figure, is_so: bool) -> Figures {
        self.with(figure, f64::from(u8::from(is_so)))
    }

    #[must_use]
    pub(crate) fn with_measured(self, measured: &Measured) -> Figures {
        self.with(Figure::StepUs, measured.step_us)
            .with(Figure::StallUs, measured.stall_us)
            .with(Figure::Misses, measured.misses as f64)
            .with(Figure::Rescues, measured.rescues as f64)
            .with_flag(Figure::Drifted, measured.drifted)
    }

    /// Adds what tells this step, if it was recorded, from steps of other models.
    #[must_use]
    pub(crate) fn with_kind(self, report: &StepReport) -> Figures {
        let Some(trace) = &report.trace else { return self };
        // The bits that a double holds, and not 0.
        let number = |signature: Signature| (signature.0 >> 12).max(1) as f64;
        let (kind, blocks) = (number(agreed::kind(trace)), number(agreed::blocks(trace)));
        self.with(Figure::Kind, kind)
            .with(Figure::KindBelowZero, -kind)
            .with(Figure::Blocks, blocks)
            .with(Figure::BlocksBelowZero, -blocks)
    }

    /// Adds how much there is to tell of a recorded step, if this rank leads.
    #[must_use]
    pub(crate) fn with_recorded(self, report: &StepReport, leads: bool) -> Figures {
        let touches = report.trace.as_ref().filter(|_| leads).map_or(0, agreed::touch_count);
        self.with(Figure::Touches, touches as f64)
    }

    /// How many touches the leading rank has to tell of.
    pub(crate) fn touch_count(&self) -> usize {
        self.get(Figure::Touches) as usize
    }

    #[must_use]
    pub(crate) fn with_link(self, link: Option<Link>) -> Figures {
        let Some(link) = link else { return self };
        self.with(Figure::OutUs, link.out_bytes_per_us.recip())
            .with(Figure::InUs, link.in_bytes_per_us.recip())
            .with(Figure::BothUs, link.both_bytes_per_us.recip())
    }

    /// The slowest link, if any rank told of one.
    pub(crate) fn link(&self) -> Option<Link> {
        let rate = |figure| Some(self.get(figure).recip()).filter(|rate| rate.is_finite());
        Some(Link {
            out_bytes_per_us: rate(Figure::OutUs)?,
            in_bytes_per_us: rate(Figure::InUs)?,
            both_bytes_per_us: rate(Figure::BothUs)?,
        })
    }

    /// Whether all ranks recorded the same step, and one of them tells what its ops touch.
    pub(crate) fn are_of_one_kind(&self) -> bool {
        self.recorded_the_same(Figure::Kind, Figure::KindBelowZero)
            && self.recorded_the_same(Figure::Blocks, Figure::BlocksBelowZero)
            && (1.0..=TOUCHES_MOST).contains(&self.get(Figure::Touches))
    }

    /// Whether all ranks recorded the same ops, but not the same blocks: on one rank a thread of a
    /// communication library frees in this step what it should have freed in the last one.
    pub(crate) fn differ_in_blocks(&self) -> bool {
        self.recorded_the_same(Figure::Kind, Figure::KindBelowZero)
            && !self.recorded_the_same(Figure::Blocks, Figure::BlocksBelowZero)
    }

    fn recorded_the_same(&self, number: Figure, below_zero: Figure) -> bool {
        self.is(number) && self.get(number) == -self.get(below_zero)
    }

    /// Whether the ranks ran so much alike that a rank in `stage` is judged by all of them. A
    /// model whose shapes differ from rank to rank meets a new one here, another there; what that
    /// costs says nothing of the plans of the rest.
    pub(crate) fn count_in(&self, stage: Stage) -> bool {
        let calm = !self.is(Figure::Surprised) && !self.is(Figure::Warming);
        match stage {
            Stage::WarmUp => !self.is(Figure::Advanced),
            Stage::SearchPolicy => calm,
            Stage::Stable => calm && !self.is(Figure::Searching) && !self.is(Figure::Void),
        }
    }

    /// What a rank that measured `own` judges by in `stage`.
    pub(crate) fn judged(&self, own: Measured, stage: Stage) -> Measured {
        if self.count_in(stage) {
            return Measured {
                step_us: self.get(Figure::StepUs),
                stall_us: self.get(Figure::StallUs),
                misses: self.get(Figure::Misses) as u64,
                rescues: self.get(Figure::Rescues) as u64,
                drifted: self.is(Figure::Drifted),
                ..own
            };
        }
        // Its own mishaps count. In Stable its time does not: it is that of the others' tries.
        let step_us = if stage == Stage::Stable { 0.0 } else { own.step_us };
        Measured { step_us, ..own }
    }

    pub(crate) fn round(&self) -> Round {
        match (self.is(Figure::Hurries), self.is(Figure::IsLast)) {
            (false, _) => Round::Later,
            (true, true) => Round::NextStep,
            (true, false) => Round::AtOnce,
        }
    }
}
