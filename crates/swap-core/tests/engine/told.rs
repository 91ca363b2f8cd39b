//! Random training by a framework that only tells of its operators: several streams and threads,
//! tensors freed while streams still use them, loaders that are a step ahead, workspaces that
//! nobody shows, times when nobody tells of anything, under random plans and layouts.
//!
//! Nothing here is launched through the engine, so nothing is ordered by it but what its promises
//! say: memory that moves, is freed and is used again. The framework orders the rest itself, and no
//! more than it must. Kernels compare all bytes; the checker judges the order of each.

use swap_core::devices::HostConfig;
use swap_core::{AccessMode, BlockId, Engine, OpName};

use super::lots::random_lots;
use super::script::{Random, SIZES, random_plan};
use super::world::GRANULARITY;

use framework::{Framework, Role, STREAMS, Stop, THREADS};
use tally::Tally;

mod framework;
mod steps;
mod tally;

const GENEROUS: u64 = 1 << 30;
const REPLAY: OpName = OpName::new("replay");
const SLEEP: OpName = OpName::new("sleep");
const NAMES: [OpName; 4] =
    [OpName::new("make"), OpName::new("look"), OpName::new("change"), OpName::new("load")];
/// Commands of a step.
const COMMANDS: u64 = 24;

/// A training under one seed.
struct Training {
    framework: Framework,
    /// What the loader has made for this step and for the next.
    batch: Option<BlockId>,
    next_batch: Option<BlockId>,
    /// Whether operators are told of: from a waking on, but the engine counts on it only later.
    tells: bool,
    /// Commands until it does.
    unsettled: u64,
}

/// What an operator is to do.
#[derive(Clone, Copy)]
struct Op {
    thread: usize,
    stream: usize,
    aside: bool,
    /// Reads the batch.
    reads_batch: bool,
    /// Ops of the other thread may run inside.
    may_nest: bool,
}

impl Training {
    fn new(device: HostConfig, limit_bytes: u64, arena_bytes: u64) -> Training {
        Training {
            framework: Framework::new(device, limit_bytes, arena_bytes),
            batch: None,
            next_batch: None,
            tells: true,
            unsettled: 0,
        }
    }

    /// The streams and threads as they mostly are.
    fn draw_op(&self, random: &mut Random, may_nest: bool) -> Op {
        Op {
            thread: random.below(THREADS as u64) as usize,
            stream: if random.chance(70) { 0 } else { random.below(STREAMS as u64) as usize },
            aside: random.chance(6),
            reads_batch: random.chance(15),
            may_nest,
        }
    }

    fn is_batch(&self, id: BlockId) -> bool {
        self.batch == Some(id) || self.next_batch == Some(id)
    }

    /// An operator: what it reads and makes, and what is freed before it ends.
    fn op(&mut self, random: &mut Random, op: Op) -> Result<(), Stop> {
        let tells = self.tells;
        let on = self.framework.streams[op.stream].0;
        let inputs = self.inputs(random, op);
        let changed = self.changed(random, &inputs);
        let name = NAMES[if changed.is_some() { 2 } else { usize::from(random.chance(20)) }];
        let makes = changed.is_none() && name != NAMES[1];
        if tells {
            self.framework.depth[op.thread] += 1;
            let thread = self.framework.thread(op.thread);
            if op.aside {
                thread.begin_aside(name, on)?
            } else {
                thread.begin_on(name, on)?
            };
        }
        let mut uses = Vec::new();
        for &id in &inputs {
            self.tell(op.thread, id, AccessMode::Read)?;
            uses.push((id, AccessMode::Read));
        }
        if let Some(id) = changed {
            self.tell(op.thread, id, AccessMode::ReadWrite)?;
            uses.push((id, AccessMode::ReadWrite));
        }
        self.beside(random, op)?;
        self.scratch(random, op, &uses)?;
        self.workspace(random, op, &mut uses)?;
        let mut made = Vec::new();
        if makes {
            for _ in 0..=u64::from(random.chance(15)) {
                let id = self.allocate(random, op)?;
                made.push(id);
                uses.push((id, AccessMode::Write));
            }
        }
        self.beside(random, op)?;
        let operands = self.framework.kernel(op.stream, &uses)?;
        self.beside(random, op)?;
        for &id in &made {
            self.tell(op.thread, id, AccessMode::Write)?;
        }
        if makes && tells && !op.aside && random.chance(60) {
            self.offer(random, op, &inputs, &made, &operands)?;
        }
        self.let_go(random, &inputs)?;
        if tells {
            self.framework.thread(op.thread).end()?;
            self.framework.depth[op.thread] -= 1;
        }
        self.framework.ended(op.stream, &uses);
        uses.into_iter().for_each(|(id, mode)| self.leave(id, mode));
        Ok(())
    }

    fn inputs(&mut self, random: &mut Random, op: Op) -> Vec<BlockId> {
        let mut inputs: Vec<BlockId> = Vec::new();
        if op.reads_batch {
            inputs.extend(self.batch);
        }
        for _ in 0..random.below(3) {
            let at = self.framework.pick(random, |tensor| {
                tensor.tag.is_some() && tensor.role == Role::Tensor && !tensor.is_open
            });
            let id = at.map(|at| self.framework.tensors[at].id);
            inputs.extend(id.filter(|id| !inputs.contains(id) && self.next_batch != Some(*id)));
        }
        self.use_all(&inputs);
        inputs
    }

    /// A tensor that is changed in place.
    fn changed(&mut self, random: &mut Random, inputs: &[BlockId]) -> Option<BlockId> {
        if !random.chance(30) {
            return None;
        }
        let is_free = |id: BlockId| !inputs.contains(&id) && !self.is_batch(id);
        let at = self.framework.pick(random, |tensor| {
            tensor.tag.is_some()
                && tensor.role == Role::Tensor
                && tensor.users == 0
                && is_free(tensor.id)
        })?;
        let id = self.framework.tensors[at].id;
        self.use_all(&[id]);
        self.framework.tensors[at].is_open = true;
        Some(id)
    }

    fn use_all(&mut self, ids: &[BlockId]) {
        for &id in ids {
            let at = self.framework.find(id).expect("just picked");
            self.framework.tensors[at].users += 1;
        }
    }

    /// An op that used the tensor has ended.
    fn leave(&mut self, id: BlockId, mode: AccessMode) {
        let Some(at) = self.framework.find(id) else { return };
        let tensor = &mut self.framework.tensors[at];
        tensor.users = tensor.users.saturating_sub(1);
        tensor.is_open &= !mode.writes();
    }

    /// Tells the engine of a use, if it wants to know.
    fn tell(&mut self, thread: usize, id: BlockId, mode: AccessMode) -> Result<(), Stop> {
        let at = self.framework.find(id).expect("lives");
        let tensor = &self.framework.tensors[at];
        if self.tells && (tensor.is_large() || tensor.is_input && mode.writes()) {
            let start = self.framework.thread(thread).touch(id, mode)?;
            if start != self.framework.tensors[at].start {
                return Err(Stop::Broken("a block moved".to_owned()));
            }
        }
        self.framework.tally.untold += u64::from(!self.tells);
        Ok(())
    }

    /// An operator of the other thread, in the middle of this one.
    fn beside(&mut self, random: &mut Random, op: Op) -> Result<(), Stop> {
        if !op.may_nest || !random.chance(8) {
            return Ok(());
        }
        let other = Op { thread: 1 - op.thread, ..self.draw_op(random, false) };
        self.framework.tally.beside += 1;
        self.op(random, other)
    }

    fn size(random: &mut Random) -> u64 {
        let at = if random.chance(25) { random.below(3) } else { 3 + random.below(5) };
        SIZES[at as usize]
    }

    fn allocate(&mut self, random: &mut Random, op: Op) -> Result<BlockId, Stop> {
        self.allocate_bytes(Training::size(random), op)
    }

    fn allocate_bytes(&mut self, size_bytes: u64, op: Op) -> Result<BlockId, Stop> {
        let inside = self.tells.then_some(op.thread);
        let id = self.framework.allocate(size_bytes, op.stream, inside)?;
        self.use_all(&[id]);
        let at = self.framework.find(id).expect("just made");
        self.framework.tensors[at].is_open = true;
        Ok(id)
    }

    /// Memory that the operator frees before it goes on, and its next takes again.
    fn scratch(
        &mut self,
        random: &mut Random,
        op: Op,
        uses: &[(BlockId, AccessMode)],
    ) -> Result<(), Stop> {
        for _ in 0..if random.chance(20) { 1 + random.below(2) } else { 0 } {
            let id = self.allocate(random, op)?;
            let reads = uses.iter().filter(|used| used.1 == AccessMode::Read).copied();
            let with: Vec<_> = reads.chain([(id, AccessMode::Write)]).collect();
            self.framework.kernel(op.stream, &with)?;
            self.framework.free(id)?;
            self.beside(random, op)?;
        }
        Ok(())
    }

    /// Memory of a library, for one stream, that no operator shows.
    fn workspace(
        &mut self,
        random: &mut Random,
        op: Op,
        uses: &mut Vec<(BlockId, AccessMode)>,
    ) -> Result<(), Stop> {
        if !random.chance(15) {
            return Ok(());
        }
        let is_one = |tensor: &framework::Tensor| tensor.role == Role::Workspace;
        let count = self.framework.tensors.iter().filter(|tensor| is_one(tensor)).count();
        let found = self.framework.pick(random, |tensor| {
            is_one(tensor) && tensor.stream == op.stream && tensor.users == 0
        });
        let id = match found {
            Some(at) => self.framework.tensors[at].id,
            None if count < 2 && self.framework.watched => {
                let id = self.allocate_bytes(SIZES[3], op)?;
                let at = self.framework.find(id).expect("lives");
                self.framework.tensors[at].role = Role::Workspace;
                self.leave(id, AccessMode::Write);
                id
            }
            None => return Ok(()),
        };
        self.use_all(&[id]);
        uses.push((id, AccessMode::Write));
        Ok(())
    }

    /// Lets the engine make the op's outputs again.
    fn offer(
        &mut self,
        random: &mut Random,
        op: Op,
        inputs: &[BlockId],
        made: &[BlockId],
        operands: &[framework::Operand],
    ) -> Result<(), Stop> {
        let operand_of = |framework: &Framework, id: BlockId| {
            let start = framework.tensors[framework.find(id).expect("lives")].start;
            let operand = operands.iter().find(|operand| operand.start == start);
            (id, *operand.expect("the kernel used it"))
        };
        let reads: Vec<_> = inputs.iter().map(|&id| operand_of(&self.framework, id)).collect();
        let writes: Vec<_> = made.iter().map(|&id| operand_of(&self.framework, id)).collect();
        for &id in inputs {
            let at = self.framework.find(id).expect("lives");
            if !self.framework.tensors[at].is_large() {
                self.framework.thread(op.thread).touch(id, AccessMode::Read)?;
                self.framework.tensors[at].is_input = true;
            }
        }
        let scratch_bytes = random.chance(30).then(|| Training::size(random));
        let recipe = self.framework.recipe(op.stream, &reads, &writes, scratch_bytes);
        Ok(self.framework.thread(op.thread).recipe(recipe)?)
    }

    /// The operator was the last to need an input.
    fn let_go(&mut self, random: &mut Random, inputs: &[BlockId]) -> Result<(), Stop> {
        for &id in inputs {
            let at = self.framework.find(id).expect("lives");
            let tensor = &self.framework.tensors[at];
            let is_last = tensor.users == 1 && !tensor.persistent && !self.is_batch(id);
            if is_last && random.chance(12) {
                self.framework.free(id)?;
            }
        }
        Ok(())
    }

    /// The loader makes a batch on a stream of its own, while the step before may be running.
    fn load(&mut self, random: &mut Random) -> Result<(), Stop> {
        let op = Op { thread: 0, stream: 1, aside: false, reads_batch: false, may_nest: false };
        let bytes = self.loader_op(op, None, false)?;
        let batch = self.loader_op(op, Some(bytes), random.chance(50))?;
        self.framework.free(bytes)?;
        for _ in 0..2 {
            self.change(op, batch)?;
        }
        self.next_batch = Some(batch);
        Ok(())
    }

    /// A copy to the device, or a conversion of what was copied.
    fn loader_op(&mut self, op: Op, from: Option<BlockId>, again: bool) -> Result<BlockId, Stop> {
        let on = self.framework.streams[op.stream].0;
        if self.tells {
            self.framework.thread(op.thread).begin_on(NAMES[3], on)?;
        }
        let mut uses = Vec::new();
        if let Some(from) = from {
            self.tell(op.thread, from, AccessMode::Read)?;
            uses.push((from, AccessMode::Read));
        }
        let size_bytes = if from.is_some() { SIZES[7] } else { SIZES[3] };
        let id = self.allocate_bytes(size_bytes, op)?;
        uses.push((id, AccessMode::Write));
        let operands = self.framework.kernel(op.stream, &uses)?;
        self.tell(op.thread, id, AccessMode::Write)?;
        if again && self.tells {
            let inputs: Vec<BlockId> = from.into_iter().collect();
            self.offer(&mut Random(0), op, &inputs, &[id], &operands)?;
        }
        if self.tells {
            self.framework.thread(op.thread).end()?;
        }
        self.leave(id, AccessMode::Write);
        Ok(id)
    }

    fn change(&mut self, op: Op, id: BlockId) -> Result<(), Stop> {
        let on = self.framework.streams[op.stream].0;
        if self.tells {
            self.framework.thread(op.thread).begin_on(NAMES[2], on)?;
        }
        self.tell(op.thread, id, AccessMode::ReadWrite)?;
        self.framework.kernel(op.stream, &[(id, AccessMode::ReadWrite)])?;
        if self.tells {
            self.framework.thread(op.thread).end()?;
        }
        Ok(())
    }
}

/// How much memory a training gets.
#[derive(Clone, Copy)]
struct Memory {
    limit_bytes: u64,
    arena_bytes: u64,
}

/// A training under one seed, on a device of its kind; `prepare` gets the engine before anything
/// happens. Returns the most bytes that lived at once, too.
fn run(seed: u64, memory: Memory, prepare: impl Fn(&Engine)) -> Result<(Tally, u64), String> {
    let capacity_bytes = 2 * memory.limit_bytes;
    let lockstep = HostConfig::lockstep(capacity_bytes, seed);
    let threads = HostConfig::threads(capacity_bytes);
    let device = match seed % 8 {
        0 => HostConfig::by_time(capacity_bytes),
        1 => threads,
        // Another thread of the engine maps.
        2 => HostConfig { map_waits_for_copies: true, ..threads },
        3 => HostConfig { map_waits_for_copies: true, ..lockstep },
        _ => lockstep,
    };
    let mut random = Random(seed);
    let program = random.next();
    let mut training = Training::new(device, memory.limit_bytes, memory.arena_bytes);
    prepare(&training.framework.engine);
    training.open(&mut random)?;
    training.step(program, None)?;
    for round in 0..3 {
        let trace = training.framework.trace.clone();
        if let Some(trace) = &trace {
            training.framework.lots = random_lots(trace, &mut random, GRANULARITY);
            let plan = random_plan(trace, &mut random, false);
            training.set_orders(round == 1, Some((&plan, trace)))?;
        }
        training.step(program, None)?;
        training.step(program, Some(Random(random.next())))?;
        training.step(program, None)?;
    }
    training.close()
}

/// The same under a cap that leaves room for a part of what lives at once.
pub(super) fn run_short(seed: u64, prepare: impl Fn(&Engine)) -> Result<Tally, String> {
    let plenty = Memory { limit_bytes: GENEROUS, arena_bytes: GENEROUS };
    let (_, most_bytes) = run(seed, plenty, |_| ())?;
    let mut random = Random(!seed);
    let limit_bytes = most_bytes * (40 + random.below(70)) / 100;
    let limit_bytes = (limit_bytes / GRANULARITY * GRANULARITY).max(160 << 10);
    let arena_bytes = if random.chance(30) { 128 << 10 } else { GENEROUS };
    run(seed, Memory { limit_bytes, arena_bytes }, prepare).map(|(tally, _)| tally)
}

#[test]
fn a_framework_that_orders_no_more_than_it_must_sees_right_bytes() {
    let given = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = given("ENGINE_FIRST").unwrap_or(0);
    let mut total = Tally::default();
    for seed in first..first + given("ENGINE_CASES").unwrap_or(300) {
        let tally = run_short(seed, |_| ());
        total.add(&tally.unwrap_or_else(|what| panic!("seed {seed}: {what}")));
    }
    println!("{total:#?}");
    for (what, count) in total.counts() {
        assert!(count > 0, "{what} never happened");
    }
}
