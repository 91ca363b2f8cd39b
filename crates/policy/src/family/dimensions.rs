//! What the sizes of a step follow from: one number, or several, as where each of its micro-batches
//! has a length of its own.
//!
//! The first block that is never the same is the probe. Blocks that do not follow from it belong to
//! the first of them that differs, and so on: each such block leads a *dimension*. Nobody knows the
//! others' sizes when only the probe is there, so a member is predicted as large in all of them:
//! what the same op makes as the probe takes all sizes that the probe took, as the first block of
//! another micro-batch does, and the other way round.

use swap_core::{BlockIndex, Origin, Trace, TraceEvent};

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
    /// By block: whether members differ in it.
    differs: Vec<bool>,
    /// The most that the probe had in any member, or a lead that the same op makes.
    pub(super) largest_bytes: u64,
}

impl Dimensions {
    /// What the members of these sizes follow from, in units of `unit_bytes`; `base` is the largest
    /// of them.
    pub(super) fn of(base: &Trace, sizes: &Sizes, probe: usize, unit_bytes: u64) -> Dimensions {
        let mut of_blocks = vec![0; base.blocks.len()];
        let mut leads = vec![probe];
        let differs: Vec<bool> = (0..base.blocks.len()).map(|at| differs(sizes, at)).collect();
        let mut open: Vec<usize> = (0..differs.len()).filter(|&at| differs[at]).collect();
        loop {
            let (dimension, lead) = (leads.len() - 1, leads[leads.len() - 1]);
            open.retain(|&block| {
                let follows = block == lead || follows(sizes, lead, block, unit_bytes);
                if follows {
                    of_blocks[block] = dimension;
                }
                !follows
            });
            let is_in_all = |&&at: &&usize| sizes.iter().all(|member| member[at].is_some());
            let Some(&next) = open.iter().find(is_in_all) else { break };
            if leads.len() == DIMENSIONS_MAX {
                break;
            }
            leads.push(next);
        }
        let is_like_probe = |lead: usize| made_by(base, lead) == made_by(base, probe);
        let most = |lead: usize| sizes.iter().filter_map(|member| member[lead]).max();
        let like_probe = || leads.iter().copied().filter(|&lead| is_like_probe(lead));
        let largest_bytes = like_probe().filter_map(most).max().unwrap_or(0);
        let probes = like_probe().map(|lead| BlockIndex(lead as u32)).collect();
        let ratio = |&lead: &usize| match most(lead) {
            Some(bytes) if !is_like_probe(lead) => bytes as f64 / largest_bytes.max(1) as f64,
            _ => 1.0,
        };
        let ratios = leads.iter().map(ratio).collect();
        Dimensions { leads, probes, ratios, of_blocks, differs, largest_bytes }
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
    pub(super) fn of_ops(&self, base: &Trace) -> Vec<usize> {
        let mut tells = vec![None; base.ops.len()];
        let mut open = Vec::new();
        for event in &base.events {
            match *event {
                TraceEvent::Begin(op) => open.push(op.0 as usize),
                TraceEvent::End(_) => drop(open.pop()),
                TraceEvent::Touch(block, _) if self.differs[block.0 as usize] => {
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

/// Whether members differ in a block.
pub(super) fn differs(sizes: &Sizes, block: usize) -> bool {
    let mut known = sizes.iter().filter_map(|member| member[block]);
    let first = known.next();
    known.any(|bytes| Some(bytes) != first)
}

/// Whether the sizes of a block lie on a curve over those of the lead.
fn follows(sizes: &Sizes, lead: usize, block: usize, unit_bytes: u64) -> bool {
    let point = |member: &Vec<Option<u64>>| Some((member[lead]? as f64, member[block]? as f64));
    let points: Vec<(f64, f64)> = sizes.iter().filter_map(point).collect();
    let curve = Curve::through(&points);
    let most = points.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
    let tolerated = (SHARE * most).max(unit_bytes as f64);
    points.iter().all(|&(lead, bytes)| (bytes - curve.at(lead)).abs() <= tolerated)
}

/// The op that makes a block, by its name.
fn made_by(trace: &Trace, block: usize) -> Option<&str> {
    match trace.blocks[block].origin {
        Origin::Persistent => None,
        Origin::Op(op) | Origin::Before(op) => {
            trace.ops.get(op.0 as usize).map(|op| op.name.as_str())
        }
    }
}
