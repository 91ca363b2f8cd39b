//! Kernels that write a pattern into memory and check it: proof that bytes are what they were.

use std::sync::Arc;

use crate::cuda::CudaDriver;
use crate::cuda::failure::invalid;
use crate::cuda::kernel::{Kernel, Module, Shape};
use crate::cuda::open::attribute;
use crate::cuda::sys::CUdevice_attribute;
use crate::error::DriverError;
use crate::types::{DevicePtr, StreamHandle};

const PTX: &str = include_str!("pattern.ptx");
const WORD_BYTES: u64 = 8;
const BLOCK_THREADS: u32 = 256;
/// As many blocks as a multiprocessor holds at once: with more threads the memory is no faster.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;

/// Writes patterns on the device, and counts the words that differ from one.
///
/// Word `i` of a pattern is [`pattern_word(seed, i)`](crate::pattern::pattern_word),
/// little-endian. Both kernels run at about the speed of the memory that they touch, be it the
/// device's or pinned host memory.
#[derive(Debug)]
pub struct PatternKernels {
    write: Kernel,
    check: Kernel,
    block_count_max: u32,
}

impl PatternKernels {
    /// Loads the kernels.
    ///
    /// # Errors
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on devices older than Maxwell.
    pub fn new(driver: &Arc<CudaDriver>) -> Result<PatternKernels, DriverError> {
        let module = Module::load(driver, PTX)?;
        let count = {
            let cuda = driver.context.enter("load_module")?;
            let count = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
            attribute(cuda.api(), driver.context.device(), count)?
        };
        let multiprocessor_count = u32::try_from(count).unwrap_or(1);
        Ok(PatternKernels {
            write: module.kernel("write_pattern")?,
            check: module.kernel("check_pattern")?,
            block_count_max: (multiprocessor_count * BLOCKS_PER_MULTIPROCESSOR).max(1),
        })
    }

    /// Writes the pattern of `seed`, in stream order.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if `target` or `size_bytes` is not a multiple of 8,
    /// for 0 bytes, or for an unknown stream.
    ///
    /// # Safety
    /// As for [`Driver::copy`](crate::Driver::copy): the place is valid for `size_bytes` until
    /// the kernel has run, and no unordered work conflicts with it.
    pub unsafe fn write(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        seed: u64,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let word_count = word_count("write_pattern", target, size_bytes)?;
        let arguments = [target.0, word_count, seed];
        // SAFETY: the arguments are those of the kernel, which writes just the place that the
        // caller promises.
        unsafe { self.write.launch(self.shape(word_count), &arguments, stream) }
    }

    /// Adds the number of words that differ from the pattern of `seed` to the `u64` at
    /// `mismatches`, in stream order.
    ///
    /// # Errors
    /// As for [`write`](PatternKernels::write); `mismatches` must be a multiple of 8 too.
    ///
    /// # Safety
    /// As for [`write`](PatternKernels::write), for `target` and for the 8 bytes at
    /// `mismatches`. Checks may add to the same number without order between them.
    pub unsafe fn check(
        &self,
        target: DevicePtr,
        size_bytes: u64,
        seed: u64,
        mismatches: DevicePtr,
        stream: StreamHandle,
    ) -> Result<(), DriverError> {
        let call = "check_pattern";
        let word_count = word_count(call, target, size_bytes)?;
        if !mismatches.0.is_multiple_of(WORD_BYTES) {
            return Err(invalid(call, format!("{mismatches:?} is not a place for a u64")));
        }
        let arguments = [target.0, word_count, seed, mismatches.0];
        // SAFETY: the arguments are those of the kernel, which reads just the place, and adds
        // to the number, that the caller promises.
        unsafe { self.check.launch(self.shape(word_count), &arguments, stream) }
    }

    fn shape(&self, word_count: u64) -> Shape {
        let useful = word_count.div_ceil(u64::from(BLOCK_THREADS));
        let block_count = u64::from(self.block_count_max).min(useful) as u32;
        Shape { block_count, block_threads: BLOCK_THREADS }
    }
}

fn word_count(call: &'static str, target: DevicePtr, size_bytes: u64) -> Result<u64, DriverError> {
    let is_whole = target.0.is_multiple_of(WORD_BYTES) && size_bytes.is_multiple_of(WORD_BYTES);
    if !is_whole || size_bytes == 0 {
        return Err(invalid(call, format!("{target:?} + {size_bytes} bytes is not whole words")));
    }
    Ok(size_bytes / WORD_BYTES)
}

#[cfg(test)]
mod tests;
