//! Capuchin: gaps ranked by their measured free time, which is what is left of a gap after both
//! copies. Gaps are swapped, the longest free time first, as long as one copy after the other each
//! way hides them all, until the peak fits. What is still missing then comes from what frees the
//! most bytes for each second it costs, by a copy that shows or by running the producer again. A
//! copy back is triggered when its turn on the link comes; where the access still had to wait, the
//! trigger moves forward by a twentieth of the copy's time and the step is tried again.

use std::borrow::Cow;

use swap_core::{ActionKind, Phase, Plan, Trace};

use super::stages::Part;
use super::{BaselineRun, Order, Scene, better, judge, plan_of, swap};
use crate::candidate::{Gap, find_gaps};
use crate::machine::Machine;
use crate::usage::NONE;

/// How far a trigger moves for each access that had to wait, as a share of the copy's time.
const TRIGGER_STEP: f64 = 0.05;
/// Rounds of feedback.
const ROUNDS: usize = 40;
/// Smaller blocks stay: their copies cost more than they free.
const BLOCK_BYTES_MIN: u64 = 1 << 20;

pub(super) fn run<'a>(trace: &'a Trace, machine: &Machine) -> BaselineRun<'a> {
    let view = replayable_forward(trace);
    let scene = Scene::new(&view, machine);
    let mut picks = choose(&scene);
    let mut best: Option<BaselineRun<'a>> = None;
    for _ in 0..ROUNDS {
        let run = judge(Cow::Owned(view.clone()), &scene.usage, plan(&scene, &picks), machine);
        let waited = move_triggers(&scene, &run, &mut picks);
        best = Some(match best {
            Some(best) => better(best, run),
            None => run,
        });
        if !waited {
            break;
        }
    }
    best.expect("at least one round was run")
}

/// The step with every forward op known to be able to run again that draws no random numbers.
/// Where their owner has said which can, that stands.
fn replayable_forward(trace: &Trace) -> Trace {
    const RANDOM: [&str; 5] = ["dropout", "rand", "normal_", "bernoulli", "uniform"];
    let mut view = trace.clone();
    if view.ops.iter().any(|op| op.replayable) {
        return view;
    }
    let usage = crate::usage::Usage::new(trace);
    let stages = super::Stages::by_layer(trace, &usage);
    for (slot, op) in usage.slots.iter().enumerate() {
        let op = &mut view.ops[op.0 as usize];
        let random = RANDOM.iter().any(|word| op.name.contains(word));
        op.replayable = stages.part[slot] == Part::Forward && !random;
    }
    view
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    Swap,
    Recompute,
}

#[derive(Clone, Copy, Debug)]
struct Pick {
    gap: Gap,
    how: How,
    /// How long before the access its copy back is triggered.
    ahead_us: f64,
}

struct Picker<'a, 's> {
    scene: &'a Scene<'s>,
    need: Vec<u64>,
    picks: Vec<Pick>,
    /// Blocks that are away at some time.
    picked: Vec<bool>,
}

fn choose(scene: &Scene<'_>) -> Vec<Pick> {
    let mut gaps = find_gaps(scene.trace, &scene.usage);
    gaps.retain(|gap| {
        let inside = gap.from >= 0 && gap.to < scene.usage.slots.len() as i64;
        gap.returns && inside && scene.size_bytes(gap) >= BLOCK_BYTES_MIN
    });
    let mut ranked: Vec<(f64, Gap)> =
        gaps.into_iter().map(|gap| (free_us(scene, &gap), gap)).collect();
    ranked.sort_by(|one, other| other.0.total_cmp(&one.0));
    let mut picker = Picker {
        scene,
        need: scene.need(),
        picks: Vec::new(),
        picked: vec![false; scene.trace.blocks.len()],
    };
    let mut costly: Vec<(f64, Gap, How)> = Vec::new();
    for (free_us, gap) in ranked {
        if !picker.helps(&gap) {
            continue;
        }
        let shown_us = picker.shown_us(&gap).max(-free_us);
        if shown_us <= 0.0 {
            picker.take(gap, How::Swap);
            continue;
        }
        let (cost_us, how) = match recompute_us(scene, &gap) {
            Some(again_us) if again_us < shown_us => (again_us, How::Recompute),
            _ => (shown_us, How::Swap),
        };
        costly.push((scene.size_bytes(&gap) as f64 / cost_us.max(1e-3), gap, how));
    }
    costly.sort_by(|one, other| other.0.total_cmp(&one.0));
    for (_, gap, how) in costly {
        if picker.helps(&gap) {
            picker.take(gap, how);
        }
    }
    let turns = picker.turns(None);
    for pick in &mut picker.picks {
        let start_us = turns.back_us[pick.gap.block as usize];
        let deadline_us = scene.slot_us[pick.gap.to as usize];
        pick.ahead_us = pick.ahead_us.max(deadline_us - start_us);
    }
    picker.picks
}

/// When copies run if each waits for the one before, by block.
struct Turns {
    /// When the copy to the host has ended.
    out_us: Vec<f64>,
    /// When the copy back must start.
    back_us: Vec<f64>,
}

impl Picker<'_, '_> {
    /// Whether a gap lowers a slot that is still above the limit. A block goes once.
    fn helps(&self, gap: &Gap) -> bool {
        let limit_bytes = self.scene.machine.limit_bytes;
        let inside = (gap.from + 1) as usize..gap.to as usize;
        let over = self.need[inside].iter().any(|&bytes| bytes > limit_bytes);
        over && !self.picked[gap.block as usize]
    }

    /// The turns of all copies on the link, those of another gap included.
    fn turns(&self, other: Option<&Gap>) -> Turns {
        let scene = self.scene;
        let swaps = self.picks.iter().filter(|pick| pick.how == How::Swap).map(|pick| &pick.gap);
        let mut gaps: Vec<&Gap> = swaps.chain(other).collect();
        let unused = vec![0.0; scene.trace.blocks.len()];
        let mut turns = Turns { out_us: unused.clone(), back_us: unused };
        gaps.sort_by_key(|gap| gap.from);
        let mut free_us: f64 = 0.0;
        for gap in &gaps {
            let ready_us = scene.slot_us[(gap.from + 1) as usize];
            free_us = free_us.max(ready_us) + scene.machine.out_us(scene.size_bytes(gap));
            turns.out_us[gap.block as usize] = free_us;
        }
        gaps.sort_by_key(|gap| std::cmp::Reverse(gap.to));
        let mut free_us = f64::INFINITY;
        for gap in &gaps {
            let deadline_us = scene.slot_us[gap.to as usize];
            free_us = free_us.min(deadline_us) - scene.machine.in_us(scene.size_bytes(gap));
            turns.back_us[gap.block as usize] = free_us;
        }
        turns
    }

    /// How long compute would wait for copies if this gap were swapped too.
    fn shown_us(&self, gap: &Gap) -> f64 {
        let turns = self.turns(Some(gap));
        let times = turns.out_us.iter().zip(&turns.back_us);
        times.map(|(out_us, back_us)| out_us - back_us).fold(0.0, f64::max)
    }

    fn take(&mut self, gap: Gap, how: How) {
        let inside = (gap.from + 1) as usize..gap.to as usize;
        // What another block is made from must be there.
        let how = if how == How::Recompute && !self.inputs_stay(&gap) { How::Swap } else { how };
        let size_bytes = self.scene.size_bytes(&gap);
        for bytes in &mut self.need[inside] {
            *bytes = bytes.saturating_sub(size_bytes);
        }
        self.picked[gap.block as usize] = true;
        let ahead_us = self.scene.machine.in_us(size_bytes);
        self.picks.push(Pick { gap, how, ahead_us });
    }

    fn inputs_stay(&self, gap: &Gap) -> bool {
        let end = self.scene.usage.op_end[self.scene.op(gap.from).0 as usize];
        let recipe = self.scene.usage.recipe_at(gap.block as usize, end as usize);
        recipe.is_some_and(|(_, recipe)| {
            recipe.inputs.iter().all(|&input| !self.picked[input as usize])
        })
    }
}

/// What is left of a gap after both copies, below 0 if they take longer than it.
fn free_us(scene: &Scene<'_>, gap: &Gap) -> f64 {
    let size_bytes = scene.size_bytes(gap);
    let gap_us = scene.slot_us[gap.to as usize] - scene.slot_us[(gap.from + 1) as usize];
    gap_us - scene.machine.out_us(size_bytes) - scene.machine.in_us(size_bytes)
}

/// The time to make a block again, if its producer can run once more where it is needed.
fn recompute_us(scene: &Scene<'_>, gap: &Gap) -> Option<f64> {
    let usage = &scene.usage;
    let end = usage.op_end[scene.op(gap.from).0 as usize] as usize;
    let (_, recipe) = usage.recipe_at(gap.block as usize, end)?;
    let alive = |&input: &u32| {
        let freed = usage.freed[input as usize];
        freed == NONE || i64::from(usage.event_slot[freed as usize]) >= gap.to
    };
    recipe.inputs.iter().all(alive).then_some(recipe.device_us)
}

fn plan(scene: &Scene<'_>, picks: &[Pick]) -> Plan {
    let orders = picks.iter().flat_map(|pick| match pick.how {
        How::Swap => {
            let at_us = scene.slot_us[pick.gap.to as usize] - pick.ahead_us;
            let slot = scene.slot_us.partition_point(|&start_us| start_us <= at_us) as i64 - 1;
            swap(&pick.gap, slot)
        }
        How::Recompute => {
            let (block, from, to) = (pick.gap.block, pick.gap.from, pick.gap.to);
            let order = |slot, phase, kind| Order { slot, phase, kind, block, due: slot };
            [
                order(from, Phase::End, ActionKind::Discard),
                order(to, Phase::Begin, ActionKind::Replay),
            ]
        }
    });
    plan_of(scene, orders.collect())
}

/// Moves the triggers of copies that an access waited for. Says whether there was one.
fn move_triggers(scene: &Scene<'_>, run: &BaselineRun<'_>, picks: &mut [Pick]) -> bool {
    let mut ends_us: Vec<Vec<f64>> = vec![Vec::new(); scene.trace.blocks.len()];
    for copy in &run.simulation.copies {
        if copy.direction == swap_core::Direction::In {
            ends_us[copy.block.0 as usize].push(copy.span.end_us);
        }
    }
    let mut waited = false;
    for pick in picks.iter_mut().filter(|pick| pick.how == How::Swap) {
        let start_us = run.simulation.ops[scene.op(pick.gap.to).0 as usize].start_us;
        let ends_us = &ends_us[pick.gap.block as usize];
        // An op that waits for a copy starts when that ends.
        if ends_us.iter().any(|end_us| (end_us - start_us).abs() < 1e-6) {
            let copy_us = scene.machine.in_us(scene.size_bytes(&pick.gap));
            pick.ahead_us += TRIGGER_STEP * copy_us;
            waited = true;
        }
    }
    waited
}
