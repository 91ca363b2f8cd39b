//! The host's lane: when the host asks for what the device does.
//!
//! The device cannot begin an op before the host asks for it. Where ops are short the host is what
//! a step waits for, and then an op that runs again costs what it costs the host, though the device
//! be done with it at once. A step without host times has a host that is never late.
//!
//! Each step begins with a host that has seen the end of the one before, as one has that looks at
//! the loss: what it gained on the device in one step does not help it in the next.

use swap_core::{HostCosts, Trace, TraceOp};

/// What an op that runs again costs the host as long as none was timed, in microseconds.
const REPLAY_US: f64 = 100.0;
/// What a block costs it that leaves or comes, in microseconds.
const MOVE_US: f64 = 20.0;
/// The host has time to spare as long as it works less than this part of the step.
const SPARE_SHARE: f64 = 0.5;
/// From this part on, what it does more makes the step longer.
const BUSY_SHARE: f64 = 0.9;

/// How far the host has come.
#[derive(Clone, Debug)]
pub(crate) struct HostLane {
    /// When it asks for what comes next, in microseconds.
    now_us: f64,
    costs: HostCosts,
}

impl HostLane {
    pub(crate) fn new(trace: &Trace) -> HostLane {
        HostLane { now_us: 0.0, costs: costs(trace) }
    }

    /// When it asks for what comes next, in microseconds.
    pub(crate) fn now_us(&self) -> f64 {
        self.now_us
    }

    /// A step begins at this time.
    pub(crate) fn begins_step(&mut self, start_us: f64) {
        self.now_us = start_us;
    }

    /// It sends a block away or asks for it.
    pub(crate) fn moves(&mut self) {
        self.now_us += self.costs.move_us;
    }

    /// It calls an op again.
    pub(crate) fn replays(&mut self) {
        self.now_us += self.costs.replay_us;
    }

    /// Whether it is ever late, as far as the step says.
    pub(crate) fn is_known(&self) -> bool {
        self.costs != HostCosts::default()
    }

    /// It has asked for an outermost op, with which the device is done at `done_us`.
    pub(crate) fn asked_for(&mut self, op: &TraceOp, done_us: f64) {
        if op.host_waits {
            self.now_us = self.now_us.max(done_us);
        }
        self.now_us += op.host_us;
    }
}

/// What the engine's own work costs the host in this step: nothing if its times are not known.
fn costs(trace: &Trace) -> HostCosts {
    if !is_known(trace) {
        return HostCosts::default();
    }
    trace.host_costs.or(HostCosts { replay_us: REPLAY_US, move_us: MOVE_US })
}

fn is_known(trace: &Trace) -> bool {
    trace.ops.iter().any(|op| op.host_us > 0.0)
}

/// Time of a step with memory for everything, in microseconds: its ops, and what the device waits
/// for the host.
pub fn unlimited_us(trace: &Trace) -> f64 {
    outermost_us(trace).iter().sum()
}

/// By outermost op of a step with memory for everything: the time from the end of the op before it
/// to its own, in microseconds; and in the last place what the host does behind them.
pub(crate) fn outermost_us(trace: &Trace) -> Vec<f64> {
    let (mut host, mut device_us) = (HostLane::new(trace), 0.0);
    let late_us = |host: &HostLane, device_us: f64| (host.now_us() - device_us).max(0.0);
    let mut step_us = Vec::new();
    for op in trace.ops.iter().filter(|op| op.depth == 0) {
        let us = late_us(&host, device_us) + op.device_us;
        step_us.push(us);
        device_us += us;
        host.asked_for(op, device_us);
    }
    step_us.push(late_us(&host, device_us));
    step_us
}

/// What an op that runs again adds to a step, which takes the device so long, in microseconds: as
/// long as the host has time to spare, no more than that. In between a part of what the host needs
/// more: what others have it do is not known yet, and plans are judged by simulation.
pub fn replay_us(trace: &Trace) -> impl Fn(f64) -> f64 + use<> {
    let host_us = costs(trace).replay_us;
    let work_us: f64 = trace.ops.iter().map(|op| op.host_us).sum();
    let share = work_us / unlimited_us(trace).max(f64::MIN_POSITIVE);
    let part = ((share - SPARE_SHARE) / (BUSY_SHARE - SPARE_SHARE)).clamp(0.0, 1.0);
    move |device_us| device_us + part * (host_us - device_us).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ops that take the device 10 us each, and the host this.
    fn step(host_us: &[f64]) -> Trace {
        let op = |&host_us: &f64| TraceOp { device_us: 10.0, host_us, ..TraceOp::default() };
        Trace { ops: host_us.iter().map(op).collect(), ..Trace::default() }
    }

    #[test]
    fn a_host_that_runs_ahead_is_never_waited_for() {
        for trace in [step(&[0.0; 3]), step(&[3.0; 3])] {
            assert_eq!(outermost_us(&trace), [10.0, 10.0, 10.0, 0.0]);
            assert_eq!(unlimited_us(&trace), 30.0);
            assert_eq!(replay_us(&trace)(4.0), 4.0);
        }
    }

    #[test]
    fn a_host_that_is_late_makes_the_step() {
        let trace = step(&[15.0; 3]);
        assert_eq!(outermost_us(&trace), [10.0, 15.0, 15.0, 5.0]);
        assert_eq!(unlimited_us(&trace), 45.0);
        assert_eq!(replay_us(&trace)(4.0), REPLAY_US);
        assert_eq!(replay_us(&trace)(400.0), 400.0);
    }

    #[test]
    fn a_lead_bridges_what_is_late() {
        // The host needs long for one op, but has come so far ahead that nobody notices.
        let trace = step(&[1.0, 1.0, 1.0, 25.0, 1.0]);
        assert_eq!(unlimited_us(&trace), 50.0);
        // Unless it waits for the device before it.
        let mut waiting = trace.clone();
        waiting.ops[2].host_waits = true;
        assert_eq!(outermost_us(&waiting), [10.0, 10.0, 10.0, 11.0, 25.0, 0.0]);
    }

    #[test]
    fn measured_costs_count() {
        let mut trace = step(&[15.0; 3]);
        trace.host_costs = HostCosts { replay_us: 70.0, move_us: 9.0 };
        assert_eq!(replay_us(&trace)(4.0), 70.0);
        let mut host = HostLane::new(&trace);
        host.moves();
        host.replays();
        assert_eq!(host.now_us(), 79.0);
    }
}
