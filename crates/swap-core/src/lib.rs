//! Moves memory in time: residency, the op stack, recording, and the execution of plans.

mod copies;
mod core;
mod engine;
mod entry;
mod error;
mod executor;
mod ladder;
mod name;
mod ops;
mod orders;
mod plan;
mod recipe;
mod recorder;
mod report;
mod residency;
mod step;
mod trace;

pub use engine::{Config, Engine};
pub use entry::Residency;
pub use error::{Error, OutOfMemory};
pub use name::OpName;
pub use ops::OpStack;
pub use orders::Orders;
pub use plan::{Action, ActionKind, Phase, Plan, PlanBlock};
pub use recipe::Recipe;
pub use report::{Direction, Move, StepCounters, StepReport};
pub use trace::{BlockIndex, OpIndex, Origin, Signature, Trace, TraceBlock, TraceEvent, TraceOp};
// What the layers above need of memory and drivers.
pub use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, Bytes, CheckConfig, CheckDriver, ChunkCache,
    DevicePtr, Driver, DriverError, ErrorKind, FALLIBLE_CALLS, FaultDriver, FaultPlan, HostConfig,
    HostDriver, HostFunction, Lasting, Ledger, Link, MemoryError, MemoryStats, Mode, Operands,
    Order, ParseBytesError, Peak, PoolConfig, RecordDriver, Room, Site, Span, SpanKind,
    StreamHandle, StreamId, Violation,
};
