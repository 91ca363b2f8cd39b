//! Placeholder.
#![forbid(unsafe_code)]

mod bound;
mod candidate;
mod check;
mod curve;
mod error;
mod file;
mod filter;
mod generate;
mod machine;
mod search;
mod session;
mod simulate;
mod stage;
pub mod synthetic;
mod usage;

pub use candidate::{Candidate, candidates};
pub use check::{TraceFault, check_trace};
pub use error::{FileError, PlanFault};
pub use file::{load, load_trace, read_trace, save, save_bytes, save_trace, write_trace};
pub use filter::Exclusion;
pub use generate::{
    Decision, GenerateConfig, Generated, Preference, Reason, RecomputeOption, Replayable,
    Treatment, generate, replayable_blocks,
};
pub use machine::{Link, Machine};
pub use search::{Feedback, Measured, Planner, Prediction, Proposal};
pub use session::{FinishedStep, Session};
pub use simulate::{CopySpan, ReplaySpan, Shortfall, Simulation, Simulator, Span, simulate};
pub use stage::{Directive, Loop, LoopConfig, Stage};

// What the layers above need of the engine and below.
pub use swap_core::{
    Access, AccessMode, Action, ActionKind, ArenaConfig, BlockId, BlockIndex, Bytes, CheckConfig,
    CheckDriver, Config, Direction, Driver, DriverError, Engine, Error, ErrorKind, EventHandle,
    EventKind, FaultDriver, FaultPlan, HostConfig, HostDriver, Ledger, Link as HostLink,
    MemoryError, MemoryStats, Mode, Move, OpIndex, OpName, OpStack, Operands, Order, Orders,
    Origin, OutOfMemory, ParseBytesError, Peak, Phase, Plan, PlanBlock, PoolConfig, Recipe,
    Residency, Signature, Span as DeviceSpan, SpanKind, StepCounters, StepReport, StreamHandle,
    StreamId, Trace, TraceBlock, TraceEvent, TraceOp,
};
