//! What a step waits for its host anyway: waits for copies hide in that, if it comes soon enough.
//!
//! ```text
//!   host     asks for a   b   c   waits  asks for d   e   f
//!   device      ├ a ┤ ├ b ┤ ├ c ┤          ├ d ┤ ├ e ┤ ├ f ┤
//!                   └ window ┘    │
//!                   └─── zone ────┘ they meet
//! ```
//!
//! While the device waits for a copy its host goes on, and then the device waits for the host less.
//! That ends where the host waits for the device, as it does at the end of each step: from there on
//! all goes as it would have gone. So what windows lack adds to the step, but for what the device
//! idles from their begin to where it next meets the host. Ops that run again count as the windows
//! that they spare do, and can come as late as the gap ends.

use std::ops::Range;

use swap_core::Trace;

use super::duplex::Task;
use super::replays::Replays;
use super::window::{Window, Windows};
use crate::host::outermost_us;
use crate::usage::Usage;

/// Time that the device of a step with memory for everything has nothing to do.
#[derive(Debug)]
pub(super) struct Idle {
    /// By slot: what comes before it in the step, in microseconds; and in the last place all.
    until_us: Vec<f64>,
    /// By slot: the first one from it on, in this step, whose op the host waits for.
    meets_at: Vec<usize>,
}

impl Idle {
    pub(super) fn new(trace: &Trace, usage: &Usage) -> Idle {
        let mut before_us = outermost_us(trace);
        let last = usage.slots.len();
        let mut meets_at = vec![last; before_us.len()];
        for (slot, op) in usage.slots.iter().enumerate().rev() {
            let op = &trace.ops[op.0 as usize];
            before_us[slot] = (before_us[slot] - op.device_us).max(0.0);
            meets_at[slot] = if op.host_waits { slot } else { meets_at[slot + 1] };
        }
        let mut until_us = vec![0.0];
        for us in before_us {
            until_us.push(until_us[until_us.len() - 1] + us);
        }
        Idle { until_us, meets_at }
    }

    /// In all of a step, in microseconds.
    pub(super) fn total_us(&self) -> f64 {
        self.until_us[self.meets_at.len()]
    }

    /// In the zones of some tasks, in microseconds.
    pub(super) fn near_us(&self, tasks: &[Task], windows: &Windows<'_>, replays: &Replays) -> f64 {
        if self.total_us() <= 0.0 {
            return 0.0;
        }
        let zone = |window: &Window| self.zone(window, replays.slots_behind(windows, window));
        let mut zones: Vec<Range<usize>> =
            tasks.iter().flat_map(Task::windows).flat_map(zone).collect();
        zones.sort_by_key(|zone| zone.start);
        let (mut us, mut end) = (0.0, 0);
        for zone in zones {
            let start = zone.start.max(end);
            end = end.max(zone.end);
            us += self.until_us[end.max(start)] - self.until_us[start];
        }
        us
    }

    /// The slots in which waits of a window can hide, up to the end of the step and from its begin.
    fn zone(&self, window: &Window, slots_behind: usize) -> [Range<usize>; 2] {
        let count = self.meets_at.len();
        let end = window.start + window.slots + slots_behind;
        let meets = end + self.meets_at[end % count] - end % count;
        let end = (meets + 1).min(window.start + count);
        [window.start..end.min(count), 0..end.saturating_sub(count)]
    }

    /// What a window lacks beyond the idle time of its zone, if nothing is made again.
    pub(super) fn beyond_us(
        &self,
        window: &Window,
        windows: &Windows<'_>,
        replays: &Replays,
    ) -> f64 {
        window.worth_us - self.near_us(&[Task::alone(*window)], windows, replays)
    }
}
