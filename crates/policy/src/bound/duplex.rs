//! What copies of the other direction take of a window: while both directions run, each is slower.
//!
//! ```text
//!   in   ├──────── window ────────┤     lacks time for its own bytes, and for a share of the
//!   out     ├─ beside ─┤   ├─ beside ─┤  time that those beside it take, less what lies outside
//! ```
//!
//! Let one direction take `a` and the other `b` to move its bytes alone, and let their rates fall
//! to shares `p` and `q` while both run. Alone the first then runs for `a - p t` and the other for
//! `b - q t`, and both for `t`. So `a + b (1 - p) / q` is the time in which the first runs, and a
//! share of that in which only the other does: with a share of at most 1, no more than there is.

use swap_core::Direction;

use super::pack::pack_line;
use super::window::{Window, Windows};
use crate::machine::Machine;

/// A window, and windows of the other direction that it shares time with and that are apart from
/// each other. What they have outside is shared with no other task.
#[derive(Clone, Debug)]
pub(super) struct Task {
    pub(super) window: Window,
    /// What they lack outside is what they take of the window's time.
    pub(super) beside: Vec<Window>,
}

impl Task {
    /// A window of which nothing is taken.
    pub(super) fn alone(window: Window) -> Task {
        Task { window, beside: Vec::new() }
    }

    /// Those beside it, and then the window.
    pub(super) fn windows(&self) -> impl Iterator<Item = &Window> {
        self.beside.iter().chain([&self.window])
    }

    /// The time that it lacks if nothing is made again.
    pub(super) fn lacks_us(&self) -> f64 {
        self.window.lacks_us() + self.beside.iter().map(Window::lacks_us).sum::<f64>()
    }

    /// Whether some of its time is outside its window.
    pub(super) fn is_wider(&self) -> bool {
        self.beside.iter().any(|other| other.free_us > 0.0)
    }
}

/// The windows with those that go on beside them, where that tells more.
pub(super) fn with_company(
    chosen: Vec<Window>,
    laden: &[Window],
    windows: &Windows<'_>,
    machine: &Machine,
) -> Vec<Task> {
    let taken = chosen.iter().map(|window| (window.start, window.slots + 1)).collect();
    let mut company = Company { windows, machine, laden, taken };
    chosen.into_iter().map(|window| company.task(window)).collect()
}

/// What a window has outside of another one.
struct Outside {
    free_us: f64,
    /// Before and after it, as first slot and count.
    spans: [(usize, usize); 2],
}

struct Company<'a> {
    windows: &'a Windows<'a>,
    machine: &'a Machine,
    laden: &'a [Window],
    /// Stretches of the step that belong to a task, as first slot and count.
    taken: Vec<(usize, usize)>,
}

impl Company<'_> {
    fn task(&mut self, window: Window) -> Task {
        let alone = Task::alone(window);
        let taken_share = taken_share(self.machine, window.direction);
        if taken_share <= 0.0 || window.most_us.is_finite() {
            return alone;
        }
        let beside: Vec<Window> =
            self.laden.iter().filter_map(|other| self.beside(&window, other)).collect();
        let count = self.windows.slot_count;
        let cuts = [window.start, (window.start + window.slots + 1) % count];
        let packed = cuts.map(|cut| pack_line(&beside, cut, count));
        let [one, other] = packed;
        let (worth_us, beside) = if one.0 < other.0 { other } else { one };
        // While a copy is submitted, the other direction can be as fast as alone.
        if worth_us <= window.bytes as f64 * window.submit_us {
            return alone;
        }
        for other in &beside {
            self.taken.extend(self.outside(&window, other).into_iter().flat_map(|out| out.spans));
        }
        let slowed = |other: Window| Window {
            move_us: taken_share * other.move_us,
            submit_us: 0.0,
            free_us: taken_share * other.free_us,
            ..other
        };
        Task {
            window: Window { submit_us: (1.0 - taken_share) * window.submit_us, ..window },
            beside: beside.into_iter().map(slowed).collect(),
        }
    }

    /// A window of the other direction with the time that it has outside, if it must take some of
    /// the window's.
    fn beside(&self, window: &Window, other: &Window) -> Option<Window> {
        if other.direction == window.direction {
            return None;
        }
        let Outside { free_us, spans } = self.outside(window, other)?;
        let worth_us = other.worth_us - free_us;
        let is_own = || !spans.iter().any(|&span| self.is_taken(span));
        (worth_us > 0.0 && is_own()).then_some(Window { free_us, worth_us, ..*other })
    }

    /// What a window has before and after another one; nothing if they have no time in common, or
    /// meet at both ends.
    fn outside(&self, window: &Window, other: &Window) -> Option<Outside> {
        let count = self.windows.slot_count;
        let ahead = (other.start + count - window.start) % count;
        let (starts_in, ends_in) = (ahead < window.slots, ahead + other.slots > count);
        if starts_in == ends_in {
            return None;
        }
        let before = if ends_in { count - ahead } else { 0 };
        let end = ahead + other.slots - if ends_in { count } else { 0 };
        let after = end.saturating_sub(window.slots);
        let last = (window.start + window.slots) % count;
        let time_us = |start, slots| self.windows.time_us(start, slots);
        Some(Outside {
            free_us: time_us(other.start, before) + time_us(last, after),
            // The wait before a window's last slot is its own, and that slot's op nobody else's.
            spans: [(other.start, before), ((last + 1) % count, after)],
        })
    }

    /// Whether a stretch has a slot in common with one that belongs to a task.
    fn is_taken(&self, (start, slots): (usize, usize)) -> bool {
        let count = self.windows.slot_count;
        let meets = |&(other, other_slots): &(usize, usize)| {
            (other + count - start) % count < slots || (start + count - other) % count < other_slots
        };
        slots > 0 && self.taken.iter().any(meets)
    }
}

/// What each microsecond of the other direction's copies takes of one direction's time.
fn taken_share(machine: &Machine, direction: Direction) -> f64 {
    let slower = |outward| machine.link.rate(outward, true) / machine.link.rate(outward, false);
    let outward = direction == Direction::Out;
    ((1.0 - slower(outward)) / slower(!outward)).min(1.0)
}
