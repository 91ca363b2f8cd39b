//! Buffers and submissions in one line each.

use std::path::Path;
use std::sync::Arc;

use crate::acl::AclDriver;
use crate::driver::{Driver, HostFunction, Operands};
use crate::error::{DriverError, ErrorKind};
use crate::types::{Access, ChunkHandle, Copy, DevicePtr, HostPtr, StreamHandle, VaRange};

/// An open device, and one stream.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) driver: Arc<AclDriver>,
    pub(super) stream: StreamHandle,
    pub(super) unit: u64,
}

/// Device memory that can be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    pub(super) start: DevicePtr,
    size_bytes: u64,
    chunk: Option<ChunkHandle>,
}

impl Rig {
    /// Opens a device of the stand-in, or of a part of it.
    pub(super) fn device(library: &Path, index: u32) -> Arc<AclDriver> {
        // SAFETY: it does what the vendor's library does.
        unsafe { AclDriver::open_from(library, index) }.unwrap()
    }

    pub(super) fn open(library: &Path) -> Rig {
        let driver = Rig::device(library, 0);
        let stream = driver.create_stream().unwrap();
        let unit = driver.properties().granularity_bytes;
        Rig { driver, stream, unit }
    }

    pub(super) fn buffer(&self, size_bytes: u64) -> Buffer {
        if !self.driver.properties().has_virtual_memory {
            let start = self.driver.allocate_device(size_bytes).unwrap();
            return Buffer { start, size_bytes, chunk: None };
        }
        let range = self.driver.reserve(size_bytes).unwrap();
        let chunk = self.driver.create_chunk(size_bytes).unwrap();
        self.driver.map(range, chunk).unwrap();
        self.driver.set_access(range).unwrap();
        Buffer { start: range.start, size_bytes, chunk: Some(chunk) }
    }

    pub(super) fn drop_buffer(&self, buffer: Buffer) {
        let Some(chunk) = buffer.chunk else {
            // SAFETY: the tests synchronize before.
            return unsafe { self.driver.free_device(buffer.start) }.unwrap();
        };
        let range = VaRange { start: buffer.start, size_bytes: buffer.size_bytes };
        // SAFETY: the tests synchronize before.
        unsafe { self.driver.unmap(range) }.unwrap();
        self.driver.release_chunk(chunk).unwrap();
        self.driver.free_range(range).unwrap();
    }

    pub(super) fn pinned(&self, bytes: &[u8]) -> HostPtr {
        let start = self.driver.allocate_pinned(bytes.len() as u64).unwrap();
        write(start, bytes);
        start
    }

    pub(super) fn free_pinned(&self, start: HostPtr) {
        // SAFETY: the tests synchronize before.
        unsafe { self.driver.free_pinned(start) }.unwrap();
    }

    pub(super) fn try_copy(&self, copy: Copy) -> Result<(), DriverError> {
        // SAFETY: the tests keep both places until they synchronize, and use one stream.
        unsafe { self.driver.copy(copy, self.stream) }
    }

    pub(super) fn copy_in(&self, source: HostPtr, target: DevicePtr, size_bytes: u64) {
        self.try_copy(Copy::HostToDevice { source, target, size_bytes }).unwrap();
    }

    pub(super) fn copy_out(&self, source: DevicePtr, target: HostPtr, size_bytes: u64) {
        self.try_copy(Copy::DeviceToHost { source, target, size_bytes }).unwrap();
    }

    pub(super) fn copy_within(&self, source: DevicePtr, target: DevicePtr, size_bytes: u64) {
        self.try_copy(Copy::DeviceToDevice { source, target, size_bytes }).unwrap();
    }

    pub(super) fn fill(&self, target: DevicePtr, size_bytes: u64, value: u8) {
        // SAFETY: as for `try_copy`.
        unsafe { self.driver.fill(target, size_bytes, value, self.stream) }.unwrap();
    }

    pub(super) fn run(
        &self,
        stream: StreamHandle,
        accesses: Vec<Access>,
        body: impl FnOnce(&Operands<'_>) + Send + 'static,
    ) -> Result<(), DriverError> {
        let function = HostFunction { name: "test", accesses, cost_us: 0.0, body: Box::new(body) };
        // SAFETY: as for `try_copy`.
        unsafe { self.driver.launch_host(function, stream) }
    }

    pub(super) fn synchronize(&self) {
        self.driver.synchronize_stream(self.stream).unwrap();
    }

    /// The bytes at a device address, after all work of the stream.
    pub(super) fn bytes(&self, start: DevicePtr, size_bytes: u64) -> Vec<u8> {
        let target = self.pinned(&vec![0; size_bytes as usize]);
        self.copy_out(start, target, size_bytes);
        self.synchronize();
        let bytes = read(target, size_bytes);
        self.free_pinned(target);
        bytes
    }
}

/// Writes to host memory that no work uses.
pub(super) fn write(start: HostPtr, bytes: &[u8]) {
    let address = std::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
    // SAFETY: the tests give memory of that length, on which no work is left.
    unsafe { address.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Reads host memory that no work uses.
pub(super) fn read(start: HostPtr, size_bytes: u64) -> Vec<u8> {
    let address = std::ptr::with_exposed_provenance::<u8>(start.0 as usize);
    // SAFETY: as for `write`.
    unsafe { std::slice::from_raw_parts(address, size_bytes as usize) }.to_vec()
}

/// Bytes that say where they are.
pub(super) fn pattern(size_bytes: u64, seed: u64) -> Vec<u8> {
    (0..size_bytes).map(|index| ((index * 131 + seed * 17) % 251) as u8).collect()
}

/// Asserts that a call failed in the given way, and gives its text.
pub(super) fn refused<T: std::fmt::Debug>(
    result: Result<T, DriverError>,
    kind: ErrorKind,
) -> String {
    let error = result.expect_err("it is to be refused");
    assert_eq!(error.kind, kind, "{error}");
    error.to_string()
}
