//! The link of a threaded device: turns in each direction, and copies that take their time.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::host::config::HostLink;
use crate::host::effect::Direction;
use crate::host::link::LinkModel;
use crate::host::threads::clock::Clock;
use crate::sync::lock;

/// Lets one copy at a time through in each direction.
#[derive(Debug)]
pub(super) struct Gate {
    model: Mutex<LinkModel>,
    changed: Condvar,
}

impl Gate {
    pub(super) fn new(link: HostLink) -> Gate {
        Gate { model: Mutex::new(LinkModel::new(link)), changed: Condvar::new() }
    }

    /// Does `work`, a copy that could have begun at `ready_us`, and returns no earlier than the
    /// link would have been done with it. The result is when it began and ended.
    pub(super) fn pass(
        &self,
        clock: &Clock,
        direction: Direction,
        size_bytes: u64,
        ready_us: f64,
        work: impl FnOnce(),
    ) -> (f64, f64) {
        let mut model = lock(&self.model);
        while model.is_busy(direction) {
            model = self.changed.wait(model).unwrap_or_else(PoisonError::into_inner);
        }
        let start_us = ready_us.max(model.free_us(direction));
        model.start(direction, size_bytes, start_us);
        drop(model);

        work();
        let copied_us = clock.now_us();

        let mut model = lock(&self.model);
        let end_us = loop {
            let finish_us = model.finish_us(direction).expect("only its own copy stops a lane");
            let left_us = finish_us - clock.now_us();
            if left_us <= 0.0 {
                break finish_us.max(copied_us);
            }
            let left = Duration::from_nanos((left_us * 1e3).ceil() as u64);
            let woken = self.changed.wait_timeout(model, left);
            model = woken.unwrap_or_else(PoisonError::into_inner).0;
        };
        model.stop(direction, end_us);
        self.changed.notify_all();
        (start_us, end_us)
    }
}
