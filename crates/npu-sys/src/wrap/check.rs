//! Checks, call by call, that events order all that must be ordered.

mod checker;
mod clock;
mod foreign;
mod memory;
mod shadow;
mod violation;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use self::checker::{Checker, Work, copy_accesses, device_accesses, fill_accesses};
use super::intercept::{Call, Intercept};
use crate::driver::{Driver, HostFunction};
use crate::error::DriverError;
use crate::sync::lock;
use crate::types::{
    Access, ChunkHandle, Copy, DevicePtr, EventHandle, EventKind, HostPtr, StreamHandle, VaRange,
};

pub use self::foreign::ForeignCall;
pub use self::violation::{AccessSite, Address, Memory, Violation};

/// What a [`CheckDriver`] looks for beyond order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CheckConfig {
    /// Also refuse reads of device bytes that nothing wrote since their memory was taken. Needs
    /// every write to pass through the driver or `note_access`.
    pub uninitialised_reads: bool,
}

impl CheckConfig {
    /// Order and reachability only.
    pub const ORDER: CheckConfig = CheckConfig { uninitialised_reads: false };
    /// All that the checker can find.
    pub const ALL: CheckConfig = CheckConfig { uninitialised_reads: true };
}

/// A driver that refuses work which is not ordered.
///
/// It keeps a vector clock for the host and for each stream. An event takes its stream's clock
/// when it is recorded; `wait_event` joins it into the waiting stream; `query_event` that says
/// true and `synchronize_*` join it into the host; each submission carries the host's clock into
/// its stream. Order is judged by these alone, never by what happened to be complete, so a
/// missing wait is found in every run that passes by it, not only in the unlucky one.
///
/// | call | what must hold |
/// |---|---|
/// | `copy`, `fill`, `launch_host`, `note_access` | all bytes are mapped and accessible, or pinned; each access is ordered after earlier ones of the same bytes, unless both read; within one piece of work, writes overlap nothing (not asked of `note_access`) |
/// | `unmap` | it is one whole mapping, and the host knows that all work which used its addresses is complete |
/// | `release_chunk` | it is not mapped, and the host knows that all work which used it is complete |
/// | `free_device`, `free_pinned`, `unregister_host` | the host knows that all work which used it is complete |
/// | `free_range` | nothing is mapped there |
///
/// Addresses are resolved when work is submitted. A chunk is the same bytes at all its addresses.
/// A refused call returns an error of kind [`Race`](crate::ErrorKind::Race) if order is missing
/// and [`Invalid`](crate::ErrorKind::Invalid) otherwise, is kept in
/// [`violations`](CheckDriver::violations), and does not reach the driver behind.
///
/// # Limits
/// All host threads count as one, and what the host itself does to pinned memory is not seen.
/// A call that fails teaches nothing: memory that the host could not wait for stays in use.
/// A stream or chunk that was not created through this driver is tracked from its first use;
/// order that others make between streams is known where they tell
/// ([`note_foreign`](CheckDriver::note_foreign)); implicit order between streams, as of CUDA's
/// legacy default stream, is not known. Calls are passed on one at a time, except those that wait
/// for the device or allocate host memory; host functions must not call the driver.
#[derive(Debug)]
pub struct CheckDriver {
    inner: Arc<dyn Driver>,
    checker: Mutex<Checker>,
}

impl CheckDriver {
    /// Stands in front of `inner`, of which nothing is in use yet.
    pub fn new(inner: Arc<dyn Driver>, config: CheckConfig) -> CheckDriver {
        CheckDriver { inner, checker: Mutex::new(Checker::new(config)) }
    }

    /// What was refused, oldest first. Only the first thousand are kept.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// How many calls were refused.
    pub fn violation_count(&self) -> u64 {
        self.lock().violation_count
    }

    /// Accesses that were judged, refused ones included. A test that finds no violation should
    /// find many of these.
    pub fn accesses_checked(&self) -> u64 {
        self.lock().accesses_checked
    }

    /// Waits of streams for events that were passed on.
    pub fn waits_seen(&self) -> u64 {
        self.lock().waits_seen
    }

    fn lock(&self) -> MutexGuard<'_, Checker> {
        // What is noted is noted after the driver's own call, so a panic in there leaves it whole.
        lock(&self.checker)
    }

    /// Checks `work`, submits it, and notes it. The lock is held throughout, so that the order
    /// in which work is noted is the order in which the driver saw it.
    fn submit(
        &self,
        work: &Work,
        forward: impl FnOnce() -> Result<(), DriverError>,
    ) -> Result<(), DriverError> {
        let mut checker = self.lock();
        let admitted = checker.admit(work)?;
        forward()?;
        checker.submitted(&admitted);
        Ok(())
    }
}

impl Intercept for CheckDriver {
    type Entered = ();

    fn inner(&self) -> &dyn Driver {
        &*self.inner
    }

    /// Calls that are of no account for order pass.
    fn enter(&self, _: Call, _: fmt::Arguments<'_>) -> Result<(), DriverError> {
        Ok(())
    }

    fn wants_accesses(&self) -> bool {
        true
    }

    fn free_range(&self, range: VaRange) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_free_range(range)?;
        self.inner.free_range(range)
    }

    fn create_chunk(&self, size_bytes: u64) -> Result<ChunkHandle, DriverError> {
        let mut checker = self.lock();
        let chunk = self.inner.create_chunk(size_bytes)?;
        checker.space.add(Memory::Chunk(chunk), size_bytes);
        Ok(chunk)
    }

    fn release_chunk(&self, chunk: ChunkHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_give_back("release_chunk", Memory::Chunk(chunk))?;
        self.inner.release_chunk(chunk)?;
        checker.space.remove(Memory::Chunk(chunk));
        Ok(())
    }

    fn map(&self, range: VaRange, chunk: ChunkHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.map(range, chunk)?;
        checker.space.map(range, chunk);
        Ok(())
    }

    fn set_access(&self, range: VaRange) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.set_access(range)?;
        checker.space.set_access(range);
        Ok(())
    }

    unsafe fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_unmap(range)?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.unmap(range) }?;
        checker.space.unmap(range);
        Ok(())
    }

    fn allocate_device(&self, size_bytes: u64) -> Result<DevicePtr, DriverError> {
        let mut checker = self.lock();
        let start = self.inner.allocate_device(size_bytes)?;
        checker.space.add_plain(VaRange { start, size_bytes });
        Ok(start)
    }

    unsafe fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_give_back("free_device", Memory::Plain(start))?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.free_device(start) }?;
        checker.space.remove(Memory::Plain(start));
        Ok(())
    }

    fn allocate_pinned(&self, size_bytes: u64) -> Result<HostPtr, DriverError> {
        let start = self.inner.allocate_pinned(size_bytes)?;
        self.lock().space.add(Memory::Host(start), size_bytes);
        Ok(start)
    }

    unsafe fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_give_back("free_pinned", Memory::Host(start))?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.free_pinned(start) }?;
        checker.space.remove(Memory::Host(start));
        Ok(())
    }

    unsafe fn register_host(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.register_host(start, size_bytes) }?;
        self.lock().space.add(Memory::Host(start), size_bytes);
        Ok(())
    }

    unsafe fn unregister_host(&self, start: HostPtr) -> Result<(), DriverError> {
        let mut checker = self.lock();
        checker.may_give_back("unregister_host", Memory::Host(start))?;
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.inner.unregister_host(start) }?;
        checker.space.remove(Memory::Host(start));
        Ok(())
    }

    fn device_pointer(&self, start: HostPtr) -> Result<DevicePtr, DriverError> {
        let mut checker = self.lock();
        let device = self.inner.device_pointer(start)?;
        checker.space.map_host(start, device);
        Ok(device)
    }

    fn create_stream(&self) -> Result<StreamHandle, DriverError> {
        let mut checker = self.lock();
        let stream = self.inner.create_stream()?;
        checker.clocks.add_stream(stream);
        Ok(stream)
    }

    fn destroy_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.destroy_stream(stream)?;
        checker.clocks.remove_stream(stream);
        Ok(())
    }

    fn synchronize_stream(&self, stream: StreamHandle) -> Result<(), DriverError> {
        // Other threads may submit more while this one waits: only what came before is known.
        let clock = self.lock().clocks.of_stream(stream);
        self.inner.synchronize_stream(stream)?;
        self.lock().clocks.host_learns(&clock);
        Ok(())
    }

    fn create_event(&self, kind: EventKind) -> Result<EventHandle, DriverError> {
        let mut checker = self.lock();
        let event = self.inner.create_event(kind)?;
        checker.clocks.remove_event(event);
        Ok(event)
    }

    fn destroy_event(&self, event: EventHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.destroy_event(event)?;
        checker.clocks.remove_event(event);
        Ok(())
    }

    fn record_event(&self, event: EventHandle, stream: StreamHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.record_event(event, stream)?;
        checker.clocks.record(event, stream);
        Ok(())
    }

    fn wait_event(&self, stream: StreamHandle, event: EventHandle) -> Result<(), DriverError> {
        let mut checker = self.lock();
        self.inner.wait_event(stream, event)?;
        checker.clocks.wait(stream, event);
        checker.waits_seen += 1;
        Ok(())
    }

    fn query_event(&self, event: EventHandle) -> Result<bool, DriverError> {
        let mut checker = self.lock();
        let complete = self.inner.query_event(event)?;
        if complete {
            let clock = checker.clocks.of_event(event);
            checker.clocks.host_learns(&clock);
        }
        Ok(complete)
    }

    fn synchronize_event(&self, event: EventHandle) -> Result<(), DriverError> {
        // Another thread may record it anew meanwhile: only what it stood for is known.
        let clock = self.lock().clocks.of_event(event);
        self.inner.synchronize_event(event)?;
        self.lock().clocks.host_learns(&clock);
        Ok(())
    }

    unsafe fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        let accesses = copy_accesses(copy);
        let work = Work { call: "copy", stream, operation: "copy", accesses, disjoint: true };
        self.submit(&work, || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.copy(copy, stream) }
        })
    }

    unsafe fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let accesses = fill_accesses(target, size_bytes);
        let work = Work { call: "fill", stream, operation: "fill", accesses, disjoint: true };
        self.submit(&work, || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.fill(target, size_bytes, value, stream) }
        })
    }

    unsafe fn launch_host(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let accesses = device_accesses(&function.accesses);
        let operation = function.name;
        let work = Work { call: "launch_host", stream, operation, accesses, disjoint: true };
        self.submit(&work, || {
            // SAFETY: the caller's promise is passed on unchanged.
            unsafe { self.inner.launch_host(function, stream) }
        })
    }

    fn note_access(&self, stream: StreamHandle, accesses: &[Access]) -> Result<(), DriverError> {
        let work = Work {
            call: "note_access",
            stream,
            operation: "note_access",
            accesses: device_accesses(accesses),
            disjoint: false,
        };
        self.submit(&work, || self.inner.note_access(stream, accesses))
    }
}
