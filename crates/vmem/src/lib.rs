//! Device and host memory whose addresses stay while the memory behind them moves.
//!
//! | word | meaning |
//! |---|---|
//! | chunk | a piece of physical device memory |
//! | block | an allocation: an address, fixed from allocate to free, and at most one chunk behind it |
//! | swappable | a block at or above the swap threshold: it has addresses and a chunk of its own |
//! | segment | a large chunk from which smaller blocks are carved; it stays |
//! | slot | the place in the pinned host arena that holds a block's bytes while it is away |
//! | region | a large piece of pinned host memory from which slots are carved |
//! | swapped memory | host memory that the device addresses: slots with a device address |
//! | point | the end of some piece of work of a stream |
//! | requested, allocated, active, reserved | bytes asked for; in live blocks; with memory behind them; taken from the driver |
//!
//! ```text
//!   block's range  [ mapped / nothing / another chunk soon to be unmapped ]
//!                      |
//!   chunk          [ physical bytes ]---- home range: always mapped, copies run here
//! ```
//!
//! This crate decides nothing about time: [`Pool::detach`] and [`Pool::attach`] are the two moves
//! that the layer above composes into swapping. Reuse is ordered by stream waits.
//!
//! # Example
//!
//! Two blocks share one chunk, one after the other, and each keeps its address:
//!
//! ```
//! use vmem::devices::{HostConfig, HostDriver};
//! use vmem::{ArenaConfig, DeviceMemory, PoolConfig, Uses};
//!
//! const MIB: u64 = 1 << 20;
//! let device = HostDriver::new(HostConfig::threads(MIB))?;
//! let pool =
//!     PoolConfig { limit_bytes: MIB, swap_threshold_bytes: MIB, segment_bytes: MIB };
//! let arena = ArenaConfig { region_bytes: MIB, ..ArenaConfig::new(MIB) };
//! let mut memory = DeviceMemory::new(device.clone(), pool, arena)?;
//! let stream = memory.streams.create()?;
//!
//! let first = memory.pool.allocate(&mut memory.streams, MIB, stream)?;
//! let address = memory.pool.address(first);
//! assert!(memory.pool.allocate(&mut memory.streams, MIB, stream).is_err(), "the cap is full");
//!
//! memory.pool.detach(first, Uses::default());
//! let second = memory.pool.allocate(&mut memory.streams, MIB, stream)?;
//! assert_eq!(memory.pool.address(first), address);
//! assert_ne!(memory.pool.address(second), address);
//! assert_eq!(device.ledger().chunk_count, 1);
//!
//! memory.close()?;
//! assert_eq!(device.ledger().chunk_count, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Safety model
//!
//! The pool and the arena unmap, release and unpin only what [`Uses`] say is no longer in use.
//! Whoever submits work notes it with [`Pool::note_use`], or gives it as the uses of a slot.

mod arena;
mod block;
mod block_table;
mod budget;
mod carver;
mod chunk_cache;
mod error;
mod lot;
mod memory;
mod point;
mod pool;
mod probe;
mod saving;
mod stats;
mod streams;
mod swapped;
mod tensor;

// What the layers above need of the drivers.
pub use npu_sys::{
    Access, AccessMode, Bytes, ChunkHandle, Copy, DeviceProperties, DevicePtr, Driver, DriverError,
    ErrorKind, EventHandle, EventKind, HostFunction, HostMapping, HostPtr, MemoryInfo, Operands,
    ParseBytesError, StreamHandle, VaRange,
};

pub use arena::{Arena, ArenaConfig, Slot};
pub use block::{BlockId, Departure};
pub use budget::{BudgetError, VirtualBudget};
pub use chunk_cache::{ChunkCache, Fit, Room};
pub use error::{HostShortage, MemoryError};
pub use lot::{Lot, LotPiece};
pub use memory::DeviceMemory;
pub use point::{Point, Site, StreamId, Uses};
pub use pool::{Pool, PoolConfig};
pub use saving::{SaveError, save_file};
pub use stats::{MemoryCalls, MemoryStats, Peak, SwappedStats};
pub use streams::{Stall, Streams};
pub use swapped::{SwappedBlock, SwappedMemory};
pub use tensor::{
    Dtype, Element, FileProblem, Place, Scalar, SwapTensor, TensorDevice, TensorError, TensorFile,
    load, save,
};

/// The devices of the layer below, and what can be tried and measured on one.
pub mod devices {
    pub use npu_sys::devices::*;

    pub use crate::probe::{
        CheckedStep, LinkRates, MapCosts, check_device, measure_link, measure_map,
    };
}
