//! Device drivers behind one object-safe trait.
//!
//! [`Driver`] is the contract: reserve addresses, create physical memory, map one to the other,
//! pin host memory, copy and run on streams, order with events. The embedded [`HostDriver`] is a
//! software device that keeps the whole contract, so everything above it runs and is tested on a
//! machine without an accelerator.
//!
//! | word | meaning |
//! |---|---|
//! | chunk | a piece of physical device memory, held by a [`ChunkHandle`] |
//! | range | reserved device addresses, a [`VaRange`], with nothing behind them until mapped |
//! | stream | a queue whose work runs in order, a [`StreamHandle`] |
//! | event | a point in a stream's work, an [`EventHandle`] |

mod driver;
mod error;
mod operands;
mod types;
mod wrap;

pub use driver::{Driver, HostFunction, Operands};
pub use error::{DriverError, ErrorKind};
pub use types::{
    Access, AccessMode, Bytes, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle,
    EventKind, HostPtr, MemoryInfo, ParseBytesError, StreamHandle, VaRange,
};
pub use wrap::{
    AccessSite, CheckConfig, CheckDriver, FALLIBLE_CALLS, FaultDriver, FaultPlan, Lasting, Memory,
    Place, RecordDriver, RecordedCall, Violation,
};
