//! The real clock of a threaded device.

use std::time::Instant;

/// Microseconds since the driver was opened.
#[derive(Debug)]
pub(super) struct Clock {
    opened: Instant,
}

impl Clock {
    pub(super) fn start() -> Clock {
        Clock { opened: now() }
    }

    pub(super) fn now_us(&self) -> f64 {
        now().duration_since(self.opened).as_nanos() as f64 / 1e3
    }
}

/// The one place of this crate that looks at the clock: a threaded device runs in real time.
#[allow(clippy::disallowed_methods)]
fn now() -> Instant {
    Instant::now()
}
