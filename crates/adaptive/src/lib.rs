//! Decides jointly what to do with each block of a training step under one memory budget: keep
//! it, swap it to the host, or drop it and make it again.
//!
//! | word | meaning |
//! |---|---|
//! | option | a block that its producer can make again, and what that adds to the step |
//! | replay | one more run of a block's producer, on the same inputs, into the same address |
//! | joint | every block gets what adds the least time, given what all others get |
//!
//! Swaps cost nothing while the link has time to spare; beyond that every byte stalls compute.
//! Replays always cost their device time. So the cheap way out is to swap what hides, and to make
//! again what is quick to make, and only planning both against one budget finds that.
//!
//! ```
//! use adaptive::synthetic::{TransformerShape, transformer_trace};
//! use adaptive::{JointConfig, JointPlanner, Link, Machine, Strategy};
//!
//! let shape =
//!     TransformerShape { layers: 12, weight_mib: 24, activation_mib: 64, forward_us: 4_000.0 };
//! let trace = transformer_trace(&shape);
//! let machine = Machine {
//!     limit_bytes: 6 << 30,
//!     host_limit_bytes: 64 << 30,
//!     link: Link {
//!         out_bytes_per_us: 25_000.0,
//!         in_bytes_per_us: 25_000.0,
//!         both_bytes_per_us: 20_000.0,
//!     },
//!     copy_submit_us: 8.0,
//! };
//! let plan = |strategy| {
//!     let config = JointConfig { strategy, ..JointConfig::default() };
//!     JointPlanner::new(machine, config).make(&trace)
//! };
//! let (swap, joint) = (plan(Strategy::Swap), plan(Strategy::Joint));
//! assert!(joint.infeasible.is_none() && joint.simulation.went_to_plan());
//! assert!(joint.simulation.held_bytes_peak <= machine.limit_bytes);
//! assert!(joint.added_us() <= swap.added_us());
//! assert!(joint.simulation.recomputed_ops > 0);
//! ```
//!
//! # What it does not do
//!
//! It runs nothing and measures nothing: device times come with the trace, link rates with the
//! machine. It has no clock and no randomness; the same input gives the same plan.

#![forbid(unsafe_code)]

mod advice;
mod device_name;
mod gap;
mod joint;
mod named;
mod planner;
mod recompute;
mod rivals;
mod settings;
mod smartswap;

pub use advice::{
    AccumulationCost, Burden, CapCost, CapCosts, DeferralCost, cap_costs, deferral_cost,
};
pub use device_name::DeviceName;
pub use gap::{gap_fraction, gap_reason, waits_by_name};
pub use joint::{JointConfig, Prefer, Strategy};
pub use named::Named;
pub use planner::JointPlanner;
pub use recompute::{RecomputeConfig, recompute_options};
pub use settings::{
    Budget, CompareSettings, Key, Location, OptimizerState, PlanSettings, PrintLevel, Settings,
    SettingsError, SimulateSettings, SmartSwapSettings, TrainSettings, setting_hint,
};
pub use smartswap::SmartSwapStrategy;

// What front ends need of the layers below.
pub use policy::{
    AccessMode, Action, ActionKind, Allocation, ArenaConfig, Baseline, BlockId, BlockIndex, Bytes,
    Candidate, Compute, Config, Copy, CopySpan, Decision, Departure, DeviceProperties, Direction,
    Driver, DriverError, Engine, Error, EventHandle, EventKind, Family, FamilySummary, Feedback,
    Figures, FileError, FinishedStep, GenerateConfig, Generated, Held, HostCosts, HostFunction,
    HostMapping, HostPtr, InParts, Item, LaneComparison, LaneCopy, LaneOp, LaneShares, LaneWait,
    Lanes, Layout, LevelSummary, Link, Loop, LoopConfig, Machine, MemoryCalls, MemoryStats,
    Movable, Move, OneLine, OpIndex, OpName, OpStack, Operands, Orders, Origin, Packing,
    ParseBytesError, Part, Peak, Phase, Plan, PlanBlock, Planner, PoolConfig, Proposal, Recipe,
    RecipeUse, RecordedConfig, Residency, Round, SavedPlan, Session, Shortfall, Signature,
    Simulation, Simulator, SplitOp, Stage, StepCounters, StepReport, StreamHandle, StreamId,
    SwappedBlock, Trace, TraceBlock, TraceEvent, TraceFault, TraceOp, Treatment, assemble,
    candidates, compare_lanes, devices, in_parts, load, load_lanes, load_steps, load_trace, pack,
    part_bytes, plan_for_member, predicted_lanes, replayable_blocks, run_baseline,
    run_baseline_with, save, save_bytes, save_in_parts, save_lanes, save_steps, save_trace,
    simulate, synthetic, unlimited_us, with_state_held,
};
