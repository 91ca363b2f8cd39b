//! Failures of giving back, when what held it was dropped and nobody is left to be told.

use std::sync::Mutex;

use crate::error::DriverError;
use crate::sync::lock;

/// So many are kept; the rest is counted.
const KEPT_MAX: usize = 16;

static FAILURES: Mutex<DropFailures> = Mutex::new(DropFailures { count: 0, first: Vec::new() });

/// Failures of this process's drivers while they, or handles of theirs, were dropped. What could
/// not be given back stays taken until the process ends.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DropFailures {
    /// How many there were.
    pub count: u64,
    /// The first few of them.
    pub first: Vec<DriverError>,
}

/// What could not be given back so far.
pub fn drop_failures() -> DropFailures {
    lock(&FAILURES).clone()
}

/// Counts a failure that has nobody to be returned to.
pub(crate) fn note<T>(result: Result<T, DriverError>) {
    if let Err(error) = result {
        lock(&FAILURES).add(error);
    }
}

impl DropFailures {
    fn add(&mut self, error: DriverError) {
        self.count += 1;
        if self.first.len() < KEPT_MAX {
            self.first.push(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_few_are_kept_and_all_are_counted() {
        let mut failures = DropFailures::default();
        for code in 0..20 {
            let error = DriverError { code, ..DriverError::unsupported("drop", "no") };
            failures.add(error);
        }
        assert_eq!(failures.count, 20);
        assert!(failures.first.iter().map(|error| error.code).eq(0..KEPT_MAX as i64));
    }

    #[test]
    fn what_went_well_is_no_failure() {
        let text = "a call of this test alone";
        note(Ok(text));
        let is_ours = |error: &DriverError| error.text == text;
        assert!(!drop_failures().first.iter().any(is_ours));
        note::<()>(Err(DriverError::unsupported("drop", text)));
        assert!(drop_failures().first.iter().any(is_ours));
    }
}
