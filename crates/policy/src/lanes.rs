//! When the parts of a simulated step run, and where a measured step parts from it.

use std::collections::BTreeMap;

use swap_core::{LaneCopy, LaneOp, LaneReplay, LaneWait, Lanes, OpIndex, Trace};

use crate::simulate::Simulation;

/// Shorter gaps of a simulated step are rounding.
const ROUNDING_US: f64 = 1e-6;

/// What compute spent a step on, or an op its part of it, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub struct LaneShares {
    /// Ops.
    pub ops_us: f64,
    /// Ops that ran again.
    pub replays_us: f64,
    /// Waits for copies.
    pub waits_us: f64,
    /// Nothing: the host had asked for nothing more.
    pub idle_us: f64,
}

/// In what an op differs from its prediction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// Its own time.
    Op,
    /// Its wait for copies.
    Wait,
    /// The time before it in which compute had nothing to do.
    Idle,
}

/// One op that took another time than predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Departure {
    /// Which.
    pub op: OpIndex,
    /// In what.
    pub part: Part,
    /// The time that was predicted for it, in microseconds.
    pub predicted_us: f64,
    /// The time that it took.
    pub measured_us: f64,
    /// What it waited for the longest, if it waited for a copy of this step.
    pub copy: Option<LaneCopy>,
}

impl Departure {
    fn distance_us(&self) -> f64 {
        (self.measured_us - self.predicted_us).abs()
    }
}

/// A measured step beside its prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneComparison {
    /// What compute was to spend the step on.
    pub predicted: LaneShares,
    /// What it spent it on.
    pub measured: LaneShares,
    /// Where they part, the longest differences first.
    pub departures: Vec<Departure>,
}

/// The lanes of a simulated step.
pub fn predicted_lanes(trace: &Trace, simulation: &Simulation) -> Lanes {
    let outermost = (0..).map(OpIndex).zip(trace.ops.iter().zip(&simulation.ops));
    let outermost = outermost.filter(|(_, (op, _))| op.depth == 0);
    let ops: Vec<LaneOp> = outermost
        .map(|(op, (_, span))| LaneOp {
            op,
            host_us: simulation.hosts.get(op.0 as usize).map(|it| (it.start_us, it.end_us)),
            start_us: span.start_us,
            end_us: span.end_us,
        })
        .collect();
    let replays = simulation.replays.iter().map(|replay| LaneReplay {
        name: trace.ops[replay.op.0 as usize].name.clone(),
        start_us: replay.span.start_us,
        end_us: replay.span.end_us,
    });
    let copies = simulation.copies.iter().map(|copy| LaneCopy {
        block: Some(copy.block),
        direction: copy.direction,
        size_bytes: copy.size_bytes,
        start_us: copy.span.start_us,
        end_us: copy.span.end_us,
    });
    let (replays, copies): (Vec<_>, Vec<_>) = (replays.collect(), copies.collect());
    let waits = predicted_waits(&ops, &replays, &copies);
    Lanes { step_us: simulation.step_us, ops, replays, copies, waits }
}

/// Compute of a simulated step is idle only where the host has not asked for an op yet, or where it
/// waits for a copy. A replay may wait too: its op is the one that it serves.
fn predicted_waits(ops: &[LaneOp], replays: &[LaneReplay], copies: &[LaneCopy]) -> Vec<LaneWait> {
    let mut waits = Vec::new();
    let mut replays = replays.iter().peekable();
    let mut end_us = 0.0_f64;
    for op in ops {
        let mut wait = |start_us: f64, until_us: f64| {
            if until_us - start_us > ROUNDING_US {
                let ends = |copy: &LaneCopy| (copy.end_us - until_us).abs() <= ROUNDING_US;
                let copy = copies.iter().rposition(ends);
                // Else it is the host that is late with a replay.
                if copy.is_none() && op.host_us.is_some() {
                    return;
                }
                waits.push(LaneWait { op: op.op, copy, start_us, end_us: until_us });
            }
        };
        while let Some(replay) = replays.next_if(|replay| replay.end_us <= op.start_us) {
            wait(end_us, replay.start_us);
            end_us = end_us.max(replay.end_us);
        }
        let asked_us = op.host_us.map_or(0.0, |(start_us, _)| start_us);
        wait(end_us.max(asked_us), op.start_us);
        end_us = end_us.max(op.end_us);
    }
    waits
}

/// Where a measured step parts from its prediction. Both are of the same ops; what only one of
/// them has is in the sums alone.
pub fn compare_lanes(predicted: &Lanes, measured: &Lanes) -> LaneComparison {
    let (expected, expected_by_op) = shares(predicted);
    let (found, found_by_op) = shares(measured);
    let mut departures = Vec::new();
    for (&op, was) in &found_by_op {
        let Some(expected) = expected_by_op.get(&op) else { continue };
        let parts = [
            (Part::Op, expected.ops_us, was.ops_us),
            (Part::Wait, expected.waits_us, was.waits_us),
            (Part::Idle, expected.idle_us, was.idle_us),
        ];
        departures.extend(parts.into_iter().filter(|&(_, expected_us, us)| us != expected_us).map(
            |(part, predicted_us, measured_us)| {
                let copy = longest_wait(measured, op).filter(|_| part == Part::Wait);
                Departure { op, part, predicted_us, measured_us, copy }
            },
        ));
    }
    let key = |departure: &Departure| (departure.op, departure.part);
    departures.sort_by(|one, other| {
        other.distance_us().total_cmp(&one.distance_us()).then(key(one).cmp(&key(other)))
    });
    LaneComparison { predicted: expected, measured: found, departures }
}

fn longest_wait(lanes: &Lanes, op: OpIndex) -> Option<LaneCopy> {
    let first = lanes.waits.partition_point(|wait| wait.op < op);
    let own = lanes.waits[first..].iter().take_while(|wait| wait.op == op);
    let long = |wait: &&LaneWait| wait.end_us - wait.start_us;
    let longest = own.max_by(|one, other| long(one).total_cmp(&long(other)))?;
    lanes.copies.get(longest.copy?).copied()
}

/// A piece of work of compute.
enum Work<'a> {
    Op(&'a LaneOp),
    Replay(&'a LaneReplay),
}

impl Work<'_> {
    fn span(&self) -> (f64, f64) {
        match self {
            Work::Op(op) => (op.start_us, op.end_us),
            Work::Replay(replay) => (replay.start_us, replay.end_us),
        }
    }
}

/// What compute spent its time on: the whole step, and each op with what went before it. Time in
/// which two streams compute counts once.
fn shares(lanes: &Lanes) -> (LaneShares, BTreeMap<OpIndex, LaneShares>) {
    let mut works: Vec<Work<'_>> = lanes.ops.iter().map(Work::Op).collect();
    works.extend(lanes.replays.iter().map(Work::Replay));
    works.sort_by(|one, other| one.span().0.total_cmp(&other.span().0));
    let mut waits: BTreeMap<OpIndex, Vec<&LaneWait>> = BTreeMap::new();
    for wait in &lanes.waits {
        waits.entry(wait.op).or_default().push(wait);
    }
    let (mut sum, mut by_op) = (LaneShares::default(), BTreeMap::new());
    let mut busy_until_us = 0.0_f64;
    // Since the last op.
    let (mut gaps, mut replays_us): (Vec<(f64, f64)>, f64) = (Vec::new(), 0.0);
    for work in works {
        let (start_us, end_us) = work.span();
        gaps.extend((start_us > busy_until_us).then_some((busy_until_us, start_us)));
        let from_us = start_us.max(busy_until_us);
        let took_us = (end_us - from_us).max(0.0);
        busy_until_us = busy_until_us.max(end_us);
        let Work::Op(op) = work else {
            replays_us += took_us;
            continue;
        };
        let own = waits.remove(&op.op).unwrap_or_default();
        let waited_in = |(from_us, until_us): (f64, f64)| -> f64 {
            let overlap = |wait: &&LaneWait| {
                (wait.end_us.min(until_us) - wait.start_us.max(from_us)).max(0.0)
            };
            own.iter().map(overlap).sum::<f64>().min(until_us - from_us)
        };
        let before_us: f64 = gaps.iter().map(|&gap| waited_in(gap)).sum();
        let gap_us: f64 = gaps.iter().map(|gap| gap.1 - gap.0).sum();
        let within_us = if took_us > 0.0 { waited_in((from_us, end_us)) } else { 0.0 };
        let shares = LaneShares {
            ops_us: took_us - within_us,
            replays_us: std::mem::take(&mut replays_us),
            waits_us: before_us + within_us,
            idle_us: gap_us - before_us,
        };
        gaps.clear();
        sum.add(&shares);
        by_op.insert(op.op, shares);
    }
    let rest_us = (lanes.step_us - busy_until_us).max(0.0);
    let gap_us: f64 = gaps.iter().map(|gap| gap.1 - gap.0).sum();
    sum.add(&LaneShares { replays_us, idle_us: gap_us + rest_us, ..LaneShares::default() });
    (sum, by_op)
}

impl LaneShares {
    fn add(&mut self, more: &LaneShares) {
        self.ops_us += more.ops_us;
        self.replays_us += more.replays_us;
        self.waits_us += more.waits_us;
        self.idle_us += more.idle_us;
    }

    /// All of it.
    pub fn total_us(&self) -> f64 {
        self.ops_us + self.replays_us + self.waits_us + self.idle_us
    }
}
