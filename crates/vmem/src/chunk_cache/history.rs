//! What the last steps needed.

use std::collections::VecDeque;

/// Steps that are remembered. What none of them needed is not expected again.
const STEPS: usize = 8;

/// The needs of steps that are alike differ by at most this part.
const ALIKE_DIVISOR: u64 = 64;

/// The need of the running step and of the last ones.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    /// The most bytes in use at once, in the running step.
    peak_bytes: u64,
    /// Of finished steps, oldest first: the same, and the cache's sequence number at the end.
    past: VecDeque<(u64, u64)>,
}

impl History {
    /// Notes how many bytes are in use.
    pub(super) fn note_live(&mut self, live_bytes: u64) {
        self.peak_bytes = self.peak_bytes.max(live_bytes);
    }

    /// The most bytes in use at once in the finished steps that are remembered.
    pub(super) fn past_peak_bytes(&self) -> u64 {
        self.past.iter().map(|&(peak_bytes, _)| peak_bytes).max().unwrap_or(0)
    }

    /// Whether many steps have ended that needed nearly the same.
    pub(super) fn is_steady(&self) -> bool {
        let least_bytes = self.past.iter().map(|&(peak_bytes, _)| peak_bytes).min().unwrap_or(0);
        let most_bytes = self.past_peak_bytes();
        self.past.len() == STEPS && most_bytes - least_bytes <= most_bytes / ALIKE_DIVISOR
    }

    /// The most bytes in use at once in all steps that are remembered, the running one too.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes.max(self.past_peak_bytes())
    }

    /// Ends the running step. Returns the sequence number at the end of the oldest step that is
    /// remembered, when that many have passed: what was cached before was not wanted since.
    pub(super) fn end_step(&mut self, sequence: u64, live_bytes: u64) -> Option<u64> {
        self.past.push_back((self.peak_bytes, sequence));
        self.peak_bytes = live_bytes;
        if self.past.len() <= STEPS {
            return None;
        }
        self.past.pop_front().map(|(_, sequence)| sequence)
    }
}
