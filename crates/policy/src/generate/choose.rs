//! One choice of what leaves, and its placement: a point of the search.

use std::cmp::Ordering;
use std::mem;

use swap_core::Trace;

use super::place::{Placement, Placer, Way};
use super::select::{HIDDEN_SHARES, Selection, late_blocks, select};
use super::taste::{Taste, Wish};
use super::{GenerateConfig, RecomputeOption};
use crate::cost::Cost;
use crate::machine::Machine;
use crate::usage::Usage;

/// Everything that choosing and placing need.
#[derive(Clone, Copy)]
pub(super) struct Chooser<'a> {
    pub(super) trace: &'a Trace,
    pub(super) usage: &'a Usage,
    pub(super) machine: &'a Machine,
    /// The machine less what is to stay unused.
    pub(super) target: Machine,
    pub(super) options: &'a [RecomputeOption],
    pub(super) config: &'a GenerateConfig,
}

/// What leaves, and when.
#[derive(Clone)]
pub(super) struct Made<'a> {
    pub(super) chooser: Chooser<'a>,
    pub(super) hidden_share: f64,
    pub(super) taste: Taste,
    pub(super) selection: Selection,
    pub(super) placement: Placement,
    /// Ways in which it was placed.
    placements: usize,
    /// Changes that were tried on the way to it and of it.
    pub(super) changes: usize,
    /// Whether no change helped in the last round.
    pub(super) is_stuck: bool,
    /// Whether copying out earlier was tried.
    is_early_tried: bool,
}

impl<'a> Chooser<'a> {
    /// The first choice: with no wishes, or as few as it takes to fit. Where too much stays on the
    /// device, blocks are not made again whose replays would bring others back for which there is
    /// no room.
    pub(super) fn first(self, hidden_share: f64) -> Made<'a> {
        let mut taste = Taste::neutral(self.trace.blocks.len());
        let mut selection = self.select(hidden_share, &taste);
        for _ in 0..REPAIRS_MAX {
            let is_known = |&block: &u32| taste.get(block) == Wish::NotRecompute;
            if selection.blamed.iter().all(is_known) {
                break;
            }
            for &block in &selection.blamed {
                taste.set(block, Wish::NotRecompute);
            }
            selection = self.select(hidden_share, &taste);
        }
        let placement = self.placer(&selection).place(None, Way::FIRST);
        let mut made = self.made(hidden_share, taste, selection, placement);
        for way in Way::WHERE_LINK_IS_FULL {
            let simulation = &made.placement.simulation;
            let hardly_waits = simulation.stall_us <= STALL_SHARE_IGNORED * simulation.step_us;
            if hardly_waits {
                break;
            }
            made.keep(made.placed(way));
        }
        made
    }

    fn made(
        self,
        hidden_share: f64,
        taste: Taste,
        selection: Selection,
        placement: Placement,
    ) -> Made<'a> {
        let (placements, changes, is_stuck, is_early_tried) = (0, 0, false, false);
        Made {
            chooser: self,
            hidden_share,
            taste,
            selection,
            placement,
            placements,
            changes,
            is_stuck,
            is_early_tried,
        }
    }

    /// The same with more memory left unused.
    pub(super) fn tighter(self) -> impl Iterator<Item = Chooser<'a>> {
        let limit_bytes = self.target.limit_bytes;
        MARGIN_DIVISORS.into_iter().map(move |divisor| Chooser {
            target: self.target.with_limit(limit_bytes - limit_bytes / divisor),
            ..self
        })
    }

    /// What hidden link time may count for.
    ///
    /// Only where blocks can be made again is there more than one: then a busy link can be worth
    /// sparing, and by how much shows in the simulation alone.
    pub(super) fn hidden_shares(&self) -> &'static [f64] {
        if self.options.is_empty() { &HIDDEN_SHARES[..1] } else { &HIDDEN_SHARES }
    }

    fn select(&self, hidden_share: f64, taste: &Taste) -> Selection {
        let Chooser { trace, usage, target, options, config, .. } = *self;
        select(trace, usage, &target, options, config, hidden_share, taste)
    }

    fn placer<'b>(&'b self, selection: &'b Selection) -> Placer<'b> {
        let room_bytes = self.target.limit_bytes.max(self.least_bytes(selection));
        let Chooser { trace, usage, machine, .. } = *self;
        Placer { trace, usage, machine, room_bytes, selection }
    }

    /// The memory that a choice needs if the limit is too low for it.
    pub(super) fn least_bytes(&self, selection: &Selection) -> u64 {
        selection.excess.map_or(0, |(_, bytes)| self.target.limit_bytes + bytes)
    }
}

/// Waits below this share of the step are not worth another placement of a first choice.
const STALL_SHARE_IGNORED: f64 = 0.01;
/// A choice that leaves too much on the device is repaired so often.
const REPAIRS_MAX: usize = 6;
/// Parts of the limit that are left free in turn where replays found less room than was reckoned.
const MARGIN_DIVISORS: [u64; 3] = [64, 16, 8];

/// The order of plans in a search.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub(super) struct Rank {
    falls_short: bool,
    /// Some moves are left to demand.
    is_unsure: bool,
    cost: Cost,
}

impl Rank {
    pub(super) fn order(&self, other: &Rank) -> Ordering {
        self.partial_cmp(other).expect("times are numbers")
    }

    /// Whether it would do if nothing were left to demand.
    pub(super) fn is_only_unsure(&self) -> bool {
        self.is_unsure && !self.falls_short
    }
}

impl<'a> Made<'a> {
    /// The choice with other wishes, placed like this one.
    pub(super) fn with(&self, hidden_share: f64, taste: Taste) -> Made<'a> {
        let Placement { simulation, way, .. } = &self.placement;
        let selection = self.chooser.select(hidden_share, &taste);
        let placement = self.chooser.placer(&selection).place(Some(simulation), *way);
        let made = self.chooser.made(hidden_share, taste, selection, placement);
        Made { changes: self.changes, ..made }
    }

    /// Copies out as early as can be what is copied out late, if that makes the step shorter.
    /// Placed as it was, or for what the peak leaves first.
    pub(super) fn try_early(&mut self) {
        if mem::replace(&mut self.is_early_tried, true) {
            return;
        }
        let Chooser { trace, usage, machine, config, .. } = self.chooser;
        let late = late_blocks(trace, usage, machine, config, &self.selection.choices);
        if late.is_empty() {
            return;
        }
        let mut taste = self.taste.clone();
        for block in late {
            taste.set_early(block);
        }
        let mut early = self.with(self.hidden_share, taste);
        let way = early.placement.way.beginning_at_peak();
        early.keep(early.chooser.placer(&early.selection).place(None, way));
        if early.rank() < self.rank() {
            *self = early;
        }
    }

    /// Places the same choice in another way.
    fn placed(&self, way: Way) -> Placement {
        self.chooser.placer(&self.selection).place(Some(&self.placement.simulation), way)
    }

    fn keep(&mut self, placement: Placement) {
        let [one, other] = [&placement.simulation, &self.placement.simulation];
        let is_faster = !other.went_to_plan() || Cost::new(0, one) < Cost::new(0, other);
        // What is left to demand goes by the order of touches, which is to change nothing.
        if one.went_to_plan() && is_faster {
            self.placement = placement;
        }
    }

    /// Places the same choice in some more ways, and keeps the fastest.
    pub(super) fn place_again(&mut self, count: usize) {
        for _ in 0..count {
            let simulation = &self.placement.simulation;
            // Without a stall there is nothing left to place better.
            if simulation.stall_us <= 1e-9 * simulation.step_us {
                break;
            }
            self.placements += 1;
            self.keep(self.placed(Way::number(self.placements)));
        }
    }

    /// Its place among all: what fits comes first, then what leaves nothing to demand.
    pub(super) fn rank(&self) -> Rank {
        let simulation = &self.placement.simulation;
        let missing_bytes = self.excess().map_or(0, |(_, bytes)| bytes);
        Rank {
            falls_short: missing_bytes > 0 || simulation.shortfall.is_some(),
            is_unsure: !simulation.went_to_plan(),
            cost: Cost::new(missing_bytes, simulation),
        }
    }

    /// The row in which it leaves too much on the device, and by how much. The memory within an op
    /// is not reckoned to the byte, so a step that goes to plan below the limit shows that there
    /// is none.
    pub(super) fn excess(&self) -> Option<(usize, u64)> {
        let simulation = &self.placement.simulation;
        let is_within = simulation.held_bytes_peak <= self.chooser.machine.limit_bytes;
        // Without ops nobody asks for what does not fit.
        let is_judge = !self.chooser.trace.ops.is_empty();
        let fits = is_judge && is_within && simulation.went_to_plan();
        self.selection.excess.filter(|_| !fits)
    }

    /// Time of the step if it fits and all is planned; endless otherwise.
    pub(super) fn sure_us(&self) -> f64 {
        let rank = self.rank();
        let is_sure = !rank.falls_short && !rank.is_unsure;
        if is_sure { self.placement.simulation.step_us } else { f64::INFINITY }
    }
}
