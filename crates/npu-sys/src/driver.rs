//! The contract between the engine and a device.

use std::fmt;
use std::sync::OnceLock;
use std::time::Instant;

use crate::error::DriverError;
use crate::types::{
    Access, ChunkHandle, Copy, DeviceProperties, DevicePtr, EventHandle, EventKind, HostPtr,
    MemoryInfo, StreamHandle, VaRange,
};

pub use crate::operands::Operands;

/// A function that runs on the host in stream order.
///
/// On the host driver it is the device's kernel; there it gets the memory it declared as slices.
pub struct HostFunction {
    /// Shown in timelines.
    pub name: &'static str,
    /// Device bytes that `body` uses, in the order in which [`Operands`] numbers them.
    pub accesses: Vec<Access>,
    /// How long it takes on a device with a virtual clock, in microseconds.
    pub cost_us: f64,
    /// The work.
    pub body: Box<dyn FnOnce(&Operands<'_>) + Send>,
}

impl fmt::Debug for HostFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostFunction")
            .field("name", &self.name)
            .field("accesses", &self.accesses)
            .field("cost_us", &self.cost_us)
            .finish_non_exhaustive()
    }
}

/// One device.
///
/// - Calls may come from any thread; the driver makes its context current where it must.
/// - Nothing here waits for the device except `synchronize_*`, and a launch on a full queue.
/// - Memory calls (`map`, `unmap`, `release_chunk`) take effect at once and are not stream-ordered.
/// - A failed call leaves everything as it was.
/// - The driver validates only what it can see cheaply. What it cannot is under `# Safety`.
pub trait Driver: Send + Sync + fmt::Debug {
    /// Facts about the device.
    fn properties(&self) -> DeviceProperties;

    /// Free and total physical bytes right now.
    fn memory_info(&self) -> Result<MemoryInfo, DriverError>;

    /// Reserves `size_bytes` of addresses, with nothing behind them.
    ///
    /// `size_bytes` is a positive multiple of the granularity, here and in all memory calls.
    fn reserve(&self, size_bytes: u64) -> Result<VaRange, DriverError>;

    /// Gives addresses back. Nothing may be mapped in them.
    fn free_range(&self, range: VaRange) -> Result<(), DriverError>;

    /// Takes physical memory. Its bytes are undefined.
    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError>;

    /// Gives physical memory back. It must not be mapped.
    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError>;

    /// Puts the whole chunk behind `range`, which must be exactly as long and empty.
    /// A chunk may be mapped at several addresses; all see the same bytes.
    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError>;

    /// Lets the device read and write `range`, which must be mapped. Free where mapping suffices.
    fn set_access(&self, range: VaRange) -> Result<(), DriverError>;

    /// Takes the chunk from behind `range`, which is one whole mapping.
    ///
    /// # Safety
    /// All work that uses the range's addresses has completed, and the host knows it (it waited
    /// for, or queried, an event behind that work).
    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError>;

    /// Takes device memory together with an address for it, for devices without virtual memory.
    /// Its bytes are undefined.
    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        let text = format!("{size_bytes} bytes: this driver gives memory as chunks only");
        Err(DriverError::unsupported("allocate_device", text))
    }

    /// Frees memory that `allocate_device` returned.
    ///
    /// # Safety
    /// All work that uses it has completed, and the host knows it.
    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        let text = format!("{start:?}: this driver gives memory as chunks only");
        Err(DriverError::unsupported("free_device", text))
    }

    /// Allocates pinned host memory, page aligned, bytes undefined. Forked children do not get it:
    /// what they touch of it faults.
    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError>;

    /// Frees memory that `allocate_pinned` returned.
    ///
    /// # Safety
    /// All work that uses it has completed and no reference to it is left.
    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError>;

    /// Pins host memory that the caller owns. `start` and `size_bytes` are page aligned.
    /// The system copies pinned memory for each forked child, unless the caller keeps it from
    /// them as [`HostPages`](crate::HostPages) do.
    ///
    /// # Safety
    /// The memory stays allocated until `unregister_host`.
    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError>;

    /// Ends `register_host`.
    ///
    /// # Safety
    /// All work that uses the memory has completed.
    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError>;

    /// The address by which kernels reach pinned or registered host memory.
    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError>;

    /// Creates a stream.
    fn create_stream(&self) -> Result<StreamHandle, DriverError>;

    /// Destroys a stream; work already submitted still runs.
    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// Blocks the host until all work submitted to the stream is complete.
    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError>;

    /// Whether somebody captures what the stream is given, to run it later: then nothing of it
    /// runs, and nobody can wait for it or record an event there.
    fn is_captured(&self, _stream: StreamHandle) -> Result<bool, DriverError> {
        Ok(false)
    }

    /// Creates an event. Until recorded it counts as complete.
    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError>;

    /// Destroys an event; waits already submitted are not affected.
    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError>;

    /// Makes `event` stand for all work submitted to `stream` so far. Earlier waits on the event
    /// keep what they waited for.
    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError>;

    /// Holds later work of `stream` back until what `event` stands for now is complete.
    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError>;

    /// Whether what `event` stands for is complete. Never blocks.
    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError>;

    /// Blocks the host until what `event` stands for is complete.
    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError>;

    /// Device time from one completed timing event to another, in microseconds: below 0 if `end`
    /// came first.
    fn elapsed_us(&self, start: EventHandle, end: EventHandle) -> Result<f64, DriverError>;

    /// Copies in stream order.
    ///
    /// # Safety
    /// Both places are valid for `size_bytes` from now until the copy is complete, and no
    /// unordered work conflicts with it.
    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError>;

    /// Sets each byte to `value` in stream order.
    ///
    /// # Safety
    /// As for [`copy`](Driver::copy).
    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// Runs a host function in stream order.
    ///
    /// Devices whose memory the host cannot address refuse functions that declare accesses.
    ///
    /// # Safety
    /// Each declared access is valid and mapped until the function has run, accesses that write
    /// overlap no other access of the function, and no unordered work conflicts with it.
    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError>;

    /// Tells the driver that work launched by others on `stream` uses these bytes.
    ///
    /// Only wrappers that check or record care; a device already knows.
    fn note_access(&self, _stream: StreamHandle, _accesses: &[Access]) -> Result<(), DriverError> {
        Ok(())
    }

    /// The clock of the host, in microseconds from any moment. It goes as that of timing events:
    /// on a device with a virtual clock it is that one.
    #[allow(clippy::disallowed_methods)] // This is where time comes from.
    fn now_us(&self) -> f64 {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed().as_secs_f64() * 1e6
    }

    /// Whether `note_access` does anything, so that callers need not prepare its arguments.
    fn wants_accesses(&self) -> bool {
        false
    }
}
