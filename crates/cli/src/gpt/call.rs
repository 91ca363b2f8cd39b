//! One operator call: what it touches, the work, and the recipe to run it again.

use std::fmt;
use std::sync::Arc;

use adaptive::{AccessMode, BlockId, Engine, Error, OpName, OpStack, Operands, Recipe};

use super::operators::Outbox;

/// A device tensor: a block and its number of four-byte elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tensor {
    /// Where its bytes are.
    pub(crate) block: BlockId,
    /// How many elements it has.
    pub(crate) elements: usize,
}

/// Whether the engine may run an op again to bring its outputs back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Replay {
    /// It only reads its inputs and overwrites its outputs.
    Allowed,
    /// It changes something in place or has an effect outside.
    Never,
}

/// Whether ops do their work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// They do.
    Real,
    /// They allocate, touch and free as always, and compute nothing. That shows in no time what
    /// memory a model takes; with a virtual clock also about how long a step would take.
    Pretended,
}

/// Where a model's ops go.
#[derive(Debug)]
pub(crate) struct Ops {
    stack: OpStack,
    work: Work,
    replays: Outbox<&'static str>,
}

impl Ops {
    /// Ops on `engine`'s compute stream.
    pub(crate) fn new(engine: &Engine, work: Work) -> Ops {
        Ops { stack: engine.op_stack(), work, replays: Outbox::new() }
    }

    /// The names of the ops that were replayed since the last call, in order of their launch.
    pub(crate) fn take_replays(&self) -> Vec<&'static str> {
        self.replays.take()
    }

    /// Frees a tensor's block.
    pub(crate) fn free(&mut self, block: BlockId) -> Result<(), Error> {
        self.stack.free(block)
    }
}

type Body = Arc<dyn Fn(&Operands<'_>) + Send + Sync>;

/// An op that has begun. Operands are numbered in the order of the calls that name them.
pub(crate) struct Call<'a> {
    ops: &'a mut Ops,
    name: OpName,
    touches: Vec<(Tensor, AccessMode)>,
    traffic_bytes: u64,
    is_open: bool,
}

impl<'a> Call<'a> {
    /// Begins an op.
    pub(crate) fn begin(ops: &'a mut Ops, name: OpName) -> Result<Call<'a>, Error> {
        ops.stack.begin(name)?;
        Ok(Call { ops, name, touches: Vec::new(), traffic_bytes: 0, is_open: true })
    }

    /// Names an input.
    pub(crate) fn read(&mut self, tensor: Tensor) -> Result<(), Error> {
        self.touch(tensor, AccessMode::Read)
    }

    /// Names a tensor that is changed in place.
    pub(crate) fn change(&mut self, tensor: Tensor) -> Result<(), Error> {
        self.touch(tensor, AccessMode::ReadWrite)
    }

    /// Allocates an output, which the op overwrites as a whole.
    pub(crate) fn output(&mut self, elements: usize, name: &str) -> Result<Tensor, Error> {
        let block = self.ops.stack.allocate(4 * elements as u64, name)?;
        let tensor = Tensor { block, elements };
        self.touch(tensor, AccessMode::Write)?;
        Ok(tensor)
    }

    /// Launches the work and ends the op. `flops` counts its floating-point operations.
    pub(crate) fn launch(
        mut self,
        flops: u64,
        replay: Replay,
        body: impl Fn(&Operands<'_>) + Send + Sync + 'static,
    ) -> Result<(), Error> {
        let cost_us = cost_us(flops, self.traffic_bytes);
        let body: Body = match self.ops.work {
            Work::Real => Arc::new(body),
            Work::Pretended => Arc::new(|_: &Operands<'_>| ()),
        };
        let work = Arc::clone(&body);
        self.ops.stack.launch(cost_us, move |operands: &Operands<'_>| work(operands))?;
        if replay == Replay::Allowed {
            let touches = std::mem::take(&mut self.touches);
            let replays = self.ops.replays.clone();
            let again = Again { name: self.name, touches, cost_us, body, replays };
            self.ops.stack.recipe(Recipe::new(move |ops, output| again.run(ops, output)))?;
        }
        self.is_open = false;
        self.ops.stack.end()
    }

    fn touch(&mut self, tensor: Tensor, mode: AccessMode) -> Result<(), Error> {
        self.ops.stack.touch(tensor.block, mode)?;
        self.touches.push((tensor, mode));
        let passes = if mode == AccessMode::ReadWrite { 2 } else { 1 };
        self.traffic_bytes += passes * 4 * tensor.elements as u64;
        Ok(())
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.is_open {
            // A call of this op failed and its error is on the way up; this one adds nothing.
            let _ = self.ops.stack.end();
        }
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("name", &self.name)
            .field("touches", &self.touches)
            .finish_non_exhaustive()
    }
}

/// All that it takes to run an op once more.
struct Again {
    name: OpName,
    touches: Vec<(Tensor, AccessMode)>,
    cost_us: f64,
    body: Body,
    replays: Outbox<&'static str>,
}

/// What timelines call an op that runs once more; which one it is, [`Ops::take_replays`] says.
pub(crate) const REPLAY: OpName = OpName::new("replay");

impl Again {
    /// Makes one output again; the others go to scratch.
    fn run(&self, ops: &mut OpStack, output: BlockId) -> Result<(), Error> {
        self.replays.post(self.name.text());
        ops.begin(REPLAY)?;
        let mut scratch = Vec::new();
        for &(tensor, mode) in &self.touches {
            let mut block = tensor.block;
            if mode == AccessMode::Write && block != output {
                block = ops.allocate(4 * tensor.elements as u64, "scratch")?;
                scratch.push(block);
            }
            ops.touch(block, mode)?;
        }
        let work = Arc::clone(&self.body);
        ops.launch(self.cost_us, move |operands: &Operands<'_>| work(operands))?;
        scratch.into_iter().try_for_each(|block| ops.free(block))?;
        ops.end()
    }
}

/// What an op takes on a device with a virtual clock: about what one core takes.
fn cost_us(flops: u64, traffic_bytes: u64) -> f64 {
    const LAUNCH_US: f64 = 2.0;
    const FLOPS_PER_US: f64 = 80e3;
    const BYTES_PER_US: f64 = 15e3;
    LAUNCH_US + (flops as f64 / FLOPS_PER_US).max(traffic_bytes as f64 / BYTES_PER_US)
}
