//! What the search for optima knows of a step: its operators, and at which of them what is good.

use std::collections::BTreeMap;

use adaptive::{Machine, Origin, Trace, TraceEvent, replayable_blocks};

/// Blocks of a step, at most: each takes four bits of a state.
pub(super) const BLOCKS_MAX: usize = 16;

/// How to make a block again.
pub(super) struct Recipe {
    pub(super) producer: usize,
    pub(super) device_us: f64,
    pub(super) inputs: Vec<usize>,
}

/// An operator, and what its owner frees behind it.
#[derive(Default)]
pub(super) struct Op {
    pub(super) device_us: f64,
    /// Blocks that were there before it, and whether it writes them.
    pub(super) uses: BTreeMap<usize, bool>,
    /// Blocks that it allocates.
    pub(super) made: Vec<usize>,
    pub(super) made_bytes: u64,
    pub(super) frees: Vec<usize>,
}

/// A step whose operators do not nest, that starts and ends with the same blocks.
pub(super) struct Model {
    pub(super) machine: Machine,
    pub(super) sizes: Vec<u64>,
    pub(super) is_persistent: Vec<bool>,
    pub(super) ops: Vec<Op>,
    /// By block.
    pub(super) recipes: Vec<Option<Recipe>>,
    /// By block: the operator behind which it is freed.
    freed_behind: Vec<Option<usize>>,
}

impl Model {
    /// Nothing for steps of other kinds.
    pub(super) fn new(trace: &Trace, machine: &Machine) -> Option<Model> {
        let persistent = |origin: Origin| origin == Origin::Persistent;
        let mut model = Model {
            machine: *machine,
            sizes: trace.blocks.iter().map(|block| block.size_bytes).collect(),
            is_persistent: trace.blocks.iter().map(|block| persistent(block.origin)).collect(),
            ops: Vec::new(),
            recipes: trace.blocks.iter().map(|_| None).collect(),
            freed_behind: vec![None; trace.blocks.len()],
        };
        for &event in &trace.events {
            model.add(trace, event)?;
        }
        let is_passing = |(freed, kept): (&Option<usize>, &bool)| freed.is_some() != *kept;
        let closed = model.freed_behind.iter().zip(&model.is_persistent).all(is_passing);
        for found in replayable_blocks(trace) {
            let recipe = Recipe {
                producer: found.producer.0 as usize,
                device_us: found.device_us,
                inputs: found.inputs.iter().map(|input| input.0 as usize).collect(),
            };
            let block = found.block.0 as usize;
            let other = model.recipes[block].replace(recipe);
            if other.is_some() || model.is_persistent[block] {
                return None;
            }
        }
        (closed && trace.blocks.len() <= BLOCKS_MAX).then_some(model)
    }

    fn add(&mut self, trace: &Trace, event: TraceEvent) -> Option<()> {
        match event {
            TraceEvent::Begin(index) => {
                let op = &trace.ops[index.0 as usize];
                let device_us = (op.depth == 0).then_some(op.device_us)?;
                self.ops.push(Op { device_us, ..Op::default() });
            }
            TraceEvent::Allocate(block) => {
                let op = self.ops.last_mut()?;
                op.made.is_empty().then_some(())?;
                op.made.push(block.0 as usize);
                op.made_bytes += trace.blocks[block.0 as usize].size_bytes;
            }
            TraceEvent::Touch(block, mode) => {
                let (op, block) = (self.ops.last_mut()?, block.0 as usize);
                if !op.made.contains(&block) {
                    *op.uses.entry(block).or_default() |= mode.writes();
                }
            }
            TraceEvent::Free(block) => {
                self.freed_behind[block.0 as usize] = Some(self.ops.len() - 1);
                self.ops.last_mut()?.frees.push(block.0 as usize);
            }
            TraceEvent::End(_) => {}
            TraceEvent::Segments(_) => return None,
        }
        Some(())
    }

    /// Whether a block's owner has freed it before an operator begins, in this step.
    pub(super) fn is_freed(&self, block: usize, op: usize) -> bool {
        self.freed_behind[block].is_some_and(|behind| behind < op)
    }

    /// Whether a block was allocated before an operator, in this step or an earlier one.
    pub(super) fn is_born(&self, block: usize, op: usize) -> bool {
        self.is_persistent[block] || self.ops[..op].iter().any(|op| op.made.contains(&block))
    }

    /// A block's recipe, if it would make the present bytes before operator `op`, which is the
    /// number of operators at the step's end.
    pub(super) fn recipe_at(&self, block: usize, op: usize) -> Option<&Recipe> {
        let recipe = self.recipes[block].as_ref()?;
        let since = self.ops.get(recipe.producer + 1..op)?;
        let writes = |op: &Op, block: &usize| op.uses.get(block) == Some(&true);
        let changed =
            |op: &Op| writes(op, &block) || recipe.inputs.iter().any(|input| writes(op, input));
        (op > recipe.producer && !since.iter().any(changed)).then_some(recipe)
    }

    /// Bytes that live while an operator runs.
    pub(super) fn live_bytes(&self, op: usize) -> u64 {
        let lives = |block: &usize| self.is_born(*block, op) && !self.is_freed(*block, op);
        let born = (0..self.sizes.len()).filter(lives).map(|block| self.sizes[block]);
        born.sum::<u64>() + self.ops[op].made_bytes
    }

    /// What operators take from one on, up to `ahead` ones, going round.
    pub(super) fn ops_us(&self, op: usize, ahead: usize) -> f64 {
        let count = self.ops.len();
        (op..op + ahead).map(|op| self.ops[op % count].device_us).sum()
    }

    /// How many operators after `op`, which counts as none, the next one that uses a block comes;
    /// nothing if the block's life ends first or none of the next `ahead` ones uses it.
    pub(super) fn next_use(&self, block: usize, op: usize, ahead: usize) -> Option<usize> {
        for number in 0..ahead {
            let op = &self.ops[(op + number) % self.ops.len()];
            if op.made.contains(&block) {
                return None;
            }
            if op.uses.contains_key(&block) {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn copy_us(&self, block: usize, outward: bool) -> f64 {
        let link = &self.machine.link;
        let rate = if outward { link.out_bytes_per_us } else { link.in_bytes_per_us };
        self.machine.copy_submit_us + self.sizes[block] as f64 / rate
    }
}
