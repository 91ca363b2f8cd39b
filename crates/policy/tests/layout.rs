//! Promise: under its plan, no two blocks of a laid-out step share bytes, in any step; and where
//! there is room, blocks do not wait for what is still being copied out of their lots.
//!
//! The judge walks trace and plan by itself, for steps in a row, and keeps a list of who owns which
//! bytes: a block takes its lot when it comes to the device and gives it back when it leaves.

use std::collections::BTreeMap;
use std::path::Path;

use policy::synthetic::{Numbers, RandomShape, TransformerShape, random_trace, transformer_trace};
use policy::{
    Action, ActionKind, BlockIndex, GenerateConfig, Layout, Link, Lot, Machine, OpIndex, Origin,
    Phase, Plan, RecomputeOption, RecordedConfig, Replayable, Trace, TraceEvent, generate, lay_out,
    load_trace, replayable_blocks, simulate,
};

/// Steps until each starts like the last one, and steps that are judged.
const STEPS: [u32; 2] = [8, 3];

#[derive(Clone, Copy, PartialEq, Eq)]
enum BlockState {
    Resident,
    Away,
    Dropped,
}

struct Judge<'a> {
    trace: &'a Trace,
    plan: &'a Plan,
    layout: &'a Layout,
    recipes: Vec<Replayable>,
    ended: Vec<bool>,
    /// Live blocks.
    states: BTreeMap<u32, BlockState>,
    /// Freed, but a dropped block is made from them.
    doomed: Vec<u32>,
    /// Dropped for others that are made from them, of which none is dropped yet.
    awaiting: Vec<u32>,
    /// Blocks in use by each open op.
    open: Vec<Vec<u32>>,
    /// Whose bytes are whose: kept only while judging.
    owners: Option<BTreeMap<u32, Lot>>,
    turn: usize,
    need_bytes: u64,
    /// Arrivals by block in a step.
    arrivals: Vec<u32>,
}

impl<'a> Judge<'a> {
    fn new(trace: &'a Trace, plan: &'a Plan, layout: &'a Layout) -> Judge<'a> {
        let persistent = trace.blocks.iter().take_while(|b| b.origin == Origin::Persistent);
        Judge {
            trace,
            plan,
            layout,
            recipes: replayable_blocks(trace),
            ended: Vec::new(),
            states: (0..).zip(persistent).map(|(index, _)| (index, BlockState::Resident)).collect(),
            doomed: Vec::new(),
            awaiting: Vec::new(),
            open: Vec::new(),
            owners: None,
            turn: 0,
            need_bytes: 0,
            arrivals: Vec::new(),
        }
    }

    fn run(&mut self) {
        for step in 0..STEPS.iter().sum() {
            if step == STEPS[0] {
                self.owners = Some(BTreeMap::new());
                let here = self.states.iter().filter(|(_, state)| **state == BlockState::Resident);
                let here: Vec<u32> = here.map(|(&block, _)| block).collect();
                here.into_iter().for_each(|block| self.take_lot(block));
            }
            self.step();
            self.roll_over();
        }
    }

    fn step(&mut self) {
        self.ended = vec![false; self.trace.ops.len()];
        self.arrivals = vec![0; self.trace.blocks.len()];
        for &event in &self.trace.events {
            match event {
                TraceEvent::Begin(op) => {
                    self.act(op, Phase::Begin);
                    self.open.push(Vec::new());
                }
                TraceEvent::End(op) => {
                    self.open.pop();
                    self.ended[op.0 as usize] = true;
                    self.act(op, Phase::End);
                }
                TraceEvent::Touch(block, mode) => {
                    if mode.writes() {
                        self.bring_back_what_needs(block.0);
                    }
                    self.come_back(block.0);
                    self.open.last_mut().expect("inside an op").push(block.0);
                }
                TraceEvent::Allocate(block) => {
                    self.arrive(block.0);
                    if let Some(open) = self.open.last_mut() {
                        open.push(block.0);
                    }
                }
                TraceEvent::Free(block) => {
                    self.doomed.push(block.0);
                    self.bury();
                }
                TraceEvent::Segments(_) => {}
            }
        }
    }

    fn act(&mut self, op: OpIndex, phase: Phase) {
        let plan = self.plan;
        for action in plan.actions.iter().filter(|a| (a.op, a.phase) == (op, phase)) {
            let block = action.block.0;
            let pinned = self.open.iter().flatten().any(|&used| used == block);
            match (action.kind, self.states.get(&block)) {
                (ActionKind::SwapOut, Some(BlockState::Resident)) if !pinned => {
                    self.leave(block, BlockState::Away);
                }
                (ActionKind::Discard, Some(BlockState::Resident)) if !pinned => {
                    let inputs = self.inputs(block);
                    let lives = |input: &u32| {
                        let dropped = self.states.get(input) == Some(&BlockState::Dropped);
                        dropped || self.states.contains_key(input) && !self.doomed.contains(input)
                    };
                    if !inputs.iter().all(lives) {
                        continue;
                    }
                    self.leave(block, BlockState::Dropped);
                    self.awaiting.retain(|awaiting| !inputs.contains(awaiting));
                    let needed = self.dropped().iter().any(|&d| self.inputs(d).contains(&block));
                    if action.due != action.op && !needed {
                        self.awaiting.push(block);
                    }
                }
                (ActionKind::SwapIn, Some(BlockState::Away))
                | (ActionKind::Replay, Some(BlockState::Dropped)) => self.come_back(block),
                _ => {}
            }
        }
    }

    fn inputs(&self, block: u32) -> Vec<u32> {
        let done = |recipe: &&Replayable| {
            recipe.block.0 == block && self.ended[recipe.producer.0 as usize]
        };
        let recipe = self.recipes.iter().rfind(done).expect("it was dropped");
        recipe.inputs.iter().map(|input| input.0).collect()
    }

    fn come_back(&mut self, block: u32) {
        let was = self.states[&block];
        if was == BlockState::Resident {
            return;
        }
        self.arrive(block);
        self.awaiting.retain(|&awaiting| awaiting != block);
        if was == BlockState::Dropped {
            self.inputs(block).into_iter().for_each(|input| self.come_back(input));
            self.bury();
        }
    }

    fn dropped(&self) -> Vec<u32> {
        let dropped = self.states.iter().filter(|(_, state)| **state == BlockState::Dropped);
        dropped.map(|(&block, _)| block).collect()
    }

    fn bring_back_what_needs(&mut self, block: u32) {
        for dropped in self.dropped() {
            if self.inputs(dropped).contains(&block) {
                self.come_back(dropped);
            }
        }
    }

    /// Ends the lives of freed blocks that nothing is made from.
    fn bury(&mut self) {
        loop {
            let needed: Vec<u32> =
                self.dropped().into_iter().flat_map(|block| self.inputs(block)).collect();
            let stays = |block: &u32| needed.contains(block) || self.awaiting.contains(block);
            let Some(at) = self.doomed.iter().position(|block| !stays(block)) else { return };
            let block = self.doomed.remove(at);
            if self.states.remove(&block) == Some(BlockState::Resident) {
                self.give_lot_back(block);
            }
        }
    }

    fn arrive(&mut self, block: u32) {
        self.states.insert(block, BlockState::Resident);
        self.arrivals[block as usize] += 1;
        self.take_lot(block);
    }

    fn leave(&mut self, block: u32, to: BlockState) {
        self.states.insert(block, to);
        self.give_lot_back(block);
    }

    fn lot(&self, block: u32) -> Option<Lot> {
        self.layout.turns[self.turn][block as usize]
    }

    fn take_lot(&mut self, block: u32) {
        let lot = self.lot(block);
        let (Some(owners), Some(lot)) = (&mut self.owners, lot) else { return };
        assert_eq!(lot.size_bytes, self.trace.blocks[block as usize].size_bytes);
        let memory = memory_of(self.layout, lot);
        assert!(memory.iter().all(|lot| lot.end_bytes() <= self.layout.height_bytes));
        for (other, theirs) in &*owners {
            for theirs in memory_of(self.layout, *theirs) {
                let apart = |lot: &Lot| {
                    lot.end_bytes() <= theirs.offset_bytes || theirs.end_bytes() <= lot.offset_bytes
                };
                assert!(memory.iter().all(apart), "block {block}, and {other} in {theirs:?}");
            }
        }
        owners.insert(block, lot);
        let live_bytes = owners.values().map(|lot| lot.size_bytes).sum();
        self.need_bytes = self.need_bytes.max(live_bytes);
    }

    fn give_lot_back(&mut self, block: u32) {
        let lot = self.lot(block);
        if let Some(owners) = &mut self.owners {
            assert_eq!(owners.remove(&block), lot, "block {block} left another lot");
        }
    }

    /// Blocks alive at the step's end are numbered anew, oldest first, and stay where they are.
    fn roll_over(&mut self) {
        self.awaiting.clear();
        self.bury();
        for block in self.dropped() {
            if self.states.contains_key(&block) {
                self.come_back(block);
            }
        }
        let names: Vec<u32> = self.states.keys().copied().collect();
        let new = |old: u32| names.binary_search(&old).expect("it lives") as u32;
        let states = std::mem::take(&mut self.states);
        self.states = states.into_iter().map(|(old, state)| (new(old), state)).collect();
        self.turn = (self.turn + 1) % self.layout.turns.len();
        let owners = self.owners.take();
        let rename = |(old, lot)| {
            assert_eq!(self.lot(new(old)), Some(lot), "{old} must move");
            (new(old), lot)
        };
        self.owners = owners.map(|owners| owners.into_iter().map(rename).collect());
    }
}

/// Where the bytes of a lot are. Its pieces are side by side, and cover all of it.
fn memory_of(layout: &Layout, lot: Lot) -> Vec<Lot> {
    if lot.end_bytes() <= layout.height_bytes {
        return vec![lot];
    }
    let mut shown_bytes = lot.offset_bytes;
    let mut memory: Vec<Lot> = Vec::new();
    for piece in &layout.pieces {
        if (lot.offset_bytes..lot.end_bytes()).contains(&piece.shown_at_bytes) {
            assert_eq!(piece.shown_at_bytes, shown_bytes);
            shown_bytes += piece.memory.size_bytes;
            let has = |other: &Lot| {
                piece.memory.offset_bytes < other.end_bytes()
                    && other.offset_bytes < piece.memory.end_bytes()
            };
            assert!(!memory.iter().any(has), "two pieces of {lot:?} share bytes");
            memory.push(piece.memory);
        }
    }
    assert_eq!(shown_bytes, lot.end_bytes());
    memory
}

/// Whether the blocks at the step's end look like those at its start.
fn is_steady(trace: &Trace) -> bool {
    let blocks = || (0..).map(BlockIndex).zip(&trace.blocks);
    let freed = |block: BlockIndex| trace.events.contains(&TraceEvent::Free(block));
    let first = blocks().filter(|(_, block)| block.origin == Origin::Persistent);
    let last = blocks().filter(|&(index, _)| !freed(index));
    first.map(|(_, block)| block.size_bytes).eq(last.map(|(_, block)| block.size_bytes))
}

/// What a test has seen.
#[derive(Default, Debug)]
struct Seen {
    layouts: u32,
    /// Lots of blocks that come more than once in a step, and that pass to the next step's block.
    several_stays: u32,
    circular: u32,
    replays: u32,
    perfect: u32,
    /// Layouts of which steps take turns.
    turns: u32,
    /// By more than a hundredth.
    faster_with_room: u32,
    slower_with_room: u32,
}

impl Seen {
    /// Lays out without any room to spare, which is returned, and with room for everything.
    fn judge(&mut self, trace: &Trace, plan: &Plan) -> Layout {
        let [layout, roomy] = [0, 1 << 50].map(|bytes| lay_out(trace, plan, &machine(bytes)));
        for layout in [&roomy, &layout] {
            let mut judge = Judge::new(trace, plan, layout);
            judge.run();
            assert_eq!(judge.need_bytes, layout.need_bytes);
            assert!(layout.ratio() >= 1.0);
        }
        let gain_us = layout.step_us - roomy.step_us;
        self.faster_with_room += u32::from(gain_us > 1e-2 * layout.step_us);
        self.slower_with_room += u32::from(gain_us < -1e-2 * layout.step_us);
        let mut judge = Judge::new(trace, plan, &layout);
        judge.run();
        let freed = |block| trace.events.contains(&TraceEvent::Free(BlockIndex(block)));
        self.layouts += 1;
        self.turns += u32::from(layout.turns.len() > 1);
        for (block, _) in (0..).zip(&layout.turns[0]).filter(|(_, lot)| lot.is_some()) {
            self.several_stays += u32::from(judge.arrivals[block as usize] > 1);
            self.circular += u32::from(!freed(block));
        }
        let replay = |action: &&Action| action.kind == ActionKind::Replay;
        self.replays += plan.actions.iter().filter(replay).count() as u32;
        self.perfect += u32::from(layout.ratio() == 1.0);
        layout
    }
}

fn machine(limit_bytes: u64) -> Machine {
    let link =
        Link { out_bytes_per_us: 9_000.0, in_bytes_per_us: 8_000.0, both_bytes_per_us: 6_000.0 };
    Machine { limit_bytes, host_limit_bytes: 1 << 50, link, copy_submit_us: 0.0 }
}

/// A plan for so many hundredths of what the step needs, with or without replays.
fn planned(trace: &Trace, percent: u64, recompute: bool) -> Option<Plan> {
    let peak = simulate(trace, &Plan::default(), &machine(1 << 50)).resident_bytes_peak;
    let all = replayable_blocks(trace).into_iter();
    let all = all.map(|one| RecomputeOption { block: one.block, replay_us: one.device_us });
    let options: Vec<RecomputeOption> = all.filter(|_| recompute).collect();
    let config = GenerateConfig { effort: 1, min_block_bytes: 1, ..GenerateConfig::default() };
    let made = generate(trace, &machine(peak * percent / 100), &config, &options);
    made.infeasible.is_none().then_some(made.plan)
}

#[test]
fn random_steps_under_generated_plans_share_no_bytes() {
    let mut seen = Seen::default();
    for seed in 0..200 {
        let carried = 3 * (seed % 2) as u32;
        let shape = RandomShape { carried, nested_recipes: 50, ..RandomShape::small() };
        let trace = random_trace(seed, &shape);
        if !is_steady(&trace) {
            continue;
        }
        seen.judge(&trace, &Plan::default());
        for percent in [90, 75, 60] {
            if let Some(plan) = planned(&trace, percent, seed / 2 % 2 == 0) {
                seen.judge(&trace, &plan);
            }
        }
    }
    assert!(seen.layouts > 300 && seen.perfect > 200, "{seen:?}");
    assert!(seen.several_stays > 100 && seen.circular > 50 && seen.replays > 20, "{seen:?}");
    assert!(seen.turns > 100, "{seen:?}");
    assert!(seen.faster_with_room > 200 && seen.slower_with_room < 10, "{seen:?}");
}

#[test]
fn transformer_steps_share_no_bytes() {
    let mut seen = Seen::default();
    for layers in [2, 5, 9] {
        let shape =
            TransformerShape { layers, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
        let trace = transformer_trace(&shape);
        for percent in [100, 80, 60, 40] {
            for recompute in [false, true] {
                let Some(plan) = planned(&trace, percent, recompute) else { continue };
                let layout = seen.judge(&trace, &plan);
                println!("{layers} layers at {percent} %: {:.4}", layout.ratio());
            }
        }
    }
    assert!(seen.layouts >= 12 && seen.several_stays > 50 && seen.circular > 0, "{seen:?}");
}

/// Swaps of any block at any time: many find it in use, or gone already.
fn random_swaps(numbers: &mut Numbers, trace: &Trace) -> Plan {
    let op_count = trace.ops.len() as u64;
    let mut actions: Vec<Action> = (0..2 * op_count)
        .map(|_| {
            let op = OpIndex(numbers.below(op_count) as u32);
            let phase = if numbers.chance(50) { Phase::Begin } else { Phase::End };
            let kind = if numbers.chance(50) { ActionKind::SwapOut } else { ActionKind::SwapIn };
            let block = BlockIndex(numbers.below(trace.blocks.len() as u64) as u32);
            Action { op, phase, kind, block, due: op }
        })
        .collect();
    actions.sort_by_key(|action| (action.op, action.phase));
    Plan { op_count: op_count as u32, actions, ..Plan::default() }
}

#[test]
fn random_swaps_share_no_bytes() {
    let (mut seen, mut numbers) = (Seen::default(), Numbers::new(23));
    for seed in 0..300 {
        let shape = RandomShape { carried: 3, ..RandomShape::small() };
        let trace = random_trace(seed, &shape);
        if is_steady(&trace) {
            seen.judge(&trace, &random_swaps(&mut numbers, &trace));
        }
    }
    assert!(seen.layouts > 100 && seen.several_stays > 300 && seen.circular > 200, "{seen:?}");
}

/// Blocks that come back meet others in each stay, and lie apart from all of them: together these
/// can be more than is there at any one time. So where many come back, no layout is perfect.
#[test]
fn recorded_steps_lie_low() {
    let mut seen = Seen::default();
    let recorded = [
        ("tests/data/gpt12k.json.gz", 100, false, 1.0),
        ("tests/data/gpt12k.json.gz", 85, false, 1.115),
        ("../../docs/gpt2m.json.gz", 100, false, 1.0),
        ("../../docs/gpt2m.json.gz", 85, false, 1.055),
        ("../../docs/gpt2m.json.gz", 70, false, 1.14),
        ("../../docs/gpt2m.json.gz", 70, true, 1.0),
        ("../../docs/gpt2m.json.gz", 55, true, 1.0),
    ];
    for (file, percent, recompute, ratio_max) in recorded {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let trace = load_trace(&path, &RecordedConfig::default()).expect("it loads");
        let plan = planned(&trace, percent, recompute).expect("it fits");
        let layout = seen.judge(&trace, &plan);
        println!("{file} at {percent} %, recompute {recompute}: {:.4}", layout.ratio());
        assert!(layout.ratio() <= ratio_max, "{file} at {percent} %: {}", layout.ratio());
    }
    assert!(seen.several_stays > 100 && seen.perfect >= 4, "{seen:?}");
    assert!(seen.faster_with_room >= 3 && seen.slower_with_room == 0, "{seen:?}");
}

/// A step of a public script whose plan makes 430 stays more than there are blocks. Orders that
/// are mended where they first fail lie 22 % above what is needed.
#[test]
fn a_plan_of_many_returns_lies_low() {
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let trace = load_trace(&file("nanogpt.json.gz"), &RecordedConfig::default()).expect("loads");
    let plan = policy::load(&file("nanogpt-plan.json")).expect("it loads").plan;
    let mut seen = Seen::default();
    let layout = seen.judge(&trace, &plan);
    assert!(layout.ratio() <= 1.01, "{}", layout.ratio());
    assert!(seen.several_stays > 300, "{seen:?}");
}

#[test]
fn a_trace_that_is_not_well_formed_gets_no_lots() {
    let mut trace = random_trace(1, &RandomShape::small());
    let free = trace.events.iter().rposition(|event| matches!(event, TraceEvent::Free(_)));
    let twice = trace.events[free.expect("something is freed")];
    trace.events.push(twice);
    let layout = lay_out(&trace, &Plan::default(), &machine(1 << 50));
    assert_eq!(layout.turns, [vec![None; trace.blocks.len()]]);
    assert_eq!((layout.height_bytes, layout.need_bytes), (0, 0));
}
