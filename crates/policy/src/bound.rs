//! A lower bound on the time that any plan adds to a step.
//!
//! While an op runs, the bytes above the limit must be away. Those that are needed again must come
//! back after it, and those that change must have left before it; the link has a rate. So between
//! such an op and some later or earlier slot there is a *window* in which so many bytes must be
//! carried, however long the step takes without a plan. What one window lacks adds up with what
//! others lack, as long as they do not overlap. Copies the other way slow those of a window, and
//! dropping blocks saves link time for replay time.

use swap_core::Trace;

mod duplex;
mod forced;
mod pack;
mod replays;
mod window;

use duplex::with_company;
use forced::forced_bytes;
use pack::pack;
use replays::Replays;
use window::{Found, Windows};

use crate::generate::RecomputeOption;
use crate::machine::Machine;
use crate::usage::Usage;

/// When windows are chosen, blocks whose replay takes less than this share of their copy's time
/// are taken to be made again. Each share gives another choice; the best of them is the bound.
const REPLAY_SHARES: [f64; 8] = [0.0, 0.03, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0];

/// With more gaps than this, only every third choice is looked at.
const GAPS_MAX: usize = 10_000;

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
    let shares = if replays.is_empty() { &REPLAY_SHARES[..1] } else { &REPLAY_SHARES };
    let apart = if windows.gaps.len() > GAPS_MAX { 3 } else { 1 };
    let mut bound_us: f64 = 0.0;
    for &share in shares.iter().step_by(apart) {
        let dropped = replays.cheaper_than(share, machine);
        let Found { lacking, laden } = windows.all(&dropped);
        let chosen = pack(lacking, usage.slot_count());
        let chosen = with_company(chosen, &laden, &windows, machine);
        let us = replays.least_us(&windows, &chosen);
        bound_us = bound_us.max(us);
    }
    bound_us
}
