//! What the last steps needed.

use std::collections::VecDeque;

/// Steps whose need is remembered.
const STEPS: usize = 64;

/// A chunk that so many steps did not want is not expected to be wanted again.
const PATIENCE_STEPS: usize = 8;

/// The need of the running step and of the last ones.
#[derive(Clone, Default, Debug)]
pub(super) struct History {
    /// The most bytes in use at once, in the running step.
    running_peak_bytes: u64,
    /// The same of finished steps, oldest first, and the cache's sequence number at their ends.
    past: VecDeque<(u64, u64)>,
    /// The highest of them.
    past_peak_bytes: u64,
}

impl History {
    /// Notes how many bytes are in use.
    pub(super) fn note_live(&mut self, live_bytes: u64) {
        self.running_peak_bytes = self.running_peak_bytes.max(live_bytes);
    }

    /// The most bytes in use at once in the finished steps that are remembered.
    pub(super) fn past_peak_bytes(&self) -> u64 {
        self.past_peak_bytes
    }

    /// The most bytes in use at once in all steps that are remembered, the running one too.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.running_peak_bytes.max(self.past_peak_bytes)
    }

    /// Ends the running step. Returns a sequence number, if so many steps have ended: what was
    /// cached by then was not wanted since.
    pub(super) fn end_step(&mut self, sequence: u64, live_bytes: u64) -> Option<u64> {
        self.past.push_back((self.running_peak_bytes, sequence));
        self.running_peak_bytes = live_bytes;
        if self.past.len() > STEPS {
            self.past.pop_front();
        }
        self.past_peak_bytes = self.past.iter().map(|&(peak, _)| peak).max().unwrap_or(0);
        let patient = self.past.len().checked_sub(PATIENCE_STEPS + 1)?;
        self.past.get(patient).map(|&(_, sequence)| sequence)
    }
}
