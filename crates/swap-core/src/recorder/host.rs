//! The host's own time for each outermost op of a recorded step, by its clock.
//!
//! From an op's beginning to the next one's the host calls the op, runs what is between the two,
//! and may wait for the device. What the engine does of its own meanwhile is left out. A wait is
//! told from work by the device: it is about to run dry where the host goes on, and the host was
//! busy with nothing else while it worked.

use crate::trace::{OpIndex, TraceOp};

/// Shorter times between two ops are taken for work of the host, as most of them are.
const WAIT_US_MIN: f64 = 200.0;
/// The device begins an op so soon after the host asked for it where it had nothing else to do.
const CAUGHT_UP_US: f64 = 50.0;
/// A wait takes at least this part of the time between two ops.
const WAIT_SHARE_MIN: f64 = 0.5;

/// When the host began each op.
#[derive(Debug, Default)]
pub(crate) struct HostRecord {
    began: Vec<Mark>,
    /// What the engine did of its own so far.
    left_out_us: f64,
}

/// A moment in the host's lane.
#[derive(Clone, Copy, Debug)]
struct Mark {
    op: OpIndex,
    at_us: f64,
    left_out_us: f64,
}

/// When the device ran an op, on the device's own axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceSpan {
    pub(super) op: OpIndex,
    pub(super) start_us: f64,
    pub(super) end_us: f64,
}

impl HostRecord {
    /// The host begins an outermost op.
    pub(crate) fn begins(&mut self, op: OpIndex, now_us: f64) {
        self.began.push(Mark { op, at_us: now_us, left_out_us: self.left_out_us });
    }

    /// The engine has done something of its own for so long.
    pub(crate) fn leave_out(&mut self, us: f64) {
        self.left_out_us += us;
    }

    /// Notes each op's time. `end_us` is when the host ended the step; `device` is in order of op.
    pub(super) fn fill_in(&self, end_us: f64, device: &[DeviceSpan], ops: &mut [TraceOp]) {
        let span_of = |mark: &Mark| {
            let place = device.binary_search_by_key(&mark.op, |span| span.op);
            place.ok().map(|place| device[place])
        };
        // The latest axis of the host on which it asked for each op before the device began it.
        let late = |mark: &Mark| span_of(mark).map(|span| mark.at_us - span.start_us);
        let late_us = self.began.iter().filter_map(late).fold(f64::NEG_INFINITY, f64::max);
        let op = OpIndex(u32::MAX);
        let end = Mark { op, at_us: end_us, left_out_us: self.left_out_us };
        let nexts = self.began.iter().skip(1).chain([&end]);
        for (mark, next) in self.began.iter().zip(nexts) {
            let took_us = next.at_us - mark.at_us;
            let left_out_us = next.left_out_us - mark.left_out_us;
            // Behind the step's last op the device has nothing to do.
            let is_dry = |then: DeviceSpan| then.start_us - (next.at_us - late_us) <= CAUGHT_UP_US;
            let is_dry = span_of(next).map_or(next.op == end.op, is_dry);
            let waited_us =
                span_of(mark).filter(|_| left_out_us < took_us / 4.0).and_then(|span| {
                    let busy_us = span.end_us - (mark.at_us - late_us);
                    let fits = (WAIT_SHARE_MIN * took_us..=took_us).contains(&busy_us);
                    (is_dry && fits && took_us >= WAIT_US_MIN).then_some(busy_us)
                });
            let op = &mut ops[mark.op.0 as usize];
            op.host_waits = waited_us.is_some();
            op.host_us = (took_us - waited_us.unwrap_or(left_out_us)).max(0.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP_US: f64 = 100.0;

    /// A step of ops of 100 us, which the host asks for at these times.
    fn times(asked_us: &[f64], end_us: f64) -> Vec<(f64, bool)> {
        let mut record = HostRecord::default();
        let (mut device, mut ops): (Vec<DeviceSpan>, Vec<TraceOp>) = (Vec::new(), Vec::new());
        for (number, &at_us) in asked_us.iter().enumerate() {
            let op = OpIndex(number as u32);
            // The clocks have nothing in common.
            record.begins(op, 5000.0 + at_us);
            let start_us = device.last().map_or(0.0, |last| last.end_us).max(at_us);
            device.push(DeviceSpan { op, start_us, end_us: start_us + OP_US });
            ops.push(TraceOp::default());
        }
        record.fill_in(5000.0 + end_us, &device, &mut ops);
        ops.iter().map(|op| (op.host_us, op.host_waits)).collect()
    }

    #[test]
    fn a_host_that_runs_ahead_takes_what_is_between_its_calls() {
        let found = times(&[0.0, 10.0, 30.0, 60.0], 65.0);
        assert_eq!(found, [(10.0, false), (20.0, false), (30.0, false), (5.0, false)]);
    }

    #[test]
    fn a_host_that_is_late_does_not_wait() {
        // The device is done with each long before the next is asked for.
        let found = times(&[0.0, 400.0, 900.0], 950.0);
        assert_eq!(found, [(400.0, false), (500.0, false), (50.0, false)]);
    }

    #[test]
    fn a_wait_for_the_device_is_no_work_of_the_host() {
        // Asked for three, waits until the third is done at 300, goes on 20 us later.
        let found = times(&[0.0, 10.0, 20.0, 320.0, 330.0], 340.0);
        assert_eq!(found[2], (20.0, true));
        assert!(
            found.iter().enumerate().all(|(op, it)| op == 2 || *it == (10.0, false)),
            "{found:?}"
        );
    }

    #[test]
    fn a_wait_for_the_device_at_the_end_is_no_work_of_the_host_either() {
        // Asked for three, waits until all are done at 300, and ends the step 20 us later.
        let found = times(&[0.0, 10.0, 20.0], 320.0);
        assert_eq!(found, [(10.0, false), (10.0, false), (20.0, true)]);
        // It was at work for a second, and the device waits for nobody.
        let found = times(&[0.0, 10.0, 20.0], 1_000_020.0);
        assert_eq!(found[2], (1_000_000.0, false));
    }

    #[test]
    fn what_the_engine_does_is_left_out() {
        let mut record = HostRecord::default();
        record.begins(OpIndex(0), 0.0);
        record.leave_out(30.0);
        record.begins(OpIndex(1), 40.0);
        record.leave_out(5.0);
        let mut ops = vec![TraceOp::default(); 2];
        record.fill_in(60.0, &[], &mut ops);
        assert_eq!((ops[0].host_us, ops[1].host_us), (10.0, 15.0));
    }
}
