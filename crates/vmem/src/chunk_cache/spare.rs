//! How much is held beyond what steps needed: more where that little makes and gives back chunks.

/// What is held by need beyond that of the last steps, as a part of it.
const DIVISOR: u64 = 14;

/// It grows to so many times that at most: plain caching holds more where sizes change.
const TIMES_MAX: u64 = 8;

/// So many chunks given back in a step are no reason to hold more.
const FEW_CHUNKS: usize = 4;

/// Steps whose churn says nothing yet: the first ones are unlike those after.
const FIRST_STEPS: usize = 2;

/// After so many steps that gave nothing back, less is tried.
const CALM_STEPS: usize = 16;

/// What is held by need beyond the need.
#[derive(Clone, Debug)]
pub(super) struct Spare {
    times: u64,
    steps: usize,
    calm_steps: usize,
    /// Chunks that left in the running step so that others could be made.
    given_back: usize,
}

impl Default for Spare {
    fn default() -> Spare {
        Spare { times: 1, steps: 0, calm_steps: 0, given_back: 0 }
    }
}

impl Spare {
    /// What is held beyond `need_bytes`.
    pub(super) fn of(&self, need_bytes: u64) -> u64 {
        (need_bytes / DIVISOR).saturating_mul(self.times)
    }

    /// Notes that so many chunks were given back so that another could be made.
    pub(super) fn note_given_back(&mut self, chunks: usize) {
        self.given_back += chunks;
    }

    /// Ends a step.
    pub(super) fn end_step(&mut self) {
        self.steps += 1;
        let given_back = std::mem::take(&mut self.given_back);
        if given_back > FEW_CHUNKS && self.steps > FIRST_STEPS {
            self.times = (self.times * 2).min(TIMES_MAX);
        }
        self.calm_steps = if given_back == 0 { self.calm_steps + 1 } else { 0 };
        if self.calm_steps >= CALM_STEPS {
            self.times = (self.times / 2).max(1);
            self.calm_steps = 0;
        }
    }
}
