//! What copies of the other direction take of a window: while both directions run, each is slower.
//!
//! ```text
//!   in   ├──────── window ────────┤     lacks time for its own bytes, and for a share of the
//!   out     ├─ beside ─┤  ├ beside ┤     time that those beside it take
//! ```
//!
//! Let one direction take `a` and the other `b` to move its bytes alone, and let their rates fall
//! to shares `p` and `q` while both run. Alone the first then runs for `a - p t` and the other for
//! `b - q t`, and both for `t`. So `a + b (1 - p) / q` is the time in which the first runs, and a
//! share of that in which only the other does: with a share of at most 1, no more than there is.

use swap_core::Direction;

use super::pack::pack_line;
use super::window::Window;
use crate::machine::Machine;

/// A window, and windows of the other direction inside it that are apart from each other.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) window: Window,
    /// What their bytes take is what they take of the window's time.
    pub(super) beside: Vec<Window>,
}

impl Task {
    /// The time that it lacks if nothing is made again.
    pub(super) fn lacks_us(&self) -> f64 {
        let both = self.beside.iter().chain([&self.window]);
        let busy_us: f64 = both.map(|window| window.bytes as f64 * window.us_per_byte()).sum();
        busy_us - self.window.free_us
    }
}

/// The windows with those that go on beside them, where that tells more.
pub(super) fn with_company(
    chosen: Vec<Window>,
    laden: &[Window],
    machine: &Machine,
    slot_count: usize,
) -> Vec<Task> {
    let task = |window: Window| {
        let taken = taken_share(machine, window.direction);
        let inside: Vec<Window> = laden
            .iter()
            .filter(|other| taken > 0.0 && is_inside(other, &window, slot_count))
            .copied()
            .collect();
        let (worth_us, beside) = pack_line(&inside, window.start, slot_count);
        // While a copy is submitted, the other direction can be as fast as alone.
        if worth_us <= window.bytes as f64 * window.submit_us {
            return Task { window, beside: Vec::new() };
        }
        let slowed =
            |other: Window| Window { move_us: taken * other.move_us, submit_us: 0.0, ..other };
        Task {
            window: Window { submit_us: (1.0 - taken) * window.submit_us, ..window },
            beside: beside.into_iter().map(slowed).collect(),
        }
    };
    chosen.into_iter().map(task).collect()
}

/// What each microsecond of the other direction's copies takes of one direction's time.
fn taken_share(machine: &Machine, direction: Direction) -> f64 {
    let slower = |outward| machine.link.rate(outward, true) / machine.link.rate(outward, false);
    let outward = direction == Direction::Out;
    ((1.0 - slower(outward)) / slower(!outward)).min(1.0)
}

/// Whether a window of the other direction lies in one.
fn is_inside(other: &Window, window: &Window, slot_count: usize) -> bool {
    let before = (other.start + slot_count - window.start) % slot_count;
    other.direction != window.direction && before + other.slots <= window.slots
}
