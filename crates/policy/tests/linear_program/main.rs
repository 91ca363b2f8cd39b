//! The lower bound against a linear program, on steps too large to try every plan.
//!
//! The program is a relaxation of planning, written anew from the trace: it knows nothing of how
//! the bound is found. A step in the steady state is a circle of waits and ops, a wait before each
//! op. What may be in a plan whole or not at all may be in the program by any share, and the copies
//! of one direction share the link by any fractions. In each wait and each op no more can be copied
//! than its time allows; each copy takes its submit time and its bytes' time. Bytes that move the
//! other way take a share of that time, except while a copy is submitted. A block's copy out
//! must be made once for each version of its bytes, in gaps of that version, and the use behind
//! such a gap waits for it; its copy in must be over when the gap is. When an op begins and when it
//! ends, the shares that are away make up for what is above the limit, in whole blocks
//! (`whole.rs`). Waits and replays are to be least.
//!
//! Every steady step under a plan is a solution, so its added time is at least the optimum. The
//! bound must not be above the optimum either: then it holds whatever the plan. One wait serves
//! both directions: what must be back when it ends and what may leave when it begins. So,
//!
//! ```text
//!   bound <= optimum of the program <= any plan that goes to plan, once it is steady
//! ```

use std::collections::BTreeMap;

use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Problem, SolveOutcome, Variable};
use policy::{
    AccessMode, Candidate, GenerateConfig, Generator, Link, Machine, OpIndex, Plan,
    RecomputeOption, Trace, TraceEvent, candidates, generate, replayable_blocks, simulate,
};

mod steps;
mod whole;

use steps::{steady_us, step};
use whole::{Open, Whole, add_away};

const CASES: u64 = 36;

fn machine(limit_bytes: u64) -> Machine {
    Machine {
        limit_bytes,
        host_limit_bytes: u64::MAX / 8,
        link: Link {
            out_bytes_per_us: 2_500.0,
            in_bytes_per_us: 2_000.0,
            both_bytes_per_us: 1_600.0,
        },
        copy_submit_us: 5.0,
    }
}

/// A step cut into slots: an outermost op and the calls before it.
struct Slots<'a> {
    trace: &'a Trace,
    /// By event.
    of_event: Vec<usize>,
    /// Events that begin and end each op.
    spans: Vec<(usize, usize)>,
    /// Times of outermost ops, and nothing for the slot behind the last.
    us: Vec<f64>,
}

impl<'a> Slots<'a> {
    fn new(trace: &'a Trace) -> Slots<'a> {
        let mut slots = Slots { trace, of_event: vec![], spans: vec![], us: vec![] };
        let mut open = Vec::new();
        for (position, event) in trace.events.iter().enumerate() {
            slots.of_event.push(slots.us.len());
            match *event {
                TraceEvent::Begin(op) => {
                    open.push(op.0 as usize);
                    slots.spans.push((position, position));
                }
                TraceEvent::End(_) => {
                    let op = open.pop().expect("ops nest");
                    slots.spans[op].1 = position;
                    if open.is_empty() {
                        slots.us.push(trace.ops[op].device_us);
                    }
                }
                _ => {}
            }
        }
        slots.us.push(0.0);
        slots
    }

    fn count(&self) -> usize {
        self.us.len()
    }

    fn of_op(&self, op: OpIndex) -> i64 {
        self.of_event[self.spans[op.0 as usize].0] as i64
    }

    fn freed(&self, block: u32) -> Option<i64> {
        let frees = |event: &TraceEvent| matches!(event, TraceEvent::Free(b) if b.0 == block);
        let event = self.trace.events.iter().position(frees)?;
        Some(self.of_event[event] as i64)
    }

    /// The slots that change a block's bytes.
    fn writes(&self, block: u32) -> Vec<i64> {
        let events = self.trace.events.iter().enumerate();
        let writes = |event: &TraceEvent| match *event {
            TraceEvent::Allocate(b) => b.0 == block,
            TraceEvent::Touch(b, mode) => b.0 == block && mode != AccessMode::Read,
            _ => false,
        };
        events.filter(|(_, e)| writes(e)).map(|(at, _)| self.of_event[at] as i64).collect()
    }

    /// By slot: bytes that its op needs, or that nothing but a gap can have moved by then.
    fn need_bytes(&self) -> Vec<u64> {
        let trace = self.trace;
        let block_of = |event: &TraceEvent| match *event {
            TraceEvent::Touch(b, _) | TraceEvent::Allocate(b) | TraceEvent::Free(b) => Some(b.0),
            _ => None,
        };
        let mut segment_bytes = trace.segment_bytes;
        let mut busy = vec![Vec::new(); self.count()];
        for (event, &slot) in trace.events.iter().zip(&self.of_event) {
            busy[slot].extend(block_of(event));
            if let TraceEvent::Segments(bytes) = *event {
                segment_bytes = segment_bytes.max(bytes);
            }
        }
        let persistent = |b: &policy::TraceBlock| b.origin == policy::Origin::Persistent;
        let mut live: Vec<bool> = trace.blocks.iter().map(persistent).collect();
        let mut open: Vec<Vec<u32>> = Vec::new();
        let mut need_bytes = vec![0; self.count()];
        for (event, &slot) in trace.events.iter().zip(&self.of_event) {
            match *event {
                TraceEvent::Begin(_) => open.push(Vec::new()),
                TraceEvent::End(_) => drop(open.pop()),
                TraceEvent::Free(b) => live[b.0 as usize] = false,
                TraceEvent::Allocate(b) => live[b.0 as usize] = true,
                _ => {}
            }
            if let TraceEvent::Touch(b, _) | TraceEvent::Allocate(b) = *event
                && let Some(pins) = open.last_mut()
            {
                pins.push(b.0);
            }
            let held = |&index: &usize| {
                let block = index as u32;
                let pinned = open.iter().any(|pins| pins.contains(&block));
                live[index] && (pinned || !busy[slot].contains(&block))
            };
            let blocks = (0..live.len()).filter(held);
            let bytes: u64 = blocks.map(|index| trace.blocks[index].size_bytes).sum();
            need_bytes[slot] = need_bytes[slot].max(bytes + segment_bytes);
        }
        need_bytes
    }
}

/// A gap on a line of slots: those of the last step are negative, those of the next follow.
struct Gap {
    block: u32,
    from: i64,
    to: i64,
    returns: bool,
    /// The bytes that it holds: a block, and how many slots of the step had changed it.
    version: (u32, usize),
    /// The host has them for ever.
    clean: bool,
    /// The slot that wrote them.
    written: Option<i64>,
    /// What making the block again takes, if that is possible.
    replay_us: Option<f64>,
}

impl Gap {
    fn new(slots: &Slots<'_>, candidate: &Candidate) -> Gap {
        let count = slots.count() as i64;
        let (block, again) = (candidate.block.0, candidate.returns_as.0);
        let mut from = candidate.leaves_after.map_or(-1, |op| slots.of_op(op));
        let freed = slots.freed(block);
        let mut to = match (candidate.returns_before, freed) {
            (Some(op), _) => slots.of_op(op) + if candidate.next_step { count } else { 0 },
            (None, Some(freed)) => freed,
            (None, None) => slots.freed(again).map_or(count, |freed| count + freed),
        };
        let returns = candidate.returns_before.is_some();
        let writes = slots.writes(block);
        let before = writes.iter().filter(|&&slot| slot <= from).collect::<Vec<_>>();
        let mut distinct = before.clone();
        distinct.dedup();
        let mut version = (block, distinct.len());
        let mut written = before.last().copied().copied();
        if candidate.next_step || (freed.is_none() && !returns) {
            version = (again, 0);
            (from, to) = (from - count, to - count);
            written = written.map(|slot| slot - count);
        }
        let clean = writes.is_empty() && again == block || from < -count;
        Gap { block, from, to, returns, version, clean, written, replay_us: None }
    }

    /// Lets it end with a replay if an op whose inputs are unchanged could make the block again.
    fn with_replay(mut self, slots: &Slots<'_>, options: &[RecomputeOption]) -> Gap {
        let trace = slots.trace;
        let offered = options.iter().any(|option| option.block.0 == self.block);
        if !offered || self.from < 0 {
            return self;
        }
        let left = slots.of_event.partition_point(|&slot| slot as i64 <= self.from);
        let can = |producer: OpIndex| {
            let (begin, end) = slots.spans[producer.0 as usize];
            let parts: Vec<u32> = trace.events[begin..end]
                .iter()
                .filter_map(|e| if let TraceEvent::Touch(b, _) = e { Some(b.0) } else { None })
                .collect();
            let changes = |event: &TraceEvent| match *event {
                TraceEvent::Free(b) => parts.contains(&b.0),
                TraceEvent::Touch(b, mode) => mode != AccessMode::Read && parts.contains(&b.0),
                _ => false,
            };
            // What the last op before the gap changes or frees is changed before the gap.
            let last = slots.spans.iter().map(|span| span.1).filter(|&at| at < left).max();
            end < left && !trace.events[end..=last.unwrap_or(end)].iter().any(changes)
        };
        let producers = replayable_blocks(trace).into_iter().filter(|r| r.block.0 == self.block);
        let costs = producers.filter(|r| can(r.producer));
        let costs = costs.map(|r| r.device_us);
        self.replay_us = costs.min_by(f64::total_cmp);
        self
    }
}

/// What a part's time is spent on: copies out, copies in, and replays.
type Spent = [Vec<(Variable, f64)>; 3];

/// The program as it is written. Time runs over *parts*, two for each slot: part `2 * slot` is
/// the wait before its op, the part after it the op.
struct Program<'a> {
    slots: &'a Slots<'a>,
    machine: &'a Machine,
    problem: Problem,
    waits: Vec<Variable>,
    /// By part.
    spent: Vec<Spent>,
    excess_bytes: Vec<u64>,
    /// Copies out, each in one gap.
    whole: Vec<Whole>,
    /// By part with too much memory: what can be away at its end.
    open: BTreeMap<usize, Vec<Open>>,
    /// By version: the parts of its copy out.
    copies: BTreeMap<(u32, usize), BTreeMap<i64, Variable>>,
}

impl<'a> Program<'a> {
    fn new(slots: &'a Slots<'a>, machine: &'a Machine) -> Program<'a> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let waits = slots.us.iter().map(|_| problem.add_var(1.0, (0.0, f64::INFINITY))).collect();
        let need_bytes = slots.need_bytes().into_iter();
        Program {
            slots,
            machine,
            problem,
            waits,
            spent: vec![Default::default(); 2 * slots.count()],
            excess_bytes: need_bytes.map(|n| n.saturating_sub(machine.limit_bytes)).collect(),
            whole: Vec::new(),
            open: BTreeMap::new(),
            copies: BTreeMap::new(),
        }
    }

    fn round(&self, part: i64) -> usize {
        part.rem_euclid(2 * self.slots.count() as i64) as usize
    }

    fn share(&mut self) -> Variable {
        self.problem.add_var(0.0, (0.0, 1.0))
    }

    /// The parts inside a gap at whose ends too much memory is needed.
    fn tight(&self, gap: &Gap) -> Vec<i64> {
        let parts = 2 * (gap.from + 1)..2 * gap.to;
        parts.filter(|&part| self.excess_bytes[self.round(part) / 2] > 0).collect()
    }

    /// The copy out of each version, in all gaps that hold it.
    fn add_copies_out(&mut self, gaps: &[Gap]) {
        let mut last: BTreeMap<(u32, usize), i64> = BTreeMap::new();
        for gap in gaps {
            if let Some(&part) = self.tight(gap).last() {
                let last = last.entry(gap.version).or_insert(part);
                *last = part.max(*last);
            }
        }
        for gap in gaps.iter().filter(|gap| !gap.clean) {
            // A copy that ends later is of no use.
            let Some(&last) = last.get(&gap.version) else { continue };
            let size_bytes = self.slots.trace.blocks[gap.block as usize].size_bytes;
            let us = self.machine.out_us(size_bytes);
            let mut own = Vec::new();
            for part in 2 * (gap.from + 1)..=last.min(2 * gap.to) {
                let share = self.share();
                own.push(share);
                self.copies.entry(gap.version).or_default().insert(part, share);
                let round = self.round(part);
                self.spent[round][0].push((share, us));
            }
            if gap.returns {
                let slots = (gap.from + 1..=gap.to).map(|slot| self.round(2 * slot) / 2);
                self.whole.push(Whole { slots: slots.collect(), copies: own, us });
            }
        }
    }

    fn add_gap(&mut self, gap: &Gap) {
        let tight = self.tight(gap);
        let Some(&first) = tight.first() else { return };
        let size_bytes = self.slots.trace.blocks[gap.block as usize].size_bytes;
        let swapped = self.share();
        let mut copied_in = Vec::new();
        if gap.returns {
            for part in first + 1..=2 * gap.to {
                let share = self.share();
                copied_in.push((part, share));
                let round = self.round(part);
                self.spent[round][1].push((share, self.machine.in_us(size_bytes)));
            }
            let sum = copied_in.iter().map(|&(_, share)| (share, 1.0)).chain([(swapped, -1.0)]);
            self.problem.add_constraint(sum.collect::<Vec<_>>(), ComparisonOp::Eq, 0.0);
        }
        let replays = gap.replay_us.map(|us| self.add_replays(gap, swapped, us));
        for part in tight {
            let away = self.share();
            let mut open = Open {
                size_bytes,
                shares: vec![away],
                ahead: gap.returns.then_some(2 * gap.to - part),
                behind: gap.written.filter(|_| !gap.clean).map(|slot| part - 2 * slot),
            };
            self.at_most(away, swapped, &copied_in, part);
            if !gap.clean {
                let copies = self.copies[&gap.version].range(..=part);
                let mut sum: Vec<_> = copies.map(|(_, &share)| (share, -1.0)).collect();
                sum.push((away, 1.0));
                self.problem.add_constraint(sum, ComparisonOp::Le, 0.0);
            }
            if let Some((dropped, replays)) = &replays {
                let away = self.share();
                open.shares.push(away);
                self.at_most(away, *dropped, replays, part);
            }
            let round = self.round(part);
            self.open.entry(round).or_default().push(open);
        }
    }

    /// What is away at a part's end is no more than has left, less what has come back.
    fn at_most(&mut self, away: Variable, left: Variable, back: &[(i64, Variable)], part: i64) {
        let back = back.iter().filter(|&&(at, _)| at <= part).map(|&(_, share)| (share, 1.0));
        let sum: Vec<_> = back.chain([(away, 1.0), (left, -1.0)]).collect();
        self.problem.add_constraint(sum, ComparisonOp::Le, 0.0);
    }

    /// Shares of replays in the waits of a gap; with the swapped share they are at most one.
    fn add_replays(
        &mut self,
        gap: &Gap,
        swapped: Variable,
        us: f64,
    ) -> (Variable, Vec<(i64, Variable)>) {
        let dropped = self.share();
        self.problem.add_constraint([(dropped, 1.0), (swapped, 1.0)], ComparisonOp::Le, 1.0);
        let mut replays = Vec::new();
        if gap.returns {
            for slot in gap.from + 1..=gap.to {
                let share = self.problem.add_var(us, (0.0, 1.0));
                replays.push((2 * slot, share));
                let round = self.round(2 * slot);
                self.spent[round][2].push((share, us));
            }
            let sum = replays.iter().map(|&(_, share)| (share, 1.0)).chain([(dropped, -1.0)]);
            self.problem.add_constraint(sum.collect::<Vec<_>>(), ComparisonOp::Eq, 0.0);
        }
        (dropped, replays)
    }

    /// The least added time in microseconds; nothing if no share of anything makes it fit.
    fn solve(mut self) -> Option<f64> {
        for whole in &self.whole {
            whole.add_waits(&mut self.problem, &self.slots.us, &self.waits, &self.spent);
        }
        for (part, [out, back, replays]) in self.spent.iter().enumerate() {
            let link = self.machine.link;
            let [out_share, in_share] = [link.out_bytes_per_us, link.in_bytes_per_us]
                .map(|alone| link.both_bytes_per_us.min(alone) / alone);
            let submit_us = self.machine.copy_submit_us;
            let none = Vec::new();
            for (copies, others, taken) in [
                (out, &none, 0.0),
                (back, &none, 0.0),
                (out, back, (1.0 - out_share) / in_share),
                (back, out, (1.0 - in_share) / out_share),
            ] {
                let own = copies.iter().map(|&(share, us)| (share, us - taken * submit_us));
                let other = others.iter().map(|&(share, us)| (share, taken * (us - submit_us)));
                let mut sum: LinearExpr = own.chain(other).collect();
                let mut time_us = 0.0;
                if part % 2 == 0 {
                    sum.add(self.waits[part / 2], -1.0);
                    replays.iter().for_each(|&(share, us)| sum.add(share, -us));
                } else {
                    time_us = self.slots.us[part / 2];
                }
                self.problem.add_constraint(sum, ComparisonOp::Le, time_us);
            }
        }
        for (slot, &bytes) in self.excess_bytes.iter().enumerate().filter(|(_, b)| **b > 0) {
            for part in [2 * slot, 2 * slot + 1] {
                add_away(&mut self.problem, &self.open.remove(&part)?, bytes)?;
            }
        }
        match self.problem.solve().ok()? {
            SolveOutcome::Solution(solution) => Some(solution.objective()),
            SolveOutcome::Interrupted(_) => None,
        }
    }
}

/// What the trace's step takes at least beyond its own time.
fn optimum(trace: &Trace, machine: &Machine, options: &[RecomputeOption]) -> Option<f64> {
    let slots = Slots::new(trace);
    let gaps: Vec<Gap> = candidates(trace)
        .iter()
        .map(|candidate| Gap::new(&slots, candidate).with_replay(&slots, options))
        .collect();
    let mut program = Program::new(&slots, machine);
    program.add_copies_out(&gaps);
    for gap in &gaps {
        program.add_gap(gap);
    }
    program.solve()
}

#[test]
fn the_bound_is_below_the_linear_program_and_that_below_every_plan() {
    let (mut solved, mut above, mut near, mut replayed, mut met, mut seed) = (0, 0, 0, 0, 0, 0);
    let config = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let (mut shares, mut slowed) = (Vec::new(), 0);
    while solved < CASES {
        seed += 1;
        let trace = step(seed);
        let peak_bytes = simulate(&trace, &Plan::default(), &machine(1 << 50)).resident_bytes_peak;
        let machine = machine(peak_bytes * (60 + seed % 35) / 100);
        let blocks = replayable_blocks(&trace).into_iter().filter(|_| seed % 2 == 0);
        let options: Vec<RecomputeOption> =
            blocks.map(|r| RecomputeOption { block: r.block, replay_us: r.device_us }).collect();
        let made = generate(&trace, &machine, &config, &options);
        if made.plan.actions.is_empty() || made.infeasible.is_some() {
            continue;
        }
        let Some(least_us) = optimum(&trace, &machine, &options) else {
            panic!("seed {seed}: there is a plan, but the program has no solution");
        };
        let slack_us = 1e-6 * made.unlimited_us;
        let bound_us = Generator::new(&trace, &machine).bound_us(&options);
        assert!(
            bound_us.max(made.windows_us) <= least_us + slack_us,
            "seed {seed}: {bound_us} above {least_us}"
        );
        if let Some(added_us) = steady_us(&trace, &made.plan, &machine) {
            assert!(least_us <= added_us + slack_us, "seed {seed}: {least_us} above {added_us}");
            met += u64::from(added_us <= 1.02 * least_us + slack_us);
            replayed += u64::from(made.simulation.recomputed_ops > 0);
        }
        solved += 1;
        above += u64::from(bound_us > slack_us);
        let link = Link { both_bytes_per_us: f64::INFINITY, ..machine.link };
        let alone_us = Generator::new(&trace, &Machine { link, ..machine }).bound_us(&options);
        slowed += u64::from(bound_us > alone_us + slack_us);
        near += u64::from(bound_us > slack_us && bound_us >= 0.9 * least_us);
        if least_us > slack_us {
            shares.push(bound_us / least_us);
        }
    }
    shares.sort_by(f64::total_cmp);
    println!(
        "{solved} programs of {seed} steps; bound above 0: {above}, within 10 % of the optimum: \
         {near}, its median share {:.3}; plans within 2 % of the optimum: {met}; with replays: \
         {replayed}; bounds that count copies the other way: {slowed}",
        shares[shares.len() / 2]
    );
    let seen = (above, near, replayed, met);
    assert!(above > CASES / 3 && near > CASES / 6 && replayed > CASES / 6, "too little: {seen:?}");
    assert!(slowed > CASES / 12, "only {slowed} bounds count copies the other way");
    assert!(met > CASES / 10, "the program is too weak to say anything: {seen:?}");
}
