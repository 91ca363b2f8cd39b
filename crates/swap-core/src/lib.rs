//! Placeholder while the engine is written.

mod plan;
mod report;
mod trace;

pub use plan::{Action, ActionKind, Phase, Plan, PlanBlock};
pub use report::{StepCounters, StepReport};
pub use trace::{BlockIndex, OpIndex, Origin, Signature, Trace, TraceBlock, TraceEvent, TraceOp};
pub use vmem::{AccessMode, ChunkCache, Room};
