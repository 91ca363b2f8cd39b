//! Keeps the host one step ahead of the device, and measures each step.
//!
//! A host that waited for each step would leave the device idle between steps and cut off the
//! copies that reach from one step into the next. One that never waited would know losses only
//! at the end.

use std::collections::VecDeque;
use std::sync::Arc;

use adaptive::{Driver, DriverError, EventHandle, EventKind, StreamHandle};

/// Marks the ends of steps on a stream.
#[derive(Debug)]
pub(crate) struct Pace {
    driver: Arc<dyn Driver>,
    stream: StreamHandle,
    /// The end of the last step that was waited for, and those of the steps behind it.
    marks: VecDeque<EventHandle>,
    unused: Vec<EventHandle>,
}

/// Steps that may be under way while the host goes on.
const STEPS_AHEAD: usize = 1;

impl Pace {
    /// Starts the clock: the first step begins behind what `stream` has to do now.
    pub(crate) fn start(
        driver: Arc<dyn Driver>,
        stream: StreamHandle,
    ) -> Result<Pace, DriverError> {
        let mut pace = Pace { driver, stream, marks: VecDeque::new(), unused: Vec::new() };
        pace.mark()?;
        Ok(pace)
    }

    /// Notes that a step has been submitted, and waits until at most one is under way. Returns
    /// the time of the step that this completed, in microseconds: from the end of the one before.
    pub(crate) fn submitted(&mut self) -> Result<Option<f64>, DriverError> {
        self.mark()?;
        if self.marks.len() - 1 > STEPS_AHEAD { self.wait().map(Some) } else { Ok(None) }
    }

    /// Waits for the oldest step under way, if there is one, and returns its time.
    pub(crate) fn finish_one(&mut self) -> Result<Option<f64>, DriverError> {
        if self.marks.len() > 1 { self.wait().map(Some) } else { Ok(None) }
    }

    fn mark(&mut self) -> Result<(), DriverError> {
        let event = match self.unused.pop() {
            Some(event) => event,
            None => self.driver.create_event(EventKind::Timing)?,
        };
        self.marks.push_back(event);
        self.driver.record_event(event, self.stream)
    }

    fn wait(&mut self) -> Result<f64, DriverError> {
        let (start, end) = (self.marks[0], self.marks[1]);
        self.driver.synchronize_event(start)?;
        self.driver.synchronize_event(end)?;
        let step_us = self.driver.elapsed_us(start, end)?;
        self.unused.extend(self.marks.pop_front());
        Ok(step_us)
    }
}

impl Drop for Pace {
    fn drop(&mut self) {
        for event in self.marks.drain(..).chain(self.unused.drain(..)) {
            // A device that fails now cannot be helped, and its run has failed already.
            let _ = self.driver.destroy_event(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use adaptive::devices::{HostConfig, HostDriver};

    use super::*;

    #[test]
    fn one_step_stays_under_way_and_no_event_is_left() {
        let driver = HostDriver::new(HostConfig::threads(1 << 20)).unwrap();
        let stream = driver.create_stream().unwrap();
        let mut pace = Pace::start(driver.clone(), stream).unwrap();
        assert_eq!(pace.finish_one().unwrap(), None);
        assert_eq!(pace.submitted().unwrap(), None);
        for _ in 0..3 {
            assert!(pace.submitted().unwrap().unwrap() >= 0.0);
        }
        assert!(pace.finish_one().unwrap().is_some());
        assert_eq!(pace.finish_one().unwrap(), None);
        drop(pace);
        driver.destroy_stream(stream).unwrap();
        assert!(driver.ledger().is_empty());
    }
}
