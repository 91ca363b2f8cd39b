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
//!    replay time (`replays.rs`). As blocks move whole, windows know which sums they come to.
//! 2. All peaks together, with all blocks between them, are a linear program if blocks may be split
//!    at will. Any prices of memory and of link time give a bound (`market.rs`). The best windows
//!    say where the step is cut and which prices to begin with; from there they climb
//!    (`ascent.rs`). So blocks count that pass the link more than once.
//!
//! The bound is the higher of both. It is one for steps that are steady and to plan: each begins as
//! the one before did, and nobody waits for memory that the simulator counts as free although it is
//! still being copied, as a chunk that is given back for a smaller one.

use swap_core::{Direction, Trace};

mod ascent;
mod duplex;
mod flow;
mod forced;
mod lives;
mod market;
mod pack;
mod pieces;
mod replays;
mod sums;
mod window;

use ascent::{ascend, refine};
use duplex::{Task, with_company};
use forced::forced_bytes;
use lives::{Life, lives};
use market::{Market, Prices};
use pack::pack;
use pieces::{Pieces, highest_slots};
use replays::Replays;
use window::{Found, Window, Windows};

use crate::generate::RecomputeOption;
use crate::machine::Machine;
use crate::usage::Usage;

/// When windows are chosen, blocks whose replay takes less than this share of their copy's time
/// are taken to be made again. Each share gives another choice; the best of them is the bound.
const REPLAY_SHARES: [f64; 8] = [0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0];

/// With more gaps than this, only every third choice is looked at.
const GAPS_MAX: usize = 10_000;

/// What link time costs in windows when prices begin to climb; the best of these is taken.
const WEIGHTS: [f64; 5] = [0.05, 0.2, 0.4, 0.7, 1.0];

/// At how many peaks a step is cut beside the ends of windows, one climb after the other.
const CUTS: [usize; 2] = [8, 16];

/// The heats from which prices climb, one after the other.
const HEATS: [f64; 3] = [0.02, 0.004, 0.001];

/// Tries of each, at least and at most.
const TRIES: [usize; 2] = [20, 200];

/// Pieces of blocks' lives looked at by all tries of a climb together, about.
const LOOKS: usize = 600_000;

/// The least time that a plan adds, in microseconds.
pub(crate) fn bound_us(
    trace: &Trace,
    usage: &Usage,
    machine: &Machine,
    options: &[RecomputeOption],
) -> f64 {
    let mut excess_bytes = forced_bytes(trace, usage);
    for bytes in &mut excess_bytes {
        *bytes = bytes.saturating_sub(machine.limit_bytes);
    }
    if excess_bytes.iter().all(|&bytes| bytes == 0) {
        return 0.0;
    }
    let windows = Windows::new(trace, usage, machine, &excess_bytes);
    let replays = Replays::new(trace, usage, options, &windows.gaps);
    let bound = Bound { trace, usage, machine, excess_bytes, windows, replays };
    let (windows_us, tasks) = bound.best_windows();
    bound.climb(bound.start(&tasks), windows_us)
}

/// What a bound is made of.
struct Bound<'a> {
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &'a Machine,
    /// By slot: bytes that must be away while its op runs.
    excess_bytes: Vec<u64>,
    windows: Windows<'a>,
    replays: Replays,
}

/// A step cut somewhere, and prices for it.
struct Priced {
    pieces: Pieces,
    prices: Prices,
}

impl Bound<'_> {
    /// The most that windows lack, and what they are.
    fn best_windows(&self) -> (f64, Vec<Task>) {
        let Bound { usage, machine, ref windows, ref replays, .. } = *self;
        let shares = if replays.is_empty() { &REPLAY_SHARES[..1] } else { &REPLAY_SHARES };
        let apart = if windows.gaps.len() > GAPS_MAX { 3 } else { 1 };
        let mut best = (0.0, Vec::new());
        for &share in shares.iter().step_by(apart) {
            let dropped = replays.cheaper_than(share, machine);
            let Found { lacking, laden } = windows.all(&dropped);
            let chosen = pack(lacking, usage.slot_count());
            let tasks = with_company(chosen, &laden, windows, machine);
            let us = replays.least_us(windows, &tasks);
            if us > best.0 {
                best = (us, tasks);
            }
        }
        best
    }

    /// The bound of prices that climb from a start, or what is known before if that is more.
    fn climb(&self, mut best: Priced, known_us: f64) -> f64 {
        let mut best_us = known_us;
        for count in CUTS {
            let own = best.pieces.cuts.iter().map(|cut| cut.slot);
            let pieces = self.cut(own.chain(highest_slots(&self.excess_bytes, count)).collect());
            let mut prices = refine(&best.pieces, &best.prices, &pieces);
            let lives = self.lives(&pieces);
            let market = Market::new(&pieces, &lives, self.machine);
            let looks: usize = lives.iter().map(|life| life.stages(pieces.count()).count()).sum();
            let tries = LOOKS / HEATS.len() / looks.max(1);
            let mut climbed_us = 0.0;
            for heat in HEATS {
                let tries = tries.clamp(TRIES[0], TRIES[1]);
                (climbed_us, prices) = ascend(&market, prices, heat, tries);
            }
            if climbed_us <= best_us {
                break;
            }
            best_us = climbed_us;
            best = Priced { pieces, prices };
        }
        best_us
    }

    /// The step cut at some slots.
    fn cut(&self, slots: Vec<usize>) -> Pieces {
        let whole = |slot: usize| self.windows.whole_bytes(slot, self.excess_bytes[slot]);
        Pieces::new(self.trace, self.usage, whole, slots)
    }

    fn lives(&self, pieces: &Pieces) -> Vec<Life> {
        let replays_us = self.replays.us_by_gap();
        lives(self.trace, self.usage, &self.windows.gaps, &replays_us, pieces)
    }

    /// The step cut at the ends of windows. Link time has a price in them, and none outside; memory
    /// has that of the link where they begin or end.
    fn start(&self, tasks: &[Task]) -> Priced {
        let windows = tasks.iter().flat_map(|task| task.beside.iter().chain([&task.window]));
        let mut slots: Vec<usize> = windows.flat_map(|window| self.ends(window)).collect();
        slots.extend(highest_slots(&self.excess_bytes, 1));
        let pieces = self.cut(slots);
        let mut whole = Prices::none(&pieces);
        for Task { window, .. } in tasks {
            let [from, to] = self.ends(window).map(|slot| pieces.cut_at(slot).0);
            let way = usize::from(window.direction == Direction::In);
            let mut piece = 2 * from + 1;
            while piece != 2 * to {
                whole.link[way][piece] = 1.0;
                piece = (piece + 1) % pieces.count();
            }
            let price = window.us_per_byte() * self.machine.link.in_bytes_per_us;
            whole.memory[2 * pieces.cut_at(window.peak).0 + way] += price;
        }
        let lives = self.lives(&pieces);
        let market = Market::new(&pieces, &lives, self.machine);
        let weighted = WEIGHTS.map(|weight| {
            let prices = whole.weighted(weight);
            (market.least_us(&prices), prices)
        });
        let best = weighted.into_iter().max_by(|one, other| one.0.total_cmp(&other.0));
        let (_, prices) = best.expect("there are weights");
        Priced { pieces, prices }
    }

    /// The slots before a window begins and where it ends.
    fn ends(&self, window: &Window) -> [usize; 2] {
        let count = self.usage.slot_count();
        [(window.start + count - 1) % count, (window.start + window.slots) % count]
    }
}
