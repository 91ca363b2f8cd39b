//! The language of random work: what a step does, and the random plans it runs under.
//!
//! A script names blocks by picks, numbers that the runner reduces by what is alive. So any script
//! is legal, and a failing one shrinks by leaving things out.

use proptest::prelude::*;
use swap_core::{
    Action, ActionKind, BlockIndex, OpIndex, Origin, Phase, Plan, PlanBlock, Trace, TraceEvent,
};

/// Requested sizes. The first three are of small blocks.
pub(crate) const SIZES: [u64; 8] = [64, 1000, 4096, 8192, 12_280, 16_384, 20_000, 32_768];

#[derive(Clone, Debug)]
pub(crate) enum Command {
    Op(OpSpec),
    /// Frees a block that no open op uses.
    Free(u16),
    /// Allocates outside any op, or by the open one.
    Allocate(u8),
    /// Gives caches back.
    Trim,
    /// Sends all away that can leave, and brings it back at once if so wished.
    Suspend(bool),
    /// An op whose work the engine does not launch itself: it is only told.
    Watch(u16),
    /// Begins an op on a block, and drops the op stack in the middle of it.
    Abandon(u16),
    /// Ends the step early: the next one has another structure.
    EndStep,
}

#[derive(Clone, Debug)]
pub(crate) struct OpSpec {
    pub(crate) reads: Vec<u16>,
    pub(crate) writes: Writes,
    /// On the second compute stream.
    pub(crate) side: bool,
    /// Registers a recipe where the op can have one.
    pub(crate) recipe: bool,
    /// Allocates this size, uses it and frees it before the op ends.
    pub(crate) temporary: Option<u8>,
    /// Frees its first input between its launch and its end.
    pub(crate) frees_input: bool,
    pub(crate) inner: Vec<Command>,
}

impl OpSpec {
    /// What kind of op it is, by which it is named.
    pub(crate) fn kind(&self) -> usize {
        match (&self.writes, self.reads.len()) {
            (Writes::Nothing, _) => 2,
            (Writes::InPlace(_) | Writes::Over(_), _) => 3,
            (_, reads) => reads.min(1),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Writes {
    Nothing,
    /// Reads and changes a block.
    InPlace(u16),
    /// Overwrites a block.
    Over(u16),
    /// A new block of this size.
    Fresh(u8),
    /// Two new blocks.
    Two(u8, u8),
}

fn size() -> impl Strategy<Value = u8> {
    // Most blocks are of one size, so that they take each other's memory over.
    prop_oneof![2 => 0u8..3, 5 => Just(3u8), 3 => 4u8..8]
}

fn writes() -> impl Strategy<Value = Writes> {
    prop_oneof![
        2 => Just(Writes::Nothing),
        3 => any::<u16>().prop_map(Writes::InPlace),
        1 => any::<u16>().prop_map(Writes::Over),
        6 => size().prop_map(Writes::Fresh),
        1 => (size(), size()).prop_map(|(a, b)| Writes::Two(a, b)),
    ]
}

fn op(inner: BoxedStrategy<Vec<Command>>) -> impl Strategy<Value = OpSpec> {
    (
        prop::collection::vec(any::<u16>(), 0..3),
        writes(),
        prop::bool::weighted(0.25),
        prop::bool::weighted(0.6),
        prop::option::weighted(0.15, size()),
        prop::bool::weighted(0.1),
        inner,
    )
        .prop_map(|(reads, writes, side, recipe, temporary, frees_input, inner)| OpSpec {
            reads,
            writes,
            side,
            recipe,
            temporary,
            frees_input,
            inner,
        })
}

fn commands(depth: u32, most: usize) -> BoxedStrategy<Vec<Command>> {
    let inner = if depth == 0 {
        Just(Vec::new()).boxed()
    } else {
        prop_oneof![5 => Just(Vec::new()), 1 => commands(depth - 1, 3)].boxed()
    };
    let op = op(inner).prop_map(Command::Op);
    let free = any::<u16>().prop_map(Command::Free);
    let allocate =
        prop_oneof![size().prop_map(Command::Allocate), any::<u16>().prop_map(Command::Watch)];
    let command = if depth == 2 {
        let rare = prop_oneof![
            2 => any::<u16>().prop_map(Command::Abandon),
            1 => Just(Command::Trim),
            1 => any::<bool>().prop_map(Command::Suspend),
            1 => Just(Command::EndStep),
        ];
        prop_oneof![16 => op, 3 => free, 1 => allocate, 1 => rare].boxed()
    } else {
        prop_oneof![16 => op, 3 => free, 1 => allocate].boxed()
    };
    prop::collection::vec(command, 1..most).boxed()
}

/// One step's work, and the sizes of the blocks that outlive steps.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) persistent: Vec<u8>,
    pub(crate) step: Vec<Command>,
}

pub(crate) fn script(most: usize) -> impl Strategy<Value = Script> {
    (prop::collection::vec(size(), 1..6), commands(2, most))
        .prop_map(|(persistent, step)| Script { persistent, step })
}

/// A step that differs from `step` in a few commands: some are left out, others come twice.
pub(crate) fn branch(step: &[Command], random: &mut Random) -> Vec<Command> {
    let mut branch = step.to_vec();
    for _ in 0..1 + random.below(3) {
        let (at, other) = (random.below(branch.len() as u64), random.below(step.len() as u64));
        if random.chance(40) && branch.len() > 1 {
            branch.remove(at as usize);
        } else {
            branch.insert(at as usize, step[other as usize].clone());
        }
    }
    branch
}

/// A step whose fresh blocks have other sizes than those of `step`: smaller ones, or larger ones as
/// well, each in the same way.
pub(crate) fn resized(step: &[Command], random: &mut Random) -> Vec<Command> {
    let most = SIZES.len() as u64;
    let grows = random.chance(25);
    let sizes: Vec<u8> =
        (0..most).map(|size| random.below(if grows { most } else { size + 1 }) as u8).collect();
    resize_all(step, &sizes)
}

fn resize_all(commands: &[Command], sizes: &[u8]) -> Vec<Command> {
    let other = |size: u8| sizes[size as usize];
    let resize = |command: &Command| match command {
        Command::Op(spec) => Command::Op(OpSpec {
            writes: match spec.writes {
                Writes::Fresh(size) => Writes::Fresh(other(size)),
                Writes::Two(one, two) => Writes::Two(other(one), other(two)),
                writes => writes,
            },
            temporary: spec.temporary.map(other),
            inner: resize_all(&spec.inner, sizes),
            ..spec.clone()
        }),
        Command::Allocate(size) => Command::Allocate(other(*size)),
        command => command.clone(),
    };
    commands.iter().map(resize).collect()
}

/// A small generator of numbers that only need to look mixed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// From which op to which a block of the step can be acted on.
pub(crate) fn lives(trace: &Trace) -> Vec<(u32, u32)> {
    let mut lives = vec![(0, trace.ops.len() as u32); trace.blocks.len()];
    let mut op = 0;
    for event in &trace.events {
        match *event {
            TraceEvent::Begin(index) => op = index.0 + 1,
            TraceEvent::Allocate(block) => lives[block.0 as usize].0 = op,
            TraceEvent::Free(block) => lives[block.0 as usize].1 = op,
            _ => {}
        }
    }
    lives
}

/// Draws a plan for steps like `trace`. With `illegal` it is full of nonsense: blocks that do not
/// exist yet, any more or at all, wrong sizes and origins, duplicates, no order.
pub(crate) fn random_plan(trace: &Trace, random: &mut Random, illegal: bool) -> Plan {
    let mut plan = Plan {
        signature: trace.signature,
        op_count: trace.ops.len() as u32,
        blocks: trace
            .blocks
            .iter()
            .enumerate()
            .map(|(index, block)| PlanBlock {
                index: BlockIndex(index as u32),
                size_bytes: block.size_bytes,
                origin: block.origin,
            })
            .collect(),
        actions: Vec::new(),
    };
    if trace.blocks.is_empty() || trace.ops.is_empty() {
        return plan;
    }
    let lives = lives(trace);
    let kinds = [ActionKind::SwapOut, ActionKind::SwapIn, ActionKind::Discard, ActionKind::Replay];
    let count = random.below(2 * trace.ops.len() as u64) + 2;
    for _ in 0..count {
        let block = random.below(trace.blocks.len() as u64) as u32;
        let (from, to) = lives[block as usize];
        if from >= to {
            continue;
        }
        let op = from + random.below(u64::from(to - from)) as u32;
        let away = kinds[random.below(2) as usize * 2];
        let action = |op: u32, phase, kind| Action {
            op: OpIndex(op),
            phase,
            kind,
            block: BlockIndex(block),
            due: OpIndex(op),
        };
        plan.actions.push(action(op, Phase::Begin, away));
        // Coming back at once, soon, late, or never.
        let back = op + random.below(4) as u32;
        if back < to && random.chance(70) {
            let kind =
                if away == ActionKind::SwapOut { ActionKind::SwapIn } else { ActionKind::Replay };
            plan.actions.push(action(back, Phase::Begin, kind));
        }
        if op + 1 < to && random.chance(30) {
            plan.actions.push(action(op, Phase::End, kinds[random.below(4) as usize]));
        }
    }
    if illegal {
        spoil(&mut plan, random);
    } else {
        plan.actions.sort_by_key(|action| (action.op, action.phase));
    }
    plan
}

fn spoil(plan: &mut Plan, random: &mut Random) {
    for _ in 0..random.below(4) {
        let block = BlockIndex(random.below(plan.blocks.len() as u64 + 3) as u32);
        let op = OpIndex(random.below(u64::from(plan.op_count) + 5) as u32);
        let kinds =
            [ActionKind::SwapOut, ActionKind::SwapIn, ActionKind::Discard, ActionKind::Replay];
        let kind = kinds[random.below(4) as usize];
        let phase = if random.chance(50) { Phase::Begin } else { Phase::End };
        let action = Action { op, phase, kind, block, due: OpIndex(u32::MAX) };
        plan.actions.push(action);
        if random.chance(50) {
            plan.actions.push(action);
        }
    }
    if random.chance(30) {
        let at = random.below(plan.blocks.len() as u64) as usize;
        plan.blocks[at].size_bytes += 4096;
    }
    if random.chance(20) {
        let at = random.below(plan.blocks.len() as u64) as usize;
        plan.blocks[at].origin = Origin::Op(OpIndex(7));
    }
    if random.chance(20) {
        let at = random.below(plan.blocks.len() as u64) as usize;
        let copy = plan.blocks[at].clone();
        plan.blocks.push(copy);
    }
    if random.chance(30) {
        for at in (1..plan.actions.len()).rev() {
            plan.actions.swap(at, random.below(at as u64 + 1) as usize);
        }
    }
}
