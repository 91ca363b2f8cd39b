//! A recorded step that is written again, with other numbers of ops and blocks.

use swap_core::{BlockIndex, OpIndex, Origin, Trace, TraceBlock, TraceEvent, TraceOp};

use super::lives::index;

/// What was written so far. It begins with the blocks that lived before the recorded step.
pub(super) struct Rewritten<'a> {
    recorded: &'a Trace,
    /// By recorded op, its number where it ran last.
    ops: Vec<OpIndex>,
    /// By recorded block, the block that stands for it now.
    pub(super) blocks: Vec<BlockIndex>,
    pub(super) trace: Trace,
}

impl<'a> Rewritten<'a> {
    pub(super) fn of(recorded: &'a Trace) -> Rewritten<'a> {
        let persistent = recorded.blocks.iter().take_while(|b| b.origin == Origin::Persistent);
        let trace = Trace {
            blocks: persistent.cloned().collect(),
            segment_bytes: recorded.segment_bytes,
            step_us: recorded.step_us,
            host_costs: recorded.host_costs,
            ..Trace::default()
        };
        let blocks = (0..recorded.blocks.len() as u32).map(BlockIndex).collect();
        Rewritten { recorded, ops: vec![OpIndex(0); recorded.ops.len()], blocks, trace }
    }

    /// Writes a recorded event with the numbers of now.
    pub(super) fn write(&mut self, event: TraceEvent) {
        let event = match event {
            TraceEvent::Begin(op) => {
                let record = self.recorded.ops[op.0 as usize].clone();
                self.ops[op.0 as usize] = self.begin(record);
                return;
            }
            TraceEvent::End(op) => TraceEvent::End(self.ops[op.0 as usize]),
            TraceEvent::Allocate(block) => TraceEvent::Allocate(self.make(block)),
            TraceEvent::Free(block) => TraceEvent::Free(self.blocks[index(block)]),
            TraceEvent::Touch(block, mode) => TraceEvent::Touch(self.blocks[index(block)], mode),
            TraceEvent::Segments(_) => event,
        };
        self.trace.events.push(event);
    }

    /// Begins an op, recorded or not.
    pub(super) fn begin(&mut self, record: TraceOp) -> OpIndex {
        let op = self.next_op();
        self.trace.ops.push(record);
        self.trace.events.push(TraceEvent::Begin(op));
        op
    }

    /// A new block like a recorded one, which stands for it from now on.
    fn make(&mut self, block: BlockIndex) -> BlockIndex {
        let new = BlockIndex(self.trace.blocks.len() as u32);
        let recorded = &self.recorded.blocks[index(block)];
        let origin = match recorded.origin {
            Origin::Op(op) => Origin::Op(self.ops[op.0 as usize]),
            Origin::Persistent | Origin::Before(_) => Origin::Before(self.next_op()),
        };
        self.trace.blocks.push(TraceBlock { origin, ..recorded.clone() });
        self.blocks[index(block)] = new;
        new
    }

    /// The step, once all is written.
    pub(super) fn finish(mut self) -> Trace {
        self.trace.renumber_outdated(&self.ops);
        self.trace
    }

    fn next_op(&self) -> OpIndex {
        OpIndex(self.trace.ops.len() as u32)
    }
}
