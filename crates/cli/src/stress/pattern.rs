//! Known bytes on the device: written and checked word by word, in stream order.
//!
//! The only unsafe code of the command line is here: work that it submits by itself.
#![allow(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adaptive::devices::{PatternKernels, pattern_word};
use adaptive::{
    AccessMode, BlockId, Copy, Driver, DriverError, Error, HostFunction, HostPtr, OpName, OpStack,
    StreamHandle,
};

use crate::open::Accelerator;

const WRITE: OpName = OpName::new("write pattern");
const CHECK: OpName = OpName::new("check pattern");
const REWRITE: OpName = OpName::new("check and rewrite pattern");

/// What the command does with a block in one op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Writes the pattern of a seed over whatever is there.
    Write(u64),
    /// Compares each word with the pattern of a seed.
    Check(u64),
    /// Compares with the first, then writes the second.
    Rewrite(u64, u64),
}

/// How patterns get onto a device and are read there.
#[derive(Debug)]
pub(super) struct Patterns {
    way: Way,
    driver: Arc<dyn Driver>,
    /// Words that were not what they had to be.
    mismatches: Arc<AtomicU64>,
}

#[derive(Debug)]
enum Way {
    /// Kernels that were compiled for the device. They count in this pinned word.
    Kernels { kernels: PatternKernels, counter: HostPtr },
    /// Host functions that address the device's memory.
    HostFunctions,
    /// Fills with one byte, and host functions on a copy in pinned memory.
    Fills { staging: HostPtr },
}

impl Patterns {
    /// Makes the patterns of blocks of at most `block_bytes` ready.
    pub(super) fn new(
        driver: Arc<dyn Driver>,
        accelerator: Option<&Accelerator>,
        block_bytes: u64,
    ) -> Result<Patterns, DriverError> {
        let way = match accelerator {
            Some(Accelerator::Cuda(cuda)) => {
                let counter = driver.allocate_pinned(size_of::<u64>() as u64)?;
                // SAFETY: fresh pinned memory, page aligned, known to nobody else.
                unsafe { word(counter).write(0) };
                Way::Kernels { kernels: PatternKernels::new(cuda)?, counter }
            }
            _ if driver.properties().is_host_addressable => Way::HostFunctions,
            _ => Way::Fills { staging: driver.allocate_pinned(block_bytes)? },
        };
        Ok(Patterns { way, driver, mismatches: Arc::default() })
    }

    /// Runs one op on a block.
    pub(super) fn run(&self, ops: &mut OpStack, block: BlockId, used: Use) -> Result<(), Error> {
        let (name, mode) = match used {
            Use::Write(_) => (WRITE, AccessMode::Write),
            Use::Check(_) => (CHECK, AccessMode::Read),
            Use::Rewrite(..) => (REWRITE, AccessMode::ReadWrite),
        };
        ops.begin(name)?;
        ops.touch(block, mode)?;
        match &self.way {
            Way::HostFunctions => self.launch(ops, used)?,
            Way::Kernels { kernels, counter } => {
                let counter = self.driver.device_pointer(*counter)?;
                ops.submit(|stream, accesses| {
                    let (start, size_bytes) = (accesses[0].start, accesses[0].size_bytes);
                    if let Some(seed) = used.checked() {
                        // SAFETY: the op holds the block, mapped and ordered, until its work is
                        // done; the counter is pinned until `close`, which waits.
                        unsafe { kernels.check(start, size_bytes, seed, counter, stream) }?;
                    }
                    if let Some(seed) = used.written() {
                        // SAFETY: as above.
                        unsafe { kernels.write(start, size_bytes, seed, stream) }?;
                    }
                    Ok(())
                })?;
            }
            Way::Fills { staging } => self.fill(ops, *staging, used)?,
        }
        ops.end()
    }

    fn launch(&self, ops: &mut OpStack, used: Use) -> Result<(), Error> {
        let mismatches = Arc::clone(&self.mismatches);
        ops.launch(1.0, move |operands| match used {
            Use::Write(seed) => write(operands.write(0), seed),
            Use::Check(seed) => count(operands.read(0), seed, &mismatches),
            Use::Rewrite(old, new) => {
                let words = operands.write(0);
                count(words, old, &mismatches);
                write(words, new);
            }
        })
    }

    fn fill(&self, ops: &mut OpStack, staging: HostPtr, used: Use) -> Result<(), Error> {
        let (driver, mismatches) = (&self.driver, &self.mismatches);
        ops.submit(|stream, accesses| {
            let (start, size_bytes) = (accesses[0].start, accesses[0].size_bytes);
            if let Some(seed) = used.checked() {
                let out = Copy::DeviceToHost { source: start, target: staging, size_bytes };
                // SAFETY: the op holds the block until its work is done, and the staging memory
                // lives until `close`; all its users are on this one stream.
                unsafe { driver.copy(out, stream) }?;
                let mismatches = Arc::clone(mismatches);
                compare(&**driver, staging, size_bytes, byte(seed), mismatches, stream)?;
            }
            if let Some(seed) = used.written() {
                // SAFETY: as for the copy.
                unsafe { driver.fill(start, size_bytes, byte(seed), stream) }?;
            }
            Ok(())
        })
    }

    /// Words that were not what they had to be. Call it only when the device is idle.
    pub(super) fn mismatches(&self) -> u64 {
        let counted = match &self.way {
            // SAFETY: pinned until `close`; the caller says that no kernel runs.
            Way::Kernels { counter, .. } => unsafe { word(*counter).read_volatile() },
            _ => 0,
        };
        counted + self.mismatches.load(Ordering::Relaxed)
    }

    /// Gives pinned memory back. Call it only when the device is idle.
    pub(super) fn close(self) -> Result<(), DriverError> {
        match self.way {
            Way::Kernels { counter: start, .. } | Way::Fills { staging: start } => {
                // SAFETY: the caller says that nothing uses it any more.
                unsafe { self.driver.free_pinned(start) }
            }
            Way::HostFunctions => Ok(()),
        }
    }
}

impl Use {
    fn checked(self) -> Option<u64> {
        match self {
            Use::Check(seed) | Use::Rewrite(seed, _) => Some(seed),
            Use::Write(_) => None,
        }
    }

    fn written(self) -> Option<u64> {
        match self {
            Use::Write(seed) | Use::Rewrite(_, seed) => Some(seed),
            Use::Check(_) => None,
        }
    }
}

/// Counts the bytes of a staged copy that are not `expected`, in stream order.
fn compare(
    driver: &dyn Driver,
    staging: HostPtr,
    size_bytes: u64,
    expected: u8,
    mismatches: Arc<AtomicU64>,
    stream: StreamHandle,
) -> Result<(), DriverError> {
    let body = move |_: &adaptive::Operands<'_>| {
        let start = std::ptr::with_exposed_provenance::<u8>(address(staging));
        let len = usize::try_from(size_bytes).expect("it was allocated");
        // SAFETY: pinned memory of that length; the stream has filled it and does nothing else
        // with it before this function returns.
        let bytes = unsafe { std::slice::from_raw_parts(start, len) };
        let wrong = bytes.iter().filter(|&&byte| byte != expected).count();
        mismatches.fetch_add(wrong as u64, Ordering::Relaxed);
    };
    let function =
        HostFunction { name: "compare", accesses: Vec::new(), cost_us: 1.0, body: Box::new(body) };
    // SAFETY: it declares no access to device memory.
    unsafe { driver.launch_host(function, stream) }
}

fn write(words: &mut [u64], seed: u64) {
    for (index, word) in (0..).zip(words) {
        *word = pattern_word(seed, index);
    }
}

fn count(words: &[u64], seed: u64, mismatches: &AtomicU64) {
    let differs = |&(index, &word): &(u64, &u64)| word != pattern_word(seed, index);
    let wrong = (0..).zip(words).filter(differs).count();
    mismatches.fetch_add(wrong as u64, Ordering::Relaxed);
}

/// The byte that stands for a seed where only bytes can be filled. Never 0: fresh memory may be.
fn byte(seed: u64) -> u8 {
    u8::try_from(pattern_word(seed, 0) % 255).expect("below 255") + 1
}

fn word(start: HostPtr) -> *mut u64 {
    std::ptr::with_exposed_provenance_mut(address(start))
}

fn address(start: HostPtr) -> usize {
    usize::try_from(start.0).expect("host addresses fit")
}
