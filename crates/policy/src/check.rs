//! Whether a trace is well formed: what every function of this crate expects of one.

use swap_core::{BlockIndex, HostCosts, OpIndex, Origin, Trace, TraceEvent};
use thiserror::Error;

/// No device keeps an op busy for longer, in microseconds; more is a broken clock.
pub(crate) const OP_US_MAX: f64 = 1e10;

/// Why a trace cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TraceFault {
    /// An op began out of order, was not the innermost one when it ended, or never ended.
    #[error("event {event}: op {op} does not nest", op = .op.0)]
    Nesting {
        /// Position in the events.
        event: usize,
        /// The op.
        op: OpIndex,
    },
    /// An op has no begin, another depth than its place says, or a time that is not a time.
    #[error("op {} has no begin, a wrong depth or a wrong time", .0.0)]
    Op(OpIndex),
    /// A block was used while it did not live, or touched outside any op.
    #[error("event {event}: block {block} is used where it cannot be", block = .block.0)]
    Use {
        /// Position in the events.
        event: usize,
        /// The block.
        block: BlockIndex,
    },
    /// A block is empty, or its place or origin does not fit the events.
    #[error("block {} is empty, out of order or of another origin than the events say", .0.0)]
    Block(BlockIndex),
    /// The time of the whole step, or what the host needs for a replay or a move, is negative or
    /// no number.
    #[error("the time of the whole step, of a replay or of a move is not a valid time")]
    StepTime,
    /// The blocks are together larger than an address space.
    #[error("the sizes of all blocks together overflow")]
    TooLarge,
}

/// Checks that a trace is well formed.
///
/// # Errors
/// The first fault found.
pub fn check_trace(trace: &Trace) -> Result<(), TraceFault> {
    let HostCosts { replay_us, move_us } = trace.host_costs;
    if ![trace.step_us, replay_us, move_us].iter().all(|us| us.is_finite() && *us >= 0.0) {
        return Err(TraceFault::StepTime);
    }
    check_blocks(trace)?;
    let persistent = trace.blocks.iter().take_while(|b| b.origin == Origin::Persistent).count();
    let mut walk = Walk {
        trace,
        open: Vec::new(),
        begun: 0,
        born: persistent,
        live: (0..trace.blocks.len()).map(|index| index < persistent).collect(),
    };
    for (position, &event) in trace.events.iter().enumerate() {
        walk.step(position, event)?;
    }
    if let Some(&op) = walk.open.last() {
        return Err(TraceFault::Nesting { event: trace.events.len(), op });
    }
    if walk.begun < trace.ops.len() {
        return Err(TraceFault::Op(OpIndex(walk.begun as u32)));
    }
    if walk.born < trace.blocks.len() {
        return Err(TraceFault::Block(BlockIndex(walk.born as u32)));
    }
    Ok(())
}

fn check_blocks(trace: &Trace) -> Result<(), TraceFault> {
    if trace.ops.len() > u32::MAX as usize / 4 || trace.events.len() > u32::MAX as usize / 4 {
        return Err(TraceFault::TooLarge);
    }
    let segments = trace.events.iter().filter_map(|event| match *event {
        TraceEvent::Segments(bytes) => Some(bytes),
        _ => None,
    });
    let mut total = segments.fold(trace.segment_bytes, u64::max);
    for (index, block) in trace.blocks.iter().enumerate() {
        if block.size_bytes == 0 {
            return Err(TraceFault::Block(BlockIndex(index as u32)));
        }
        // A quarter of the range leaves room for sums over a few passes.
        total = total.checked_add(block.size_bytes).ok_or(TraceFault::TooLarge)?;
        if total > u64::MAX / 4 {
            return Err(TraceFault::TooLarge);
        }
    }
    Ok(())
}

struct Walk<'a> {
    trace: &'a Trace,
    open: Vec<OpIndex>,
    begun: usize,
    born: usize,
    live: Vec<bool>,
}

impl Walk<'_> {
    fn step(&mut self, position: usize, event: TraceEvent) -> Result<(), TraceFault> {
        match event {
            TraceEvent::Begin(op) => self.begin(position, op)?,
            TraceEvent::End(op) => {
                if self.open.pop() != Some(op) {
                    return Err(TraceFault::Nesting { event: position, op });
                }
            }
            TraceEvent::Allocate(block) => self.allocate(block)?,
            TraceEvent::Touch(block, _) => {
                if self.open.is_empty() || !self.lives(block) {
                    return Err(TraceFault::Use { event: position, block });
                }
            }
            TraceEvent::Free(block) => {
                if !self.lives(block) {
                    return Err(TraceFault::Use { event: position, block });
                }
                self.live[block.0 as usize] = false;
            }
            TraceEvent::Segments(_) => {}
        }
        Ok(())
    }

    fn begin(&mut self, position: usize, op: OpIndex) -> Result<(), TraceFault> {
        let Some(record) = self.trace.ops.get(op.0 as usize) else {
            return Err(TraceFault::Op(op));
        };
        if op.0 as usize != self.begun {
            return Err(TraceFault::Nesting { event: position, op });
        }
        let is_time = |us: &f64| (0.0..=OP_US_MAX).contains(us);
        let timed = is_time(&record.device_us) && is_time(&record.host_us);
        let last = self.trace.ops.len() as u32;
        let is_op = |by: OpIndex| (op.0..last).contains(&by.0);
        let may_be = record.outdated_by.is_none_or(is_op);
        if record.depth as usize != self.open.len() || !timed || !may_be {
            return Err(TraceFault::Op(op));
        }
        self.begun += 1;
        self.open.push(op);
        Ok(())
    }

    fn allocate(&mut self, block: BlockIndex) -> Result<(), TraceFault> {
        let fault = TraceFault::Block(block);
        if block.0 as usize != self.born || self.born >= self.trace.blocks.len() {
            return Err(fault);
        }
        let fits = match self.trace.blocks[self.born].origin {
            Origin::Persistent => false,
            Origin::Op(op) => self.open.contains(&op),
            Origin::Before(op) => self.open.is_empty() && op.0 as usize == self.begun,
        };
        if !fits {
            return Err(fault);
        }
        self.live[self.born] = true;
        self.born += 1;
        Ok(())
    }

    fn lives(&self, block: BlockIndex) -> bool {
        self.live.get(block.0 as usize).copied().unwrap_or(false)
    }
}
