//! Families: steps of the same ops whose sizes differ, as with batches of other lengths.
//!
//! Each size of such a step, and each time, follows from one number: the size of a block that comes
//! early and is never the same, the *probe*. From a few recorded *members* a curve is fitted for
//! each block and op, and any other member can be predicted before it runs. Where each micro-batch
//! of a step has a length of its own there are several such numbers ([`dimensions`]).
//!
//! ```text
//!   bytes of a block            x  recorded members
//!     |            . - o        o  predicted: a larger one than any before
//!     |       . x '
//!     |  x '
//!     +---------------- bytes of the probe
//! ```

use std::sync::Arc;

use swap_core::{BlockIndex, OpIndex, Origin, Plan, Signature, Trace, TraceBlock, TraceEvent};
use thiserror::Error;

mod batches;
mod dimensions;
mod fit;

pub use dimensions::StepSize;
use dimensions::{Dimensions, differs};
use fit::Curve;

/// Members that are kept: more would hardly say more.
const MEMBERS_MAX: usize = 8;

/// Sizes are predicted in units of this, or of what all recorded ones are a multiple of.
const UNIT_BYTES: u64 = 2 << 20;

/// What is known of a family.
#[derive(Clone, Debug, Default)]
pub struct Family {
    /// In order of their sizes; the last one says which ops and blocks there are.
    members: Vec<Arc<Trace>>,
    learnt: Option<Learnt>,
}

/// What its members say together.
#[derive(Clone, Debug)]
struct Learnt {
    /// How large each member is in which the probe is found.
    probe_bytes: Vec<u64>,
    dimensions: Dimensions,
    sizes: Vec<Curve>,
    /// By op: its time, and the dimension that this follows.
    times: Vec<(usize, Curve)>,
    /// By op: what the host does for it, and whether it waits for the device then.
    host: Vec<(f64, bool)>,
    /// By op: whether it can be run again in all members. Others can in those that were seen.
    at_any_size: Vec<bool>,
    step: Curve,
    /// The most bytes of segments, in members that have all blocks.
    segments: Curve,
    unit_bytes: u64,
}

/// Steps that are not one family: their ops differ.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("step {} has other ops than step 1, from op {op} on", .step + 1)]
pub struct Unlike {
    /// The first step that differs, counted from 0.
    pub step: usize,
    /// The first op of it that does.
    pub op: usize,
}

impl Family {
    /// What these recorded steps say together. They may also be alike.
    ///
    /// # Errors
    /// Names the first step whose ops are not those of the first one.
    pub fn of(steps: &[Trace]) -> Result<Family, Unlike> {
        let mut family = Family::default();
        for (step, trace) in steps.iter().enumerate() {
            if let Some(op) = first_other_op(&steps[0], trace) {
                return Err(Unlike { step, op });
            }
            family.learn(trace);
        }
        Ok(family)
    }

    /// A recorded step of these ops as the family predicts it, with the same fingerprint: such
    /// members have all blocks of the largest, so that its plan can serve them. `None` if the step
    /// is so small that the probe is missing.
    pub fn like(&self, recorded: &Trace) -> Option<Trace> {
        if self.learnt.is_none() {
            return Some(recorded.clone());
        }
        let size = self.size_of(recorded)?;
        self.predicted(&size, recorded.signature)
    }

    /// How large a recorded step of these ops is, if it has the probe.
    pub fn size_of(&self, recorded: &Trace) -> Option<StepSize> {
        let (learnt, base) = (self.learnt.as_ref()?, self.members.last()?);
        let sizes = sizes_as_in(base, recorded);
        learnt.dimensions.size(|block| sizes[block])
    }

    /// How large a step is of which the sizes of some blocks are known, if the probe is one.
    pub fn size_told(&self, known: &[(BlockIndex, u64)]) -> Option<StepSize> {
        let bytes_of = |block: usize| {
            let found = known.iter().find(|(index, _)| index.0 as usize == block);
            found.map(|&(_, bytes)| bytes)
        };
        self.learnt.as_ref()?.dimensions.size(bytes_of)
    }

    /// One as large as any that was recorded, in all its parts, as the family predicts it. `None`
    /// if nothing was.
    pub fn largest(&self) -> Option<Trace> {
        let recorded = self.members.last()?;
        match self.largest_bytes() {
            Some(probe_bytes) => self.member(probe_bytes, recorded.signature),
            None => Some(Trace::clone(recorded)),
        }
    }

    /// Takes in a recorded member. Of one that was there already, with the same sizes, the ops take
    /// the least that they took.
    pub fn learn(&mut self, trace: &Trace) {
        let known = self.members.iter_mut().find(|known| known.signature == trace.signature);
        match known {
            Some(known) if known.ops.len() == trace.ops.len() => {
                let known = Arc::make_mut(known);
                for (op, again) in known.ops.iter_mut().zip(&trace.ops) {
                    op.take_least(again);
                }
                known.step_us = known.step_us.min(trace.step_us);
            }
            Some(_) => return,
            None => self.members.push(Arc::new(trace.clone())),
        }
        self.members.sort_by_key(|member| made_bytes(member));
        if self.members.len() > MEMBERS_MAX {
            self.forget_one();
        }
        self.learnt = Learnt::from(&self.members);
    }

    /// Forgets the member that says the least: the one that lies nearest to its neighbours.
    fn forget_one(&mut self) {
        let bytes: Vec<u64> = self.members.iter().map(|member| made_bytes(member)).collect();
        let inner = bytes.windows(3).map(|near| near[2] - near[0]);
        let nearest = inner.zip(1..).min().map_or(1, |(_, at)| at);
        self.members.remove(nearest);
    }

    /// How many sizes of the probe were recorded; 0 as long as all steps were alike.
    pub fn member_count(&self) -> usize {
        self.learnt.as_ref().map_or(0, |learnt| learnt.probe_bytes.len())
    }

    /// The block whose size tells how large a step is.
    pub fn probe(&self) -> Option<BlockIndex> {
        self.probes().first().copied()
    }

    /// The block whose size tells how large a step is, and those that tell it of its other
    /// micro-batches, where each has a size of its own.
    pub fn probes(&self) -> &[BlockIndex] {
        self.learnt.as_ref().map_or(&[], |learnt| learnt.dimensions.probes())
    }

    /// The largest size that the probe had in a recorded member, or what is like it in other
    /// micro-batches.
    pub fn largest_bytes(&self) -> Option<u64> {
        self.learnt.as_ref().map(|learnt| learnt.dimensions.largest_bytes)
    }

    /// The recorded members, in order of their sizes.
    pub fn recorded(&self) -> &[Arc<Trace>] {
        &self.members
    }

    /// The sizes of the probe in the recorded members, or of what is larger in another micro-batch.
    pub fn recorded_bytes(&self) -> &[u64] {
        self.learnt.as_ref().map_or(&[], |learnt| &learnt.probe_bytes)
    }

    /// The time that such a step takes at least, whatever memory it has, in microseconds: that of
    /// its ops, or that of the host.
    pub fn unlimited_us(&self, size: &StepSize) -> Option<f64> {
        let learnt = self.learnt.as_ref()?;
        let ops_us: f64 = (0..learnt.times.len()).map(|op| learnt.device_us(op, size)).sum();
        let host_us = learnt.host.iter().map(|&(host_us, _)| host_us).sum();
        Some(ops_us.max(host_us))
    }

    /// The member whose probe has this size, and that is as large in all its parts: no block of
    /// such a step should be larger than here. `None` if steps were all alike so far.
    pub fn member(&self, probe_bytes: u64, signature: Signature) -> Option<Trace> {
        let size = self.learnt.as_ref()?.dimensions.at(probe_bytes);
        self.predicted(&size, signature)
    }

    /// The member of this size.
    fn predicted(&self, size: &StepSize, signature: Signature) -> Option<Trace> {
        let learnt = self.learnt.as_ref()?;
        let mut trace = Trace::clone(self.members.last()?);
        let probe = size.lead(0);
        for (at, (block, curve)) in trace.blocks.iter_mut().zip(&learnt.sizes).enumerate() {
            let bytes = curve.bound(size.lead(learnt.dimensions.of_block(at)));
            block.size_bytes = whole(bytes, learnt.unit_bytes);
        }
        for (at, op) in trace.ops.iter_mut().enumerate() {
            (op.host_us, op.host_waits) = learnt.host[at];
            op.device_us = learnt.device_us(at, size);
            op.replayable = learnt.at_any_size[at];
            op.at_any_size = op.replayable;
        }
        grow_segments(&mut trace, learnt.segments.bound(probe));
        follow_its_like(&mut trace);
        trace.step_us = learnt.step.at(probe).max(0.0);
        trace.signature = signature;
        Some(trace)
    }
}

impl Learnt {
    /// `None` without two members in which some block differs.
    fn from(members: &[Arc<Trace>]) -> Option<Learnt> {
        // Each recorded step of a training whose steps are alike comes by here.
        let [_, .., base] = members else { return None };
        let alike: Vec<&Arc<Trace>> =
            members.iter().filter(|member| member.ops.len() == base.ops.len()).collect();
        let sizes: Vec<Vec<Option<u64>>> =
            alike.iter().map(|member| sizes_as_in(base, member)).collect();
        let probe = probe_of(base, &sizes)?;
        let known: Vec<usize> =
            (0..alike.len()).filter(|&member| sizes[member][probe].is_some()).collect();
        let unit_bytes = base.blocks.iter().map(|block| block.size_bytes).fold(UNIT_BYTES, gcd);
        let dimensions = Dimensions::of(base, &sizes, probe, unit_bytes);
        let points = |lead: usize, value: &dyn Fn(usize) -> Option<f64>| {
            let points = known.iter().filter_map(|&m| Some((sizes[m][lead]? as f64, value(m)?)));
            points.collect::<Vec<_>>()
        };
        let over_probe =
            |value: &dyn Fn(usize) -> Option<f64>| Curve::through(&points(probe, value));
        let of_block = |block: usize| {
            let like = dimensions.blocks_like(block).into_iter();
            let points = like.flat_map(|(lead, block)| {
                points(lead, &|m| sizes[m][block].map(|bytes| bytes as f64))
            });
            Curve::through(&points.collect::<Vec<_>>())
        };
        // A device that waits for its host waits inside of ops: now and then they seem longer.
        let of_op = |op: usize| {
            let (dimension, like) = dimensions.ops_like(op);
            let points = like
                .into_iter()
                .flat_map(|(lead, op)| points(lead, &|m| Some(alike[m].ops[op].device_us)));
            (dimension, Curve::below(&points.collect::<Vec<_>>()))
        };
        // What the host does for an op is the same at any size, and more where it is disturbed.
        let quickest = |op: usize| {
            let mut quickest = base.ops[op].clone();
            alike.iter().for_each(|member| quickest.take_least(&member.ops[op]));
            (quickest.host_us, quickest.host_waits)
        };
        let size = |&m: &usize| dimensions.size(|block| sizes[m][block]);
        Some(Learnt {
            probe_bytes: known.iter().filter_map(size).map(|size| size.probe_bytes).collect(),
            sizes: (0..base.blocks.len()).map(of_block).collect(),
            times: (0..base.ops.len()).map(of_op).collect(),
            host: (0..base.ops.len()).map(quickest).collect(),
            at_any_size: (0..base.ops.len())
                .map(|op| alike.iter().any(|member| member.ops[op].at_any_size))
                .collect(),
            step: over_probe(&|m| Some(alike[m].step_us)),
            segments: over_probe(&|m| {
                let has_all = alike[m].blocks.len() == base.blocks.len();
                has_all.then(|| segment_bytes_of(alike[m]) as f64)
            }),
            dimensions,
            unit_bytes,
        })
    }

    /// The time of an op in a step of this size.
    fn device_us(&self, op: usize, size: &StepSize) -> f64 {
        let (dimension, curve) = &self.times[op];
        curve.at(size.lead(*dimension))
    }
}

/// The first op of a step that is another than in `base`.
fn first_other_op(base: &Trace, step: &Trace) -> Option<usize> {
    let mut pairs = base.ops.iter().zip(&step.ops);
    let differs =
        pairs.position(|(one, other)| (&one.name, one.depth) != (&other.name, other.depth));
    let shorter = base.ops.len().min(step.ops.len());
    differs.or_else(|| (base.ops.len() != step.ops.len()).then_some(shorter))
}

/// The step as one of its size leaves it behind: what lives at its start is what it leaves, in that
/// order. The recorded one may have come after another, or after one that made the optimizer's
/// state.
fn follow_its_like(trace: &mut Trace) {
    let outlives = outlives(trace);
    let start = trace.blocks.iter().take_while(|block| block.origin == Origin::Persistent).count();
    let left: Vec<usize> = (start..outlives.len()).filter(|&block| outlives[block]).collect();
    let (stays, goes): (Vec<usize>, Vec<usize>) = (0..start).partition(|&block| outlives[block]);
    if left.len() != goes.len() {
        return;
    }
    for (&before, &after) in goes.iter().zip(&left) {
        trace.blocks[before].size_bytes = trace.blocks[after].size_bytes;
    }
    // What stays is older than what the step before has left.
    let order: Vec<usize> = stays.into_iter().chain(goes).collect();
    let blocks: Vec<TraceBlock> = order.iter().map(|&block| trace.blocks[block].clone()).collect();
    trace.blocks[..start].clone_from_slice(&blocks);
    let mut places: Vec<u32> = (0..outlives.len() as u32).collect();
    for (place, block) in (0..).zip(order) {
        places[block] = place;
    }
    for event in &mut trace.events {
        match event {
            TraceEvent::Touch(block, _) | TraceEvent::Allocate(block) | TraceEvent::Free(block) => {
                block.0 = places[block.0 as usize];
            }
            TraceEvent::Begin(_) | TraceEvent::End(_) | TraceEvent::Segments(_) => {}
        }
    }
}

/// The most bytes of segments that a step has.
fn segment_bytes_of(trace: &Trace) -> u64 {
    let grown = trace.events.iter().filter_map(|event| match *event {
        TraceEvent::Segments(bytes) => Some(bytes),
        _ => None,
    });
    grown.fold(trace.segment_bytes, u64::max)
}

/// A larger step has larger small blocks, of which some may be no small ones any more: that takes
/// up to so many bytes, in the same course.
fn grow_segments(trace: &mut Trace, most_bytes: f64) {
    let factor = most_bytes / segment_bytes_of(trace) as f64;
    if !factor.is_finite() || factor <= 1.0 {
        return;
    }
    let grown = |bytes: u64| (bytes as f64 * factor).ceil() as u64;
    trace.segment_bytes = grown(trace.segment_bytes);
    for event in &mut trace.events {
        if let TraceEvent::Segments(bytes) = event {
            *bytes = grown(*bytes);
        }
    }
}

/// By block: whether it is there still when the step ends.
fn outlives(trace: &Trace) -> Vec<bool> {
    let mut outlives = vec![true; trace.blocks.len()];
    for event in &trace.events {
        if let TraceEvent::Free(block) = event {
            outlives[block.0 as usize] = false;
        }
    }
    outlives
}

/// The first block whose size differs between members that have it. One that all have is taken
/// before one that is too small to be swappable in some.
fn probe_of(base: &Trace, sizes: &[Vec<Option<u64>>]) -> Option<usize> {
    let made = (0..base.blocks.len()).filter(|&at| base.blocks[at].origin != Origin::Persistent);
    let is_in_all = |&at: &usize| sizes.iter().all(|member| member[at].is_some());
    let differing: Vec<usize> = made.filter(|&at| differs(sizes, at)).collect();
    differing.iter().copied().find(is_in_all).or_else(|| differing.first().copied())
}

/// What the blocks of `base` have in another member. Some may be too small to be swappable there,
/// and in ops in which not as many are made they are told by how many of any size came before. What
/// lives at the start is as large in all, but for what other steps [left](follow_its_like).
fn sizes_as_in(base: &Trace, member: &Trace) -> Vec<Option<u64>> {
    let (expected, found) = (by_stretch(base), by_stretch(member));
    let persistent = |block: &TraceBlock| block.origin == Origin::Persistent;
    let sizes = base.blocks.iter().map(|block| persistent(block).then_some(block.size_bytes));
    let mut sizes: Vec<Option<u64>> = sizes.collect();
    for (op, places) in &expected {
        let Ok(at) = found.binary_search_by_key(op, |&(op, _)| op) else { continue };
        let there = &found[at].1;
        let nth = |trace: &Trace, block: usize| trace.blocks[block].nth;
        let has_all = there.len() == places.len();
        let are_told = is_in_order(base, places) && is_in_order(member, there);
        for (at, &place) in places.iter().enumerate() {
            let as_early = |block: &&usize| nth(member, **block) == nth(base, place);
            let block = match has_all {
                true => there.get(at),
                false => there.iter().find(as_early).filter(|_| are_told),
            };
            sizes[place] = block.map(|&block| member.blocks[block].size_bytes);
        }
    }
    sizes
}

/// Whether the blocks of an op tell how many came before each: some files do not say.
fn is_in_order(trace: &Trace, blocks: &[usize]) -> bool {
    blocks.windows(2).all(|pair| trace.blocks[pair[0]].nth < trace.blocks[pair[1]].nth)
}

/// The blocks that a step makes by where: 0 for those before any op, then op by op those before the
/// next began.
fn by_stretch(trace: &Trace) -> Vec<(u32, Vec<usize>)> {
    let mut stretches: Vec<(u32, Vec<usize>)> = Vec::new();
    let mut at = 0;
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(OpIndex(op)) => at = op + 1,
            TraceEvent::Allocate(BlockIndex(block)) => match stretches.last_mut() {
                Some((last, blocks)) if *last == at => blocks.push(block as usize),
                _ => stretches.push((at, vec![block as usize])),
            },
            _ => {}
        }
    }
    stretches
}

fn made_bytes(trace: &Trace) -> u64 {
    let made = trace.blocks.iter().filter(|block| block.origin != Origin::Persistent);
    made.map(|block| block.size_bytes).sum()
}

/// A whole number of units, not less than `bytes`, and at least one.
fn whole(bytes: f64, unit_bytes: u64) -> u64 {
    // Curves meet recorded sizes but for the last bits of a number.
    let units = (bytes / unit_bytes as f64 - 1e-6).ceil().max(1.0);
    (units as u64).saturating_mul(unit_bytes)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The most bytes of blocks and segments that a step has at once, if nothing leaves.
pub fn peak_bytes(trace: &Trace) -> u64 {
    let persistent = trace.blocks.iter().filter(|block| block.origin == Origin::Persistent);
    let mut live_bytes: u64 = persistent.map(|block| block.size_bytes).sum();
    let (mut peak_bytes, mut segment_bytes) = (live_bytes, trace.segment_bytes);
    for event in &trace.events {
        match *event {
            TraceEvent::Allocate(block) => live_bytes += trace.blocks[block.0 as usize].size_bytes,
            TraceEvent::Free(block) => {
                let size_bytes = trace.blocks[block.0 as usize].size_bytes;
                live_bytes = live_bytes.saturating_sub(size_bytes);
            }
            TraceEvent::Segments(bytes) => segment_bytes = segment_bytes.max(bytes),
            _ => {}
        }
        peak_bytes = peak_bytes.max(live_bytes);
    }
    peak_bytes + segment_bytes
}

/// The plan of a larger step, for a member of its family that has the same blocks.
///
/// # Panics
/// If the member lacks a block of the plan.
pub fn plan_for_member(plan: &Plan, member: &Trace) -> Plan {
    let mut plan = Plan { signature: member.signature, ..plan.clone() };
    for block in &mut plan.blocks {
        block.size_bytes = member.blocks[block.index.0 as usize].size_bytes;
    }
    plan
}

/// The step with all that outlives it held on the device: weights, and an optimizer's state.
pub fn with_state_held(trace: &Trace) -> Trace {
    let mut held = Trace { signature: trace.signature.mix(1), ..trace.clone() };
    for (block, outlives) in held.blocks.iter_mut().zip(outlives(trace)) {
        block.held |= outlives && block.origin == Origin::Persistent;
    }
    held
}

#[cfg(test)]
mod tests;
