//! Decides which blocks of a training step leave the device, when, and when they come back.
//!
//! Plans are pure functions of a recorded step and of settings: no clock, no randomness, no driver.
//! The same input gives the same plan, to the byte. Only plan and trace files do input and output,
//! and only [`Session`] has an engine: it hands finished steps to the loop, and orders back.
//!
//! ```text
//!   WarmUp ── steps alike ──> SearchPolicy ── best plan known ──> Stable
//!      │ record                 │ generate, run, measure, again      │ run the plan
//!      │                        └─ simulate: time and memory         │
//!      └──────────── the step changed, or left its plan <────────────┘
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | candidate | a block and a gap between two of its uses, in which it can be away |
//! | slot | an outermost op and the calls before it: the unit in which gaps are counted |
//! | peak shaving | lowering the highest point of the memory curve by the cheapest gap, again and again |
//! | placement | when the moves of chosen gaps are issued |
//! | bound | what any plan must add to the step, because the link has a rate |
//!
//! [`simulate`] replays a trace by the executor's rules; its bytes are exact. [`generate`] makes a
//! plan and says for each block why it stays or goes. [`Loop`] carries a run through its stages.
//!
//! ```
//! use policy::synthetic::{TransformerShape, transformer_trace};
//! use policy::{GenerateConfig, Generator, Link, Machine, Plan, generate, simulate};
//!
//! let shape =
//!     TransformerShape { layers: 12, weight_mib: 24, activation_mib: 64, forward_us: 9_000.0 };
//! let trace = transformer_trace(&shape);
//! let machine = Machine {
//!     limit_bytes: 64 << 30,
//!     host_limit_bytes: 64 << 30,
//!     link: Link {
//!         out_bytes_per_us: 55_000.0,
//!         in_bytes_per_us: 55_000.0,
//!         both_bytes_per_us: 49_000.0,
//!     },
//!     copy_submit_us: 8.0,
//! };
//! let free = simulate(&trace, &Plan::default(), &machine);
//! let half = machine.with_limit(free.resident_bytes_peak / 2);
//!
//! let made = generate(&trace, &half, &GenerateConfig::default(), &[]);
//! assert!(made.infeasible.is_none());
//! assert!(made.simulation.held_bytes_peak <= half.limit_bytes);
//! assert_eq!((made.simulation.misses, made.simulation.rescues), (0, 0));
//! assert!(made.added_us() >= Generator::new(&trace, &half).bound_us(&[]));
//!
//! // Moving blocks only when memory has run out takes longer.
//! let on_demand = simulate(&trace, &Plan::default(), &half);
//! assert!(made.simulation.step_us < on_demand.step_us);
//! ```
//!
//! # What it does not do
//!
//! It moves nothing and measures nothing. It does not know what recomputing costs; the layer above
//! brings that as options. Plans act between outermost ops only: a block that an op touches, or
//! that an op nested in it does, stays for the whole op.

#![forbid(unsafe_code)]

mod altered;
mod assemble;
mod baseline;
mod bound;
mod candidate;
mod check;
mod cost;
mod curve;
mod error;
mod family;
mod file;
mod filter;
mod generate;
mod host;
mod lanes;
mod layout;
mod machine;
mod parallel;
mod parts;
mod ranks;
mod search;
mod session;
mod simulate;
mod stage;
pub mod synthetic;
mod usage;

pub use altered::{accumulated, deferred};
pub use assemble::assemble;
pub use baseline::{Baseline, BaselineRun, SmartSwapConfig, run_baseline, run_baseline_with};
pub use candidate::{Candidate, candidates};
pub use check::{TraceFault, check_trace};
pub use cost::Cost;
pub use error::{FileError, OneLine, PlanFault, RecordedFault};
pub use family::{Family, StepSize, Unlike, peak_bytes, plan_for_member, with_state_held};
pub use file::{
    RecordedConfig, SavedPlan, load, load_bytes, load_lanes, load_steps, load_trace, read_plan,
    read_trace, save, save_bytes, save_in_parts, save_lanes, save_steps, save_trace, write_trace,
};
pub use filter::Exclusion;
pub use generate::{
    Decision, GenerateConfig, Generated, Generator, Movable, Preference, Reason, RecomputeOption,
    Replayable, Start, Treatment, generate, is_deterministic, mark_replayable, replayable_blocks,
};
pub use host::{replay_us, unlimited_us};
pub use lanes::{Departure, LaneComparison, LaneShares, Part, compare_lanes, predicted_lanes};
pub use layout::{Item, Layout, Packing, Stay, lay_out, nested, pack};
pub use machine::{Link, Machine};
pub use parallel::{both, has_spare_cores};
pub use parts::{InParts, SplitOp, in_parts, part_bytes};
pub use ranks::{Figures, Round};
pub use search::{Feedback, MarginConfig, Measured, Planner, Prediction, Proposal};
pub use session::{FinishedStep, Session};
pub use simulate::{CopySpan, ReplaySpan, Shortfall, Simulation, Simulator, Span, simulate};
pub use stage::{
    Directive, Event, FamilySummary, LevelSummary, Loop, LoopConfig, News, Sizes, Stage, Why,
};

// What the layers above need of the engine and below.
pub use swap_core::{
    AccessMode, Action, ActionKind, Allocation, ArenaConfig, BlockId, BlockIndex, Bytes, Compute,
    Config, Copy, DeviceProperties, Direction, Driver, DriverError, Engine, Error, EventHandle,
    EventKind, Held, HostCosts, HostFunction, HostMapping, HostPtr, LaneCopy, LaneOp, LaneWait,
    Lanes, Lot, LotPiece, MemoryCalls, MemoryStats, Move, OpIndex, OpName, OpStack, Operands,
    Orders, Origin, ParseBytesError, Peak, Phase, Plan, PlanBlock, PoolConfig, Recipe, RecipeUse,
    Residency, Signature, StepCounters, StepReport, StreamHandle, StreamId, SwappedBlock, Trace,
    TraceBlock, TraceEvent, TraceOp, devices,
};
