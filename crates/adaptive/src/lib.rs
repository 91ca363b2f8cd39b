//! Placeholder.
#![forbid(unsafe_code)]

// What front ends need of the layers below.
pub use policy::{
    Access, AccessMode, Action, ActionKind, ArenaConfig, BlockId, BlockIndex, Bytes, CheckConfig,
    CheckDriver, Config, Decision, DeviceSpan, Direction, Directive, Driver, DriverError, Engine,
    Error, ErrorKind, Feedback, FinishedStep, HostConfig, HostDriver, HostLink, Ledger, Link, Loop,
    LoopConfig, Machine, MemoryError, MemoryStats, Mode, Move, OpIndex, OpName, OpStack, Operands,
    Order, Orders, Origin, OutOfMemory, ParseBytesError, Peak, Phase, Plan, PlanBlock, Planner,
    PoolConfig, Prediction, Proposal, Recipe, Residency, Session, Signature, Simulation, SpanKind,
    Stage, StepCounters, StepReport, StreamHandle, StreamId, Trace, TraceBlock, TraceEvent,
    TraceOp, simulate,
};
