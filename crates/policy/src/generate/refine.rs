//! A last search: single moves of the best plan, each simulated, and kept if the step gets shorter.
//!
//! The search before it chooses by what blocks cost when it looks at them, and places all copies by
//! one rule. What a plan then waits for is often one copy that is called too early or too late, or
//! one block that need not move at all: that shows in the simulated step alone.

use std::mem;

use swap_core::devices::Numbers;
use swap_core::{ActionKind, BlockIndex};

use super::RecomputeOption;
use super::choose::{Chooser, Made};
use super::moves::any;
use super::order::{Moment, Times, plan_of};
use super::place::Placement;
use super::select::{Choice, Mode, gap_recipe, movable_gaps};
use super::waits::Wait;
use crate::candidate::Gap;
use crate::simulate::{Simulation, simulate_if_faster, steps_us};

/// Where the search for moves starts from. Any number does; it is fixed so that plans are.
const SEED: u64 = 7;
/// Events of all simulated steps for each round of the search before, about.
const EVENTS: usize = 320_000;
/// With fewer steps than this nothing much is found.
const STEPS_MIN: usize = 80;
/// Lines of moves that begin with the same plan; the best of them goes on.
const LINES: usize = 3;
/// So many moves may turn out to be none, for each that is simulated.
const IDLE_MOVES: usize = 8;
/// A copy is called earlier or later by up to two to the power of this, in slots or half slots.
const FAR_MAX: u64 = 7;
/// Steps in a row in which a plan must be as fast: one that lives on credit from the step before
/// is no plan.
const STEPS: usize = 8;
/// Rounding of times, as a share.
const ROUNDING: f64 = 1e-9;

/// Tries single moves.
pub(super) struct Refiner<'a> {
    chooser: Chooser<'a>,
    /// What could be moved.
    gaps: Vec<Gap>,
    /// What may be made again, by block.
    options: &'a [RecomputeOption],
    slot_count: i64,
    /// Moves tried so far, idle ones included.
    moves: u64,
}

/// A change of one choice. A gap that is to be used is a choice that does not stand yet.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The block stays.
    Stay,
    /// It is called back at another slot.
    Back(i64),
    /// It leaves at another moment.
    Leave(Moment),
    /// It is dropped and made again.
    Recompute,
    /// It is copied to the host and back.
    Swap,
}

impl<'a> Refiner<'a> {
    /// Whoever has another number tries other moves.
    pub(super) fn new(
        chooser: Chooser<'a>,
        options: &'a [RecomputeOption],
        number: u64,
    ) -> Refiner<'a> {
        let Chooser { trace, usage, config, .. } = chooser;
        let gaps = movable_gaps(trace, usage, config);
        let slot_count = usage.slot_count() as i64;
        Refiner { chooser, gaps, options, slot_count, moves: number << 32 }
    }

    /// Moves one block after the other after so many rounds of search. Stops where the step is as
    /// short as `least_us`.
    pub(super) fn run(&mut self, made: &mut Made<'a>, rounds: usize, least_us: f64) {
        let tries = rounds * EVENTS / self.chooser.trace.events.len().max(1);
        if tries < STEPS_MIN || !made.sure_us().is_finite() {
            return;
        }
        // Which moves come first decides where a line of them ends, so there are some.
        let share = tries / (LINES + 1);
        let base = made.clone();
        for _ in 0..LINES {
            let mut line = base.clone();
            self.follow(&mut line, share, least_us);
            if line.sure_us() < made.sure_us() {
                *made = line;
            }
        }
        self.follow(made, tries - LINES * share, least_us);
    }

    /// Tries so many moves one after the other.
    fn follow(&mut self, made: &mut Made<'a>, tries: usize, least_us: f64) {
        let mut tried = 0;
        for _ in 0..IDLE_MOVES * tries {
            if tried == tries || made.sure_us() <= least_us {
                break;
            }
            self.moves += 1;
            if let Some((place, step)) = self.pick(made) {
                tried += usize::from(self.attempt(made, place, step));
            }
        }
    }

    /// The next move. A gap that is to be used is put behind the choices, and does not stand yet.
    fn pick(&self, made: &mut Made<'a>) -> Option<(usize, Step)> {
        let mut numbers = Numbers::new(SEED + self.moves);
        let choices = &mut made.selection.choices;
        let kind = numbers.below(10);
        if kind == 0 && !self.gaps.is_empty() {
            let gap = *any(&self.gaps, &mut numbers);
            choices.push(Choice { gap, mode: Mode::Swap, added_us: 0.0, stands: false });
            made.placement.times.push(Times::default());
            return Some((made.selection.choices.len() - 1, Step::Swap));
        }
        let place = self.place(made, &mut numbers)?;
        let (choice, times) = (&made.selection.choices[place], &made.placement.times[place]);
        let far = 1 << numbers.below(FAR_MAX);
        let far = if numbers.below(2) == 0 { far } else { -far };
        let step = match (choice.mode, kind) {
            (_, 1) => Step::Stay,
            (Mode::Recompute, _) => Step::Swap,
            (Mode::Swap, 2) => Step::Recompute,
            (Mode::Swap, 3..=6) if choice.gap.returns => Step::Back(times.back + far),
            _ => Step::Leave(times.leave.moved(far)),
        };
        Some((place, step))
    }

    /// Some choice that stands: every other time one for whose copy the step waits, or that is
    /// copied just before.
    fn place(&self, made: &Made<'a>, numbers: &mut Numbers) -> Option<usize> {
        let choices = &made.selection.choices;
        if choices.is_empty() {
            return None;
        }
        let mut place = numbers.below(choices.len() as u64) as usize;
        if numbers.below(2) == 0
            && let Some(wait) = Wait::any(made, numbers)
        {
            let block = *any(wait.blocks(), numbers);
            let own = |choice: &Choice| choice.gap.block == block || choice.gap.again == block;
            let mut round = (place..choices.len()).chain(0..place);
            place = round.find(|&at| choices[at].stands && own(&choices[at]))?;
        }
        choices[place].stands.then_some(place)
    }

    /// Makes one change, and takes it back unless the step gets shorter. Says whether it was
    /// simulated.
    fn attempt(&self, made: &mut Made<'a>, place: usize, step: Step) -> bool {
        let Chooser { trace, usage, machine, .. } = self.chooser;
        let before = (made.selection.choices[place], made.placement.times[place]);
        let changed = self.changed(made, place, step);
        let mut is_kept = false;
        if let Some((choice, times)) = changed {
            made.selection.choices[place] = choice;
            made.placement.times[place] = times;
            let plan = plan_of(trace, usage, &made.selection, &made.placement.times);
            let than_us = made.placement.simulation.step_us;
            if let Some(simulation) = simulate_if_faster(trace, usage, &plan, machine, than_us) {
                let times = mem::take(&mut made.placement.times);
                let next = Placement { plan, simulation, times, way: made.placement.way };
                let last = mem::replace(&mut made.placement, next);
                is_kept = self.is_better(made, &last.simulation);
                if !is_kept {
                    let times = mem::take(&mut made.placement.times);
                    made.placement = Placement { times, ..last };
                }
            }
        }
        if !is_kept {
            (made.selection.choices[place], made.placement.times[place]) = before;
            // A gap that was to be used is not.
            if !before.0.stands {
                made.selection.choices.pop();
                made.placement.times.pop();
            }
        }
        changed.is_some()
    }

    /// Whether a choice is better than one with this step, in every step from the second on.
    fn is_better(&self, made: &Made<'a>, last: &Simulation) -> bool {
        let Chooser { trace, usage, machine, config, .. } = self.chooser;
        let Placement { plan, simulation, .. } = &made.placement;
        let room_bytes = machine.limit_bytes.saturating_sub(config.reserve_bytes);
        let keeps_reserve =
            simulation.resident_bytes_peak <= room_bytes.max(last.resident_bytes_peak);
        let most_us = simulation.step_us * (1.0 + ROUNDING);
        let lasts = || {
            let steps_us = steps_us(trace, usage, plan, machine, STEPS);
            steps_us.len() == STEPS && steps_us[1..].iter().all(|&us| us <= most_us)
        };
        let keeps_swaps = || swapped_bytes(made) <= config.swap_bytes_max;
        let is_shorter = made.sure_us() < last.step_us;
        is_shorter && keeps_reserve && keeps_swaps() && replays_all(made) && lasts()
    }

    /// A choice after a change; nothing if it cannot be so.
    fn changed(&self, made: &Made<'a>, place: usize, step: Step) -> Option<(Choice, Times)> {
        let choices = &made.selection.choices;
        let (mut choice, mut times) = (choices[place], made.placement.times[place]);
        match step {
            Step::Stay => return Some((Choice { stands: false, ..choice }, times)),
            Step::Back(back) => times.back = back,
            Step::Leave(leave) => times.leave = leave,
            Step::Recompute => choice.mode = Mode::Recompute,
            Step::Swap => {
                choice.mode = Mode::Swap;
                choice.gap.early = false;
                times = self.latest(&choice.gap);
            }
        }
        if !choice.stands {
            let meets = |other: &Choice| other.stands && self.meet(&other.gap, &choice.gap);
            if choices.iter().any(meets) {
                return None;
            }
            choice.stands = true;
        }
        let is_sound = match choice.mode {
            Mode::Swap => self.can_swap(&choice.gap, &times),
            Mode::Recompute => self.can_recompute(&choice.gap),
        };
        is_sound.then_some((choice, times))
    }

    /// A swap that leaves at once and comes back at the last moment.
    fn latest(&self, gap: &Gap) -> Times {
        let leave = Moment::end_of(gap.from);
        Times { leave, due: gap.from + 1, back: self.last_back(gap) }
    }

    /// The last slot at whose begin a block can be called back.
    fn last_back(&self, gap: &Gap) -> i64 {
        // Nothing can be issued after the last op; the next step's first one is as good.
        gap.to + i64::from(self.has_no_op(gap.to))
    }

    fn has_no_op(&self, slot: i64) -> bool {
        slot.rem_euclid(self.slot_count) == self.slot_count - 1
    }

    fn can_swap(&self, gap: &Gap, times: &Times) -> bool {
        let leave = times.leave;
        let end = if gap.returns { times.back } else { gap.to - 1 };
        let leaves_in_gap = leave >= Moment::end_of(gap.from)
            && leave.slot() < end
            && (gap.from >= 0 || leave == Moment::end_of(gap.from))
            && (gap.from < 0 || !self.has_no_op(leave.slot()));
        let is_back = times.back <= self.last_back(gap) && !self.has_no_op(times.back);
        gap.to - gap.from >= 2 && leaves_in_gap && (!gap.returns || is_back)
    }

    fn can_recompute(&self, gap: &Gap) -> bool {
        let own = self.options.binary_search_by_key(&gap.block, |option| option.block.0);
        let is_within = gap.from >= 0 && gap.to < self.slot_count - 1;
        own.is_ok() && is_within && gap_recipe(self.chooser.usage, gap).is_some()
    }

    /// Whether a block would be away twice at once.
    fn meet(&self, one: &Gap, other: &Gap) -> bool {
        let meets = |one: &Gap, other: &Gap, shift: i64| {
            one.from < other.to + shift && other.from + shift < one.to
        };
        let follows = |one: &Gap, other: &Gap| {
            one.block == other.again
                && other.to >= self.slot_count
                && meets(one, other, -self.slot_count)
        };
        one.block == other.block && meets(one, other, 0)
            || follows(one, other)
            || follows(other, one)
    }
}

/// Bytes that leave by swaps, those that the host has already included.
fn swapped_bytes(made: &Made<'_>) -> u64 {
    let choices = made.selection.choices.iter();
    let swaps = choices.filter(|choice| choice.stands && choice.mode == Mode::Swap);
    swaps.map(|choice| made.chooser.trace.blocks[choice.gap.block as usize].size_bytes).sum()
}

/// Whether each block that a plan makes again was dropped before.
fn replays_all(made: &Made<'_>) -> bool {
    let Placement { plan, simulation, .. } = &made.placement;
    let replays = plan.actions.iter().filter(|action| action.kind == ActionKind::Replay);
    let mut asked: Vec<BlockIndex> = replays.map(|action| action.block).collect();
    let mut done: Vec<BlockIndex> = simulation.replays.iter().map(|replay| replay.block).collect();
    asked.sort_unstable();
    done.sort_unstable();
    let mut done = done.into_iter();
    // Both are in order, so each finds its own behind the one before.
    asked.iter().all(|block| done.any(|other| other == *block))
}
