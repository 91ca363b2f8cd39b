//! What the sizes of a step follow from: one number, or several, as where each of its micro-batches
//! has a length of its own.
//!
//! The first block that is never the same is the probe. Blocks that do not follow from it belong to
//! the first of them that differs, and so on: each such block leads a *dimension*. Nobody knows the
//! others' sizes when only the probe is there, so a member is predicted as large in all of them:
//! what the same op makes as the probe takes all sizes that the probe took, as the first block of
//! another micro-batch does, and the other way round.

use swap_core::{BlockIndex, Trace, TraceEvent};

use super::batches::{Batches, made_by};
use super::fit::Curve;

/// Micro-batches of a step that are told apart.
const DIMENSIONS_MAX: usize = 32;

/// What differs by no more than this share from what it should be follows from it.
const SHARE: f64 = 0.02;

/// By member, what each block of the largest one has.
pub(super) type Sizes = [Vec<Option<u64>>];

/// How large one step is.
#[derive(Clone, PartialEq, Debug)]
pub struct StepSize {
    /// By dimension: what its lead has, known or guessed.
    leads: Vec<f64>,
    /// The most that its probes have: members with so many bytes of the probe are as large in all
    /// micro-batches.
    pub probe_bytes: u64,
}

impl StepSize {
    /// What the block that leads a dimension has.
    pub(super) fn lead(&self, dimension: usize) -> f64 {
        self.leads[dimension]
    }
}

/// The numbers that the sizes of a step follow from.
#[derive(Clone, Debug)]
pub(super) struct Dimensions {
    /// The block that leads each; the probe first.
    leads: Vec<usize>,
    /// Those that the same op makes as the probe, and the probe itself, which comes first.
    probes: Vec<BlockIndex>,
    /// By dimension: how large its lead gets, of what the probe gets.
    ratios: Vec<f64>,
    /// By block: the dimension that it follows.
    of_blocks: Vec<usize>,
    /// By op: the dimension that its time follows.
    of_ops: Vec<usize>,
    /// The micro-batches, and the dimension that each has.
    batches: Batches,
    of_batches: Vec<usize>,
    /// By block: whether it is told by what it is in other micro-batches too.
    is_shared: Vec<bool>,
    /// The most that the probe had in any member, or a lead that the same op makes.
    pub(super) largest_bytes: u64,
}

impl Dimensions {
    /// What the members of these sizes follow from, in units of `unit_bytes`; `base` is the largest
    /// of them.
    pub(super) fn of(base: &Trace, sizes: &Sizes, probe: usize, unit_bytes: u64) -> Dimensions {
        let differs: Vec<bool> = (0..base.blocks.len()).map(|at| differs(sizes, at)).collect();
        let (mut leads, mut of_blocks) = found_by_sizes(sizes, &differs, probe, unit_bytes);
        let mut batches = Batches::of(base, probe);
        let found = (&mut leads[..], &mut of_blocks[..]);
        let of_batches = led_by_probes(base, &mut batches, (sizes, &differs), found, unit_bytes);
        let is_like_probe = |lead: usize| made_by(base, lead) == made_by(base, probe);
        let most = |lead: usize| sizes.iter().filter_map(|member| member[lead]).max();
        let like_probe = || leads.iter().copied().filter(|&lead| is_like_probe(lead));
        let largest_bytes = like_probe().filter_map(most).max().unwrap_or(0);
        let ratio = |&lead: &usize| match most(lead) {
            Some(bytes) if !is_like_probe(lead) => bytes as f64 / largest_bytes.max(1) as f64,
            _ => 1.0,
        };
        let mut dimensions = Dimensions {
            probes: like_probe().map(|lead| BlockIndex(lead as u32)).collect(),
            ratios: leads.iter().map(ratio).collect(),
            is_shared: vec![false; of_blocks.len()],
            of_ops: Vec::new(),
            leads,
            of_blocks,
            batches,
            of_batches,
            largest_bytes,
        };
        let differs = dimensions.share(&differs);
        dimensions.of_ops = dimensions.told_by_blocks(base, &differs);
        dimensions
    }

    /// Finds the blocks that follow the probe of their micro-batch in the same way in several, also
    /// where they happened to be as large in all members. Says which blocks differ then.
    fn share(&mut self, differs: &[bool]) -> Vec<bool> {
        let mut may_differ = differs.to_vec();
        for (block, may_differ) in may_differ.iter_mut().enumerate() {
            let like = self.batches.blocks_like(block);
            let follows = |&(batch, block): &(usize, usize)| {
                !differs[block] || self.of_blocks[block] == self.of_batches[batch]
            };
            let is_shared =
                like.iter().any(|&(_, block)| differs[block]) && like.iter().all(follows);
            if let Some(batch) = self.batches.of_block(block).filter(|_| is_shared) {
                self.of_blocks[block] = self.of_batches[batch];
                (self.is_shared[block], *may_differ) = (true, true);
            }
        }
        may_differ
    }

    /// What tells of a block: itself and, where micro-batches are alike, what it is in the others.
    /// Each with the lead that it follows.
    pub(super) fn blocks_like(&self, block: usize) -> Vec<(usize, usize)> {
        match self.is_shared[block] {
            true => self.with_leads(self.batches.blocks_like(block)),
            false => vec![(self.lead(self.of_block(block)), block)],
        }
    }

    /// The dimension that the time of an op follows, and what tells of it, as with
    /// [`blocks_like`](Dimensions::blocks_like).
    pub(super) fn ops_like(&self, op: usize) -> (usize, Vec<(usize, usize)>) {
        let dimension = self.of_ops[op];
        match self.batches.ops_like(op) {
            Some((batch, like)) if self.of_batches[batch] == dimension => {
                (dimension, self.with_leads(like))
            }
            _ => (dimension, vec![(self.lead(dimension), op)]),
        }
    }

    /// What is in some micro-batches, with the block that leads each.
    fn with_leads(&self, in_batches: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
        let with_lead = |(batch, it): (usize, usize)| (self.lead(self.of_batches[batch]), it);
        in_batches.into_iter().map(with_lead).collect()
    }

    /// The dimension that a block follows.
    pub(super) fn of_block(&self, block: usize) -> usize {
        self.of_blocks[block]
    }

    /// The block that leads a dimension.
    pub(super) fn lead(&self, dimension: usize) -> usize {
        self.leads[dimension]
    }

    /// The probe, and what is like it in other micro-batches.
    pub(super) fn probes(&self) -> &[BlockIndex] {
        &self.probes
    }

    /// A step in which the probe has so many bytes, and that is as large in all its parts.
    pub(super) fn at(&self, probe_bytes: u64) -> StepSize {
        let leads = self.ratios.iter().map(|ratio| ratio * probe_bytes as f64).collect();
        StepSize { leads, probe_bytes }
    }

    /// A step in which the leads have these sizes, as far as they are known; the others as is
    /// usual beside such a probe. `None` if that is not known.
    pub(super) fn size(&self, bytes_of: impl Fn(usize) -> Option<u64>) -> Option<StepSize> {
        let mut size = self.at(bytes_of(self.leads[0])?);
        for (guessed, &lead) in size.leads.iter_mut().zip(&self.leads) {
            *guessed = bytes_of(lead).map_or(*guessed, |bytes| bytes as f64);
        }
        let probes = self.probes.iter().filter_map(|probe| bytes_of(probe.0 as usize));
        size.probe_bytes = probes.fold(size.probe_bytes, u64::max);
        Some(size)
    }

    /// By op: the dimension that its time follows, which is that of the first block that it uses
    /// and whose size differs.
    fn told_by_blocks(&self, base: &Trace, differs: &[bool]) -> Vec<usize> {
        let mut tells = vec![None; base.ops.len()];
        let mut open = Vec::new();
        for event in &base.events {
            match *event {
                TraceEvent::Begin(op) => open.push(op.0 as usize),
                TraceEvent::End(_) => drop(open.pop()),
                TraceEvent::Touch(block, _) if differs[block.0 as usize] => {
                    open.iter().for_each(|&op| {
                        tells[op].get_or_insert(self.of_blocks[block.0 as usize]);
                    });
                }
                _ => {}
            }
        }
        tells.into_iter().map(Option::unwrap_or_default).collect()
    }
}

/// The leads, and by block the dimension that it follows, as far as sizes tell.
fn found_by_sizes(
    sizes: &Sizes,
    differs: &[bool],
    probe: usize,
    unit_bytes: u64,
) -> (Vec<usize>, Vec<usize>) {
    let (mut leads, mut of_blocks) = (vec![probe], vec![0; differs.len()]);
    let mut open: Vec<usize> = (0..differs.len()).filter(|&at| differs[at]).collect();
    loop {
        let (dimension, lead) = (leads.len() - 1, leads[leads.len() - 1]);
        open.retain(|&block| {
            let follows = block == lead || follows(sizes, lead, block, unit_bytes, 0.0);
            if follows {
                of_blocks[block] = dimension;
            }
            !follows
        });
        let next = open.iter().copied().find(|&at| is_in_all(sizes, at));
        let Some(next) = next.filter(|_| leads.len() < DIMENSIONS_MAX) else { break };
        leads.push(next);
    }
    (leads, of_blocks)
}

/// Micro-batches of lengths of their own: where one has a lead, what the probe is there takes its
/// place, and all that follows that goes with it. Sizes come in whole units, so that a small probe
/// seems to follow another. Returns by micro-batch its dimension; those without one are left out.
fn led_by_probes(
    base: &Trace,
    batches: &mut Batches,
    (sizes, differs): (&Sizes, &[bool]),
    (leads, of_blocks): (&mut [usize], &mut [usize]),
    unit_bytes: u64,
) -> Vec<usize> {
    let rounded = unit_bytes as f64;
    let follows = |lead, block| follows(sizes, lead, block, unit_bytes, rounded);
    let of_batches = batches.lead(base, leads[0], |batches, probe| {
        let known = leads.iter().position(|&lead| lead == probe);
        let is_replaced = |&lead: &usize| {
            batches.are_together(lead, probe) && is_in_all(sizes, probe) && follows(probe, lead)
        };
        let dimension = known.or_else(|| leads.iter().position(is_replaced))?;
        leads[dimension] = probe;
        Some(dimension)
    });
    for block in (0..differs.len()).filter(|&block| differs[block]) {
        if let Some(batch) = batches.of_block(block) {
            let dimension = of_batches[batch];
            let lead = leads[dimension];
            if block == lead || (!leads.contains(&block) && follows(lead, block)) {
                of_blocks[block] = dimension;
            }
        }
    }
    of_batches
}

fn is_in_all(sizes: &Sizes, block: usize) -> bool {
    sizes.iter().all(|member| member[block].is_some())
}

/// Whether members differ in a block.
pub(super) fn differs(sizes: &Sizes, block: usize) -> bool {
    let mut known = sizes.iter().filter_map(|member| member[block]);
    let first = known.next();
    known.any(|bytes| Some(bytes) != first)
}

/// Whether the sizes of a block lie on a curve over those of the lead, which may be too large by
/// `rounded`.
fn follows(sizes: &Sizes, lead: usize, block: usize, unit_bytes: u64, rounded: f64) -> bool {
    let point = |member: &Vec<Option<u64>>| Some((member[lead]? as f64, member[block]? as f64));
    let points: Vec<(f64, f64)> = sizes.iter().filter_map(point).collect();
    let curve = Curve::through(&points);
    let most = points.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
    points.iter().all(|&(lead, bytes)| {
        let tolerated = unit_bytes as f64 + curve.at(lead + rounded) - curve.at(lead);
        (bytes - curve.at(lead)).abs() <= tolerated.max(SHARE * most)
    })
}
