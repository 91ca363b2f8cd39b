//! A step with more micro-batches: the passes of a recorded one several times, its update once.
//!
//! Under a small cap the state of an optimizer travels once a step, however many micro-batches the
//! step has. What more of them would cost is found out by planning for such a step, made of the
//! recorded one:
//!
//! ```text
//!   recorded   passes                                                     update
//!   twice      passes, as recorded   passes, gradients added to the first ones   update
//! ```
//!
//! Passes end with the last op before the update that uses something of theirs. The update begins
//! where a weight is written: a block that was there before the step and was read first. Where
//! updates wait until their weights are used next, they are among the first passes, and run once:
//! ops that change blocks from before the step and use nothing that the passes made.

use swap_core::{AccessMode, BlockIndex, Trace, TraceEvent, TraceOp};

use super::lives::{Lives, Update, index, is_outermost};
use super::rewritten::Rewritten;

/// The name of an op that adds a gradient to that of the passes before.
const ADD: &str = "aten::add_";

/// The step as it would be if its forward and backward passes ran `times` as often before the
/// update, each time with a batch like the recorded one. `None` where the step does not end with an
/// update that could wait, or is in several parts of which each has one.
///
/// Blocks that the passes leave behind and the update uses are gradients: further passes add theirs
/// to them, at the rate at which the update goes through memory. All else that they leave behind is
/// freed when they run again.
///
/// # Panics
/// If the trace is not well formed, or `times` is 0, it may.
pub fn accumulated(trace: &Trace, times: u32) -> Option<Trace> {
    let lives = Lives::of(trace);
    let passes = Passes::of(trace, &lives)?;
    let mut writer = Writer::new(trace, &lives, passes);
    for round in 0..times {
        writer.write_passes(round);
    }
    writer.write_update();
    Some(writer.finish(times))
}

/// The passes of a step.
struct Passes {
    /// The event behind them.
    end: usize,
    /// What they leave behind for the update, by block.
    gradients: Vec<bool>,
    /// Ops among them that run once a step, by place among the outermost ones.
    updates: Vec<bool>,
}

impl Passes {
    fn of(trace: &Trace, lives: &Lives) -> Option<Passes> {
        let blocks = 0..trace.blocks.len();
        let stays = |block: usize| lives.freed[block].is_none();
        let at_end = lives.update(trace);
        let (update, end) = match at_end {
            Some(Update { passes_end, weights, .. }) => (weights, passes_end),
            None if blocks.clone().any(|block| lives.is_updated_first(block)) => {
                let end = trace.events.len();
                (end, lives.passes_end(trace, end)?)
            }
            None => return None,
        };
        // What is computed behind an update, and stays, is for another update.
        if blocks.clone().any(|block| lives.born[block] > Some(update) && stays(block)) {
            return None;
        }
        // Where updates wait for the next step, nothing of this one reads gradients.
        let is_gradient = |block: usize| match at_end {
            Some(_) => lives.is_used_from(block, end),
            None => stays(block) && lives.is_written_last(block),
        };
        let gradients = blocks.map(|block| {
            let is_left = lives.born[block].is_some_and(|born| born < end);
            is_left && !lives.is_freed_before(block, end) && is_gradient(block)
        });
        Some(Passes { end, gradients: gradients.collect(), updates: lives.updates() })
    }

    fn is_update(&self, lives: &Lives, at: usize) -> bool {
        lives.op_at(at).is_some_and(|op| self.updates[op])
    }
}

/// Writes the step, with other numbers of ops and blocks.
struct Writer<'a> {
    recorded: &'a Trace,
    lives: &'a Lives,
    passes: Passes,
    written: Rewritten<'a>,
    /// Recorded gradients that further passes have made, until the op that makes them ends.
    unadded: Vec<usize>,
    /// What stands for a gradient of the first passes, by recorded block.
    sums: Vec<BlockIndex>,
    bytes_per_us: f64,
}

impl<'a> Writer<'a> {
    fn new(recorded: &'a Trace, lives: &'a Lives, passes: Passes) -> Writer<'a> {
        let written = Rewritten::of(recorded);
        Writer {
            recorded,
            lives,
            sums: written.blocks.clone(),
            written,
            unadded: Vec::new(),
            bytes_per_us: bytes_per_us(recorded, lives, &passes),
            passes,
        }
    }

    fn write_passes(&mut self, round: u32) {
        if round > 0 {
            self.bring_again();
        }
        for at in 0..self.passes.end {
            if round == 0 || !self.passes.is_update(self.lives, at) {
                self.write(self.recorded.events[at], round);
            }
        }
        match round {
            0 => self.sums.clone_from(&self.written.blocks),
            _ => self.free_left(),
        }
    }

    /// Frees what further passes leave behind and the update has no use for.
    fn free_left(&mut self) {
        let left = (0..self.written.blocks.len()).filter(|&block| {
            let is_left =
                self.is_again(block) && !self.lives.is_freed_before(block, self.passes.end);
            is_left && !self.passes.gradients[block]
        });
        let freed: Vec<TraceEvent> =
            left.map(|block| TraceEvent::Free(self.written.blocks[block])).collect();
        self.written.trace.events.extend(freed);
    }

    /// Whether further passes allocate a block as well.
    fn is_again(&self, block: usize) -> bool {
        let born = self.lives.born[block].filter(|&born| born < self.passes.end);
        born.is_some_and(|born| !self.passes.is_update(self.lives, born))
    }

    fn write_update(&mut self) {
        // What passes leave behind is what the first ones left.
        self.written.blocks.clone_from(&self.sums);
        for &event in &self.recorded.events[self.passes.end..] {
            self.write(event, 0);
        }
    }

    /// Blocks from before the step that passes use and free are there for further ones as well.
    fn bring_again(&mut self) {
        for block in 0..self.written.blocks.len() {
            let (passes, lives) = (&self.passes, self.lives);
            let is_used =
                || lives.touches[block].iter().any(|&(at, _)| !passes.is_update(lives, at));
            let is_taken = lives.born[block].is_none() && lives.is_freed_before(block, passes.end);
            if is_taken && is_used() {
                self.allocate(BlockIndex(block as u32), 0);
            }
        }
    }

    fn allocate(&mut self, block: BlockIndex, round: u32) {
        self.written.write(TraceEvent::Allocate(block));
        if round > 0 && self.passes.gradients[index(block)] {
            self.unadded.push(index(block));
        }
    }

    fn free(&mut self, block: BlockIndex, round: u32) {
        let is_there = self.is_again(index(block)) || self.written.blocks[index(block)] != block;
        if round == 0 || is_there {
            self.written.write(TraceEvent::Free(block));
            self.written.blocks[index(block)] = block;
        }
    }

    fn write(&mut self, event: TraceEvent, round: u32) {
        match event {
            TraceEvent::Allocate(block) => self.allocate(block, round),
            TraceEvent::Free(block) => self.free(block, round),
            _ => self.written.write(event),
        }
        if let TraceEvent::End(op) = event
            && is_outermost(self.recorded, op)
        {
            self.add_gradients();
        }
    }

    fn add_gradients(&mut self) {
        for block in std::mem::take(&mut self.unadded) {
            let sum = self.sums[block];
            let gradient = std::mem::replace(&mut self.written.blocks[block], sum);
            let bytes = 3 * self.written.trace.blocks[index(gradient)].size_bytes;
            let device_us = bytes as f64 / self.bytes_per_us;
            let op = self.written.begin(TraceOp {
                name: ADD.to_owned(),
                device_us,
                ..TraceOp::default()
            });
            self.written.trace.events.extend([
                TraceEvent::Touch(sum, AccessMode::ReadWrite),
                TraceEvent::Touch(gradient, AccessMode::Read),
                TraceEvent::End(op),
                TraceEvent::Free(gradient),
            ]);
        }
    }

    fn finish(mut self, times: u32) -> Trace {
        let added_us = self.written.trace.ops_us() - self.recorded.ops_us();
        self.written.trace.step_us = self.recorded.step_us + added_us;
        self.written.trace.signature = self.recorded.signature.mix(u64::from(times));
        self.written.finish()
    }
}

/// How fast the update goes through what it reads and writes.
fn bytes_per_us(trace: &Trace, lives: &Lives, passes: &Passes) -> f64 {
    let (mut bytes, mut device_us) = (0, 0.0);
    for (at, event) in trace.events.iter().enumerate() {
        match *event {
            _ if at < passes.end && !passes.is_update(lives, at) => {}
            TraceEvent::Begin(op) => device_us += trace.ops[op.0 as usize].device_us,
            TraceEvent::Touch(block, mode) => {
                let ways = if mode == AccessMode::ReadWrite { 2 } else { 1 };
                bytes += ways * trace.blocks[index(block)].size_bytes;
            }
            _ => {}
        }
    }
    if device_us > 0.0 { bytes as f64 / device_us } else { f64::INFINITY }
}
