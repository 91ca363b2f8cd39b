//! Looks through every plan of the class, and keeps the best.

use std::collections::BTreeSet;

use adaptive::{
    Action, ActionKind, Candidate, Machine, OpIndex, Origin, Phase, Plan, Simulator, Trace,
    TraceEvent, assemble, candidates, replayable_blocks,
};

use super::added_us;

/// Gaps of a step, at most.
const GAPS_MAX: usize = 8;
/// Plans of a step, at most.
const PLANS_MAX: u64 = 200_000;
/// Less is rounding.
const EVEN_US: f64 = 1e-6;

/// The best plan of the class.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// What it adds to the step, in microseconds.
    pub added_us: f64,
    /// The plan.
    pub plan: Plan,
    /// Plans that were looked at.
    pub looked_at: u64,
}

/// The best plan of the class. Nothing if none fits, if the step needs none, or if there are too
/// many gaps or plans to try.
pub fn optimum(trace: &Trace, machine: &Machine) -> Option<Optimum> {
    let live_bytes = live_bytes(trace);
    let limit_bytes = machine.limit_bytes as i64;
    let tight: Vec<bool> = live_bytes.iter().map(|&bytes| bytes > limit_bytes).collect();
    let gap = |candidate| Gap::new(trace, candidate, &tight);
    let gaps: Vec<Gap> = candidates(trace).into_iter().filter_map(gap).collect();
    if gaps.is_empty() || gaps.len() > GAPS_MAX {
        return None;
    }
    let mut search = Search {
        trace,
        limit_bytes,
        simulator: Simulator::new(trace, *machine),
        device_us: trace.ops.iter().map(|op| op.device_us).sum(),
        live_bytes,
        ways: vec![Way::Keep; gaps.len()],
        gaps,
        best: None,
        looked_at: 0,
    };
    search.choose(0, 0.0);
    let Search { best, looked_at, .. } = search;
    best.filter(|_| looked_at < PLANS_MAX).map(|(added_us, plan)| Optimum {
        added_us,
        plan,
        looked_at,
    })
}

/// What a plan does over a gap: the number says at which of its places the block leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Keep,
    Swap(usize),
    Replay(usize),
}

/// A place at which a block can leave.
#[derive(Clone, Copy)]
struct Leave {
    op: OpIndex,
    phase: Phase,
    /// The first event behind which it is away.
    event: i64,
}

/// A gap in events; those from the number of events on are the next step's.
struct Gap {
    candidate: Candidate,
    leaves: Vec<Leave>,
    /// The event that needs it or frees it.
    to: i64,
    /// What a replay takes, if one may end the gap.
    replay_us: Option<f64>,
}

impl Gap {
    /// Nothing if it has no event with too much memory.
    fn new(trace: &Trace, candidate: Candidate, tight: &[bool]) -> Option<Gap> {
        let count = trace.events.len() as i64;
        let find = |wanted: TraceEvent| {
            let place = trace.events.iter().position(|&event| event == wanted);
            place.map(|place| place as i64)
        };
        let left = candidate.leaves_after;
        let from = left.map_or(Some(-1), |op| find(TraceEvent::End(op)))?;
        let next = if candidate.next_step { count } else { 0 };
        let to = match candidate.returns_before {
            Some(op) => find(TraceEvent::Begin(op)).map(|event| event + next),
            None => find(TraceEvent::Free(candidate.block)),
        };
        let to = to.unwrap_or(count);
        let is_tight = |event: &i64| tight[event.rem_euclid(count) as usize];
        let last = (from + 1..to).rfind(is_tight)?;
        let end = left.map(|op| Leave { op, phase: Phase::End, event: from + 1 });
        let begin = |event: i64| match trace.events[event as usize] {
            TraceEvent::Begin(op) => Some(Leave { op, phase: Phase::Begin, event }),
            _ => None,
        };
        let begins = (from + 1..=last.min(count - 1)).filter_map(begin);
        let again = replayable_blocks(trace).into_iter().filter(|one| one.block == candidate.block);
        let quickest = again.map(|one| one.device_us).min_by(f64::total_cmp);
        let here = !candidate.next_step && left.is_some();
        let leaves = end.into_iter().chain(begins).collect();
        Some(Gap { candidate, leaves, to, replay_us: quickest.filter(|_| here) })
    }

    /// The events behind which it can be away.
    fn events(&self, trace: &Trace, leave: usize) -> impl Iterator<Item = usize> + use<> {
        let count = trace.events.len() as i64;
        let from = self.leaves[leave].event;
        (from..self.to).map(move |event| event.rem_euclid(count) as usize)
    }
}

/// Bytes that live behind each event.
fn live_bytes(trace: &Trace) -> Vec<i64> {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut bytes = persistent.map(|block| block.size_bytes as i64).sum::<i64>();
    bytes += trace.segment_bytes as i64;
    let behind = |event: &TraceEvent| {
        match *event {
            TraceEvent::Allocate(block) => {
                bytes += trace.blocks[block.0 as usize].size_bytes as i64
            }
            TraceEvent::Free(block) => bytes -= trace.blocks[block.0 as usize].size_bytes as i64,
            _ => {}
        }
        bytes
    };
    trace.events.iter().map(behind).collect()
}

struct Search<'a> {
    trace: &'a Trace,
    limit_bytes: i64,
    simulator: Simulator<'a>,
    device_us: f64,
    live_bytes: Vec<i64>,
    gaps: Vec<Gap>,
    ways: Vec<Way>,
    best: Option<(f64, Plan)>,
    looked_at: u64,
}

impl Search<'_> {
    fn least_us(&self) -> f64 {
        self.best.as_ref().map_or(f64::INFINITY, |(added_us, _)| *added_us)
    }

    /// Tries all ways of the gaps from one on. Replays run on compute, so what they take is added.
    fn choose(&mut self, gap: usize, replays_us: f64) {
        let least_us = self.least_us();
        let done = least_us <= EVEN_US || self.looked_at >= PLANS_MAX;
        if done || replays_us >= least_us + EVEN_US || !self.can_fit(gap) {
            return;
        }
        if gap == self.gaps.len() {
            return self.place();
        }
        self.choose(gap + 1, replays_us);
        let again_us = match self.gaps[gap].candidate.returns_before {
            Some(_) => self.gaps[gap].replay_us,
            None => self.gaps[gap].replay_us.map(|_| 0.0),
        };
        for leave in 0..self.gaps[gap].leaves.len() {
            self.ways[gap] = Way::Swap(leave);
            self.choose(gap + 1, replays_us);
            if let Some(again_us) = again_us {
                self.ways[gap] = Way::Replay(leave);
                self.choose(gap + 1, replays_us + again_us);
            }
        }
        self.ways[gap] = Way::Keep;
    }

    /// Whether what leaves can make enough room, if from one gap on all that can leaves.
    fn can_fit(&self, first: usize) -> bool {
        let mut bytes = self.live_bytes.clone();
        for (number, gap) in self.gaps.iter().enumerate() {
            let leave = match self.ways[number] {
                _ if number >= first => 0,
                Way::Keep => continue,
                Way::Swap(leave) | Way::Replay(leave) => leave,
            };
            let size_bytes = gap.candidate.size_bytes as i64;
            gap.events(self.trace, leave).for_each(|event| bytes[event] -= size_bytes);
        }
        bytes.iter().all(|&bytes| bytes <= self.limit_bytes)
    }

    /// Tries all orders of the swap-ins.
    fn place(&mut self) {
        let mut bytes = self.live_bytes.clone();
        let mut back = Vec::new();
        for (number, gap) in self.gaps.iter().enumerate() {
            let leave = match self.ways[number] {
                Way::Keep => continue,
                Way::Swap(leave) | Way::Replay(leave) => leave,
            };
            let size_bytes = gap.candidate.size_bytes as i64;
            gap.events(self.trace, leave).for_each(|event| bytes[event] -= size_bytes);
            let copied = matches!(self.ways[number], Way::Swap(_));
            if copied && gap.candidate.returns_before.is_some() {
                back.push((number, leave));
            }
        }
        self.order(&mut back, 0, &mut bytes, &mut Vec::new(), &mut BTreeSet::new());
    }

    /// Tries all orders of the swap-ins behind the first few, which have their places.
    fn order(
        &mut self,
        back: &mut Vec<(usize, usize)>,
        done: usize,
        bytes: &mut Vec<i64>,
        placed: &mut Vec<(usize, OpIndex)>,
        seen: &mut BTreeSet<Vec<(u32, usize)>>,
    ) {
        if done == back.len() {
            self.looked_at += 1;
            // Swap-ins at different operators stand in the operators' order anyway.
            let mut key: Vec<(u32, usize)> = placed.iter().map(|&(gap, op)| (op.0, gap)).collect();
            key.sort_by_key(|&(op, _)| op);
            if self.looked_at < PLANS_MAX && seen.insert(key) {
                self.judge(placed);
            }
            return;
        }
        for next in done..back.len() {
            back.swap(done, next);
            let (number, leave) = back[done];
            let (op, taken) = self.issue(number, leave, bytes);
            let size_bytes = self.gaps[number].candidate.size_bytes as i64;
            taken.iter().for_each(|&event| bytes[event] += size_bytes);
            placed.push((number, op));
            self.order(back, done + 1, bytes, placed, seen);
            placed.pop();
            taken.iter().for_each(|&event| bytes[event] -= size_bytes);
            back.swap(done, next);
        }
    }

    /// The first operator from which on there is room, and the events behind which it takes some.
    fn issue(&self, number: usize, leave: usize, bytes: &[i64]) -> (OpIndex, Vec<usize>) {
        let gap = &self.gaps[number];
        let count = self.trace.events.len() as i64;
        let size_bytes = gap.candidate.size_bytes as i64;
        let mut first = (gap.to, gap.candidate.returns_before.expect("it comes back"));
        for event in (gap.leaves[leave].event..gap.to).rev() {
            let place = event.rem_euclid(count) as usize;
            if bytes[place] + size_bytes > self.limit_bytes {
                break;
            }
            if let TraceEvent::Begin(op) = self.trace.events[place] {
                first = (event, op);
            }
        }
        let taken = (first.0..gap.to).map(|event| event.rem_euclid(count) as usize);
        (first.1, taken.collect())
    }

    fn judge(&mut self, placed: &[(usize, OpIndex)]) {
        let plan = self.plan(placed);
        let least_us = self.least_us();
        let [_, second] = &self.simulator.steps(&plan, 2)[..] else { return };
        if !second.went_to_plan() || second.step_us - self.device_us >= least_us - EVEN_US {
            return;
        }
        if let Some(us) = added_us(&self.simulator, self.trace, &plan)
            && us < least_us - EVEN_US
        {
            self.best = Some((us.max(0.0), plan));
        }
    }

    fn plan(&self, placed: &[(usize, OpIndex)]) -> Plan {
        let (mut leaves, mut ins, mut replays) = (Vec::new(), Vec::new(), Vec::new());
        let act = |op, phase, kind, block| Action { op, phase, kind, block, due: op };
        for (gap, &way) in self.gaps.iter().zip(&self.ways) {
            let Candidate { block, returns_before, .. } = gap.candidate;
            let (kind, leave) = match way {
                Way::Keep => continue,
                Way::Swap(leave) => (ActionKind::SwapOut, gap.leaves[leave]),
                Way::Replay(leave) => (ActionKind::Discard, gap.leaves[leave]),
            };
            leaves.push(act(leave.op, leave.phase, kind, block));
            if kind == ActionKind::Discard
                && let Some(op) = returns_before
            {
                replays.push(act(op, Phase::Begin, ActionKind::Replay, block));
            }
        }
        for &(number, op) in placed {
            let gap = &self.gaps[number];
            let Candidate { block, returns_as, next_step, .. } = gap.candidate;
            // In the next step it may have another name.
            let before_end = gap.candidate.leaves_after.is_some_and(|left| left < op);
            let name = if next_step && !before_end { returns_as } else { block };
            ins.push(act(op, Phase::Begin, ActionKind::SwapIn, name));
        }
        let mut actions: Vec<Action> = leaves.into_iter().chain(ins).chain(replays).collect();
        actions.sort_by_key(|action| (action.op, action.phase));
        assemble(self.trace, actions)
    }
}
