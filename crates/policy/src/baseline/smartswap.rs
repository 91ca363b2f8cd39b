//! The two generators of SmartSwap for Ascend, with the constants that they document.
//!
//! The first shaves peaks: candidates by a score of size and coverage, taken as long as their
//! copies fit the slack of the stages, and past that one at a time. The second takes every large
//! activation of one layer, out with its layer and back one layer ahead.
//!
//! Where the originals are broken they are mended: layer boundaries are found in every micro-batch,
//! the layers of a step without attention too, the target is the limit, and the best of the
//! policies that were tried is kept.

use std::borrow::Cow;

use swap_core::{ActionKind, Origin, Phase, Plan};

use super::stages::{Part, Stages};
use super::{BaselineRun, Order, Scene, better, judge, plan_of};
use crate::candidate::Gap;

/// `D2H_bandwidth` and `H2D_bandwidth`.
const LINK_BYTES_PER_US: f64 = 25_600.0;

/// Settings of SmartSwap's generators, with what they document unless it is said otherwise.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SmartSwapConfig {
    /// `tensor_size_filter`: smaller blocks stay. Under the second generator those of this very
    /// size stay too.
    pub block_bytes_min: u64,
    /// `size_coverage_weight`: what size counts beside coverage in the first generator's score.
    pub size_weight: f64,
    /// `redundant_memory`: how far below the limit the target is after a policy that needed
    /// rescues.
    pub redundant_bytes: u64,
    /// `adjust_memory`: how much lower the target is after each further one.
    pub adjust_bytes: u64,
    /// Policies that the first generator tries, at least one: `stable_step` less `warmup_step`.
    pub search_steps: u32,
    /// `swap_bucket_size`: the most bytes that leave with one forward stage under the second
    /// generator; `None` for no such cap.
    pub bucket_bytes: Option<u64>,
    /// `num_attn_layers_per_stage`: layers in one stage of the second generator, at least one.
    pub layers_per_stage: u32,
    /// `policy_pref`: whether optimizer state leaves too under the second generator. The first
    /// takes it as any other block.
    pub optimizer_state: bool,
    /// Memory to leave unused below the limit: lowers the first generator's target.
    pub reserve_bytes: u64,
}

impl Default for SmartSwapConfig {
    /// As documented, but for three: the target is the limit at first, each policy that needs
    /// rescues lowers it by `adjust_memory` alone, and as many are tried as the first release did.
    fn default() -> SmartSwapConfig {
        SmartSwapConfig {
            block_bytes_min: 20 << 20,
            size_weight: 2.0,
            redundant_bytes: 0,
            adjust_bytes: 300 << 20,
            search_steps: 8,
            bucket_bytes: None,
            layers_per_stage: 1,
            optimizer_state: false,
            reserve_bytes: 0,
        }
    }
}

impl SmartSwapConfig {
    /// What the first generator aims at after so many policies that needed rescues.
    pub(super) fn target_bytes(&self, limit_bytes: u64, rescued: u32) -> u64 {
        let redundant_bytes = if rescued == 0 { 0 } else { self.redundant_bytes };
        let adjust_bytes = self.adjust_bytes.saturating_mul(u64::from(rescued));
        let spare_bytes = redundant_bytes.saturating_add(adjust_bytes);
        limit_bytes.saturating_sub(spare_bytes).saturating_sub(self.reserve_bytes)
    }
}

/// Where times come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Model {
    /// The step divided evenly over its ops, and a link of fixed speed.
    Original,
    /// The trace's times and the machine's link.
    Measured,
}

struct Times {
    /// By slot.
    op_us: Vec<f64>,
    out_bytes_per_us: f64,
    in_bytes_per_us: f64,
}

impl Times {
    fn new(scene: &Scene<'_>, model: Model) -> Times {
        let count = scene.usage.slots.len();
        let link = scene.machine.link;
        match model {
            Model::Original => Times {
                op_us: vec![scene.slot_us[count] / count as f64; count],
                out_bytes_per_us: LINK_BYTES_PER_US,
                in_bytes_per_us: LINK_BYTES_PER_US,
            },
            Model::Measured => Times {
                op_us: scene.slot_us.windows(2).map(|ends| ends[1] - ends[0]).collect(),
                out_bytes_per_us: link.out_bytes_per_us,
                in_bytes_per_us: link.in_bytes_per_us,
            },
        }
    }

    fn stage_us(&self, stages: &Stages, stage: usize) -> f64 {
        let slots = stages.start[stage] as usize..stages.start[stage + 1] as usize;
        self.op_us[slots].iter().sum()
    }
}

/// A block that may go: where it goes, and the stage before which it must be back.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    block: u32,
    size_bytes: u64,
    /// The slot behind which it leaves; -1 for the step's begin.
    leaves: i64,
    out_stage: usize,
    in_stage: usize,
    /// The stage at whose begin its copy back is issued.
    asked_stage: usize,
    score: f64,
}

pub(super) fn v1<'a>(scene: &Scene<'a>, model: Model, config: &SmartSwapConfig) -> BaselineRun<'a> {
    let layers = scene.stages.layers.len();
    // The original's number of stages for so many layers.
    let count = 10_usize.checked_div(layers).map_or(usize::MAX, |more| (more + 1) * layers);
    let stages = scene.stages.even(count);
    let optimizer = scene.stages.part.iter().position(|&part| part == Part::Optimizer);
    let times = Times::new(scene, model);
    let shaver = Shaver { scene, stages: &stages, times, config, optimizer };
    let mut tried: Option<u64> = None;
    let mut best: Option<BaselineRun<'a>> = None;
    for search_step in 0..config.search_steps.max(1) {
        let target_bytes = config.target_bytes(scene.machine.limit_bytes, search_step);
        if tried.replace(target_bytes) == Some(target_bytes) {
            break;
        }
        let plan = order(scene, &stages, &shaver.select(target_bytes));
        let run = judge(Cow::Borrowed(scene.trace), &scene.usage, plan, &scene.machine);
        let done = run.simulation.rescues == 0 && run.simulation.shortfall.is_none();
        best = Some(match best {
            Some(best) => better(best, run),
            None => run,
        });
        if done {
            break;
        }
    }
    best.expect("at least one policy was tried")
}

struct Shaver<'a, 's> {
    scene: &'a Scene<'s>,
    stages: &'a Stages,
    times: Times,
    config: &'a SmartSwapConfig,
    /// The first slot of the optimizer, where the scan stops.
    optimizer: Option<usize>,
}

impl Shaver<'_, '_> {
    fn select(&self, target_bytes: u64) -> Vec<Candidate> {
        let mut need: Vec<i64> = self.scene.need().iter().map(|&bytes| bytes as i64).collect();
        need.truncate(self.optimizer.unwrap_or(need.len()));
        for bytes in &mut need {
            *bytes -= target_bytes as i64;
        }
        let mut candidates = self.candidates(&need);
        let mut slack_us: Vec<f64> =
            (0..self.stages.count()).map(|stage| self.times.stage_us(self.stages, stage)).collect();
        let mut selected = Vec::new();
        while let Some(highest) =
            (0..need.len()).max_by_key(|&slot| (need[slot], usize::MAX - slot))
            && need[highest] > 0
        {
            let covering: Vec<usize> = (0..candidates.len())
                .filter(|&index| self.covered(&candidates[index]).contains(&highest))
                .collect();
            let Some(&first) = covering.first() else { break };
            let mut taken = Vec::new();
            let mut missing_bytes = need[highest];
            for index in covering {
                if missing_bytes > 0 && self.fits(&candidates[index], &slack_us) {
                    missing_bytes -= candidates[index].size_bytes as i64;
                    self.charge(&mut candidates[index], &mut slack_us);
                    taken.push(index);
                }
            }
            if taken.is_empty() {
                self.postpone(&mut candidates[first], &mut slack_us);
                taken.push(first);
            }
            for index in taken.into_iter().rev() {
                let candidate = candidates.remove(index);
                for bytes in &mut need[self.covered(&candidate)] {
                    *bytes -= candidate.size_bytes as i64;
                }
                selected.push(candidate);
            }
        }
        selected
    }

    /// Activations, and what only the optimizer uses, by descending score.
    fn candidates(&self, need: &[i64]) -> Vec<Candidate> {
        let scene = self.scene;
        let stage = |slot: i64| self.stages.stage[slot as usize] as usize;
        let mut candidates: Vec<Candidate> = scene
            .activations()
            .iter()
            .map(|gap| self.candidate(gap.block, gap.from, stage(gap.from), stage(gap.to)))
            .collect();
        candidates.extend(
            optimizer_blocks(scene)
                .into_iter()
                .map(|(block, first)| self.candidate(block, -1, 0, stage(first))),
        );
        candidates.retain(|candidate| {
            let long = candidate.in_stage > candidate.out_stage + 1;
            long && candidate.size_bytes >= self.config.block_bytes_min
        });
        let over: Vec<bool> = need.iter().map(|&bytes| bytes > 0).collect();
        let coverage = |candidate: &Candidate| {
            over[self.covered(candidate)].iter().filter(|&&over| over).count() as f64
        };
        let coverages = normalized(candidates.iter().map(coverage).collect());
        let sizes = candidates.iter().map(|candidate| (candidate.size_bytes as f64).cbrt());
        let sizes = normalized(sizes.collect());
        for ((candidate, coverage), size) in candidates.iter_mut().zip(coverages).zip(sizes) {
            candidate.score = coverage + self.config.size_weight * size;
        }
        candidates.sort_by(|one, other| {
            other.score.total_cmp(&one.score).then(one.out_stage.cmp(&other.out_stage))
        });
        candidates
    }

    fn candidate(&self, block: u32, leaves: i64, out_stage: usize, in_stage: usize) -> Candidate {
        let size_bytes = self.scene.trace.blocks[block as usize].size_bytes;
        let asked_stage = in_stage.saturating_sub(1);
        Candidate { block, size_bytes, leaves, out_stage, in_stage, asked_stage, score: 0.0 }
    }

    /// The slots over which a candidate counts as away: whole stages between its two.
    fn covered(&self, candidate: &Candidate) -> std::ops::Range<usize> {
        let end = self.optimizer.unwrap_or(self.stages.part.len());
        let to = (self.stages.start[candidate.in_stage] as usize).min(end);
        let from = (self.stages.start[candidate.out_stage + 1] as usize).min(to);
        from..to
    }

    fn copy_us(&self, candidate: &Candidate) -> (f64, f64) {
        let size_bytes = candidate.size_bytes as f64;
        (size_bytes / self.times.out_bytes_per_us, size_bytes / self.times.in_bytes_per_us)
    }

    fn fits(&self, candidate: &Candidate, slack_us: &[f64]) -> bool {
        let (out_us, in_us) = self.copy_us(candidate);
        slack_us[candidate.out_stage] >= out_us && slack_us[candidate.asked_stage] >= in_us
    }

    fn charge(&self, candidate: &mut Candidate, slack_us: &mut [f64]) {
        let (out_us, in_us) = self.copy_us(candidate);
        slack_us[candidate.out_stage] -= out_us;
        slack_us[candidate.asked_stage] -= in_us;
    }

    /// Takes a candidate that delays: back in the latest earlier stage that has time for it.
    fn postpone(&self, candidate: &mut Candidate, slack_us: &mut [f64]) {
        let (_, in_us) = self.copy_us(candidate);
        let stages = candidate.out_stage + 1..candidate.in_stage;
        let roomy = stages.rev().find(|&stage| slack_us[stage] >= in_us);
        candidate.asked_stage = roomy.unwrap_or(candidate.asked_stage);
        self.charge(candidate, slack_us);
    }
}

/// Persistent blocks that the optimizer alone uses, with the slot of their first use.
fn optimizer_blocks(scene: &Scene<'_>) -> Vec<(u32, i64)> {
    let part = |slot: u32| scene.stages.part.get(slot as usize);
    let own = |index: &usize| {
        let uses = scene.usage.uses(*index);
        let optimizer = uses.iter().all(|use_| part(use_.slot) == Some(&Part::Optimizer));
        scene.trace.blocks[*index].origin == Origin::Persistent && !uses.is_empty() && optimizer
    };
    let blocks = (0..scene.trace.blocks.len()).filter(own);
    blocks.map(|index| (index as u32, i64::from(scene.usage.uses(index)[0].slot))).collect()
}

/// Values moved and scaled to lie between 0 and 1.
fn normalized(mut values: Vec<f64>) -> Vec<f64> {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for value in &mut values {
        *value = if high > low { (*value - low) / (high - low) } else { 0.0 };
    }
    values
}

fn order(scene: &Scene<'_>, stages: &Stages, selected: &[Candidate]) -> Plan {
    let orders = selected.iter().flat_map(|candidate| {
        let block = candidate.block;
        let due = i64::from(stages.start[candidate.in_stage]);
        let back = i64::from(stages.start[candidate.asked_stage]).max(candidate.leaves + 1);
        let phase = if candidate.leaves < 0 { Phase::Begin } else { Phase::End };
        let leaves = candidate.leaves.max(0);
        let out = Order { slot: leaves, phase, kind: ActionKind::SwapOut, block, due };
        let (phase, kind) = (Phase::Begin, ActionKind::SwapIn);
        [out, Order { slot: back, phase, kind, block, due }]
    });
    plan_of(scene, orders.collect())
}

pub(super) fn v2<'a>(scene: &Scene<'a>, model: Model, config: &SmartSwapConfig) -> BaselineRun<'a> {
    let layers_per_stage = config.layers_per_stage.max(1) as usize;
    let stages = &Stages::by_layers(scene.trace, &scene.usage, layers_per_stage);
    let times = Times::new(scene, model);
    let mut gaps = scene.activations();
    gaps.retain(|gap| {
        scene.size_bytes(gap) > config.block_bytes_min && one_stage_each_way(scene, stages, gap)
    });
    // By stage, the earliest first.
    gaps.sort_by_key(|gap| (stages.stage[gap.from as usize], gap.from, gap.block));
    let mut selected = Vec::new();
    if config.optimizer_state {
        selected.extend(optimizer_state(scene, stages));
    }
    let together = |one: &Gap, other: &Gap| {
        stages.stage[one.from as usize] == stages.stage[other.from as usize]
    };
    for group in gaps.chunk_by(together) {
        let stage = stages.stage[group[0].from as usize] as usize;
        let link_bytes = match model {
            Model::Original => f64::INFINITY,
            Model::Measured => times.stage_us(stages, stage) * times.out_bytes_per_us,
        };
        let bucket_bytes = config.bucket_bytes.map_or(f64::INFINITY, |bytes| bytes as f64);
        let mut taken_bytes = 0.0;
        for gap in group {
            let size_bytes = scene.size_bytes(gap);
            taken_bytes += size_bytes as f64;
            if taken_bytes > bucket_bytes.min(link_bytes) {
                break;
            }
            let candidate = candidate_of(stages, gap, size_bytes);
            if candidate.asked_stage > stage + 1 {
                selected.push(candidate);
            }
        }
    }
    let plan = order(scene, stages, &selected);
    judge(Cow::Borrowed(scene.trace), &scene.usage, plan, &scene.machine)
}

fn candidate_of(stages: &Stages, gap: &Gap, size_bytes: u64) -> Candidate {
    let in_stage = stages.stage[gap.to as usize] as usize;
    Candidate {
        block: gap.block,
        size_bytes,
        leaves: gap.from,
        out_stage: stages.stage[gap.from as usize] as usize,
        in_stage,
        asked_stage: in_stage - 1,
        score: 0.0,
    }
}

/// What only the optimizer uses, whatever its size: away from the step's begin to the optimizer's.
fn optimizer_state(scene: &Scene<'_>, stages: &Stages) -> Vec<Candidate> {
    let candidate = |(block, first): (u32, i64)| {
        let in_stage = stages.stage[first as usize] as usize;
        let size_bytes = scene.trace.blocks[block as usize].size_bytes;
        let (leaves, out_stage, score) = (-1, 0, 0.0);
        Candidate { block, size_bytes, leaves, out_stage, in_stage, asked_stage: in_stage, score }
    };
    let blocks = optimizer_blocks(scene).into_iter().map(candidate);
    blocks.filter(|candidate| candidate.in_stage > 0).collect()
}

/// Whether forward uses a block in one stage only, and so does backward.
fn one_stage_each_way(scene: &Scene<'_>, stages: &Stages, gap: &Gap) -> bool {
    let uses = scene.usage.uses(gap.block as usize);
    let alone = |part: Part| {
        let stage_of = |use_: &crate::usage::Use| stages.stage.get(use_.slot as usize).copied();
        let mut own = uses
            .iter()
            .filter(|use_| stages.part.get(use_.slot as usize) == Some(&part))
            .map(stage_of);
        let first = own.next();
        own.all(|stage| Some(stage) == first)
    };
    alone(Part::Forward) && alone(Part::Backward)
}
