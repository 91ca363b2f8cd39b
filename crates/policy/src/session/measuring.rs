//! Which Stable steps are measured lane by lane: the first that is like the next ones, and ever
//! fewer after it, so that measuring costs nothing in the long run.

/// Stable steps go by before the first that is measured.
const FIRST_STEPS: u64 = 2;

/// So much rarer is each next one.
const RARER: u64 = 8;

/// One in so many is measured however long it goes on.
const STEPS_MAX: u64 = 1024;

/// When to measure the next step.
#[derive(Debug)]
pub(super) struct Measuring {
    /// Stable steps from one that is measured to the next.
    every_steps: u64,
    /// Stable steps until the next one.
    due_in_steps: u64,
}

impl Measuring {
    pub(super) fn new() -> Measuring {
        Measuring { every_steps: FIRST_STEPS, due_in_steps: FIRST_STEPS }
    }

    /// Steps run under another plan from now on. Where plans take turns that is no reason to look
    /// often.
    pub(super) fn change(&mut self) {
        let every_steps = FIRST_STEPS * RARER;
        if self.every_steps > every_steps {
            self.every_steps = every_steps;
            self.due_in_steps = self.due_in_steps.min(every_steps);
        }
    }

    /// Somebody wants to see the next step that can be measured.
    pub(super) fn ask(&mut self) {
        self.due_in_steps = 1;
    }

    /// Counts a Stable step that ended, and says whether the next is measured.
    pub(super) fn end_step(&mut self) -> bool {
        self.due_in_steps -= 1;
        if self.due_in_steps == 0 {
            self.due_in_steps = self.every_steps;
            self.every_steps = (self.every_steps * RARER).min(STEPS_MAX);
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::Measuring;

    fn measured(measuring: &mut Measuring, steps: u64) -> Vec<u64> {
        (0..steps).filter(|_| measuring.end_step()).collect()
    }

    #[test]
    fn fewer_and_fewer_steps_are_measured() {
        let mut measuring = Measuring::new();
        assert_eq!(measured(&mut measuring, 3000), [1, 3, 19, 147, 1171, 2195]);
        measuring.ask();
        assert_eq!(measured(&mut measuring, 2), [0]);
    }

    #[test]
    fn plans_that_take_turns_are_measured_now_and_then() {
        let mut measuring = Measuring::new();
        let mut count = 0;
        for _ in 0..1600 {
            measuring.change();
            count += measured(&mut measuring, 1).len();
        }
        assert!((20..200).contains(&count), "{count}");
    }
}
