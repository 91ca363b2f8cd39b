//! Buffers and submissions in one line each, for any driver.

use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use npu_sys::devices::{HostDriver, Mode, Order};
use npu_sys::{
    Access, AccessMode, ChunkHandle, Copy, DeviceProperties, DevicePtr, Driver, DriverError,
    ErrorKind, EventHandle, EventKind, HostFunction, HostPtr, Operands, StreamHandle, VaRange,
};

/// How a driver under test runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Time {
    /// By itself: work goes on while the host does other things.
    Real,
    /// On a virtual clock that moves when the host waits.
    Virtual,
    /// On a virtual clock, and work may run ahead of it.
    Seeded,
}

impl Time {
    pub(crate) fn of(mode: Mode) -> Time {
        match mode {
            Mode::Threads => Time::Real,
            Mode::Lockstep(Order::ByTime) => Time::Virtual,
            Mode::Lockstep(Order::Seeded(_)) => Time::Seeded,
        }
    }
}

/// A driver under test.
pub(crate) struct Rig<'a> {
    pub(crate) driver: &'a dyn Driver,
    pub(crate) properties: DeviceProperties,
    /// The driver's granularity.
    pub(crate) unit: u64,
    pub(crate) time: Time,
    host: Option<&'a HostDriver>,
}

/// Device memory that can be used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) range: VaRange,
    /// `None` on a device without virtual memory.
    chunk: Option<ChunkHandle>,
}

impl Buffer {
    pub(crate) fn start(&self) -> DevicePtr {
        self.range.start
    }

    pub(crate) fn chunk(&self) -> ChunkHandle {
        self.chunk.expect("tests of chunks run where there are some")
    }

    pub(crate) fn access(&self, mode: AccessMode) -> Access {
        Access { start: self.range.start, size_bytes: self.range.size_bytes, mode }
    }
}

/// Holds the work of one stream back, as far as the mode allows it.
pub(crate) struct Hold {
    release: Option<Sender<()>>,
}

/// Virtual time for which held work takes.
pub(crate) const HOLD_US: f64 = 1e6;

impl Hold {
    pub(crate) fn release(self) {
        if let Some(release) = self.release {
            release.send(()).unwrap();
        }
    }
}

impl<'a> Rig<'a> {
    pub(crate) fn new(driver: &'a dyn Driver, time: Time) -> Rig<'a> {
        let properties = driver.properties();
        let unit = properties.granularity_bytes;
        Rig { driver, properties, unit, time, host: None }
    }

    pub(crate) fn of_host(host: &'a HostDriver) -> Rig<'a> {
        Rig { host: Some(host), ..Rig::new(host, Time::of(host.config().mode)) }
    }

    /// The clock of a host driver.
    pub(crate) fn host_clock_us(&self) -> Option<f64> {
        self.host.filter(|_| self.time != Time::Real).map(HostDriver::now_us)
    }

    pub(crate) fn buffer(&self, size_bytes: u64) -> Buffer {
        if !self.properties.has_virtual_memory {
            let start = self.driver.allocate_device(size_bytes).unwrap();
            return Buffer { range: VaRange { start, size_bytes }, chunk: None };
        }
        let range = self.driver.reserve(size_bytes).unwrap();
        let chunk = self.driver.create_chunk(size_bytes).unwrap();
        self.map(range, chunk);
        Buffer { range, chunk: Some(chunk) }
    }

    pub(crate) fn map(&self, range: VaRange, chunk: ChunkHandle) {
        self.driver.map(range, chunk).unwrap();
        self.driver.set_access(range).unwrap();
    }

    /// Call it only when all work on the range is complete.
    pub(crate) fn unmap(&self, range: VaRange) -> Result<(), DriverError> {
        // SAFETY: the tests synchronize before; misuse that is tested here fails without effect.
        unsafe { self.driver.unmap(range) }
    }

    pub(crate) fn drop_buffer(&self, buffer: Buffer) {
        let Some(chunk) = buffer.chunk else {
            return self.free_device(buffer.start()).unwrap();
        };
        self.unmap(buffer.range).unwrap();
        self.driver.release_chunk(chunk).unwrap();
        self.driver.free_range(buffer.range).unwrap();
    }

    /// Call it only when all work on the memory is complete.
    pub(crate) fn free_device(&self, start: DevicePtr) -> Result<(), DriverError> {
        // SAFETY: the tests synchronize before; misuse that is tested here fails without effect.
        unsafe { self.driver.free_device(start) }
    }

    pub(crate) fn pinned(&self, bytes: &[u8]) -> HostPtr {
        let start = self.driver.allocate_pinned(bytes.len() as u64).unwrap();
        let address = std::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
        // SAFETY: fresh memory of that length, which nobody else knows.
        unsafe { address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        start
    }

    /// Call it only when all work on the memory is complete.
    pub(crate) fn host_bytes(&self, start: HostPtr, size_bytes: u64) -> Vec<u8> {
        let address = std::ptr::with_exposed_provenance::<u8>(start.0 as usize);
        // SAFETY: pinned memory of that length, on which no work is left.
        unsafe { std::slice::from_raw_parts(address, size_bytes as usize) }.to_vec()
    }

    /// Call it only when all work on the memory is complete.
    pub(crate) fn free_pinned(&self, start: HostPtr) -> Result<(), DriverError> {
        // SAFETY: the tests synchronize before; misuse that is tested here fails without effect.
        unsafe { self.driver.free_pinned(start) }
    }

    /// The memory must live until `unregister`.
    pub(crate) fn register(&self, start: HostPtr, size_bytes: u64) -> Result<(), DriverError> {
        // SAFETY: the tests keep the memory; misuse that is tested here fails without effect.
        unsafe { self.driver.register_host(start, size_bytes) }
    }

    pub(crate) fn unregister(&self, start: HostPtr) -> Result<(), DriverError> {
        // SAFETY: the tests synchronize before; misuse that is tested here fails without effect.
        unsafe { self.driver.unregister_host(start) }
    }

    pub(crate) fn copy(&self, copy: Copy, stream: StreamHandle) -> Result<(), DriverError> {
        // SAFETY: the tests keep both places until they synchronize, and order what conflicts.
        unsafe { self.driver.copy(copy, stream) }
    }

    pub(crate) fn copy_out(
        &self,
        source: DevicePtr,
        target: HostPtr,
        size: u64,
        stream: StreamHandle,
    ) {
        self.copy(Copy::DeviceToHost { source, target, size_bytes: size }, stream).unwrap();
    }

    pub(crate) fn copy_in(
        &self,
        source: HostPtr,
        target: DevicePtr,
        size: u64,
        stream: StreamHandle,
    ) {
        self.copy(Copy::HostToDevice { source, target, size_bytes: size }, stream).unwrap();
    }

    pub(crate) fn fill(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        value: u8,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: as for `copy`.
        unsafe { self.driver.fill(target, size_bytes, value, stream) }
    }

    pub(crate) fn launch(
        &self,
        function: HostFunction,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        // SAFETY: as for `copy`.
        unsafe { self.driver.launch_host(function, stream) }
    }

    pub(crate) fn run(
        &self,
        stream: StreamHandle,
        accesses: Vec<Access>,
        cost_us: f64,
        body: impl FnOnce(&Operands<'_>) + Send + 'static,
    ) {
        let function = HostFunction { name: "test", accesses, cost_us, body: Box::new(body) };
        self.launch(function, stream).unwrap();
    }

    /// Keeps the stream busy until the result is released or, in lockstep, for a long time.
    pub(crate) fn hold(&self, stream: StreamHandle) -> Hold {
        if self.time == Time::Real {
            let (release, held): (Sender<()>, Receiver<()>) = channel();
            self.run(stream, vec![], HOLD_US, move |_| held.recv().unwrap());
            Hold { release: Some(release) }
        } else {
            self.run(stream, vec![], HOLD_US, |_| {});
            Hold { release: None }
        }
    }

    pub(crate) fn stream(&self) -> StreamHandle {
        self.driver.create_stream().unwrap()
    }

    pub(crate) fn recorded(&self, kind: EventKind, stream: StreamHandle) -> EventHandle {
        let event = self.driver.create_event(kind).unwrap();
        self.driver.record_event(event, stream).unwrap();
        event
    }

    pub(crate) fn destroy(
        &self,
        streams: impl IntoIterator<Item = StreamHandle>,
        events: impl IntoIterator<Item = EventHandle>,
    ) {
        streams.into_iter().for_each(|stream| self.driver.destroy_stream(stream).unwrap());
        events.into_iter().for_each(|event| self.driver.destroy_event(event).unwrap());
    }

    /// Waits for these streams.
    pub(crate) fn synchronize(&self, streams: impl IntoIterator<Item = StreamHandle>) {
        streams.into_iter().for_each(|stream| self.driver.synchronize_stream(stream).unwrap());
    }

    /// The bytes at a device address, after all work is complete.
    pub(crate) fn device_bytes(&self, start: DevicePtr, size_bytes: u64) -> Vec<u8> {
        let stream = self.stream();
        let target = self.pinned(&vec![0; size_bytes as usize]);
        self.copy_out(start, target, size_bytes, stream);
        self.driver.synchronize_stream(stream).unwrap();
        let bytes = self.host_bytes(target, size_bytes);
        self.free_pinned(target).unwrap();
        self.driver.destroy_stream(stream).unwrap();
        bytes
    }
}

/// Asserts that a call failed in the given way.
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, DriverError>, kind: ErrorKind) {
    match result {
        Ok(value) => panic!("{value:?} where {kind:?} was due"),
        Err(error) => assert_eq!(error.kind, kind, "{error}"),
    }
}

/// What host functions tell the test, in the order in which they ran.
#[derive(Clone, Default, Debug)]
pub(crate) struct Log(Arc<Mutex<Vec<u32>>>);

impl Log {
    pub(crate) fn add(&self, value: u32) {
        self.0.lock().unwrap().push(value);
    }

    pub(crate) fn entries(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn set(&self) -> BTreeSet<u32> {
        self.entries().into_iter().collect()
    }
}
