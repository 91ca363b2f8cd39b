//! When to issue the moves: away at once after the last use, back as late as the link allows and
//! as early as memory allows. Several placements are simulated and the fastest is kept.

use std::cmp::Reverse;

use swap_core::{Plan, Trace};

use super::need::need_curve;
use super::order::{Moment, Times, plan_of};
use super::select::{Choice, Mode, Selection};
use crate::candidate::Gap;
use crate::curve::Curve;
use crate::machine::Machine;
use crate::simulate::{Simulation, simulate_with};
use crate::usage::Usage;

/// What to try: when copies to the host are issued, and how many copy times before its deadline a
/// copy back is. Late copies back hold memory for a shorter time; early ones forgive the link's
/// other traffic.
const TRIES: [(Departure, f64); 7] = [
    (Departure::WhenFree, 1.1),
    (Departure::AtOnce, 1.1),
    (Departure::WhenFree, 3.0),
    (Departure::WhenFree, 10.0),
    (Departure::WhenFree, f64::INFINITY),
    (Departure::AtOnce, 10.0),
    (Departure::AtOnce, f64::INFINITY),
];

/// A time lies at most so many steps away, however short the steps are. No copy is issued more than
/// a step ahead, so that is as good as any.
const STEPS_MAX: f64 = 1e6;
/// Times that differ by less are the same.
const ROUNDING_US: f64 = 1e-3;

#[derive(Clone, Debug)]
pub(super) struct Placement {
    pub(super) plan: Plan,
    pub(super) simulation: Simulation,
    /// By choice.
    pub(super) times: Vec<Times>,
    pub(super) way: Way,
}

/// One of the ways to place a choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    /// One of [`TRIES`].
    number: usize,
    /// Whether it reckons with the times of a step as it was seen.
    as_seen: bool,
    /// Whether copies back get room in the order in which they are needed after the highest peak,
    /// instead of after the step's begin: what is needed first in a step then comes last, and
    /// takes no room from the end of the step before.
    from_peak: bool,
}

impl Way {
    pub(super) const FIRST: Way = Way { number: 0, as_seen: false, from_peak: false };
    /// For steps that wait for the link. By the times of a step in which nobody waits the link is
    /// free too late: what leaves then takes the room that copies back need, and copies run in one
    /// direction at a time.
    pub(super) const WHERE_LINK_IS_FULL: [Way; 2] = [
        Way { number: 1, as_seen: false, from_peak: false },
        Way { number: 3, as_seen: true, from_peak: false },
    ];

    /// Ways in turn: all as if nobody waited, and then for ever as it was seen.
    pub(super) fn number(number: usize) -> Way {
        let as_seen = number >= TRIES.len();
        Way { number: number % TRIES.len(), as_seen, from_peak: false }
    }

    pub(super) fn beginning_at_peak(self) -> Way {
        Way { from_peak: true, ..self }
    }
}

/// When each slot starts and when its op does, in microseconds from the step's start.
struct Timeline {
    slot_us: Vec<f64>,
    op_us: Vec<f64>,
    step_us: f64,
}

/// When copies to the host are issued.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Departure {
    /// Right after the last use.
    AtOnce,
    /// When the link is free for it, if there is room until then. Chunks whose copies wait in a
    /// queue would only be handed to allocations that then wait as well.
    WhenFree,
}

/// A swap-out that is to be placed.
struct Leave {
    choice: usize,
    /// The slot after which it is issued; that before the first for the step's start.
    issue: i64,
    /// The slot before whose op it is issued instead, if there is room until then. What is freed
    /// in between is then cached before it, and serves before it.
    before: Option<i64>,
    /// The slot by whose begin it should be done.
    due: i64,
}

/// A copy back that is to be placed.
struct Return {
    choice: usize,
    /// The slot that needs the block; those of the next step come after those of this one.
    to: i64,
    size_bytes: u64,
    copy_us: f64,
    /// How long before its deadline it must start.
    ahead_us: f64,
    /// The slot at whose begin it is issued.
    issue: i64,
}

pub(super) struct Placer<'a> {
    pub(super) trace: &'a Trace,
    pub(super) usage: &'a Usage,
    pub(super) machine: &'a Machine,
    /// Resident bytes to stay within.
    pub(super) room_bytes: u64,
    pub(super) selection: &'a Selection,
}

impl Placer<'_> {
    /// A placement. `seen` is a step with these choices, or ones much like them.
    pub(super) fn place(&self, seen: Option<&Simulation>, way: Way) -> Placement {
        // Where moves were left to demand, times depend on the order of touches.
        let seen = seen.filter(|seen| way.as_seen && seen.went_to_plan());
        let timeline = self.timeline(seen);
        let times = self.times(&timeline, way);
        let plan = plan_of(self.trace, self.usage, self.selection, &times);
        let simulation = simulate_with(self.trace, self.usage, &plan, self.machine);
        Placement { plan, simulation, times, way }
    }

    /// The first of the slots with the most bytes if everything is resident.
    fn peak_slot(&self) -> i64 {
        let need = need_curve(self.trace, self.usage);
        let highest = (0..need.len()).max_by_key(|&row| (need[row], Reverse(row)));
        highest.map_or(0, |row| i64::from(self.usage.row_slot[row]))
    }

    fn timeline(&self, simulation: Option<&Simulation>) -> Timeline {
        let mut timeline = Timeline { slot_us: Vec::new(), op_us: Vec::new(), step_us: 0.0 };
        let mut end_us = 0.0;
        for (op, slot_us) in self.usage.slots.iter().zip(&self.usage.slot_us) {
            timeline.slot_us.push(end_us);
            let span = simulation.map(|simulation| simulation.ops[op.0 as usize]);
            timeline.op_us.push(span.map_or(end_us, |span| span.start_us));
            end_us = span.map_or(end_us + slot_us, |span| span.end_us);
        }
        timeline.slot_us.push(end_us);
        timeline.op_us.push(end_us);
        timeline.step_us = end_us.max(1e-6);
        timeline
    }

    fn times(&self, timeline: &Timeline, way: Way) -> Vec<Times> {
        let (departure, lead) = TRIES[way.number];
        let mut curve = Curve::of(&self.selection.curve);
        let leaves = self.leaves(timeline, departure, &mut curve);
        let mut returns = self.returns();
        schedule(&mut returns, timeline, lead);
        if way.from_peak {
            let (slot_count, peak) = (self.usage.slot_count() as i64, self.peak_slot());
            returns.sort_by_key(|item| ((item.to - peak).rem_euclid(slot_count), item.choice));
        }
        self.find_room(&mut returns, timeline, &mut curve, &leaves);
        let mut times = vec![Times::default(); self.selection.choices.len()];
        for item in &returns {
            times[item.choice].back = item.issue;
        }
        for item in &leaves {
            let moment = item.before.map_or(Moment::end_of(item.issue), Moment::begin_of);
            (times[item.choice].leave, times[item.choice].due) = (moment, item.due);
        }
        times
    }

    fn choices(&self) -> impl Iterator<Item = (usize, &Choice)> {
        self.selection.choices.iter().enumerate().filter(|(_, choice)| choice.stands)
    }

    /// Sets when each block leaves: in the order in which they can, one copy after the other.
    fn leaves(&self, timeline: &Timeline, departure: Departure, curve: &mut Curve) -> Vec<Leave> {
        let slot_count = self.usage.slot_count() as i64;
        let mut leaves: Vec<Leave> = self
            .choices()
            .filter(|(_, choice)| choice.mode == Mode::Swap)
            .map(|(index, choice)| Leave {
                choice: index,
                issue: choice.gap.from,
                before: None,
                due: 0,
            })
            .collect();
        let gap = |leave: &Leave| self.selection.choices[leave.choice].gap;
        leaves.sort_by_key(|leave| (gap(leave).from, gap(leave).to, leave.choice));
        // The step's first copies queue behind those of the last step's end.
        let mut link_free_us = 0.0;
        for _ in 0..2 {
            for leave in &mut leaves {
                let gap = gap(leave);
                let size_bytes = self.trace.blocks[gap.block as usize].size_bytes;
                let ready_us = timeline.slot_us[(gap.from + 1) as usize];
                let start_us = ready_us.max(link_free_us);
                let copy_us = if gap.clean { 0.0 } else { self.machine.out_us(size_bytes) };
                link_free_us = start_us + copy_us;
                leave.issue = timeline.slot_at(start_us).max(gap.from + 1) - 1;
                leave.due = timeline.slot_at(link_free_us);
            }
            link_free_us = (link_free_us - timeline.step_us).max(0.0);
        }
        for leave in &mut leaves {
            let gap = gap(leave);
            let wish = match departure {
                Departure::AtOnce => gap.from,
                Departure::WhenFree => leave.issue.min(gap.to - 2),
            };
            // There is no op after which it could leave in the slot after the last one.
            let wish = wish - i64::from(wish % slot_count == slot_count - 1);
            leave.issue = gap.from;
            if gap.from >= 0 && wish > gap.from {
                let size_bytes = self.trace.blocks[gap.block as usize].size_bytes;
                leave.issue = self.stay_after(curve, gap.from, wish, size_bytes);
            }
            if gap.from >= 0 {
                leave.before = self.stay_until_begin(curve, leave.issue, &gap);
            }
        }
        leaves
    }

    /// Lets a block stay behind slot `from`, up to `wish` at most, as long as there is room.
    /// Returns the last slot that it stays for.
    fn stay_after(&self, curve: &mut Curve, from: i64, wish: i64, size_bytes: u64) -> i64 {
        let slot_count = self.usage.slot_count() as i64;
        let row = |slot: i64| self.unrolled_row(&self.usage.slot_row[..slot_count as usize], slot);
        let highest = self.highest_with(size_bytes);
        let start = row(from + 1);
        let (place, count) = self.range(start, row(wish + 1));
        let full = curve.first_above(place, count, highest);
        let mut last = full.map_or(wish, |index| {
            let full_from = start + index as i64;
            first_slot(from + 1, wish + 1, |slot| row(slot + 1) > full_from) - 1
        });
        last -= i64::from(last % slot_count == slot_count - 1);
        let (place, count) = self.range(start, row(last + 1));
        curve.add(place, count, size_bytes as i64);
        last
    }

    /// Lets a block stay until the op after slot `issue` begins, if there is room. Returns the slot
    /// of that op.
    fn stay_until_begin(&self, curve: &mut Curve, issue: i64, gap: &Gap) -> Option<i64> {
        let slot_count = self.usage.slot_count() as i64;
        let next = issue + 1;
        let before = next + i64::from(next % slot_count == slot_count - 1);
        // Where it is freed, it may be so before the op begins.
        if before >= gap.to - i64::from(!gap.returns) {
            return None;
        }
        let size_bytes = self.trace.blocks[gap.block as usize].size_bytes;
        let start = self.unrolled_row(&self.usage.slot_row[..slot_count as usize], next);
        let end = self.unrolled_row(&self.usage.begin_row, before);
        let (place, count) = self.range(start, end);
        if curve.first_above(place, count, self.highest_with(size_bytes)).is_some() {
            return None;
        }
        curve.add(place, count, size_bytes as i64);
        Some(before)
    }

    /// Lets a block come back before slot `to`, in `wish` at the earliest, as early as there is
    /// room from then on. Returns the slot. Both may lie in the next step.
    fn stay_before(&self, curve: &mut Curve, wish: i64, to: i64, size_bytes: u64) -> i64 {
        let highest = self.highest_with(size_bytes);
        let row = |slot: i64| self.unrolled_row(&self.usage.begin_row, slot);
        let (start, end) = (row(wish), row(to));
        let (place, count) = self.range(start, end);
        let full = curve.last_above(place, count, highest);
        let issue = full.map_or(wish, |index| {
            let free_from = start + index as i64 + 1;
            first_slot(wish, to, |slot| row(slot) >= free_from)
        });
        let (place, count) = self.range(row(issue), end);
        curve.add(place, count, size_bytes as i64);
        issue
    }

    /// The rows from `start` to `end`, which may go round the step's end, as the first one in the
    /// step and their number.
    fn range(&self, start: i64, end: i64) -> (usize, usize) {
        (start.rem_euclid(self.usage.row_slot.len() as i64) as usize, (end - start) as usize)
    }

    /// The most that a row may hold for a block to fit beside it.
    fn highest_with(&self, size_bytes: u64) -> i64 {
        self.room_bytes.min(i64::MAX as u64) as i64 - size_bytes as i64
    }

    /// A slot's row by a table of them, counted on through the steps.
    fn unrolled_row(&self, rows: &[u32], slot: i64) -> i64 {
        let slot_count = rows.len() as i64;
        let row = rows[slot.rem_euclid(slot_count) as usize];
        i64::from(row) + slot.div_euclid(slot_count) * self.usage.row_slot.len() as i64
    }

    /// Copies back, by deadline within the step.
    fn returns(&self) -> Vec<Return> {
        let slot_count = self.usage.slot_count() as i64;
        let mut returns: Vec<Return> = self
            .choices()
            .filter(|(_, choice)| choice.mode == Mode::Swap && choice.gap.returns)
            .map(|(index, choice)| {
                let size_bytes = self.trace.blocks[choice.gap.block as usize].size_bytes;
                Return {
                    choice: index,
                    to: choice.gap.to,
                    size_bytes,
                    copy_us: self.machine.in_us(size_bytes),
                    ahead_us: 0.0,
                    issue: choice.gap.to,
                }
            })
            .collect();
        returns.sort_by_key(|item| (item.to % slot_count, item.choice));
        returns
    }

    /// Sets the slot in which each copy back is issued: not before there is room for it from
    /// then on.
    fn find_room(
        &self,
        returns: &mut [Return],
        timeline: &Timeline,
        curve: &mut Curve,
        leaves: &[Leave],
    ) {
        let slot_count = self.usage.slot_count() as i64;
        let mut left = vec![0; self.selection.choices.len()];
        for leave in leaves {
            left[leave.choice] = leave.before.unwrap_or(leave.issue);
        }
        for item in returns {
            let wish = timeline.slot_before(item.to, item.ahead_us);
            let wish = wish.clamp(left[item.choice] + 1, item.to);
            let mut issue = self.stay_before(curve, wish, item.to, item.size_bytes);
            // Nothing can be issued after the last op; the next step's first one is as good.
            if issue % slot_count == slot_count - 1 {
                issue += 1;
            }
            item.issue = issue;
        }
    }
}

/// The first slot from `low` on that is good, if all after a good one are; `high` if none is.
fn first_slot(mut low: i64, mut high: i64, good: impl Fn(i64) -> bool) -> i64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if good(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Gives each copy back a start such that all end in time, the latest ones first, going round the
/// step twice because the first copies of a step may have to start in the one before it.
fn schedule(returns: &mut [Return], timeline: &Timeline, lead: f64) {
    let mut link_free_us = f64::INFINITY;
    for _ in 0..2 {
        link_free_us += timeline.step_us;
        for item in returns.iter_mut().rev() {
            let slot = (item.to as usize) % timeline.slot_us.len();
            let deadline_us = timeline.op_us[slot];
            link_free_us = link_free_us.min(deadline_us) - item.copy_us;
            item.ahead_us = (deadline_us - link_free_us) + (lead - 1.0) * item.copy_us;
        }
    }
}

impl Timeline {
    /// The last slot that starts at least `ahead_us` before the op of slot `to` does.
    fn slot_before(&self, to: i64, ahead_us: f64) -> i64 {
        if ahead_us.is_infinite() {
            return i64::MIN / 2;
        }
        let slot_count = self.slot_us.len() as i64;
        let time_us = self.op_us[(to % slot_count) as usize] - ahead_us;
        to - to % slot_count + self.slot_at(time_us)
    }

    /// The slot under way at a time, which may lie in a step before or after this one. An op that
    /// waited for a copy begins when that is done, whatever rounding makes of both.
    fn slot_at(&self, time_us: f64) -> i64 {
        let time_us = time_us + ROUNDING_US;
        let steps = (time_us / self.step_us).floor();
        let rest_us = time_us - steps * self.step_us;
        let slot = self.slot_us.partition_point(|&start_us| start_us <= rest_us) as i64 - 1;
        let steps = steps.clamp(-STEPS_MAX, STEPS_MAX) as i64;
        slot.max(0) + steps * self.slot_us.len() as i64
    }
}
