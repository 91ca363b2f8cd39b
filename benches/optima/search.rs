//! Looks for a plan that is faster than the best one known, among all that there are.
//!
//! ```text
//!   before op 3   ──op 3──>   behind it   ─free, drop─>   before op 4   ──op 4──> ...
//!     state                    state                    state ⇄ copy, leave, return,
//!     state        each at     state       each way     state   drop, replay, in any order
//!     state      its earliest  state                    state
//! ```
//!
//! A step goes through states (`State`): where each block is, how far compute and both
//! directions of the link have come, and what is still being copied. From each, all that a plan can
//! do is tried. Of two states with all blocks in the same places, the one that is later in
//! everything is left out, as nothing can make up for that. So is a state from which the step
//! cannot end before the best known plan does.
//!
//! A state counts bytes: who takes memory waits until as many have been copied as are needed. The
//! engine may wait for more, as who takes a chunk waits for that chunk's copy. A step is entered as
//! if all copies before it were done, and a replay finds its memory at once. So what is found can
//! be too fast, but never too slow: if nothing is found, no plan whose steps are all alike is
//! faster. What is found becomes a plan, and is simulated.
//!
//! Where persistent blocks are away from one step to the next, the round of steps can be entered
//! before any operator; copies are likely to be done before the one that needs the most memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use adaptive::{
    Action, BlockIndex, GenerateConfig, JointConfig, JointPlanner, Machine, OpIndex, Phase, Plan,
    Trace, assemble,
};

use super::added_us;
use super::model::Model;
use super::state::{BlockState, BlockStates, Deed, State};

/// States of one search, at most.
const STATES_MAX: usize = 400_000;
/// What is found must be faster by this.
const FASTER_US: f64 = 1e-3;

/// The best plan of all.
#[derive(Clone, Debug)]
pub struct Optimum {
    /// What it adds to the step, in microseconds.
    pub added_us: f64,
    /// The plan.
    pub plan: Plan,
    /// States that were looked at.
    pub looked_at: usize,
}

/// The best plan of all that leave nothing to demand. Nothing if that could not be proven, or if
/// the step needs none.
pub fn optimum(trace: &Trace, machine: &Machine) -> Option<Optimum> {
    let model = Model::new(trace, machine)?;
    let mut peaks: Vec<usize> = (0..model.ops.len()).collect();
    peaks.sort_by_key(|&op| Reverse(model.live_bytes(op)));
    if model.live_bytes(*peaks.first()?) <= machine.limit_bytes {
        return None;
    }
    if !model.is_persistent.contains(&true) {
        peaks = vec![0];
    }
    let generate = GenerateConfig { min_block_bytes: 1, ..GenerateConfig::default() };
    let planner = JointPlanner::new(*machine, JointConfig { generate, ..JointConfig::default() });
    let mut plan = planner.make(trace).plan;
    let mut best_us = added_us(trace, machine, &plan)?.max(0.0);
    let device_us = model.ops_us(0, model.ops.len());
    let mut looked_at = 0;
    for first in peaks {
        loop {
            let limit_us = device_us + best_us - FASTER_US;
            let mut search = Search::new(&model, first, limit_us);
            let found = search.run();
            looked_at += search.looked_at;
            if search.looked_at >= STATES_MAX {
                break;
            }
            let Some(story) = found else {
                return Some(Optimum { added_us: best_us, plan, looked_at });
            };
            let better = search.plan(trace, story);
            let us = added_us(trace, machine, &better).unwrap_or(f64::INFINITY);
            if us > best_us - FASTER_US {
                break;
            }
            (best_us, plan) = (us.max(0.0), better);
        }
    }
    None
}

/// A deed, where it was done, and what came before it.
#[derive(Clone, Copy)]
struct Chapter {
    before: u32,
    deed: Deed,
    block: usize,
    op: usize,
    phase: Phase,
}

/// States by where their blocks are; none of them dominates another.
type Layer = BTreeMap<BlockStates, Vec<State>>;

struct Search<'a> {
    model: &'a Model,
    /// The operator before which the round of steps is entered.
    first: usize,
    /// A step that takes as long is not wanted.
    limit_us: f64,
    stories: Vec<Chapter>,
    looked_at: usize,
}

/// The story of a state in which nothing was done yet.
const NO_STORY: u32 = u32::MAX;

impl<'a> Search<'a> {
    fn new(model: &'a Model, first: usize, limit_us: f64) -> Search<'a> {
        Search { model, first, limit_us, stories: Vec::new(), looked_at: 0 }
    }

    /// The story of a step that is fast enough, the fastest from its start.
    fn run(&mut self) -> Option<u32> {
        let mut starts = vec![BlockStates::default()];
        for block in 0..self.model.sizes.len() {
            let places = self.places_at_start(block);
            let with = |start: &BlockStates| {
                let start = *start;
                places.clone().into_iter().map(move |place| {
                    let mut start = start;
                    start.set(block, place);
                    start
                })
            };
            starts = starts.iter().flat_map(with).collect();
        }
        starts.into_iter().find_map(|start| self.step_from(start))
    }

    fn places_at_start(&self, block: usize) -> Vec<BlockState> {
        let Search { model, first, .. } = *self;
        if !model.is_born(block, first) {
            return vec![BlockState::Nowhere];
        }
        let mut places = vec![BlockState::Device, BlockState::Both];
        if !model.ops[first].uses.contains_key(&block) {
            places.push(BlockState::Host);
            places.extend(model.recipe_at(block, first).map(|_| BlockState::Dropped));
        }
        if model.is_freed(block, first) {
            places.push(BlockState::Nowhere);
        }
        places
    }

    /// The story of the fastest step that starts and ends with blocks in these places.
    fn step_from(&mut self, start: BlockStates) -> Option<u32> {
        let count = self.model.ops.len();
        let mut state = State::new(start, NO_STORY);
        for block in 0..self.model.sizes.len() {
            let is_used = self.model.ops[self.first].uses.contains_key(&block);
            let is_there = matches!(start.get(block), BlockState::Device | BlockState::Both);
            state.places.set_fresh(block, is_there && !is_used);
        }
        let mut layer = Layer::new();
        self.keep(&mut layer, state, self.first, count);
        for number in 0..count {
            let op = (self.first + number) % count;
            let next = (op + 1) % count;
            let ahead = count - number - 1;
            let mut behind = Layer::new();
            for state in layer.values().flatten() {
                if let Some(state) = state.run(self.model, &self.model.ops[op]) {
                    self.leave_op(&mut behind, state, op, next, ahead);
                }
            }
            layer = self.act(behind, next, ahead);
            if layer.is_empty() || self.looked_at >= STATES_MAX {
                return None;
            }
        }
        let first = &self.model.ops[self.first];
        let ends = layer
            .values()
            .flatten()
            .filter(|end| end.places.without_freshness() == start.without_freshness());
        let timed = ends.filter_map(|end| Some((end.begin_us(self.model, first)?, end.story)));
        let fastest = timed.min_by(|one, other| one.0.total_cmp(&other.0));
        fastest.filter(|&(us, _)| us < self.limit_us).map(|(_, story)| story)
    }

    /// Keeps a state, unless it is dominated or too late. Says whether it did.
    fn keep(&mut self, layer: &mut Layer, state: State, op: usize, ahead: usize) -> bool {
        if state.end_us(self.model, op, ahead) >= self.limit_us {
            return false;
        }
        let others = layer.entry(state.places).or_default();
        if others.iter().any(|other| other.dominates(&state)) {
            return false;
        }
        others.retain(|other| !state.dominates(other));
        others.push(state);
        self.looked_at += 1;
        true
    }

    fn tell(&mut self, before: u32, deed: Deed, block: usize, op: usize, phase: Phase) -> u32 {
        self.stories.push(Chapter { before, deed, block, op, phase });
        self.stories.len() as u32 - 1
    }

    /// Behind an operator: what its owner frees, or what is made from that, may be dropped before.
    fn leave_op(&mut self, layer: &mut Layer, state: State, op: usize, next: usize, ahead: usize) {
        let model = self.model;
        let frees = &model.ops[op].frees;
        let reads_freed = |block: &usize| {
            let inputs = model.recipes[*block].iter().flat_map(|recipe| &recipe.inputs);
            frees.contains(block) || inputs.clone().any(|input| frees.contains(input))
        };
        let mut ways = vec![state];
        for block in (0..model.sizes.len()).filter(reads_freed) {
            for number in 0..ways.len() {
                if ways[number].can_drop(model, block, op + 1, op) {
                    let story = ways[number].story;
                    let story = self.tell(story, Deed::Drop, block, op, Phase::End);
                    let dropped = ways[number].act(model, Deed::Drop, block, next);
                    ways.push(dropped.told(story));
                }
            }
        }
        for mut state in ways {
            state.free(model, op);
            self.keep(layer, state, next, ahead);
        }
    }

    /// All states that can be reached before an operator begins.
    fn act(&mut self, mut layer: Layer, op: usize, ahead: usize) -> Layer {
        let mut open: Vec<State> = layer.values().flatten().cloned().collect();
        while let Some(state) = open.pop() {
            if self.looked_at >= STATES_MAX {
                break;
            }
            for block in 0..self.model.sizes.len() {
                for deed in state.deeds(self.model, block, op) {
                    let story = self.tell(state.story, deed, block, op, Phase::Begin);
                    let state = state.act(self.model, deed, block, op).told(story);
                    if self.keep(&mut layer, state.clone(), op, ahead) {
                        open.push(state);
                    }
                }
            }
        }
        layer
    }

    /// The plan of a story. What is only copied leaves and is taken back at once.
    fn plan(&self, trace: &Trace, story: u32) -> Plan {
        let mut chapters = Vec::new();
        let mut at = story;
        while let Some(&chapter) = self.stories.get(at as usize) {
            chapters.push(chapter);
            at = chapter.before;
        }
        chapters.reverse();
        let mut actions: Vec<Action> = Vec::new();
        for (number, &Chapter { deed, block, op, phase, .. }) in chapters.iter().enumerate() {
            let here = |other: &&Chapter| (other.block, other.op) == (block, op);
            let (before, after) = (&chapters[..number], &chapters[number + 1..]);
            let op = OpIndex(op as u32);
            // What is dropped before its owner frees it waits for those that are made from it.
            let due = if phase == Phase::End { OpIndex(op.0 + 1) } else { op };
            let block = BlockIndex(block as u32);
            let mut act = |kind| actions.push(Action { op, phase, kind, block, due });
            let is_copy = |other: &Chapter| other.deed == Deed::Copy;
            // Its copy to the host has sent it away already.
            if deed == Deed::Leave && before.iter().rfind(here).is_some_and(is_copy) {
                continue;
            }
            act(deed.kind());
            let leaves = after.iter().find(here).is_some_and(|other| other.deed == Deed::Leave);
            if deed == Deed::Copy && !leaves {
                act(Deed::Return.kind());
            }
        }
        actions.sort_by_key(|action| (action.op, action.phase));
        assemble(trace, actions)
    }
}
