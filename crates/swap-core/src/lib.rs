//! Moves memory in time: residency, the op stack, recording, and the execution of plans.
//!
//! An [`Engine`] owns a device's memory. Whoever runs operators tells it, through an [`OpStack`],
//! when an operator begins, which blocks it touches, and when it ends. In return each touched
//! block is on the device and ordered before the operator's work, however small the cap is: others
//! leave for the host, or are dropped and made again, and come back when they are touched.
//! Addresses never change.
//!
//! | word | meaning |
//! |---|---|
//! | op | one operator call between begin and end; ops nest; an op touches blocks |
//! | step | one training iteration |
//! | trace | a recorded step, a [`Trace`]: ops with device times, touches, allocations, frees |
//! | plan | what to do at which op, a [`Plan`]: swap out, swap in, discard, replay |
//! | miss | a touch of a block that was not resident and had not been asked for |
//! | rescue | an allocation that found no memory and evicts somebody on the spot |
//! | stall | device time that compute spends waiting for a copy |
//!
//! ```text
//! Resident --swap out--> Leaving --copied--> Away --swap in--> Arriving --copied--> Resident
//!     \--discard--> Discarded --replay of the producer--> Resident
//! ```
//!
//! Three rules carry it. Residency is enforced by the hooks, so any plan, even a wrong one, is
//! safe. The cap holds at every driver call. The host does not wait for the device: streams wait
//! for events; the exceptions are counted in [`StepCounters::host_waits`].
//!
//! # Example
//!
//! Four tensors of 1 MiB on a device of 2 MiB:
//!
//! ```
//! use swap_core::devices::{HostConfig, HostDriver};
//! use swap_core::{AccessMode, ArenaConfig, Compute, Config, Engine, OpName, PoolConfig};
//!
//! const MIB: u64 = 1 << 20;
//! const FILL: OpName = OpName::new("fill");
//! const CHECK: OpName = OpName::new("check");
//!
//! let device = HostDriver::new(HostConfig::threads(2 * MIB))?;
//! let config = Config {
//!     pool: PoolConfig {
//!         limit_bytes: 2 * MIB,
//!         swap_threshold_bytes: MIB,
//!         segment_bytes: MIB,
//!     },
//!     arena: ArenaConfig { region_bytes: 4 * MIB, ..ArenaConfig::new(8 * MIB) },
//!     compute: Compute::Own,
//!     record: false,
//! };
//! let engine = Engine::new(device.clone(), config)?;
//! let mut ops = engine.op_stack();
//!
//! let mut tensors = Vec::new();
//! for value in 0..4_u64 {
//!     ops.begin(FILL)?;
//!     let tensor = ops.allocate(MIB, "tensor")?;
//!     ops.touch(tensor, AccessMode::Write)?;
//!     ops.launch(10.0, move |operands| operands.write::<u64>(0).fill(value))?;
//!     ops.end()?;
//!     tensors.push(tensor);
//! }
//! for (value, &tensor) in (0..4_u64).zip(&tensors) {
//!     ops.begin(CHECK)?;
//!     ops.touch(tensor, AccessMode::Read)?;
//!     ops.launch(10.0, move |operands| {
//!         assert!(operands.read::<u64>(0).iter().all(|&found| found == value));
//!     })?;
//!     ops.end()?;
//! }
//! engine.synchronize()?;
//! assert!(device.ledger().chunk_bytes_peak <= 2 * MIB);
//! assert!(device.ledger().copied_in_bytes > 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What it does not do
//!
//! It decides nothing: plans come from above, and only the victim of a rescue is its choice. It
//! orders launches on the same block, but ops that it is only told of are ordered by their owner
//! where they run on several streams. Memory that no op touches as a block, such as a library's
//! workspace, is outside.
//!
//! # Safety model
//!
//! `ops.rs` and `copies.rs` hold the unsafe calls of the driver. They are sound because a touched
//! block is pinned, mapped and ordered until its op ends, and its use is noted then; and because
//! `launches.rs` puts each launch behind those that it is in conflict with.

mod captures;
mod copies;
mod core;
mod engine;
mod entries;
mod entry;
mod error;
mod executor;
mod follow;
mod hand_over;
mod holds;
mod host_memory;
mod ladder;
mod lanes;
mod launches;
mod name;
mod ops;
mod orders;
mod outside;
mod placing;
mod plan;
mod recipe;
mod recorder;
mod recording;
mod report;
mod residency;
mod step;
mod suspend;
mod trace;
mod uses;

pub use engine::{Compute, Config, Engine, HostStats};
pub use entry::{Allocation, Residency};
pub use error::{Error, OutOfMemory};
pub use holds::Held;
pub use lanes::{LaneCopy, LaneOp, LaneReplay, LaneWait, Lanes};
pub use name::OpName;
pub use ops::OpStack;
pub use orders::Orders;
pub use plan::{Action, ActionKind, Phase, Plan, PlanBlock};
pub use recipe::{Recipe, RecipeUse};
pub use report::{Direction, MEMORY_CALLS_IGNORED, Move, StepCounters, StepReport};
pub use trace::{
    BlockIndex, HostCosts, OpIndex, Origin, Signature, Trace, TraceBlock, TraceEvent, TraceOp,
};
// What the layers above need of memory and drivers.
pub use vmem::{
    Access, AccessMode, ArenaConfig, BlockId, Bytes, ChunkCache, Copy, DeviceProperties, DevicePtr,
    Driver, DriverError, ErrorKind, EventHandle, EventKind, Fit, HostFunction, HostMapping,
    HostPtr, Lot, LotPiece, MemoryCalls, MemoryError, MemoryInfo, MemoryStats, Operands,
    ParseBytesError, Peak, PoolConfig, Room, SaveError, Site, StreamHandle, StreamId, SwappedBlock,
    devices, save_file,
};
