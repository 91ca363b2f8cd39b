//! Where a step can be between two operators, and what a plan can do there.

use adaptive::ActionKind;

use super::model::{BLOCKS_MAX, Model, Op, Recipe};

/// Less is rounding.
const DUST_US: f64 = 1e-9;

/// Where the bytes of a block are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum BlockState {
    /// It does not live.
    Nowhere,
    /// On the device alone.
    Device,
    /// On the device and the host.
    Both,
    /// On the host alone.
    Host,
    /// Dropped.
    Dropped,
}

impl BlockState {
    const ALL: [BlockState; 5] = [
        BlockState::Nowhere,
        BlockState::Device,
        BlockState::Both,
        BlockState::Host,
        BlockState::Dropped,
    ];

    fn is_resident(self) -> bool {
        matches!(self, BlockState::Device | BlockState::Both)
    }
}

/// What each block does: three bits say where it is, the fourth whether it came back by a copy
/// and nobody has used it since.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct BlockStates(u64);

impl BlockStates {
    pub(super) fn get(self, block: usize) -> BlockState {
        BlockState::ALL[(self.0 >> (4 * block) & 7) as usize]
    }

    /// Sets a block's place. It is not fresh then.
    pub(super) fn set(&mut self, block: usize, place: BlockState) {
        self.0 = self.0 & !(15 << (4 * block)) | (place as u64) << (4 * block);
    }

    fn is_fresh(self, block: usize) -> bool {
        self.0 >> (4 * block) & 8 != 0
    }

    pub(super) fn set_fresh(&mut self, block: usize, fresh: bool) {
        self.0 = self.0 & !(8 << (4 * block)) | u64::from(fresh) << (4 * block + 3);
    }

    /// The places alone.
    pub(super) fn without_freshness(self) -> u64 {
        self.0 & 0x7777_7777_7777_7777
    }

    fn is_resident(self, block: usize) -> bool {
        self.get(block).is_resident()
    }
}

/// What a plan does to a block between two operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Deed {
    /// Copies it to the host.
    Copy,
    /// Gives the memory away of what the host has.
    Leave,
    /// Copies it back.
    Return,
    Drop,
    Replay,
}

impl Deed {
    const ALL: [Deed; 5] = [Deed::Copy, Deed::Leave, Deed::Return, Deed::Drop, Deed::Replay];

    pub(super) fn kind(self) -> ActionKind {
        match self {
            Deed::Copy | Deed::Leave => ActionKind::SwapOut,
            Deed::Return => ActionKind::SwapIn,
            Deed::Drop => ActionKind::Discard,
            Deed::Replay => ActionKind::Replay,
        }
    }
}

/// A state of the relaxed step, at the earliest.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) places: BlockStates,
    /// How far compute has come.
    now_us: f64,
    /// When all copies out and all copies in are done.
    lanes_us: [f64; 2],
    /// By block: when the last copy of it is done.
    ready_us: [f64; BLOCKS_MAX],
    /// Bytes that left and are still being copied, by when that is done.
    leaving: Vec<(f64, u64)>,
    /// How it came to be, as a number of the search's.
    pub(super) story: u32,
}

impl State {
    pub(super) fn new(places: BlockStates, story: u32) -> State {
        let (lanes_us, ready_us) = ([0.0; 2], [0.0; BLOCKS_MAX]);
        State { places, now_us: 0.0, lanes_us, ready_us, leaving: Vec::new(), story }
    }

    /// The same with another story.
    pub(super) fn told(self, story: u32) -> State {
        State { story, ..self }
    }

    /// Whether it can do all that another one with the same places can, as early or earlier.
    pub(super) fn dominates(&self, other: &State) -> bool {
        let later = |(us, other_us): (&f64, &f64)| {
            us.max(self.now_us) > other_us.max(other.now_us) + DUST_US
        };
        let left = |state: &State, until_us: f64| -> u64 {
            let after = state.leaving.iter().filter(|(end_us, _)| *end_us >= until_us - DUST_US);
            after.map(|(_, bytes)| bytes).sum()
        };
        !later((&self.now_us, &other.now_us))
            && !self.lanes_us.iter().zip(&other.lanes_us).any(later)
            && !self.ready_us.iter().zip(&other.ready_us).any(later)
            && self.leaving.iter().all(|&(end_us, _)| left(self, end_us) <= left(other, end_us))
    }

    fn resident_bytes(&self, model: &Model) -> u64 {
        let resident = |block: &usize| self.places.is_resident(*block);
        (0..model.sizes.len()).filter(resident).map(|block| model.sizes[block]).sum()
    }

    /// Bytes that are back, or will be, and that nobody has used yet.
    fn fresh_bytes(&self, model: &Model, op: &Op) -> u64 {
        let fresh = |block: &usize| self.places.is_fresh(*block) && !op.uses.contains_key(block);
        (0..model.sizes.len()).filter(fresh).map(|block| model.sizes[block]).sum()
    }

    /// The first moment from one on at which so few bytes are being copied that `taken_bytes` have
    /// room beside them.
    fn room_us(&self, model: &Model, from_us: f64, taken_bytes: u64) -> f64 {
        let mut bytes = taken_bytes;
        for &(end_us, leaving_bytes) in self.leaving.iter().rev() {
            bytes += leaving_bytes;
            if bytes > model.machine.limit_bytes {
                return from_us.max(end_us);
            }
        }
        from_us
    }

    /// When an operator can begin at the earliest; nothing if it cannot.
    pub(super) fn begin_us(&self, model: &Model, op: &Op) -> Option<f64> {
        let taken_bytes = self.resident_bytes(model) + op.made_bytes;
        let all_there = op.uses.keys().all(|&block| self.places.is_resident(block));
        if !all_there || taken_bytes > model.machine.limit_bytes {
            return None;
        }
        let arrivals = op.uses.keys().map(|&block| self.ready_us[block]);
        let start_us = arrivals.fold(self.now_us, f64::max);
        Some(self.room_us(model, start_us, taken_bytes - self.fresh_bytes(model, op)))
    }

    /// The state behind an operator, before its owner frees anything.
    pub(super) fn run(&self, model: &Model, op: &Op) -> Option<State> {
        let spoils = |(block, writes): (&usize, &bool)| *writes && self.has_readers(model, *block);
        if op.uses.iter().any(spoils) {
            return None;
        }
        let mut state = self.clone();
        state.reach(self.begin_us(model, op)? + op.device_us);
        for (&block, &writes) in &op.uses {
            state.places.set_fresh(block, false);
            if writes {
                state.places.set(block, BlockState::Device);
            }
        }
        for &block in &op.made {
            state.places.set(block, BlockState::Device);
            state.ready_us[block] = 0.0;
        }
        Some(state)
    }

    fn reach(&mut self, now_us: f64) {
        self.now_us = now_us;
        self.leaving.retain(|&(end_us, _)| end_us > now_us);
    }

    /// Whether a dropped block is made from this one.
    fn has_readers(&self, model: &Model, block: usize) -> bool {
        let reads = |recipe: &Recipe| recipe.inputs.contains(&block);
        (0..model.sizes.len()).any(|other| {
            self.places.get(other) == BlockState::Dropped
                && model.recipes[other].as_ref().is_some_and(reads)
        })
    }

    /// Owners free what they free behind an operator. What is dropped waits for what may be made
    /// from it, which is to be dropped later, and what others are made from stays.
    pub(super) fn free(&mut self, model: &Model, op: usize) {
        for &block in &model.ops[op].frees {
            let waits = self.places.get(block) == BlockState::Dropped;
            if !waits && !self.has_readers(model, block) {
                self.places.set(block, BlockState::Nowhere);
            }
        }
        if op + 1 == model.ops.len() {
            let passing = (0..model.sizes.len()).filter(|&block| !model.is_persistent[block]);
            passing.for_each(|block| self.places.set(block, BlockState::Nowhere));
        }
    }

    /// Whether a block can be dropped before an operator, when owners have freed what they free
    /// before `freed`.
    pub(super) fn can_drop(&self, model: &Model, block: usize, op: usize, freed: usize) -> bool {
        let Some(recipe) = model.recipe_at(block, op) else { return false };
        let is_there = |&input: &usize| match self.places.get(input) {
            BlockState::Nowhere => false,
            BlockState::Dropped => true,
            _ => !model.is_freed(input, freed),
        };
        self.places.is_resident(block)
            && !self.places.is_fresh(block)
            && recipe.inputs.iter().all(is_there)
    }

    /// All that can be done to a block before an operator. What comes back by a copy stays until
    /// somebody has used it: else it could have stayed away.
    pub(super) fn deeds(&self, model: &Model, block: usize, op: usize) -> Vec<Deed> {
        let place = self.places.get(block);
        let has_room =
            || self.resident_bytes(model) + model.sizes[block] <= model.machine.limit_bytes;
        let is_good = |deed: &Deed| match deed {
            Deed::Copy => place == BlockState::Device,
            Deed::Leave => place == BlockState::Both && !self.places.is_fresh(block),
            Deed::Return => place == BlockState::Host && has_room(),
            Deed::Drop => op > 0 && self.can_drop(model, block, op, op),
            Deed::Replay => {
                place == BlockState::Dropped && has_room() && self.has_inputs(model, block)
            }
        };
        Deed::ALL.into_iter().filter(is_good).collect()
    }

    fn has_inputs(&self, model: &Model, block: usize) -> bool {
        let recipe = model.recipes[block].as_ref().expect("it was dropped");
        recipe.inputs.iter().all(|&input| self.places.is_resident(input))
    }

    /// The state behind a deed. The operator that comes next says what is freed already.
    pub(super) fn act(&self, model: &Model, deed: Deed, block: usize, op: usize) -> State {
        let mut state = self.clone();
        match deed {
            Deed::Copy => {
                let start_us = self.now_us.max(self.lanes_us[0]).max(self.ready_us[block]);
                let end_us = start_us + model.copy_us(block, true);
                state.lanes_us[0] = end_us;
                state.ready_us[block] = end_us;
                state.places.set(block, BlockState::Both);
            }
            Deed::Leave => {
                state.places.set(block, BlockState::Host);
                let end_us = self.ready_us[block];
                if end_us > self.now_us {
                    let place = self.leaving.partition_point(|&(other_us, _)| other_us <= end_us);
                    state.leaving.insert(place, (end_us, model.sizes[block]));
                }
            }
            Deed::Return => {
                let bytes = self.resident_bytes(model) + model.sizes[block];
                let start_us = self.now_us.max(self.lanes_us[1]).max(self.ready_us[block]);
                let end_us = self.room_us(model, start_us, bytes) + model.copy_us(block, false);
                state.lanes_us[1] = end_us;
                state.ready_us[block] = end_us;
                state.places.set(block, BlockState::Both);
                state.places.set_fresh(block, true);
            }
            Deed::Drop => state.places.set(block, BlockState::Dropped),
            Deed::Replay => state.replay(model, block, op),
        }
        state
    }

    fn replay(&mut self, model: &Model, block: usize, op: usize) {
        let Recipe { inputs, device_us, .. } =
            model.recipes[block].as_ref().expect("it was dropped");
        let arrivals = inputs.iter().map(|&input| self.ready_us[input]);
        self.reach(arrivals.fold(self.now_us, f64::max) + device_us);
        self.places.set(block, BlockState::Device);
        self.ready_us[block] = 0.0;
        inputs.iter().for_each(|&input| self.places.set_fresh(input, false));
        for &other in inputs.iter().chain([&block]) {
            if model.is_freed(other, op) && !self.has_readers(model, other) {
                self.places.set(other, BlockState::Nowhere);
            }
        }
    }

    /// When the last of the next `ahead` operators ends, at the earliest.
    pub(super) fn end_us(&self, model: &Model, op: usize, ahead: usize) -> f64 {
        let mut returns = Vec::new();
        let mut replays_us = 0.0;
        let mut end_us: f64 = 0.0;
        for block in 0..model.sizes.len() {
            let place = self.places.get(block);
            let waits = matches!(place, BlockState::Host | BlockState::Dropped);
            if !waits && self.ready_us[block] <= self.now_us {
                continue;
            }
            let Some(next) = model.next_use(block, op, ahead) else { continue };
            match place {
                BlockState::Host => returns.push((next, block)),
                BlockState::Dropped => {
                    replays_us += model.recipes[block].as_ref().map_or(0.0, |one| one.device_us);
                }
                _ => {
                    let rest_us = model.ops_us(op + next, ahead - next);
                    end_us = end_us.max(self.ready_us[block] + rest_us);
                }
            }
        }
        returns.sort_unstable();
        let mut back_us = self.lanes_us[1].max(self.now_us);
        for (next, block) in returns {
            back_us += model.copy_us(block, false);
            end_us = end_us.max(back_us + model.ops_us(op + next, ahead - next));
        }
        end_us.max(self.now_us + replays_us + model.ops_us(op, ahead))
    }
}
