//! What the loop tells of itself, for whoever watches a search.

use std::fmt;

use swap_core::{Bytes, Signature};

use super::{Measured, Stage};
use crate::search::Prediction;

/// Something that the loop did with a kind of step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct News {
    /// The step after which it did, from 1.
    pub step: u64,
    /// The kind of step.
    pub kind: Signature,
    /// Its number of ops.
    pub op_count: u32,
    /// What was done.
    pub event: Event,
}

/// What was done with a kind of step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Event {
    /// It was met for the first time.
    Met,
    /// It went by the plan of the expected kind, apart from a few ops.
    Branches {
        /// Ops that the plan does not know.
        strayed_ops: u32,
    },
    /// Steps of the same ops come in all sizes.
    Varies {
        /// Sizes that were recorded.
        members: usize,
        /// What the block that tells their size has in the largest ordinary one.
        ordinary_bytes: u64,
        /// Sizes that there is to be a plan for.
        levels: usize,
    },
    /// There is a plan for steps up to a size.
    PlannedUpTo {
        /// What the block that tells their size has in the largest.
        probe_bytes: u64,
        /// Actions of the plan.
        actions: usize,
        /// What its planner expects of the largest.
        predicted: Prediction,
    },
    /// It came from one stage to another.
    Moved {
        /// The stage before.
        from: Stage,
        /// The stage from here on.
        to: Stage,
    },
    /// A plan is tried in the next steps.
    Tries {
        /// Which try of the search it is, from 1; 0 for the best plan so far, measured once more.
        number: u32,
        /// Actions of the plan.
        actions: usize,
        /// What its planner expects.
        predicted: Prediction,
    },
    /// A plan was tried.
    Tried {
        /// Which try of the search it was.
        number: u32,
        /// What its planner expected.
        predicted: Prediction,
        /// What came of it.
        measured: Measured,
        /// Whether it is the best so far.
        is_best: bool,
    },
    /// The best so far stays from here on.
    Adopted {
        /// Actions of its plan; `None` if memory is found on demand.
        actions: Option<usize>,
        /// What was measured under it.
        measured: Measured,
        /// Why nothing else is tried.
        why: Why,
    },
    /// Its plan was laid out.
    LaidOut {
        /// What its lots take together.
        lots_bytes: u64,
        /// How many turns steps take.
        turns: usize,
        /// What is there beside them, at most.
        beside_bytes: u64,
        /// What is too much of both.
        excess_bytes: u64,
        /// Whether it is used all the same.
        is_used: bool,
    },
    /// A step showed that what was adopted no longer serves.
    Disturbed {
        /// The step.
        measured: Measured,
    },
}

/// Why a search ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The step fits as it is.
    Fits,
    /// It takes hardly longer than with all memory, so no other plan could gain.
    HardlyLonger,
    /// As many plans were tried as may be.
    NoTriesLeft,
    /// The planner has no plan that was not tried.
    NoOtherPlan,
    /// What seemed to have changed is as it was.
    FalseAlarm,
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let News { step, kind, op_count, event } = self;
        write!(f, "step {step}, kind {:08x} of {op_count} ops: {event}", kind.0 >> 32)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Event::Met => write!(f, "new, in {:?}", Stage::WarmUp),
            Event::Branches { strayed_ops } => {
                write!(f, "follows the plan of another kind, except for {strayed_ops} ops")
            }
            Event::Varies { members, ordinary_bytes, levels } => {
                let ordinary = Bytes(ordinary_bytes);
                write!(f, "comes in {members} sizes, mostly up to {ordinary}: plans for {levels}")
            }
            Event::PlannedUpTo { probe_bytes, actions, predicted } => {
                let (size, ms) = (Bytes(probe_bytes), Ms(predicted));
                write!(f, "planned up to {size}: {actions} actions, {ms} predicted")
            }
            Event::Moved { from, to } => write!(f, "{from:?} -> {to:?}"),
            Event::Tries { number: 0, .. } => f.write_str("measures the adopted plan again"),
            Event::Tries { number, actions, predicted } => {
                write!(f, "tries plan {number}: {actions} actions, {} predicted", Ms(predicted))
            }
            Event::Tried { number, predicted, measured, is_best } => {
                let verdict = if is_best { "the best so far" } else { "no better" };
                write!(f, "plan {number}: {measured}, {} predicted: {verdict}", Ms(predicted))
            }
            Event::Adopted { actions: Some(actions), measured, why } => {
                write!(f, "adopts a plan of {actions} actions, {measured}: {why}")
            }
            Event::Adopted { actions: None, measured, why } => {
                write!(f, "adopts no plan, {measured}: {why}")
            }
            Event::LaidOut { lots_bytes, turns, beside_bytes, excess_bytes, is_used } => {
                let (lots, beside) = (Bytes(lots_bytes), Bytes(beside_bytes));
                f.write_str(if is_used { "laid out: " } else { "not laid out: " })?;
                let taken = if turns > 1 { " by turns" } else { "" };
                let excess = Bytes(excess_bytes);
                write!(f, "{lots} in lots{taken}, {beside} beside them, {excess} over the cap")
            }
            Event::Disturbed { measured } => write!(f, "searches again: {measured}"),
        }
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |us: f64| us / 1e3;
        write!(
            f,
            "{:.3} ms measured, {:.3} ms of it waiting",
            ms(self.step_us),
            ms(self.stall_us)
        )?;
        if self.misses + self.rescues > 0 {
            write!(f, ", {} missed, {} rescued", self.misses, self.rescues)?;
        }
        if self.memory_calls > 0 {
            write!(f, ", {} memory calls", self.memory_calls)?;
        }
        f.write_str(if self.drifted { ", left the plan" } else { "" })
    }
}

/// A predicted time.
struct Ms(Prediction);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0.step_us / 1e3)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Fits => "everything fits",
            Why::HardlyLonger => "it takes hardly longer than with unlimited memory",
            Why::NoTriesLeft => "the best of all tries",
            Why::NoOtherPlan => "there is no other plan to try",
            Why::FalseAlarm => "the step has not changed",
        })
    }
}
