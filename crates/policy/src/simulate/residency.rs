//! Who is on the device when, in a step that has settled and whose memory never runs out.

use swap_core::{Lot, Plan, Trace};

use super::link::{CopyId, Engines};
use super::memory::later;
use super::state::{BlockState, Ready, State};
use super::{ActionTable, run_step};
use crate::layout::Layout;
use crate::machine::Machine;
use crate::usage::{NONE, Usage};

/// A block comes to the device or leaves it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Change {
    pub(crate) block: u32,
    pub(crate) arrives: bool,
    /// When compute reaches the call, in microseconds.
    pub(crate) called_us: f64,
    /// From when on its bytes are written, or until when they are read. That is later than the
    /// call for what is copied.
    pub(crate) bytes_us: f64,
    /// What copies it.
    copy: CopyId,
}

impl Change {
    /// A change that is called at a time and waits for a copy, if that is not [`NONE`].
    pub(super) fn new(block: usize, arrives: bool, called_us: f64, copy: CopyId) -> Change {
        Change { block: block as u32, arrives, called_us, bytes_us: called_us, copy }
    }

    pub(super) fn copied_by(&mut self, copy: CopyId) {
        self.copy = copy;
    }

    fn set_time(&mut self, engines: &Engines) {
        if let Some(span) = engines.span(self.copy) {
            let bytes_us = if self.arrives { span.start_us } else { span.end_us };
            self.bytes_us = self.called_us.max(bytes_us);
        }
    }
}

/// A step's comings and goings.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Residency {
    /// By block: whether it is there when the step starts.
    pub(crate) at_start: Vec<bool>,
    /// In call order, those with which the step ends included.
    pub(crate) changes: Vec<Change>,
    /// What the step takes, in microseconds.
    pub(crate) step_us: f64,
}

/// How many steps a plan has until each starts like the one before it. A block that passes from
/// place to place of the step needs one for each.
const SETTLING_STEPS: u32 = 16;

/// What a plan makes of a step with memory for everything, so that nothing moves but what the plan
/// moves. Nothing if its steps do not settle.
pub(crate) fn residency(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
) -> Option<Residency> {
    let actions = ActionTable::new(trace, plan);
    let nowhere = Layout::default();
    let mut state = roomy(trace, usage, machine, &actions, &nowhere);
    let mut at_start = residents(&state);
    for _ in 0..SETTLING_STEPS {
        run_step(&mut state, &actions);
        state.roll_over();
        if state.shortfall.is_some() {
            return None;
        }
        let next = residents(&state);
        if next == at_start {
            let step_us = state.report().step_us;
            state.engines.finish_all();
            let mut changes = state.changes;
            changes.iter_mut().for_each(|change| change.set_time(&state.engines));
            return Some(Residency { at_start, changes, step_us });
        }
        at_start = next;
    }
    None
}

/// What a step takes in which each block with a lot waits for all that was there before it, in
/// microseconds; where steps take turns, in the mean.
pub(crate) fn laid_out_us(
    trace: &Trace,
    usage: &Usage,
    plan: &Plan,
    machine: &Machine,
    layout: &Layout,
) -> f64 {
    let actions = ActionTable::new(trace, plan);
    let mut state = roomy(trace, usage, machine, &actions, layout);
    run_step(&mut state, &actions);
    let turns = layout.turns.len().max(1);
    let turn_us = (0..turns).map(|_| {
        state.roll_over();
        run_step(&mut state, &actions);
        state.report().step_us
    });
    turn_us.sum::<f64>() / turns as f64
}

/// Memory for everything, where nobody waits for anybody's memory but in lots.
fn roomy<'a>(
    trace: &'a Trace,
    usage: &'a Usage,
    machine: &Machine,
    actions: &ActionTable,
    layout: &'a Layout,
) -> State<'a> {
    let machine = Machine { limit_bytes: u64::MAX / 2, host_limit_bytes: u64::MAX, ..*machine };
    let mut state = State::new(trace, usage, machine, actions);
    state.lots = Some(Lots { layout, turn: 0, left: Vec::new() });
    state
}

/// Who waits for whom where blocks lie in lots.
#[derive(Debug)]
pub(super) struct Lots<'a> {
    layout: &'a Layout,
    turn: usize,
    left: Vec<Left>,
}

/// A lot that a block has left.
#[derive(Debug)]
struct Left {
    /// Where nobody was since.
    memory: Vec<Lot>,
    /// What copies the block out; [`NONE`] for nothing.
    copy: CopyId,
    /// The block that can still come back, by its identity; 0 for none.
    owner: u64,
}

impl Lots<'_> {
    fn memory_of(&self, index: usize) -> Option<Vec<Lot>> {
        let lot = (*self.layout.turns.get(self.turn)?.get(index)?)?;
        Some(lot.memory(&self.layout.pieces).collect())
    }

    /// A step ends.
    pub(super) fn roll_over(&mut self) {
        self.turn = (self.turn + 1) % self.layout.turns.len().max(1);
    }

    /// A block leaves.
    pub(super) fn leave(&mut self, index: usize, ready: Ready) {
        let Ready { copy, owner, .. } = ready;
        if let Some(memory) = self.memory_of(index) {
            self.left.push(Left { memory, copy, owner });
        }
    }

    /// A block comes, to its lot if it has one. Returns the last copy that it waits for.
    pub(super) fn enter(&mut self, index: usize) -> CopyId {
        let Some(memory) = self.memory_of(index) else { return NONE };
        let mut last = NONE;
        self.left.retain_mut(|left| {
            let is_apart = |one: &Lot| memory.iter().all(|lot| one.is_apart_from(*lot));
            if !left.memory.iter().all(is_apart) {
                // Copies out end in the order in which they are issued.
                last = later(last, left.copy);
                left.owner = 0;
            }
            let covers = |lot: &Lot, one: &Lot| {
                lot.offset_bytes <= one.offset_bytes && one.end_bytes() <= lot.end_bytes()
            };
            left.memory.retain(|one| !memory.iter().any(|lot| covers(lot, one)));
            !left.memory.is_empty()
        });
        last
    }

    /// Whether a block finds its bytes where it left them.
    pub(super) fn take_back(&mut self, owner: u64) -> bool {
        let found = self.left.iter().position(|left| left.owner == owner);
        found.map(|at| self.left.remove(at)).is_some()
    }
}

fn residents(state: &State<'_>) -> Vec<bool> {
    state.blocks.iter().map(|block| block.state == BlockState::Resident).collect()
}
