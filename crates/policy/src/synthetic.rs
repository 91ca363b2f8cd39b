//! Made-up traces for benchmarks and tests: training steps of a transformer, and random ones.

use swap_core::{AccessMode, BlockIndex, OpIndex, Origin, Trace, TraceBlock, TraceEvent, TraceOp};

mod large;
mod random;
mod transformer;

pub use large::{LargeShape, large_trace};
pub use random::{RandomShape, random_trace};
pub use transformer::{TransformerShape, transformer_trace};

pub use swap_core::devices::Numbers;

/// Writes a trace call by call, as the engine would record it.
#[derive(Clone, Debug, Default)]
pub struct TraceBuilder {
    trace: Trace,
    open: Vec<OpIndex>,
}

impl TraceBuilder {
    /// An empty step.
    pub fn new() -> TraceBuilder {
        TraceBuilder::default()
    }

    /// A block that lives at the step's start.
    ///
    /// # Panics
    /// If anything was recorded before.
    pub fn persistent(&mut self, name: &str, size_bytes: u64) -> BlockIndex {
        assert!(self.trace.events.is_empty(), "persistent blocks come before all events");
        self.block(name, size_bytes, Origin::Persistent)
    }

    /// Begins an op. Only outermost ops keep their time.
    pub fn begin(&mut self, name: &str, device_us: f64, replayable: bool) -> OpIndex {
        let op = OpIndex(self.trace.ops.len() as u32);
        let depth = self.open.len() as u32;
        let device_us = if depth == 0 { device_us } else { 0.0 };
        self.trace.ops.push(TraceOp {
            name: name.to_owned(),
            depth,
            device_us,
            replayable,
            at_any_size: replayable,
            ..TraceOp::default()
        });
        self.trace.events.push(TraceEvent::Begin(op));
        self.open.push(op);
        for byte in name.bytes() {
            self.trace.signature = self.trace.signature.mix(u64::from(byte));
        }
        op
    }

    /// Ends the innermost op.
    ///
    /// # Panics
    /// If none is open.
    pub fn end(&mut self) {
        let op = self.open.pop().expect("an op is open");
        self.trace.events.push(TraceEvent::End(op));
    }

    /// The innermost op reads a block.
    pub fn read(&mut self, block: BlockIndex) {
        self.trace.events.push(TraceEvent::Touch(block, AccessMode::Read));
    }

    /// The innermost op overwrites a block.
    pub fn write(&mut self, block: BlockIndex) {
        self.trace.events.push(TraceEvent::Touch(block, AccessMode::Write));
    }

    /// The innermost op changes a block.
    pub fn update(&mut self, block: BlockIndex) {
        self.trace.events.push(TraceEvent::Touch(block, AccessMode::ReadWrite));
    }

    /// A block is allocated, by the innermost op if one is open.
    pub fn allocate(&mut self, name: &str, size_bytes: u64) -> BlockIndex {
        let next = OpIndex(self.trace.ops.len() as u32);
        let origin = self.open.last().map_or(Origin::Before(next), |&op| Origin::Op(op));
        let block = self.block(name, size_bytes, origin);
        self.trace.events.push(TraceEvent::Allocate(block));
        self.trace.signature = self.trace.signature.mix(size_bytes);
        block
    }

    /// A block is freed.
    pub fn free(&mut self, block: BlockIndex) {
        self.trace.events.push(TraceEvent::Free(block));
    }

    /// The segments of small blocks have grown to this many bytes; before the first event, the
    /// bytes they start with.
    pub fn segments(&mut self, size_bytes: u64) {
        if self.trace.events.is_empty() {
            self.trace.segment_bytes = size_bytes;
        } else {
            self.trace.events.push(TraceEvent::Segments(size_bytes));
        }
    }

    /// A whole op that reads some blocks and writes one.
    pub fn compute(&mut self, name: &str, device_us: f64, reads: &[BlockIndex], out: BlockIndex) {
        self.begin(name, device_us, true);
        for &block in reads {
            self.read(block);
        }
        self.write(out);
        self.end();
    }

    /// The trace.
    ///
    /// # Panics
    /// If an op is still open.
    pub fn finish(mut self) -> Trace {
        assert!(self.open.is_empty(), "every op has ended");
        self.trace.step_us = self.trace.ops_us();
        self.trace
    }

    fn block(&mut self, name: &str, size_bytes: u64, origin: Origin) -> BlockIndex {
        let index = BlockIndex(self.trace.blocks.len() as u32);
        let since = self.trace.events.iter().rev();
        let since = since.take_while(|event| !matches!(event, TraceEvent::Begin(_)));
        let nth = since.filter(|event| matches!(event, TraceEvent::Allocate(_))).count() as u32;
        let name = name.to_owned();
        self.trace.blocks.push(TraceBlock { size_bytes, origin, name, held: false, nth });
        index
    }
}
