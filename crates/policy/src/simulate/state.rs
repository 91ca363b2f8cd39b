//! The simulator's clockwork: the op stack, the three engines, and what a step counts.

use std::collections::VecDeque;

use swap_core::{
    AccessMode, Action, ActionKind, BlockIndex, ChunkCache, Direction, Fit, OpIndex, Origin, Trace,
    TraceBlock,
};

use super::link::{CopyId, Engines};
use super::owed::Owed;
use super::residency::{Change, Lots};
use super::{ActionTable, CopySpan, ReplaySpan, Shortfall, Simulation, Span, left_away};
use crate::host::HostLane;
use crate::machine::Machine;
use crate::usage::{NONE, Usage};

/// Where a block's bytes are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockState {
    /// It does not live.
    Absent,
    Resident,
    Away,
    Discarded,
}

/// A moment on compute: a time, or the end of an outermost op, whichever is later.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) floor_us: f64,
    /// Number of the op, counted over all steps and replays; [`NONE`] for none.
    pub(super) op: u32,
}

/// When a chunk can be used: after work on compute and after a copy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ready {
    pub(super) last_use: Moment,
    pub(super) copy: CopyId,
    /// Whether it was freed, so that compute finds it ready in its own order.
    pub(super) freed: bool,
    /// The block that gave it away and can still take it back, by its identity; 0 for none.
    pub(super) owner: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// Tells blocks of all steps apart; 0 before it is born.
    pub(super) identity: u64,
    pub(super) state: BlockState,
    pub(super) pins: u32,
    /// Whether the host has its present bytes.
    pub(super) slot: bool,
    pub(super) last_use: Moment,
    /// Rank of its last use among all uses.
    pub(super) last_rank: u64,
    /// The copy that brought it back last.
    pub(super) arrival: CopyId,
    /// The copy that took it away last.
    pub(super) departure: CopyId,
    /// Whether it waits in the queue of moves that were put off.
    pub(super) put_off: bool,
    /// The number of the recipe that brings it back while it is discarded.
    pub(super) recipe: usize,
    /// Dropped for others that are made from it, of which none is dropped yet.
    pub(super) awaits_dependents: bool,
    /// Freed by its owner, kept to replay others.
    pub(super) free_wanted: bool,
}

pub(super) const NEVER: Moment = Moment { floor_us: 0.0, op: NONE };

const UNBORN: Block = Block {
    identity: 0,
    state: BlockState::Absent,
    pins: 0,
    slot: false,
    recipe: 0,
    awaits_dependents: false,
    free_wanted: false,
    last_use: NEVER,
    last_rank: 0,
    arrival: NONE,
    departure: NONE,
    put_off: false,
};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) stall_us: f64,
    pub(super) swapped_out_bytes: u64,
    pub(super) swapped_in_bytes: u64,
    pub(super) clean_swap_outs: u64,
    pub(super) recomputed_ops: u64,
    pub(super) recomputed_us: f64,
    pub(super) misses: u64,
    pub(super) rescues: u64,
    pub(super) new_chunks: u64,
    pub(super) resident_bytes_peak: u64,
    pub(super) host_bytes_peak: u64,
}

pub(super) struct State<'a> {
    pub(super) trace: &'a Trace,
    pub(super) usage: &'a Usage,
    pub(super) machine: Machine,
    pub(super) cache: ChunkCache<Ready>,
    pub(super) owed: Owed,
    pub(super) blocks: Vec<Block>,
    /// By block: discarded blocks whose replay uses it.
    pub(super) dependents: Vec<Vec<u32>>,
    pub(super) engines: Engines,
    /// Position of the event under way.
    pub(super) event: usize,
    pub(super) by_next_use: bool,
    pub(super) resident_bytes: u64,
    pub(super) segment_bytes: u64,
    pub(super) host_bytes: u64,
    pub(super) rank: u64,
    pub(super) put_off: VecDeque<u32>,
    /// Number of open ops, replays not counted.
    open_ops: u32,
    /// Blocks pinned by each open op or replay.
    pub(super) pinned: Vec<Vec<u32>>,
    pub(super) counts: Counts,
    pub(super) curve: Vec<u64>,
    /// Who came to the device and who left it, since the step began.
    pub(super) changes: Vec<Change>,
    /// Where blocks lie, if the step is laid out; no memory is used again but there.
    pub(super) lots: Option<Lots<'a>>,
    pub(super) shortfall: Option<Shortfall>,
    pub(super) host: HostLane,
    now_us: f64,
    step_start_us: f64,
    first_copy: usize,
    /// Ends of outermost ops and of replays between ops.
    op_ends_us: Vec<f64>,
    /// Copies that the next work on compute waits for.
    needs: Vec<CopyId>,
    /// Copies issued inside the open op that wait for its end.
    held_back: Vec<CopyId>,
    /// Time of replays inside the open op.
    extra_us: f64,
    op_spans: Vec<Span>,
    /// Empty where the host's times are not known.
    host_spans: Vec<Span>,
    /// When the host asked for the outermost op that is open.
    asked_us: f64,
    replays: Vec<ReplaySpan>,
}

impl<'a> State<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        usage: &'a Usage,
        machine: Machine,
        actions: &ActionTable,
    ) -> State<'a> {
        let mut state = State {
            trace,
            usage,
            machine,
            cache: ChunkCache::new(machine.limit_bytes),
            owed: Owed::default(),
            blocks: vec![UNBORN; trace.blocks.len()],
            dependents: vec![Vec::new(); trace.blocks.len()],
            engines: Engines::new(machine),
            event: 0,
            by_next_use: !actions.is_empty(),
            resident_bytes: 0,
            segment_bytes: 0,
            host_bytes: 0,
            rank: 0,
            put_off: VecDeque::new(),
            open_ops: 0,
            pinned: Vec::new(),
            counts: Counts::default(),
            curve: Vec::with_capacity(trace.events.len()),
            changes: Vec::new(),
            lots: None,
            shortfall: None,
            host: HostLane::new(trace),
            now_us: 0.0,
            step_start_us: 0.0,
            first_copy: 0,
            op_ends_us: Vec::new(),
            needs: Vec::new(),
            held_back: Vec::new(),
            extra_us: 0.0,
            op_spans: vec![Span { start_us: 0.0, end_us: 0.0 }; trace.ops.len()],
            host_spans: Vec::new(),
            asked_us: 0.0,
            replays: Vec::new(),
        };
        if state.host.is_known() {
            state.host_spans = state.op_spans.clone();
        }
        state.place_persistent(&left_away(usage, actions));
        state
    }

    fn place_persistent(&mut self, away: &[bool]) {
        if let Err(missing_bytes) = self.grow_segments(self.trace.segment_bytes) {
            self.shortfall = Some(Shortfall { op: OpIndex(0), missing_bytes });
            return;
        }
        let persistent = |block: &&TraceBlock| block.origin == Origin::Persistent;
        let held = self.trace.blocks.iter().filter(persistent).filter(|block| block.held);
        // What cannot move has its room before all others.
        let mut held_bytes: u64 = held.map(|block| block.size_bytes).sum();
        for (index, block) in self.trace.blocks.iter().enumerate() {
            if block.origin != Origin::Persistent {
                continue;
            }
            held_bytes -= if block.held { block.size_bytes } else { 0 };
            let used_bytes = self.cache.held_bytes() + held_bytes + block.size_bytes;
            let room = used_bytes <= self.machine.limit_bytes;
            if block.held && !room {
                let missing_bytes = used_bytes - self.machine.limit_bytes;
                self.shortfall = Some(Shortfall { op: OpIndex(0), missing_bytes });
                return;
            }
            self.rank += 1;
            self.blocks[index].identity = self.rank;
            if room && (block.held || !away[index]) {
                self.cache.charge(Fit::exact(block.size_bytes));
                self.resident_bytes += block.size_bytes;
                self.blocks[index].state = BlockState::Resident;
            } else {
                self.rank += 1;
                self.host_bytes += block.size_bytes;
                self.blocks[index].slot = true;
                self.blocks[index].state = BlockState::Away;
            }
        }
    }

    pub(super) fn start_step(&mut self) {
        self.step_start_us = self.now_us;
        self.host.begins_step(self.now_us);
        self.first_copy = self.engines.copies.len();
        self.cache.reset_peak();
        self.counts = Counts {
            resident_bytes_peak: self.resident_bytes,
            host_bytes_peak: self.host_bytes,
            ..Counts::default()
        };
        self.curve.clear();
        self.changes.clear();
        self.replays.clear();
    }

    /// Makes the blocks alive at the step's end the persistent ones of the next step.
    pub(super) fn roll_over(&mut self) {
        if self.shortfall.is_some() {
            return;
        }
        self.free_dropped();
        if let Err(missing_bytes) = self.bring_all_dropped_back() {
            self.shortfall = Some(Shortfall { op: OpIndex(0), missing_bytes });
            return;
        }
        self.cache.end_step();
        let usage = self.usage;
        let mut next = vec![UNBORN; self.blocks.len()];
        for index in 0..self.blocks.len() {
            let successor = usage.successor[index];
            if successor != NONE {
                next[successor as usize] = self.blocks[index];
            } else if self.blocks[index].state != BlockState::Absent {
                self.release(index);
            }
        }
        for block in &mut self.put_off {
            let successor = usage.successor[*block as usize];
            *block = successor;
        }
        self.put_off.retain(|&block| block != NONE);
        self.blocks = next;
        if let Some(lots) = &mut self.lots {
            lots.roll_over();
        }
        for index in 0..self.blocks.len() {
            let orphan = usage.predecessor[index] == NONE;
            if orphan
                && self.trace.blocks[index].origin == Origin::Persistent
                && let Err(missing_bytes) = self.allocate(index as u32)
            {
                self.shortfall = Some(Shortfall { op: OpIndex(0), missing_bytes });
                return;
            }
        }
    }

    /// Recipes end with the step, so what is still dropped comes back.
    fn bring_all_dropped_back(&mut self) -> Result<(), u64> {
        // So nothing is dropped any more to make room, either.
        self.event = self.trace.events.len();
        for index in 0..self.blocks.len() {
            if self.blocks[index].state == BlockState::Discarded && !self.blocks[index].free_wanted
            {
                self.bring_dropped_back(index)?;
            }
        }
        Ok(())
    }

    /// What the step has taken so far, in microseconds.
    pub(super) fn step_us(&self) -> f64 {
        self.now_us - self.step_start_us
    }

    /// Whether the step did all that it needed by the plan.
    pub(super) fn goes_to_plan(&self) -> bool {
        self.counts.misses == 0 && self.counts.rescues == 0 && self.shortfall.is_none()
    }

    pub(super) fn report(&self) -> Simulation {
        // On a copy, because the next step's copies share the link with this step's last ones.
        let mut engines = self.engines.clone();
        engines.finish_all();
        let from_start = |span: Span| Span {
            start_us: span.start_us - self.step_start_us,
            end_us: span.end_us - self.step_start_us,
        };
        let copies = engines.copies[self.first_copy..].iter().map(|copy| CopySpan {
            block: BlockIndex(copy.block),
            direction: copy.direction,
            size_bytes: copy.size_bytes,
            called_us: copy.called_us - self.step_start_us,
            span: from_start(Span { start_us: copy.start_us, end_us: copy.end_us }),
        });
        let replays = self.replays.iter();
        let counts = self.counts;
        Simulation {
            step_us: self.step_us(),
            stall_us: counts.stall_us,
            held_bytes_peak: self.cache.held_bytes_peak(),
            resident_bytes_peak: counts.resident_bytes_peak,
            host_bytes_peak: counts.host_bytes_peak,
            swapped_out_bytes: counts.swapped_out_bytes,
            swapped_in_bytes: counts.swapped_in_bytes,
            clean_swap_outs: counts.clean_swap_outs,
            recomputed_ops: counts.recomputed_ops,
            recomputed_us: counts.recomputed_us,
            misses: counts.misses,
            rescues: counts.rescues,
            new_chunks: counts.new_chunks,
            ops: self.op_spans.iter().copied().map(from_start).collect(),
            hosts: self.host_spans.iter().copied().map(from_start).collect(),
            copies: copies.collect(),
            replays: replays.map(|r| ReplaySpan { span: from_start(r.span), ..*r }).collect(),
            resident_bytes_by_event: self.curve.clone(),
            shortfall: self.shortfall,
        }
    }

    /// Runs what is due between two ops: first the moves that were put off, then the plan's.
    pub(super) fn boundary(&mut self, actions: &[Action]) -> Result<(), u64> {
        self.retry_put_off()?;
        for action in actions {
            let index = action.block.0 as usize;
            match (action.kind, self.blocks[index].state) {
                (ActionKind::SwapOut, BlockState::Resident) => self.swap_out(index),
                (ActionKind::SwapIn, BlockState::Away) => self.ask_for(index)?,
                (ActionKind::Discard, BlockState::Resident) => {
                    self.discard(index, action.due != action.op);
                }
                (ActionKind::Replay, BlockState::Discarded) => self.bring_dropped_back(index)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Between outermost ops: what the host has not asked for yet cannot begin.
    pub(super) fn wait_for_host(&mut self) {
        if self.open_ops == 0 {
            self.now_us = self.now_us.max(self.host.now_us());
        }
    }

    pub(super) fn begin(&mut self) {
        self.pinned.push(Vec::new());
        self.open_ops += 1;
        if self.open_ops == 1 {
            self.asked_us = self.host.now_us();
            self.extra_us = 0.0;
        }
    }

    pub(super) fn end(&mut self, op: OpIndex) {
        self.unpin_innermost();
        if self.open_ops > 1 {
            self.open_ops -= 1;
            return;
        }
        let record = &self.trace.ops[op.0 as usize];
        let span = self.run_on_compute(record.device_us + self.extra_us);
        self.host.asked_for(record, span.end_us);
        self.open_ops = 0;
        let slot = self.usage.op_slot[op.0 as usize] as usize;
        let next = self.usage.slots.get(slot + 1).map_or(self.trace.ops.len(), |op| op.0 as usize);
        self.op_spans[op.0 as usize..next].fill(span);
        if let Some(spans) = self.host_spans.get_mut(op.0 as usize..next) {
            spans.fill(Span { start_us: self.asked_us, end_us: self.host.now_us() });
        }
    }

    pub(super) fn unpin_innermost(&mut self) {
        for block in self.pinned.pop().expect("ops nest in a well-formed trace") {
            self.blocks[block as usize].pins -= 1;
        }
    }

    /// Runs work on compute, once the host has asked for it, after the copies that it needs.
    fn run_on_compute(&mut self, device_us: f64) -> Span {
        self.now_us = self.now_us.max(self.host.now_us());
        let mut start_us = self.now_us;
        for id in std::mem::take(&mut self.needs) {
            start_us = start_us.max(self.engines.finish(id));
        }
        self.counts.stall_us += start_us - self.now_us;
        let end_us = start_us + device_us;
        for id in std::mem::take(&mut self.held_back) {
            self.engines.delay(id, end_us);
        }
        self.op_ends_us.push(end_us);
        self.now_us = end_us;
        Span { start_us, end_us }
    }

    /// Runs a block's producer again: inside the open op, or on its own between ops.
    pub(super) fn run_producer(&mut self, index: usize, op: OpIndex, device_us: f64) {
        self.counts.recomputed_ops += 1;
        self.counts.recomputed_us += device_us;
        self.host.replays();
        let span = if self.open_ops > 0 {
            self.extra_us += device_us;
            Span { start_us: self.now_us, end_us: self.now_us + device_us }
        } else {
            self.run_on_compute(device_us)
        };
        self.replays.push(ReplaySpan { block: BlockIndex(index as u32), op, span });
    }

    /// How far compute has come, in microseconds.
    pub(super) fn now_us(&self) -> f64 {
        self.now_us
    }

    /// The moment after the work issued so far: the end of the op or replay under way.
    pub(super) fn current(&self) -> Moment {
        let working = !self.pinned.is_empty();
        let op = if working { self.op_ends_us.len() as u32 } else { NONE };
        Moment { floor_us: self.now_us, op }
    }

    pub(super) fn issue(
        &mut self,
        direction: Direction,
        index: usize,
        last_use: Moment,
        after: [CopyId; 2],
    ) -> CopyId {
        let size_bytes = self.trace.blocks[index].size_bytes;
        let past = self.op_ends_us.get(last_use.op as usize).copied();
        let floor_us = past.unwrap_or(0.0).max(last_use.floor_us).max(self.now_us);
        let id =
            self.engines.issue(direction, index as u32, size_bytes, [self.now_us, floor_us], after);
        if past.is_none() && last_use.op != NONE {
            self.held_back.push(id);
        }
        id
    }

    pub(super) fn need(&mut self, copy: CopyId) {
        if copy != NONE {
            self.needs.push(copy);
        }
    }

    pub(super) fn use_now(&mut self, index: usize, mode: Option<AccessMode>) {
        self.rank += 1;
        let current = self.current();
        let block = &mut self.blocks[index];
        block.last_rank = self.rank;
        block.last_use = current;
        if mode.is_some_and(AccessMode::writes) {
            self.drop_slot(index);
        }
    }
}
