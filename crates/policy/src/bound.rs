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
//! It is a bound for steps that are steady and to plan: each begins as the one before did.

use swap_core::Trace;

mod ascent;
mod claim;
mod duplex;
mod flow;
mod forced;
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
use pack::pack;
use pieces::highest_slots;
use replays::Replays;
use window::{Found, Peak, Windows};

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
    all.into_iter().fold(0.0, |most_us, choice| choice.lacks_us.max(most_us))
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
}

/// Windows apart from each other.
struct Choice {
    tasks: Vec<Task>,
    /// By task: how much it counts.
    weights: Vec<f64>,
    /// What they lack if blocks are made again where that helps most.
    lacks_us: f64,
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
        Some(Bound { trace, usage, machine, forced_bytes, windows, replays })
    }

    /// By slot: bytes that must be away while its op runs.
    fn excess_bytes(&self, limit_bytes: u64) -> Vec<u64> {
        self.forced_bytes.iter().map(|bytes| bytes.saturating_sub(limit_bytes)).collect()
    }

    /// The best windows, one choice for each way to choose what is made again.
    fn choices(&self, excess_bytes: &[u64], looks_max: usize) -> Vec<Choice> {
        let Bound { usage, machine, ref windows, ref replays, .. } = *self;
        let shares = if replays.is_empty() { &REPLAY_SHARES[..1] } else { &REPLAY_SHARES };
        let apart = if windows.gaps.len() > GAPS_MAX { 3 } else { 1 };
        let shares: Vec<f64> = shares.iter().step_by(apart).copied().collect();
        let peaks_max = (looks_max / windows.gaps.len().max(1)).max(PEAKS_MIN);
        let slots = highest_slots(excess_bytes, peaks_max).into_iter();
        let peaks: Vec<Peak> =
            slots.map(|slot| Peak { slot, excess_bytes: excess_bytes[slot] }).collect();
        let dropped_from = replays.cheaper_from(&shares, machine);
        let found = windows.all(&peaks, &dropped_from, shares.len()).into_iter();
        found
            .map(|Found { lacking, laden }| {
                let chosen = pack(lacking, usage.slot_count());
                let tasks = with_company(chosen, &laden, windows, machine);
                let (lacks_us, weights) = replays.least_us(windows, &tasks);
                Choice { tasks, weights, lacks_us }
            })
            .collect()
    }
}
