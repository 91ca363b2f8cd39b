//! Micro-batches of a step: what a block or an op of one is in each of the others.
//!
//! ```text
//!   ops     embed layer loss ...   embed layer loss ...   update
//!           ^ probe                ^ what is like it
//!           |----- alike ------|   |----- alike ------|
//! ```
//!
//! From the op that makes the probe on, each of them runs the same ops, up to where gradients are
//! added up from the second on. So what was recorded of one tells of others.

use swap_core::{Origin, Trace};

use super::by_stretch;

/// What runs at least so many of the same ops as behind the probe begins a micro-batch.
const ALIKE_MIN: u32 = 16;

/// Where the micro-batches of a step are.
#[derive(Clone, Debug, Default)]
pub(super) struct Batches {
    /// By micro-batch: the stretch in which its probe is made, which is that behind so many ops.
    starts: Vec<u32>,
    /// By two of them: how many stretches from there on are alike.
    alike: Vec<Vec<u32>>,
    /// By stretch that has any: its blocks.
    stretches: Vec<(u32, Vec<usize>)>,
    /// By block: its stretch, and which one it is there. None for those that lived before.
    places: Vec<Option<(u32, usize)>>,
}

impl Batches {
    /// Whatever in a step begins as the first micro-batch does, of which [`lead`](Batches::lead)
    /// keeps what is one: layers may too.
    pub(super) fn of(step: &Trace, probe: usize) -> Batches {
        let stretches = by_stretch(step);
        let mut places = vec![None; step.blocks.len()];
        for (stretch, blocks) in &stretches {
            for (nth, &block) in blocks.iter().enumerate() {
                places[block] = Some((*stretch, nth));
            }
        }
        let batches = Batches { stretches, places, ..Batches::default() };
        let Some((first, nth)) = batches.places[probe] else { return batches };
        let makes_like = |&stretch: &u32| {
            let block = batches.made_in(stretch).get(nth);
            block.is_some_and(|&block| made_by(step, block) == made_by(step, probe))
        };
        let later = batches.stretches.iter().map(|&(stretch, _)| stretch);
        let later = later.filter(|&stretch| stretch > first).filter(makes_like);
        // A whole micro-batch may be shorter than that.
        let mut least = ALIKE_MIN;
        let begins_one = |&stretch: &u32| {
            let asked = least.min(stretch - first);
            let begins = alike(step, first, stretch, asked) == asked;
            if begins {
                least = asked;
            }
            begins
        };
        let later = later.filter(begins_one);
        let starts = [first].into_iter().chain(later).collect();
        Batches { starts, ..batches }
    }

    /// Keeps what is a micro-batch: where `dimension` says which one it has, by what the probe is
    /// there. Returns that.
    pub(super) fn lead(
        &mut self,
        step: &Trace,
        probe: usize,
        mut dimension: impl FnMut(&Batches, usize) -> Option<usize>,
    ) -> Vec<usize> {
        let Some((_, nth)) = self.places[probe] else { return Vec::new() };
        let with_dimension =
            |&start: &u32| Some((start, dimension(self, self.made_in(start)[nth])?));
        let (starts, dimensions): (Vec<u32>, Vec<usize>) =
            self.starts.iter().filter_map(with_dimension).unzip();
        let all = u32::MAX;
        let with_each =
            |&one: &u32| starts.iter().map(|&other| alike(step, one, other, all)).collect();
        self.alike = starts.iter().map(with_each).collect();
        self.starts = starts;
        dimensions
    }

    /// Whether both are made in the same micro-batch.
    pub(super) fn are_together(&self, one: usize, other: usize) -> bool {
        self.of_block(one).is_some() && self.of_block(one) == self.of_block(other)
    }

    /// Which micro-batch a stretch is in, and where: it begins with its probe.
    fn inside(&self, stretch: u32) -> Option<(usize, u32)> {
        let batch = self.starts.partition_point(|&start| start <= stretch).checked_sub(1)?;
        Some((batch, stretch - self.starts[batch]))
    }

    /// The micro-batch that makes a block, if it begins before.
    pub(super) fn of_block(&self, block: usize) -> Option<usize> {
        Some(self.inside(self.places[block]?.0)?.0)
    }

    /// What a block is in each micro-batch that is alike that far, its own among them.
    pub(super) fn blocks_like(&self, block: usize) -> Vec<(usize, usize)> {
        let Some((stretch, nth)) = self.places[block] else { return Vec::new() };
        let made = self.made_in(stretch).len();
        let like = self.stretches_like(stretch).into_iter();
        let found = like.filter_map(|(batch, stretch)| {
            let blocks = self.made_in(stretch);
            (blocks.len() == made).then(|| (batch, blocks[nth]))
        });
        found.collect()
    }

    /// The same of an op, and which its own micro-batch is.
    pub(super) fn ops_like(&self, op: usize) -> Option<(usize, Vec<(usize, usize)>)> {
        let (own, _) = self.inside(op as u32 + 1)?;
        let like = self.stretches_like(op as u32 + 1).into_iter();
        let found = like.filter_map(|(batch, stretch)| Some((batch, stretch.checked_sub(1)?)));
        Some((own, found.map(|(batch, op)| (batch, op as usize)).collect()))
    }

    fn stretches_like(&self, stretch: u32) -> Vec<(usize, u32)> {
        let Some((own, offset)) = self.inside(stretch) else { return Vec::new() };
        let in_each = self.starts.iter().enumerate();
        let like = in_each.filter(|&(batch, _)| offset < self.alike[own][batch]);
        like.map(|(batch, start)| (batch, start + offset)).collect()
    }

    fn made_in(&self, stretch: u32) -> &[usize] {
        let found = self.stretches.binary_search_by_key(&stretch, |&(at, _)| at);
        found.map_or(&[], |at| &self.stretches[at].1)
    }
}

/// How many stretches from these on are alike, up to where one runs into the other, and of `most`.
fn alike(step: &Trace, one: u32, other: u32, most: u32) -> u32 {
    let op = |start: u32, offset: u32| {
        let op = step.ops.get((start + offset).checked_sub(1)? as usize)?;
        Some((op.name.as_str(), op.depth))
    };
    let apart = match one.abs_diff(other) {
        0 => step.ops.len() as u32 + 1,
        apart => apart,
    };
    (0..apart.min(most)).take_while(|&offset| op(one, offset) == op(other, offset)).count() as u32
}

/// The op that makes a block, by its name.
pub(super) fn made_by(trace: &Trace, block: usize) -> Option<&str> {
    match trace.blocks[block].origin {
        Origin::Persistent => None,
        Origin::Op(op) | Origin::Before(op) => {
            trace.ops.get(op.0 as usize).map(|op| op.name.as_str())
        }
    }
}
