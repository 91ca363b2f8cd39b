//! A lower bound on the time that any plan adds to a step.
//!
//! While an op runs, the bytes above the limit must be away. Those that are needed again must come
//! back after it, and those that change must have left before it; the link has a rate. Blocks may
//! be dropped instead, for the time of a replay. Two arguments follow from that:
//!
//! 1. Between such an op and some later or earlier slot there is a *window* in which so many bytes
//!    must be carried, however long the step takes without a plan (`window.rs`). What one window
//!    lacks adds up with what others lack, as long as they do not overlap (`pack.rs`). Copies the
//!    other way slow those of a window (`duplex.rs`), and dropping blocks saves link time for
//!    replay time (`replays.rs`). As blocks move whole, windows know which sums they come to. A
//!    copy lies between two uses of its block, so what is copied early makes others wait
//!    (`late.rs`).
//! 2. All peaks together, with all blocks between them, are a linear program if blocks may be split
//!    at will. Any prices of memory and of link time give a bound (`market.rs`). The best windows
//!    say where the step is cut and which prices to begin with; from there they climb
//!    (`ascent.rs`). So blocks count that pass the link more than once.
//!
//! Windows for the limit itself are found in little time: a search stops where it meets them. What
//! is reported is the best of both arguments, found for some limits that do not depend on the one
//! asked for, so that more memory never makes it higher (`ladder.rs`).
//!
//! Where a step waits for its host, waits for copies can hide in that (`idle.rs`).
//!
//! It is a bound for steps that are steady and to plan: each begins as the one before did.

use swap_core::Trace;

mod ascent;
mod claim;
mod duplex;
mod flow;
mod forced;
mod idle;
mod ladder;
mod late;
mod lives;
mod market;
mod pack;
mod pieces;
mod replays;
mod start;
mod sums;
mod window;

use duplex::{Task, with_company};
use forced::forced_bytes;
use idle::Idle;
use pack::pack;
use pieces::highest_slots;
use replays::Replays;
use window::{Found, Peak, Window, Windows};

use crate::generate::RecomputeOption;
use crate::machine::Machine;
use crate::usage::Usage;

/// When windows are chosen, blocks whose replay takes less than this share of their copy's time
/// are taken to be made again. Each share gives another choice; the best of them is the bound.
const REPLAY_SHARES: [f64; 8] = [0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0];

/// With more gaps than this, only every third choice is looked at.
const GAPS_MAX: usize = 10_000;

/// Gaps looked at for all windows together, at most, where they are the bound of a search.
const LOOKS_MAX: usize = 200_000;

/// Peaks looked at between others at once, to find a window that says more.
const NEARER: usize = 8;

/// Peaks looked at, at least.
const PEAKS_MIN: usize = 8;

/// What the windows of a step lack, in microseconds: no plan adds less. In a little more memory it
/// can be a little more, as it is the best of what was looked at.
pub(crate) fn windows_us(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    options: &[RecomputeOption],
) -> f64 {
    let Some(bound) = Bound::new(trace, usage, machine, options) else { return 0.0 };
    let excess_bytes = bound.excess_bytes(machine.limit_bytes);
    let all = bound.choices(&excess_bytes, LOOKS_MAX);
    all.iter().map(Choice::adds_us).fold(0.0, f64::max)
}

/// The most that is known to be added by any plan, in microseconds. More memory never makes it
/// higher.
pub(crate) fn bound_us(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    options: &[RecomputeOption],
) -> f64 {
    let bound = Bound::new(trace, usage, machine, options);
    bound.map_or(0.0, |bound| bound.of_ladder(machine.limit_bytes))
}

/// What a bound is made of, for any limit.
struct Bound<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &'a Machine,
    /// By slot: bytes on the device or in a gap while its op runs.
    forced_bytes: Vec<u64>,
    windows: Windows<'a>,
    replays: Replays,
    idle: Idle,
}

/// Windows apart from each other.
struct Choice {
    tasks: Vec<Task>,
    /// By task: how much it counts.
    weights: Vec<f64>,
    /// What they lack if blocks are made again where that helps most.
    lacks_us: f64,
    /// How much of that can hide where the step waits for its host.
    idle_us: f64,
}

/// Where a window is looked for that says more than the best of those found.
struct Nearer<'a> {
    excess_bytes: &'a [u64],
    /// The peaks that were looked at, in order.
    slots: &'a [usize],
    dropped_from: &'a [u8],
}

impl Choice {
    /// What any plan adds at least, in microseconds, if that is above 0.
    fn adds_us(&self) -> f64 {
        self.lacks_us - self.idle_us
    }
}

impl<'a> Bound<'a> {
    /// Nothing if everything fits.
    fn new(
        trace: &'a Trace,
        usage: &'a Usage,
        machine: &'a Machine,
        options: &[RecomputeOption],
    ) -> Option<Bound<'a>> {
        let forced_bytes = forced_bytes(trace, usage);
        if forced_bytes.iter().all(|&bytes| bytes <= machine.limit_bytes) {
            return None;
        }
        let windows = Windows::new(trace, usage, machine);
        let replays = Replays::new(trace, usage, options, &windows.gaps);
        let idle = Idle::new(trace, usage);
        Some(Bound { trace, usage, machine, forced_bytes, windows, replays, idle })
    }

    /// By slot: bytes that must be away while its op runs.
    fn excess_bytes(&self, limit_bytes: u64) -> Vec<u64> {
        self.forced_bytes.iter().map(|bytes| bytes.saturating_sub(limit_bytes)).collect()
    }

    /// For each way to choose what is made again: the window of which least can hide, and the best
    /// windows together.
    fn choices(&self, excess_bytes: &[u64], looks_max: usize) -> Vec<Choice> {
        let Bound { usage, machine, ref windows, ref replays, .. } = *self;
        let shares = if replays.is_empty() { &REPLAY_SHARES[..1] } else { &REPLAY_SHARES };
        let apart = if windows.gaps.len() > GAPS_MAX { 3 } else { 1 };
        let shares: Vec<f64> = shares.iter().step_by(apart).copied().collect();
        let peaks_max = (looks_max / windows.gaps.len().max(1)).max(PEAKS_MIN);
        let slots = highest_slots(excess_bytes, &windows.turns, peaks_max);
        let dropped_from = replays.cheaper_from(&shares, machine);
        let found = self.found(excess_bytes, &slots, &dropped_from, shares.len());
        let mut choices = Vec::new();
        for (way, Found { lacking, laden }) in found.into_iter().enumerate() {
            if let Some(window) = self.clearest(&lacking) {
                let nearer = Nearer { excess_bytes, slots: &slots, dropped_from: &dropped_from };
                choices.push(self.choice(vec![Task::alone(self.nearer(window, way, nearer))]));
            }
            let chosen = pack(lacking, usage.slot_count());
            choices.push(self.choice(with_company(chosen, &laden, windows, machine)));
        }
        choices
    }

    fn found(
        &self,
        excess_bytes: &[u64],
        slots: &[usize],
        dropped_from: &[u8],
        ways: usize,
    ) -> Vec<Found> {
        let peak = |&slot: &usize| Peak { slot, excess_bytes: excess_bytes[slot] };
        let peaks: Vec<Peak> = slots.iter().map(peak).collect();
        self.windows.all(&peaks, dropped_from, ways)
    }

    /// The window that lacks most beyond what can hide.
    fn clearest(&self, lacking: &[Window]) -> Option<Window> {
        let beyond_us = |window: &Window| self.idle.beyond_us(window, &self.windows, &self.replays);
        let worth = lacking.iter().map(|window| (beyond_us(window), *window));
        worth.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, window)| window)
    }

    /// A window with a peak near that of another one that lacks more, or that one.
    fn nearer(&self, window: Window, way: usize, at: Nearer<'_>) -> Window {
        let place = at.slots.partition_point(|&slot| slot < window.peak);
        let mut low = place.checked_sub(1).map_or(0, |before| at.slots[before] + 1);
        let mut end = at.slots.get(place + 1).copied().unwrap_or(at.excess_bytes.len());
        let mut best = window;
        loop {
            let apart = (end - low).div_ceil(NEARER);
            let slots: Vec<usize> = (low..end).step_by(apart).collect();
            let found = self.found(at.excess_bytes, &slots, at.dropped_from, way + 1);
            let all: Vec<Window> = found[way].lacking.iter().copied().chain([best]).collect();
            best = self.clearest(&all).unwrap_or(best);
            if apart == 1 {
                return best;
            }
            low = low.max((best.peak + 1).saturating_sub(apart));
            end = end.min(best.peak + apart);
        }
    }

    fn choice(&self, tasks: Vec<Task>) -> Choice {
        let (lacks_us, weights) = self.replays.least_us(&self.windows, &tasks);
        let idle_us = self.idle.near_us(&tasks, &self.windows, &self.replays);
        Choice { tasks, weights, lacks_us, idle_us }
    }
}
