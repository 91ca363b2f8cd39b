//! Time and memory of a step under a plan, by the executor's own rules.
//!
//! Memory follows the order of calls alone, through the same [`ChunkCache`] as the pool, so the
//! bytes are exact. Time has three engines: compute, which runs ops one after the other, and one
//! copy engine each way. The host asks for each op, and where it is late compute waits for it. It
//! is taken to issue copies when compute reaches the call; a real host runs ahead, so copies can
//! only start earlier than simulated.
//!
//! [`ChunkCache`]: swap_core::ChunkCache

use swap_core::{BlockIndex, Direction, OpIndex, Phase, Plan, Trace, TraceEvent};

use crate::machine::Machine;
use crate::usage::{NONE, Usage};

mod link;
mod memory;
mod owed;
mod residency;
mod state;

pub(crate) use residency::{Change, Residency, laid_out_us, residency};
use state::{BlockState, State};

/// A span of time from the step's start, in microseconds. It may end after the step does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// When it starts.
    pub start_us: f64,
    /// When it ends.
    pub end_us: f64,
}

/// One copy between device and host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopySpan {
    /// The block.
    pub block: BlockIndex,
    /// Which way.
    pub direction: Direction,
    /// Its bytes.
    pub size_bytes: u64,
    /// When compute had come to the call, in microseconds from the step's start.
    pub called_us: f64,
    /// When.
    pub span: Span,
}

/// One producer that ran again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplaySpan {
    /// The block that came back.
    pub block: BlockIndex,
    /// The op that made it.
    pub op: OpIndex,
    /// When.
    pub span: Span,
}

/// An allocation that found no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// Where: the op that was about to begin or under way.
    pub op: OpIndex,
    /// Bytes that were missing.
    pub missing_bytes: u64,
}

/// One simulated step.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulation {
    /// Time from the step's first op to its end, in microseconds.
    pub step_us: f64,
    /// Time that compute waited for copies, in microseconds.
    pub stall_us: f64,
    /// The most physical bytes held: blocks, cached chunks and segments.
    pub held_bytes_peak: u64,
    /// The most bytes of resident blocks and segments.
    pub resident_bytes_peak: u64,
    /// The most pinned host bytes in use.
    pub host_bytes_peak: u64,
    /// Bytes copied to the host.
    pub swapped_out_bytes: u64,
    /// Bytes copied back.
    pub swapped_in_bytes: u64,
    /// Blocks that left without a copy.
    pub clean_swap_outs: u64,
    /// Ops that ran again.
    pub recomputed_ops: u64,
    /// Time of ops that ran again, in microseconds.
    pub recomputed_us: f64,
    /// Touches of a block that was away and not asked for.
    pub misses: u64,
    /// Allocations that evicted somebody on the spot.
    pub rescues: u64,
    /// Chunks that were made because the cache had none of the size.
    pub new_chunks: u64,
    /// Each op's time, by index. Nested ones have the span of the op around them.
    pub ops: Vec<Span>,
    /// When the host asked for each op and when it went on to the next, by index; empty where the
    /// host's times are not known.
    pub hosts: Vec<Span>,
    /// Copies issued during the step, in order of issue.
    pub copies: Vec<CopySpan>,
    /// Replays, in order.
    pub replays: Vec<ReplaySpan>,
    /// Bytes of resident blocks and segments after each event.
    pub resident_bytes_by_event: Vec<u64>,
    /// Set if memory ran out; the rest then describes the step only up to there.
    pub shortfall: Option<Shortfall>,
}

impl Simulation {
    /// Whether the plan did all the work: no misses, no rescues, enough memory.
    pub fn went_to_plan(&self) -> bool {
        self.misses == 0 && self.rescues == 0 && self.shortfall.is_none()
    }
}

/// Simulates one step in the steady state: the second of two steps in a row.
///
/// # Panics
/// If the trace is not well formed ([`check_trace`](crate::check_trace)), or if a rate of the link
/// is not above 0.
pub fn simulate(trace: &Trace, plan: &Plan, machine: &Machine) -> Simulation {
    let usage = Usage::new(trace);
    simulate_with(trace, &usage, plan, machine)
}

pub(crate) fn simulate_with(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
) -> Simulation {
    second_step(trace, usage, plan, machine, |state| state.report())
}

/// The same if the step goes to plan and takes less than some time.
pub(crate) fn simulate_if_faster(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
    than_us: f64,
) -> Option<Simulation> {
    second_step(trace, usage, plan, machine, |state| {
        (state.goes_to_plan() && state.step_us() < than_us).then(|| state.report())
    })
}

fn second_step<T>(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
    look: impl FnOnce(&State<'_>) -> T,
) -> T {
    let actions = ActionTable::new(trace, plan);
    let mut state = State::new(trace, usage, *machine, &actions);
    run_step(&mut state, &actions);
    state.roll_over();
    run_step(&mut state, &actions);
    look(&state)
}

/// What each of some steps in a row takes, in microseconds. Fewer, if memory runs out.
pub(crate) fn steps_us(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
    count: usize,
) -> Vec<f64> {
    let took_us = |state: &State<'_>| state.shortfall.is_none().then(|| state.step_us());
    steps_in_a_row(trace, usage, plan, machine, count, took_us).into_iter().flatten().collect()
}

/// Looks at each of so many steps in a row, the last of which may run out of memory.
fn steps_in_a_row<T>(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
    count: usize,
    look: impl Fn(&State<'_>) -> T,
) -> Vec<T> {
    let actions = ActionTable::new(trace, plan);
    let mut state = State::new(trace, usage, *machine, &actions);
    let mut seen = Vec::new();
    while seen.len() < count && (seen.is_empty() || state.shortfall.is_none()) {
        if !seen.is_empty() {
            state.roll_over();
        }
        run_step(&mut state, &actions);
        seen.push(look(&state));
    }
    seen
}

/// Steps in a row, one at a time, each from where the last one ended.
#[derive(Debug)]
pub struct Simulator<'a> {
    trace: &'a Trace,
    usage: Usage,
    machine: Machine,
}

impl<'a> Simulator<'a> {
    /// Prepares the lookups on a trace once, for many simulations.
    ///
    /// # Panics
    /// If the trace is not well formed.
    pub fn new(trace: &'a Trace, machine: Machine) -> Simulator<'a> {
        Simulator { trace, usage: Usage::new(trace), machine }
    }

    /// Simulates `count` steps in a row under a plan. The first starts with every persistent
    /// block resident, or away if the plan leaves it away or there is no room.
    ///
    /// Stops after the first step that runs out of memory.
    pub fn steps(&self, plan: &Plan, count: usize) -> Vec<Simulation> {
        steps_in_a_row(self.trace, &self.usage, plan, &self.machine, count, |state| state.report())
    }
}

/// A plan's actions by op and phase.
#[derive(Debug)]
pub(crate) struct ActionTable {
    actions: Vec<swap_core::Action>,
    /// Where the actions of each (op, phase) start.
    start: Vec<u32>,
}

impl ActionTable {
    fn new(trace: &Trace, plan: &Plan) -> ActionTable {
        let place = |op: OpIndex, phase: Phase| 2 * op.0 as usize + phase as usize;
        let legal = |action: &&swap_core::Action| {
            (action.op.0 as usize) < trace.ops.len()
                && (action.block.0 as usize) < trace.blocks.len()
        };
        let mut actions: Vec<_> = plan.actions.iter().filter(legal).copied().collect();
        actions.sort_by_key(|action| place(action.op, action.phase));
        let mut start = vec![0; 2 * trace.ops.len() + 1];
        for action in &actions {
            start[place(action.op, action.phase) + 1] += 1;
        }
        for index in 1..start.len() {
            start[index] += start[index - 1];
        }
        ActionTable { actions, start }
    }

    fn at(&self, op: OpIndex, phase: Phase) -> &[swap_core::Action] {
        let place = 2 * op.0 as usize + phase as usize;
        &self.actions[self.start[place] as usize..self.start[place + 1] as usize]
    }

    fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    fn all(&self) -> &[swap_core::Action] {
        &self.actions
    }
}

/// One pass over the trace. Stops where memory runs out.
fn run_step(state: &mut State<'_>, actions: &ActionTable) {
    state.start_step();
    if state.shortfall.is_some() {
        return;
    }
    for (position, &event) in state.trace.events.iter().enumerate() {
        state.event = position;
        if let Err(missing_bytes) = run_event(state, actions, event) {
            let slot = state.usage.event_slot[position] as usize;
            let last = OpIndex(state.trace.ops.len() as u32);
            let op = state.usage.slots.get(slot).copied().unwrap_or(last);
            state.shortfall = Some(Shortfall { op, missing_bytes });
            break;
        }
        state.curve.push(state.resident_bytes);
    }
    state.wait_for_host();
}

/// Something small changes in the op that begins: what was dropped and is made from it is made
/// before that.
fn bring_outdated_back(state: &mut State<'_>) -> Result<(), u64> {
    let usage = state.usage;
    for block in usage.outdated_at(state.event) {
        let now = state.blocks[block];
        let is_made_of_it = || usage.recipes[block][now.recipe].until_event as usize == state.event;
        if now.state == BlockState::Discarded && is_made_of_it() {
            state.counts.misses += 1;
            state.bring_dropped_back(block)?;
        }
    }
    Ok(())
}

fn run_event(state: &mut State<'_>, actions: &ActionTable, event: TraceEvent) -> Result<(), u64> {
    match event {
        TraceEvent::Begin(op) => {
            state.wait_for_host();
            state.boundary(actions.at(op, Phase::Begin))?;
            state.begin();
            bring_outdated_back(state)?;
        }
        TraceEvent::Touch(block, mode) => state.touch(block.0, mode)?,
        TraceEvent::Allocate(block) => state.allocate(block.0)?,
        TraceEvent::Free(block) => state.free(block.0),
        TraceEvent::Segments(size_bytes) => state.grow_segments(size_bytes)?,
        TraceEvent::End(op) => {
            state.end(op);
            state.boundary(actions.at(op, Phase::End))?;
        }
    }
    Ok(())
}

/// Persistent blocks that the plan leaves away at its end.
pub(crate) fn left_away(usage: &Usage, actions: &ActionTable) -> Vec<bool> {
    let mut away = vec![false; usage.successor.len()];
    for action in actions.all() {
        let index = action.block.0 as usize;
        let successor = usage.successor[index];
        if successor == NONE {
            continue;
        }
        match action.kind {
            swap_core::ActionKind::SwapOut => away[successor as usize] = true,
            swap_core::ActionKind::SwapIn => away[successor as usize] = false,
            swap_core::ActionKind::Discard | swap_core::ActionKind::Replay => {}
        }
    }
    away
}
